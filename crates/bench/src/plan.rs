//! The order of the runs, and the time that they will take.

use std::time::Duration;

use crate::broker::System;
use crate::cases::Extent;
use crate::workload::{ClusterKind, Durability, Kind, Left, Workload};

/// The systems and workloads to measure.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The systems, side by side.
    pub systems: Vec<System>,
    /// The workloads, one after another.
    pub workloads: Vec<Workload>,
    /// The durabilities that each workload is measured with.
    pub durabilities: Vec<Durability>,
    /// Number of measurements of each system.
    pub rounds: usize,
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Step {
    pub(crate) durability: Durability,
    pub(crate) workload: Workload,
    /// The round, from 1.
    pub(crate) round: usize,
    pub(crate) system: System,
}

impl Selection {
    /// Returns the runs, round by round (A B A B), so that a disturbance of the machine affects all systems and durabilities. Loads that
    /// share nodes follow each other within a round.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let share = |one: &Workload, other: &Workload| one.shares_nodes() && other.shares_nodes();
        let groups = self.workloads.chunk_by(share);
        groups.flat_map(|group| (1..=self.rounds).flat_map(move |round| self.round(group, round))).collect()
    }

    fn round(&self, group: &[Workload], round: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut add = |workload: Workload, durability, system| {
            let is_due = round == 1 || !workload.is_made_once();
            if is_due && workload.applies_to(system, durability) {
                steps.push(Step { durability, workload, round, system });
            }
        };
        match group {
            [workload] => {
                for &durability in &self.durabilities {
                    self.systems.iter().for_each(|&system| add(*workload, durability, system));
                }
            }
            _ => {
                for &system in &self.systems {
                    for &durability in &self.durabilities {
                        group.iter().for_each(|&workload| add(workload, durability, system));
                    }
                }
            }
        }
        steps
    }
}

impl Step {
    /// Guesses the time of a run. The times of finished runs correct the guess.
    pub(crate) fn expected(&self, extent: &Extent) -> Duration {
        // A broker waits three seconds for the members of a new group.
        let group_s = if self.system.is_broker() { 3.0 } else { 0.0 };
        let load_s = (extent.warmup + extent.window).as_secs_f64() + group_s + 0.5;
        let records = extent.records as f64;
        let killed_gib = extent.killed_mib as f64 / 1024.0;
        let busy_s = match self.workload.kind {
            Kind::Load(_) | Kind::Transactions(_) => load_s,
            Kind::ReadCommitted | Kind::TransactionalIds(_) => 10.0,
            Kind::BandwidthIn(_) => 5.0 + 1.25 * records / 80_000.0,
            Kind::BandwidthOut => 12.0 + records / 80_000.0 + 1.25 * records / 400_000.0,
            Kind::Idle => 9.0,
            Kind::Start(Left::Nothing) => 1.0,
            Kind::Start(Left::Clean) => 5.0,
            Kind::Start(Left::Killed) => 7.0 + 4.0 * killed_gib,
            Kind::HeapSweep(_) => 8.0 * load_s,
            Kind::SlowConsumers(_) => load_s + 2.0 + extent.cold_mib as f64 / 300.0,
            Kind::Embedded(load) => load_s + if load.is_of_peer() { 1.5 } else { 0.5 },
            Kind::Cluster(ClusterKind::Replica(..)) => 4.0 + 2.0 * load_s,
            Kind::Cluster(ClusterKind::Load(_) | ClusterKind::Leader(_)) => 8.0 + load_s,
            Kind::Cluster(ClusterKind::Idle) => 40.0,
            Kind::Cluster(ClusterKind::Start) => 4.0,
            Kind::Cluster(ClusterKind::OffsetsLoad) => 90.0,
            Kind::Cluster(ClusterKind::OffsetsKept) => 8.0 + extent.soak.as_secs_f64(),
            Kind::Handshakes(_) => load_s,
            Kind::Logins(_) | Kind::Unauthenticated(_) | Kind::Acls(_) => 2.0 * load_s + 1.0,
            Kind::Soak(_) => 2.0 * load_s - extent.window.as_secs_f64() + extent.soak.as_secs_f64(),
        };
        // Kafka starts, formats its directory and stops.
        let around_s = if self.system.is_kafka() { 6.0 } else { 0.2 };
        Duration::from_secs_f64(busy_s + around_s)
    }
}

/// Estimates the time left, from guesses and from the ratio of finished runs to their guesses.
#[derive(Debug, Clone)]
pub(crate) struct Forecast {
    expected: Vec<Duration>,
    /// The times of the finished runs.
    took: Vec<Duration>,
}

