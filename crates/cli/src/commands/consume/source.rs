//! The source of records: chosen partitions, or those that a group assigns to its member.

use anyhow::Result;
use mainstem_client::{Consumer, Error, FetchedBatch, GroupConsumer, Position, Positions, TopicPartition};

/// A consumer with or without a group.
pub(crate) enum Source {
    Partitions(Consumer),
    Group(Box<GroupConsumer>),
}

impl Source {
    pub(crate) async fn next(&mut self) -> Result<FetchedBatch, Error> {
        match self {
            Source::Partitions(consumer) => consumer.next().await,
            Source::Group(member) => member.next().await,
        }
    }

    pub(crate) fn positions(&self) -> Positions {
        match self {
            Source::Partitions(consumer) => consumer.positions(),
            Source::Group(member) => member.positions(),
        }
    }

    pub(crate) fn seek(&mut self, partition: &TopicPartition, offset: i64) -> Result<(), Error> {
        match self {
            Source::Partitions(consumer) => consumer.seek(partition, Position::Offset(offset)),
            Source::Group(member) => member.seek(partition, Position::Offset(offset)),
        }
    }

    pub(crate) fn pause(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        match self {
            Source::Partitions(consumer) => consumer.pause(partition),
            Source::Group(member) => member.pause(partition),
        }
    }

    /// Closes the source. A member commits its positions, unless it failed.
    pub(crate) async fn close(self, has_failed: bool) -> Result<()> {
        match self {
            Source::Partitions(consumer) => consumer.close().await,
            Source::Group(member) if has_failed => member.leave().await,
            Source::Group(member) => member.close().await?,
        }
        Ok(())
    }
}
