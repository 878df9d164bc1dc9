//! The consumer's end of connections, and its application.

use super::*;

impl World {
    pub(super) fn connect_any(&mut self) {
        let waiting = self.waiting();
        if waiting.is_empty() {
            return;
        }
        let instance = waiting[self.random.below(waiting.len())];
        self.connect(instance);
    }

    /// Returns the instances without a connection.
    pub(super) fn waiting(&self) -> Vec<usize> {
        let is_connected = |instance: &usize| {
            self.connections.iter().any(|one| one.instance == *instance && one.is_consumer_there)
        };
        self.instances.keys().filter(|instance| !is_connected(instance)).copied().collect()
    }

    pub(super) fn connect(&mut self, instance: usize) {
        if self.publisher.is_none() {
            return;
        }
        let Some(one) = self.instances.get(&instance) else { return };
        let open = one.inbox.open(&one.config);
        let text = format!(
            "{} connects, at {} with {:?} of {:?}",
            one.name,
            open.offset,
            open.held.as_ref().and_then(|held| held.done.as_ref()),
            open.held.as_ref().and_then(|held| held.slices.as_ref().map(|slices| slices.from..slices.to))
        );
        self.log(|| text);
        self.connections.retain(|one| {
            let is_open = matches!(one.publisher_end, PublisherEnd::Open(_));
            one.is_consumer_there || is_open || !one.up.is_empty()
        });
        let now_ms = self.now();
        self.connections_so_far += 1;
        let number = self.connections_so_far;
        self.connections.push(Connection {
            number,
            instance,
            up: VecDeque::from([Up::Frame(from_consumer::Frame::Open(open))]),
            down: VecDeque::new(),
            publisher_end: PublisherEnd::Accepting,
            is_consumer_there: true,
            is_cut: false,
            is_silent: false,
            left_at: None,
            is_left: false,
            was_opened: false,
            has_said_all: false,
            heard_ms: now_ms,
            said_ms: now_ms,
        });
    }

    /// Has the consumer send what is due.
    pub(super) fn say(&mut self, at: usize) {
        let now_ms = self.now();
        let connection = &mut self.connections[at];
        let Some(instance) = self.instances.get(&connection.instance) else { return };
        if !connection.is_consumer_there || connection.has_said_all || connection.up.len() >= WINDOW {
            return;
        }
        let up = match instance.inbox.to_be_sent() {
            Some(frame) => Up::Frame(frame),
            None if instance.inbox.is_leaving() => {
                connection.has_said_all = true;
                Up::End
            }
            None if connection.said_ms + ALIVE_EVERY_MS <= now_ms => {
                Up::Frame(from_consumer::Frame::Alive(proto::Alive {}))
            }
            None => return,
        };
        connection.said_ms = now_ms;
        if connection.is_silent {
            return;
        }
        if let (Some(Defect::DoubledCredit), Up::Frame(from_consumer::Frame::Credit(credit))) =
            (self.defect, &up)
        {
            connection.up.push_back(Up::Frame(from_consumer::Frame::Credit(*credit)));
        }
        connection.up.push_back(up);
    }

    pub(super) fn deliver_down(&mut self, at: usize) -> Result<(), Violation> {
        let now_ms = self.now();
        let connection = &mut self.connections[at];
        let Some(down) = connection.down.pop_front() else { return Ok(()) };
        let Some(instance) = self.instances.get_mut(&connection.instance) else { return Ok(()) };
        if !connection.is_consumer_there {
            return Ok(());
        }
        connection.heard_ms = now_ms;
        match down {
            Down::Frame(frame, tip) => {
                connection.was_opened |= matches!(frame, Frame::Opened(_));
                instance.has_filter &= !matches!(frame, Frame::FilteredFrom(_));
                let offset_of = |id: EventId| self.events.get(id).offset;
                match frame {
                    Frame::Assign(_) => instance.assigned = tip,
                    _ if instance.received.map(offset_of) < tip.map(offset_of) => instance.received = tip,
                    _ => {}
                }
                let is_opened = matches!(frame, Frame::Opened(_));
                match instance.inbox.take(frame) {
                    Ok(()) if is_opened && connection.is_left => Err(format!(
                        "{} continues, and the journal has left its events at {:?}",
                        instance.name, connection.left_at
                    )),
                    Ok(()) => Ok(()),
                    Err(Rejected::Protocol(reason)) => Err(format!(
                        "the publisher does not keep to the protocol with {}: {reason}",
                        instance.name
                    )),
                    Err(Rejected::Refused(refused)) => {
                        let left_at = connection.left_at;
                        let is_explained = match refused {
                            Refused::Diverged { at } => left_at.is_some_and(|offsets| offsets.contains(&at)),
                            _ => false,
                        };
                        ensure!(is_explained, "{} ends by {refused:?}, not {left_at:?}", instance.name);
                        self.stop_instance(at, &refused);
                        Ok(())
                    }
                }
            }
            Down::End(None) | Down::Broken => {
                self.consumer_lost(at);
                Ok(())
            }
            Down::End(Some(status)) => {
                match fault_of(&instance.config, &status, connection.was_opened) {
                    Fault::Lost { .. } | Fault::Tls(_) => self.consumer_lost(at),
                    Fault::Fatal(DirectError::Refused { refused, .. }) => self.stop_instance(at, &refused),
                    Fault::Fatal(error) => {
                        return Err(format!("{} stops without a name: {error}", instance.name));
                    }
                }
                Ok(())
            }
        }
    }

