//! Randomness from the system, for ids that must not meet.

use mainstem_wire::Uuid;
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills an array.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    #[cfg(feature = "sim")]
    if let Some(group) = crate::schedule::group() {
        bytes
            .chunks_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&group.draw().to_le_bytes()[..chunk.len()]));
        return bytes;
    }
    let mut filled = 0;
    while filled < N {
        // An interrupted call is made again; the kernel has no other reason to refuse a few bytes.
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).unwrap_or(0);
    }
    bytes
}

/// A random (version 4) id, never one of Kafka's reserved ones: those have other version bits.
pub fn uuid() -> Uuid {
    let mut id: [u8; 16] = bytes();
    id[6] = (id[6] & 0x0f) | 0x40;
    id[8] = (id[8] & 0x3f) | 0x80;
    Uuid(id)
}

/// 32 random bits.
pub fn number() -> u32 {
    u32::from_ne_bytes(bytes())
}
