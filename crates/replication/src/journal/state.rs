//! The state of a group, as its frames have it.

use super::frame::{Frame, InternalEntry, Mark, Start, Tail, Vote};
use crate::group::{Configuration, ReplicaId};
use mainstem_log::ImportId;

/// All that the journal says of one group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupState {
    /// Term and vote.
    pub vote: Vote,
    /// The start of its entries.
    pub start: Start,
    /// The log is to begin again there, and may not have: a snapshot takes its place.
    pub restoring: bool,
    /// A copy of another replica's log takes the place of the log, and may not have yet: its id.
    pub replacing: Option<ImportId>,
    /// This replica; `None`: the group was never founded here.
    pub own: Option<ReplicaId>,
    /// Index of the entry that made the configuration.
    pub configuration_index: u64,
    /// The members of the group.
    pub configuration: Configuration,
    /// Internal entries behind the start, by index.
    pub entries: Vec<InternalEntry>,
    /// Marks behind the start, by index.
    pub marks: Vec<Mark>,
    /// A lower bound of what is committed.
    pub committed: u64,
    /// A lower bound of what is applied.
    pub applied: u64,
    /// The part of the log that a power cut may take, or has taken.
    pub tail: Tail,
}

impl GroupState {
    pub(crate) fn apply(&mut self, frame: &Frame) {
        match frame {
            Frame::Vote(vote) => self.vote = *vote,
            Frame::Entry(entry) => {
                self.cut(entry.index);
                self.entries.push(entry.clone());
            }
            Frame::Cut { index } => self.cut(*index),
            Frame::Configuration { own, index, configuration } => {
                self.own = Some(*own);
                self.configuration_index = *index;
                self.configuration = configuration.clone();
            }
            Frame::Restore { start, own, configuration } => {
                self.begin_elsewhere(*start, *own, configuration);
                (self.restoring, self.replacing) = (true, None);
            }
            Frame::Replace { copy, start, own, configuration } => {
                self.begin_elsewhere(*start, *own, configuration);
                (self.restoring, self.replacing) = (false, Some(*copy));
            }
            Frame::Start(start) => {
                (self.start, self.restoring, self.replacing) = (*start, false, None);
                self.entries.retain(|entry| entry.index > start.index);
                self.marks.retain(|mark| mark.index > start.index && mark.offset > start.offset);
            }
            Frame::Mark(mark) => {
                self.marks.retain(|known| known.index < mark.index && known.offset < mark.offset);
                self.marks.push(*mark);
            }
            Frame::Commit { committed, applied } => {
                (self.committed, self.applied) = (*committed, *applied);
            }
            Frame::Tail(tail) => self.tail = *tail,
            Frame::Removed => *self = GroupState::default(),
        }
    }

    /// Returns true if other replicas may have what this one has lost: it does not decide by itself.
    pub(crate) fn has_others(&self) -> bool {
        match self.own {
            Some(own) => !self.configuration.is_alone(own),
            None => self.configuration.voters.len() > 1,
        }
    }

    /// All entries that were here are gone.
    fn begin_elsewhere(&mut self, start: Start, own: ReplicaId, configuration: &Configuration) {
        self.start = start;
        self.entries.clear();
        self.marks.clear();
        (self.own, self.configuration_index) = (Some(own), start.index);
        self.configuration = configuration.clone();
    }

    /// Entries are gone from an index on: of those that come in their place, none is known to be committed.
    fn cut(&mut self, index: u64) {
        let last = index.saturating_sub(1);
        (self.committed, self.applied) = (self.committed.min(last), self.applied.min(last));
        self.entries.retain(|entry| entry.index < index);
        self.marks.retain(|mark| mark.index < index);
    }

    /// The fewest frames that come to this state.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        let mut frames = vec![Frame::Vote(self.vote)];
        let configuration = self.configuration.clone();
        match self.own {
            Some(own) if self.restoring => {
                frames.push(Frame::Restore { start: self.start, own, configuration });
            }
            Some(own) if let Some(copy) = self.replacing => {
                frames.push(Frame::Replace { copy, start: self.start, own, configuration });
            }
            Some(own) => {
                let index = self.configuration_index;
                frames.extend([Frame::Start(self.start), Frame::Configuration { own, index, configuration }]);
            }
            None => frames.push(Frame::Start(self.start)),
        }
        let mut marks = self.marks.iter().peekable();
        for entry in &self.entries {
            while let Some(mark) = marks.next_if(|mark| mark.index <= entry.index) {
                frames.push(Frame::Mark(*mark));
            }
            frames.push(Frame::Entry(entry.clone()));
        }
        frames.extend(marks.map(|mark| Frame::Mark(*mark)));
        frames.push(Frame::Commit { committed: self.committed, applied: self.applied });
        if self.tail != Tail::default() {
            frames.push(Frame::Tail(self.tail));
        }
        frames
    }

    pub(crate) fn encoded_len(&self) -> u64 {
        self.frames().iter().map(|frame| frame.encoded_len() as u64).sum()
    }
}
