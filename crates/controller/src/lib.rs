//! The metadata of a cluster: topics, their ids and partitions, configurations, brokers, features, producer ids, access control
//! entries, SCRAM credentials.
//!
//! Metadata is an ordered log of Kafka's own metadata records in `__cluster_metadata-0`. [`MetadataStateMachine`] checks
//! a request against everything that was appended so far and answers with records and a reply;
//! [`MetadataStateMachine::committed`] applies records to the [`MetadataImage`] that readers see, and only then may the
//! reply leave. What was not committed can be rolled back.
//!
//! ```text
//!  request ─▶ decide (ahead image) ─▶ Decision { records, reply } ─▶ the driver appends one batch
//!                                                                              │ committed(upto)
//!  readers ◀──────────── image ◀──────── apply, changes for the driver ◀────────┘ then reply
//! ```
//!
//! A node's own part in a decision, defaults and limits, is in the [`NodeView`] that the caller gives.
//!
//! Architecture invariant: the state is a function of the records alone, equal on every node; nothing here reads a clock,
//! makes random numbers or touches a file.

#[cfg(test)]
mod access_tests;
mod acls;
#[cfg(test)]
mod administration;
mod alter_configs;
mod alter_user_scram_credentials;
mod attached;
mod client_quotas;
mod cluster_state;
#[cfg(test)]
mod controller_properties;
#[cfg(test)]
mod controller_tests;
mod controllers;
mod create_acls;
mod create_partitions;
mod create_topics;
mod delete_acls;
mod delete_topics;
mod delta;
mod describe_acls;
mod describe_user_scram_credentials;
mod directories;
mod elect_leaders;
mod error;
pub mod features;
mod fencing;
#[doc(hidden)]
pub mod fuzz;
mod image;
mod leadership;
#[cfg(test)]
mod level_tests;
mod list_reassignments;
#[cfg(test)]
mod move_properties;
#[cfg(test)]
mod move_tests;
mod moves;
pub mod names;
mod node_view;
mod placement;
mod producer_ids;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod quota_tests;
mod reassignments;
mod registration;
mod replace_replicas;
mod scram_credentials;
#[cfg(test)]
mod session;
mod snapshot;
pub mod snapshot_format;
mod state_machine;
#[cfg(test)]
mod takeover_tests;
#[cfg(test)]
mod tests;
mod unregister_broker;

pub use alter_configs::{
    CLIENT_METRICS_MAX, CONFIGURED_GROUP_NAME_BYTES_MAX, CONFIGURED_GROUPS_MAX, changes_of,
};
pub use attached::{ATTACHED_DIRECTORY, AttachedTopic};
pub use client_quotas::Resolves;
pub use controllers::{
    CONTROLLERS_MAX, ControllerJoin, ControllersFixed, FirstController, JoinRefused, VoterRefused,
};
pub use directories::DirectoryAssignment;
pub use error::{ApiError, ReplayError};
pub use image::{
    BrokerImage, ConfigResource, ControllerImage, FeatureRanges, GroupImage, MetadataChange, MetadataImage,
    PartitionImage, ResourceKind, TopicImage,
};
pub use leadership::LeaderNote;
pub use moves::SettledNote;
pub use node_view::NodeView;
pub use producer_ids::{PRODUCER_ID_BLOCK_SIZE, ProducerIdBlock, ProducerIds};
pub use registration::NodeStart;
pub use replace_replicas::LostReplica;
pub use scram_credentials::user_record;
pub use state_machine::{Decision, IdSource, MetadataStateMachine, PARTITIONS_PER_REQUEST_MAX, Permit};
