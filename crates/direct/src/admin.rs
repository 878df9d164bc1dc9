//! Looks at a publisher's streams and consumers, and changes them.

use std::sync::Arc;

use mainstem_queue::{Directory, DirectoryKind};
use tonic::Status;
use tonic::transport::Channel;

use crate::consumer::Address;
use crate::error::{DirectError, Refused, Result, words_of};
use crate::proto::publisher_client::PublisherClient;
use crate::proto::{self, manage_request::Action};
use crate::session::DEAD_AFTER;

/// A connection to a publisher for its administrator.
#[derive(Debug)]
pub struct Admin {
    address: Address,
    client: PublisherClient<Channel>,
}

impl Admin {
    /// Connects.
    ///
    /// # Errors
    /// [`DirectError::Unreachable`], or [`DirectError::Tls`].
    pub async fn connect(address: Address) -> Result<Admin> {
        let client = address.connect().await?;
        Ok(Admin { address, client })
    }

    /// Streams by name, each with its consumers; all of them if `stream` is empty.
    ///
    /// # Errors
    /// The publisher's refusal, or that the connection was lost, or that there was no answer within 15 s
    /// ([`DirectError::Unreachable`]).
    pub async fn describe(&mut self, stream: &str) -> Result<Vec<proto::StreamInfo>> {
        let request = self.address.request(proto::DescribeRequest { stream: stream.to_owned() })?;
        let reply = answered(&self.address, stream, self.client.describe(request)).await?;
        Ok(reply.into_inner().streams)
    }

    /// Changes a consumer; returns what it is then, or none if it was forgotten.
    ///
    /// # Errors
    /// As [`Admin::describe`].
    pub async fn manage(
        &mut self,
        stream: &str,
        consumer: &str,
        action: Action,
    ) -> Result<Option<proto::ConsumerInfo>> {
        let (name, consumer) = (stream.to_owned(), consumer.to_owned());
        let request = proto::ManageRequest { stream: name, consumer, action: Some(action) };
        let request = self.address.request(request)?;
        let reply = answered(&self.address, stream, self.client.manage(request)).await?;
        Ok(reply.into_inner().consumer)
    }
}

/// Waits for a publisher's answer to a call.
///
/// A publisher that does not accept a certificate may end the connection during the call, without an answer and without an error. The time
/// limit turns that into an error too.
async fn answered<T>(
    address: &Address,
    stream: &str,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T> {
    let answered = tokio::time::timeout(DEAD_AFTER, call).await;
    let answer = answered.map_err(|_| DirectError::Unreachable {
        address: address.at().to_owned(),
        reason: format!("it did not answer within {DEAD_AFTER:?}"),
    })?;
    answer.map_err(|status| address.error_of(stream, &status))
}

/// Looks at and changes the consumers of a journal that no process serves. The journal is open in this process until it
/// is dropped.
#[derive(Debug)]
pub struct LocalAdmin {
    stream: crate::stream::Stream,
}

impl LocalAdmin {
    /// Opens a journal.
    ///
    /// # Errors
    /// As [`Journal::open`](crate::Journal::open). If a process serves the journal, it fails too; ask that process by its
    /// address then.
    pub fn open(directory: &std::path::Path) -> Result<LocalAdmin> {
        if Directory::inspect(directory).kind == DirectoryKind::Queue {
            return Err(DirectError::Invalid(format!(
                "{} is a queue, and not the journal of a stream; `mainstem direct serve NAME={}` makes one of it",
                directory.display(),
                directory.display()
            )));
        }
        let options = crate::JournalOptions::new().queue(|queue| queue.create(false));
        let journal = options.open(directory)?;
        let name = journal.name().to_owned();
        Ok(LocalAdmin { stream: crate::stream::Stream::new(journal, name, None, Arc::default())? })
    }

    /// Describes the stream and its consumers.
    pub fn describe(&self) -> proto::StreamInfo {
        self.stream.describe()
    }

    /// As [`Admin::manage`].
    ///
    /// # Errors
    /// As [`Admin::manage`].
    pub fn manage(&self, consumer: &str, action: &Action) -> Result<Option<proto::ConsumerInfo>> {
        let address = self.stream.journal().directory().display().to_string();
        let managed = self.stream.manage(consumer, action, None);
        managed.map(|reply| reply.consumer).map_err(|status| match Refused::of_status(&status) {
            Some(refused) => DirectError::Refused { address, stream: self.stream.name().to_owned(), refused },
            None => DirectError::Status { address, code: status.code(), message: words_of(&status).0 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_ends() {
        let address = Address::new("grpc://localhost:1").unwrap();
        let ended = answered(&address, "cart", std::future::pending::<Result<(), Status>>()).await;
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("localhost:1") && error.contains("did not answer within 15s"), "{error}");
    }
}
