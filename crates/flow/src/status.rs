//! How an application is: for `/live`, `/ready`, `/metrics`, and who has started it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use crate::app::AppState;
use crate::metrics::BOUNDS_MS;
use crate::route::RouteState;
use crate::runner::Shared;
use crate::window::Window;

/// Where in its life an application is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It has not been given partitions yet.
    Starting,
    /// It has taken part in its group.
    Running,
    /// It starts nothing, and keeps its partitions.
    Quiet,
    /// It finishes what runs.
    Stopping,
    /// It has left its group.
    Stopped,
}

/// How an application is.
pub struct Status {
    app: Arc<AppState>,
    routes: Vec<Arc<RouteState>>,
    stuck_after: Duration,
    now: Mutex<Now>,
}

struct Now {
    state: State,
    partitions: Vec<Arc<Shared>>,
    rebalances: u64,
}

impl Status {
    pub(crate) fn new(app: Arc<AppState>, routes: Vec<Arc<RouteState>>, stuck_after: Duration) -> Status {
        let now = Now { state: State::Starting, partitions: Vec::new(), rebalances: 0 };
        Status { app, routes, stuck_after, now: Mutex::new(now) }
    }

    pub(crate) fn assigned(&self, partitions: impl Iterator<Item = Arc<Shared>>) {
        let mut now = self.now.lock();
        now.partitions = partitions.collect();
        now.partitions.sort_by(|a, b| a.partition.cmp(&b.partition));
        now.rebalances += 1;
        if now.state == State::Starting {
            now.state = State::Running;
        }
    }

    pub(crate) fn quiet(&self, is_quiet: bool) {
        let mut now = self.now.lock();
        now.state = match (now.state, is_quiet) {
            (State::Starting | State::Running, true) => State::Quiet,
            (State::Quiet, false) if now.rebalances == 0 => State::Starting,
            (State::Quiet, false) => State::Running,
            (other, _) => other,
        };
    }

    pub(crate) fn stopping(&self) {
        self.now.lock().state = State::Stopping;
    }

    pub(crate) fn stopped(&self) {
        let mut now = self.now.lock();
        (now.state, now.partitions) = (State::Stopped, Vec::new());
    }

    /// A number that changes when a message is admitted, started or has ended.
    #[cfg(feature = "testing")]
    pub(crate) fn activity(&self) -> u64 {
        let metrics = self.routes.iter().map(|route| {
            let metrics = &route.metrics;
            let all =
                [&metrics.handled, &metrics.failed, &metrics.filtered, &metrics.retries, &metrics.letters];
            all.into_iter().map(crate::metrics::Counter::get).sum::<u64>()
        });
        let now = self.now.lock();
        let windows = now.partitions.iter().map(|shared| {
            let progress = shared.progress.lock();
            let of = |window: &Window| (window.arrived() as u64) << 24 | (window.running() as u64) << 12;
            progress.window.as_ref().map_or(0, of)
        });
        metrics.chain(windows).fold(now.rebalances << 48, u64::wrapping_add)
    }

    /// Where in its life it is.
    pub fn state(&self) -> State {
        self.now.lock().state
    }

    /// Whether it takes part in its group.
    ///
    /// # Errors
    /// Why it does not.
    pub fn ready(&self) -> Result<(), String> {
        match self.state() {
            // It takes part in its group, and an orchestrator that took it out for that would be in its operator's way.
            State::Running | State::Quiet => Ok(()),
            State::Starting => {
                Err("no partition was assigned yet: the group is being joined, or the topics are missing"
                    .to_owned())
            }
            State::Stopping => Err("the application stops".to_owned()),
            State::Stopped => Err("the application has stopped".to_owned()),
        }
    }

    /// Whether it makes progress.
    ///
    /// # Errors
    /// Which partition stands still, since when, and at which offset.
    pub fn live(&self) -> Result<(), String> {
        let now_ms = self.app.now_ms();
        let limit_ms = u64::try_from(self.stuck_after.as_millis()).unwrap_or(u64::MAX);
        let is_quiet = self.state() == State::Quiet;
        if is_quiet || self.routes.iter().any(|route| route.judge.lock().outage_since_ms().is_some()) {
            // A restart would not bring back what is away, and is not wanted by who has asked for quiet.
            return Ok(());
        }
        for shared in &self.now.lock().partitions {
            let progress = shared.progress.lock();
            let Some(window) = progress.window.as_ref().filter(|window| window.unfinished() > 0) else {
                continue;
            };
            let still_ms = now_ms.saturating_sub(progress.moved_ms);
            if still_ms > limit_ms {
                return Err(format!(
                    "{} stands still at offset {} for {} s: {} messages are unfinished, {} of them run",
                    shared.partition,
                    window.frontier(),
                    still_ms / 1_000,
                    window.unfinished(),
                    window.running()
                ));
            }
        }
        Ok(())
    }

