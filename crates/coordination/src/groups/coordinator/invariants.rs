//! Invariants of the coordinator, which hold between any two calls: [`GroupCoordinator::check`].

use std::sync::Arc;

use super::super::completion::Completion;
use super::super::deadlines::{Key, Timer};
use super::super::group::{Group, Protocol};
use super::super::in_flight;
use super::super::io::Usage;
use super::super::offsets::TopicNames;
use super::super::served::Partition;
use super::super::token::Token;
use super::GroupCoordinator;

impl GroupCoordinator {
    /// Asserts what holds between any two calls, whatever clients, time and the log have done. It looks at everything
    /// there is, so tests and simulations call it, and no request does.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check(&self) {
        self.check_counts();
        self.check_deadlines();
        self.check_answers();
        self.topics.check();
        for partition in self.partitions.values() {
            partition.appends.check(self.tickets);
            partition.transactions.check(&partition.groups);
            for (id, group) in &partition.groups {
                assert_eq!(id, group.id(), "a group is found under another name than its own");
                check_writes(partition, group);
                check_topic_names(&self.topics, group);
                self.check_protocol(partition, group);
            }
        }
    }

    /// Checks that the totals are right. A total that is too high refuses groups and members for ever; one that is too low lets clients
    /// fill the memory.
    fn check_counts(&self) {
        assert_eq!(self.usage, self.recounted(), "what is counted, and what is there");
    }

    fn recounted(&self) -> Usage {
        let mut there = Usage::default();
        for partition in self.partitions.values() {
            there.in_flight_bytes +=
                partition.appends.completions().map(in_flight::completion).sum::<usize>();
            partition.groups.values().for_each(|group| count(&mut there, group));
        }
        there
    }

    /// Checks time-outs and their entries. A time-out without an entry never fires; an entry without a time-out is never freed.
    fn check_deadlines(&self) {
        let mut slots = Vec::new();
        for (&partition, served) in &self.partitions {
            slots.push((served.service.expiry, Key::Expiry { partition }));
            slots.push((served.appends.timer, Key::Append { partition }));
            served.groups.values().for_each(|group| slots_of(partition, group, &mut slots));
            let is_watched = served.service.expiry.is_some();
            assert_eq!(is_watched, served.service.loaded, "offsets of partition {partition} never expire");
        }
        self.deadlines.check_timers(slots.into_iter().filter_map(|(slot, key)| Some((slot?, key))));
    }

    /// Checks that each request waits in one place. Otherwise it would be answered twice, and its client would take the second answer for
    /// that of its next request.
    fn check_answers(&self) {
        let mut waiting = Vec::new();
        for partition in self.partitions.values() {
            waiting.extend(partition.appends.completions().filter_map(Completion::waiting));
            partition.groups.values().for_each(|group| waiting_members(group, &mut waiting));
        }
        waiting.sort_unstable();
        let twice = waiting.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None, "a request waits in two places");
    }

    fn check_protocol(&self, partition: &Partition, group: &Group) {
        // Before all records are read nothing has a time-out, and the log may be between two records of one change.
        let is_served = partition.service.loaded && !group.converting;
        match &group.protocol {
            Protocol::Classic(classic) => {
                classic.check();
                if is_served {
                    classic.check_time_outs();
                }
            }
            Protocol::Consumer(consumer) => {
                consumer.check();
                if partition.service.loaded {
                    consumer.check_assignments(&self.cluster);
                }
                if is_served {
                    consumer.check_time_outs();
                }
            }
        }
    }
}

fn count(usage: &mut Usage, group: &Group) {
    let (members, bytes) = match &group.protocol {
        Protocol::Classic(group) => (group.members.len() + group.pending_joins.len(), group.summed_bytes()),
        Protocol::Consumer(group) => (group.members().len(), group.summed_bytes()),
    };
    usage.groups += 1;
    usage.members += members;
    usage.offsets += group.offsets.len();
    usage.pending_offsets += group.open_offsets.len();
    usage.bytes += bytes + group.offsets.bytes() + group.open_offsets.bytes();
}

/// Every place of a group that may hold a time-out, with the key of its entry.
fn slots_of(partition: i32, group: &Group, slots: &mut Vec<(Option<Timer>, Key)>) {
    let id = group.id();
    let session = |member: &Arc<str>| Key::Session { partition, group: id.clone(), member: member.clone() };
    match &group.protocol {
        Protocol::Classic(classic) => {
            slots.push((classic.join_timer, Key::Join { partition, group: id.clone() }));
            slots.push((classic.sync_timer, Key::Sync { partition, group: id.clone() }));
            slots.extend(classic.members.values().map(|member| (member.session, session(&member.id))));
            slots.extend(classic.pending_joins.iter().map(|(pending, timer)| (*timer, session(pending))));
        }
        Protocol::Consumer(consumer) => {
            for (member, of) in consumer.members() {
                let (group, member) = (id.clone(), member.clone());
                slots.push((of.timers.session, session(&member)));
                let key = Key::Rebalance { partition, group: group.clone(), member: member.clone() };
                slots.push((of.timers.rebalance, key));
                slots.push((of.timers.sync, Key::MemberSync { partition, group, member }));
            }
        }
    }
}

