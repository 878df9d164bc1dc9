//! Permission to commit and fetch offsets in a consumer group (KIP-848, KIP-1251).

use mainstem_wire::ErrorCode;

use super::group::ConsumerGroup;
use super::member::Member;
use super::partitions::Partition;

/// Members of the consumer protocol commit from this version on: before, clients do not know its errors.
const MEMBER_EPOCH_SINCE: i16 = 9;
/// Member id, instance id and epoch of a TxnOffsetCommit that names no member, as before version 3 (KIP-447).
const NO_MEMBER: (&str, Option<&str>, i32) = ("", None, -1);

/// The partitions that a member may commit.
#[derive(Debug)]
pub(crate) enum Committer<'g> {
    /// All partitions.
    Any,
    /// The member is behind: only partitions that it has had since the epoch that it names.
    Behind(&'g Member, i32),
}

/// Returns the permission of the member of an OffsetCommit.
///
/// # Errors
/// UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION to a classic member.
pub(crate) fn committer<'g>(
    group: &'g ConsumerGroup,
    api_version: i16,
    member_id: &str,
    epoch: i32,
) -> Result<Committer<'g>, ErrorCode> {
    // An administrator, or a consumer that assigns its partitions itself.
    if epoch < 0 && group.members().is_empty() {
        return Ok(Committer::Any);
    }
    let member = group.member(member_id).ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
    if !member.uses_classic_protocol() && api_version < MEMBER_EPOCH_SINCE {
        return Err(ErrorCode::UNSUPPORTED_VERSION);
    }
    at_epoch(member, epoch)
}

/// Returns the permission of the member of a TxnOffsetCommit. It differs from [`committer`] in two ways: the version of the request does
/// not matter, and a producer that names no member may always commit.
///
/// # Errors
/// UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION to a classic member.
pub(crate) fn transactional_committer<'g>(
    group: &'g ConsumerGroup,
    member_id: &str,
    instance_id: Option<&str>,
    epoch: i32,
) -> Result<Committer<'g>, ErrorCode> {
    let is_open_to_all = epoch < 0 && group.members().is_empty();
    if is_open_to_all || (member_id, instance_id, epoch) == NO_MEMBER {
        return Ok(Committer::Any);
    }
    at_epoch(group.member(member_id).ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?, epoch)
}

/// Returns the permission of a member that claims to be in an epoch.
fn at_epoch(member: &Member, epoch: i32) -> Result<Committer<'_>, ErrorCode> {
    if epoch == member.current.epoch {
        Ok(Committer::Any)
    } else if epoch > member.current.epoch {
        Err(stale(member))
    } else {
        Ok(Committer::Behind(member, epoch))
    }
}

impl Committer<'_> {
    /// Refuses the offset of a partition that was not the member's at all times since its epoch.
    ///
    /// # Errors
    /// STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION to a classic member: another member may have had it meanwhile.
    pub(crate) fn check(&self, partition: &Partition) -> Result<(), ErrorCode> {
        let Committer::Behind(member, epoch) = self else { return Ok(()) };
        let current = &member.current;
        let since = current.assigned.epoch(partition).or_else(|| current.revoking.epoch(partition));
        if since.is_some_and(|since| since <= *epoch) { Ok(()) } else { Err(stale(member)) }
    }
}

/// Checks who fetches offsets: a member in its epoch, or a client that names neither a member nor an epoch.
///
/// # Errors
/// UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION to a classic member.
pub(crate) fn may_fetch(group: &ConsumerGroup, member_id: Option<&str>, epoch: i32) -> Result<(), ErrorCode> {
    if member_id.is_none() && epoch < 0 {
        return Ok(());
    }
    let member = member_id.and_then(|id| group.member(id)).ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
    if member.current.epoch == epoch { Ok(()) } else { Err(stale(member)) }
}

fn stale(member: &Member) -> ErrorCode {
    if member.uses_classic_protocol() { ErrorCode::ILLEGAL_GENERATION } else { ErrorCode::STALE_MEMBER_EPOCH }
}
