//! Opening the logs of topics, at start and when they are created or grow.

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_coordination::metadata::{PartitionImage, TopicImage};
use mainstem_log::dir::{LastStop, LogDir};
use mainstem_log::{Log, PartitionIdentity};
use mainstem_wire::Uuid;
use parking_lot::Mutex;

use crate::broker::Broker;
use crate::controller::{ControllerError, settings_of};
use crate::partition::Partition;
use crate::placing::PartitionKey;
use crate::settings::TopicSettings;
use crate::topics::Topic;

/// Threads that open logs at start.
const OPENERS: usize = 2;

/// What becomes of a partition that cannot be opened.
#[derive(Clone, Copy)]
pub(crate) enum Unopened<'a> {
    /// It is offline until the broker is started again: somebody has to mend it. So are these from the outset.
    Offline(&'a HashSet<PartitionKey>),
    /// Its topic is not served, or stays as it was: it is new, and what it needs may be there later.
    Refused,
}

impl Unopened<'_> {
    /// Whether the topic is refused. A directory that failed when something was assigned to it will not work later: what
    /// is in it is as offline as the rest.
    fn refuses(self, error: &ControllerError) -> bool {
        matches!(self, Unopened::Refused) && !matches!(error, ControllerError::DirectoryOffline { .. })
    }
}

/// What opening logs has shown.
#[derive(Default)]
pub(crate) struct Opened {
    /// Topics that are not served, or not all of their partitions, and why.
    pub(crate) refused: Vec<(Uuid, ControllerError)>,
    /// Partitions in directories left in order whose logs are not what they were, or new.
    pub(crate) shorter: Vec<(Uuid, i32)>,
}

/// Opens the logs of topics' partitions that are not open yet, and serves the topics.
pub(crate) fn open_all(broker: &Broker, topics: &[TopicImage], unopened: Unopened<'_>) -> Opened {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let opened = Mutex::new(Opened::default());
    let work = || {
        while let Some(topic) = topics.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            let mut shorter = Vec::new();
            let result = open_topic(broker, topic, unopened, &mut shorter);
            let mut opened = opened.lock();
            opened.shorter.extend(shorter.into_iter().map(|index| (topic.id, index)));
            match result {
                Ok(topic) => broker.topics.put(Arc::new(topic)),
                Err(error) => opened.refused.push((topic.id, error)),
            }
        }
    };
    std::thread::scope(|scope| {
        let helpers = OPENERS.min(topics.len()).saturating_sub(1);
        (0..helpers).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    opened.into_inner()
}

fn open_topic(
    broker: &Broker,
    image: &TopicImage,
    unopened: Unopened<'_>,
    shorter: &mut Vec<i32>,
) -> Result<Topic, ControllerError> {
    let settings = settings_of(broker, image);
    let (name, known) = match broker.topics.by_id(&image.id) {
        Some(topic) => (topic.name.clone(), topic.partitions.clone()),
        None => (Arc::from(image.name.as_str()), Vec::new()),
    };
    let mut partitions = known;
    for (index, partition) in image.partitions.iter().enumerate().skip(partitions.len()) {
        let identity =
            PartitionIdentity { topic: name.clone(), topic_id: image.id.0, partition: index as i32 };
        let opened = match unopened {
            // Why was told when it was looked for.
            Unopened::Offline(refused) if refused.contains(&(image.id, identity.partition)) => None,
            _ => match open_partition(broker, &identity, partition, &settings) {
                Ok((opened, is_shorter)) => {
                    shorter.extend(is_shorter.then_some(identity.partition));
                    Some(opened)
                }
                Err(error) if unopened.refuses(&error) => return Err(error),
                Err(error) => {
                    tracing::error!("{error}; until then it is offline, the others are served");
                    None
                }
            },
        };
        partitions.push(opened.unwrap_or_else(|| {
            Partition::offline(name.clone(), identity.partition, settings.clone(), partition.leader_epoch)
        }));
    }
    Ok(Topic { name, id: image.id, partitions })
}

/// Opens a partition's log; with it comes whether the log is another than was left in order, or new.
fn open_partition(
    broker: &Broker,
    identity: &PartitionIdentity,
    image: &PartitionImage,
    settings: &Arc<TopicSettings>,
) -> Result<(Arc<Partition>, bool), ControllerError> {
    let dir = dir_of(broker, image, identity)?;
    let opened = Log::open(dir, identity, settings.log.clone(), broker.clock.now().mono_ms);
    let (log, recovery) =
        opened.map_err(|source| ControllerError::Open { partition: identity.topic_partition(), source })?;
    let (topic, index) = (identity.topic.clone(), identity.partition);
    if recovery.bytes_cut > 0 {
        tracing::warn!(%topic, partition = index, bytes = recovery.bytes_cut, "a torn tail was cut off");
    }
    // The epochs of a directory that was not left in order were raised when the node registered.
    let is_shorter = matches!(dir.last_stop(), LastStop::New | LastStop::Clean)
        && (recovery.raise_leader_epoch || recovery.created);
    let partition = Partition::new(topic, index, dir.clone(), settings.clone(), log, image.leader_epoch);
    Ok((partition, is_shorter))
}

fn dir_of<'a>(
    broker: &'a Broker,
    partition: &PartitionImage,
    identity: &PartitionIdentity,
) -> Result<&'a Arc<LogDir>, ControllerError> {
    let own = partition.replicas.iter().position(|replica| *replica == broker.node.id);
    let directory = own.and_then(|at| partition.directories.get(at)).copied().unwrap_or_default();
    match broker.dirs.by_id(directory.0) {
        Some(dir) if dir.failure().is_none() => Ok(dir),
        Some(_) => Err(ControllerError::DirectoryOffline { partition: identity.topic_partition() }),
        None => Err(ControllerError::DirectoryMissing { partition: identity.topic_partition(), directory }),
    }
}