/// The requests that wait in a group itself.
fn waiting_members(group: &Group, waiting: &mut Vec<Token>) {
    let Protocol::Classic(classic) = &group.protocol else { return };
    for member in classic.members.values() {
        waiting.extend(member.awaiting_join.map(|waiter| waiter.token));
        waiting.extend(member.awaiting_sync);
    }
}

/// Checks the number of a group's own records in flight. While there are any, the group does not change its protocol and is not removed:
/// their outcome must not meet a later group of its name.
fn check_writes(partition: &Partition, group: &Group) {
    let own = partition.appends.completions().filter_map(Completion::written_group);
    let on_their_way = own.filter(|id| *id == group.id()).count();
    let known = match &group.protocol {
        Protocol::Classic(group) => group.pending_writes,
        Protocol::Consumer(group) => group.pending_writes,
    };
    assert_eq!(known, on_their_way, "records of {} that are on their way", group.id());
    assert!(!group.converting || known == 1, "{} waits for a change that is not being written", group.id());
}

/// Checks that a topic's name is held once for all groups, and counted once: a copy would not be counted.
fn check_topic_names(names: &TopicNames, group: &Group) {
    let committed = group.offsets.iter().map(|(topic, _)| topic);
    let open = group.open_offsets.partitions().map(|(topic, _)| topic);
    for topic in committed.chain(open) {
        assert!(names.holds(topic), "{} has a copy of its own of the name {topic}", group.id());
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::groups::classic::{ClassicGroup, State};
    use crate::groups::consumer::change::{Change, TargetEpoch};
    use crate::groups::consumer::group::ConsumerGroup;
    use crate::groups::group::Groups;
    use crate::groups::open_transactions::OpenTransactions;
    use crate::groups::tests::transcript::played;

    /// The state holds a classic group whose members are to sync, one of them a static member; a consumer group of two members, one of
    /// which has all four partitions; offsets, one of them of an open transaction; and the record of a group in flight.
    const SCRIPT: &str = "
        topic t 4
        join A g=classic v=3
        join B g=classic v=3 instance=i
        wait 6000
        hb C g=consumer id=m
        hb D g=consumer id=n
        commit E g=offsets t-0=5
        txn F g=offsets pid=7 t-1=6
        hold
        join G g=new v=3
    ";

    /// Returns the panic message of `check` after `break_it`. Totals are corrected before, so that they do not reveal the fault.
    fn verdict(break_it: impl FnOnce(&mut GroupCoordinator)) -> Option<String> {
        let mut coordinator = played(SCRIPT);
        coordinator.check();
        break_it(&mut coordinator);
        coordinator.usage = coordinator.recounted();
        said(&coordinator)
    }

    fn said(coordinator: &GroupCoordinator) -> Option<String> {
        let panic = catch_unwind(AssertUnwindSafe(|| coordinator.check())).err()?;
        Some(*panic.downcast::<String>().expect("the message has values in it"))
    }

    #[track_caller]
    fn assert_found(expect: &str, break_it: impl FnOnce(&mut GroupCoordinator)) {
        let found = verdict(break_it);
        assert!(found.as_ref().is_some_and(|found| found.contains(expect)), "{expect:?}: {found:?}");
    }

    fn groups(coordinator: &mut GroupCoordinator) -> &mut Groups {
        &mut coordinator.partitions.get_mut(&0).expect("it is served").groups
    }

    fn classic(coordinator: &mut GroupCoordinator) -> &mut ClassicGroup {
        groups(coordinator).get_mut("classic").and_then(Group::classic).expect("it is there")
    }

    fn consumer(coordinator: &mut GroupCoordinator) -> &mut ConsumerGroup {
        match &mut groups(coordinator).get_mut("consumer").expect("it is there").protocol {
            Protocol::Consumer(group) => group,
            Protocol::Classic(_) => panic!("its members speak the consumer protocol"),
        }
    }

    /// Gives the second member of the consumer group another target.
    fn aim(coordinator: &mut GroupCoordinator, partitions: &[i32]) {
        let group = consumer(coordinator);
        let topic = group.target("m").and_then(|target| target.iter().next()).expect("it has a target").0;
        let target = partitions.iter().map(|partition| (topic, *partition)).collect();
        group.apply(Change::Target("n".into(), Some(target)));
    }

    #[test]
    fn a_sound_coordinator_has_no_fault() {
        assert_eq!(verdict(|_| {}), None);
    }

    #[test]
    fn counts_that_drift_are_found() {
        let breaks: [fn(&mut GroupCoordinator); 6] = [
            |coordinator| coordinator.usage.groups += 1,
            |coordinator| coordinator.usage.members -= 1,
            |coordinator| coordinator.usage.offsets += 1,
            |coordinator| coordinator.usage.pending_offsets -= 1,
            |coordinator| coordinator.usage.bytes += 1,
            |coordinator| coordinator.usage.in_flight_bytes -= 1,
        ];
        for break_it in breaks {
            let mut coordinator = played(SCRIPT);
            break_it(&mut coordinator);
            let found = said(&coordinator).expect("it is found");
            assert!(found.contains("what is counted, and what is there"), "{found}");
        }
    }

    #[test]
    fn time_outs_that_are_lost_are_found() {
        assert_found("deadlines that are set", |coordinator| {
            classic(coordinator).members.values_mut().for_each(|member| member.session = None);
        });
        assert_found(
            "deadlines that are set",
            |coordinator| {
                while coordinator.deadlines.pop(u64::MAX).is_some() {}
            },
        );
        assert_found("never expire", |coordinator| {
            coordinator.partitions.get_mut(&0).expect("it is served").service.expiry = None;
        });
    }

    #[test]
    fn a_request_in_two_places_is_found() {
        assert_found("waits in two places", |coordinator| {
            let waiters = classic(coordinator).members.values_mut();
            waiters.for_each(|member| member.awaiting_sync = Some(Token(99)));
        });
    }

    #[test]
    fn members_that_are_not_what_is_known_of_them_are_found() {
        assert_found("leads classic and is no member", |coordinator| {
            classic(coordinator).leader = Some("unknown".into());
        });
        assert_found("without a leader", |coordinator| classic(coordinator).leader = None);
        assert_found("instances of classic", |coordinator| classic(coordinator).static_members.clear());
        assert_found("is no member", |coordinator| {
            classic(coordinator).pending_syncs.insert("unknown".into());
        });
        assert_found("protocols that members", |coordinator| {
            let member = classic(coordinator).members.values_mut().next().expect("it has members");
            member.protocols.pop();
        });
    }

    #[test]
    fn states_that_do_not_fit_are_found() {
        assert_found("is Empty and has members", |coordinator| classic(coordinator).state = State::Empty);
        assert_found("has no protocol", |coordinator| classic(coordinator).protocol_name = None);
        assert_found("wait for it", |coordinator| {
            classic(coordinator).state = State::Stable;
            let waiter = classic(coordinator).members.values_mut().next().expect("it has members");
            waiter.awaiting_sync = Some(Token(99));
        });
        assert_found("wait for others for ever", |coordinator| {
            classic(coordinator).state = State::PreparingRebalance;
        });
    }

    #[test]
    fn records_on_their_way_that_the_group_does_not_know_are_found() {
        assert_found("records of new that are on their way", |coordinator| {
            groups(coordinator)
                .get_mut("new")
                .and_then(Group::classic)
                .expect("it is there")
                .pending_writes = 0;
        });
        assert_found("change that is not being written", |coordinator| {
            groups(coordinator).get_mut("consumer").expect("it is there").converting = true;
        });
    }

    #[test]
    fn partitions_with_two_readers_are_found() {
        assert_found("is to go to n, too", |coordinator| aim(coordinator, &[0, 1]));
        assert_found("members of consumer that hold", |coordinator| {
            let group = consumer(coordinator);
            let current = group.member("m").expect("it is there").current.clone();
            group.apply(Change::Current("n".into(), Some(current)));
        });
    }

    #[test]
    fn targets_beyond_the_topics_are_found() {
        assert_found("or is not there", |coordinator| aim(coordinator, &[4]));
        assert_found("or is not there", |coordinator| {
            let group = consumer(coordinator);
            let mut profile = group.member("n").expect("it is there").profile.clone();
            profile.topics.clear();
            group.apply(Change::Profile("n".into(), Some(profile)));
        });
    }

    #[test]
    fn epochs_out_of_order_are_found() {
        assert_found("is yet to come", |coordinator| {
            let ahead = TargetEpoch { epoch: 99, timestamp_ms: 0 };
            consumer(coordinator).apply(Change::TargetEpoch(Some(ahead)));
        });
        assert_found("is ahead of the target", |coordinator| {
            let group = consumer(coordinator);
            let mut current = group.member("n").expect("it is there").current.clone();
            current.epoch = 99;
            group.apply(Change::Current("n".into(), Some(current)));
        });
    }

    #[test]
    fn offsets_without_a_transaction_are_found() {
        assert_found("places of offsets of open transactions", |coordinator| {
            let partition = coordinator.partitions.get_mut(&0).expect("it is served");
            partition.transactions = OpenTransactions::default();
        });
    }

    #[test]
    fn names_that_are_held_twice_are_found() {
        assert_found("a copy of its own of the name t", |coordinator| {
            coordinator.topics = TopicNames::default();
        });
    }

    #[test]
    fn a_group_under_another_name_is_found() {
        assert_found("found under another name", |coordinator| {
            let group = groups(coordinator).remove("classic").expect("it is there");
            groups(coordinator).insert("renamed".into(), group);
        });
    }
}
