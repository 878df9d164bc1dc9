//! CreatePartitions (37), v0-3.

use std::borrow::Cow;

use mainstem_wire::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic,
};
use mainstem_wire::messages::create_partitions_response::{
    CreatePartitionsResponse, CreatePartitionsTopicResult,
};
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{ErrorCode, Uuid};

use super::create_topics::{DirectorySizes, repeated_names};
use super::error::ApiError;
use super::image::PartitionImage;
use super::names;
use super::node_view::NodeView;
use super::state_machine::{Decision, MetadataStateMachine, PARTITIONS_PER_REQUEST_MAX, Permit};

/// Partitions that a topic can be given.
struct Growth {
    topic_id: Uuid,
    first: i32,
    partitions: Vec<Vec<i32>>,
}

impl MetadataStateMachine {
    /// Adds partitions to topics, each by itself.
    pub fn create_partitions(
        &mut self,
        view: &NodeView,
        request: &CreatePartitionsRequest<'_>,
        permit: Permit<'_>,
    ) -> Decision<CreatePartitionsResponse<'static>> {
        let repeated = repeated_names(request.topics.iter().map(|topic| topic.name.as_ref()));
        let mut left = PARTITIONS_PER_REQUEST_MAX;
        let mut growths: Vec<Growth> = Vec::new();
        let mut results: Vec<CreatePartitionsTopicResult<'static>> = Vec::new();
        for topic in &request.topics {
            let is_repeated = repeated[topic.name.as_ref()];
            if is_repeated && results.iter().any(|result| result.name == topic.name) {
                continue; // one answer per name
            }
            let grown = if is_repeated {
                Err(ApiError::new(ErrorCode::INVALID_REQUEST, "Duplicate topic name."))
            } else {
                self.growth(topic, left)
            };
            let grown = grown.and_then(|growth| {
                let taken = PARTITIONS_PER_REQUEST_MAX - left;
                let more = taken + growth.partitions.len();
                view.check_partition_limit(self.ahead(), more).map(|()| growth)
            });
            let grown = grown.and_then(|growth| match permit(growth.partitions.len()) {
                true => Ok(growth),
                false => Err(ApiError::quota_exceeded()),
            });
            let error = grown.map(|growth| {
                left -= growth.partitions.len();
                growths.push(growth);
            });
            results.push(result(&topic.name, error.err()));
        }
        let response = CreatePartitionsResponse { results, ..CreatePartitionsResponse::default() };
        if request.validate_only {
            return self.decide(vec![], response);
        }
        let mut directories = self.directory_sizes();
        let records = growths.iter().flat_map(|growth| self.grown(growth, &mut directories)).collect();
        self.decide(records, response)
    }

    fn growth(&self, topic: &CreatePartitionsTopic<'_>, left: usize) -> Result<Growth, ApiError> {
        let image = self.ahead().topic(&topic.name).ok_or_else(|| {
            let message = "This server does not host this topic-partition.";
            ApiError::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, message)
        })?;
        self.check_not_attached(image, "it has one partition.")?;
        let invalid = |message: String| ApiError::new(ErrorCode::INVALID_PARTITIONS, message);
        if names::is_internal(&image.name) {
            // The partition of a key follows from the number of partitions: with another number its records would not be found.
            return Err(invalid(format!("The number of partitions of {} cannot be changed.", image.name)));
        }
        let current = i32::try_from(image.partitions.len()).expect("partition numbers are 32 bits");
        if topic.count == current {
            return Err(invalid(format!("Topic already has {current} partition(s).")));
        }
        if topic.count < current {
            return Err(invalid(format!(
                "The topic {} currently has {current} partition(s); {} would not be an increase.",
                topic.name, topic.count
            )));
        }
        let added = usize::try_from(topic.count - current).expect("the count grows");
        if added > left {
            let message = "Excessively large number of partitions per request.";
            return Err(ApiError::new(ErrorCode::POLICY_VIOLATION, message));
        }
        // Not those that a move takes away.
        let replicas = image.partitions.first().map(PartitionImage::target).unwrap_or_default();
        let factor = replicas.len().max(1);
        let partitions = match &topic.assignments {
            None => {
                let factor = i16::try_from(factor).expect("a factor is 16 bits");
                self.spread(current..topic.count, factor, replicas.first().copied())?
            }
            Some(assignments) => self.assigned_growth(current, assignments, added, factor)?,
        };
        Ok(Growth { topic_id: image.id, first: current, partitions })
    }

    /// The replicas that the client chose.
    fn assigned_growth(
        &self,
        first: i32,
        assignments: &[CreatePartitionsAssignment<'_>],
        added: usize,
        factor: usize,
    ) -> Result<Vec<Vec<i32>>, ApiError> {
        if assignments.len() != added {
            let message = format!(
                "Attempted to add {added} additional partition(s), but only {} assignment(s) were specified.",
                assignments.len()
            );
            return Err(ApiError::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message));
        }
        for (number, assignment) in (first..).zip(assignments) {
            self.check_assignment(&assignment.broker_ids, Some(factor))?;
            self.check_one_is_up(number, &assignment.broker_ids)?;
        }
        Ok(assignments.iter().map(|assignment| assignment.broker_ids.clone()).collect())
    }

    fn grown(&self, growth: &Growth, directories: &mut DirectorySizes) -> Vec<MetadataRecord<'static>> {
        let numbered = (growth.first..).zip(&growth.partitions);
        let record = |(number, replicas): (i32, &Vec<i32>)| {
            self.partition_record(growth.topic_id, number, replicas, directories)
        };
        numbered.map(record).collect()
    }
}

fn result(name: &str, error: Option<ApiError>) -> CreatePartitionsTopicResult<'static> {
    CreatePartitionsTopicResult {
        name: Cow::Owned(name.to_string()),
        error_code: error.as_ref().map_or(ErrorCode::NONE, |error| error.code).0,
        error_message: error.map(|error| Cow::Owned(error.message)),
        ..CreatePartitionsTopicResult::default()
    }
}
