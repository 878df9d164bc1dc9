//! Answers to InitProducerId (22) and EndTxn (26), which are given at once or when a record is durable.

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::end_txn_response::EndTxnResponse;
use mainstem_wire::messages::init_producer_id_response::InitProducerIdResponse;

use super::api::Reply;

/// The answer to an InitProducerId with an id and an epoch.
pub(crate) fn initialised(id: ProducerId, epoch: ProducerEpoch) -> Reply {
    let (producer_id, producer_epoch) = (id.get(), epoch.get());
    Reply::InitProducerId(InitProducerIdResponse { producer_id, producer_epoch, ..Default::default() })
}

/// The answer to an InitProducerId with an error.
pub(crate) fn not_initialised(error: ErrorCode) -> Reply {
    Reply::InitProducerId(InitProducerIdResponse {
        error_code: error.0,
        producer_id: ProducerId::NONE.get(),
        producer_epoch: ProducerEpoch::NONE.get(),
        ..Default::default()
    })
}

/// The answer to an EndTxn whose transaction is decided, with the producer's next id and epoch.
pub(crate) fn ended((id, epoch): (ProducerId, ProducerEpoch)) -> Reply {
    let (producer_id, producer_epoch) = (id.get(), epoch.get());
    Reply::EndTxn(EndTxnResponse { producer_id, producer_epoch, ..Default::default() })
}

/// The answer to an EndTxn with an error.
pub(crate) fn not_ended(error: ErrorCode) -> Reply {
    Reply::EndTxn(EndTxnResponse { error_code: error.0, ..Default::default() })
}
