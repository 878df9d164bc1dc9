//! The status of an application: for `/live`, `/ready`, `/metrics`, and the program that has started it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainstem_client::TopicPartition;
use mainstem_operator::{Exposition, Kind};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::app::AppState;
use crate::metrics::BOUNDS_MS;
use crate::route::RouteState;
use crate::runner::{Progress, Shared};
use crate::window::Window;

/// The state of an application in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is not in its group yet.
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

/// The status of an application.
pub struct Status {
    app: Arc<AppState>,
    routes: Vec<Arc<RouteState>>,
    stuck_after: Duration,
    now: Mutex<Now>,
    /// Set while no broker answers.
    away: Mutex<Option<Away>>,
}

/// Brokers that do not answer.
pub(crate) struct Away {
    since: Instant,
    unready_after: Duration,
    reason: String,
}

impl Away {
    /// Brokers at some addresses, of which none has answered for so long.
    pub(crate) fn new(time: Duration, unready_after: Duration, named: &str, reason: &str) -> Away {
        let now = Instant::now();
        Away {
            since: now.checked_sub(time).unwrap_or(now),
            unready_after,
            reason: format!("{named}: {reason}"),
        }
    }
}

struct Now {
    state: State,
    partitions: Vec<Arc<Shared>>,
    rebalances: u64,
    is_member: bool,
}

impl Status {
    pub(crate) fn new(app: Arc<AppState>, routes: Vec<Arc<RouteState>>, stuck_after: Duration) -> Status {
        let now = Now { state: State::Starting, partitions: Vec::new(), rebalances: 0, is_member: false };
        Status { app, routes, stuck_after, now: Mutex::new(now), away: Mutex::new(None) }
    }

    pub(crate) fn assigned(&self, partitions: impl Iterator<Item = Arc<Shared>>) {
        let mut now = self.now.lock();
        now.partitions = partitions.collect();
        now.partitions.sort_by(|a, b| a.partition.cmp(&b.partition));
        now.rebalances += 1;
        drop(now);
        self.joined();
    }

    /// It is a member of its group, whether it was given partitions or not.
    pub(crate) fn joined(&self) {
        let mut now = self.now.lock();
        now.is_member = true;
        if now.state == State::Starting {
            now.state = State::Running;
        }
    }

    /// Brokers do not answer, or do again.
    pub(crate) fn brokers_away(&self, away: Option<Away>) {
        *self.away.lock() = away;
    }

