//! SyncCosts (32767) version 0: the probe's own API, which returns the time of each of its syncs.

use anyhow::Result;
use hdrhistogram::Histogram;

use super::SYNC_COSTS;
use crate::bytes::{Reader, Writer};
use crate::connection::Connection;
use crate::latency::new_histogram;

/// Returns the nanoseconds of each sync since the last call, or since the probe's start.
pub(crate) fn take(connection: &mut Connection) -> Result<Histogram<u64>> {
    read(connection.call(SYNC_COSTS, |_| {})?)
}

/// Writes the body of a response: (nanoseconds, count) of all recorded values.
pub(crate) fn write(writer: &mut Writer, costs: &Histogram<u64>) {
    writer.compact_len(costs.iter_recorded().count());
    for cost in costs.iter_recorded() {
        writer.i64(cost.value_iterated_to() as i64);
        writer.i64(cost.count_at_value() as i64);
    }
    writer.no_tags();
}

fn read(mut reader: Reader<'_>) -> Result<Histogram<u64>> {
    let mut costs = new_histogram();
    for _ in 0..reader.compact_len()? {
        let (cost_ns, count) = (reader.u64()?, reader.u64()?);
        costs.saturating_record_n(cost_ns, count);
    }
    reader.skip_tags()?;
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::batch::{BatchBuilder, ProducerFields};
    use crate::probe::{ProbeOptions, serve};
    use crate::protocol::data;
    use crate::workload::{Acks, Durability};

    #[test]
    fn costs_come_back_as_they_were_written() {
        let mut costs = new_histogram();
        (1..=1_000u64).for_each(|nth| costs.record(nth * nth * 100).unwrap());
        let mut writer = Writer::default();
        write(&mut writer, &costs);
        let read = read(Reader::new(writer.as_bytes())).unwrap();
        assert_eq!(read.len(), 1_000);
        for quantile in [0.0, 0.5, 0.99, 0.999, 1.0] {
            assert_eq!(read.value_at_quantile(quantile), costs.value_at_quantile(quantile));
        }
    }

    /// Returns the number of syncs that the probe reports after three batches, and when it is asked again right away.
    fn syncs_of_three_batches(durability: Durability) -> (u64, u64) {
        let directory = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut connection = Connection::open(listener.local_addr().unwrap()).unwrap();
        let options = ProbeOptions { directory: directory.path().to_owned(), partitions: 2, durability };
        // The probe serves until its process ends; the thread is left to that.
        thread::spawn(move || serve(listener, &options));
        let mut batch = BatchBuilder::default();
        batch.append(5, 1, |writer| writer.raw(b"x"));
        let batch = batch.finish(ProducerFields::NONE);
        for partition in [0, 1, 0] {
            data::produce(&mut connection, Acks::All, &[0; 16], partition, batch).unwrap();
        }
        let costs = take(&mut connection).unwrap();
        // A system call takes longer than this, whatever the disk.
        assert!(costs.is_empty() || costs.min() > 100, "{} ns", costs.min());
        (costs.len(), take(&mut connection).unwrap().len())
    }

    #[test]
    fn the_probe_times_each_of_its_syncs_and_tells_it_once() {
        assert_eq!(syncs_of_three_batches(Durability::Fsync), (3, 0));
        assert_eq!(syncs_of_three_batches(Durability::PageCache), (0, 0));
    }
}