    /// Ends the consumer's side of a connection, and its process if it is leaving.
    pub(super) fn consumer_lost(&mut self, at: usize) {
        let name = self.name(at).to_owned();
        let connection = &mut self.connections[at];
        if !std::mem::take(&mut connection.is_consumer_there) {
            return;
        }
        if !connection.is_silent {
            connection.up.push_back(Up::Broken);
        }
        let instance = connection.instance;
        let is_leaving = self.instances.get(&instance).is_some_and(|one| one.is_leaving);
        if is_leaving {
            self.instances.remove(&instance);
        }
        self.log(|| format!("{name} {}", if is_leaving { "is gone" } else { "has lost its connection" }));
    }

    fn stop_instance(&mut self, at: usize, refused: &Refused) {
        let words = format!("{refused:?}");
        let name = words.split([' ', '{']).next().unwrap_or_default();
        *self.stops.entry(name.to_owned()).or_insert(0) += 1;
        let instance = self.connections[at].instance;
        self.consumer_lost(at);
        self.log(|| format!("instance {instance} stops: {words}"));
        self.instances.remove(&instance);
    }

    /// Has an application do something.
    pub(super) fn apply(&mut self) -> Result<(), Violation> {
        if self.instances.is_empty() {
            return Ok(());
        }
        let which = self.random.below(self.instances.len());
        let instance = *self.instances.keys().nth(which).expect("there are so many");
        match self.random.below(12) {
            0..5 => self.take(instance)?,
            5..10 => self.handle(instance)?,
            10 => self.say_done(instance),
            _ => self.release(instance),
        };
        Ok(())
    }

    /// Returns an instance whose application has not stopped.
    fn running(&mut self, instance: usize) -> Option<&mut Instance> {
        self.instances.get_mut(&instance).filter(|one| !one.is_leaving)
    }

    pub(super) fn say_done(&mut self, instance: usize) -> bool {
        self.running(instance).map(|one| one.say_done()).is_some()
    }

    pub(super) fn take(&mut self, instance: usize) -> Result<bool, Violation> {
        let one = self.instances.get_mut(&instance).filter(|one| !one.is_leaving);
        let Some(one) = one else { return Ok(false) };
        let taken = one.take(&self.events)?;
        let name = one.name.clone();
        let is_something = taken.is_some();
        if let Some(text) = taken {
            self.log(|| format!("{name} {text}"));
        }
        Ok(is_something)
    }

    pub(super) fn release(&mut self, instance: usize) -> bool {
        let Some(one) = self.running(instance) else { return false };
        let is_released = one.release();
        let name = one.name.clone();
        if is_released {
            self.log(|| format!("{name} gives back"));
        }
        is_released
    }

    pub(super) fn handle(&mut self, instance: usize) -> Result<bool, Violation> {
        let which = self.random.below(1_000);
        let Some(one) = self.running(instance) else { return Ok(false) };
        let Some(id) = one.application.handle(which) else { return Ok(false) };
        let name = one.name.clone();
        let assignment = one.application.assignment.unwrap_or_default();
        let event = self.events.get(id);
        let (offset, slice) = (event.offset, event.slice);
        self.log(|| format!("{name} handles {offset} of slice {slice}"));
        let of = self.assignments.get(&(instance, assignment)).copied();
        let Some((lineage, ledger)) = of else { return Ok(true) };
        // A reset makes what came before void, unless an earlier copy replaces the directory.
        let is_valid = ledger == self.directory.ledger;
        if is_valid && lineage == self.lineage {
            self.check_order(id)?;
        }
        let count = self.ledgers[ledger].handled.entry(id).or_insert(0);
        *count += 1;
        ensure!(
            !is_valid || self.profile != Profile::Orderly || *count == 1,
            "{name} handles {offset} again"
        );
        Ok(true)
    }
}
