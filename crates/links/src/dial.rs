//! The dialling end of a link: it writes what the outbox has, and reads answers to requests.

use std::io::{self, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use mainstem_replication::link::{self, Frame};

use super::calls::{CALL_BYTES_MAX, CallError, SERVED};
use super::channel::{Channel, ChannelReader};
use super::hello::{Hello, Welcome, read_frame};
use super::reading::Input;
use super::writing::Writer;
use super::{GONE, Links, PeerLink, set_silence_max};
use mainstem_runtime::clock::machine_now;
use mainstem_runtime::supervised;

/// Between two attempts to dial, at first and at most.
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// Limit of the time for a connection, and for the answer to a hello.
const DIAL_TIME: Duration = Duration::from_secs(2);
/// Interval of the checks whether a peer has authenticated, and the time after which a warning says that it has not.
const PROOF_EVERY: Duration = Duration::from_millis(10);
const PROOF_TIME: Duration = Duration::from_secs(2);

/// Why a link did not begin.
#[derive(Debug, thiserror::Error)]
enum DialError {
    /// The peer's process is not there, or does not listen yet.
    #[error("{0}")]
    Absent(io::Error),
    /// It cannot be reached, or does not answer.
    #[error("{0}")]
    Unreachable(#[from] io::Error),
    /// It takes no link from this node.
    #[error("{0}")]
    Refused(String),
    /// It takes none, as it is of another cluster.
    #[error("{refusal}")]
    OtherCluster { cluster_id: String, refusal: String },
}

/// Dials a peer, again and again, and writes what there is for it.
pub(super) fn run(links: &Arc<Links>, peer: &Arc<PeerLink>) {
    let (mut back_off, mut said) = (BACK_OFF_MIN, String::new());
    let mut is_gone = false;
    while !links.is_over(peer) {
        let dialled = dial(links, peer);
        if links.is_over(peer) {
            return;
        }
        *peer.other_cluster.lock() = match &dialled {
            Err(DialError::OtherCluster { cluster_id, .. }) => Some(cluster_id.clone()),
            _ => None,
        };
        match dialled {
            Ok(mut channel) => {
                (back_off, is_gone) = (BACK_OFF_MIN, false);
                said.clear();
                note_reached(links, peer);
                if await_proof(links, peer, &mut channel) {
                    serve(links, peer, channel);
                }
                // At once: a peer that refuses now has died.
                continue;
            }
            Err(error) => {
                if matches!(error, DialError::Absent(_)) && !std::mem::replace(&mut is_gone, true) {
                    links.node_gone(peer.peer.node);
                }
                let (node, text) = (peer.peer.node, error.to_string());
                note_not_reached(links, peer, &text);
                // A state that lasts is logged once.
                if said != text {
                    let (host, port) = (&peer.peer.host, peer.peer.port);
                    match error {
                        DialError::Refused(_) | DialError::OtherCluster { .. } => {
                            tracing::error!(node, "no link to {host}:{port}: {text}");
                        }
                        _ => tracing::warn!(node, "no link to {host}:{port}: {text}"),
                    }
                    said = text;
                }
            }
        }
        let mut outbox = peer.outbox.lock();
        if !links.is_over(peer) {
            peer.wake.wait_for(&mut outbox, back_off);
        }
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

/// Notes that a peer was reached, unless it is gone.
fn note_reached(links: &Links, peer: &PeerLink) {
    links.peers.unless_gone(peer, || links.awaited().reached(peer.peer.node));
}

/// Notes why a peer was not reached, unless it is gone.
fn note_not_reached(links: &Links, peer: &PeerLink, why: &str) {
    let note = || links.awaited().not_reached(&peer.peer.voter(), why, links.now_ms());
    links.peers.unless_gone(peer, note);
}

fn dial(links: &Links, peer: &PeerLink) -> Result<Channel, DialError> {
    let addresses: Vec<_> = (peer.peer.host.as_str(), peer.peer.port).to_socket_addrs()?.collect();
    peer.found_at(&addresses);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut connected = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, DIAL_TIME) {
            Ok(stream) => {
                connected = Some(stream);
                break;
            }
            Err(error) => last = error,
        }
    }
    let Some(stream) = connected else {
        return Err(match last.kind() {
            io::ErrorKind::ConnectionRefused => DialError::Absent(last),
            _ => DialError::Unreachable(last),
        });
    };
    stream.set_nodelay(true)?;
    set_silence_max(&stream, links.options.silence.silence_max)?;
    let mut channel =
        links.gate.dial(stream, (peer.peer.node, &peer.peer.host), DIAL_TIME).map_err(unproven)?;
    if peer.is_gone() {
        // It sees no hello after it was removed, however long the connection took.
        return Err(DialError::Unreachable(io::Error::other(GONE)));
    }
    let hello = Hello {
        cluster_id: links.cluster_id.clone(),
        node: links.node,
        generation: links.generation,
        to: peer.peer.node,
    };
    channel.writer.write_all(&hello.encode())?;
    // A node that starts takes links a little later than connections.
    let frame = read_frame(&mut channel.reader).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => DialError::Unreachable(io::Error::other("it takes no links yet")),
        _ => unproven(error),
    })?;
    let welcome = Welcome::decode(&frame).map_err(|error| DialError::Refused(error.to_string()))?;
    // One that does not say its cluster's id does not know the address of this node.
    let names_cluster = !welcome.cluster_id.is_empty();
    if !welcome.refusal.is_empty() && names_cluster && welcome.cluster_id != links.cluster_id {
        let Welcome { cluster_id, refusal, .. } = welcome;
        return Err(DialError::OtherCluster { cluster_id, refusal });
    }
    if !welcome.refusal.is_empty() {
        return Err(DialError::Refused(welcome.refusal));
    }
    if welcome.node != peer.peer.node {
        let (found, wanted) = (welcome.node, peer.peer.node);
        return Err(DialError::Refused(format!(
            "there is node {found}, not node {wanted}; check controller.quorum.voters"
        )));
    }
    channel.begin(None)?;
    Ok(channel)
}

