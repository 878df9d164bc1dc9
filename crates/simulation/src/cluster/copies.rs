//! Copies of partitions that nodes fetch from leaders: counted, and interrupted as a fault has it.

use super::Cluster;
use crate::world::Stop;
use mainstem_store::copies::CopyCounts;

/// Percent of the turns in which a copy is not interrupted yet.
const SPARED_PERCENT: u64 = 60;
/// Percent of the interruptions that take the node that fetches; the others take one that offers.
const TARGET_PERCENT: u64 = 75;
/// Percent of them that are power cuts.
const POWER_CUT_PERCENT: u64 = 50;

/// Counts of the copies of each node since its start.
pub(crate) struct Copies(Vec<(Option<u64>, CopyCounts)>);

impl Copies {
    pub(crate) fn new(nodes: usize) -> Copies {
        Copies(vec![(None, CopyCounts::default()); nodes])
    }
}

impl Cluster {
    /// Counts what has become of copies, and interrupts the next one where a fault says so.
    pub(crate) fn turn_copies(&mut self) {
        let counts: Vec<_> =
            self.world.nodes.iter().map(|node| (node.started(), node.copy_counts())).collect();
        for (before, (start, now)) in self.copies.0.iter_mut().zip(&counts) {
            let known = if before.0 == *start { before.1 } else { CopyCounts::default() };
            self.done.add_many("copy installed", (now.installed - known.installed) as usize);
            self.done.add_many("copy resumed", (now.resumed - known.resumed) as usize);
            *before = (*start, *now);
        }
        let fetching = counts.iter().position(|(_, counts)| counts.fetching > 0);
        let Some(fetching) = fetching.filter(|_| self.world.interrupts_copy) else { return };
        let random = &mut self.world.random;
        if random.chance(SPARED_PERCENT) {
            return;
        }
        let offering = counts.iter().position(|(_, counts)| counts.offered > 0);
        let node = if random.chance(TARGET_PERCENT) { fetching } else { offering.unwrap_or(fetching) };
        let stop = if random.chance(POWER_CUT_PERCENT) { Stop::PowerCut } else { Stop::Kill };
        let until_ms = self.world.now_ms + 50 + self.world.random.below(2_000);
        self.world.interrupts_copy = false;
        // With `write.caching` a power cut takes what was acknowledged.
        let stop = if self.world.nodes[node].write_caching() { Stop::Kill } else { stop };
        self.done.add("copy interrupted");
        self.world.take_down(node, stop, until_ms);
    }
}
