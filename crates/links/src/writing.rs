//! Frames of the dialling end of a link: what the outbox has, in the order of its urgency.

use std::collections::HashMap;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_replication::link::{self, Alias, Heartbeat};
use mainstem_replication::{GroupId, ReplicaId};

use super::group::is_append;
use super::outbox::{Batch, Item, Outbox};
use super::{Lead, Links, PeerLink};
use mainstem_runtime::clock::machine_now;

/// Frames up to this size are gathered before they are written.
const GATHERED_BYTES: usize = 64 << 10;
/// Heartbeats in one frame.
const HEARTBEATS_MAX: usize = 10_000;

/// Writes frames to a connection.
pub(super) struct Writer<S> {
    stream: S,
    links: Arc<Links>,
    /// The numbers of groups on this link, by group and receiver.
    /// By group, and the replicas that speak and are spoken to: a node may get another replica of a group.
    aliases: HashMap<(GroupId, ReplicaId, ReplicaId), u32>,
    out: Vec<u8>,
    batches: Vec<u8>,
    written_at: Instant,
}

/// The next act of a writer.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and mostly it is the large one")]
pub(super) enum Next {
    /// It writes.
    Write(Batch),
    /// Waits for something to write, for at most this time.
    Wait(Duration),
    /// The link has ended.
    End,
}

impl<S: Write> Writer<S> {
    /// A writer to which nothing was written by `now`.
    pub(super) fn new(stream: S, links: Arc<Links>, now: Instant) -> Writer<S> {
        Writer {
            stream,
            links,
            aliases: HashMap::new(),
            out: Vec::new(),
            batches: Vec::new(),
            written_at: now,
        }
    }

    /// Writes until the link ends.
    ///
    /// # Errors
    /// The connection's, and of batches that cannot be read.
    pub(super) fn run(mut self, peer: &PeerLink) -> io::Result<()> {
        loop {
            let mut outbox = peer.outbox.lock();
            match self.next(&mut outbox, machine_now()) {
                Next::End => return Ok(()),
                Next::Wait(pause) => _ = peer.wake.wait_for(&mut outbox, pause),
                Next::Write(batch) => {
                    drop(outbox);
                    self.write(peer, batch, machine_now())?;
                }
            }
        }
    }

    /// Returns what to do at `now`, which is of the clock that silence is measured with.
    pub(super) fn next(&mut self, outbox: &mut Outbox, now: Instant) -> Next {
        if !outbox.is_open() {
            return Next::End;
        }
        let keep_alive = self.links.options.silence.keep_alive;
        // Only replicas that catch up have a rate.
        let pause = match outbox.has_behind() {
            true => self.links.throttle.pause(self.links.clock().instant()),
            false => Duration::ZERO,
        };
        let batch = outbox.take(pause.is_zero());
        if batch.is_throttled {
            // What follows in its group costs no more than that did.
            let rate = |item: &Item| self.links.catch_up_rate(item.catches_up.unwrap_or_default());
            let cost = batch.append.as_ref().map(|item| (item.outgoing.bytes, rate(item)));
            let (bytes, rate) = cost.unwrap_or((0, 1));
            self.links.throttle.charge(self.links.clock().instant(), bytes, rate);
        }
        let is_silent = now.saturating_duration_since(self.written_at) >= keep_alive;
        if !batch.is_empty() || !self.out.is_empty() || is_silent {
            return Next::Write(batch);
        }
        let pause = self.links.clock().machine_wait(pause);
        Next::Wait(if outbox.has_behind() { pause.min(keep_alive) } else { keep_alive })
    }

