//! Progress on standard error: a bar with the time left on a terminal, a line for each run elsewhere.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::plan::{Forecast, Step, in_words};

/// Interval between redraws of the bar: long, as drawing takes CPU from what is measured.
const REDRAW: Duration = Duration::from_secs(1);
const TEMPLATE: &str = "{pos}/{len} {bar:24} {left} left; {msg}";

/// The state that the bar shows between runs.
#[derive(Debug)]
struct Current {
    forecast: Forecast,
    began: Instant,
}

impl Current {
    fn left(&self) -> String {
        in_words(self.forecast.left(self.began.elapsed()))
    }
}

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    current: Arc<Mutex<Current>>,
}

impl Progress {
    pub(crate) fn start(steps: usize, forecast: Forecast) -> Self {
        let current = Arc::new(Mutex::new(Current { forecast, began: Instant::now() }));
        let shown = current.clone();
        let left = move |_: &ProgressState, text: &mut dyn Write| {
            let left = shown.lock().unwrap_or_else(PoisonError::into_inner).left();
            // If the terminal is gone, the bar itself notices.
            let _ = text.write_str(&left);
        };
        let style = ProgressStyle::with_template(TEMPLATE).expect("the template is constant");
        let bar = ProgressBar::new(steps as u64).with_style(style.with_key("left", left));
        bar.enable_steady_tick(REDRAW);
        Self { bar, current }
    }

    pub(crate) fn begin(&self, step: &Step) {
        let name = name_of(step);
        self.lock().began = Instant::now();
        if self.bar.is_hidden() {
            let (at, all) = (self.bar.position() + 1, self.bar.length().unwrap_or_default());
            eprintln!("[{at}/{all}, {} left] {name}", self.lock().left());
        }
        self.bar.set_message(name);
    }

    /// Shows the result of a run.
    pub(crate) fn end(&self, step: &Step, headline: &str) {
        {
            let mut current = self.lock();
            let took = current.began.elapsed();
            current.forecast.done(took);
            current.began = Instant::now();
        }
        if self.bar.is_hidden() {
            eprintln!("    {headline}");
        } else {
            self.bar.println(format!("{}: {headline}", name_of(step)));
        }
        self.bar.inc(1);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn name_of(step: &Step) -> String {
    let (workload, durability) = (step.workload.name(), step.durability.name());
    format!("{workload} {durability} {} {}", step.round, step.system.name())
}
