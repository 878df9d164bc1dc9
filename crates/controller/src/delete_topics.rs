//! DeleteTopics (20), v1-6: by name, or since v6 by id (KIP-516).

use std::borrow::Cow;
use std::collections::HashMap;

use mainstem_wire::messages::delete_topics_request::DeleteTopicsRequest;
use mainstem_wire::messages::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use mainstem_wire::messages::remove_topic_record::RemoveTopicRecord;
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{ErrorCode, Uuid};

use super::error::ApiError;
use super::image::TopicImage;
use super::node_view::NodeView;
use super::state_machine::{Decision, MetadataStateMachine, Permit};

/// A topic as the client named it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Named<'a> {
    name: Option<&'a str>,
    id: Uuid,
}

impl MetadataStateMachine {
    /// Deletes topics, each by itself. The version of the request decides on the error if deletion is disabled.
    pub fn delete_topics(
        &mut self,
        view: &NodeView,
        request: &DeleteTopicsRequest<'_>,
        version: i16,
        permit: Permit<'_>,
    ) -> Decision<DeleteTopicsResponse<'static>> {
        let is_enabled = view.config(self.ahead()).topics.delete_enable;
        let wanted = wanted(request);
        let mut times: HashMap<Named<'_>, usize> = HashMap::new();
        for named in &wanted {
            *times.entry(*named).or_default() += 1;
        }
        let mut deleted: Vec<Uuid> = Vec::new();
        let mut responses = Vec::new();
        for named in &wanted {
            // A repeated topic is answered once.
            let Some(times) = times.remove(named) else { continue };
            let found = if is_enabled {
                self.to_delete(*named, times > 1, &deleted)
            } else {
                Err(deletion_disabled(version))
            };
            let found = found.and_then(|topic| match permit(topic.partitions.len()) {
                true => Ok(topic),
                false => Err(ApiError::quota_exceeded()),
            });
            responses.push(answer(*named, &found));
            deleted.extend(found.map(|topic| topic.id));
        }
        let records = deleted.into_iter().map(|topic_id| {
            MetadataRecord::RemoveTopicRecord(Box::new(RemoveTopicRecord {
                topic_id,
                ..RemoveTopicRecord::default()
            }))
        });
        let records = records.collect();
        self.decide(records, DeleteTopicsResponse { responses, ..DeleteTopicsResponse::default() })
    }

    fn to_delete(&self, named: Named<'_>, repeated: bool, deleted: &[Uuid]) -> Result<&TopicImage, ApiError> {
        let invalid = |message: &str| Err(ApiError::new(ErrorCode::INVALID_REQUEST, message));
        let topic = match named.name {
            Some(_) if !named.id.is_zero() => {
                return invalid("You may not specify both topic name and topic id.");
            }
            Some(_) if repeated => return invalid("Duplicate topic name."),
            Some(name) => self.ahead().topic(name).ok_or_else(|| {
                let message = "This server does not host this topic-partition.";
                ApiError::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, message)
            })?,
            None if named.id.is_zero() => return invalid("Neither topic name nor id were specified."),
            None if repeated => return invalid("Duplicate topic id."),
            None => self.ahead().topic_by_id(named.id).ok_or_else(|| {
                ApiError::new(ErrorCode::UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            })?,
        };
        if deleted.contains(&topic.id) {
            return invalid("The provided topic name maps to an ID that was already supplied.");
        }
        self.check_not_attached(
            topic,
            "to stop serving it, start the broker without it; its directory stays a queue.",
        )?;
        Ok(topic)
    }
}

/// Returns the topics of a request. Before v6 it has names alone; since then an absent name is null.
fn wanted<'a>(request: &'a DeleteTopicsRequest<'_>) -> Vec<Named<'a>> {
    let names = request.topic_names.iter().map(|name| Named { name: Some(name.as_ref()), id: Uuid::ZERO });
    let states = request.topics.iter().map(|state| Named { name: state.name.as_deref(), id: state.topic_id });
    names.chain(states).collect()
}

/// The error if deletion is disabled. TOPIC_DELETION_DISABLED came with v3.
fn deletion_disabled(version: i16) -> ApiError {
    let code = if version < 3 { ErrorCode::INVALID_REQUEST } else { ErrorCode::TOPIC_DELETION_DISABLED };
    ApiError::new(code, "Topic deletion is disabled.")
}

fn answer(named: Named<'_>, found: &Result<&TopicImage, ApiError>) -> DeletableTopicResult<'static> {
    match found {
        Ok(topic) => DeletableTopicResult {
            name: Some(Cow::Owned(topic.name.clone())),
            topic_id: topic.id,
            ..DeletableTopicResult::default()
        },
        Err(error) => DeletableTopicResult {
            name: named.name.map(|name| Cow::Owned(name.to_string())),
            topic_id: named.id,
            error_code: error.code.0,
            error_message: Some(Cow::Owned(error.message.clone())),
            ..DeletableTopicResult::default()
        },
    }
}
