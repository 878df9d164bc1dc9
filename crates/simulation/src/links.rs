//! Links between simulated nodes: which nodes are linked, when a node dials another, and the result of that.
//!
//! The link of a pair was dialled by the first node. Its two ends are the broker's own code; the world carries the bytes.

use crate::node::{Node, act_for};
use mainstem_links::hand::{ReadingEnd, WritingEnd};
use mainstem_runtime::schedule::Group;
use std::collections::BTreeMap;
use std::io;

/// Delay between two attempts to dial, at first and at most, in ms.
const BACK_OFF_MIN_MS: u64 = 50;
const BACK_OFF_MAX_MS: u64 = 1_000;
/// Time after which the loss of a peer's machine is noticed, unless it is back earlier, in ms.
const SILENCE_MAX_MS: u64 = 10_000;

/// The dialling node, and the dialled one.
type Pair = (usize, usize);

/// All links.
#[derive(Default)]
pub(crate) struct Links(BTreeMap<Pair, Link>);

struct Link {
    writing: Option<WritingEnd>,
    reading: Option<ReadingEnd>,
    /// The threads of both nodes, if these have their metadata.
    groups: [Option<Group>; 2],
    dial_at_ms: u64,
    back_off_ms: u64,
    /// The last attempt was refused, since nothing listens there.
    is_gone: bool,
    /// Time at which the other node's machine was lost, while this node has not noticed.
    lost_at_ms: Option<u64>,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            writing: None,
            reading: None,
            groups: [None, None],
            dial_at_ms: 0,
            back_off_ms: BACK_OFF_MIN_MS,
            is_gone: false,
            lost_at_ms: None,
        }
    }
}

impl Link {
    /// Ends the link, and notifies the node that has dialled it.
    fn end(&mut self, now_ms: u64) {
        self.reading = None;
        self.lost_at_ms = None;
        if let Some(writing) = self.writing.take() {
            act_for(self.groups[0].as_ref(), || writing.end());
        }
        (self.dial_at_ms, self.back_off_ms) = (now_ms, BACK_OFF_MIN_MS);
    }

    fn fail_to_dial(&mut self, now_ms: u64) {
        self.dial_at_ms = now_ms + self.back_off_ms;
        self.back_off_ms = (self.back_off_ms * 2).min(BACK_OFF_MAX_MS);
    }
}

impl Links {
    /// Takes the bytes that a node writes to another one now.
    ///
    /// # Errors
    /// The link has to end.
    pub(crate) fn write(&mut self, pair: Pair) -> io::Result<Vec<u8>> {
        let Some(Link { writing: Some(writing), groups, .. }) = self.0.get_mut(&pair) else {
            return Ok(Vec::new());
        };
        act_for(groups[0].as_ref(), || writing.write())
    }

    /// Delivers bytes to the second node of a pair.
    ///
    /// # Errors
    /// The bytes are invalid: the link has to end.
    pub(crate) fn read(&mut self, pair: Pair, bytes: &[u8]) -> io::Result<()> {
        let Some(Link { reading: Some(reading), groups, .. }) = self.0.get_mut(&pair) else { return Ok(()) };
        act_for(groups[1].as_ref(), || reading.read(bytes))
    }

    /// Takes the bytes of answers to the first node of a pair.
    pub(crate) fn write_answers(&mut self, pair: Pair) -> Vec<u8> {
        let reading = self.0.get_mut(&pair).and_then(|link| link.reading.as_mut());
        reading.map_or(Vec::new(), ReadingEnd::write_answers)
    }

    /// Delivers bytes of answers to the first node of a pair.
    ///
    /// # Errors
    /// The bytes are invalid: the link has to end.
    pub(crate) fn read_answers(&mut self, pair: Pair, bytes: &[u8]) -> io::Result<()> {
        let Some(Link { writing: Some(writing), groups, .. }) = self.0.get_mut(&pair) else { return Ok(()) };
        act_for(groups[0].as_ref(), || writing.read_answers(bytes))
    }

    /// Ends the link of a pair.
    pub(crate) fn end(&mut self, pair: Pair, now_ms: u64) {
        if let Some(link) = self.0.get_mut(&pair) {
            link.end(now_ms);
        }
    }

    /// Ends the links of a node that goes down. If its machine goes down too, its peers do not notice for some time.
    pub(crate) fn take_down(&mut self, node: usize, with_machine: bool, now_ms: u64) {
        for ((from, to), link) in &mut self.0 {
            if *from == node {
                // The node that dialled is down itself.
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

    /// Returns true if the first node of a pair notices now that the machine of the second one was lost: the restarted machine resets the
    /// connection, or the first node has received nothing for [`SILENCE_MAX_MS`].
    pub(crate) fn notices_loss(&self, (from, to): Pair, nodes: &[Node], is_cut: bool, now_ms: u64) -> bool {
        let is_back = nodes[to].started().is_some() && !is_cut;
        let lost_at_ms = self.0.get(&(from, to)).and_then(|link| link.lost_at_ms);
        lost_at_ms.is_some_and(|at_ms| is_back || now_ms >= at_ms + SILENCE_MAX_MS)
    }

    /// Has the first node of a pair dial the second one, if it has no link and its back-off is over. `is_cut`: the network drops messages
    /// between them, in one direction at least.
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
                    let group = nodes[from].group();
                    act_for(group.as_ref(), || links.dial_refused(nodes[to].id().node()));
                }
                link.fail_to_dial(now_ms);
            }
            Some(of_other) => {
                link.groups = [nodes[from].group(), nodes[to].group()];
                let [own, other] = link.groups.each_ref().map(Option::as_ref);
                let (from, to) = (nodes[from].id().node(), nodes[to].id().node());
                link.writing = Some(act_for(own, || WritingEnd::begin(links, to)));
                link.reading = Some(act_for(other, || ReadingEnd::begin(of_other, from)));
                (link.is_gone, link.back_off_ms) = (false, BACK_OFF_MIN_MS);
            }
        }
    }
}
