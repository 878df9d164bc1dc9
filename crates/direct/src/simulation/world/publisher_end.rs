//! The publisher's end of connections: takes what arrives, and sends.

use super::*;

impl World {
    /// Has the publisher make the next frame of a connection; false if there is none.
    pub(super) fn poll(&mut self, at: usize) -> Result<bool, Violation> {
        let Some(publisher) = &self.publisher else { return Ok(false) };
        let connection = &mut self.connections[at];
        let PublisherEnd::Open(session) = &mut connection.publisher_end else { return Ok(false) };
        if connection.down.len() >= WINDOW {
            return Ok(false);
        }
        let time = session.time(self.now_ms.load(Ordering::Relaxed));
        let now = Now { time, end: publisher.ring.end(), is_stopping: false };
        loop {
            let frame = match session.member.next(now) {
                Ok(Next::Frame(frame)) => frame,
                Ok(Next::Wait { .. }) => return Ok(false),
                Ok(Next::Left) => {
                    self.end_session(at, None);
                    return Ok(true);
                }
                Ok(Next::Read(offset)) => {
                    let read = publisher.find(&self.directory, offset).map_err(|refused| refused.to_status());
                    let read = read.and_then(|chunk| session.member.read(&chunk, &publisher.counters, time));
                    match read {
                        Ok(Some(frame)) => frame,
                        Ok(None) => continue,
                        Err(status) => return self.refuse(at, &status).map(|()| true),
                    }
                }
                Err(status) => return self.refuse(at, &status).map(|()| true),
            };
            self.send(at, frame)?;
            return Ok(true);
        }
    }

    fn send(&mut self, at: usize, frame: Frame) -> Result<(), Violation> {
        self.check_sent(at, &frame)?;
        let text = text_of(&frame);
        let name = self.name(at).to_owned();
        self.log(|| format!("to {name}: {text}"));
        let upto = match &frame {
            Frame::Records(records) => Some(records.next),
            Frame::Skip(skip) => Some(skip.next),
            // Events before the offset are done, by this instance or by others.
            Frame::Assign(assign) => Some(assign.offset),
            _ => None,
        };
        let tip =
            upto.filter(|upto| *upto > 0).and_then(|upto| self.directory.history.get(upto as usize - 1));
        let tip = tip.copied();
        let is_lost = self.defect == Some(Defect::LostFrame) && self.random.one_in(50);
        if !self.connections[at].is_silent && !is_lost {
            self.connections[at].down.push_back(Down::Frame(frame, tip));
        }
        Ok(())
    }

    /// Ends a session, with a status if there is one.
    pub(super) fn end_session(&mut self, at: usize, status: Option<Status>) {
        let name = self.name(at).to_owned();
        let words = status.as_ref().map_or("it has left", |status| status.message()).to_owned();
        self.log(|| format!("the session of {name} ends: {words}"));
        let connection = &mut self.connections[at];
        connection.publisher_end = PublisherEnd::Gone;
        if !connection.is_silent {
            connection.down.push_back(Down::End(status));
        }
    }

