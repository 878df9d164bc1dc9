//! Durability of a log: the flush handle of a partition, and the waits for it.

use std::io;
use std::sync::{Arc, Weak};

use mainstem_log::Log;
use mainstem_log::dir::LogDir;
use mainstem_log::flusher::{FlushTarget, FlushTicket, FlushWork};
use mainstem_wire::ErrorCode;

use super::stored::Stored;
use super::{Partition, State};
use crate::signal::DurableWait;

/// A wait until a log is durable up to an offset.
pub enum Durable {
    /// A request, which may wait for several partitions.
    Request(Arc<DurableWait>),
    /// Something else; called without any lock of the partition, on the flusher's thread.
    Call(Box<dyn FnOnce(Result<(), ErrorCode>) + Send>),
}

impl Durable {
    /// Ends the wait.
    pub fn done(self, result: Result<(), ErrorCode>) {
        match self {
            Durable::Request(wait) => wait.done(result),
            Durable::Call(call) => call(result),
        }
    }
}

/// The flush handle of a partition in one log directory. It is replaced when the partition moves, so that a report of the old flusher
/// does not count for the new files.
pub(super) struct Flush {
    partition: Weak<Partition>,
    pub(super) dir: Arc<LogDir>,
    /// See [`State::moves`].
    moves: u32,
    ticket: FlushTicket,
}

impl Partition {
    /// Ends the wait when the log is durable up to `upto`, which may be now.
    pub fn when_durable(&self, upto: i64, durable: Durable) {
        if let Some(queue) = &self.attached {
            return queue.when_durable(upto, durable);
        }
        let mut state = self.lock();
        match state.durability(upto) {
            Some(result) => {
                drop(state);
                durable.done(result);
            }
            None => {
                state.durable_waits.push((upto, durable));
                drop(state);
                self.request_flush();
            }
        }
    }

    /// Result of a wait for durability up to `upto`. A wait that has not ended is a time-out.
    pub fn durability(&self, upto: i64) -> Result<(), ErrorCode> {
        let durability = match &self.attached {
            Some(queue) => queue.durability(upto),
            None => self.lock().durability(upto),
        };
        durability.unwrap_or(Err(ErrorCode::REQUEST_TIMED_OUT))
    }

    /// Asks the flusher to make durable what is appended.
    pub fn request_flush(&self) {
        let flush = self.flush.read().clone();
        if let Some(flush) = flush {
            flush.dir.flusher().request(&(flush.clone() as Arc<dyn FlushTarget>));
        }
    }

    /// Requests the sync that is due by `flush.ms` or for a closed segment, without a wait for it.
    pub fn flush_if_due(&self, mono_ms: u64) {
        if self.lock().log.as_ref().is_ok_and(|log| log.flush_due(mono_ms)) {
            self.request_flush();
        }
    }

    /// Writes the state of a clean stop and requests its sync, which ends `synced`. Many logs are then synced together, and closing each
    /// does not wait.
    pub fn prepare_close(&self, synced: Durable) {
        if let Some(queue) = &self.attached {
            return queue.when_durable(queue.queue().ends().next, synced);
        }
        let mut state = self.lock();
        let Ok(stored) = &mut state.log else {
            drop(state);
            return synced.done(Ok(()));
        };
        if let Stored::Replicated(member) = stored
            && let Err(error) = member.prepare_close()
        {
            tracing::error!(topic = %self.topic, partition = self.index, "its group is not left in order: {error}");
        }
        // Who waits for the group hears of another leader.
        let left = match stored {
            Stored::Replicated(member) => member.end_waits(ErrorCode::NOT_LEADER_OR_FOLLOWER),
            Stored::Alone(_) => Vec::new(),
        };
        let log = &mut **stored;
        if let Err(error) = log.prepare_close() {
            drop(state);
            left.into_iter().for_each(|(wait, result)| wait.done(result));
            tracing::error!(topic = %self.topic, partition = self.index, "not closed in order: {error}");
            return synced.done(Err(ErrorCode::KAFKA_STORAGE_ERROR));
        }
        let end = log.ends().log_end;
        state.durable_waits.push((end, synced));
        drop(state);
        left.into_iter().for_each(|(wait, result)| wait.done(result));
        self.request_flush();
    }
}

