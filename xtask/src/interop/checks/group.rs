//! A group of three whose members come, go and die while a producer keeps writing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::super::broker::PARTITIONS;
use super::super::client::{Client, Group, Rebalance, SESSION_MS};
use super::super::feeder::{Feeder, fed_value};
use super::super::member::{Member, Reading};
use super::super::protocol::committed_offsets;
use super::super::report::Report;
use super::super::world::World;
use crate::process::wait_until;

/// Rebalances take a session timeout (15 s) at worst, and JVMs take their time to start on a busy machine.
pub(super) const STEP_DEADLINE: Duration = Duration::from_secs(150);
/// The session timeout of the member that is killed, in milliseconds: the others wait for its end.
const KILLED_SESSION_MS: u32 = 8_000;
/// The producer writes this much every [`FEED_INTERVAL`].
const FEED_RECORDS: usize = 100;
const FEED_INTERVAL: Duration = Duration::from_millis(50);
/// Records that are written while no member reads, for the last check.
const UNREAD_RECORDS: usize = 1_000;

/// The name of a check: its subject, and the way in which members give up partitions.
pub(crate) fn check_name(check: &str, rebalance: Rebalance) -> String {
    format!("{check}, {}", rebalance.name())
}

/// Runs the three checks of groups, each of which begins where the one before ended.
pub(crate) fn run(world: &World, report: &Report, client: Client, rebalance: Rebalance) {
    let check = |check: &str, body: &mut dyn FnMut() -> Result<()>| {
        report.check(client.key(), &check_name(check, rebalance), body)
    };
    let mut scenario = None;
    let mut passed = check("rebalance", &mut || {
        scenario.insert(Scenario::start(world, client, rebalance)?).rebalance_while_consuming()
    });
    for (name, step) in STEPS {
        passed = check(name, &mut || match &mut scenario {
            Some(scenario) if passed => step(scenario),
            _ => bail!("not reached: the check before it failed"),
        });
    }
}

type Step = fn(&mut Scenario<'_>) -> Result<()>;

/// The steps after the first check.
const STEPS: [(&str, Step); 2] = [
    ("member killed", |scenario| scenario.kill_a_member()),
    ("stop and resume", |scenario| scenario.stop_and_resume()),
];

/// A group, its members and its producer.
pub(super) struct Scenario<'a> {
    world: &'a World,
    client: Client,
    pub(super) group: Group,
    feeder: Feeder,
    feeding: bool,
    last_fed: Instant,
    /// Members that take part now, by their numbers.
    pub(super) members: Vec<(usize, Member)>,
    joined: usize,
    pub(super) ledger: Ledger,
}

impl<'a> Scenario<'a> {
    fn start(world: &'a World, client: Client, rebalance: Rebalance) -> Result<Scenario<'a>> {
        let topic = format!("group-{}-{}", client.key(), rebalance.name());
        Self::on(world, client, rebalance, topic)
    }

    /// A group without members yet, on a topic of its own.
    pub(super) fn on(
        world: &'a World,
        client: Client,
        rebalance: Rebalance,
        topic: String,
    ) -> Result<Scenario<'a>> {
        client.create(world, std::slice::from_ref(&topic))?;
        Ok(Scenario {
            world,
            client,
            feeder: client.feed(world, &topic, 0)?,
            group: Group {
                id: format!("{topic}-members"),
                topic,
                rebalance,
                instance: None,
                session_ms: SESSION_MS,
            },
            feeding: true,
            last_fed: Instant::now(),
            members: Vec::new(),
            joined: 0,
            ledger: Ledger::default(),
        })
    }

    /// Lets members join one by one and the first one leave, all while records arrive. Every record is read exactly once, since members
    /// commit what they read before they give a partition away.
    fn rebalance_while_consuming(&mut self) -> Result<()> {
        let first = self.join()?;
        self.wait_for_reading(first, 500)?;
        let second = self.join()?;
        self.wait_for_reading(second, 200)?;
        let third = self.join()?;
        self.wait_for_reading(third, 200)?;
        if self.client == Client::Kcat {
            // A member that is asked to leave drops the record that it is handling.
            self.read_all()?;
        }
        self.leave(first)?;
        self.resume_feeding()?;
        self.wait_for_reading(second, 500)?;
        self.wait_for_reading(third, 500)?;
        self.read_all()?;
        self.ledger.check_read_once()
    }

