//! Copies: the beginning of a partition, for a replica that is too far behind its group's leader.
//!
//! A copy is a [`manifest`] and the closed segment files that it lists. It ends at a start, which is a segment's base offset in the
//! leader's log; from there on the replica gets entries. The replica asks for the files in ranges ([`question`]). A [`transfer`] decides
//! which range is next, and which bytes of an earlier copy are right.
//!
//! Architecture invariant: no I/O, no clock. Who drives a transfer reads, writes and syncs.

pub mod manifest;
pub mod question;
pub mod transfer;
