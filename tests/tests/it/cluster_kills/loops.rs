//! Transactional loops that are real clients, beside our own: their notes, as events.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_client::TopicPartition;
use mainstem_replication::history::{Operation, Outcome};

use crate::cluster_kills::clients::{Notes, Program, RealClient, SESSION, keep_running};
use crate::cluster_kills::run::{OUT, Run, group_name, number};

/// Runs the loop of a client until the run stops.
pub(crate) async fn process(run: Arc<Run>, client: RealClient, bootstrap: String, folder: PathBuf) {
    let start = |name: &str| {
        let arguments = [
            "loop".to_owned(),
            format!("output={OUT}"),
            format!("group={}", group_name(client.group_of_loop())),
            format!("id=kills-{}", client.transactional_loop()),
            format!("values={}", run.values()),
            SESSION.to_owned(),
        ];
        Program::start(client, &bootstrap, &folder, name, &arguments)
    };
    keep_running(&run, &client.transactional_loop(), start, || LoopNotes::new(&run, client)).await;
}

/// The notes of a loop.
struct LoopNotes {
    run: Arc<Run>,
    process: i32,
    client: RealClient,
    /// Partitions with a record read since they were assigned.
    begun: BTreeSet<i32>,
    /// The last transaction that it has begun, and the offsets to commit with it.
    transaction: u64,
    offsets: Vec<(i32, i64)>,
}

impl Notes for LoopNotes {
    /// Takes new lines. A loop asks before others can see the offsets that it commits, so that these are events before anyone looks at
    /// them.
    fn take(&mut self, lines: Vec<String>) -> usize {
        lines.iter().map(|line| self.take_line(line)).filter(|is_question| *is_question).count()
    }
}

impl LoopNotes {
    fn new(run: &Arc<Run>, client: RealClient) -> LoopNotes {
        let (process, begun) = (run.process(), BTreeSet::new());
        LoopNotes { run: run.clone(), process, client, begun, transaction: 0, offsets: Vec::new() }
    }

    /// Takes a line. Returns true if it is a question.
    fn take_line(&mut self, line: &str) -> bool {
        let fields: Vec<_> = line.split_whitespace().collect();
        let of = |at: usize| {
            let field = fields.get(at).and_then(|text| text.parse::<i64>().ok());
            field.unwrap_or_else(|| panic!("a note of a loop is {line:?}"))
        };
        let place = || (of(1) as i32, of(2));
        let out = || number(&TopicPartition::new(OUT, of(1) as i32));
        match fields[0] {
            "assigned" => _ = self.begun.remove(&(of(1) as i32)),
            "seek" => self.run.record(self.process, Operation::Assign, Outcome::Ok, place(), 0),
            "begin" => self.begin(),
            "r" => self.read(place(), of(3) as u64),
            "w" => self.append(Outcome::Invoke, (out(), -1), of(2) as u64),
            "ok" => self.append(Outcome::Ok, (out(), of(2)), of(3) as u64),
            "info" => self.append(Outcome::Info, (out(), -1), of(3) as u64),
            "offset" => self.send_offset(place()),
            "sent" => self.sent(),
            "committing" => self.transact(Operation::CommitTransaction, Outcome::Invoke),
            "committed" => self.committed(),
            "aborting" => self.transact(Operation::AbortTransaction, Outcome::Invoke),
            "aborted" => self.transact(Operation::AbortTransaction, Outcome::Ok),
            "ask" => return true,
            _ => panic!("a note of a loop is {line:?}"),
        }
        false
    }

    fn begin(&mut self) {
        self.transaction = self.run.value();
        self.offsets.clear();
        self.transact(Operation::Begin, Outcome::Ok);
    }

    fn read(&mut self, place: (i32, i64), value: u64) {
        // The first position is the group's offset.
        if self.begun.insert(place.0) {
            let group = self.client.group_of_loop();
            self.run.record(self.process, Operation::Assign, Outcome::Ok, place, group);
        }
        self.run.record(self.process, Operation::ReadCommitted, Outcome::Ok, place, value);
    }

    fn append(&self, outcome: Outcome, place: (i32, i64), value: u64) {
        self.run.record(self.process, Operation::Append, outcome, place, value);
    }

    fn send_offset(&mut self, place: (i32, i64)) {
        self.offsets.push(place);
        self.run.record(self.process, Operation::Commit, Outcome::Invoke, place, self.client.group_of_loop());
    }

    fn sent(&self) {
        for place in &self.offsets {
            self.run.record(
                self.process,
                Operation::Commit,
                Outcome::Ok,
                *place,
                self.client.group_of_loop(),
            );
        }
    }

    fn committed(&self) {
        self.transact(Operation::CommitTransaction, Outcome::Ok);
        self.offsets.iter().for_each(|_| self.run.committed(&self.client.transactional_loop()));
    }

    fn transact(&self, operation: Operation, outcome: Outcome) {
        self.run.record_transaction(self.process, operation, outcome, self.transaction);
    }
}

