//! Rare events: processes, connections and directories that come, go and are lost, and settings that change.

use super::*;

impl World {
    /// Returns true if all instances are connected and have slices, and none is about to leave.
    pub(super) fn do_all_have_slices(&self) -> bool {
        self.instances.iter().all(|(number, instance)| {
            let connection =
                self.connections.iter().find(|one| one.instance == *number && one.is_consumer_there);
            let has_slices = connection.is_some_and(|one| match &one.publisher_end {
                PublisherEnd::Open(session) => session.slices.is_some() && !session.is_revoked && !one.is_cut,
                _ => false,
            });
            has_slices && instance.inbox.assignment().is_some() && !instance.is_leaving
        })
    }

    /// Returns true if all instances are connected, and none is about to leave.
    pub(super) fn are_all_connected(&self) -> bool {
        let is_connected = |number: usize| {
            let mut connections = self.connections.iter();
            connections.any(|one| {
                let is_open = matches!(one.publisher_end, PublisherEnd::Open(_));
                one.instance == number && one.is_consumer_there && is_open && !one.is_cut
            })
        };
        self.instances.iter().all(|(number, instance)| is_connected(*number) && !instance.is_leaving)
    }

    /// Starts a publisher; a new instance may come to it before the earlier ones.
    pub(super) fn start_with_newcomer(&mut self) {
        if self.is_orderly() && self.publisher.is_none() && self.random.one_in(2) {
            self.start_publisher();
            self.spawn();
        }
    }

    pub(super) fn spawn(&mut self) {
        if self.instances.len() >= INSTANCES_MAX {
            return;
        }
        if !self.is_pinned {
            return self.spawn_with(None);
        }
        let from = self.random.below(PINS);
        let pin = pin_of(from, (from + 1 + self.random.below(2)).min(PINS));
        // The later instance takes the place of the earlier one.
        let may_fence = !self.is_orderly() && self.random.one_in(4);
        if may_fence || !self.is_pinned_by_any(pin) {
            self.spawn_with(Some(pin));
        }
    }

    fn is_pinned_by_any(&self, slices: SliceRange) -> bool {
        let overlaps = |pin: SliceRange| pin.overlaps(slices);
        self.instances.values().any(|instance| instance.config.pinned.is_some_and(overlaps))
    }

    /// Adds instances until each slice has one.
    pub(super) fn spawn_missing(&mut self) {
        if !self.is_pinned {
            if self.instances.values().all(|one| one.is_leaving) {
                self.spawn_with(None);
            }
            return;
        }
        for pin in (0..PINS).map(|from| pin_of(from, from + 1)) {
            if !self.is_pinned_by_any(pin) {
                self.spawn_with(Some(pin));
            }
        }
    }

    fn spawn_with(&mut self, pin: Option<SliceRange>) {
        self.instances_so_far += 1;
        let number = self.instances_so_far;
        let (own, start, credit_bytes) = (self.own.to_proto(), self.start, self.credit_bytes);
        let instance = Instance::new(number, |config| {
            let config = config.start(start).credit_bytes(credit_bytes);
            let config = pin.map_or(config.clone(), |pin| config.pinned(pin));
            own.map_or(config.clone(), |filter| config.filter(filter))
        });
        self.log(|| format!("i{number} comes{}", pin.map_or(String::new(), |pin| format!(", pins {pin}"))));
        self.pins.extend(pin.map(|pin| (number, (pin, 0))));
        self.instances.insert(number, instance);
        self.connect(number);
    }

    fn any_instance(&mut self) -> Option<usize> {
        let which = self.random.below(self.instances.len().max(1));
        self.instances.keys().nth(which).copied()
    }

    pub(super) fn leave(&mut self) {
        let Some(number) = self.any_instance() else { return };
        let Some(instance) = self.instances.get_mut(&number) else { return };
        instance.say_done();
        instance.inbox.leave();
        instance.is_leaving = true;
        let is_waiting = self.waiting().contains(&number);
        self.log(|| format!("i{number} leaves"));
        if is_waiting {
            // It has no stream on which to say so.
            self.instances.remove(&number);
        }
    }

    pub(super) fn kill_instance(&mut self) {
        let Some(number) = self.any_instance() else { return };
        self.log(|| format!("i{number} is killed"));
        self.instances.remove(&number);
        for connection in self.connections.iter_mut().filter(|one| one.instance == number) {
            if std::mem::take(&mut connection.is_consumer_there) && !connection.is_silent {
                connection.up.push_back(Up::Broken);
            }
        }
    }

    pub(super) fn cut_any(&mut self) {
        if self.connections.is_empty() {
            return;
        }
        let at = self.random.below(self.connections.len());
        let instance = self.connections[at].instance;
        if self.is_orderly() && self.instances.get(&instance).is_none_or(|one| one.is_leaving) {
            return;
        }
        let is_silent = !self.is_orderly() && self.random.one_in(4);
        let name = self.name(at).to_owned();
        self.log(|| {
            format!("the connection of {name} {}", if is_silent { "falls silent" } else { "is cut" })
        });
        self.cut(at, is_silent);
    }