    pub(crate) fn quiet(&self, is_quiet: bool) {
        let mut now = self.now.lock();
        now.state = match (now.state, is_quiet) {
            (State::Starting | State::Running, true) => State::Quiet,
            (State::Quiet, false) if !now.is_member => State::Starting,
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

    /// Returns its state.
    pub fn state(&self) -> State {
        self.now.lock().state
    }

    /// Looks whether it takes part in its group, also where that has more members than partitions, so that this one has none; and
    /// whether a broker has answered within [`App::unready_after`](crate::App::unready_after).
    ///
    /// # Errors
    /// Why it does not.
    pub fn ready(&self) -> Result<(), String> {
        let state = self.state();
        if let Some(away) = self.away.lock().as_ref().filter(|away| away.since.elapsed() > away.unready_after)
            && !matches!(state, State::Stopping | State::Stopped)
        {
            let seconds = away.since.elapsed().as_secs();
            return Err(format!("no broker has answered for {seconds} s at {}", away.reason));
        }
        match state {
            // A quiet application takes part in its group. An orchestrator that took it out of service would be in its operator's way.
            State::Running | State::Quiet => Ok(()),
            State::Starting => Err("the group is being joined: no answer of it has come yet".to_owned()),
            State::Stopping => Err("the application stops".to_owned()),
            State::Stopped => Err("the application has stopped".to_owned()),
        }
    }

    /// Checks that it makes progress: in no partition has the first unfinished message been running, or been ready to, for longer than
    /// [`App::stuck_after`](crate::App::stuck_after). A message does not count while it waits for its next attempt, for the end of a pause,
    /// or until its outputs or its dead letter are written. During an outage none counts: a restart would not help.
    ///
    /// # Errors
    /// The partition that makes no progress, since when, and at which offset.
    pub fn live(&self) -> Result<(), String> {
        let now_ms = self.app.now_ms();
        let limit_ms = u64::try_from(self.stuck_after.as_millis()).unwrap_or(u64::MAX);
        let is_quiet = self.state() == State::Quiet;
        if is_quiet || self.routes.iter().any(|route| route.judge.lock().outage_since_ms().is_some()) {
            // A restart would not bring back what is away, and an operator who has asked for quiet does not want one.
            return Ok(());
        }
        for shared in &self.now.lock().partitions {
            let progress = shared.progress.lock();
            let unfinished = unfinished(shared, &progress);
            let Some(window) = progress.window.as_ref().filter(|_| unfinished > 0) else { continue };
            let still_ms = now_ms.saturating_sub(expected_ms(shared, &progress, window));
            if still_ms > limit_ms {
                return Err(format!(
                    "{} makes no progress at offset {} for {} s: {} messages are unfinished, {} of them run",
                    shared.partition,
                    window.frontier(),
                    still_ms / 1_000,
                    unfinished,
                    window.running() + shared.inline().min(1)
                ));
            }
        }
        Ok(())
    }

    /// Partitions whose handlers block their thread for too long: since when in ms of the application's clock, and for how long.
    pub(crate) fn blocked(&self) -> Vec<(TopicPartition, u64, u64)> {
        let now_ms = self.app.now_ms();
        let of = |shared: &Arc<Shared>| {
            let since_ms = shared.blocked_since_ms(now_ms)?;
            Some((shared.partition.clone(), since_ms, now_ms - since_ms))
        };
        self.now.lock().partitions.iter().filter_map(of).collect()
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
                    unfinished(shared, &progress),
                    window.running() + shared.inline().min(1)
                );
            }
        }
    }

    /// The figures, in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let mut out = Exposition::default();
        self.messages(&mut out);
        self.durations(&mut out);
        self.partitions(&mut out);
        let now = self.now.lock();
        let help = "Changes of the partitions that this process has.";
        out.one("mainstem_flow_rebalances_total", Kind::Counter, help, now.rebalances as f64);
        let away = self.away.lock().as_ref().map_or(0, |away| away.since.elapsed().as_secs());
        let help = "For how long no broker has answered.";
        out.one("mainstem_flow_brokers_away_seconds", Kind::Gauge, help, away as f64);
        let state = format!("{:?}", now.state).to_lowercase();
        let name = "mainstem_flow_state";
        out.describe(name, Kind::Gauge, "Where in its life the application is.");
        out.sample(name, &[("state", &state)], 1.0);
        out.into_text()
    }

    /// Writes the progress of each partition.
    fn partitions(&self, out: &mut Exposition) {
        let partitions = self.now.lock().partitions.clone();
        let mut gauge = |name: &str, help: &str, value: &dyn Fn(&Shared) -> Option<u64>| {
            out.describe(name, Kind::Gauge, help);
            for shared in &partitions {
                // A partition without a known value is left out.
                let Some(value) = value(shared) else { continue };
                let partition = shared.partition.partition.to_string();
                let labels = [("topic", &*shared.partition.topic), ("partition", partition.as_str())];
                out.sample(name, &labels, value as f64);
            }
        };
        gauge("mainstem_flow_unfinished", "Messages that have arrived and are not finished.", &|shared| {
            Some(unfinished(shared, &shared.progress.lock()) as u64)
        });
        let help = "How long the first unfinished message has been that.";
        gauge("mainstem_flow_frontier_age_seconds", help, &|shared| {
            let progress = shared.progress.lock();
            let age_ms = self.app.now_ms().saturating_sub(progress.moved_ms);
            Some(if unfinished(shared, &progress) > 0 { age_ms / 1_000 } else { 0 })
        });
        gauge(
            "mainstem_flow_lag",
            "Offsets from the first unfinished message to the log's end.",
            &|shared| {
                let end = shared.end.load(Ordering::Relaxed);
                let frontier = shared.progress.lock().window.as_ref().map(Window::frontier)?;
                (end >= 0).then(|| end.saturating_sub(frontier).max(0).unsigned_abs())
            },
        );
    }

    /// Writes the durations of attempts, by route.
    fn durations(&self, out: &mut Exposition) {
        let name = "mainstem_flow_handler_seconds";
        out.describe(name, Kind::Histogram, "How long attempts took, to the millisecond.");
        for route in &self.routes {
            let (route, attempts) = (route.name.as_str(), &route.metrics.attempts);
            let cumulative = attempts.cumulative();
            let bounds = BOUNDS_MS.iter().map(|bound| (*bound as f64 / 1_000.0).to_string());
            for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(cumulative) {
                out.sample(&format!("{name}_bucket"), &[("route", route), ("le", &bound)], count as f64);
            }
            out.sample(&format!("{name}_sum"), &[("route", route)], attempts.sum_ms() as f64 / 1_000.0);
            let count = cumulative[BOUNDS_MS.len()] as f64;
            out.sample(&format!("{name}_count"), &[("route", route)], count);
        }
    }

    fn messages(&self, out: &mut Exposition) {
        let name = "mainstem_flow_messages_total";
        out.describe(
            name,
            Kind::Counter,
            "Messages that were handled or left out, and attempts that failed.",
        );
        for route in &self.routes {
            let metrics = &route.metrics;
            for (outcome, counter) in
                [("handled", &metrics.handled), ("failed", &metrics.failed), ("filtered", &metrics.filtered)]
            {
                let labels = [("route", route.name.as_str()), ("outcome", outcome)];
                out.sample(name, &labels, counter.get() as f64);
            }
        }
        for (name, help, of) in [
            (
                "mainstem_flow_retries_total",
                "Attempts after the first one.",
                (|route| route.metrics.retries.get()) as fn(&RouteState) -> u64,
            ),
            ("mainstem_flow_dead_letters_total", "Messages that were set aside.", |route| {
                route.metrics.letters.get()
            }),
            (
                "mainstem_flow_dead_letters_cut_total",
                "Dead letters that have less than their message, as they are too large for their topic.",
                |route| route.metrics.cut_letters.get(),
            ),
        ] {
            out.describe(name, Kind::Counter, help);
            for route in &self.routes {
                out.sample(name, &[("route", &route.name)], of(route) as f64);
            }
        }
    }
}

/// Returns the time since which the first unfinished message could have been finished; in the future while it waits for something.
fn expected_ms(shared: &Shared, progress: &Progress, window: &Window) -> u64 {
    let expected_ms = progress.moved_ms.max(window.frontier_due_ms().unwrap_or(0));
    expected_ms.max(shared.rests_until_ms.load(Ordering::Relaxed))
}

/// Messages of a partition that have arrived and are not finished.
fn unfinished(shared: &Shared, progress: &Progress) -> usize {
    progress.window.as_ref().map_or(0, Window::unfinished) + shared.inline()
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Status").field("state", &self.state()).finish_non_exhaustive()
    }
}
