//! Groups of the consumer protocol (KIP-848): the coordinator assigns, members follow.
//!
//! Three epochs tell how far everybody is. The group's moves when members, subscriptions or topics change. The
//! target's is that of the last computed assignment. A member's is the target's that it has reached. Each heartbeat
//! takes its member a step on: it gives up what it is not to have, and gets what is free.
//!
//! ```text
//!    members, topics change          assignor                  heartbeats
//!   -----------------------> epoch ------------> target epoch -------------> member epoch
//!            Assigning                            Reconciling                   Stable
//! ```
//!
//! [`change`] is what changes, one record each; [`group`](self::group) is the state that changes make; [`turn`] makes
//! them and [`mod@write`] waits for their append.

pub(crate) mod assignor;
pub(crate) mod change;
pub(crate) mod classic_member;
pub(crate) mod commit;
mod counts;
pub(crate) mod describe;
mod embedded;
mod fence;
pub(crate) mod fuzz;
pub(crate) mod group;
pub(crate) mod heartbeat;
mod member;
mod migration;
pub(crate) mod partitions;
pub(crate) mod patterns;
mod reconcile;
pub(crate) mod regex;
pub(crate) mod serve;
pub(crate) mod subscription;
mod target;
pub(crate) mod timers;
pub(crate) mod topics;
mod turn;
pub(crate) mod write;

pub(crate) use member::Timers;
pub(crate) use turn::settle;
