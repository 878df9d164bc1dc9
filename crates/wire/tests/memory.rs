//! No message of a peer makes a decoder take more memory than its budget, measured at the allocator.
#![allow(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use mainstem_wire::catalogue::MESSAGES;
use mainstem_wire::frame::{open_request, write_request};
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::metadata_request::MetadataRequest;
use mainstem_wire::messages::offset_fetch_request::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::sample::{Rng, Sampler};
use mainstem_wire::{
    ApiKey, Decoder, Encoder, Malformed, Message, elements_budget, memory_budget, request_memory_budget,
};

/// Besides the budget there is what the error texts and the buffer for the second encoding take.
const SLACK: usize = 4096;

struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn count(change: impl Fn(usize) -> usize) {
    // After the end of the thread's storage nothing is measured any more.
    let _ = NOW.try_with(|now| {
        now.set(change(now.get()));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: all requests go to the system's allocator unchanged; the counters are thread-local and do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|now| now.saturating_add(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(|now| now.saturating_sub(layout.size()));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory that was held at once during `body`, beyond what was held before.
fn peak_of(body: impl FnOnce()) -> usize {
    let before = NOW.get();
    PEAK.set(before);
    body();
    PEAK.get() - before
}

#[test]
fn no_bytes_take_more_than_the_budget() {
    let sampler = Sampler::new();
    for (index, message) in MESSAGES.iter().enumerate() {
        for version in message.oldest..=message.newest {
            let mut rng = Rng(index as u64);
            let mut inputs = vec![vec![0; 4096], vec![1; 4096], vec![2; 4096], vec![0xff; 64]];
            // A true beginning with huge counts in it, and room for many small elements behind.
            for _ in 0..8 {
                let mut bytes = sampler.message(message.name, version, &mut rng);
                let at = rng.below(bytes.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend(
                    [&[0, 0, 0x0f, 0xf0][..], &[0xff, 0x1f], &[0x7f, 0xff, 0xff, 0xff]]
                        [rng.below(3) as usize],
                );
                bytes.resize(bytes.len() + 4096, rng.below(3) as u8);
                inputs.push(bytes);
            }
            for bytes in inputs {
                let limit = memory_budget(bytes.len()) + 3 * bytes.len() + SLACK;
                let peak = peak_of(|| drop(message.reencode(&bytes, version)));
                assert!(peak <= limit, "{} version {version}: {peak} bytes, {limit} allowed", message.name);
            }
        }
    }
}

#[test]
fn a_count_beyond_the_input_allocates_nothing() {
    let bytes = i32::MAX.to_be_bytes();
    let peak = peak_of(|| {
        let error = MetadataRequest::decode(&mut Decoder::new(&bytes), 0).unwrap_err();
        assert_eq!(error.field, "MetadataRequest.Topics");
        assert_eq!(error.kind, Malformed::Count { count: i32::MAX as usize, remaining: 0 });
    });
    assert_eq!(peak, 0);
}

/// Each element is two bytes and has a valid encoding, so only the budget stands in the way.
#[test]
fn many_small_elements_are_refused_by_the_budget() {
    let count = 100_000u32;
    let mut bytes = count.to_be_bytes().to_vec();
    bytes.resize(4 + 2 * count as usize, 0);
    let decode = |budget| MetadataRequest::decode(&mut Decoder::with_budget(&bytes, budget), 0);
    let peak = peak_of(|| {
        let error = decode(1 << 20).unwrap_err();
        assert!(matches!(error.kind, Malformed::Budget { left: 0x10_0000, .. }), "{error}");
    });
    assert_eq!(peak, 0);
    assert_eq!(decode(usize::MAX).unwrap().topics.map(|topics| topics.len()), Some(count as usize));
}

/// A number of four bytes counts as a name does.
#[test]
fn a_budget_bounds_the_number_of_elements_however_small_they_are() {
    let decode = |count: usize| {
        let topic = OffsetFetchRequestTopics { partition_indexes: vec![7; count - 2], ..Default::default() };
        let group = OffsetFetchRequestGroup { topics: Some(vec![topic]), ..Default::default() };
        let request = OffsetFetchRequest { groups: vec![group], ..Default::default() };
        let mut bytes = Vec::new();
        request.encode(&mut Encoder::new(&mut bytes), 9).unwrap();
        OffsetFetchRequest::decode(&mut Decoder::new(&bytes).held_to(elements_budget(1000)), 9).map(drop)
    };
    assert_eq!(decode(900), Ok(()));
    assert!(matches!(decode(1001).unwrap_err().kind, Malformed::Budget { .. }));
    // No budget grows by that.
    let bytes = [0, 0, 0, 1, 0, 0];
    let mut held = Decoder::with_budget(&bytes, 10).held_to(1000);
    let error = MetadataRequest::decode(&mut held, 0).unwrap_err();
    assert!(matches!(error.kind, Malformed::Budget { left: 10, .. }), "{error}");
}

/// Keys of no letters, one byte each, take 24 times that.
#[test]
fn a_long_request_takes_no_more_than_a_request_may() {
    let keys = |count: usize| {
        let coordinator_keys = vec!["".into(); count];
        let header = RequestHeader {
            request_api_key: ApiKey::FindCoordinator.key(),
            request_api_version: 4,
            client_id: Some("".into()),
            ..Default::default()
        };
        let request = FindCoordinatorRequest { coordinator_keys, ..Default::default() };
        let mut frame = Vec::new();
        write_request(&mut frame, &header, &request).unwrap();
        frame.split_off(4)
    };
    let most = request_memory_budget(usize::MAX);
    assert_eq!(most, (16 << 20) + (64 << 10));
    for (count, is_served) in [(500_000, true), (1_400_000, false)] {
        let frame = keys(count);
        let peak = peak_of(|| {
            let decoded = open_request(&frame).unwrap().decode::<FindCoordinatorRequest<'_>>();
            assert_eq!(decoded.is_ok(), is_served, "{count} keys");
        });
        assert!(peak <= most, "{count} keys take {peak} bytes");
    }
}
