//! A replica that is too far behind gets a copy of the leader's log, whatever ends the process or the power meanwhile.

use super::*;
use crate::change::MemberChange;
use crate::copies::manifest::{CopyFile, CopyFileKind, Manifest};
use crate::journal::JournalFormat;
use crate::reconcile::{Step, WantedMembers};
use mainstem_log::{Export, Import, ImportEnds, ImportedLog};

/// Segments of a few batches.
fn small() -> Arc<LogConfig> {
    Arc::new(LogConfig {
        segment_bytes: 600,
        index_interval_bytes: 200,
        retention_ms: None,
        ..LogConfig::default()
    })
}

/// The first node gets values up to 43 from one on, and has several segments then; the second one gets them too.
fn write_segments(nodes: &mut [Node], from: u64) {
    for value in from..40 {
        nodes[0].append(0, value);
        exchange(nodes, &[0, 1]);
    }
    roll(&mut nodes[0]);
    (40..43).for_each(|value| nodes[0].append(0, value));
    exchange(nodes, &[0, 1]);
}

/// The leader offers a copy, and the last node installs it.
fn offer_and_install(nodes: &mut [Node]) {
    let (manifest, export) = offer(nodes);
    let (offered, copy) = fetch(nodes, &manifest, &export);
    assert!(nodes[2].replica(0).install(&offered, copy, 0).expect("it is installed"));
}

/// Three nodes, of which the last one is away while the leader, the first, gets records and gives up what precedes its last segments.
fn with_one_behind(is_deleted: bool) -> Vec<Node> {
    let mut nodes = nodes(3, 1);
    for node in &mut nodes {
        node.running().journal.lock().want_format(JournalFormat::V2);
        Journal::rewrite_beside_others(&node.running().journal).expect("a rewrite");
        node.replica(0).log_mut().set_config(small());
    }
    elect(&mut nodes, 0, 0);
    (0..3).for_each(|value| nodes[0].append(0, value));
    exchange(&mut nodes, &[0, 1, 2]);
    nodes[2].kill();
    write_segments(&mut nodes, 3);
    let leader = nodes[0].replica(0);
    let base = leader.log().segment_bases().next_back().expect("a segment");
    match is_deleted {
        true => {
            leader.log_mut().delete_records_before(base).expect("a deletion");
            leader.log_mut().maintain(0, 0).expect("maintenance");
            leader.log_mut().sync_now().expect("a sync");
            leader.follow_log_start().expect("a start");
        }
        false => leader.follow_floor(base).expect("a start"),
    }
    assert_eq!(leader.start_offset(), base);
    nodes[2].start();
    nodes
}

/// Two nodes with a group, and a third one without members in its. The leader, the first, has removed what precedes its last segments, and
/// has just begun to send its log to the third. Nothing is written after that.
fn with_a_new_one() -> Vec<Node> {
    let voters = [ReplicaId::new(1, 1), ReplicaId::new(2, 1)];
    let start = |node: i32| {
        let voters = if node <= 2 { voters.to_vec() } else { Vec::new() };
        let mut node = Node::new(ReplicaId::new(node, 1), voters, 1);
        node.changes_members = true;
        node.start();
        node.running().journal.lock().want_format(JournalFormat::V2);
        Journal::rewrite_beside_others(&node.running().journal).expect("a rewrite");
        node.replica(0).log_mut().set_config(small());
        node
    };
    let mut nodes: Vec<_> = (1..=3).map(start).collect();
    elect(&mut nodes, 0, 0);
    write_segments(&mut nodes, 0);
    roll(&mut nodes[0]);
    let leader = nodes[0].replica(0);
    let base = leader.log().segment_bases().next_back().expect("a segment");
    leader.follow_floor(base).expect("a start");
    assert!(leader.start_offset() > 0);
    reconcile(&mut nodes, Step::Change(MemberChange::AddLearner(ReplicaId::new(3, 1))));
    nodes
}

/// The leader takes steps towards three voters, until it has taken this one.
fn reconcile(nodes: &mut [Node], last: Step) {
    let wanted = [1, 2, 3].map(|node| ReplicaId::new(node, 1));
    // A leader that waits for a replica to fetch a copy offers it again after a while.
    for _ in 0..400 {
        let step = nodes[0].replica(0).reconcile(&WantedMembers::of_voters(&wanted)).expect("it leads");
        pass(nodes, 100);
        if step == last {
            return;
        }
    }
    panic!("it does not come to {last:?}");
}

fn roll(node: &mut Node) {
    node.sync();
    let replica = node.replica(0);
    replica.log_mut().close_segment(0).expect("a roll");
    assert!(replica.follow_roll().expect("a mark"));
    node.sync();
}

