//! When a sync begins: appends that come at the same time are to share it.

use std::time::Duration;

/// Appends follow each other by so little where they come at the same time.
const APART_MAX: Duration = Duration::from_micros(10);
/// No append waits longer than this for others, a part of what a sync takes.
const GATHERED_MAX: Duration = Duration::from_micros(100);

/// Decides when to sync. Where the last sync was of one append alone the next one begins at once, so that who appends alone does not
/// wait for others that there are not.
#[derive(Debug)]
pub(super) struct Gathering {
    /// The last sync was of several events.
    was_shared: bool,
    synced: i64,
}

/// Events that are there, and since when none has come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrivals {
    end: i64,
    /// When the last one was found, from the beginning.
    last: Duration,
}

impl Gathering {
    /// All before `synced` is on the disk.
    pub(super) fn new(synced: i64) -> Gathering {
        Gathering { was_shared: false, synced }
    }

    /// An append has come; there are events before `end`. Returns what [`Gathering::goes_on`] looks at, or `None` where the sync is to
    /// begin at once.
    pub(super) fn begin(&self, end: i64) -> Option<Arrivals> {
        self.was_shared.then_some(Arrivals { end, last: Duration::ZERO })
    }

    /// Whether to look again, `elapsed` after the beginning, when there are events before `end`.
    pub(super) fn goes_on(&self, arrivals: &mut Arrivals, elapsed: Duration, end: i64) -> bool {
        if end != arrivals.end {
            *arrivals = Arrivals { end, last: elapsed };
        }
        elapsed < GATHERED_MAX && elapsed.saturating_sub(arrivals.last) < APART_MAX
    }

    /// All before `synced` is on the disk now.
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
        assert!(gathering.goes_on(&mut arrivals, us(9), 3));
        assert!(gathering.goes_on(&mut arrivals, us(12), 5), "one has come meanwhile");
        assert!(gathering.goes_on(&mut arrivals, us(21), 5));
        assert!(!gathering.goes_on(&mut arrivals, us(22), 5));
    }

    #[test]
    fn no_append_waits_for_long() {
        let gathering = shared();
        let mut arrivals = gathering.begin(3).unwrap();
        assert!((1..100).all(|at| gathering.goes_on(&mut arrivals, us(at), 3 + at as i64)));
        assert!(!gathering.goes_on(&mut arrivals, us(100), 500));
    }
}
