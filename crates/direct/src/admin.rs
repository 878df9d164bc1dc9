//! Looks at a publisher's streams and consumers, and changes them.

use std::sync::Arc;

use mainstem_queue::{Directory, DirectoryKind};
use tonic::transport::Channel;

use crate::consumer::Address;
use crate::error::{DirectError, Refused, Result};
use crate::proto::publisher_client::PublisherClient;
use crate::proto::{self, manage_request::Action};

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
    /// What the publisher refuses, or that the connection was lost.
    pub async fn describe(&mut self, stream: &str) -> Result<Vec<proto::StreamInfo>> {
        let request = self.address.request(proto::DescribeRequest { stream: stream.to_owned() })?;
        let reply =
            self.client.describe(request).await.map_err(|status| self.address.error_of(stream, &status))?;
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
        let request =
            self.address.request(proto::ManageRequest { stream: name, consumer, action: Some(action) })?;
        let reply =
            self.client.manage(request).await.map_err(|status| self.address.error_of(stream, &status))?;
        Ok(reply.into_inner().consumer)
    }
}

/// The same for journals that no process serves: opened here, for as long as this lives.
#[derive(Debug)]
pub struct LocalAdmin {
    stream: crate::stream::Stream,
}

impl LocalAdmin {
    /// Opens a journal.
    ///
    /// # Errors
    /// As [`Journal::open`](crate::Journal::open): also if a process serves it, which is to be asked by its address then.
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

    /// The stream with its consumers.
    pub fn describe(&self) -> proto::StreamInfo {
        self.stream.describe()
    }

    /// As [`Admin::manage`].
    ///
    /// # Errors
    /// As [`Admin::manage`].
    pub fn manage(&self, consumer: &str, action: &Action) -> Result<Option<proto::ConsumerInfo>> {
        let address = self.stream.journal().directory().display().to_string();
        let managed = self.stream.manage(consumer, action);
        managed.map(|reply| reply.consumer).map_err(|status| match Refused::of_status(&status) {
            Some(refused) => DirectError::Refused { address, stream: self.stream.name().to_owned(), refused },
            None => {
                DirectError::Status { address, code: status.code(), message: status.message().to_owned() }
            }
        })
    }
}
