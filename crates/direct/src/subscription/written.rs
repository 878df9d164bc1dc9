//! The file format of a subscription: how far its slices are, its filters, and the run of the journal that it belongs
//! to.

use std::sync::Arc;

use prost::Message;

use super::settings::{Earlier, Settings};
use crate::error::Refused;
use crate::handover::{Handover, Holder, Part};
use crate::proto;
use crate::resume::{Epoch, JournalView, Received};
use crate::slices::{SliceRange, normalized};
use crate::slot_file::BODY_BYTES_MAX;

/// The numbers of assignments that are left out at a start. Assignments that were given and not stored may still be
/// held.
const FORGOTTEN_MAX: u64 = 1 << 20;
/// The further numbers that may be left out, by the random id of the run. So a copy of the directory does not give the same numbers
/// as the original.
const SPREAD: u64 = 1 << 32;

/// Returns the count of assignment numbers to leave out, by the random id of a run or another random number.
pub(super) fn skipped_generations(random: u64) -> u64 {
    FORGOTTEN_MAX + random % SPREAD
}

/// The contents of a subscription's file.
#[derive(Clone, PartialEq, Message)]
struct Written {
    #[prost(int32, tag = "1")]
    epoch: i32,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(message, repeated, tag = "3")]
    parts: Vec<WrittenPart>,
    #[prost(bool, tag = "4")]
    is_paused: bool,
    #[prost(message, optional, tag = "5")]
    filter: Option<proto::Filter>,
    /// The run of the last event that is done.
    #[prost(message, optional, tag = "6")]
    run: Option<proto::Epoch>,
    #[prost(message, repeated, tag = "7")]
    earlier: Vec<WrittenEarlier>,
    #[prost(int64, tag = "8")]
    filtered_from: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WrittenEarlier {
    #[prost(message, optional, tag = "1")]
    filter: Option<proto::Filter>,
    #[prost(int64, tag = "2")]
    until: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WrittenPart {
    #[prost(uint32, tag = "1")]
    from: u32,
    #[prost(uint32, tag = "2")]
    to: u32,
    #[prost(int64, tag = "3")]
    offset: i64,
    #[prost(uint64, tag = "4")]
    assignment: u64,
    /// Starts and ends in turn, each relative to the number before.
    #[prost(uint64, repeated, tag = "5")]
    finished: Vec<u64>,
    /// If an instance has the part or may come back for it, one more than the starts at which it was waited for;
    /// otherwise 0.
    #[prost(uint32, tag = "6")]
    held: u32,
    /// The hash of the instance's name, of 16 bits.
    #[prost(uint32, tag = "7")]
    holder: u32,
}

impl WrittenPart {
    fn holder(&self) -> Option<Holder> {
        let starts = self.held.checked_sub(1)?;
        Some(Holder { name: u16::try_from(self.holder).ok()?, starts })
    }
}

/// A stored consumer, compared with the present journal.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(super) handover: Handover,
    pub(super) settings: Settings,
    pub(super) diverged: Option<Diverged>,
    /// The runs of the journal.
    pub(super) runs: Arc<[Epoch]>,
    /// Nothing was stored.
    pub(super) is_new: bool,
}

/// The stored state does not fit the present journal. No instance can resume until a reset.
#[derive(Debug, Clone, Copy)]
pub(super) struct Diverged {
    /// The first offset that may have another event than the one that was done.
    pub(super) at: i64,
    /// The run of the last event that was done.
    pub(super) run: Epoch,
}

impl Restored {
    /// Makes a new consumer that begins at `start`.
    ///
    /// It may have been known before: to a publisher of which this directory is an older copy, or to this one until it was forgotten.
    /// Instances may hold assignments of that time, so the new ones begin at a random number.
    pub(crate) fn new(view: &JournalView, start: i64, random: u64) -> Restored {
        let mut handover = Handover::new(start);
        handover.skip_generations(skipped_generations(random));
        Restored {
            handover,
            settings: Settings::default(),
            diverged: None,
            runs: view.epochs.clone(),
            is_new: true,
        }
    }