    /// Kills one of three members while records arrive. The others read all. Of the records that the dead one had read, at most those that
    /// it had not committed are read again.
    fn kill_a_member(&mut self) -> Result<()> {
        self.resume_feeding()?;
        self.group.session_ms = KILLED_SESSION_MS;
        let dead = self.join()?;
        self.group.session_ms = SESSION_MS;
        self.wait_for_reading(dead, 200)?;
        let survivors = [self.members[0].0, self.members[1].0];
        self.wait_for_reading(survivors[1], 100)?;
        let mut committed = self.committed()?;
        let mut member = self.take(dead);
        member.kill()?;
        self.ledger.take_in(self.world, dead, &mut member)?;
        for (partition, offset) in &member.committed {
            let known = &mut committed[usize::try_from(*partition)?];
            *known = (*known).max(*offset);
        }
        survivors.into_iter().try_for_each(|survivor| self.wait_for_reading(survivor, 500))?;
        self.read_all()?;
        self.ledger.check_read_again(dead, &committed)
    }

    /// Lets all members leave. A new one reads what was written meanwhile and nothing else.
    fn stop_and_resume(&mut self) -> Result<()> {
        while let Some((number, _)) = self.members.first() {
            self.leave(*number)?;
        }
        let committed: i64 = self.committed()?.iter().map(|offset| (*offset).max(0)).sum();
        let fed = self.feeder.fed();
        ensure!(committed == i64::try_from(fed)?, "committed {committed} of {fed}");
        self.resume_feeding()?;
        self.feeding = false;
        self.feeder.feed(&self.world.text, UNREAD_RECORDS)?;
        self.feeder.finish(STEP_DEADLINE)?;
        let last = self.join()?;
        self.read_all()?;
        self.leave(last)?;
        let resumed = self.ledger.readings_of(last);
        ensure!(resumed == UNREAD_RECORDS, "{resumed} records read after resuming, not {UNREAD_RECORDS}");
        self.ledger.check_complete(self.feeder.fed())
    }

    pub(super) fn join(&mut self) -> Result<usize> {
        let number = self.joined;
        self.joined += 1;
        let name = format!("{}-{number}", self.group.id);
        let member = self.client.member(self.world, &name, &self.group)?;
        self.members.push((number, member));
        Ok(number)
    }

    fn take(&mut self, number: usize) -> Member {
        let place = self.members.iter().position(|(n, _)| *n == number).expect("it takes part");
        self.members.remove(place).1
    }

    pub(super) fn leave(&mut self, number: usize) -> Result<()> {
        let mut member = self.take(number);
        member.leave()?;
        self.ledger.take_in(self.world, number, &mut member)
    }

    fn committed(&self) -> Result<Vec<i64>> {
        committed_offsets(self.world.address(), &self.group.id, &self.group.topic, PARTITIONS)
    }

    /// Waits until a member has read `more` than until now.
    pub(super) fn wait_for_reading(&mut self, number: usize, more: usize) -> Result<()> {
        let wanted = self.ledger.readings_of(number) + more;
        let what = format!("member {number} has read {wanted} records");
        wait_until(
            || what.clone(),
            STEP_DEADLINE,
            || {
                self.tick()?;
                Ok(self.ledger.readings_of(number) >= wanted)
            },
        )
    }

    /// Stops feeding the producer and waits until all that it was fed has been read.
    pub(super) fn read_all(&mut self) -> Result<()> {
        self.feeding = false;
        if self.client.holds_input_back() && !self.feeder.is_finished() {
            self.feeder.finish(STEP_DEADLINE)?;
        }
        let fed = self.feeder.fed();
        let result = wait_until(
            || format!("all {fed} records have been read"),
            STEP_DEADLINE,
            || {
                self.tick()?;
                Ok(self.ledger.distinct() == fed)
            },
        );
        result.with_context(|| format!("{} records were read", self.ledger.distinct()))
    }

    /// Feeds again: the existing producer, or another one if that was brought to its end.
    pub(super) fn resume_feeding(&mut self) -> Result<()> {
        if self.feeder.is_finished() {
            self.feeder = self.client.feed(self.world, &self.group.topic, self.feeder.fed())?;
        }
        self.feeding = true;
        Ok(())
    }

    /// Feeds the producer if it is time, and takes in what the members read.
    pub(super) fn tick(&mut self) -> Result<()> {
        if self.feeding && self.last_fed.elapsed() >= FEED_INTERVAL {
            self.feeder.feed(&self.world.text, FEED_RECORDS)?;
            self.last_fed = Instant::now();
        }
        for (number, member) in &mut self.members {
            member.look()?;
            self.ledger.take_in(self.world, *number, member)?;
        }
        Ok(())
    }
}

