//! Watch over brokers that do not answer. Reads, writes and commits retry silently by themselves; this makes an outage visible within
//! seconds, in the log and by `/ready`.

use std::sync::Arc;
use std::time::Duration;

use mainstem_client::{Admin, ClientConfig, Error};
use mainstem_lines::Sentence;
use tokio::time::Instant;

use crate::status::{Away, Status};

/// Interval between questions to the brokers.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Timeout of one attempt to connect, and of one request.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Time without an answer after which it is logged: longer than one of several brokers that hangs takes to time out.
const SAID_AFTER: Duration = Duration::from_secs(5);
/// Interval after which it is logged again.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Asks the brokers of an application whether they answer, until this is dropped. After `unready_after` without an answer the application
/// is not ready.
pub(crate) async fn look_after(client: ClientConfig, unready_after: Duration, status: Arc<Status>) {
    let named = Sentence(&client.bootstrap.join(", ")).to_string();
    let admin = Admin::new(asking(client));
    let (mut answered, mut said): (Instant, Option<Instant>) = (Instant::now(), None);
    loop {
        match admin.nodes().await {
            Err(error) if error.is_retriable() => {
                let away = answered.elapsed();
                let reason = words(&error);
                status.brokers_away(Some(Away::new(away, unready_after, &named, &reason)));
                if away >= SAID_AFTER && said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
                    said = Some(Instant::now());
                    tracing::warn!(
                        "no broker has answered at {named} for {} s: {reason}; messages wait, positions are not committed, and it is \
                         tried again until one answers",
                        away.as_secs()
                    );
                }
            }
            // A broker that refuses has answered. If it refuses for good, the driver ends.
            _ => {
                status.brokers_away(None);
                if said.take().is_some() {
                    let away = answered.elapsed().as_secs();
                    tracing::info!("brokers answer again at {named}, after {away} s");
                }
                answered = Instant::now();
            }
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// The settings of a client that asks once, and does not wait for long.
fn asking(client: ClientConfig) -> ClientConfig {
    // All attempts of one question: each broker that is named has its turn.
    let question = ANSWER_WITHIN * (client.bootstrap.len() as u32 + 1);
    ClientConfig {
        connect_timeout: client.connect_timeout.min(ANSWER_WITHIN),
        request_timeout: client.request_timeout.min(ANSWER_WITHIN),
        operation_timeout: question,
        // Beyond the limit of the operation: the next question is the next attempt.
        retry_backoff: 2 * question,
        retry_backoff_max: 2 * question,
        ..client
    }
}

/// The reason of an attempt, without the limit that it had.
fn words(error: &Error) -> String {
    match error {
        Error::TimedOut { last: Some(last), .. } => words(last),
        other => other.to_string(),
    }
}