    /// Decodes a stored consumer; `None` if the bytes are no subscription, or are of another version of this program.
    pub(crate) fn of(bytes: &[u8], view: &JournalView) -> Option<Restored> {
        let written = Written::decode(bytes).ok()?;
        let part = |part: &WrittenPart| {
            let mut before = part.offset;
            let (pairs, _) = part.finished.as_chunks::<2>();
            let ranges = pairs.iter().map(|[gap, len]| {
                let start = before.saturating_add_unsigned(*gap);
                before = start.saturating_add_unsigned(*len);
                start..before
            });
            Some(Part {
                slices: SliceRange::new(part.from, part.to)?,
                offset: part.offset,
                finished: normalized(part.offset, ranges.collect::<Vec<_>>().into_iter()),
                assignment: part.assignment,
            })
        };
        let parts = written.parts.iter().map(part).collect::<Option<Vec<_>>>()?;
        let mut handover = Handover::restored(written.generation, parts)?;
        let held = written.parts.iter().zip(handover.parts().to_vec());
        for (holder, part) in held.filter_map(|(written, part)| Some((written.holder()?, part))) {
            handover.await_holder(&part, holder);
        }
        handover.skip_generations(skipped_generations(view.epochs.last()?.run));
        // Files of earlier versions name no run. Then only offsets beyond the end are known to be lost.
        let unknown = Epoch { epoch: written.epoch, start: 0, run: 0 };
        let run = written.run.as_ref().map_or(unknown, Epoch::of_proto);
        let diverged = diverged_of(view, run, handover.done_end());
        let frontier = handover.frontier();
        let earlier = written.earlier.into_iter().filter(|one| one.until > frontier);
        let settings = Settings {
            is_paused: written.is_paused,
            filter: written.filter,
            filtered_from: written.filtered_from,
            earlier: earlier.map(|one| Earlier { filter: one.filter, until: one.until }).collect(),
            version: 0,
        };
        Some(Restored { handover, settings, diverged, runs: view.epochs.clone(), is_new: false })
    }
}

/// Encodes a consumer, in at most [`BODY_BYTES_MAX`].
pub(super) fn encode(
    handover: &Handover,
    settings: &Settings,
    runs: &[Epoch],
    diverged: Option<Diverged>,
) -> Vec<u8> {
    let last = runs.last().expect("a journal that is open has a run");
    let run = diverged.map(|diverged| diverged.run).or_else(|| run_before(runs, handover.done_end()));
    let written = |with_finished: bool| Written {
        epoch: last.epoch,
        generation: handover.generation(),
        parts: handover.parts().iter().map(|part| written_part(handover, part, with_finished)).collect(),
        is_paused: settings.is_paused,
        filter: settings.filter.clone(),
        run: run.map(Epoch::to_proto),
        earlier: settings.earlier.iter().map(written_earlier).collect(),
        filtered_from: settings.filtered_from,
    };
    let bytes = written(true).encode_to_vec();
    match bytes.len() <= BODY_BYTES_MAX {
        true => bytes,
        // Events whose finished ranges are left out are only repeated, if an instance is killed.
        false => written(false).encode_to_vec(),
    }
}

fn written_earlier(earlier: &Earlier) -> WrittenEarlier {
    WrittenEarlier { filter: earlier.filter.clone(), until: earlier.until }
}

fn written_part(handover: &Handover, part: &Part, with_finished: bool) -> WrittenPart {
    let holder = handover.holder(part.assignment);
    let mut finished = Vec::new();
    let mut before = part.offset;
    for range in part.finished.iter().filter(|_| with_finished) {
        finished.extend([(range.start - before) as u64, (range.end - range.start) as u64]);
        before = range.end;
    }
    WrittenPart {
        from: part.slices.from.into(),
        to: part.slices.to.into(),
        offset: part.offset,
        assignment: part.assignment,
        finished,
        held: holder.map_or(0, |holder| holder.starts + 1),
        holder: holder.map_or(0, |holder| holder.name.into()),
    }
}

/// The run of the event before an offset.
fn run_before(runs: &[Epoch], offset: i64) -> Option<Epoch> {
    runs.iter().rev().find(|run| run.start < offset).copied()
}

/// Returns where a journal and the events that were done differ, if they do.
fn diverged_of(view: &JournalView, run: Epoch, done_end: i64) -> Option<Diverged> {
    let received = Received { journal: view.id, epoch: run.epoch, offset: done_end, runs: vec![run] };
    match view.check_received(&received) {
        Err(Refused::Diverged { at }) => Some(Diverged { at, run }),
        _ => None,
    }
}
