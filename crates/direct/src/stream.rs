//! A stream: a journal that is served, the pipelines of its events, and its consumers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use mainstem_lines::{OneLine, Sentence};
use mainstem_queue::{Start, file_of_name};
use parking_lot::Mutex;
use tonic::Status;

use crate::chunk::Transform;
use crate::error::{DirectError, Result};
use crate::journal::Journal;
use crate::past::Past;
use crate::pipeline_cache::PipelineCache;
use crate::proto::{self, manage_request::Action, reset::To};
use crate::slices::SliceRange;
use crate::subscription::Subscription;

/// The most consumers of a stream.
const CONSUMERS_MAX: usize = 1_000;
const NAME_CHARS_MAX: usize = 100;
/// The most bytes of a name as the name of a file.
const NAME_BYTES_MAX: usize = 200;

pub(crate) struct Stream {
    journal: Journal,
    name: String,
    subscriptions: Mutex<BTreeMap<String, Arc<Subscription>>>,
    pipelines: Arc<PipelineCache>,
    past: Arc<Past>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Stream {
    /// Opens the stored consumers of a journal. The streams of a publisher share the pace of their reads of older
    /// events.
    pub(crate) fn new(
        journal: Journal,
        name: String,
        transform: Option<Arc<Transform>>,
        past: Arc<Past>,
    ) -> Result<Stream> {
        let mut subscriptions = BTreeMap::new();
        let view = journal.view();
        for consumer in Subscription::names(journal.directory())? {
            let opened = Subscription::open(journal.queue(), &view, &consumer, 0)?;
            subscriptions.insert(consumer, Arc::new(opened));
        }
        let (subscriptions, pipelines) = (Mutex::new(subscriptions), Arc::new(PipelineCache::new(transform)));
        Ok(Stream { journal, name, subscriptions, pipelines, past })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Returns the consumer of a name, made if need be.
    pub(crate) fn subscription(&self, name: &str, start: proto::Start) -> Result<Arc<Subscription>, Status> {
        check_name("consumer", name)?;
        let mut subscriptions = self.subscriptions.lock();
        if let Some(known) = subscriptions.get(name) {
            return Ok(known.clone());
        }
        if subscriptions.len() >= CONSUMERS_MAX {
            let name = OneLine(&self.name);
            let reason =
                format!("stream {name} has {CONSUMERS_MAX} consumers, which is the most; forget one");
            return Err(Status::resource_exhausted(reason));
        }
        let view = self.journal.view();
        let start = match start {
            proto::Start::Earliest => view.start,
            proto::Start::Latest => view.end,
        };
        let opened = Subscription::open(self.journal.queue(), &view, name, start);
        let opened = Arc::new(opened.map_err(internal)?);
        subscriptions.insert(name.to_owned(), opened.clone());
        Ok(opened)
    }

    pub(crate) fn subscriptions(&self) -> Vec<Arc<Subscription>> {
        self.subscriptions.lock().values().cloned().collect()
    }

    pub(crate) fn pipelines(&self) -> &Arc<PipelineCache> {
        &self.pipelines
    }

    pub(crate) fn past(&self) -> &Arc<Past> {
        &self.past
    }

    pub(crate) fn describe(&self) -> proto::StreamInfo {
        let view = self.journal.view();
        let counters = self.journal.counters();
        proto::StreamInfo {
            name: self.name.clone(),
            journal_id: view.id.0.to_vec().into(),
            epoch: view.epochs.last().map_or(0, |epoch| epoch.epoch),
            start: view.start,
            end: view.end,
            consumers: self.subscriptions().iter().map(|one| self.describe_consumer(one, view.end)).collect(),
            events_read: counters.read.load(Ordering::Relaxed),
            events_evaluated: counters.evaluated.load(Ordering::Relaxed),
        }
    }

    fn describe_consumer(&self, subscription: &Subscription, end: i64) -> proto::ConsumerInfo {
        let snapshot = subscription.snapshot();
        let lag = end.saturating_sub(snapshot.offset).max(0);
        let instance = |(name, slices): (String, Option<SliceRange>)| proto::InstanceInfo {
            name,
            slices: slices.map(SliceRange::to_proto),
        };
        proto::ConsumerInfo {
            name: subscription.name().to_owned(),
            offset: snapshot.offset,
            lag,
            lag_ms: if lag > 0 { self.age_ms(snapshot.offset) } else { 0 },
            paused: snapshot.settings.is_paused,
            filter: snapshot.settings.filter,
            filtered_from: snapshot.settings.filtered_from,
            generation: snapshot.generation,
            instances: snapshot.instances.into_iter().map(instance).collect(),
        }
    }

    /// Returns the age of the event at an offset, in ms; 0 if it cannot be read.
    fn age_ms(&self, offset: i64) -> i64 {
        let record = |offset| {
            let mut reader = self.journal.queue().reader(Start::Offset(offset)).ok()?;
            reader.read().ok().flatten().map(|record| record.timestamp)
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        record(offset).map_or(0, |timestamp| now.saturating_sub(timestamp).max(0))
    }

    /// Changes a consumer.
    pub(crate) fn manage(
        &self,
        consumer: &str,
        action: &Action,
        peer: Option<IpAddr>,
    ) -> Result<proto::ManageReply, Status> {
        let known = self.subscriptions.lock().get(consumer).cloned();
        let subscription = known.ok_or_else(|| {
            let known: Vec<String> = self.subscriptions().iter().map(|one| one.name().to_owned()).collect();
            // A status travels in a header, which cannot hold a thousand names.
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Status::not_found(format!(
                "stream {} has no consumer {:?}; it has {}",
                OneLine(&self.name),
                OneLine(consumer),
                OneLine(&known)
            ))
        })?;
        match action {
            Action::Pause(_) => subscription.set(|settings| settings.is_paused = true).map_err(internal)?,
            Action::Resume(_) => subscription.set(|settings| settings.is_paused = false).map_err(internal)?,
            Action::Reset(reset) => {
                let offset = self.offset_of(reset)?;
                subscription.reset(offset).map_err(internal)?;
            }
            Action::Filter(filter) => {
                // With too many patterns the filter would be stored, and no instance could use it.
                let _pipeline =
                    self.pipelines.pipeline([filter], None, peer).map_err(|error| error.to_status())?;
                subscription.keep_filter(filter)?;
            }
            Action::Forget(_) => {
                self.forget(&subscription)?;
                return Ok(proto::ManageReply { consumer: None });
            }
        }
        let end = self.journal.end();
        Ok(proto::ManageReply { consumer: Some(self.describe_consumer(&subscription, end)) })
    }

    /// Forgets a consumer. If another call has forgotten it before and a new one has its name, the new one stays.
    fn forget(&self, subscription: &Arc<Subscription>) -> Result<(), Status> {
        let name = subscription.name();
        // The lock keeps a new instance from coming meanwhile.
        let mut subscriptions = self.subscriptions.lock();
        if !subscription.forget().map_err(internal)? {
            let name = OneLine(name);
            let reason = format!("consumer {name} has instances that are connected; stop them first");
            return Err(Status::failed_precondition(reason));
        }
        if subscriptions.get(name).is_some_and(|known| Arc::ptr_eq(known, subscription)) {
            subscriptions.remove(name);
        }
        Ok(())
    }

    fn offset_of(&self, reset: &proto::Reset) -> Result<i64, Status> {
        let view = self.journal.view();
        match reset.to {
            Some(To::Earliest(_)) => Ok(view.start),
            Some(To::Latest(_)) => Ok(view.end),
            Some(To::Offset(offset)) => {
                view.check_offset(offset).map_err(|refused| refused.to_status())?;
                Ok(offset)
            }
            Some(To::TimeMs(time_ms)) => {
                let found = self
                    .journal
                    .queue()
                    .reader(Start::Time(time_ms))
                    .map_err(|error| internal(error.into()))?;
                Ok(found.position().min(view.end))
            }
            None => Err(Status::invalid_argument(
                "the reset does not say where to, or in words of a later version",
            )),
        }
    }
}

pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Status> {
    let chars = name.chars().count();
    if chars == 0 || chars > NAME_CHARS_MAX || file_of_name(name).len() > NAME_BYTES_MAX {
        let reason = format!(
            "the {what}'s name has {chars} characters; it has to have 1 to {NAME_CHARS_MAX} of ASCII, fewer of others"
        );
        return Err(Status::invalid_argument(reason));
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
pub(crate) fn internal(error: DirectError) -> Status {
    let error = error.to_string();
    tracing::error!("{}", Sentence(&error));
    Status::internal(OneLine(&error).to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Descriptors of this process for files in a directory.
    fn descriptors_in(directory: &Path) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        all.filter(|one| {
            std::fs::read_link(one.as_ref().unwrap().path()).is_ok_and(|to| to.starts_with(directory))
        })
        .count()
    }

    #[tokio::test]
    async fn consumers_that_are_not_written_take_no_descriptors_and_others_a_bounded_number() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path().join("cart")).unwrap();
        for n in 0..10 {
            journal.append("key", &format!("{n}")).await.unwrap();
        }
        let stream = Stream::new(journal.clone(), "cart".to_owned(), None, Arc::default()).unwrap();
        let before = descriptors_in(dir.path());
        for n in 0..300 {
            stream.subscription(&format!("consumer {n}"), proto::Start::Earliest).unwrap();
        }
        assert_eq!(descriptors_in(dir.path()), before);
        for subscription in stream.subscriptions() {
            // Unknown connections change nothing, and the consumer is still written.
            subscription.leave(1, false);
        }
        assert!(descriptors_in(dir.path()) <= before + crate::slot_file::OPEN_MAX);
        stream.subscriptions().iter().for_each(|one| one.sync());
        assert_eq!(descriptors_in(dir.path()), before);
        drop(stream);
        let again = Stream::new(journal.clone(), "cart".to_owned(), None, Arc::default()).unwrap();
        assert_eq!((again.subscriptions().len(), descriptors_in(dir.path())), (300, before));
        // No other process reads under their names, or moves them, while the publisher lives.
        let tailers = journal.queue().tailers().unwrap();
        assert!(tailers.len() == 300 && tailers.iter().all(|tailer| tailer.is_live));
        assert!(
            journal.queue().tailer("consumer 7").is_err()
                && journal.queue().move_tailer("consumer 7", 1).is_err()
        );
        assert!(journal.queue().tailer("of another").is_ok());
    }

    #[tokio::test]
    async fn readers_of_the_past_keep_a_bounded_number_of_segments_open() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path().join("cart")).unwrap();
        journal.append("key", "value").await.unwrap();
        let before = descriptors_in(dir.path());
        let past = Arc::<Past>::default();
        let mut readers = Vec::new();
        for _ in 0..crate::past::OPEN_MAX + 50 {
            let mut reader = crate::journal::OlderReader::new(journal.clone(), past.clone());
            reader.read(0).await.unwrap();
            readers.push(reader);
        }
        assert_eq!(descriptors_in(dir.path()), before + crate::past::OPEN_MAX);
        // A reader beyond the bound reads all the same, and keeps its segment open once another one has closed its own.
        let mut last = readers.pop().unwrap();
        last.read(0).await.unwrap();
        readers.clear();
        assert_eq!(descriptors_in(dir.path()), before);
        last.read(0).await.unwrap();
        assert_eq!(descriptors_in(dir.path()), before + 1);
    }

    #[tokio::test]
    async fn one_that_is_forgotten_twice_takes_none_of_its_name_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path().join("cart")).unwrap();
        let stream = Stream::new(journal, "cart".to_owned(), None, Arc::default()).unwrap();
        let consumer = || stream.subscription("analytics", proto::Start::Earliest).unwrap();
        let known = consumer();
        stream.forget(&known).unwrap();
        // A new consumer of the name comes between two calls that have found the earlier one.
        let again = consumer();
        assert!(!Arc::ptr_eq(&known, &again));
        stream.forget(&known).unwrap();
        assert!(Arc::ptr_eq(&again, &consumer()), "another one has the same file");
        stream.forget(&again).unwrap();
        assert!(stream.subscriptions().is_empty());
    }
}
