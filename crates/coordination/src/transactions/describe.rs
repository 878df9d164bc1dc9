//! DescribeTransactions (65), v0, and ListTransactions (66), v0-2 (KIP-664, KIP-994, KIP-1152).

use std::sync::Arc;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::describe_transactions_response::{TopicData, TransactionState as Described};
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;
use mainstem_wire::messages::list_transactions_response::{
    ListTransactionsResponse, TransactionState as Listed,
};
use regex::Regex;

use super::image::Partitions;
use super::state::State;
use super::transaction::{Transaction, Transactions};
use crate::groups::compile_pattern;

/// A transactional id as it is now; while markers are written, with the partitions that have none yet.
pub(crate) fn describe(transactions: &Transactions, id: &str) -> Described<'static> {
    let transaction = transactions.get(id).filter(|transaction| transaction.stored);
    let Some(Transaction { image, .. }) = transaction else {
        return refused(id, ErrorCode::TRANSACTIONAL_ID_NOT_FOUND);
    };
    Described {
        transactional_id: id.to_owned().into(),
        transaction_state: image.state.name().into(),
        transaction_timeout_ms: image.timeout_ms,
        transaction_start_time_ms: image.started_ms,
        producer_id: image.producer_id.get(),
        producer_epoch: image.producer_epoch.get(),
        topics: topics(&image.partitions),
        ..Default::default()
    }
}

fn topics(partitions: &Partitions) -> Vec<TopicData<'static>> {
    let topics = partitions.iter().map(|(topic, indexes)| TopicData {
        topic: topic.to_string().into(),
        partitions: indexes.iter().copied().collect(),
        ..Default::default()
    });
    topics.collect()
}

/// The answer with an error for a transactional id.
pub(crate) fn refused(id: &str, error: ErrorCode) -> Described<'static> {
    Described { transactional_id: id.to_owned().into(), error_code: error.0, ..Default::default() }
}

/// The answer with an error for the whole list.
pub(crate) fn no_list(error: ErrorCode) -> ListTransactionsResponse<'static> {
    ListTransactionsResponse { error_code: error.0, ..Default::default() }
}

/// The filters of a list of transactions.
pub(crate) struct Filter<'a> {
    request: &'a ListTransactionsRequest<'a>,
    states: Vec<State>,
    pattern: Option<Regex>,
    wall_ms: i64,
}

impl<'a> Filter<'a> {
    /// Parses the filters of a request.
    ///
    /// # Errors
    /// INVALID_REGULAR_EXPRESSION. RE2's syntax is understood, as for the topics of consumer groups.
    pub(crate) fn new(request: &'a ListTransactionsRequest<'a>, wall_ms: i64) -> Result<Self, ErrorCode> {
        let pattern = request.transactional_id_pattern.as_deref().filter(|pattern| !pattern.is_empty());
        let compiled = pattern.map(compile_pattern).transpose();
        Ok(Self {
            request,
            states: request.state_filters.iter().filter_map(|name| State::from_name(name)).collect(),
            pattern: compiled.map_err(|_| ErrorCode::INVALID_REGULAR_EXPRESSION)?,
            wall_ms,
        })
    }

    /// The names of unknown states.
    pub(crate) fn unknown_states(&self) -> impl Iterator<Item = String> {
        let names = self.request.state_filters.iter().filter(|name| State::from_name(name).is_none());
        names.map(|name| name.to_string())
    }

    /// Adds the transactions of a partition that pass the filters to a list.
    pub(crate) fn list(&self, transactions: &Transactions, into: &mut Vec<Listed<'static>>) {
        into.extend(transactions.values().filter(|transaction| self.wants(transaction)).map(listed));
    }

    fn wants(&self, transaction: &Transaction) -> bool {
        let (request, image) = (self.request, &transaction.image);
        let producers = &request.producer_id_filters;
        let duration_ms = self.wall_ms.saturating_sub(image.started_ms);
        transaction.stored
            && (producers.is_empty() || producers.contains(&image.producer_id.get()))
            && (request.state_filters.is_empty() || self.states.contains(&image.state))
            && (request.duration_filter < 0 || duration_ms > request.duration_filter)
            && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(&transaction.id))
    }
}

fn listed(transaction: &Transaction) -> Listed<'static> {
    let id: &Arc<str> = &transaction.id;
    Listed {
        transactional_id: id.to_string().into(),
        producer_id: transaction.image.producer_id.get(),
        transaction_state: transaction.image.state.name().into(),
        ..Default::default()
    }
}
