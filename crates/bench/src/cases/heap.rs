//! The smallest heap for Kafka: a load with less and less of it, until the throughput falls.

use anyhow::{Context, Result};

use super::{Case, Measured, load};
use crate::broker::{DEFAULT_HEAP_MIB, Starved};
use crate::workload::LoadShape;

/// Heaps that are tried after the default, until several in a row are too small.
const HEAPS_MIB: [u32; 10] = [768, 512, 384, 256, 192, 160, 128, 96, 64, 48];
/// One bad run alone may be the machine's fault.
const MISSES_MAX: u32 = 2;
/// The part of the default heap's throughput that a smaller heap must reach.
const HELD_PART: f64 = 0.9;

pub(super) fn run(case: &Case<'_>, shape: LoadShape) -> Result<Measured> {
    sweep(|heap_mib| load::run(case, shape, heap_mib))
}

fn sweep(mut load: impl FnMut(u32) -> Result<Measured>) -> Result<Measured> {
    let full = load(DEFAULT_HEAP_MIB)?;
    let reference = throughput(&full).context("a load tells its throughput")?;
    let mut measured = Measured::default();
    note_held(&mut measured, DEFAULT_HEAP_MIB, &full);
    note_others(&mut measured, &full);
    measured.add([("messages_per_s_of_default_heap", reference)]);
    let mut misses = 0;
    for heap_mib in HEAPS_MIB {
        let load = load(heap_mib).or_else(|error| none_if_starved(&mut measured, heap_mib, error))?;
        let reached = throughput(&load).unwrap_or_default();
        measured.figures.insert(format!("messages_per_s_of_{heap_mib}_mib"), reached);
        note_others(&mut measured, &load);
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

/// Keeps the words of a JVM that does not start, or dies, with so little memory: that is an answer. Any other failure says nothing about
/// the heap.
fn none_if_starved(measured: &mut Measured, heap_mib: u32, error: anyhow::Error) -> Result<Measured> {
    let error = error.context(format!("with a heap of {heap_mib} MiB"));
    if !error.is::<Starved>() {
        return Err(error);
    }
    measured.notes.push(format!("{error:#}"));
    Ok(Measured::default())
}

/// Replaces the notes of a larger heap.
fn note_held(measured: &mut Measured, heap_mib: u32, load: &Measured) {
    measured.add([
        ("smallest_heap_mib", f64::from(heap_mib)),
        ("messages_per_s", throughput(load).unwrap_or_default()),
        ("vm_hwm_mib", load.figures.get("vm_hwm_mib").copied().unwrap_or_default()),
    ]);
}

/// Keeps the most CPUs that others used beside a load: such a load may show too large a heap.
fn note_others(measured: &mut Measured, load: &Measured) {
    let of = |measured: &Measured| measured.figures.get("other_cpus").copied();
    let most = of(measured).into_iter().chain(of(load)).reduce(f64::max);
    measured.figures.extend(most.map(|cpus| ("other_cpus".to_owned(), cpus)));
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

    /// A load with this throughput.
    fn reaching(messages_per_s: f64) -> Result<Measured> {
        Ok(Measured::of([("messages_per_s", messages_per_s), ("vm_hwm_mib", 100.0)]))
    }

    /// A load beside other processes that use so many CPUs.
    fn disturbed(messages_per_s: f64, other_cpus: f64) -> Result<Measured> {
        let mut measured = reaching(messages_per_s)?;
        measured.add([("other_cpus", other_cpus)]);
        Ok(measured)
    }

    fn starved() -> Result<Measured> {
        Err(Starved("kafka ended: java.lang.OutOfMemoryError".to_owned()).into())
    }

    #[test]
    fn the_smallest_heap_that_holds_is_found() {
        let mut tried = Vec::new();
        let measured = sweep(|heap_mib| {
            tried.push(heap_mib);
            match heap_mib {
                512 => reaching(89.0),
                192 | 160 => starved(),
                _ => reaching(100.0),
            }
        })
        .unwrap();
        assert_eq!(tried, [1_024, 768, 512, 384, 256, 192, 160]);
        let expected = [("smallest_heap_mib", 256.0), ("messages_per_s_of_512_mib", 89.0)];
        for (key, value) in expected.into_iter().chain([("messages_per_s_of_160_mib", 0.0)]) {
            assert_eq!(measured.figures.get(key), Some(&value), "{key}");
        }
        let notes = [192, 160].map(|heap_mib| {
            format!("with a heap of {heap_mib} MiB: kafka ended: java.lang.OutOfMemoryError")
        });
        assert_eq!(measured.notes, notes);
    }

    #[test]
    fn what_fails_for_another_reason_is_no_heap_that_is_too_small() {
        for failing in [1_024, 512] {
            let load = |heap_mib: u32| match heap_mib == failing {
                true => Err(anyhow::anyhow!("9 records were acknowledged, 8 consumed")),
                false => reaching(100.0),
            };
            let message = format!("{:#}", sweep(load).unwrap_err());
            assert!(message.contains("8 consumed"), "{message}");
        }
    }

    #[test]
    fn a_sweep_is_as_disturbed_as_the_worst_of_its_loads() {
        let others = |worst: u32| {
            let load = |heap_mib: u32| match heap_mib {
                ..=128 => starved(),
                heap_mib if heap_mib == worst => disturbed(50.0, 0.75),
                _ => disturbed(100.0, 0.01),
            };
            sweep(load).unwrap().figures["other_cpus"]
        };
        assert_eq!([1_024, 512, 256, 48].map(others), [0.75, 0.75, 0.75, 0.01]);
    }

    #[test]
    fn nine_tenths_are_held() {
        assert!(is_held(90.0, 100.0));
        assert!(!is_held(89.9, 100.0));
        assert!(HEAPS_MIB.is_sorted_by(|left, right| left > right) && HEAPS_MIB[0] < DEFAULT_HEAP_MIB);
    }
}
