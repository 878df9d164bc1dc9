//! The topics of `consume`: by name, or by a pattern.

use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::{Admin, Subscription, Topic};
use regex::Regex;

use crate::topic;

/// Arguments that choose topics.
#[derive(Debug, Args)]
pub(super) struct Topics {
    /// Names of the topics.
    #[arg(required_unless_present = "regex", conflicts_with = "regex", value_name = "TOPIC")]
    topics: Vec<String>,
    /// All topics whose whole name matches this pattern, such as 'orders-.*'; not the brokers' own ones. With --group also
    /// those that come later.
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    regex: Option<Pattern>,
}

/// A pattern of names, and its text.
#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    whole: Regex,
}

fn pattern(text: &str) -> Result<Pattern, String> {
    // Both are compiled: a text that is no pattern by itself could be one within the group.
    let whole = Regex::new(text).and_then(|_| Regex::new(&format!("^(?:{text})$")));
    let whole = whole.map_err(|error| error.to_string())?;
    Ok(Pattern { text: text.to_owned(), whole })
}

impl Topics {
    /// The existing topics.
    ///
    /// # Errors
    /// When one that is named is missing, or none matches.
    pub(super) async fn find(&self, admin: &Admin) -> Result<Vec<Arc<Topic>>> {
        let Some(pattern) = &self.regex else {
            let mut found: Vec<Arc<Topic>> = Vec::new();
            for name in &self.topics {
                // A name that comes twice is read once.
                if !found.iter().any(|topic| *topic.name == **name) {
                    found.push(topic::find(admin, name).await?);
                }
            }
            return Ok(found);
        };
        let mut found = admin.topics().await?;
        found.retain(|topic| !topic.is_internal && pattern.whole.is_match(&topic.name));
        if found.is_empty() {
            bail!(
                "no topic matches --regex {}, which has to match a whole name; see `mainstem topic list`",
                pattern.text
            );
        }
        Ok(found)
    }

    /// The topics as a member of a group subscribes to them.
    pub(super) fn subscription(&self) -> Subscription {
        match &self.regex {
            Some(pattern) => Subscription::Pattern(pattern.text.as_str().into()),
            None => Subscription::Topics(self.topics.iter().map(|topic| topic.as_str().into()).collect()),
        }
    }
}
