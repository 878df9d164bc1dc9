//! The subscription of a member: topics by name, topics by a pattern, and the times at which patterns are matched again.

use std::sync::Arc;

use mainstem_wire::ErrorCode;

use super::change::{Change, Resolved};
use super::group::ConsumerGroup;
use super::member::Profile;
use super::patterns::{DuePatterns, MatchedPatterns};
use super::refusal::Refusal;
use super::regex;
use super::topics::ClusterTopics;
use super::turn::Turn;
use crate::groups::config::GroupConfig;
use crate::groups::request_context::VisibleTopics;
use crate::time::Now;

/// Patterns are matched against all topics at most this often, however many topics come.
const REFRESH_INTERVAL_MIN_MS: u64 = 10_000;

/// The effect of a request on its member's subscription.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Subscribed {
    /// The member subscribes to something else than before.
    pub(crate) changed: bool,
    /// The topics that the group subscribes to may have changed.
    pub(crate) bump: bool,
}

/// The two ways in which patterns are matched for a request.
#[derive(Clone, Copy)]
pub(crate) enum Matching<'a> {
    /// They were matched before the request; it matches none itself.
    Ahead(&'a MatchedPatterns),
    /// The request matches them, against these topics.
    Here(VisibleTopics<'a>),
}

/// Updates the subscription of a member whose profile is in the group already; `before` is its former profile.
///
/// # Errors
/// INVALID_REGULAR_EXPRESSION.
pub(crate) fn update(
    turn: &mut Turn<'_>,
    before: &Profile,
    after: &Profile,
    matching: Matching<'_>,
) -> Result<Subscribed, Refusal> {
    let names_changed = before.topics != after.topics;
    let regex_changed = before.regex != after.regex;
    let mut bump = names_changed;
    if regex_changed {
        if let Some(old) = &before.regex {
            // The new one may match nothing, and then nothing else would take the topics of the old one away.
            let had_topics =
                turn.group.regexes().get(old).is_some_and(|resolved| !resolved.topics.is_empty());
            forget_unused(turn, old);
            bump |= after.regex.is_none() || had_topics;
        }
        if let Some(new) = &after.regex {
            bump |= turn.group.regexes().contains_key(new);
            check(turn, new, matching)?;
        }
    }
    bump |= resolve(turn, matching);
    Ok(Subscribed { changed: names_changed || regex_changed, bump })
}

/// Removes a pattern that no member has any more.
pub(crate) fn forget_unused(turn: &mut Turn<'_>, regex: &Arc<str>) {
    if !turn.group.counts().regexes.contains_key(regex) {
        turn.put(Change::Regex(regex.clone(), None));
    }
}

/// Checks a new pattern; one that other members have was checked before.
fn check(turn: &Turn<'_>, pattern: &Arc<str>, matching: Matching<'_>) -> Result<(), Refusal> {
    if turn.group.counts().regexes.get(pattern).is_some_and(|members| *members > 1) {
        return Ok(());
    }
    let checked = match matching {
        Matching::Ahead(matched) => match matched.get(pattern) {
            Some(Err(fault)) => Err(fault.clone()),
            // A pattern that is not among them was in the group when the request came.
            Some(Ok(_)) | None => Ok(()),
        },
        Matching::Here(_) => regex::matching(pattern, &turn.topics.all_names()).map(drop),
    };
    checked.map_err(|fault| {
        let message = format!("The topic pattern {pattern:?} {fault}.");
        Refusal::new(ErrorCode::INVALID_REGULAR_EXPRESSION, message)
    })
}

/// The patterns that a request of the group's members would match now itself, with a pattern that may be `new` to the group.
pub(crate) fn due_ahead(
    group: Option<&ConsumerGroup>,
    topics: &ClusterTopics,
    config: &GroupConfig,
    now: Now,
    new: Option<&str>,
) -> Option<DuePatterns> {
    let due = group.map(|group| Due::of(group, topics, config, now)).unwrap_or_default();
    let mut patterns = due.patterns;
    let is_known = |new: &str| {
        patterns.iter().any(|due| **due == *new)
            || group.is_some_and(|group| group.regexes().contains_key(new))
    };
    if let Some(new) = new.filter(|new| !is_known(new)) {
        patterns.push(new.into());
    }
    (!patterns.is_empty()).then(|| DuePatterns::new(patterns, topics))
}

/// Patterns of a group that are to be matched against the topics.
#[derive(Default)]
struct Due {
    /// As many patterns as one heartbeat matches.
    patterns: Vec<Arc<str>>,
    /// True if more patterns are due; the next heartbeats of the group match them.
    is_cut: bool,
    /// True if all patterns are looked at, not only those that were never matched.
    all: bool,
}

impl Due {
    /// Patterns that were never matched are due at once. All of them are due when topics were created, or the last time was long ago.
    fn of(group: &ConsumerGroup, topics: &ClusterTopics, config: &GroupConfig, now: Now) -> Due {
        let interval_ms = config.consumer.regex_refresh_interval_ms;
        let all = is_refresh_due(group, topics, interval_ms, now);
        let refresh_ms = i64::try_from(interval_ms).unwrap_or(i64::MAX);
        let refreshed_before = now.wall_ms.saturating_sub(refresh_ms);
        let version = i64::try_from(topics.created()).unwrap_or(i64::MAX);
        let is_due = |regex: &&Arc<str>| match group.regexes().get(*regex) {
            None => true,
            Some(resolved) => {
                all && (resolved.version != version || resolved.timestamp_ms <= refreshed_before)
            }
        };
        let mut patterns: Vec<Arc<str>> = group.counts().regexes.keys().filter(is_due).cloned().collect();
        let patterns_max = regex::patterns_at_once(topics);
        let is_cut = patterns.len() > patterns_max;
        if is_cut {
            patterns.sort_by_key(|regex| group.regexes().contains_key(regex));
            patterns.truncate(patterns_max);
        }
        Due { patterns, is_cut, all }
    }
}

/// Stores the matches of the patterns that are due. Returns true if one matches other topics than before. A pattern matches nothing if it
/// does not compile (another version may have logged it), or if it is too complex for today's topics.
///
/// Kafka matches in the background and lets members wait for their next heartbeat.
fn resolve(turn: &mut Turn<'_>, matching: Matching<'_>) -> bool {
    let due = Due::of(turn.group, turn.topics, turn.config, turn.now);
    let mut here = MatchedPatterns::default();
    let matched = match matching {
        Matching::Ahead(matched) => matched,
        Matching::Here(visible) => {
            if !due.patterns.is_empty() {
                here = DuePatterns::new(due.patterns.clone(), turn.topics).matched(visible);
            }
            &here
        }
    };
    let (mut changed, mut is_complete) = (false, !due.is_cut);
    let mut created = turn.topics.created();
    for pattern in due.patterns {
        let Some(found) = matched.get(&pattern) else {
            is_complete = false;
            continue;
        };
        let topics = found.clone().unwrap_or_default();
        created = matched.version().cast_unsigned();
        let resolved = Resolved { topics, version: matched.version(), timestamp_ms: turn.now.wall_ms };
        let before = turn.group.regexes().get(&pattern);
        changed |= before.map_or(!resolved.topics.is_empty(), |before| before.topics != resolved.topics);
        turn.put(Change::Regex(pattern, Some(resolved)));
    }
    if due.all && is_complete {
        turn.group.resolved_at_ms = Some(turn.now.mono_ms);
        turn.group.resolved_created = created;
    }
    changed
}

/// Returns true if all patterns have to be matched again.
fn is_refresh_due(group: &ConsumerGroup, topics: &ClusterTopics, interval_ms: u64, now: Now) -> bool {
    if group.counts().regexes.is_empty() {
        return false;
    }
    match group.resolved_at_ms {
        None => true,
        Some(at) if group.resolved_created != topics.created() => {
            now.mono_ms > at.saturating_add(REFRESH_INTERVAL_MIN_MS)
        }
        Some(at) => now.mono_ms > at.saturating_add(interval_ms),
    }
}