    /// Ends a session by an error, which has to have a reason.
    fn refuse(&mut self, at: usize, status: &Status) -> Result<(), Violation> {
        let connection = &self.connections[at];
        let (began_ms, number) = match &connection.publisher_end {
            PublisherEnd::Open(session) => (Some(session.began_ms), session.number),
            _ => (None, usize::MAX),
        };
        let is_explained = match Refused::of_status(status) {
            Some(Refused::Fenced) => {
                // The `Revoke` of its slices may be under way still.
                let is_late = began_ms.is_some_and(|ms| ms + REVOKE_MS_MAX <= self.now());
                is_late || self.is_overtaken(at) || self.is_pinned_again(connection.instance, number)
            }
            Some(Refused::OutOfRange { offset, start, .. }) => {
                offset < start && start == self.directory.start
            }
            Some(_) => false,
            None => matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded),
        };
        ensure!(is_explained, "the session of {} ends: {}", self.name(at), status.message());
        self.end_session(at, Some(status.clone()));
        Ok(())
    }

    /// Returns true if the publisher has a later connection of the instance.
    pub(super) fn is_overtaken(&self, at: usize) -> bool {
        let connection = &self.connections[at];
        self.joined.get(&connection.instance).is_some_and(|last| *last > connection.number)
    }

    /// Returns true if another instance, whose session came later, pins some of its slices.
    fn is_pinned_again(&self, instance: usize, session: usize) -> bool {
        let own = self.pins.get(&instance).map(|(pin, _)| *pin);
        let is_later = |(pin, number): &(SliceRange, usize)| {
            *number > session && own.is_some_and(|own| own.overlaps(*pin))
        };
        self.pins.iter().any(|(other, pinned)| *other != instance && is_later(pinned))
    }

    /// Takes an `Open`.
    fn accept(&mut self, at: usize, open: proto::Open) -> Result<(), Violation> {
        let Some(mut publisher) = self.publisher.take() else { return Ok(()) };
        let view = publisher.view(&self.directory);
        let (mut begun, mut kept_at) = (None, None);
        let joined = Opening::of(open, Granted::default()).and_then(|opening| {
            opening.check(&view, &publisher.pipelines)?;
            let (subscription, begins) = publisher.subscription(&self.directory, opening.start);
            begun = begins;
            kept_at = subscription.check(&view).err();
            Member::join(subscription, publisher.pipelines.clone(), opening, &view)
        });
        self.publisher = Some(publisher);
        if let Some(from) = begun {
            let before = self.directory.history[..from as usize].iter().copied();
            self.ledgers[self.directory.ledger].waived.extend(before);
        }
        match joined {
            Ok(member) => {
                ensure!(
                    !self.is_overtaken(at),
                    "a late connection of {} takes the place of a later one",
                    self.name(at)
                );
                let received =
                    self.instances.get(&self.connections[at].instance).and_then(|one| one.received);
                self.connections[at].left_at = received.map(|tip| self.left_at(tip));
                self.connections[at].is_left = received.is_some_and(|tip| self.is_left(tip));
                self.joined.insert(self.connections[at].instance, self.connections[at].number);
                self.sessions_so_far += 1;
                let (began_ms, number, instance) =
                    (self.now(), self.sessions_so_far, self.connections[at].instance);
                if let Some((_, last)) = self.pins.get_mut(&instance) {
                    *last = number;
                }
                let session = Session { member, began_ms, number, slices: None, is_revoked: false };
                self.connections[at].publisher_end = PublisherEnd::Open(Box::new(session));
            }
            Err(status) => {
                self.check_refused(at, &status, kept_at.as_ref())?;
                self.end_session(at, Some(status));
            }
        }
        Ok(())
    }

    pub(super) fn deliver_up(&mut self, at: usize) -> Result<(), Violation> {
        let now_ms = self.now();
        let Some(up) = self.connections[at].up.pop_front() else { return Ok(()) };
        let message = match up {
            Up::Frame(frame) => Some(frame),
            Up::End => None,
            Up::Broken => {
                self.connections[at].publisher_end = PublisherEnd::Gone;
                self.log(|| "a session ends with its connection".to_owned());
                return Ok(());
            }
        };
        let text = format!("{message:?}");
        let name = self.name(at).to_owned();
        let is_open = matches!(message, Some(from_consumer::Frame::Open(_)));
        if !is_open {
            self.log(|| format!("{name} says {text}"));
        }
        match (&mut self.connections[at].publisher_end, message) {
            (PublisherEnd::Accepting, Some(from_consumer::Frame::Open(open))) => self.accept(at, open),
            (PublisherEnd::Open(session), message) => {
                let time = session.time(now_ms);
                let message = message.map(|frame| FromConsumer { frame: Some(frame) });
                let taken = session.member.take(message, time);
                self.note_filter();
                taken.or_else(|status| self.refuse(at, &status))
            }
            _ => Ok(()),
        }
    }
}
