//! Work that the transaction coordinator asks for: markers, and producer ids. It holds up neither connections nor the flusher.

use std::sync::{Arc, Weak};

use mainstem_coordinators::transactions::Work;
use mainstem_runtime::worker::Worker;

use crate::broker::Broker;
use crate::coordinators::markers;

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

/// Has a broker do the work of its transaction coordinator.
pub(crate) fn begin(broker: &Arc<Broker>) {
    let of = Arc::downgrade(broker);
    broker.transactions.set_perform(Box::new(move |work| {
        if let Some(broker) = Weak::upgrade(&of) {
            perform(&broker, work);
        }
    }));
}

fn perform(broker: &Arc<Broker>, work: Work) {
    let own = broker.clone();
    match work {
        Work::Markers(markers) => {
            broker.transaction_workers.markers.run(Box::new(move || markers::write_all(&own, markers)));
        }
        Work::ProducerId(ticket) => match broker.controller.known_producer_id() {
            Some(id) => broker.transactions.give_producer_id(ticket, Ok(id)),
            None => broker.transaction_workers.producer_ids.run(Box::new(move || {
                own.transactions.give_producer_id(ticket, own.controller.next_producer_id(&own));
            })),
        },
    }
}