/// The leader exports its log and offers it.
fn offer(nodes: &mut [Node]) -> (Manifest, Export) {
    pass(nodes, 2_000);
    assert_eq!(nodes[0].behind.last(), Some(&nodes[2].id), "it is known to be behind");
    let leader = nodes[0].replica(0);
    let start = leader.copy_ends().next().expect("a place");
    let export = leader.log_mut().export(start.offset).expect("a listing").expect("an export");
    let kind = |is_snapshot| if is_snapshot { CopyFileKind::Snapshot } else { CopyFileKind::Log };
    let files = export.files().iter().map(|file| CopyFile {
        base_offset: file.base_offset,
        kind: kind(file.is_snapshot),
        len: file.len,
    });
    let manifest = Manifest {
        group: leader.group(),
        start,
        log_start: export.log_start(),
        compacted_to: export.compacted_to(),
        configuration: leader.configuration().clone(),
        epochs: export.epochs().to_vec(),
        files: files.collect(),
    };
    assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest.clone()));
    leader.offer_snapshot(Some(manifest.content()));
    (manifest, export)
}

/// The offer as it comes, and a whole copy at the replica that is behind.
fn fetch(nodes: &mut [Node], manifest: &Manifest, export: &Export) -> (SnapshotOffer, ImportedLog) {
    for _ in 0..20 {
        pass(nodes, 1_000);
        if nodes[2].offered.is_some() {
            break;
        }
    }
    let offered = nodes[2].offered.take().expect("it was offered");
    assert_eq!((offered.start, offered.crc), (manifest.start, manifest.content().crc));
    let identity = nodes[2].partitions[0].clone();
    let dir = nodes[2].running().dir.clone();
    let (end, log_start) = (manifest.start.offset, manifest.log_start);
    let ends = ImportEnds { log_start, end, compacted_to: manifest.compacted_to };
    let partition = identity.topic_partition();
    let mut import =
        Import::create(&dir, &partition, &identity.topic_id, ends, &manifest.encode()).expect("a copy");
    for (number, file) in export.files().iter().enumerate() {
        let bytes = export.read(number, 0, file.len as usize).expect("a file");
        import.write(file, 0, &bytes).expect("a write");
    }
    import.sync(manifest.len()).expect("a sync");
    let copy =
        import.finish(export.files(), &manifest.epochs, (small(), 0), &Arc::default()).expect("a sound copy");
    (offered, copy)
}

/// Each record from the log start on, segment after segment.
fn content(node: &mut Node) -> Vec<Vec<u8>> {
    let log = node.replica(0).log();
    let (mut next, end, mut content) = (log.ends().log_start, log.ends().log_end, Vec::new());
    while next < end {
        let bytes = read(log, next..end);
        let mut rest = &bytes[..];
        while let Ok((batch, behind)) = Batch::split_first(rest) {
            content.push(batch.bytes().to_vec());
            (next, rest) = (batch.next_offset(), behind);
        }
    }
    content
}

fn assert_all_the_same(nodes: &mut [Node], what: &str) {
    nodes[0].append(0, 99);
    let end = nodes[0].replica(0).log().ends().log_end;
    // A leader that waits for a replica to fetch a copy offers it again after a while.
    for _ in 0..15 {
        pass(nodes, 1_000);
        if nodes[2].replica(0).log().ends().high_watermark == end {
            break;
        }
    }
    let expected = content(&mut nodes[0]);
    for node in &mut nodes[1..] {
        let ends = node.replica(0).log().ends();
        assert_eq!((ends.log_end, ends.high_watermark, ends.durable_end), (end, end, end), "{what}");
        // Of what was deleted the others may have more.
        assert!(content(node).ends_with(&expected), "{what}");
    }
    assert_eq!(content(&mut nodes[2]).len(), expected.len(), "{what}");
}

#[test]
fn a_copy_takes_the_place_of_a_log_that_is_too_far_behind() {
    for is_deleted in [false, true] {
        let mut nodes = with_one_behind(is_deleted);
        let (manifest, export) = offer(&mut nodes);
        assert_eq!(manifest.files.len() == 1, is_deleted, "{:?}", manifest.files);
        let (offered, copy) = fetch(&mut nodes, &manifest, &export);
        assert!(nodes[2].replica(0).install(&offered, copy, 0).expect("it is installed"));
        nodes[2].replica(0).check();
        assert_all_the_same(&mut nodes, "installed");
        nodes[2].cut_power(7);
        nodes[2].start();
        assert_all_the_same(&mut nodes, "after a power cut");
        assert!(nodes[2].running().dir.futures().expect("a list").is_empty());
    }
}

