//! Checks of the consumer protocol (KIP-848) beside those of every group: a group that rolls from the classic protocol to it and back while
//! it consumes, and static members.

use anyhow::{Result, bail, ensure};

use super::super::client::{Client, Rebalance};
use super::super::report::Report;
use super::super::world::World;
use super::group::{STEP_DEADLINE, Scenario};
use crate::process::wait_until;

/// Runs the checks with a client that has both protocols.
pub(crate) fn run(world: &World, report: &Report, client: Client) {
    let mut scenario = None;
    let passed = report.check(client.key(), "roll to consumer", || {
        let topic = format!("roll-{}", client.key());
        let scenario = scenario.insert(Scenario::on(world, client, Rebalance::Cooperative, topic)?);
        for _ in 0..3 {
            let member = scenario.join()?;
            scenario.wait_for_reading(member, 100)?;
        }
        roll(scenario, Rebalance::Consumer)
    });
    report.check(client.key(), "roll back", || match &mut scenario {
        Some(scenario) if passed => {
            scenario.resume_feeding()?;
            roll(scenario, Rebalance::Cooperative)
        }
        _ => bail!("not reached: the check before it failed"),
    });
    report.check(client.key(), "static, consumer", || static_members(world, client));
}

/// Replaces members one by one by members of another protocol, and checks that every record is read once.
fn roll(scenario: &mut Scenario<'_>, to: Rebalance) -> Result<()> {
    scenario.group.rebalance = to;
    for _ in 0..3 {
        let old = scenario.members[0].0;
        let new = scenario.join()?;
        scenario.wait_for_reading(new, 100)?;
        scenario.leave(old)?;
    }
    let last = scenario.members[2].0;
    scenario.wait_for_reading(last, 300)?;
    scenario.read_all()?;
    scenario.ledger.check_read_once()
}

/// Stops one of two static members and starts it again. It gets its partitions again, and the other one has never had to revoke any.
fn static_members(world: &World, client: Client) -> Result<()> {
    let topic = format!("static-{}", client.key());
    let mut scenario = Scenario::on(world, client, Rebalance::Consumer, topic)?;
    for instance in ["one", "two"] {
        scenario.group.instance = Some(instance.to_string());
        let member = scenario.join()?;
        scenario.wait_for_reading(member, 100)?;
    }
    balanced(&mut scenario)?;
    let (before, given_up) = (scenario.members[0].1.assigned.clone(), scenario.members[0].1.revoked);
    let two = scenario.members[1].0;
    scenario.leave(two)?;
    let again = scenario.join()?;
    scenario.wait_for_reading(again, 200)?;
    scenario.read_all()?;
    let one = &scenario.members[0].1;
    ensure!(
        one.assigned == before && one.revoked == given_up,
        "the member that stayed had {before:?} and has {:?}, giving up {} times",
        one.assigned,
        one.revoked - given_up
    );
    scenario.ledger.check_read_once()
}

/// Waits until both members have half of the partitions.
fn balanced(scenario: &mut Scenario<'_>) -> Result<()> {
    wait_until(
        || "both members have half of the partitions".to_string(),
        STEP_DEADLINE,
        || {
            scenario.tick()?;
            Ok(scenario.members.iter().all(|(_, member)| member.assigned.len() == 3))
        },
    )
}