impl Forecast {
    pub(crate) fn new(steps: &[Step], extent: &Extent) -> Self {
        Self { expected: steps.iter().map(|step| step.expected(extent)).collect(), took: Vec::new() }
    }

    /// Notes that the next run has finished.
    pub(crate) fn done(&mut self, took: Duration) {
        self.took.push(took);
    }

    /// Returns the time left when the current run has taken that long.
    pub(crate) fn left(&self, current: Duration) -> Duration {
        let done = self.took.len().min(self.expected.len());
        let guessed: Duration = self.expected[..done].iter().sum();
        let took: Duration = self.took.iter().sum();
        let factor = if guessed.is_zero() { 1.0 } else { took.as_secs_f64() / guessed.as_secs_f64() };
        let ahead: Duration = self.expected[done..].iter().sum();
        ahead.mul_f64(factor).saturating_sub(current)
    }
}

/// Formats a time for people: "47 s", "12 min 05 s", "2 h 03 min".
pub(crate) fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(names: &[&str], systems: &[System]) -> Selection {
        Selection {
            systems: systems.to_vec(),
            workloads: names.iter().map(|name| Workload::parse(name).unwrap()).collect(),
            durabilities: Durability::ALL.to_vec(),
            rounds: 2,
        }
    }

    #[test]
    fn rounds_are_interleaved_and_what_does_not_apply_is_left_out() {
        let steps =
            selection(&["small-msg-saturate", "start"], &[System::Kafka, System::Mainstem, System::Probe])
                .steps();
        let shown: Vec<_> = steps
            .iter()
            .map(|step| {
                let (durability, workload) = (step.durability.name(), step.workload.name());
                format!("{durability} {workload} {} {}", step.round, step.system.name())
            })
            .collect();
        assert_eq!(
            shown[..7],
            [
                "page-cache small-msg-saturate 1 kafka",
                "page-cache small-msg-saturate 1 mainstem",
                "page-cache small-msg-saturate 1 probe",
                "fsync small-msg-saturate 1 kafka",
                "fsync small-msg-saturate 1 mainstem",
                "fsync small-msg-saturate 1 probe",
                "page-cache small-msg-saturate 2 kafka",
            ]
        );
        assert_eq!(shown.len(), 6 + 4 + 6, "nothing starts with fsync");
    }

    #[test]
    fn loads_that_share_nodes_follow_each_other() {
        let steps = selection(
            &["replicated-closed", "replicated-pipelined", "leader-killed"],
            &[System::Kafka, System::Mainstem],
        )
        .steps();
        let shown: Vec<_> = steps
            .iter()
            .map(|step| {
                let (system, durability) = (step.system.name(), step.durability.name());
                format!("{} {system} {durability} {}", step.round, step.workload.name())
            })
            .collect();
        assert_eq!(
            shown[..9],
            [
                "1 kafka page-cache replicated-closed",
                "1 kafka page-cache replicated-pipelined",
                "1 kafka fsync replicated-closed",
                "1 kafka fsync replicated-pipelined",
                "1 mainstem page-cache replicated-closed",
                "1 mainstem page-cache replicated-pipelined",
                "1 mainstem fsync replicated-closed",
                "1 mainstem fsync replicated-pipelined",
                "2 kafka page-cache replicated-closed",
            ]
        );
        assert_eq!(shown[16], "1 kafka page-cache leader-killed");
    }

    #[test]
    fn a_soak_is_made_once() {
        let steps = selection(&["soak", "slow-consumers"], &[System::Kafka, System::Mainstem]).steps();
        let soaks = steps.iter().filter(|step| step.workload.name() == "soak");
        assert_eq!((soaks.count(), steps.len()), (2, 2 + 4));
    }

    #[test]
    fn what_is_left_follows_the_runs_that_are_done() {
        let extent =
            Extent { warmup: Duration::from_secs(5), window: Duration::from_secs(3), ..Extent::default() };
        let steps = selection(&["small-msg-saturate"], &[System::Mainstem]).steps();
        let mut forecast = Forecast::new(&steps, &extent);
        let guess = Duration::from_secs_f64(11.7);
        assert_eq!(forecast.left(Duration::ZERO), 4 * guess);
        forecast.done(2 * guess);
        assert_eq!(forecast.left(Duration::ZERO), 6 * guess);
        assert_eq!(forecast.left(guess), 5 * guess);
        (0..3).for_each(|_| forecast.done(guess));
        assert_eq!(forecast.left(guess), Duration::ZERO);
    }

    #[test]
    fn times_in_words() {
        let words = [0, 47, 725, 7_400].map(|seconds| in_words(Duration::from_secs(seconds)));
        assert_eq!(words, ["0 s", "47 s", "12 min 05 s", "2 h 03 min"]);
    }
}
