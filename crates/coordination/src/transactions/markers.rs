//! The markers that end a transaction in its partitions.
//!
//! A partition leaves the image when it has its marker. When none is left, the record of the end is written. Both are tried until they
//! succeed or the partition of `__transaction_state` is unloaded.

use mainstem_wire::ErrorCode;

use super::api::{Effect, MarkerOutcome, MarkerTicket, MarkerTopic, Markers};
use super::image::Partitions;
use super::io::Io;
use super::state::State;
use super::transaction::{Sending, Transaction, Transactions};
use super::waiter::Waiter;

/// Sends the markers of a decided transaction to all its partitions.
pub(crate) fn send(transaction: &mut Transaction, io: &mut Io<'_>) {
    if transaction.image.partitions.is_empty() {
        return complete(transaction, io);
    }
    let number = io.number();
    io.outstanding.markers.insert(number, transaction.id.clone());
    let markers = markers(transaction, io, number, &transaction.image.partitions);
    io.effects.push_back(Effect::WriteMarkers(markers));
    transaction.sending = Some(Sending { number, again: Partitions::new() });
}

/// The next step for a marker.
enum Verdict {
    Done,
    Again,
    /// The partition has seen a newer coordinator or producer: another coordinator ends the transaction.
    Fenced,
}

fn verdict(outcome: MarkerOutcome) -> Verdict {
    match outcome {
        MarkerOutcome::Written | MarkerOutcome::Gone => Verdict::Done,
        MarkerOutcome::Failed(ErrorCode::TRANSACTION_COORDINATOR_FENCED) => Verdict::Fenced,
        // The producer has begun a newer transaction there: this one has ended before.
        MarkerOutcome::Failed(ErrorCode::INVALID_PRODUCER_EPOCH) => Verdict::Done,
        // A partition that cannot hold markers cannot hold transactions either.
        MarkerOutcome::Failed(ErrorCode::UNSUPPORTED_FOR_MESSAGE_FORMAT | ErrorCode::UNSUPPORTED_VERSION) => {
            Verdict::Done
        }
        MarkerOutcome::Failed(_) => Verdict::Again,
    }
}

/// Takes the outcome of one partition. It is ignored if the markers are not waited for any more.
pub(crate) fn marked(
    transactions: &mut Transactions,
    io: &mut Io<'_>,
    number: u64,
    (topic, partition): (&str, i32),
    outcome: MarkerOutcome,
) {
    let Some(id) = io.outstanding.markers.get(&number).cloned() else { return };
    let transaction = transactions.get_mut(&id).expect("its markers are being written");
    match verdict(outcome) {
        Verdict::Done => {
            take(&mut transaction.image.partitions, topic, partition);
            if transaction.image.partitions.is_empty() {
                stop(transaction, io, number);
                complete(transaction, io);
            }
        }
        Verdict::Again => again(transaction, io, topic, partition),
        Verdict::Fenced => stop(transaction, io, number),
    }
    io.recount(transaction);
}

/// Records that a partition's marker has to be sent again.
fn again(transaction: &mut Transaction, io: &mut Io<'_>, topic: &str, partition: i32) {
    let Some((name, indexes)) = transaction.image.partitions.get_key_value(topic) else { return };
    if let Some(sending) = transaction.sending.as_mut().filter(|_| indexes.contains(&partition)) {
        sending.again.entry(name.clone()).or_default().insert(partition);
        if transaction.retry_ms.is_none() {
            io.retry_later(transaction);
        }
    }
}

/// Sends markers, or writes the record of the end, again.
pub(crate) fn retry(transaction: &mut Transaction, io: &mut Io<'_>) {
    transaction.retry_ms = None;
    let Some(sending) = &mut transaction.sending else {
        return complete(transaction, io);
    };
    let (number, again) = (sending.number, std::mem::take(&mut sending.again));
    let markers = markers(transaction, io, number, &again);
    if !markers.topics.is_empty() {
        io.effects.push_back(Effect::WriteMarkers(markers));
    }
    io.recount(transaction);
}

/// Stops waiting for these markers.
fn stop(transaction: &mut Transaction, io: &mut Io<'_>, number: u64) {
    transaction.sending = None;
    io.outstanding.markers.remove(&number);
    io.cancel_retry(transaction);
}

/// Writes that the transaction has ended.
fn complete(transaction: &mut Transaction, io: &mut Io<'_>) {
    let target = transaction.image.completed(io.now.wall_ms);
    io.write(transaction, target, Waiter::None);
}

/// The markers of those among `partitions` that have none yet.
fn markers(transaction: &Transaction, io: &Io<'_>, number: u64, partitions: &Partitions) -> Markers {
    let image = &transaction.image;
    let missing = partitions.iter().filter_map(|(topic, indexes)| {
        let (name, missing) = image.partitions.get_key_value(topic)?;
        let partitions: Vec<i32> = indexes.intersection(missing).copied().collect();
        (!partitions.is_empty()).then(|| MarkerTopic { name: name.clone(), partitions })
    });
    Markers {
        ticket: MarkerTicket { partition: io.partition, number },
        transactional_id: transaction.id.clone(),
        producer_id: image.producer_id,
        producer_epoch: image.producer_epoch,
        coordinator_epoch: io.coordinator_epoch,
        committed: image.state == State::PrepareCommit,
        transaction_version: i8::try_from(image.client_version).unwrap_or(i8::MAX),
        topics: missing.collect(),
    }
}

fn take(partitions: &mut Partitions, topic: &str, partition: i32) {
    let Some(indexes) = partitions.get_mut(topic) else { return };
    indexes.remove(&partition);
    if indexes.is_empty() {
        partitions.remove(topic);
    }
}
