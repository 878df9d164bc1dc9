//! Passwords over HTTP: checked one at a time, by a thread of lower priority than all others.
//!
//! A check takes thousands of hashes, and any client that reaches the listener may ask for one. An address has few of
//! them in progress at a time. So no unauthenticated peer can occupy the thread, or all connections of the listener.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use mainstem_peers::{Peer, Shares};
use mainstem_security::{KafkaPrincipal, Secret};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::broker::Broker;
use crate::users;
use mainstem_net::event_loop::{AUTHENTICATION_NICENESS, lower_priority};
use mainstem_runtime::supervised::AbortOnPanic;

/// The most passwords of one address that are checked, wait for that, or were refused a moment ago.
const IN_HAND_MAX: usize = 2;

/// The thread, which ends when this is dropped.
pub(super) struct Passwords {
    asked: Option<mpsc::Sender<Asked>>,
    in_hand: Arc<InHand>,
    thread: Option<JoinHandle<()>>,
}

type InHand = Mutex<Shares>;

/// A permit of an address for one password; it is free again when this is dropped.
pub(super) struct Turn {
    peer: Peer,
    in_hand: Arc<InHand>,
}

/// A password with the name of its user.
struct Asked {
    broker: Arc<Broker>,
    name: String,
    password: Secret,
    turn: Turn,
    answer: oneshot::Sender<(Option<KafkaPrincipal>, Turn)>,
}

impl Passwords {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub(super) fn start() -> io::Result<Passwords> {
        let (asked, incoming) = mpsc::channel();
        let thread = std::thread::Builder::new().name("operator-logins".into()).spawn(move || {
            let _guard = AbortOnPanic("passwords of the HTTP listener would never be checked again");
            lower_priority(AUTHENTICATION_NICENESS);
            incoming.into_iter().for_each(check);
        })?;
        Ok(Passwords {
            asked: Some(asked),
            in_hand: Arc::new(Mutex::new(Shares::new(IN_HAND_MAX))),
            thread: Some(thread),
        })
    }

    /// A permit of an address; none if it has no more.
    pub(super) fn turn(&self, address: IpAddr) -> Option<Turn> {
        let peer = Peer::of(address);
        self.in_hand.lock().take(peer).then(|| Turn { peer, in_hand: self.in_hand.clone() })
    }

    /// The user with this password, if there is one, and the permit; none if the thread ends.
    pub(super) async fn check(
        &self,
        turn: Turn,
        broker: Arc<Broker>,
        (name, password): (String, Secret),
    ) -> Option<(Option<KafkaPrincipal>, Turn)> {
        let (answer, checked) = oneshot::channel();
        self.asked.as_ref()?.send(Asked { broker, name, password, turn, answer }).ok()?;
        checked.await.ok()
    }
}

impl Drop for Passwords {
    fn drop(&mut self) {
        drop(self.asked.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended the process.
            let _ = thread.join();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.in_hand.lock().leave(self.peer);
    }
}

fn check(asked: Asked) {
    let Asked { broker, name, password, turn, answer } = asked;
    // A client that has left needs no answer.
    if !answer.is_closed() {
        let user = users::user_of_password(&broker, &name, &password);
        let _ = answer.send((user, turn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_few_passwords_in_hand() {
        let passwords = Passwords::start().expect("a thread");
        let [one, other] = [1, 2].map(|last: u8| IpAddr::from([10, 0, 0, last]));
        let mut turns: Vec<_> = (0..IN_HAND_MAX).map(|_| passwords.turn(one).expect("a turn")).collect();
        assert!(passwords.turn(one).is_none());
        assert!(passwords.turn(other).is_some(), "another address has its own");
        turns.pop();
        assert!(passwords.turn(one).is_some(), "one is done");
        drop(turns);
        assert!(passwords.in_hand.lock().is_empty(), "nothing is kept of an address");
    }
}
