//! Errors of the log and of validation as Kafka's error codes, each in one `match`.

use mainstem_log::{AppendError, DeleteRecordsError, ReadError};
use mainstem_wire::ErrorCode;

/// The error code of a refused append.
pub fn append_error_code(error: &AppendError) -> ErrorCode {
    match error {
        AppendError::Invalid(invalid) => ErrorCode::from(invalid.kafka_error().code()),
        AppendError::NotOneBatch | AppendError::Recompress(_) => ErrorCode::INVALID_RECORD,
        AppendError::RecordTooLarge { .. } => ErrorCode::MESSAGE_TOO_LARGE,
        AppendError::BatchTooLarge { .. } => ErrorCode::RECORD_LIST_TOO_LARGE,
        AppendError::OutOfOrderSequence { .. } => ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER,
        AppendError::InvalidProducerEpoch { .. } => ErrorCode::INVALID_PRODUCER_EPOCH,
        AppendError::InvalidTransactionState { .. } | AppendError::TransactionNotVerified { .. } => {
            ErrorCode::INVALID_TXN_STATE
        }
        AppendError::TooManyProducers { .. } | AppendError::TooManyTransactions { .. } => {
            ErrorCode::POLICY_VIOLATION
        }
        AppendError::CoordinatorFenced { .. } => ErrorCode::TRANSACTION_COORDINATOR_FENCED,
        AppendError::OffsetsOutOfOrder { .. } => ErrorCode::UNKNOWN_SERVER_ERROR,
        AppendError::OutOfSpace(_) | AppendError::Storage(_) | AppendError::Stopped(_) => {
            ErrorCode::KAFKA_STORAGE_ERROR
        }
    }
}

/// The records that a refused batch is refused for (KIP-467).
pub fn record_errors(error: &AppendError) -> Vec<(i32, String)> {
    match error {
        AppendError::Invalid(invalid) => {
            invalid.record_errors().iter().map(|record| (record.index, record.message.to_string())).collect()
        }
        _ => Vec::new(),
    }
}

/// The error code of a refused read.
pub fn read_error_code(error: &ReadError) -> ErrorCode {
    match error {
        ReadError::OffsetOutOfRange { .. } => ErrorCode::OFFSET_OUT_OF_RANGE,
        ReadError::Storage(_) | ReadError::Stopped(_) => ErrorCode::KAFKA_STORAGE_ERROR,
    }
}

/// The error code of a refused DeleteRecords.
pub fn delete_records_error_code(error: &DeleteRecordsError) -> ErrorCode {
    match error {
        DeleteRecordsError::OffsetOutOfRange { .. } => ErrorCode::OFFSET_OUT_OF_RANGE,
        DeleteRecordsError::Log(_) => ErrorCode::KAFKA_STORAGE_ERROR,
    }
}
