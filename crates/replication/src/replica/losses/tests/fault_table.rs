//! The faults of a replica's disk: docs/faults.md has what comes out here. The two others of the group are well.

use super::*;
use mainstem_log::sim::{Action, Ending, World, fault_table};
use mainstem_testkit::document_part;

/// Time in which a group settles.
const SETTLED_MS: u64 = 8_000;

type Act = fn(&mut Group) -> Result<(), String>;

/// A group, of which one replica's disk refuses a call.
struct Faulty {
    group: Group,
    node: usize,
    /// Records that were committed before.
    committed: i64,
    /// Opens the replica, which does not run.
    starts: bool,
    /// Does its part of the action, until it is done.
    act: Option<Act>,
}

impl Faulty {
    /// The group, in which the first replica leads, has ten records.
    fn new(node: usize, prepare: impl FnOnce(&mut Group), act: Act) -> Faulty {
        let mut group = Group::led_by_first(false);
        group.append(0, 10);
        group.exchange();
        group.faulty = Some(node);
        prepare(&mut group);
        Faulty { group, node, committed: 10, starts: false, act: Some(act) }
    }

    fn starting(prepare: impl FnOnce(&mut Group, usize)) -> Faulty {
        let mut world = Faulty::new(1, |group| prepare(group, 1), |_| Ok(()));
        world.starts = true;
        world
    }

    /// Its end, or why there is none.
    fn settled(&mut self) -> Result<(), String> {
        let leader = self.group.found_leader().ok_or("no one leads")?;
        let ends = [0, 1, 2].map(|node| self.group.end(node));
        let committed = self.group.replica(leader).log().ends().high_watermark;
        match ends == [committed; 3] && committed >= self.committed {
            true => Ok(()),
            false => Err(format!("the logs end at {ends:?}, and {committed} is committed")),
        }
    }
}

impl World for Faulty {
    fn storage(&self) -> &Hooked {
        &self.group.hooked[self.node]
    }

    fn act(&mut self) -> Result<(), String> {
        if self.starts && self.group.replicas[self.node].is_none() {
            let started = self.group.try_start(self.node, i64::MAX, 0);
            // A start that fails is one that the next one repeats, under the same boot.
            let replica = started.inspect_err(|_| self.group.boots[self.node] -= 1);
            self.group.replicas[self.node] = Some(replica.map_err(|error| error.to_string())?);
        }
        let acted = self.act.map_or(Ok(()), |act| act(&mut self.group));
        if acted.is_ok() {
            self.act = None;
        }
        self.group.pass(SETTLED_MS);
        acted.and_then(|()| self.settled())
    }

    fn effect(&self) -> Option<&'static str> {
        let replica = self.group.replicas[self.node].as_ref()?;
        match replica.failed() {
            Some(_) if replica.log().dir().failure().is_some() => Some("the directory is offline"),
            Some(_) => Some("the replica stops"),
            None => None,
        }
    }

    fn verify(mut self: Box<Self>, ending: Ending) {
        let seen = self.group.replicas.iter().flatten().map(|replica| replica.log().ends().high_watermark);
        let committed = seen.max().unwrap_or(0).max(self.committed);
        self.group.faulty = None;
        self.group.replicas[self.node] = None;
        match ending {
            Ending::Kill(_) => {
                self.group.disks[self.node].kill();
                self.group.boots[self.node] -= 1;
            }
            Ending::PowerCut(seed) => self.group.disks[self.node].power_cut(&mut Random::new(seed)),
        }
        self.group.cut_off.clear();
        self.group.start(self.node, i64::MAX, 0);
        self.group.pass(SETTLED_MS);
        let ends = [0, 1, 2].map(|node| self.group.end(node));
        assert!(ends[0] >= committed && ends == [ends[0]; 3], "{committed} of {ends:?} were committed");
        let logs = [0, 1, 2].map(|node| read(self.group.replica(node).log(), 0..ends[0]).expect("a read"));
        assert!(logs[0] == logs[1] && logs[0] == logs[2], "the logs differ");
        assert!(self.group.lost.is_empty(), "{:?} were lost", self.group.lost);
    }
}

fn class(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.strip_suffix(".tmp").unwrap_or(name);
    match name {
        "data" => "the log directory".to_owned(),
        "t-0" => "the partition's directory".to_owned(),
        _ => match name.split_once('.').filter(|(digits, _)| digits.len() == 20) {
            Some((_, suffix)) => format!("`.{suffix}`"),
            None => format!("`{name}`"),
        },
    }
}

/// The records of a leader that no other has, in the place of which there are others by now.
fn take_other_records(group: &mut Group) {
    group.cut_off = vec![0];
    group.append(0, 5);
    group.exchange();
    group.pass(SETTLED_MS);
    let leader = group.leader();
    group.append(leader, 3);
    group.exchange();
}

fn actions() -> Vec<Action> {
    let action =
        |name, prepare: fn() -> Faulty| Action { name, prepare: Box::new(move || Box::new(prepare())) };
    vec![
        action("append as leader", || {
            Faulty::new(
                0,
                |_| {},
                |group| {
                    let leader = group.found_leader().ok_or("no one leads")?;
                    (0..3).try_for_each(|_| group.try_append(leader)).map_err(|error| error.to_string())
                },
            )
        }),
        action("append as follower", || {
            Faulty::new(
                1,
                |_| {},
                |group| {
                    group.append(0, 3);
                    Ok(())
                },
            )
        }),
        action("vote, or win an election", || Faulty::new(1, |group| group.cut_off = vec![0], |_| Ok(()))),
        action("take other records than its own", || {
            Faulty::new(0, take_other_records, |group| {
                group.cut_off.clear();
                Ok(())
            })
        }),
        action("open a replica after a kill", || {
            Faulty::starting(|group, node| {
                group.replicas[node] = None;
                group.disks[node].kill();
                group.boots[node] -= 1;
            })
        }),
        action("open a replica after a power cut", || {
            Faulty::starting(|group, node| {
                group.replicas[node] = None;
                group.disks[node].power_cut(&mut Random::new(5));
            })
        }),
        action("rewrite the journal", || {
            Faulty::new(
                1,
                |_| {},
                |group| {
                    let journal = group.replica(1).journal().clone();
                    let written = journal.lock().rewrite();
                    written.map_err(|error| error.to_string())
                },
            )
        }),
    ]
}

#[test]
fn a_fault_at_any_call_has_the_effect_that_the_document_says() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/faults.md");
    document_part(&document, "replica", &fault_table(&actions(), class));
}
