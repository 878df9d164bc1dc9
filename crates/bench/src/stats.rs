//! Medians, ranges and ratios of a handful of runs.

use serde::Serialize;

/// The middle and the ends of the values of several runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one; of an even number of values the mean of the two in the middle.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of some values; `None` if there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, min, max })
    }

    /// Returns the ratio of the medians of `ours` and `theirs`, and the range of the ratios within each round. Both have one value per
    /// round, in order; `None` if there is no round of both.
    pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let rounds = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs);
        let range = Self::of(rounds)?;
        let median = Self::of(ours.iter().copied())?.median / Self::of(theirs.iter().copied())?.median;
        Some(Self { median, ..range })
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn medians_and_ranges() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0 }));
        assert_eq!(spread(&[5.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 5.0 }));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 10.0]), Some(Spread { median: 3.0, min: 1.0, max: 10.0 }));
    }

    #[test]
    fn a_ratio_is_of_medians_and_its_range_is_of_rounds() {
        let ratio = Spread::ratio(&[30.0, 20.0, 40.0], &[10.0, 20.0, 8.0]);
        assert_eq!(ratio, Some(Spread { median: 3.0, min: 1.0, max: 5.0 }));
        assert_eq!(Spread::ratio(&[], &[1.0]), None);
    }
}
