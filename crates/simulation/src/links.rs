//! Links between simulated nodes: who is linked to whom, when a node dials another, and what it learns by that.
//!
//! A link of a pair is the one that the first node has dialled. Its ends are those of a broker; the world carries the bytes.

use crate::node::Node;
use mainstem_links::hand::{ReadingEnd, WritingEnd};
use std::collections::BTreeMap;
use std::io;

/// Between two attempts to dial, at first and at most.
const BACK_OFF_MIN_MS: u64 = 50;
const BACK_OFF_MAX_MS: u64 = 1_000;
/// A peer whose machine is gone is noticed after so long, unless it is back before.
const SILENCE_MAX_MS: u64 = 10_000;

/// Who has dialled, and whom.
type Pair = (usize, usize);

/// All links.
#[derive(Default)]
pub(crate) struct Links(BTreeMap<Pair, Link>);

struct Link {
    writing: Option<WritingEnd>,
    reading: Option<ReadingEnd>,
    dial_at_ms: u64,
    back_off_ms: u64,
    /// It was refused, since nothing listens there.
    is_gone: bool,
    /// The machine of the other node is gone, and this one does not know.
    lost_at_ms: Option<u64>,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            writing: None,
            reading: None,
            dial_at_ms: 0,
            back_off_ms: BACK_OFF_MIN_MS,
            is_gone: false,
            lost_at_ms: None,
        }
    }
}

impl Link {
    /// It ends, and the node that has dialled it hears of it.
    fn end(&mut self, now_ms: u64) {
        self.reading = None;
        self.lost_at_ms = None;
        if let Some(writing) = self.writing.take() {
            writing.end();
        }
        (self.dial_at_ms, self.back_off_ms) = (now_ms, BACK_OFF_MIN_MS);
    }

    fn fail_to_dial(&mut self, now_ms: u64) {
        self.dial_at_ms = now_ms + self.back_off_ms;
        self.back_off_ms = (self.back_off_ms * 2).min(BACK_OFF_MAX_MS);
    }
}

impl Links {
    /// The bytes that a node writes to another one now.
    ///
    /// # Errors
    /// The link has to end.
    pub(crate) fn write(&mut self, pair: Pair) -> io::Result<Vec<u8>> {
        let writing = self.0.get_mut(&pair).and_then(|link| link.writing.as_mut());
        writing.map_or(Ok(Vec::new()), WritingEnd::write)
    }

    /// Bytes arrive.
    ///
    /// # Errors
    /// They are at fault: the link has to end.
    pub(crate) fn read(&mut self, pair: Pair, bytes: &[u8]) -> io::Result<()> {
        let reading = self.0.get_mut(&pair).and_then(|link| link.reading.as_mut());
        reading.map_or(Ok(()), |reading| reading.read(bytes))
    }

    /// The bytes of answers to the first node of a pair now.
    pub(crate) fn write_answers(&mut self, pair: Pair) -> Vec<u8> {
        let reading = self.0.get_mut(&pair).and_then(|link| link.reading.as_mut());
        reading.map_or(Vec::new(), ReadingEnd::write_answers)
    }

    /// Bytes of answers arrive at the first node of a pair.
    ///
    /// # Errors
    /// They are at fault: the link has to end.
    pub(crate) fn read_answers(&mut self, pair: Pair, bytes: &[u8]) -> io::Result<()> {
        let writing = self.0.get_mut(&pair).and_then(|link| link.writing.as_mut());
        writing.map_or(Ok(()), |writing| writing.read_answers(bytes))
    }

    /// The link of a pair ends.
    pub(crate) fn end(&mut self, pair: Pair, now_ms: u64) {
        if let Some(link) = self.0.get_mut(&pair) {
            link.end(now_ms);
        }
    }

    /// A node goes down. Where its machine does, those that have a link to it hear nothing for long.
    pub(crate) fn take_down(&mut self, node: usize, with_machine: bool, now_ms: u64) {
        for ((from, to), link) in &mut self.0 {
            if *from == node {
                // No one is there who could hear of it.
                (link.writing, link.reading) = (None, None);
                *link = Link::default();
            } else if *to == node {
                link.reading = None;
                match with_machine && link.writing.is_some() {
                    true => link.lost_at_ms = Some(now_ms),
                    false => link.end(now_ms),
                }
            }
        }
    }

    /// Returns true if the first node of a pair notices now that the machine of the second one was gone: the connection means nothing
    /// to it, or nothing was heard of it for long.
    pub(crate) fn notices_loss(&self, (from, to): Pair, nodes: &[Node], is_cut: bool, now_ms: u64) -> bool {
        let is_back = nodes[to].started().is_some() && !is_cut;
        let lost_at_ms = self.0.get(&(from, to)).and_then(|link| link.lost_at_ms);
        lost_at_ms.is_some_and(|at_ms| is_back || now_ms >= at_ms + SILENCE_MAX_MS)
    }

    /// The first node of a pair dials the second one, where it has no link to it and its time has come. `is_cut`: nothing gets there, or
    /// back.
    pub(crate) fn dial(&mut self, (from, to): Pair, nodes: &[Node], is_cut: bool, now_ms: u64) {
        let (Some(links), true) = (nodes[from].links(), from != to) else { return };
        let link = self.0.entry((from, to)).or_default();
        if link.writing.is_some() || now_ms < link.dial_at_ms {
            return;
        }
        match nodes[to].links() {
            _ if is_cut => link.fail_to_dial(now_ms),
            None => {
                if nodes[to].refuses() && !std::mem::replace(&mut link.is_gone, true) {
                    links.dial_refused(nodes[to].id().node());
                }
                link.fail_to_dial(now_ms);
            }
            Some(of_other) => {
                link.writing = Some(WritingEnd::begin(links, nodes[to].id().node()));
                link.reading = Some(ReadingEnd::begin(of_other, nodes[from].id().node()));
                (link.is_gone, link.back_off_ms) = (false, BACK_OFF_MIN_MS);
            }
        }
    }
}