/// A copy ends before the entry that makes a replica a member, where nothing is written behind that. The replica passes over the entry.
#[test]
fn a_new_member_of_a_group_that_is_not_written_to_gets_a_copy() {
    for restarts in [false, true] {
        let mut nodes = with_a_new_one();
        offer_and_install(&mut nodes);
        if restarts {
            nodes[2].kill();
            nodes[2].start();
        }
        reconcile(&mut nodes, Step::Done);
        assert_all_the_same(&mut nodes, "as a voter");
        let voters = [1, 2, 3].map(|node| ReplicaId::new(node, 1));
        for node in &mut nodes {
            assert_eq!(node.replica(0).configuration().in_order(), Configuration::of_voters(&voters));
            node.replica(0).check();
        }
    }
}

/// One that has caught up, has no leader, or whose journal may not say so does not need it: the copy goes.
#[test]
fn a_copy_that_is_not_needed_is_removed() {
    let mut nodes = with_one_behind(false);
    let (manifest, export) = offer(&mut nodes);
    let (offered, copy) = fetch(&mut nodes, &manifest, &export);
    // Nothing is known of a leader.
    nodes[2].kill();
    nodes[2].start();
    drop(copy);
    let dir = nodes[2].running().dir.clone();
    let identity = nodes[2].partitions[0].clone();
    let found = Import::find(&dir, &identity.topic_partition(), &identity.topic_id);
    let found = found.expect("a look").expect("a copy");
    assert_eq!(found.synced, manifest.len());
    let again = found
        .import
        .finish(export.files(), &manifest.epochs, (small(), 0), &Arc::default())
        .expect("a sound copy");
    assert!(!nodes[2].replica(0).install(&offered, again, 0).expect("no error"));
    assert!(nodes[2].running().dir.futures().expect("a list").is_empty());
    assert!(nodes[2].replica(0).failed().is_none());
}

/// The process or the power ends at any call that changes the disk. Either the old log is there, and a copy is offered again, or the
/// copy is.
#[test]
fn each_step_of_an_installation_may_be_the_last() {
    let (mut replaced, mut kept) = (0, 0);
    for last in 0.. {
        let mut is_over = false;
        for power in [false, true] {
            let mut nodes = with_one_behind(false);
            let (manifest, export) = offer(&mut nodes);
            let (offered, copy) = fetch(&mut nodes, &manifest, &export);
            nodes[2].storage.stop_after(Some(last));
            is_over = nodes[2].replica(0).install(&offered, copy, 0).unwrap_or(false);
            match power {
                true => nodes[2].cut_power(last * 2 + 1),
                false => nodes[2].kill(),
            }
            nodes[2].storage.stop_after(None);
            nodes[2].start();
            match nodes[2].replica(0).log().ends().log_end == manifest.start.offset {
                true => replaced += 1,
                false => {
                    kept += 1;
                    assert_eq!(content(&mut nodes[2]).len(), 3, "step {last}");
                    drop(export);
                    let dir = nodes[2].running().dir.clone();
                    for future in dir.futures().expect("a list") {
                        dir.remove_future(&future.path).expect("a removal");
                    }
                    nodes[2].offered = None;
                    nodes[0].replica(0).offer_snapshot(None);
                    offer_and_install(&mut nodes);
                }
            }
            assert_all_the_same(&mut nodes, &format!("step {last}"));
        }
        if is_over {
            break;
        }
    }
    assert!(replaced > 10 && kept > 2, "{replaced} replaced, {kept} kept");
}

/// Files of a copy that are gone while it is noted to be in place are no reason to begin with nothing.
#[test]
fn a_copy_that_is_gone_is_an_error() {
    let mut nodes = with_one_behind(false);
    let (manifest, export) = offer(&mut nodes);
    let (_, copy) = fetch(&mut nodes, &manifest, &export);
    let (own, identity) = (nodes[2].id, nodes[2].partitions[0].clone());
    let running = nodes[2].running();
    let (dir, journal) = (running.dir.clone(), running.journal.clone());
    let configuration = manifest.configuration.clone();
    let replace = Frame::Replace { copy: copy.id(), start: manifest.start, own, configuration };
    journal.lock().append(group_of(&identity), &[replace]).expect("there is space");
    copy.remove().expect("a removal");
    let finished = finish_replacement(&journal, group_of(&identity), &dir, &identity.topic_partition(), 0);
    assert!(matches!(finished, Err(ReplicaError::CopyGone { .. })), "{finished:?}");
}
