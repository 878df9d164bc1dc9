//! Decides when a sync begins, so that appends that come at the same time share it.

use std::time::Duration;

/// The longest time between appends that count as coming at the same time.
const APART_MAX: Duration = Duration::from_micros(10);
/// The longest wait of an append for others, a part of the time of a sync.
const GATHERED_MAX: Duration = Duration::from_micros(100);

/// Decides when to sync. If the last sync was of one append alone, the next one begins at once, so that a single appender does not
/// wait for others.
#[derive(Debug)]
pub(super) struct Gathering {
    /// The last sync was of several events.
    was_shared: bool,
    synced: i64,
}

/// The end of the arrived events, and the time of the last arrival.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrivals {
    end: i64,
    /// The time from the beginning to the last arrival.
    last: Duration,
}

impl Gathering {
    /// Begins with all events before `synced` on disk.
    pub(super) fn new(synced: i64) -> Gathering {
        Gathering { was_shared: false, synced }
    }

    /// Begins when an append has come; there are events before `end`. Returns the state for [`Gathering::keeps_gathering`], or `None` if
    /// the sync has to begin at once.
    pub(super) fn begin(&self, end: i64) -> Option<Arrivals> {
        self.was_shared.then_some(Arrivals { end, last: Duration::ZERO })
    }

    /// Returns true if the sync still waits, `elapsed` after the beginning, with events before `end`.
    pub(super) fn keeps_gathering(&self, arrivals: &mut Arrivals, elapsed: Duration, end: i64) -> bool {
        if end != arrivals.end {
            *arrivals = Arrivals { end, last: elapsed };
        }
        elapsed < GATHERED_MAX && elapsed.saturating_sub(arrivals.last) < APART_MAX
    }

    /// Notes that all events before `synced` are on disk.
    pub(super) fn synced(&mut self, synced: i64) {
        self.was_shared = synced - self.synced > 1;
        self.synced = synced;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn shared() -> Gathering {
        let mut gathering = Gathering::new(0);
        gathering.synced(2);
        gathering
    }

    #[test]
    fn who_appends_alone_waits_for_nobody() {
        let mut gathering = Gathering::new(5);
        assert!(gathering.begin(6).is_none(), "nothing is known yet");
        gathering.synced(6);
        assert!(gathering.begin(7).is_none());
        gathering.synced(8);
        assert!(gathering.begin(9).is_some(), "two shared the last one");
        gathering.synced(9);
        assert!(gathering.begin(10).is_none());
    }

    #[test]
    fn a_sync_begins_when_no_more_come() {
        let gathering = shared();
        let mut arrivals = gathering.begin(3).unwrap();
        assert!(gathering.keeps_gathering(&mut arrivals, us(9), 3));
        assert!(gathering.keeps_gathering(&mut arrivals, us(12), 5), "one has come meanwhile");
        assert!(gathering.keeps_gathering(&mut arrivals, us(21), 5));
        assert!(!gathering.keeps_gathering(&mut arrivals, us(22), 5));
    }

    #[test]
    fn no_append_waits_for_long() {
        let gathering = shared();
        let mut arrivals = gathering.begin(3).unwrap();
        assert!((1..100).all(|at| gathering.keeps_gathering(&mut arrivals, us(at), 3 + at as i64)));
        assert!(!gathering.keeps_gathering(&mut arrivals, us(100), 500));
    }
}