/// One of both does not believe the other, or the connection cannot be.
fn unproven(error: io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::InvalidData => DialError::Refused(error.to_string()),
        _ => DialError::Unreachable(error),
    }
}

/// Waits until the peer has authenticated. A peer that is dialled does not prove who it is; it does so with the link that it
/// dials itself. Until then nothing but heartbeats is sent to it. Returns false if the link has ended.
fn await_proof(links: &Links, peer: &PeerLink, channel: &mut Channel) -> bool {
    if !links.gate.wants_proof() {
        return true;
    }
    let node = peer.peer.node;
    let (begun, mut sign_at, mut is_said) = (machine_now(), machine_now(), false);
    let mut sign = Vec::new();
    link::heartbeats(&[], &mut sign);
    while !peer.incoming.is_alive(links.now_ms()) {
        if links.is_over(peer) {
            return false;
        }
        if !is_said && machine_now().duration_since(begun) >= PROOF_TIME {
            is_said = true;
            let why = format!(
                "nothing is sent to node {node}, which takes this node's link, until it has proven who it is by a link of \
                 its own; its log, or this one, says why it does not"
            );
            tracing::warn!(node, "{why}");
            note_not_reached(links, peer, &why);
        }
        if machine_now().duration_since(sign_at) >= links.options.silence.keep_alive {
            sign_at = machine_now();
            if channel.writer.write_all(&sign).is_err() {
                std::thread::sleep(BACK_OFF_MIN);
                return false;
            }
        }
        std::thread::sleep(PROOF_EVERY);
    }
    note_reached(links, peer);
    true
}

/// Writes until the link ends.
fn serve(links: &Arc<Links>, peer: &Arc<PeerLink>, channel: Channel) {
    let Ok(control) = channel.control() else {
        tracing::error!(node = peer.peer.node, "no descriptor is left for a link");
        return std::thread::sleep(BACK_OFF_MAX);
    };
    let Channel { reader, writer } = channel;
    peer.begin(Some(control));
    if links.is_over(peer) {
        // All links that were open have been ended, and this one was not among them.
        peer.end();
    }
    tracing::info!(node = peer.peer.node, "linked to node {}", peer.peer.node);
    let answers = {
        let peer = peer.clone();
        let name = format!("link-answers-{}", peer.peer.node);
        supervised::spawn_vital(&name, "who waits for another node would wait for ever", move || {
            let ended = read_answers(&peer, reader);
            // The writer may wait for a disk for longer than answers are waited for.
            peer.close();
            peer.wake.notify_one();
            ended
        })
    };
    let written = match &answers {
        Ok(_) => Writer::new(writer, links.clone(), machine_now()).run(peer),
        Err(error) => Err(io::Error::new(error.kind(), "no thread can be made")),
    };
    peer.close();
    let read = answers.map(mainstem_runtime::sync::Thread::join);
    if links.is_stopping() {
        return;
    }
    let node = peer.peer.node;
    if peer.is_gone() {
        tracing::info!(node, "the link to node {node} ended: {GONE}");
    } else {
        let why = match (written, read) {
            (Err(error), _) => error.to_string(),
            (Ok(()), Ok(Ok(Err(error)))) => error.to_string(),
            _ => "the node has ended it".to_owned(),
        };
        tracing::warn!(node, "the link to node {node} ended: {why}");
    }
    links.report_unreachable(node);
}

/// Reads answers until the link ends.
fn read_answers(peer: &PeerLink, mut stream: ChannelReader) -> io::Result<()> {
    let mut input = Input::new(CALL_BYTES_MAX);
    while input.fill(&mut stream)? {
        take_answers(peer, &mut input)?;
    }
    Ok(())
}

/// Gives the answers that were read to those that wait for them.
///
/// # Errors
/// What was read is no answer.
pub(crate) fn take_answers(peer: &PeerLink, input: &mut Input) -> io::Result<()> {
    while let Some((frame, len)) = input.frame()? {
        let Frame::Answer { id, status, body } = frame else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it sent what is no answer"));
        };
        let answer = if status == SERVED { Ok(body.to_vec()) } else { Err(CallError::Refused) };
        let on_answer = peer.outbox.lock().take_waiting(id);
        if let Some(on_answer) = on_answer {
            on_answer(answer);
        }
        input.consume(len);
    }
    Ok(())
}
