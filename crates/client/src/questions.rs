//! Questions about topics: one at a time, and not too often.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use mainstem_lines::OneLine;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::cluster::{Cluster, Refused};
use crate::error::Error;

/// Topics that the cluster refuses, if it could be asked.
pub(crate) type Answer = Result<Vec<Refused>, Error>;

/// What a task that lives with out-of-date metadata needs to get newer ones.
pub(crate) struct Questions {
    cluster: Cluster,
    /// The topics that the question under way is about; none while none is.
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
            // It was quiet: this is about something new.
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

    /// Takes an answer; the topics that are refused, which are all that were asked for if the question itself would fail
    /// again.
    pub(crate) fn answered(&mut self, answer: Answer) -> Vec<Refused> {
        let asked = std::mem::take(&mut self.asked);
        // After a good answer too: it may say that there is no leader yet, and then it is asked for again.
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