#[cfg(test)]
mod tests {
    use mainstem_replication::history::{CONTROL, Fault, check};

    use super::*;

    const LOOP: u64 = 22;

    /// The faults in the notes of loops, one after the other, after two values were appended to their input. `seen`
    /// are reads of others at the end.
    fn faults(loops: &[&str], seen: &[(Operation, (i32, i64), u64)]) -> Vec<Fault> {
        assert_eq!(RealClient::Confluent.group_of_loop(), LOOP);
        let run = Arc::new(Run::new());
        run.expect_commits(RealClient::Confluent.transactional_loop());
        for (offset, value) in [(0, 7), (1, 8)] {
            run.record(-1, Operation::Append, Outcome::Invoke, (0, -1), value);
            run.record(-1, Operation::Append, Outcome::Ok, (0, offset), value);
        }
        for written in loops {
            let mut notes = LoopNotes::new(&run, RealClient::Confluent);
            let lines = written.split(", ").map(str::to_owned).collect();
            assert_eq!(notes.take(lines), written.matches("ask").count());
        }
        for (operation, place, value) in seen {
            run.record(-2, *operation, Outcome::Invoke, *place, *value);
            run.record(-2, *operation, Outcome::Ok, *place, *value);
        }
        check(&run.history()).into_iter().map(|violation| violation.fault).collect()
    }

    const COMMITTED: &str =
        "assigned 0, begin, r 0 0 7, w 0 100, ok 0 0 100, offset 0 1, ask, sent, committing, committed";
    const ABORTED: &str =
        "assigned 0, begin, r 0 0 7, w 0 100, ok 0 0 100, offset 0 1, ask, sent, aborting, aborted, seek 0 0";
    const OUTPUT: i32 = 100;

    #[test]
    fn what_a_loop_does_in_order_is_no_fault() {
        let next = "begin, r 0 1 8, w 0 101, ok 0 2 101, offset 0 2, ask, sent, committing, committed";
        let seen = [
            (Operation::ReadCommitted, (OUTPUT, 0), 100),
            (Operation::ReadCommitted, (OUTPUT, 2), 101),
            (Operation::Committed, (0, 2), LOOP),
        ];
        assert_eq!(faults(&[&format!("{COMMITTED}, {next}")], &seen), []);
        // An aborted transaction is done again, by the same loop or by the next one.
        let again = "begin, r 0 0 7, w 0 101, ok 0 2 101, offset 0 1, ask, sent, committing, committed";
        let seen = [(Operation::ReadCommitted, (OUTPUT, 2), 101), (Operation::Committed, (0, 1), LOOP)];
        assert_eq!(faults(&[&format!("{ABORTED}, {again}")], &seen), []);
        assert_eq!(faults(&[ABORTED, &format!("assigned 0, {again}")], &seen), []);
    }

    #[test]
    fn a_record_that_is_processed_twice_is_found() {
        let again =
            "assigned 0, begin, r 0 0 7, w 0 101, ok 0 2 101, offset 0 1, ask, sent, committing, committed";
        let found = faults(&[COMMITTED, again], &[]);
        assert!(
            found.iter().any(|fault| matches!(fault, Fault::ProcessedTwice { offset: 0, .. })),
            "{found:?}"
        );
        // The group's offset went back, too.
        let back = Fault::CommitWentBack { group: LOOP, offset: 0, acknowledged: 1 };
        assert!(found.contains(&back), "{found:?}");
        let jumps = "begin, r 0 0 7, w 0 101, ok 0 2 101, offset 0 1, ask, sent, committing, committed";
        let found = faults(&[&format!("{COMMITTED}, {jumps}")], &[]);
        assert!(found.iter().any(|fault| matches!(fault, Fault::WentBack { offset: 0, .. })), "{found:?}");
    }

    #[test]
    fn what_a_loop_has_aborted_may_not_be_seen_nor_count() {
        let found = faults(&[ABORTED], &[(Operation::ReadCommitted, (OUTPUT, 0), 100)]);
        assert!(matches!(found[..], [Fault::AbortedRead { offset: 0, value: 100, .. }]), "{found:?}");
        let lost = faults(&[COMMITTED], &[(Operation::Committed, (0, -1), LOOP)]);
        assert_eq!(lost, [Fault::CommitWentBack { group: LOOP, offset: -1, acknowledged: 1 }]);
        // A transaction without a known end may have been committed or aborted.
        let unknown = COMMITTED.trim_end_matches(", committed");
        assert_eq!(faults(&[unknown], &[(Operation::Committed, (0, -1), LOOP)]), []);
        assert_eq!(faults(&[unknown], &[(Operation::Committed, (0, 1), LOOP)]), []);
    }

    #[test]
    fn what_a_loop_has_written_may_not_be_lost() {
        let replica = (Operation::Final, (OUTPUT, 0), CONTROL);
        let found = faults(&[COMMITTED], &[replica]);
        assert!(found.iter().any(|fault| matches!(fault, Fault::Lost { value: 100, .. })), "{found:?}");
    }
}
