//! A proxy between clients and a broker that injects faults on request, such as brokers have in operation.
//!
//! The broker advertises the proxy's address instead of its own, so that clients always go through it. It understands just enough of the
//! protocol to know each request and answer, and to find the error code of an answer's partition.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail, ensure};

pub(crate) const PRODUCE: i16 = 0;
pub(crate) const FETCH: i16 = 1;
pub(crate) const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;

/// A longer frame is a broken one.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// From these versions on, lengths are varints and answers have tagged fields.
const PRODUCE_FLEXIBLE: i16 = 9;
const FETCH_FLEXIBLE: i16 = 12;
/// From these versions on, topics are named by their ids.
const PRODUCE_BY_ID: i16 = 13;
const FETCH_BY_ID: i16 = 13;

/// A fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A number of answers of an API have this error code instead of their partition's.
    Error { api: i16, code: i16, times: usize },
    /// A number of requests of an API reach the broker, and then the connection is closed instead of their answer.
    HangUp { api: i16, times: usize },
    /// The broker says that it knows an API up to this version only.
    Old { api: i16, version: i16 },
}

/// A proxy; it ends with the process.
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// The number of requests of each API.
    requests: HashMap<i16, usize>,
}

impl Proxy {
    /// Listens on a free port for connections to `broker`.
    pub(crate) fn start(broker: SocketAddr) -> Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                // If the broker is not running, the client sees its connection closed.
                thread::spawn(move || drop(serve(client, broker, &shared)));
            }
        });
        Ok(Proxy { address, state })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Injects this fault from now on, and no other.
    pub(crate) fn set(&self, fault: Fault) {
        lock(&self.state).fault = Some(fault);
    }

    /// Injects no fault from now on. Returns true if the last fault has occurred as often as it was asked for.
    pub(crate) fn clear(&self) -> bool {
        let fault = lock(&self.state).fault.take();
        matches!(fault, None | Some(Fault::Old { .. }))
    }

    /// Returns the number of requests of an API so far.
    pub(crate) fn requests(&self, api: i16) -> usize {
        lock(&self.state).requests.get(&api).copied().unwrap_or_default()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// API and version of the requests that are under way on a connection, by correlation id.
type UnderWay = Arc<Mutex<HashMap<i32, (i16, i16)>>>;

/// Carries frames both ways until one side closes.
fn serve(client: TcpStream, broker: SocketAddr, state: &Arc<Mutex<State>>) -> Result<()> {
    let broker = TcpStream::connect(broker)?;
    client.set_nodelay(true)?;
    broker.set_nodelay(true)?;
    let under_way = UnderWay::default();
    let (mut to_broker, mut from_client) = (broker.try_clone()?, client.try_clone()?);
    let (requests, shared) = (Arc::clone(&under_way), Arc::clone(state));
    let forward = thread::spawn(move || {
        // Both sides see the end of their connection.
        let _ = carry_requests(&mut from_client, &mut to_broker, &requests, &shared);
        let _ = to_broker.shutdown(Shutdown::Both);
    });
    let result = carry_answers(&broker, &client, &under_way, state);
    let _ = client.shutdown(Shutdown::Both);
    let _ = broker.shutdown(Shutdown::Both);
    forward.join().ok().context("the thread of the requests panicked")?;
    result
}

fn carry_requests(
    client: &mut TcpStream,
    broker: &mut TcpStream,
    under_way: &UnderWay,
    state: &Mutex<State>,
) -> Result<()> {
    loop {
        let frame = read_frame(client)?;
        let mut header = Body { bytes: &frame, at: 0 };
        let (api, version, correlation) = (header.i16()?, header.i16()?, header.i32()?);
        *lock(state).requests.entry(api).or_default() += 1;
        under_way.lock().unwrap_or_else(PoisonError::into_inner).insert(correlation, (api, version));
        write_frame(broker, &frame)?;
    }
}

fn carry_answers(
    mut broker: &TcpStream,
    mut client: &TcpStream,
    under_way: &UnderWay,
    state: &Mutex<State>,
) -> Result<()> {
    loop {
        let mut frame = read_frame(&mut broker)?;
        let correlation = Body { bytes: &frame, at: 0 }.i32()?;
        let request = under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&correlation);
        let (api, version) = request.context("an answer to a request")?;
        let is_passed = strike(&mut lock(state).fault, api, version, &mut frame)?;
        if !is_passed {
            bail!("hung up");
        }
        write_frame(&mut client, &frame)?;
    }
}

/// Injects the fault into an answer, if it applies, and counts it; returns false if the connection is to be closed instead.
fn strike(fault: &mut Option<Fault>, api: i16, version: i16, frame: &mut [u8]) -> Result<bool> {
    match fault {
        Some(Fault::Error { api: wanted, code, times }) if *wanted == api => {
            if let Some(at) = error_position(api, version, frame)? {
                frame[at..at + 2].copy_from_slice(&code.to_be_bytes());
                *times -= 1;
                if *times == 0 {
                    *fault = None;
                }
            }
        }
        Some(Fault::HangUp { api: wanted, times }) if *wanted == api => {
            *times -= 1;
            if *times == 0 {
                *fault = None;
            }
            return Ok(false);
        }
        Some(Fault::Old { api: limited, version: latest }) if api == API_VERSIONS => {
            limit_version(version, frame, *limited, *latest)?;
        }
        _ => {}
    }
    Ok(true)
}

