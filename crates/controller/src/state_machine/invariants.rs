//! Invariants of the state machine, which hold between any two calls: [`MetadataStateMachine::check`].

use super::{MetadataImage, MetadataStateMachine};
use crate::image::PartitionImage;

impl MetadataStateMachine {
    /// Asserts what holds between any two calls. It looks at the whole state, so tests and simulations call it, and no request does.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check(&self) {
        let (committed, ahead) = (&*self.committed.image, &*self.ahead.image);
        committed.check();
        ahead.check();
        // Records are applied by their offsets: with one too few or too many, every later one would have a wrong offset.
        let decided = ahead.next_offset() - committed.next_offset();
        let pending = i64::try_from(self.pending.len()).expect("there is memory for it");
        assert_eq!(pending, decided, "records that are not committed, and offsets between the images");
        if pending == 0 {
            // Otherwise requests would be refused, or allowed, without a reason in the log.
            assert_eq!(self.committed, self.ahead, "what is committed, and all that was decided");
        }
        check_epochs(committed, ahead);
    }
}

/// Checks that epochs, incarnations and producer ids never decrease: otherwise a comparison would prefer the older one, and two producers would get one
/// id.
fn check_epochs(committed: &MetadataImage, ahead: &MetadataImage) {
    let (taken, next) = (committed.next_producer_id(), ahead.next_producer_id());
    assert!(taken <= next, "producer ids below {taken} are given out again from {next} on");
    for topic in committed.topics() {
        let Some(later) = ahead.topic_by_id(topic.id) else { continue };
        let (count, later_count) = (topic.partitions.len(), later.partitions.len());
        assert!(count <= later_count, "{} has lost partitions: {count} to {later_count}", topic.name);
        for (number, (before, after)) in topic.partitions.iter().zip(&later.partitions).enumerate() {
            let counters = |image: &PartitionImage| {
                let incarnation = image.group.as_ref().map_or(0, |group| group.last_incarnation);
                let group = [incarnation, image.wanted_version()].map(i64::from);
                let epochs = [image.leader_epoch, image.partition_epoch, image.settled_epoch()];
                epochs.into_iter().map(i64::from).chain(group).collect::<Vec<_>>()
            };
            let rises = counters(before).iter().zip(counters(after)).all(|(before, after)| *before <= after);
            assert!(rises, "an epoch of {}-{number} goes back: {before:?} to {after:?}", topic.name);
        }
    }
    for broker in committed.brokers() {
        let later = ahead.broker(broker.id).map_or(broker.epoch, |later| later.epoch);
        assert!(broker.epoch <= later, "the epoch of broker {} goes back to {later}", broker.id);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use mainstem_wire::Uuid;

    use super::*;
    use crate::image::{ConfigResource, GroupImage, ResourceKind, TopicImage};
    use crate::session::{Session, with_configs};

    /// Two topics, one of them with its own configuration. Only the second one is not committed.
    fn machine() -> MetadataStateMachine {
        let mut session = Session::new("");
        session.create_all(vec![with_configs("a.b", &[("retention.ms", Some("5"))])], false);
        session.machine.committed(session.end());
        session.create_all(vec![with_configs("c", &[])], false);
        assert!(session.machine.has_pending());
        session.machine
    }

    fn verdict(break_it: impl FnOnce(&mut MetadataStateMachine)) -> Option<String> {
        let mut machine = machine();
        machine.check();
        break_it(&mut machine);
        let panic = catch_unwind(AssertUnwindSafe(|| machine.check())).err()?;
        let text = panic.downcast::<String>().map(|text| *text);
        Some(text.unwrap_or_else(|panic| (*panic.downcast::<&str>().expect("a message")).to_owned()))
    }

    #[track_caller]
    fn assert_found(expect: &str, break_it: impl FnOnce(&mut MetadataStateMachine)) {
        let found = verdict(break_it);
        assert!(found.as_ref().is_some_and(|found| found.contains(expect)), "{expect:?}: {found:?}");
    }

    /// The image that readers see.
    fn image(machine: &mut MetadataStateMachine) -> &mut MetadataImage {
        Arc::make_mut(&mut machine.committed.image)
    }

    fn topic(machine: &mut MetadataStateMachine) -> &mut TopicImage {
        image(machine).topics.values_mut().next().expect("there is one")
    }

    fn partition(machine: &mut MetadataStateMachine) -> &mut PartitionImage {
        topic(machine).partitions.first_mut().expect("it has one")
    }

    #[test]
    fn a_sound_machine_has_no_fault() {
        assert_eq!(verdict(|_| {}), None);
    }

    #[test]
    fn indexes_that_do_not_fit_are_found() {
        assert_found("topics by name", |machine| image(machine).ids.clear());
        assert_found("another id than its own", |machine| topic(machine).id = Uuid([7; 16]));
        assert_found("names that may collide", |machine| image(machine).colliding.clear());
    }

    #[test]
    fn values_that_are_left_over_are_found() {
        assert_found("topic that is gone", |machine| {
            let gone = ConfigResource::new(ResourceKind::Topic, "gone");
            image(machine).configs.insert(gone, [("retention.ms".to_owned(), "1".to_owned())].into());
        });
        assert_found("has no configuration", |machine| {
            image(machine).configs.values_mut().for_each(|values| values.clear());
        });
    }

    #[test]
    fn replicas_that_do_not_fit_are_found() {
        assert_found("it has no replica of", |machine| partition(machine).isr.push(7));
        assert_found("the leader of", |machine| partition(machine).leader = 7);
        assert_found("names a replica twice", |machine| {
            let replicas = &mut partition(machine).replicas;
            replicas.push(replicas[0]);
        });
        assert_found("has no directory", |machine| partition(machine).directories.push(Uuid([7; 16])));
        assert_found("it has no replica of", |machine| partition(machine).adding.push(7));
        assert_found("no replica of", |machine| {
            let partition = partition(machine);
            partition.removing.clone_from(&partition.replicas);
        });
    }

    #[test]
    fn groups_that_do_not_fit_are_found() {
        let group = GroupImage {
            incarnations: vec![1],
            last_incarnation: 2,
            version: 1,
            settled_epoch: 0,
            original: vec![],
        };
        let find = |expect: &str, break_it: fn(&mut GroupImage)| {
            let mut group = group.clone();
            break_it(&mut group);
            assert_found(expect, |machine| partition(machine).group = Some(group));
        };
        find("with an incarnation, and replicas", |group| group.incarnations.push(1));
        find("was never given", |group| group.incarnations = vec![3]);
        find("it has no replica of", |group| group.original.push(7));
        find("is negative", |group| group.settled_epoch = -1);
        find("an epoch of", |group| group.version = 1);
    }

    #[test]
    fn epochs_that_go_back_are_found() {
        assert_found("an epoch of", |machine| partition(machine).leader_epoch += 1);
        assert_found("given out again", |machine| image(machine).next_producer_id += 1);
        assert_found("was registered behind", |machine| {
            let next = image(machine).next_offset;
            image(machine).brokers.values_mut().for_each(|broker| broker.epoch = next);
        });
    }

    #[test]
    fn images_that_differ_without_a_record_are_found() {
        assert_found("offsets between the images", |machine| drop(machine.pending.pop_front()));
        assert_found("all that was decided", |machine| {
            machine.rollback();
            image(machine).features.insert("made.up".to_owned(), 1);
        });
    }
}