    /// Logs what runs.
    pub(crate) fn log(&self) {
        for shared in &self.now.lock().partitions {
            let progress = shared.progress.lock();
            if let Some(window) = &progress.window {
                tracing::info!(
                    "{}: finished up to offset {}, {} unfinished, {} run",
                    shared.partition,
                    window.frontier(),
                    window.unfinished(),
                    window.running()
                );
            }
        }
    }

    /// The figures, in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let mut out = String::new();
        self.messages(&mut out);
        self.durations(&mut out);
        let now = self.now.lock();
        let line = |out: &mut String, name: &str, shared: &Shared, value: u64| {
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "mainstem_flow_{name}{{topic=\"{}\",partition=\"{}\"}} {value}",
                shared.partition.topic, shared.partition.partition
            );
        };
        out.push_str("# TYPE mainstem_flow_unfinished gauge\n");
        for shared in &now.partitions {
            let unfinished = shared.progress.lock().window.as_ref().map_or(0, Window::unfinished);
            line(&mut out, "unfinished", shared, unfinished as u64);
        }
        out.push_str("# TYPE mainstem_flow_frontier_age_seconds gauge\n");
        for shared in &now.partitions {
            let progress = shared.progress.lock();
            let waits = progress.window.as_ref().is_some_and(|window| window.unfinished() > 0);
            let age_ms = self.app.now_ms().saturating_sub(progress.moved_ms);
            line(&mut out, "frontier_age_seconds", shared, if waits { age_ms / 1_000 } else { 0 });
        }
        out.push_str("# TYPE mainstem_flow_lag gauge\n");
        for shared in &now.partitions {
            let end = shared.end.load(Ordering::Relaxed);
            let frontier = shared.progress.lock().window.as_ref().map(Window::frontier);
            // Nothing is said where nothing is known.
            if let Some(frontier) = frontier.filter(|_| end >= 0) {
                line(&mut out, "lag", shared, end.saturating_sub(frontier).max(0).unsigned_abs());
            }
        }
        let _ = writeln!(
            out,
            "# TYPE mainstem_flow_rebalances_total counter\nmainstem_flow_rebalances_total {}\n# TYPE mainstem_flow_state \
             gauge\nmainstem_flow_state{{state=\"{}\"}} 1",
            now.rebalances,
            format!("{:?}", now.state).to_lowercase()
        );
        out
    }

    /// How long attempts took, by route.
    fn durations(&self, out: &mut String) {
        out.push_str("# TYPE mainstem_flow_handler_seconds histogram\n");
        for route in &self.routes {
            let (name, attempts) = (escaped(&route.name), &route.metrics.attempts);
            let cumulative = attempts.cumulative();
            let bounds = BOUNDS_MS.iter().map(|bound| (*bound as f64 / 1_000.0).to_string());
            for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(cumulative) {
                let _ = writeln!(
                    out,
                    "mainstem_flow_handler_seconds_bucket{{route=\"{name}\",le=\"{bound}\"}} {count}"
                );
            }
            let (sum, count) = (attempts.sum_ms() as f64 / 1_000.0, cumulative[BOUNDS_MS.len()]);
            let _ = writeln!(
                out,
                "mainstem_flow_handler_seconds_sum{{route=\"{name}\"}} {sum}\nmainstem_flow_handler_seconds_count{{route=\"{name}\"}} {count}"
            );
        }
    }

    fn messages(&self, out: &mut String) {
        out.push_str("# TYPE mainstem_flow_messages_total counter\n");
        for route in &self.routes {
            let metrics = &route.metrics;
            for (outcome, counter) in
                [("handled", &metrics.handled), ("failed", &metrics.failed), ("filtered", &metrics.filtered)]
            {
                let _ = writeln!(
                    out,
                    "mainstem_flow_messages_total{{route=\"{}\",outcome=\"{outcome}\"}} {}",
                    escaped(&route.name),
                    counter.get()
                );
            }
        }
        for (name, of) in [
            ("retries_total", (|route| route.metrics.retries.get()) as fn(&RouteState) -> u64),
            ("dead_letters_total", |route| route.metrics.letters.get()),
        ] {
            let _ = writeln!(out, "# TYPE mainstem_flow_{name} counter");
            for route in &self.routes {
                let _ =
                    writeln!(out, "mainstem_flow_{name}{{route=\"{}\"}} {}", escaped(&route.name), of(route));
            }
        }
    }
}

/// A value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Status").field("state", &self.state()).finish_non_exhaustive()
    }
}
