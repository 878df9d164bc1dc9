//! A copy in another log directory takes the place of a partition's log.

use std::io;
use std::time::Duration;

use mainstem_log::storage::StorageFault;
use mainstem_log::{CopyError, FutureLog, Log, LogError, TakeOverError};

use super::stored::Stored;
use super::{Durable, Flush, NoLog, Partition, State, commit_log_start, done};
use mainstem_runtime::clock::Clock;

/// Attempts to make a copy durable that takes over, in case its original loses records meanwhile.
const TAKE_OVER_ROUNDS_MAX: usize = 5;

/// Steps of up to 1 MiB in which a copy follows its original before the lock is taken all the same.
const FOLLOW_STEPS_MAX: usize = 100;

/// A step that copies less has followed.
const FOLLOW_BYTES_MIN: usize = 64 << 10;

/// Delay after a shortage before a step is retried without which the partition is in neither directory.
pub const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);

/// Durability during a take-over. New records count as durable only when the copy durably has the partition's name: until then a
/// restart may find the original or the copy.
pub(super) struct Held {
    /// End of the records that count as durable.
    pub(super) durable_end: i64,
    /// Result of the flush that was under way.
    pub(super) ended: Option<(i64, io::Result<()>)>,
    /// Waits for a log start.
    pub(super) deletions: Vec<Durable>,
}

impl Partition {
    /// Lets a copy in another log directory take the place of the log, which comes back out of service. Appends and reads
    /// go on meanwhile, and wait for no sync; what is appended counts as durable when that is over.
    ///
    /// In a shortage of space or handles `pause` lets some time pass before a step is tried again, and returns false if the broker
    /// stops.
    ///
    /// # Errors
    /// See [`TakeOver`].
    pub fn take_over(
        &self,
        copy: FutureLog,
        clock: &Clock,
        pause: &dyn Fn() -> bool,
    ) -> Result<Log, TakeOver> {
        {
            let mut state = self.lock();
            let durable_end = state.alone()?.ends().durable_end;
            state.held = Some(Held { durable_end, ended: None, deletions: Vec::new() });
        }
        let taken = self.replace_by(copy, clock, pause);
        if let Err(TakeOver::Refused(TakeOverError::Broken(_))) = &taken {
            drop(self.take_log(NoLog::Offline));
        }
        self.release_durability();
        taken
    }

    fn replace_by(
        &self,
        mut copy: FutureLog,
        clock: &Clock,
        pause: &dyn Fn() -> bool,
    ) -> Result<Log, TakeOver> {
        let to = copy.dir().clone();
        let mut round = 1;
        let taken = loop {
            self.follow(&mut copy, clock)?;
            copy.catch_up(self.lock().alone()?, clock.now().mono_ms)?;
            copy.make_durable()?;
            self.follow(&mut copy, clock)?;
            let mut state = self.lock();
            let (log, now_ms) = (state.alone()?, clock.now().mono_ms);
            if !copy.is_current(log) {
                round += 1;
                if round <= TAKE_OVER_ROUNDS_MAX {
                    continue;
                }
                // Records are deleted all the time: now that has to wait.
                copy.catch_up(log, now_ms)?;
                copy.make_durable()?;
            }
            let settings = self.settings.read().log.clone();
            let due_ms = now_ms.saturating_add(settings.file_delete_delay_ms);
            let taken = copy.take_over(log, now_ms, due_ms).map_err(TakeOver::Refused)?;
            log.set_config(settings);
            state.moves += 1;
            if let Some(held) = &mut state.held {
                // That of the original says nothing of the copy.
                held.ended = None;
            }
            *self.flush.write() = Some(Flush::new(&self.own, to.clone(), state.moves));
            break taken;
        };
        outlast_shortage(pause, || taken.sync_retired().map_err(TakeOver::broken))?;
        outlast_shortage(pause, || match self.lock().alone() {
            Ok(log) => taken.name(log).map_err(TakeOver::broken),
            Err(TakeOver::NoLog(NoLog::Gone)) => Err(TakeOver::NoLog(NoLog::Gone)),
            Err(_) => Err(TakeOver::Unfinished),
        })?;
        outlast_shortage(pause, || taken.sync_named(&to).map_err(TakeOver::broken))?;
        Ok(taken.into_original())
    }

    /// Copies what was appended, until that is little.
    fn follow(&self, copy: &mut FutureLog, clock: &Clock) -> Result<(), TakeOver> {
        for _ in 0..FOLLOW_STEPS_MAX {
            let next = copy.next(self.lock().alone()?).map_err(CopyError::Read)?;
            let Some(plan) = next else { break };
            if copy.copy(plan, clock.now().mono_ms)? < FOLLOW_BYTES_MIN {
                break;
            }
        }
        Ok(())
    }

    /// Lets records that were appended during the take-over count as durable.
    fn release_durability(&self) {
        let mut state = self.lock();
        let Some(held) = state.held.take() else { return };
        let (ended, result) = match held.ended {
            Some((upto, result)) => (state.flushed(upto, &result), result),
            None => {
                let durable = state.log.as_ref().map_or(0, |log| log.ends().durable_end);
                (state.waits_until(durable), Ok(()))
            }
        };
        let waits = !state.durable_waits.is_empty();
        let dir = state.log.as_ref().map(|log| log.dir().clone()).map_err(|no_log| no_log.code());
        drop(state);
        done(ended, &result);
        for deletion in held.deletions {
            match &dir {
                Ok(dir) => commit_log_start(dir, deletion),
                Err(error) => deletion.done(Err(*error)),
            }
        }
        if waits {
            self.request_flush();
        }
    }
}

/// Does a step that has to be done, again and again while there is no space or no handle for it. `pause` lets some time pass, and
/// returns false if the broker stops.
fn outlast_shortage(
    pause: &dyn Fn() -> bool,
    mut step: impl FnMut() -> Result<(), TakeOver>,
) -> Result<(), TakeOver> {
    loop {
        match step() {
            Err(TakeOver::Refused(TakeOverError::Broken(error)))
                if error.fault().is_some_and(StorageFault::is_temporary) && pause() => {}
            done => return done,
        }
    }
}

impl State {
    /// The log, where this node alone has it.
    fn alone(&mut self) -> Result<&mut Log, TakeOver> {
        match self.log.as_mut().map_err(|no_log| TakeOver::NoLog(*no_log))? {
            Stored::Alone(log) => Ok(log),
            Stored::Replicated(_) => Err(TakeOver::Replicated),
        }
    }
}

/// Why a copy did not take a log's place.
#[derive(Debug, thiserror::Error)]
pub enum TakeOver {
    /// There is no log any more.
    #[error(transparent)]
    NoLog(NoLog),
    /// The group's journal is outside of the log, and cannot move with it.
    #[error("the partition has several replicas; those do not move between log directories yet")]
    Replicated,
    /// The log and its copy say why.
    #[error(transparent)]
    Refused(TakeOverError),
    /// Its files became unusable when the original was out of service already.
    #[error("the partition went offline while its copy took over; the next start finishes that")]
    Unfinished,
}

impl TakeOver {
    fn broken(error: LogError) -> Self {
        TakeOver::Refused(TakeOverError::Broken(error))
    }
}

impl From<CopyError> for TakeOver {
    fn from(error: CopyError) -> Self {
        TakeOver::Refused(TakeOverError::Aborted(error))
    }
}