    /// Drops a connection of an instance whose `Open` is under way, and makes another one: either may arrive first.
    pub(super) fn overtake(&mut self) {
        let is_accepting = |connection: &Connection| {
            matches!(connection.publisher_end, PublisherEnd::Accepting) && connection.is_consumer_there
        };
        let accepting: Vec<usize> =
            (0..self.connections.len()).filter(|at| is_accepting(&self.connections[*at])).collect();
        if accepting.is_empty() {
            return;
        }
        let at = accepting[self.random.below(accepting.len())];
        self.connections[at].is_cut = true;
        self.consumer_lost(at);
        self.connect(self.connections[at].instance);
    }

    /// Cuts a connection. Some of what is under way still arrives.
    pub(super) fn cut(&mut self, at: usize, is_silent: bool) {
        let connection = &mut self.connections[at];
        let up = self.random.below(connection.up.len() + 1);
        let down = self.random.below(connection.down.len() + 1);
        connection.up.truncate(up);
        connection.down.truncate(down);
        (connection.is_cut, connection.is_silent) = (true, is_silent);
        if !is_silent {
            connection.up.push_back(Up::Broken);
            connection.down.push_back(Down::Broken);
        }
    }

    pub(super) fn subscription(&self) -> Option<&Arc<Subscription>> {
        self.publisher.as_ref()?.subscription.as_ref()
    }

    pub(super) fn change_filter(&mut self) -> Result<(), Violation> {
        let sieve = Sieve::of_number(self.random.below(5));
        if !self.may_change_filter() {
            return Ok(());
        }
        let Some(subscription) = self.subscription() else { return Ok(()) };
        let filter = sieve.to_proto().unwrap_or_default();
        subscription.keep_filter(&filter).map_err(|status| status.message().to_owned())?;
        self.note_filter();
        Ok(())
    }

    /// Returns true if no more filters come than are kept. Otherwise the oldest would count as one; few courses have so
    /// many.
    fn may_change_filter(&self) -> bool {
        let coming = self.instances.values().filter(|instance| instance.has_filter).count();
        self.subscription().is_some_and(|one| one.snapshot().settings.earlier.len() + coming < EARLIER_MAX)
    }

    pub(super) fn have_instance_change_filter(&mut self) {
        let sieve = Sieve::of_number(self.random.below(5));
        if !self.may_change_filter() {
            return;
        }
        let Some(number) = self.any_instance() else { return };
        self.log(|| format!("i{number} is to have {sieve:?} kept"));
        let Some(instance) = self.instances.get_mut(&number) else { return };
        instance.inbox.keep_filter(sieve.to_proto().unwrap_or_default());
        instance.has_filter = true;
    }

    /// Follows a change of the filter in the truth.
    pub(super) fn note_filter(&mut self) {
        let Some(snapshot) = self.subscription().map(|one| one.snapshot()) else { return };
        let (settings, frontier) = (snapshot.settings, snapshot.offset);
        let sieve = Sieve::of_proto(settings.filter.as_ref());
        let &(_, before) = self.directory.filters.last().expect("there is one");
        if sieve == before {
            return;
        }
        let from = settings.filtered_from;
        self.log(|| format!("from {from} on {sieve:?} holds"));
        self.named.insert(from);
        self.directory.filters.retain(|(other, _)| *other < from);
        self.directory.filters.push((from, sieve));
        if settings.earlier.len() == EARLIER_MAX {
            self.note_oldest_filters(frontier, &settings.earlier[0]);
        }
        // The publisher does not know what instances have received that have not come back since its start.
        let offset_of = |id: EventId| self.events.get(id).offset + 1;
        let received = self.instances.values().filter_map(|one| one.received);
        let there = self.connections.iter().filter(|one| one.is_consumer_there);
        let under_way = there.flat_map(|one| &one.down).filter_map(|down| match down {
            Down::Frame(_, tip) => *tip,
            Down::End(_) | Down::Broken => None,
        });
        let received = received.chain(under_way).map(offset_of).max();
        let end = self.directory.history.len();
        let (from, to) = (from as usize, end.min(received.unwrap_or(0) as usize));
        if let Some(unknown) = self.directory.history.get(from..to) {
            self.ledgers[self.directory.ledger].waived.extend(unknown.iter().copied());
        }
    }

    /// Applies the oldest filter that is kept to all events before it too, from the frontier on. Filters that are not kept any more
    /// may have left out some of those that they filtered.
    fn note_oldest_filters(&mut self, frontier: i64, oldest: &Earlier) {
        let sieve = Sieve::of_proto(oldest.filter.as_ref());
        let filters = &mut self.directory.filters;
        let first_after = filters.partition_point(|(from, _)| *from < oldest.until);
        let after = filters.split_off(first_after);
        filters.retain(|(from, _)| *from < frontier);
        filters.push((frontier, sieve));
        filters.extend(after);
        let to = self.directory.history.len().min(oldest.until as usize);
        let unclear = self.directory.history.get(frontier as usize..to).unwrap_or_default();
        self.ledgers[self.directory.ledger].waived.extend(unclear.iter().copied());
    }

