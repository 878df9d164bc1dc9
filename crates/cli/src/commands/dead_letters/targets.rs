//! The topics that letters may go back to.
//!
//! A letter's headers are what somebody wrote: whoever may write to a topic of dead letters may name any other topic there. A
//! replay has the rights of the operator, so it follows them only to topics that the group of the dead letters reads.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_client::Admin;

use super::letters::Letter;
use crate::failure;

/// The topics that are asked about, and what is known of them by now.
pub(crate) struct Targets<'a> {
    admin: &'a Admin,
    /// The topic of dead letters.
    letters: &'a str,
    /// The one group whose letters are taken, where a person has named it.
    group: Option<&'a str>,
    /// Topics that a group reads, or why that is not known.
    read: BTreeMap<String, Result<BTreeSet<String>, String>>,
    /// Partitions of a topic, or why it cannot be written to.
    widths: BTreeMap<String, Result<i32, String>>,
}

impl<'a> Targets<'a> {
    pub(crate) fn new(admin: &'a Admin, letters: &'a str, group: Option<&'a str>) -> Targets<'a> {
        Targets { admin, letters, group, read: BTreeMap::new(), widths: BTreeMap::new() }
    }

    /// The place to which a letter goes back: topic, and partition if the topic still has it.
    ///
    /// # Errors
    /// Why it does not go there, as a text.
    pub(crate) async fn back(&mut self, letter: &Letter) -> Result<(String, Option<i32>), String> {
        let Some((topic, partition, _)) = letter.source() else {
            return Err("it does not say where it comes from; --to names a topic".to_owned());
        };
        let group = self.group_of(letter)?.to_owned();
        if !self.read_by(&group).await?.contains(topic) {
            return Err(format!(
                "group {group} does not read topic {topic}; --to {topic} writes it there all the same"
            ));
        }
        let width = self.width(topic).await?;
        // Its key may have come to another partition since, if there are more.
        Ok((topic.to_owned(), Some(partition).filter(|partition| (0..width).contains(partition))))
    }

    /// The group that has set a letter aside: the one that was named, or the one that both the letter and the name of its topic
    /// say, as in dlq.GROUP.TOPIC.
    fn group_of<'l>(&self, letter: &'l Letter) -> Result<&'l str, String> {
        let Some(group) = letter.text(mainstem_flow::letter::GROUP) else {
            return Err("it does not say which group has set it aside; --to names a topic".to_owned());
        };
        match self.group {
            Some(wanted) if wanted == group => Ok(group),
            Some(wanted) => Err(format!("it is of group {group}, not {wanted} (--group)")),
            None if self.letters.starts_with(&mainstem_flow::letter::topic(group, "")) => Ok(group),
            None => Err(format!(
                "{} is not named as the dead letters of group {group} are (dlq.{group}.TOPIC); --group {group} takes it for that \
                 group's, --to names a topic",
                self.letters
            )),
        }
    }

    async fn read_by(&mut self, group: &str) -> Result<&BTreeSet<String>, String> {
        if !self.read.contains_key(group) {
            let read = topics_of(self.admin, group).await;
            self.read.insert(group.to_owned(), read);
        }
        self.read[group].as_ref().map_err(Clone::clone)
    }

    /// Partitions of a topic that letters are to go to.
    ///
    /// # Errors
    /// Why none can go there, as a text.
    pub(crate) async fn width(&mut self, topic: &str) -> Result<i32, String> {
        if topic == self.letters {
            return Err(format!(
                "letters would go back to {topic}, where they are; name another topic (--to)"
            ));
        }
        if !self.widths.contains_key(topic) {
            let found = crate::topic::find(self.admin, topic).await;
            let width = found.map(|found| i32::try_from(found.partitions.len()).unwrap_or(i32::MAX));
            self.widths.insert(topic.to_owned(), width.map_err(|error| failure::text(&error)));
        }
        self.widths[topic].clone()
    }
}

/// The topics that a group has committed positions of, or that its members read.
async fn topics_of(admin: &Admin, group: &str) -> Result<BTreeSet<String>, String> {
    let not_known = |error: mainstem_client::Error| {
        format!("it is not known which topics group {group} reads: {}", failure::text(&error.into()))
    };
    let committed = admin.group_offsets(group).await.map_err(not_known)?;
    let members = admin.describe_group(group).await.map_err(not_known)?;
    let assigned = members.into_iter().flat_map(|group| group.members).flat_map(|member| member.assignment);
    let topics: BTreeSet<String> =
        committed.into_keys().chain(assigned).map(|key| key.topic.to_string()).collect();
    match topics.is_empty() {
        true => {
            Err(format!("group {group} does not exist, or has no positions (any more); --to names a topic"))
        }
        false => Ok(topics),
    }
}
