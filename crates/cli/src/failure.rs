//! Errors for people: the tool's words for those of the client, with advice.

use std::time::Duration;

use mainstem_broker::config::ConfigError;
use mainstem_client::{Error, ErrorCode};
use serde_json::{Value, json};

use crate::output;

/// The same for a terminal, with control characters escaped. Faults of a configuration, which the user has written, get a line each.
pub(crate) fn shown(error: &anyhow::Error) -> String {
    match error.chain().any(|cause| cause.is::<ConfigError>()) {
        true => output::shown_lines(&text(error)).into_owned(),
        false => output::shown(&text(error)).into_owned(),
    }
}

/// The whole of an error, from the command's aim to the cause. A cause whose text is already in the message is not
/// repeated.
pub(crate) fn text(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| {
        let cause = match cause.downcast_ref::<Error>() {
            Some(error) => words(error),
            None => cause.to_string(),
        };
        match () {
            () if text.is_empty() => cause,
            () if text.contains(&cause) => text,
            () => text + ": " + &cause,
        }
    })
}

/// The same for programs: with the protocol's name of the error, if a broker has sent one.
pub(crate) fn json(error: &anyhow::Error) -> Value {
    let code = error.chain().find_map(|cause| cause.downcast_ref::<Error>()?.code());
    match code {
        Some(code) => json!({ "error": text(error), "code": code.name() }),
        None => json!({ "error": text(error) }),
    }
}

fn words(error: &Error) -> String {
    match error {
        // There is mostly one broker, and the command line names it.
        Error::Broker { code, message, what, .. } => format!("{what}: {message} ({})", code.name()),
        Error::Connect { broker, reason } => format!(
            "cannot connect to {broker}; is a broker running there? Start one with `mainstem start`, or name another \
             with --bootstrap HOST:PORT: {reason}"
        ),
        Error::TimedOut { after, last: Some(last), .. } => {
            format!("gave up after {} of retries (--timeout): {}", seconds(*after), words(last))
        }
        Error::TimedOut { what, after, last: None } => {
            format!(
                "{what} was not done within {} (--timeout), as the broker does not answer",
                seconds(*after)
            )
        }
        Error::Damaged { partition, offset, next_offset, reason } => {
            let next = next_offset.map(|next| format!(" {next}")).unwrap_or_default();
            format!(
                "{partition} cannot be read from offset {offset} on: {reason}; start behind that with --from{next} to continue"
            )
        }
        other => other.to_string(),
    }
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// The same refusal with advice in place of the broker's words, where there is some.
pub(crate) fn advised(error: Error, advice: impl FnOnce(ErrorCode) -> Option<&'static str>) -> Error {
    match error {
        Error::Broker { code, message, what, broker } => {
            let message = advice(code).map_or(message, str::to_owned);
            Error::Broker { code, message, what, broker }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use mainstem_client::TopicPartition;

    use super::*;

    fn refused() -> Error {
        Error::Broker {
            code: ErrorCode::NOT_ENOUGH_REPLICAS,
            message: "1 of 2".into(),
            what: "cannot write to t-0".into(),
            broker: "b:9092".into(),
        }
    }

    #[test]
    fn words_say_what_happened_to_what_and_what_to_do() {
        let late = |last: Option<Error>| Error::TimedOut {
            what: "finding topic t".into(),
            after: Duration::from_secs(30),
            last: last.map(Box::new),
        };
        let damaged = |next_offset| Error::Damaged {
            partition: TopicPartition::new("t", 0),
            offset: 5,
            next_offset,
            reason: "it is cut off".into(),
        };
        for (error, expected) in [
            (refused(), "cannot write to t-0: 1 of 2 (NOT_ENOUGH_REPLICAS)"),
            (
                late(Some(refused())),
                "gave up after 30 s of retries (--timeout): cannot write to t-0: 1 of 2 (NOT_ENOUGH_REPLICAS)",
            ),
            (
                late(None),
                "finding topic t was not done within 30 s (--timeout), as the broker does not answer",
            ),
            (
                damaged(Some(7)),
                "t-0 cannot be read from offset 5 on: it is cut off; start behind that with --from 7 to continue",
            ),
            (
                damaged(None),
                "t-0 cannot be read from offset 5 on: it is cut off; start behind that with --from to continue",
            ),
            (
                Error::Unsupported { broker: "b:9092".into(), reason: "ListGroups".into() },
                "the broker at b:9092 does not serve ListGroups",
            ),
        ] {
            assert_eq!(text(&error.into()), expected);
        }
    }

    #[test]
    fn what_was_wanted_comes_first() {
        let error: anyhow::Result<()> = Err(refused()).context("no partition was added");
        let expected = "no partition was added: cannot write to t-0: 1 of 2 (NOT_ENOUGH_REPLICAS)";
        assert_eq!(text(&error.unwrap_err()), expected);
    }

    #[test]
    fn a_cause_is_reported_once() {
        let inner = || std::io::Error::other("port taken");
        let quoting = anyhow::Error::new(inner()).context("cannot listen: port taken; choose another");
        assert_eq!(text(&quoting), "cannot listen: port taken; choose another");
        let plain = anyhow::Error::new(inner()).context("cannot listen");
        assert_eq!(text(&plain), "cannot listen: port taken");
    }

    #[test]
    fn advice_takes_the_place_of_the_brokers_words() {
        let advice = |code| (code == ErrorCode::NOT_ENOUGH_REPLICAS).then_some("start the other broker");
        let advised = advised(refused(), advice).into();
        assert_eq!(text(&advised), "cannot write to t-0: start the other broker (NOT_ENOUGH_REPLICAS)");
    }
}