    pub(super) fn pause_or_resume(&mut self) {
        let is_paused = self.random.one_in(2);
        let Some(subscription) = self.subscription() else { return };
        subscription.set(|settings| settings.is_paused = is_paused).expect("the disk takes it");
        self.log(|| format!("paused: {is_paused}"));
    }

    pub(super) fn reset_anywhere(&mut self) {
        let Some(publisher) = &self.publisher else { return };
        let view = publisher.view(&self.directory);
        let offset = self.random.within(view.start, view.end);
        self.reset(offset);
    }

    pub(super) fn reset(&mut self, offset: i64) {
        let Some(subscription) = self.subscription() else { return };
        subscription.reset(offset).expect("the disk takes it");
        self.log(|| format!("reset to {offset}"));
        let waived = self.directory.history[..offset as usize].iter().copied().collect();
        self.ledgers.push(Ledger { waived, ..Ledger::default() });
        self.directory.ledger = self.ledgers.len() - 1;
        let &(_, sieve) = self.directory.filters.last().expect("there is one");
        self.directory.filters = vec![(0, sieve)];
        self.directory.cut_at.clear();
    }

    pub(super) fn sync_positions(&mut self) {
        self.directory.subscription.sync();
        self.log(|| "positions are on the disk".to_owned());
    }

    pub(super) fn stop_publisher(&mut self) -> Result<(), Violation> {
        if self.publisher.is_none() {
            return Ok(());
        }
        self.log(|| "the publisher stops".to_owned());
        let now_ms = self.now();
        for at in 0..self.connections.len() {
            let status = match &mut self.connections[at].publisher_end {
                PublisherEnd::Gone => continue,
                PublisherEnd::Accepting => Status::unavailable("the publisher stops"),
                PublisherEnd::Open(session) => {
                    let now = Now { time: session.time(now_ms), end: 0, is_stopping: true };
                    match session.member.next(now) {
                        Err(status) => status,
                        Ok(Next::Left) => {
                            self.end_session(at, None);
                            continue;
                        }
                        Ok(next) => {
                            return Err(format!("a session continues while the publisher stops: {next:?}"));
                        }
                    }
                }
            };
            self.end_session(at, Some(status));
        }
        self.publisher = None;
        self.directory.subscription.sync();
        self.directory.sync();
        self.directory.closed_at = Some(self.directory.end());
        Ok(())
    }

    pub(super) fn kill_publisher(&mut self) {
        let Some(publisher) = self.publisher.take() else { return };
        self.log(|| "the publisher is killed".to_owned());
        publisher.kill();
        for at in 0..self.connections.len() {
            if !matches!(self.connections[at].publisher_end, PublisherEnd::Gone) {
                let is_silent = self.connections[at].is_silent;
                self.cut(at, is_silent);
                self.connections[at].publisher_end = PublisherEnd::Gone;
            }
        }
    }

    pub(super) fn cut_power(&mut self) {
        self.kill_publisher();
        self.directory.cut_power(&mut self.random);
        let end = self.directory.end();
        self.log(|| format!("the power is cut: {end} events are left"));
    }

    pub(super) fn copy_directory(&mut self) {
        let end = self.directory.end();
        let closed_at = self.directory.closed_at;
        self.log(|| format!("a copy of {end} events is made, closed at {closed_at:?}"));
        self.copies.push(self.directory.clone());
    }

    pub(super) fn restore_directory(&mut self) -> Result<(), Violation> {
        if self.copies.is_empty() {
            return Ok(());
        }
        self.end_publisher()?;
        let which = self.random.below(self.copies.len());
        let copy = self.copies[which].clone();
        let end = copy.end();
        self.log(|| format!("a copy of {end} events takes the place of the directory"));
        // The earlier directory becomes a copy, which may come back.
        let before = std::mem::replace(&mut self.directory, copy);
        self.copies[which] = before;
        self.lineage += 1;
        Ok(())
    }

    pub(super) fn replace_directory(&mut self) -> Result<(), Violation> {
        self.end_publisher()?;
        self.ledgers.push(Ledger::default());
        let number = u8::try_from(self.lineage + 2).unwrap_or(u8::MAX);
        self.directory = Directory::new(number, self.ledgers.len() - 1);
        self.lineage += 1;
        self.log(|| "the directory is lost, and replaced by a new one".to_owned());
        Ok(())
    }

    fn end_publisher(&mut self) -> Result<(), Violation> {
        match self.random.below(3) {
            0 => self.kill_publisher(),
            1 => self.cut_power(),
            _ => self.stop_publisher()?,
        }
        Ok(())
    }

    pub(super) fn retain(&mut self) {
        let Some(publisher) = &self.publisher else { return };
        let end = publisher.ring.end().min(self.directory.synced);
        let to = self.random.within(self.directory.start, end);
        self.directory.start = self.directory.boundary(to).min(end);
        let start = self.directory.start;
        self.log(|| format!("retention takes events before {start}"));
    }
}
