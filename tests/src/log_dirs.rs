//! Log directories as a client sees them: their contents, and moves between them.

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::alter_replica_log_dirs_request::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest,
};
use mainstem_wire::messages::describe_log_dirs_request::DescribeLogDirsRequest;

use std::path::{Path, PathBuf};

use crate::client::Client;
use crate::kafka::Failure;

/// A log directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDir {
    /// Its path.
    pub path: PathBuf,
    /// `KAFKA_STORAGE_ERROR` when it is offline.
    pub error: ErrorCode,
    /// Its partitions, and copies on their way into it.
    pub replicas: Vec<Replica>,
    /// Bytes of its file system: all, and those that are free.
    pub space: (i64, i64),
    /// It takes no new partitions.
    pub is_cordoned: bool,
}

/// A partition in a log directory, or a copy on its way into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// The topic's name.
    pub topic: String,
    /// The partition's number.
    pub partition: i32,
    /// Bytes of the partition.
    pub size: i64,
    /// Offsets by which it lags.
    pub lag: i64,
    /// True for a copy on its way into the directory.
    pub is_future: bool,
}

impl LogDir {
    /// Returns true if a partition is in it, not as a copy on its way.
    pub fn has(&self, topic: &str, partition: i32) -> bool {
        self.replicas.iter().any(|replica| replica.is(topic, partition) && !replica.is_future)
    }

    /// The copy of a partition on its way into it.
    pub fn future(&self, topic: &str, partition: i32) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.is(topic, partition) && replica.is_future)
    }
}

impl Replica {
    fn is(&self, topic: &str, partition: i32) -> bool {
        self.topic == topic && self.partition == partition
    }
}

impl Client {
    /// Describes all log directories (DescribeLogDirs).
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn log_dirs(&mut self) -> Result<Vec<LogDir>, Failure> {
        let response = self.try_call(&DescribeLogDirsRequest { topics: None, ..Default::default() }, 5)?;
        assert_eq!(response.error_code, 0);
        let dirs = response.results.iter().map(|dir| {
            let replicas = dir.topics.iter().flat_map(|topic| {
                topic.partitions.iter().map(|partition| Replica {
                    topic: topic.name.to_string(),
                    partition: partition.partition_index,
                    size: partition.partition_size,
                    lag: partition.offset_lag,
                    is_future: partition.is_future_key,
                })
            });
            LogDir {
                path: PathBuf::from(&*dir.log_dir),
                error: ErrorCode::from(dir.error_code),
                replicas: replicas.collect(),
                space: (dir.total_bytes, dir.usable_bytes),
                is_cordoned: dir.is_cordoned,
            }
        });
        Ok(dirs.collect())
    }

    /// Asks for a partition to be moved into a log directory.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn move_partition(&mut self, topic: &str, partition: i32, to: &Path) -> Result<(), Failure> {
        let topic =
            AlterReplicaLogDirTopic { name: topic.into(), partitions: vec![partition], ..Default::default() };
        let path = to.display().to_string().into();
        let dirs = vec![AlterReplicaLogDir { path, topics: vec![topic], ..Default::default() }];
        let response = self.try_call(&AlterReplicaLogDirsRequest { dirs, ..Default::default() }, 2)?;
        match response.results[0].partitions[0].error_code {
            0 => Ok(()),
            code => Err(Failure::Refused(ErrorCode::from(code))),
        }
    }
}
