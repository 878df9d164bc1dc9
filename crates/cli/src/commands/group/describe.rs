//! `mainstem group describe`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use super::found::{Group, Member, find_group};
use crate::cluster::Cluster;
use crate::committed::{Committed, fetch_committed};
use crate::offsets::{LATEST, list_offsets};
use crate::output::{counted, joined, print, print_json, table};
use crate::target::Target;

/// What `group describe` takes.
#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// Name of the group.
    group: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Where a group is in one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    topic: String,
    partition: i32,
    committed: Option<i64>,
    /// None where the topic is gone or has no leader.
    latest: Option<i64>,
    member: Option<String>,
}

impl Place {
    /// Records that are still to be read.
    fn lag(&self) -> Option<i64> {
        Some(self.latest?.saturating_sub(self.committed?).max(0))
    }
}

/// Describes the group.
pub(crate) fn run(describe: &Describe) -> Result<()> {
    let mut cluster = describe.target.connect()?;
    let name = &describe.group;
    let (coordinator, found, committed) = cluster.retrying(|cluster| {
        let coordinator = cluster.find_coordinator(name)?;
        let found = find_group(cluster, coordinator, name)?;
        let committed = fetch_committed(cluster, coordinator, name, None)?;
        Ok((coordinator, found, committed))
    })?;
    let group = match found {
        Some(group) => group,
        None if committed.is_empty() => {
            bail!("there is no group {name}; `mainstem group list` shows those that are")
        }
        None => Group { state: "Empty".into(), assignor: String::new(), members: Vec::new() },
    };
    let places = places(&mut cluster, &group, &committed)?;
    match describe.json {
        true => print_json(&to_json(name, coordinator, &group, &places)),
        false => print(&to_text(name, coordinator, &group, &places)),
    }
}

/// Every partition that is assigned or has a commit.
fn places(cluster: &mut Cluster, group: &Group, committed: &Committed) -> Result<Vec<Place>> {
    let mut owners: BTreeMap<(String, i32), &str> = BTreeMap::new();
    for member in &group.members {
        for (topic, partitions) in &member.assignment {
            owners.extend(partitions.iter().map(|index| ((topic.clone(), *index), member.id.as_str())));
        }
    }
    let keys: BTreeSet<(String, i32)> = owners.keys().chain(committed.keys()).cloned().collect();
    let latest = latest_offsets(cluster, &keys)?;
    let place = |key: (String, i32)| Place {
        committed: committed.get(&key).copied(),
        latest: latest.get(&key).copied(),
        member: owners.get(&key).map(|member| (*member).to_owned()),
        topic: key.0,
        partition: key.1,
    };
    Ok(keys.into_iter().map(place).collect())
}

fn latest_offsets(cluster: &mut Cluster, keys: &BTreeSet<(String, i32)>) -> Result<Committed> {
    let mut by_topic: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in keys {
        by_topic.entry(topic).or_default().push(*partition);
    }
    let mut latest = Committed::new();
    for (name, wanted) in by_topic {
        let Some(topic) = cluster.find_topic(name)? else { continue };
        let led = |index: &i32| topic.partition(*index).is_ok_and(|partition| partition.leader.is_some());
        let wanted: Vec<i32> = wanted.into_iter().filter(led).collect();
        let offsets = list_offsets(cluster, name, &wanted, LATEST)?;
        latest.extend(offsets.into_iter().map(|(index, offset)| ((name.to_owned(), index), offset)));
    }
    Ok(latest)
}

fn to_json(name: &str, coordinator: i32, group: &Group, places: &[Place]) -> Value {
    let place = |place: &Place| {
        json!({
            "topic": place.topic,
            "partition": place.partition,
            "committed_offset": place.committed,
            "latest_offset": place.latest,
            "lag": place.lag(),
            "member": place.member,
        })
    };
    json!({
        "group": name,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": coordinator,
        "members": group.members.iter().map(Member::to_json).collect::<Value>(),
        "offsets": places.iter().map(place).collect::<Value>(),
    })
}

fn to_text(name: &str, coordinator: i32, group: &Group, places: &[Place]) -> String {
    let assignor = match group.assignor.as_str() {
        "" => String::new(),
        assignor => format!(", assignor {assignor}"),
    };
    let members = counted(group.members.len() as u64, "member");
    let mut parts = vec![format!(
        "group {name}, state {}{assignor}, coordinator node {coordinator}, {members}",
        group.state
    )];
    if !group.members.is_empty() {
        parts.push(table(
            &["MEMBER", "CLIENT", "HOST", "PARTITIONS"],
            group.members.iter().map(row).collect(),
        ));
    }
    if !places.is_empty() {
        let columns = ["TOPIC", ">PARTITION", ">COMMITTED", ">LATEST", ">LAG", "MEMBER"];
        parts.push(table(&columns, places.iter().map(place_row).collect()));
    }
    parts.join("\n\n")
}

fn row(member: &Member) -> Vec<String> {
    let partitions = member.assignment.iter().map(|(topic, list)| format!("{topic}:{}", joined(list)));
    let partitions = partitions.collect::<Vec<_>>().join(" ");
    vec![member.id.clone(), member.client_id.clone(), member.host.clone(), partitions]
}

fn place_row(place: &Place) -> Vec<String> {
    let or_none = |offset: Option<i64>| offset.map_or("-".to_owned(), |offset| offset.to_string());
    vec![
        place.topic.clone(),
        place.partition.to_string(),
        or_none(place.committed),
        or_none(place.latest),
        or_none(place.lag()),
        place.member.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn sample() -> (Group, Vec<Place>) {
        let member = Member {
            id: "m-1".into(),
            instance_id: None,
            client_id: "mainstem".into(),
            host: "/127.0.0.1".into(),
            assignment: [("orders".to_owned(), vec![0, 1])].into(),
        };
        let place = |partition, committed, latest, member: Option<&str>| Place {
            topic: "orders".into(),
            partition,
            committed,
            latest,
            member: member.map(str::to_owned),
        };
        let places = vec![
            place(0, Some(90), Some(100), Some("m-1")),
            place(1, None, Some(5), Some("m-1")),
            place(2, Some(7), None, None),
        ];
        (Group { state: "Stable".into(), assignor: "range".into(), members: vec![member] }, places)
    }

    #[test]
    fn text() {
        let (group, places) = sample();
        expect![[r#"
            group g, state Stable, assignor range, coordinator node 1, 1 member

            MEMBER  CLIENT    HOST        PARTITIONS
            m-1     mainstem  /127.0.0.1  orders:0,1

            TOPIC   PARTITION  COMMITTED  LATEST  LAG  MEMBER
            orders          0         90     100   10  m-1
            orders          1          -       5    -  m-1
            orders          2          7       -    -  -"#]]
        .assert_eq(&to_text("g", 1, &group, &places));
    }

    #[test]
    fn json() {
        let (group, places) = sample();
        let json = to_json("g", 1, &group, &places);
        assert_eq!(json["offsets"][0]["lag"], 10);
        assert_eq!(json["offsets"][1]["committed_offset"], Value::Null);
        assert_eq!(json["members"][0]["assignment"]["orders"], json!([0, 1]));
    }
}
