//! The topics that letters may go back to.
//!
//! A letter's headers cannot be trusted: anyone who may write to a topic of dead letters may name any other topic
//! there. A replay has the rights of the operator. So it follows the headers only to topics that the group of the
//! dead letters reads.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_client::Admin;

use super::letters::Letter;
use crate::failure;

/// The topics asked about so far, and the answers.
pub(crate) struct Targets<'a> {
    admin: &'a Admin,
    /// The topic of dead letters.
    letters: &'a str,
    /// The group whose letters are taken, if the command line names one.
    group: Option<&'a str>,
    /// Topics that a group reads, or the reason why they are unknown.
    read: BTreeMap<String, Result<BTreeSet<String>, String>>,
    /// The number of partitions of a topic, or the reason why it cannot be written to.
    widths: BTreeMap<String, Result<i32, String>>,
}

impl<'a> Targets<'a> {
    pub(crate) fn new(admin: &'a Admin, letters: &'a str, group: Option<&'a str>) -> Targets<'a> {
        Targets { admin, letters, group, read: BTreeMap::new(), widths: BTreeMap::new() }
    }

    /// The destination of a letter that goes back: its topic, and its partition if the topic still has it.
    ///
    /// # Errors
    /// The reason why it cannot go back, as a text.
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
        // If partitions were added, the key may belong to another one now.
        Ok((topic.to_owned(), Some(partition).filter(|partition| (0..width).contains(partition))))
    }

    /// The group that has set a letter aside. It is the named one, or the one that both the letter and the name of
    /// its topic (dlq.GROUP.TOPIC) say.
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

    /// The number of partitions of a topic that letters are to go to.
    ///
    /// # Errors
    /// The reason why none can go there, as a text.
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

/// The topics that a group reads: those with committed offsets, and those of its members.
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
