//! Search for the highest rate of a system: steps of a growing rate, each for the same time, until one is missed twice.

use super::talk::Figures;

/// The part of the offered rate that has to be appended in the time of a step.
const KEPT_PART: f64 = 0.99;
/// The rate of a step, as a fraction of the one before.
const GROWS_BY: (u64, u64) = (5, 4);

/// State of the search, which decides the next rate.
#[derive(Debug)]
pub(super) struct Ramp {
    /// The limit of the p99 of the lag.
    lag_ms_max: f64,
    /// The rate of the next step.
    rate: u64,
    /// The next step was missed once. It is repeated, as the cause may have been a pause of the machine.
    is_again: bool,
    is_over: bool,
    /// Figures of the steps, by their rates.
    kept: Option<(u64, Figures)>,
    missed: Option<(u64, Figures)>,
    /// (rate, p99 of the lag) of each.
    lags: Vec<(u64, f64)>,
}

impl Ramp {
    pub(super) fn new(rate: u64, lag_ms_max: f64) -> Ramp {
        Ramp { lag_ms_max, rate, is_again: false, is_over: false, kept: None, missed: None, lags: Vec::new() }
    }

    /// Events a second of the next step; none when the end is known.
    pub(super) fn next(&self) -> Option<u64> {
        (!self.is_over).then_some(self.rate)
    }

    /// The rate that was kept last.
    pub(super) fn kept(&self) -> Option<u64> {
        self.kept.as_ref().map(|(rate, _)| *rate)
    }

    /// Takes the figures of a step at the next rate, which include `events_per_s` and `lag_p99_ms`.
    pub(super) fn take(&mut self, step: Figures) {
        let of = |key: &str| step.get(key).copied().unwrap_or(f64::NAN);
        let (reached, lag) = (of("events_per_s"), of("lag_p99_ms"));
        let is_kept = reached >= KEPT_PART * self.rate as f64 && lag <= self.lag_ms_max;
        self.lags.retain(|(rate, _)| *rate != self.rate);
        self.lags.push((self.rate, lag));
        match is_kept {
            true => {
                self.kept = Some((self.rate, step));
                self.rate = self.rate * GROWS_BY.0 / GROWS_BY.1;
            }
            false if self.is_again => {
                self.missed = Some((self.rate, step));
                self.is_over = true;
            }
            false => {}
        }
        self.is_again = !is_kept;
    }

    /// The highest rate that was kept and the lowest that was missed, each with all figures of its step, and the lag at each rate.
    pub(super) fn figures(&self) -> Figures {
        let mut figures = Figures::from([
            ("kept_per_s".to_owned(), self.kept().map_or(0.0, |rate| rate as f64)),
            ("missed_per_s".to_owned(), self.missed.as_ref().map_or(0.0, |(rate, _)| *rate as f64)),
        ]);
        for (word, step) in [("kept", &self.kept), ("missed", &self.missed)] {
            let step = step.iter().flat_map(|(_, step)| step);
            figures.extend(step.map(|(key, value)| (format!("{word}_{key}"), *value)));
        }
        figures.extend(self.lags.iter().map(|(rate, lag)| (format!("at_{rate}_lag_p99_ms"), *lag)));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes steps, each the part of the rate that was reached and the lag, and says which rates they had.
    fn climb(ramp: &mut Ramp, steps: &[(f64, f64)]) -> Vec<u64> {
        let step = |&(part, lag): &(f64, f64)| {
            let rate = ramp.next().expect("it is not over");
            let figures = [("events_per_s", part * rate as f64), ("lag_p99_ms", lag), ("cpus", 0.5)];
            ramp.take(figures.map(|(key, value)| (key.to_owned(), value)).into());
            rate
        };
        steps.iter().map(step).collect()
    }

    #[test]
    fn the_rate_grows_until_the_lag_is_too_long_twice() {
        let mut ramp = Ramp::new(16_000, 50.0);
        let rates =
            climb(&mut ramp, &[(1.0, 9.0), (1.0, 50.0), (1.0, 50.1), (1.0, 12.0), (1.0, 60.0), (1.0, 70.0)]);
        assert_eq!(rates, [16_000, 20_000, 25_000, 25_000, 31_250, 31_250]);
        assert_eq!(ramp.next(), None);
        let figures = ramp.figures();
        let of = |key: &str| figures.get(key).copied();
        assert_eq!((of("kept_per_s"), of("kept_lag_p99_ms")), (Some(25_000.0), Some(12.0)));
        assert_eq!((of("missed_per_s"), of("missed_lag_p99_ms")), (Some(31_250.0), Some(70.0)));
        assert_eq!((of("at_16000_lag_p99_ms"), of("at_25000_lag_p99_ms")), (Some(9.0), Some(12.0)));
        assert_eq!((of("kept_cpus"), of("at_31250_lag_p99_ms")), (Some(0.5), Some(70.0)));
    }

    #[test]
    fn it_ends_too_where_the_rate_is_not_reached() {
        let mut ramp = Ramp::new(100, 50.0);
        climb(&mut ramp, &[(0.99, 1.0), (0.98, 1.0), (0.5, 1.0)]);
        assert_eq!((ramp.next(), ramp.kept()), (None, Some(100)));
        assert_eq!(ramp.figures()["missed_per_s"], 125.0);
    }

    #[test]
    fn a_first_step_that_is_missed_leaves_no_rate() {
        let mut ramp = Ramp::new(100, 0.0);
        climb(&mut ramp, &[(1.0, 1.0), (1.0, 1.0)]);
        assert_eq!((ramp.next(), ramp.kept(), ramp.figures()["kept_per_s"]), (None, None, 0.0));
        // A missing figure is no success.
        let mut ramp = Ramp::new(100, 50.0);
        ramp.take(Figures::new());
        assert_eq!(ramp.kept(), None);
    }
}