    /// The connection.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Writes what the outbox had.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(super) fn write(&mut self, peer: &PeerLink, batch: Batch, now: Instant) -> io::Result<()> {
        let is_last = batch.append.is_none();
        if batch.is_empty() && self.out.is_empty() {
            // Nothing but a sign of life.
            link::heartbeats(&[], &mut self.out);
        }
        self.put_heartbeats(peer, batch.heartbeats.into_values());
        if let Some(at_ms) = batch.repeat {
            let leads = |lead: &Lead| lead.handle.leads_on(lead.term, at_ms);
            let repeat = peer.coalesced.lock().repeat(leads);
            repeat.iter().for_each(|repeat| link::repeat(repeat, &mut self.out));
        }
        batch.answer.iter().for_each(|answer| link::repeat_answer(answer, &mut self.out));
        for item in batch.control {
            let alias = self.alias(&item);
            // A type that no replica sends is not sent.
            link::message(alias, &item.outgoing.message, &mut self.out);
        }
        for call in batch.calls {
            link::call(call.id, call.kind.0, &call.body, &mut self.out);
        }
        if let Some(item) = batch.append {
            self.put_append(&item, now)?;
        }
        if is_last || self.out.len() >= GATHERED_BYTES {
            self.flush(now)?;
        }
        Ok(())
    }

    fn put_heartbeats(&mut self, peer: &PeerLink, items: impl Iterator<Item = Item>) {
        let (mut once, mut coalesced) = (Vec::new(), Vec::new());
        for item in items {
            let (term, commit) = (item.outgoing.message.term, item.outgoing.message.commit);
            let alias = self.alias(&item);
            if item.outgoing.begins_coalescing {
                peer.coalesced.lock().insert(alias, Lead { handle: item.handle, term });
                coalesced.push(Heartbeat { alias, term, commit });
            } else {
                once.push(Heartbeat { alias, term, commit });
            }
        }
        for heartbeats in once.chunks(HEARTBEATS_MAX) {
            link::heartbeats(heartbeats, &mut self.out);
        }
        for heartbeats in coalesced.chunks(HEARTBEATS_MAX) {
            link::coalesced_heartbeats(heartbeats, &mut self.out);
        }
    }

    fn put_append(&mut self, item: &Item, now: Instant) -> io::Result<()> {
        debug_assert!(is_append(&item.outgoing.message));
        let (alias, outgoing) = (self.alias(item), &item.outgoing);
        self.batches.clear();
        if !outgoing.offsets.is_empty() {
            let gone = || io::Error::new(io::ErrorKind::NotFound, "the partition is gone");
            let group = item.handle.group().ok_or_else(gone)?;
            group.read_batches(&outgoing.offsets, &mut self.batches)?;
        }
        let len = u32::try_from(self.batches.len()).map_err(io::Error::other)?;
        link::append_head(alias, &outgoing.message, outgoing.offset, len, &mut self.out);
        if self.out.len() + self.batches.len() <= GATHERED_BYTES {
            self.out.extend_from_slice(&self.batches);
            return Ok(());
        }
        write_both(&mut self.stream, &self.out, &self.batches)?;
        self.written_at = now;
        self.out.clear();
        // One large batch does not keep its memory.
        self.batches.shrink_to(1 << 20);
        Ok(())
    }

    /// The number of a group on this link, which the peer learns from a frame before its first use.
    fn alias(&mut self, item: &Item) -> u32 {
        let number = self.aliases.len() as u32;
        let known = self.aliases.entry((item.handle.id, item.handle.own, item.outgoing.to));
        *known.or_insert_with(|| {
            let alias = Alias { number, group: item.handle.id, from: item.handle.own, to: item.outgoing.to };
            link::group(&alias, &mut self.out);
            number
        })
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out)?;
            self.written_at = now;
            self.out.clear();
            self.out.shrink_to(2 * GATHERED_BYTES);
        }
        Ok(())
    }
}

fn write_both(stream: &mut impl Write, head: &[u8], body: &[u8]) -> io::Result<()> {
    let mut slices = [IoSlice::new(head), IoSlice::new(body)];
    let mut slices = &mut slices[..];
    while !slices.is_empty() {
        match stream.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
