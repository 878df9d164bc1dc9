//! Checks of each frame that is sent, each event that is handled, each subscription that ends.

use super::*;

impl World {
    pub(super) fn is_admitted(&self, id: EventId) -> bool {
        let event = self.events.get(id);
        self.own.passes(event) && self.directory.sieve(event.offset).passes(event)
    }

    /// Checks that all events ahead of it in its slice are handled, or need not be.
    pub(super) fn check_order(&self, id: EventId) -> Result<(), Violation> {
        let ledger = &self.ledgers[self.directory.ledger];
        let mut ahead = self.events.get(id).before_in_slice;
        while let Some(one) = ahead.filter(|one| !ledger.handled.contains_key(one)) {
            let (event, offset) = (self.events.get(one), self.events.get(id).offset);
            let is_due = self.is_admitted(one) && !ledger.waived.contains(&one);
            ensure!(!is_due, "{offset} is handled before {} of the same slice", event.offset);
            ahead = event.before_in_slice;
        }
        Ok(())
    }

    pub(super) fn check_sent(&mut self, at: usize, frame: &Frame) -> Result<(), Violation> {
        let instance = self.connections[at].instance;
        let of = (self.lineage, self.directory.ledger);
        let PublisherEnd::Open(session) = &mut self.connections[at].publisher_end else { return Ok(()) };
        match frame {
            Frame::Assign(assign) => {
                session.slices = assign.slices.as_ref().and_then(SliceRange::of_proto);
                session.is_revoked = false;
                let pin = self.pins.get(&instance).map(|(pin, _)| *pin);
                ensure!(
                    pin.is_none() || pin == session.slices,
                    "{:?} go to a pin of {pin:?}",
                    session.slices
                );
                let known = self.assignments.get(&(instance, assign.assignment));
                // An assignment that is resumed is of the same reset as before.
                let ledger = known.filter(|_| assign.resumed).map_or(of.1, |(_, ledger)| *ledger);
                self.assignments.insert((instance, assign.assignment), (of.0, ledger));
                Ok(())
            }
            Frame::Revoke(revoke) => {
                session.is_revoked = !revoke.lost;
                Ok(())
            }
            Frame::FilteredFrom(filtered) => {
                // Another one may follow.
                ensure!(self.named.contains(&filtered.offset), "no filter holds from {} on", filtered.offset);
                Ok(())
            }
            Frame::Records(records) => self.check_events(at, records.from, records.next, &records.batches),
            Frame::Skip(skip) => self.check_events(at, skip.from, skip.next, &[]),
            Frame::Opened(_) | Frame::Alive(_) => Ok(()),
        }
    }

    /// Checks that the events of a frame may be sent, and that none is missing.
    fn check_events(&self, at: usize, from: i64, next: i64, batches: &[u8]) -> Result<(), Violation> {
        let PublisherEnd::Open(session) = &self.connections[at].publisher_end else { return Ok(()) };
        let slices = session.slices.ok_or("events are sent without slices")?;
        let sent = self.events.read(batches)?;
        let ledger = &self.ledgers[self.directory.ledger];
        if self.profile != Profile::Mapped {
            ensure!(next <= self.directory.synced, "{next} is sent, and {} is synced", self.directory.synced);
        }
        let mut sent = sent.into_iter().peekable();
        for offset in from..next {
            let id = *self.directory.history.get(offset as usize).ok_or("it does not have what is sent")?;
            let is_sent = sent.next_if_eq(&id).is_some();
            let is_its = slices.contains(self.events.get(id).slice) && self.is_admitted(id);
            ensure!(!is_sent || is_its, "{offset} is sent to {}, and not for it", self.name(at));
            ensure!(
                is_sent || !is_its || ledger.is_settled(id),
                "{offset} is left out of what {} is sent, and not handled",
                self.name(at)
            );
        }
        ensure!(sent.peek().is_none(), "{from} to {next} has other events than the journal");
        Ok(())
    }

    /// Returns true if the journal does not have all of the history that ends with `tip`.
    pub(super) fn is_left(&self, tip: EventId) -> bool {
        self.events.common_end(&self.directory.history, tip) <= self.events.get(tip).offset
    }

    /// Checks that what has happened explains a refusal.
    pub(super) fn check_refused(
        &self,
        at: usize,
        status: &Status,
        kept: Option<&Refused>,
    ) -> Result<(), Violation> {
        if status.code() == Code::Aborted {
            ensure!(self.is_overtaken(at), "{} is refused as if it were late", self.name(at));
            return Ok(());
        }
        let Some(instance) = self.instances.get(&self.connections[at].instance) else { return Ok(()) };
        let refused = Refused::of_status(status).ok_or_else(|| status.message().to_owned())?;
        let common = |one: EventId| self.events.common_end(&self.directory.history, one);
        let (received, assigned) = (instance.received.map(common), instance.assigned.map(common));
        let is_explained = match refused {
            _ if kept == Some(&refused) => self.explains_kept(&refused),
            Refused::JournalReplaced { was, now } => {
                was != now && now == self.directory.id && received.is_none_or(|common| common == 0)
            }
            Refused::Diverged { at } => {
                let tips = [instance.received, instance.assigned];
                tips.into_iter().flatten().any(|tip| self.left_at(tip).contains(&at))
            }
            Refused::OutOfRange { .. } | Refused::Fenced => false,
        };
        ensure!(
            is_explained,
            "{} is refused by {refused:?} (kept: {kept:?}), and has {received:?} and {assigned:?} in common",
            instance.name
        );
        Ok(())
    }

    /// Returns the offset at which the directory's history and the one that ends with `tip` differ. Copies may or may not share events
    /// that others appended while no publisher had the directory open, so both offsets are possible.
    pub(super) fn left_at(&self, tip: EventId) -> [i64; 2] {
        let common = self.events.common_end(&self.directory.history, tip);
        let mut known = common;
        while known > 0 && self.events.get(self.directory.history[known as usize - 1]).is_of_others {
            known -= 1;
        }
        [common, known].map(|offset| offset.max(self.directory.start))
    }

    fn explains_kept(&self, refused: &Refused) -> bool {
        match refused {
            Refused::Diverged { at } => {
                self.profile == Profile::Mapped
                    && self.directory.cut_at.iter().any(|cut| (*cut).max(self.directory.start) == *at)
            }
            Refused::OutOfRange { offset, start, .. } => offset < start && *start == self.directory.start,
            _ => false,
        }
    }
}
