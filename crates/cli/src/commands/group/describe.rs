//! `mainstem group describe`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::{Admin, GroupDescription, GroupMember, TopicPartition};
use serde_json::{Value, json};

use super::latest::latest_offsets;
use crate::offsets::Offsets;
use crate::output::{counted, joined, print, print_json, shown, table};
use crate::target::Target;

/// Arguments of `group describe`.
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

/// The position of a group in one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    partition: TopicPartition,
    committed: Option<i64>,
    /// None where the topic is gone or has no leader.
    latest: Option<i64>,
    member: Option<String>,
}

impl Place {
    /// Records that are not read yet.
    fn lag(&self) -> Option<i64> {
        Some(self.latest?.saturating_sub(self.committed?).max(0))
    }
}

/// Describes the group.
pub(crate) async fn run(describe: &Describe) -> Result<()> {
    let admin = describe.target.connect().await?;
    let name = &describe.group;
    let coordinator = admin.coordinator(name).await?;
    let (found, committed) = (admin.describe_group(name).await?, admin.group_offsets(name).await?);
    let group = match found {
        Some(group) => group,
        None if committed.is_empty() => {
            bail!("there is no group {name}; `mainstem group list` shows those that are")
        }
        None => GroupDescription {
            group_id: name.clone(),
            state: "Empty".into(),
            assignor: String::new(),
            members: Vec::new(),
        },
    };
    let places = places(&admin, &group, &committed).await?;
    match describe.json {
        true => print_json(&to_json(coordinator, &group, &places)),
        false => print(&to_text(coordinator, &group, &places)),
    }
}

/// The partitions that are assigned or have a committed offset.
async fn places(admin: &Admin, group: &GroupDescription, committed: &Offsets) -> Result<Vec<Place>> {
    let owned = |member: &'_ GroupMember| {
        let id = member.member_id.clone();
        member.assignment.clone().into_iter().map(move |key| (key, id.clone()))
    };
    let owners: BTreeMap<TopicPartition, String> = group.members.iter().flat_map(owned).collect();
    let keys: BTreeSet<TopicPartition> = owners.keys().chain(committed.keys()).cloned().collect();
    let latest = latest_offsets(admin, &keys).await?;
    let place = |key: TopicPartition| Place {
        committed: committed.get(&key).copied(),
        latest: latest.get(&key).copied(),
        member: owners.get(&key).cloned(),
        partition: key,
    };
    Ok(keys.into_iter().map(place).collect())
}

fn to_json(coordinator: i32, group: &GroupDescription, places: &[Place]) -> Value {
    json!({
        "group": group.group_id,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": coordinator,
        "members": group.members.iter().map(member_json).collect::<Value>(),
        "offsets": places.iter().map(place_json).collect::<Value>(),
    })
}

fn member_json(member: &GroupMember) -> Value {
    json!({
        "member": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "assignment": by_topic(member),
    })
}

fn place_json(place: &Place) -> Value {
    json!({
        "topic": &*place.partition.topic,
        "partition": place.partition.partition,
        "committed_offset": place.committed,
        "latest_offset": place.latest,
        "lag": place.lag(),
        "member": place.member,
    })
}

/// The partitions assigned to a member, by topic.
fn by_topic(member: &GroupMember) -> BTreeMap<&str, Vec<i32>> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for key in &member.assignment {
        topics.entry(&key.topic).or_default().push(key.partition);
    }
    topics
}

fn to_text(coordinator: i32, group: &GroupDescription, places: &[Place]) -> String {
    let assignor = match group.assignor.as_str() {
        "" => String::new(),
        assignor => format!(", assignor {}", shown(assignor)),
    };
    let members = counted(group.members.len() as u64, "member");
    let mut parts = vec![format!(
        "group {}, state {}{assignor}, coordinator node {coordinator}, {members}",
        shown(&group.group_id),
        shown(&group.state)
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

fn row(member: &GroupMember) -> Vec<String> {
    let topics = by_topic(member).into_iter();
    let partitions =
        topics.map(|(topic, list)| format!("{topic}:{}", joined(list))).collect::<Vec<_>>().join(" ");
    vec![member.member_id.clone(), member.client_id.clone(), member.host.clone(), partitions]
}

fn place_row(place: &Place) -> Vec<String> {
    let or_none = |offset: Option<i64>| offset.map_or("-".to_owned(), |offset| offset.to_string());
    vec![
        place.partition.topic.to_string(),
        place.partition.partition.to_string(),
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

    fn sample() -> (GroupDescription, Vec<Place>) {
        let key = |partition| TopicPartition::new("orders", partition);
        let member = GroupMember {
            member_id: "m-1".into(),
            instance_id: None,
            client_id: "mainstem".into(),
            host: "/127.0.0.1".into(),
            assignment: [key(0), key(1)].into(),
        };
        let place = |partition, committed, latest, member: Option<&str>| Place {
            partition: key(partition),
            committed,
            latest,
            member: member.map(str::to_owned),
        };
        let places = vec![
            place(0, Some(90), Some(100), Some("m-1")),
            place(1, None, Some(5), Some("m-1")),
            place(2, Some(7), None, None),
        ];
        let group = GroupDescription {
            group_id: "g".into(),
            state: "Stable".into(),
            assignor: "range".into(),
            members: vec![member],
        };
        (group, places)
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
        .assert_eq(&to_text(1, &group, &places));
    }

    #[test]
    fn json() {
        let (group, places) = sample();
        let json = to_json(1, &group, &places);
        assert_eq!(json["offsets"][0]["lag"], 10);
        assert_eq!(json["offsets"][1]["committed_offset"], Value::Null);
        assert_eq!(json["members"][0]["assignment"]["orders"], json!([0, 1]));
    }
}
