//! How small Kafka's heap may be: a load with less and less of it, until the load is not held any more.

use anyhow::{Context, Result};

use super::{Case, Measured, load};
use crate::broker::DEFAULT_HEAP_MIB;
use crate::workload::LoadShape;

/// Tried after the default, until several in a row do not hold.
const HEAPS_MIB: [u32; 10] = [768, 512, 384, 256, 192, 160, 128, 96, 64, 48];
/// One bad run alone may be the machine's fault.
const MISSES_MAX: u32 = 2;
/// The part of the default heap's throughput that a smaller heap must reach.
const HELD_PART: f64 = 0.9;

pub(super) fn run(case: &Case<'_>, shape: LoadShape) -> Result<Measured> {
    let full = load::run(case, shape, DEFAULT_HEAP_MIB)?;
    let reference = throughput(&full).context("a load tells its throughput")?;
    let mut measured = Measured::default();
    note_held(&mut measured, DEFAULT_HEAP_MIB, &full);
    measured.add([("messages_per_s_of_default_heap", reference)]);
    let mut misses = 0;
    for heap_mib in HEAPS_MIB {
        // A JVM that does not start, or dies, with so little is an answer, not a failure.
        let load = load::run(case, shape, heap_mib).unwrap_or_default();
        let reached = throughput(&load).unwrap_or_default();
        measured.figures.insert(format!("messages_per_s_of_{heap_mib}_mib"), reached);
        if is_held(reached, reference) {
            misses = 0;
            note_held(&mut measured, heap_mib, &load);
        } else {
            misses += 1;
        }
        if misses == MISSES_MAX {
            break;
        }
    }
    Ok(measured)
}

/// Takes the place of what was noted of a larger heap.
fn note_held(measured: &mut Measured, heap_mib: u32, load: &Measured) {
    measured.add([
        ("smallest_heap_mib", f64::from(heap_mib)),
        ("messages_per_s", throughput(load).unwrap_or_default()),
        ("vm_hwm_mib", load.figures.get("vm_hwm_mib").copied().unwrap_or_default()),
    ]);
}

fn throughput(load: &Measured) -> Option<f64> {
    load.figures.get("messages_per_s").copied()
}

fn is_held(reached: f64, reference: f64) -> bool {
    reached >= HELD_PART * reference
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_tenths_are_held() {
        assert!(is_held(90.0, 100.0));
        assert!(!is_held(89.9, 100.0));
        assert!(HEAPS_MIB.is_sorted_by(|left, right| left > right) && HEAPS_MIB[0] < DEFAULT_HEAP_MIB);
    }
}
