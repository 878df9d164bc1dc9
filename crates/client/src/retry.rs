//! Retries of whole operations.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::config::ClientConfig;
use crate::error::Error;

/// The longest time limit, in place of those that no clock reaches.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The end of a time limit that begins now.
pub(crate) fn deadline(limit: Duration) -> Instant {
    Instant::now() + limit.min(NEVER)
}

/// Tries until it succeeds, fails for good, or `limit` is over. `what` names the operation in the error of a time-out.
pub(crate) async fn retrying<T, F: Future<Output = Result<T, Error>>>(
    config: &ClientConfig,
    limit: Duration,
    what: &str,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Error> {
    let deadline = deadline(limit);
    let mut backoff = Backoff::new(config.retry_backoff, config.retry_backoff_max);
    loop {
        let late = |last| Error::TimedOut { what: what.to_owned(), after: limit, last };
        let failed = match tokio::time::timeout_at(deadline, attempt()).await {
            Ok(Err(error)) if error.is_retriable() => error,
            Ok(done) => return done,
            Err(_) => return Err(late(None)),
        };
        let wait = backoff.next(rand::random());
        if Instant::now() + wait >= deadline {
            return Err(late(Some(Box::new(failed))));
        }
        tracing::debug!("{what}: {failed}; again in {wait:?}");
        tokio::time::sleep(wait).await;
    }
}