impl State {
    /// Takes the waits for offsets up to this.
    pub(super) fn waits_until(&mut self, durable: i64) -> Vec<(i64, Durable)> {
        self.durable_waits.extract_if(.., |(needed, _)| *needed <= durable).collect()
    }

    /// Takes the result of a flush. Returns the waits that end with it.
    pub(super) fn flushed(&mut self, upto: i64, result: &io::Result<()>) -> Vec<(i64, Durable)> {
        let Ok(Stored::Alone(log)) = &mut self.log else { return Vec::new() };
        match result {
            Ok(()) => {
                log.flushed(upto);
                let durable = log.ends().durable_end;
                self.waits_until(durable)
            }
            Err(error) => {
                log.failed(error);
                std::mem::take(&mut self.durable_waits)
            }
        }
    }

    /// Offset up to which appended records count as durable.
    pub(super) fn durable_end(&self, log: &Log) -> i64 {
        let end = log.ends().durable_end;
        self.held.as_ref().map_or(end, |held| end.min(held.durable_end))
    }

    /// Result of a wait until the log is durable up to `upto`; `None`: it is still waiting.
    pub(super) fn durability(&self, upto: i64) -> Option<Result<(), ErrorCode>> {
        match &self.log {
            Err(no_log) => Some(Err(no_log.code())),
            Ok(log) if self.durable_end(log) >= upto => Some(Ok(())),
            Ok(log) if log.stopped().is_some() => Some(Err(ErrorCode::KAFKA_STORAGE_ERROR)),
            Ok(_) => None,
        }
    }
}

impl Flush {
    pub(super) fn new(partition: &Weak<Partition>, dir: Arc<LogDir>, moves: u32) -> Arc<Self> {
        Arc::new(Flush { partition: partition.clone(), dir, moves, ticket: FlushTicket::default() })
    }
}

impl FlushTarget for Flush {
    fn ticket(&self) -> &FlushTicket {
        &self.ticket
    }

    fn begin_flush(&self) -> FlushWork {
        let Some(partition) = self.partition.upgrade() else { return FlushWork::default() };
        let mut state = partition.lock();
        match &mut *state {
            State { log: Ok(Stored::Alone(log)), moves, held: None, .. } if *moves == self.moves => {
                log.flush_work()
            }
            State { log: Ok(Stored::Replicated(_)), moves, .. } if *moves == self.moves => {
                partition.begin_replica_flush(state)
            }
            _ => FlushWork::default(),
        }
    }

    fn end_flush(&self, upto: i64, result: io::Result<()>) {
        let Some(partition) = self.partition.upgrade() else { return };
        let mut state = partition.lock();
        if state.moves != self.moves {
            // It was of a log that is gone; the journal is the same.
            if let (Ok(Stored::Replicated(member)), Err(error)) = (&state.log, &result) {
                member.fail_journal(error);
            }
            return;
        }
        if let Ok(Stored::Replicated(_)) = &state.log {
            return partition.end_replica_flush(state, upto, &result);
        }
        if let Some(held) = &mut state.held {
            // One that began before; those that are asked for meanwhile have nothing to do.
            held.ended.get_or_insert((upto, result));
            return;
        }
        let ended = state.flushed(upto, &result);
        drop(state);
        done(ended, &result);
    }
}

/// Writes a directory's log starts, and then ends the wait for that.
pub(super) fn commit_log_start(dir: &Arc<LogDir>, on_durable: Durable) {
    let tell = move |result: io::Result<()>| {
        on_durable.done(result.map_err(|_| ErrorCode::KAFKA_STORAGE_ERROR));
    };
    dir.commit(&dir.checkpoints().log_start, Box::new(tell));
}

/// Ends waits after a flush.
pub(super) fn done(ended: Vec<(i64, Durable)>, result: &io::Result<()>) {
    let result = match result {
        Ok(()) => Ok(()),
        Err(_) => Err(ErrorCode::KAFKA_STORAGE_ERROR),
    };
    ended.into_iter().for_each(|(_, durable)| durable.done(result));
}