/// The records that members have read, and by whom.
#[derive(Default)]
pub(super) struct Ledger {
    /// By partition and offset: the number that its value begins with, and the members that read it.
    records: HashMap<(i32, i64), (usize, Vec<usize>)>,
    /// The number of records that each member has read.
    counts: HashMap<usize, usize>,
    /// The last offset that each member read of each partition.
    last: HashMap<(usize, i32), i64>,
}

impl Ledger {
    /// Takes over what a member has read since the last time.
    fn take_in(&mut self, world: &World, number: usize, member: &mut Member) -> Result<()> {
        let readings = std::mem::take(&mut member.readings);
        *self.counts.entry(number).or_default() += readings.len();
        for reading in readings {
            let (n, _) = reading.value.split_once(' ').context("a number before the line")?;
            let n = n.parse()?;
            ensure!(
                reading.value == fed_value(&world.text, n),
                "{} read another value: {reading:?}",
                member.name
            );
            self.note(number, n, &reading)?;
        }
        Ok(())
    }

    fn note(&mut self, member: usize, n: usize, reading: &Reading) -> Result<()> {
        let place = (reading.partition, reading.offset);
        let (known, readers) = self.records.entry(place).or_insert((n, Vec::new()));
        ensure!(*known == n, "record {n} was read at {place:?}, where record {known} was read before");
        let is_new = readers.is_empty();
        readers.push(member);
        let last = self.last.insert((member, reading.partition), reading.offset);
        ensure!(
            !is_new || last < Some(reading.offset),
            "member {member} read {place:?} after offset {last:?}"
        );
        Ok(())
    }

    fn readings_of(&self, member: usize) -> usize {
        self.counts.get(&member).copied().unwrap_or_default()
    }

    pub(super) fn distinct(&self) -> usize {
        self.records.len()
    }

    pub(super) fn check_read_once(&self) -> Result<()> {
        for (place, (n, readers)) in &self.records {
            ensure!(readers.len() == 1, "record {n} at {place:?} was read by members {readers:?}");
        }
        Ok(())
    }

    /// Checks that every record that was read twice was read first by the dead member, which had not committed it.
    fn check_read_again(&self, dead: usize, committed: &[i64]) -> Result<()> {
        for ((partition, offset), (n, readers)) in &self.records {
            let may_be_read_again = *offset >= committed[usize::try_from(*partition)?];
            let is_once = readers.len() == 1;
            let is_again = readers.len() == 2 && readers[0] == dead && may_be_read_again;
            ensure!(
                is_once || is_again,
                "record {n} at {partition}, {offset} was read by members {readers:?}; member {dead} was killed after \
                 it committed {committed:?}"
            );
        }
        Ok(())
    }

    /// Checks that all that was written exists once, and in its order within each partition.
    pub(super) fn check_complete(&self, fed: usize) -> Result<()> {
        let mut places: Vec<_> = self.records.iter().map(|(place, (n, _))| (*place, *n)).collect();
        places.sort_unstable();
        for pair in places.windows(2) {
            let (((partition, _), n), ((next_partition, _), next)) = (pair[0], pair[1]);
            ensure!(
                partition != next_partition || n < next,
                "partition {partition}: record {next} after {n}"
            );
        }
        let mut numbers: Vec<usize> = places.iter().map(|(_, n)| *n).collect();
        numbers.sort_unstable();
        ensure!(numbers.iter().copied().eq(0..fed), "{} records of {fed}, or some twice", numbers.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(readings: &[(usize, i64)]) -> Result<Ledger> {
        let mut ledger = Ledger::default();
        for (member, offset) in readings {
            let reading = Reading { partition: 0, offset: *offset, value: String::new() };
            ledger.note(*member, usize::try_from(*offset)?, &reading)?;
        }
        Ok(ledger)
    }

    #[test]
    fn only_what_the_dead_member_left_uncommitted_may_be_read_again() {
        let read = ledger(&[(1, 0), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]).unwrap();
        read.check_read_once().unwrap_err();
        read.check_read_again(1, &[1]).unwrap();
        read.check_read_again(1, &[2]).unwrap_err();
        read.check_read_again(2, &[1]).unwrap_err();
        read.check_complete(4).unwrap();
        read.check_complete(5).unwrap_err();
    }

    #[test]
    fn a_member_that_reads_backwards_is_noticed() {
        assert!(ledger(&[(1, 1), (1, 0)]).is_err());
    }
}
