//! The append that ends a turn.

use super::super::completion::Completion;
use super::super::group::{Group, Protocol};
use super::super::io::Io;
use super::super::log::CoordinatorRecord;
use super::change::Change;
use super::group::ConsumerGroup;
use super::turn::Outcome;
use super::write::{Answer, Conversion, Write};

/// Writes the records of a turn. Without records there is nothing to wait for but earlier ones.
pub(crate) fn write(group: &mut ConsumerGroup, io: &mut Io<'_>, outcome: Outcome, answer: Option<Answer>) {
    let is_append = !outcome.records.is_empty();
    if is_append {
        group.pending_writes += 1;
    } else if group.pending_writes == 0 {
        if let Some((token, reply)) = answer {
            io.reply(token, reply);
        }
        return;
    }
    let Outcome { records, undo } = outcome;
    let write = Write { group: group.id.clone(), undo, answer, conversion: None, is_append, failed: None };
    if is_append {
        io.append(records, Completion::Consumer(Box::new(write)));
    } else if write.answer.is_some() {
        io.wait_behind(Completion::Consumer(Box::new(write)));
    }
}

/// Writes the records of a turn with which the group has changed its protocol.
pub(crate) fn write_conversion(
    group: &mut Group,
    io: &mut Io<'_>,
    records: Vec<CoordinatorRecord>,
    undo: Vec<Change>,
    conversion: Conversion,
    answer: Option<Answer>,
) {
    group.converting = true;
    match &mut group.protocol {
        Protocol::Classic(classic) => classic.pending_writes += 1,
        Protocol::Consumer(consumer) => consumer.pending_writes += 1,
    }
    let id = group.id().clone();
    let conversion = Some(conversion);
    let write = Write { group: id, undo, answer, conversion, is_append: true, failed: None };
    io.append(records, Completion::Consumer(Box::new(write)));
}
