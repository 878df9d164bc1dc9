//! An instance of the consumer: its inbox, and an application that handles events in the order of each slice, in any order between
//! slices.

use std::collections::{BTreeMap, BTreeSet};

use super::truth::{EventId, Events, Violation, ensure};
use crate::consumer::inbox::Inbox;
use crate::slices::{Done, normalized};
use crate::{Address, ConsumerConfig, ConsumerEvent};

/// A process of a consumer.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) name: String,
    pub(super) config: ConsumerConfig,
    pub(super) inbox: Inbox,
    pub(super) application: Application,
    /// The last event that it may have received. It has received those before too.
    pub(super) received: Option<EventId>,
    /// The event before its last assignment.
    pub(super) assigned: Option<EventId>,
    pub(super) is_leaving: bool,
    /// It has sent or will send a filter, and has no answer.
    pub(super) has_filter: bool,
}

impl Instance {
    pub(super) fn new(number: usize, change: impl FnOnce(ConsumerConfig) -> ConsumerConfig) -> Instance {
        let name = format!("i{number}");
        let address = Address::new("localhost:1").expect("it is an address");
        let config = change(ConsumerConfig::new(address, "stream", "consumer").instance(name.as_str()));
        let inbox = Inbox::new(config.credit_bytes, number as u64);
        let application = Application::default();
        let (received, assigned) = (None, None);
        Instance {
            name,
            config,
            inbox,
            application,
            received,
            assigned,
            is_leaving: false,
            has_filter: false,
        }
    }

    /// Has the application take the next event of the inbox.
    pub(super) fn take(&mut self, events: &Events) -> Result<Option<String>, Violation> {
        let Some(event) = self.inbox.look() else { return Ok(None) };
        let event = event.map_err(|error| error.to_string())?;
        self.application.take(event, events).map(Some)
    }

    /// Reports how far it is.
    pub(super) fn say_done(&self) {
        if let Some(done) = self.application.done() {
            self.inbox.done(done);
        }
    }

    /// Releases its slices if they are revoked; returns true if they are.
    pub(super) fn release(&mut self) -> bool {
        let is_asked = self.application.is_revoking;
        if let Some(done) = self.application.done().filter(|_| is_asked) {
            self.inbox.release(done);
            self.application = Application::default();
        }
        is_asked
    }
}

/// The application of an instance, with its assignment.
#[derive(Debug, Default)]
pub(super) struct Application {
    pub(super) assignment: Option<u64>,
    next: i64,
    /// Events that are not handled, by offset, each with its slice.
    open: BTreeMap<i64, (EventId, u16)>,
    finished: BTreeSet<i64>,
    pub(super) is_revoking: bool,
}

impl Application {
    fn take(&mut self, event: ConsumerEvent, events: &Events) -> Result<String, Violation> {
        match event {
            ConsumerEvent::Assigned { assignment, slices, offset, .. } => {
                ensure!(self.assignment.is_none(), "#{assignment} comes beside {:?}", self.assignment);
                *self = Application { assignment: Some(assignment), next: offset, ..Application::default() };
                Ok(format!("has #{assignment} of {slices} from {offset}"))
            }
            ConsumerEvent::Records { assignment, from, next, batches, ranges } => {
                ensure!(
                    (self.assignment, self.next) == (Some(assignment), from),
                    "{from} to {next} of #{assignment} came where {} of {:?} is due",
                    self.next,
                    self.assignment
                );
                for id in ranges.into_iter().map(|range| events.read(&batches[range])) {
                    for id in id? {
                        let event = events.get(id);
                        ensure!(from <= event.offset && event.offset < next, "{} is beyond", event.offset);
                        self.open.insert(event.offset, (id, event.slice));
                    }
                }
                self.next = next;
                Ok(format!("takes {from} to {next}"))
            }
            ConsumerEvent::Revoking { assignment } => {
                ensure!(self.assignment == Some(assignment), "#{assignment} is revoked, and not there");
                self.is_revoking = true;
                Ok(format!("is to give #{assignment} back"))
            }
            ConsumerEvent::Lost { assignment, .. } => {
                ensure!(self.assignment == Some(assignment), "#{assignment} is lost, and was not there");
                *self = Application::default();
                Ok(format!("has lost #{assignment}"))
            }
            ConsumerEvent::FilteredFrom { offset } => Ok(format!("receives a filter from {offset} on")),
        }
    }

    /// Returns the offsets of the events that may run now: the first of each slice.
    fn ready(&self) -> Vec<i64> {
        let mut slices = BTreeSet::new();
        self.open.iter().filter(|(_, (_, slice))| slices.insert(*slice)).map(|(offset, _)| *offset).collect()
    }

    /// Handles one of the events that may run.
    pub(super) fn handle(&mut self, which: usize) -> Option<EventId> {
        let ready = self.ready();
        let offset = *ready.get(which % ready.len().max(1))?;
        let (id, _) = self.open.remove(&offset)?;
        self.finished.insert(offset);
        Some(id)
    }

    fn done(&self) -> Option<Done> {
        let offset = self.open.keys().next().map_or(self.next, |first| *first);
        let behind = self.finished.iter().filter(|one| **one >= offset).map(|one| *one..one + 1);
        let finished = normalized(offset, behind);
        self.assignment.map(|assignment| Done { assignment, offset, finished })
    }
}
