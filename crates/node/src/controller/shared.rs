//! The state machine, shared by those who decide, those who apply and those who read its image.

use std::sync::Arc;

use mainstem_controller::{MetadataImage, MetadataStateMachine};
use parking_lot::{RwLock, RwLockReadGuard};

/// A state machine whose readers do not wait for decisions.
pub(crate) struct SharedMachine {
    machine: RwLock<MetadataStateMachine>,
    /// Its committed state.
    image: RwLock<Arc<MetadataImage>>,
}

impl SharedMachine {
    pub(crate) fn new(machine: MetadataStateMachine) -> Self {
        SharedMachine { image: RwLock::new(machine.shared_image()), machine: RwLock::new(machine) }
    }

    /// Returns the committed metadata.
    pub(crate) fn image(&self) -> Arc<MetadataImage> {
        self.image.read().clone()
    }

    /// The state machine, which may have to be waited for: a decision takes its time.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, MetadataStateMachine> {
        self.machine.read()
    }

    /// Has the state machine decide, or forget what was decided. What is committed stays as it is.
    pub(crate) fn decide<T>(&self, decide: impl FnOnce(&mut MetadataStateMachine) -> T) -> T {
        decide(&mut self.machine.write())
    }

    /// Changes what is committed, and shows it to the readers of the image.
    pub(crate) fn apply<T>(&self, apply: impl FnOnce(&mut MetadataStateMachine) -> T) -> T {
        let mut machine = self.machine.write();
        let mut image = self.image.write();
        // Given back first: what is shared would be copied whole.
        *image = Arc::default();
        let applied = apply(&mut machine);
        *image = machine.shared_image();
        applied
    }
}