/// Returns the place of the error code of the first partition in an answer to Produce or Fetch, if it has a partition.
fn error_position(api: i16, version: i16, frame: &[u8]) -> Result<Option<usize>> {
    let (is_flexible, is_by_id) = match api {
        PRODUCE => (version >= PRODUCE_FLEXIBLE, version >= PRODUCE_BY_ID),
        FETCH => (version >= FETCH_FLEXIBLE, version >= FETCH_BY_ID),
        _ => bail!("API {api} has no partitions here"),
    };
    let mut body = Body { bytes: frame, at: 4 };
    if is_flexible {
        ensure!(body.varint()? == 0, "tagged fields in an answer's header");
    }
    if api == FETCH {
        // Throttle time, error code, session id; all versions that a 4.x broker serves with a session have them.
        body.skip(if version >= 7 { 10 } else { 4 })?;
    }
    if body.length(is_flexible)? == 0 {
        return Ok(None);
    }
    let name_length = if is_by_id { 16 } else { body.text_length(is_flexible)? };
    body.skip(name_length)?;
    if body.length(is_flexible)? == 0 {
        return Ok(None);
    }
    body.skip(4)?;
    Ok(Some(body.at))
}

/// Overwrites the latest version of `api` in an answer to ApiVersions.
fn limit_version(version: i16, frame: &mut [u8], api: i16, latest: i16) -> Result<()> {
    let is_flexible = version >= 3;
    // The header of this answer never has tagged fields; then an error code.
    let mut body = Body { bytes: frame, at: 6 };
    let mut place = None;
    for _ in 0..body.length(is_flexible)? {
        let (key, at) = (body.i16()?, body.at + 2);
        if key == api {
            place = Some(at);
        }
        body.skip(4)?;
        if is_flexible {
            ensure!(body.varint()? == 0, "tagged fields of an API");
        }
    }
    let at = place.with_context(|| format!("API {api} is not listed"))?;
    frame[at..at + 2].copy_from_slice(&latest.to_be_bytes());
    Ok(())
}

fn read_frame(stream: &mut impl Read) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(i32::from_be_bytes(length))?;
    ensure!((4..=FRAME_BYTES_MAX).contains(&length), "a frame of {length} bytes");
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

fn write_frame(stream: &mut impl Write, frame: &[u8]) -> Result<()> {
    let length = i32::try_from(frame.len())?.to_be_bytes();
    stream.write_all(&[&length, frame].concat())?;
    Ok(())
}

/// A place in a frame.
struct Body<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Body<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let rest = self.bytes.get(self.at..).context("the frame ends too early")?;
        let head = rest.first_chunk::<N>().context("the frame ends too early")?;
        self.at += N;
        Ok(*head)
    }

    fn skip(&mut self, count: usize) -> Result<()> {
        ensure!(self.bytes.len() - self.at >= count, "the frame ends too early");
        self.at += count;
        Ok(())
    }

    fn i16(&mut self) -> Result<i16> {
        self.take().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32> {
        self.take().map(i32::from_be_bytes)
    }

    fn varint(&mut self) -> Result<usize> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let [byte] = self.take::<1>()?;
            value |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        bail!("a varint of more than five bytes")
    }

    /// The length of an array; null is as good as empty here.
    fn length(&mut self, is_flexible: bool) -> Result<usize> {
        if is_flexible {
            return Ok(self.varint()?.saturating_sub(1));
        }
        Ok(usize::try_from(self.i32()?.max(0))?)
    }

    fn text_length(&mut self, is_flexible: bool) -> Result<usize> {
        if is_flexible {
            return Ok(self.varint()?.saturating_sub(1));
        }
        Ok(usize::try_from(self.i16()?.max(0))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(api: i16, version: i16, frame: &[&[u8]], expected: Option<&[&[u8]]>) {
        let mut struck = frame.concat();
        let mut fault = Some(Fault::Error { api, code: 6, times: 1 });
        assert!(strike(&mut fault, api, version, &mut struck).unwrap());
        assert_eq!(struck, expected.unwrap_or(frame).concat());
        assert_eq!(fault.is_none(), expected.is_some());
    }

    #[test]
    fn the_error_code_of_a_partition_is_found_in_every_shape() {
        let (id, index) = ([7; 16], [0, 0, 0, 0]);
        check(
            PRODUCE,
            13,
            &[&[0, 0, 0, 9, 0, 2], &id, &[2], &index, &[0, 0, 1]],
            Some(&[&[0, 0, 0, 9, 0, 2], &id, &[2], &index, &[0, 6, 1]]),
        );
        check(
            PRODUCE,
            8,
            &[&[0, 0, 0, 9, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1], &index, &[0, 0, 1]],
            Some(&[&[0, 0, 0, 9, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1], &index, &[0, 6, 1]]),
        );
        let fetch = [0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 2];
        check(FETCH, 17, &[&fetch, &id, &[2], &index, &[0, 0]], Some(&[&fetch, &id, &[2], &index, &[0, 6]]));
    }

    #[test]
    fn an_answer_without_partitions_is_let_through() {
        check(FETCH, 17, &[&[0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 1, 0]], None);
    }

    #[test]
    fn the_latest_version_of_an_api_is_lowered() {
        let mut frame = [0, 0, 0, 9, 0, 0, 3, 0, 0, 0, 3, 0, 13, 0, 0, 1, 0, 4, 0, 17, 0, 0];
        limit_version(4, &mut frame, FETCH, 9).unwrap();
        assert_eq!(frame, [0, 0, 0, 9, 0, 0, 3, 0, 0, 0, 3, 0, 13, 0, 0, 1, 0, 4, 0, 9, 0, 0]);
    }
}
