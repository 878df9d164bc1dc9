//! Groups of the consumer protocol (KIP-848): the coordinator assigns, members follow.
//!
//! Three epochs say how far the group is. The group's epoch rises when members, subscriptions or topics change. The target's epoch is that
//! of the last computed assignment. A member's epoch is that of the target that it has reached. Each heartbeat takes its member one step
//! further: it revokes partitions that it is not to have, and gets free ones.
//!
//! ```text
//!    members, topics change          assignor                  heartbeats
//!   -----------------------> epoch ------------> target epoch -------------> member epoch
//!            Assigning                            Reconciling                   Stable
//! ```
//!
//! [`change`] has the changes, one record each; [`group`](self::group) is the state that they make; [`turn`] makes them, [`append`]
//! writes them, and [`appended`] handles the outcome.

mod append;
pub(crate) mod appended;
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
pub(crate) mod member;
mod migration;
pub(crate) mod partitions;
pub(crate) mod patterns;
mod reconcile;
pub(crate) mod refusal;
pub(crate) mod regex;
pub(crate) mod serve;
pub(crate) mod subscription;
mod target;
pub(crate) mod time_outs;
pub(crate) mod timers;
pub(crate) mod topics;
pub(crate) mod turn;
pub(crate) mod write;
