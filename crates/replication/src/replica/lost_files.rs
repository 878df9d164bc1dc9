//! A look for files that a log has lost: a start compares the log with what its replica has promised.

use super::group_journal::GroupJournal;
use super::losses::Lost;
use crate::error::ReplicaError;
use crate::group::ReplicaId;
use crate::index::EntryIndex;
use crate::journal::{Frame, GroupState, Promised, Vote};
use mainstem_log::Log;

/// The findings of a start.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// The part that the replica lacks, and others may have.
    pub(super) lacking: Option<Promised>,
    /// The records that are gone for good, of a replica that is alone in its group.
    pub(super) lost: Option<Lost>,
}

/// Makes up for votes that the journal has lost: for whom they were is not known, so no other one is given in their terms. Blocks on
/// the disk.
pub(super) fn make_up_for_votes(
    journal: &GroupJournal,
    own: ReplicaId,
    state: &mut GroupState,
    promised: Option<Promised>,
) -> Result<(), ReplicaError> {
    let Some(term) = promised.map(|promised| promised.vote_term).filter(|term| *term > state.vote.term)
    else {
        return Ok(());
    };
    tracing::error!(
        partition = journal.group().partition,
        noted = state.vote.term,
        term,
        "the journal of groups has lost votes that it had: the replica gives none up to term {term}"
    );
    state.vote = Vote { term, candidate: Some(own) };
    journal.append(Frame::Vote(state.vote))?;
    Ok(journal.sync_now()?)
}

/// The promise of a replica. A log that ends before its entries begin has lost files, whatever was noted: a note may be older than the
/// start, where a power cut came after a deletion, or an earlier release ran meanwhile. Nothing of the terms that there were is enough
/// then.
pub(super) fn allow_for_deletions(
    log: &Log,
    state: &GroupState,
    promised: Option<Promised>,
) -> Option<Promised> {
    let start = state.start;
    let older = promised.filter(|promised| promised.is_kept_by(start.term, start.index));
    match older {
        Some(older) if log.ends().log_end < start.offset => {
            let term = older.term.max(state.vote.term).max(start.term);
            Some(Promised { term, index: u64::MAX, offset: start.offset, ..older })
        }
        _ => promised,
    }
}

/// Compares the entries of a log that was just opened with what its replica had promised.
pub(super) fn compare(
    log: &Log,
    index: &EntryIndex,
    state: &GroupState,
    promised: Option<Promised>,
) -> Result<Comparison, ReplicaError> {
    let last = index.last();
    let is_kept = |promised: &Promised| promised.is_kept_by(index.term(last).unwrap_or(0), last);
    let Some(promised) = promised.filter(|promised| !is_kept(promised)) else {
        return Ok(Comparison::default());
    };
    let (partition, end, had) = (log.partition(), log.ends().log_end, promised.offset);
    let records = (had - end).max(0);
    if !state.has_others() {
        tracing::error!(
            %partition,
            offset = end,
            records,
            "{records} records from {end} on are lost: files are gone, cut or damaged, and there is no other replica"
        );
        return Ok(Comparison {
            lost: (records > 0).then_some(Lost { offset: end, records }),
            ..Comparison::default()
        });
    }
    if log.takes_accepted_loss()? {
        tracing::warn!(
            %partition,
            offset = end,
            records,
            "the replica takes part without the {records} records from {end} on that it had, as accept-loss said"
        );
        return Ok(Comparison::default());
    }
    tracing::error!(
        %partition,
        offset = end,
        records,
        "this replica has lost what it had acknowledged, {records} records from {end} on: files are gone, cut or damaged. Until it has \
         them again from a leader it does not lead, and votes for none that lacks them. Start the other replicas; where \
         none has them any more, an empty file accept-loss in {}, on a majority of the replicas, and another start have them take \
         part without",
        log.path().display()
    );
    Ok(Comparison { lacking: Some(promised), lost: None })
}
