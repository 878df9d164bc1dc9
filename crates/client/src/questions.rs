//! Questions about topics: one at a time, and not too often.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use mainstem_lines::OneLine;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::cluster::{Cluster, Refused};
use crate::error::Error;

/// Topics that the cluster refuses, or the error if it could not be asked.
pub(crate) type Answer = Result<Vec<Refused>, Error>;

/// Asks for newer metadata, for a task that also works with old ones.
pub(crate) struct Questions {
    cluster: Cluster,
    /// The topics of the question under way; none if there is none.
    asked: BTreeSet<Arc<str>>,
    retry_at: Instant,
    backoff: Backoff,
}

impl Questions {
    pub(crate) fn new(cluster: &Cluster) -> Questions {
        let config = cluster.config();
        let backoff = Backoff::new(config.retry_backoff, config.retry_backoff_max);
        Questions { cluster: cluster.clone(), asked: BTreeSet::new(), retry_at: Instant::now(), backoff }
    }

    /// The question for some topics, unless one is under way or was answered just now; then `next_look` becomes the
    /// time to try again. The answer goes to [`Questions::answered`].
    pub(crate) fn ask(
        &mut self,
        topics: BTreeSet<Arc<str>>,
        next_look: &mut Instant,
    ) -> Option<impl Future<Output = Answer> + use<>> {
        if topics.is_empty() || !self.asked.is_empty() {
            return None;
        }
        let now = Instant::now();
        if self.retry_at > now {
            *next_look = self.retry_at.min(*next_look);
            return None;
        }
        if self.retry_at + self.cluster.config().retry_backoff_max < now {
            // There was no question for a while: this one has another cause.
            self.backoff.reset();
        }
        self.asked = topics.clone();
        let cluster = self.cluster.clone();
        Some(async move {
            let names: Vec<&str> = topics.iter().map(|name| &**name).collect();
            let found = cluster.refresh(&names, false).await?;
            Ok(found.into_iter().filter_map(Result::err).collect())
        })
    }

    /// Takes an answer, and returns the refused topics. If another question would fail alike, these are all topics that were
    /// asked for.
    pub(crate) fn answered(&mut self, answer: Answer) -> Vec<Refused> {
        let asked = std::mem::take(&mut self.asked);
        // After a good answer too: a topic may have no leader yet, and then it is asked for again.
        self.retry_at = Instant::now() + self.backoff.next(rand::random());
        let refused = answer.unwrap_or_else(|error| {
            tracing::debug!("metadata: {error}");
            let of_topic = |topic| Refused { topic, error: error.clone() };
            asked.into_iter().filter(|_| error.would_repeat()).map(of_topic).collect()
        });
        for Refused { topic, error } in &refused {
            tracing::debug!("metadata of {}: {error}", OneLine(topic));
        }
        refused
    }
}
