//! What a member subscribes to: topics by name, topics by a pattern, and when patterns are matched again.

use std::sync::Arc;

use mainstem_wire::ErrorCode;

use super::change::Change;
use super::member::Profile;
use super::regex;
use super::turn::{Refusal, Turn};
use crate::groups::api::VisibleTopics;

/// Patterns are matched against all topics at most this often, however many topics come.
const REFRESH_INTERVAL_MIN_MS: u64 = 10_000;

/// What has become of a member's subscription in a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Subscribed {
    /// The member subscribes to something else than before.
    pub(crate) changed: bool,
    /// The topics that the group subscribes to may be others than before.
    pub(crate) bump: bool,
}

/// Looks at the subscription of a member whose profile is in the group already; `before` is the one it had.
///
/// # Errors
/// INVALID_REGULAR_EXPRESSION.
pub(crate) fn update(
    turn: &mut Turn<'_>,
    before: &Profile,
    after: &Profile,
    visible: VisibleTopics<'_>,
) -> Result<Subscribed, Refusal> {
    let names_changed = before.topics != after.topics;
    let regex_changed = before.regex != after.regex;
    let mut bump = names_changed;
    if regex_changed {
        if let Some(old) = &before.regex {
            forget_unused(turn, old);
            bump |= after.regex.is_none();
        }
        if let Some(new) = &after.regex {
            bump |= turn.group.regexes().contains_key(new);
            check(turn, new)?;
        }
    }
    bump |= resolve(turn, visible);
    Ok(Subscribed { changed: names_changed || regex_changed, bump })
}

/// Takes a pattern out that no member has any more.
pub(crate) fn forget_unused(turn: &mut Turn<'_>, regex: &Arc<str>) {
    if !turn.group.counts().regexes.contains_key(regex) {
        turn.put(Change::Regex(regex.clone(), None));
    }
}

/// A pattern that others have already was checked when they brought it.
fn check(turn: &Turn<'_>, pattern: &Arc<str>) -> Result<(), Refusal> {
    if turn.group.counts().regexes.get(pattern).is_some_and(|members| *members > 1) {
        return Ok(());
    }
    let refuse = |message: String| Refusal::new(ErrorCode::INVALID_REGULAR_EXPRESSION, message);
    regex::compile(pattern).map(drop).map_err(|reason| {
        refuse(format!("The topic pattern {pattern:?} is no valid RE2 expression: {reason}."))
    })?;
    regex::matching(pattern, turn.topics).map(drop).map_err(|regex::TooComplex| {
        refuse(format!("The topic pattern {pattern:?} is too complex: it would take too long to match it."))
    })
}

/// Matches patterns against the topics: those that were never matched at once, all of them when topics have come or
/// the last time was long ago. True if one matches other topics than before.
///
/// A heartbeat matches as many as do not take long.
///
/// Kafka matches in the background and lets members wait for their next heartbeat.
fn resolve(turn: &mut Turn<'_>, visible: VisibleTopics<'_>) -> bool {
    let before = (turn.group.resolved_at_ms, turn.group.resolved_created);
    let all = is_due(turn);
    let refreshed_before = turn.now.wall_ms.saturating_sub(refresh_ms(turn));
    let version = i64::try_from(turn.topics.created()).unwrap_or(i64::MAX);
    let is_due = |regex: &&Arc<str>| match turn.group.regexes().get(*regex) {
        None => true,
        Some(resolved) => all && (resolved.version != version || resolved.timestamp_ms <= refreshed_before),
    };
    let mut due: Vec<Arc<str>> = turn.group.counts().regexes.keys().filter(is_due).cloned().collect();
    if due.len() > 1 {
        let at_once = regex::patterns_at_once(turn.topics);
        if due.len() > at_once {
            // The next heartbeats of the group go on with the rest.
            due.sort_by_key(|regex| turn.group.regexes().contains_key(regex));
            due.truncate(at_once);
            (turn.group.resolved_at_ms, turn.group.resolved_created) = before;
        }
    }
    let mut changed = false;
    for pattern in due {
        let resolved = regex::resolve(&pattern, turn.topics, visible, turn.now.wall_ms);
        let before = turn.group.regexes().get(&pattern);
        changed |= before.map_or(!resolved.topics.is_empty(), |before| before.topics != resolved.topics);
        turn.put(Change::Regex(pattern, Some(resolved)));
    }
    changed
}

/// How old a match may become, in ms.
fn refresh_ms(turn: &Turn<'_>) -> i64 {
    i64::try_from(turn.config.consumer.regex_refresh_interval_ms).unwrap_or(i64::MAX)
}

/// Whether all patterns have to be matched again; notes that they are.
fn is_due(turn: &mut Turn<'_>) -> bool {
    if turn.group.counts().regexes.is_empty() {
        return false;
    }
    let (now_ms, created) = (turn.now.mono_ms, turn.topics.created());
    let interval_ms = turn.config.consumer.regex_refresh_interval_ms;
    let due = match turn.group.resolved_at_ms {
        None => true,
        Some(at) if turn.group.resolved_created != created => {
            now_ms > at.saturating_add(REFRESH_INTERVAL_MIN_MS)
        }
        Some(at) => now_ms > at.saturating_add(interval_ms),
    };
    if due {
        turn.group.resolved_at_ms = Some(now_ms);
        turn.group.resolved_created = created;
    }
    due
}
