//! Work that the transaction coordinator asks for: markers, and producer ids. It holds up neither connections nor the flusher.

use std::sync::{Arc, Weak};

use mainstem_coordinators::transactions::Work;
use mainstem_runtime::worker::Worker;

use crate::markers;
use crate::node::Node;

/// The threads.
pub(crate) struct Workers {
    markers: Worker,
    /// Waits for the metadata log.
    producer_ids: Worker,
}

impl Workers {
    pub(crate) fn new() -> Self {
        Workers { markers: Worker::new("txn-markers"), producer_ids: Worker::new("txn-producer-ids") }
    }

    /// Ends the threads behind what they have to do.
    pub(crate) fn stop(&self) {
        self.producer_ids.stop();
        self.markers.stop();
    }
}

/// Has a node do the work of its transaction coordinator.
pub(crate) fn begin(node: &Arc<Node>) {
    let of = Arc::downgrade(node);
    node.local.transactions.set_perform(Box::new(move |work| {
        if let Some(node) = Weak::upgrade(&of) {
            perform(&node, work);
        }
    }));
}

fn perform(node: &Arc<Node>, work: Work) {
    let own = node.clone();
    match work {
        Work::Markers(markers) => {
            node.workers.markers.run(Box::new(move || markers::write_all(&own, markers)));
        }
        Work::ProducerId(ticket) => match node.known_producer_id() {
            Some(id) => node.local.transactions.give_producer_id(ticket, Ok(id)),
            None => node.workers.producer_ids.run(Box::new(move || {
                own.local.transactions.give_producer_id(ticket, own.next_producer_id());
            })),
        },
    }
}
