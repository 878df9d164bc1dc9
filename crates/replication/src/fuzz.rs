//! Fuzz bodies of this crate: any bytes are read without a panic, and what is read is written as it was.

use crate::group::GroupId;
use crate::journal::{Frame, replay_for_fuzz};

/// `mainstem.groups`: any bytes give a state or a fault, and a state is what its own frames come to.
pub fn journal(data: &[u8]) {
    let mut bytes = b"msgroup1".to_vec();
    bytes.extend_from_slice(data);
    let Some(groups) = replay_for_fuzz(&bytes) else { return };
    let mut again = b"msgroup1".to_vec();
    for (group, state) in &groups {
        state.frames().iter().for_each(|frame: &Frame| frame.encode(*group, 0, &mut again));
    }
    let read: Vec<(GroupId, _)> = replay_for_fuzz(&again).expect("our own journal").into_iter().collect();
    let frames = |state: &crate::journal::GroupState| state.frames();
    assert_eq!(read.len(), groups.len());
    for ((group, state), (same, other)) in read.iter().zip(&groups) {
        assert_eq!((group, frames(state)), (same, frames(other)));
    }
}
