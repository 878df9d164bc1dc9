//! Messages between clients and nodes: requests that arrive late or never, and their answers.

use crate::world::World;
use mainstem_coordination::groups::{self, Token};
use mainstem_coordination::transactions;
use mainstem_log::VerificationGuard;
use mainstem_log::sim::Random;
use std::collections::BTreeMap;

/// A request to a coordinator, with the version that the client sent it in.
#[derive(Debug)]
pub(crate) enum Request {
    Groups {
        request: groups::Request<'static>,
        version: i16,
        /// Allows the append to begin a transaction in its partition (KIP-890).
        guard: VerificationGuard,
    },
    Transactions {
        request: transactions::Request<'static>,
        version: i16,
    },
}

/// The result of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Groups(groups::Reply),
    Transactions(transactions::Reply),
    /// The connection has ended: the request may have been carried out or not.
    Gone,
}

/// A message on its way.
#[derive(Debug)]
pub(crate) enum Parcel {
    Ask { node: usize, token: Token, request: Request },
    Answer { token: Token, answer: Answer },
}

/// All messages on their way, and the answers that clients have not taken yet.
#[derive(Debug)]
pub(crate) struct Calls {
    tokens: u64,
    parcels: u64,
    on_their_way: BTreeMap<(u64, u64), Parcel>,
    answers: BTreeMap<Token, Answer>,
}

/// The time at which a message is sent, and its longest delay.
pub(crate) struct Transit<'a> {
    pub(crate) now_ms: u64,
    pub(crate) delay_max_ms: u64,
    pub(crate) random: &'a mut Random,
}

impl Transit<'_> {
    fn arrival_ms(&mut self) -> u64 {
        self.now_ms + 1 + self.random.below(self.delay_max_ms)
    }
}

impl World {
    pub(crate) fn transit(&mut self) -> Transit<'_> {
        Transit { now_ms: self.now_ms, delay_max_ms: self.delay_max_ms, random: &mut self.random }
    }
}

impl Calls {
    pub(crate) fn new() -> Calls {
        Calls { tokens: 0, parcels: 0, on_their_way: BTreeMap::new(), answers: BTreeMap::new() }
    }

    pub(crate) fn send(&mut self, mut transit: Transit<'_>, parcel: Parcel) {
        self.parcels += 1;
        self.on_their_way.insert((transit.arrival_ms(), self.parcels), parcel);
    }

    /// Sends a request to a node. Its answer is under the token that is returned.
    pub(crate) fn ask(&mut self, transit: Transit<'_>, node: usize, request: Request) -> Token {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.send(transit, Parcel::Ask { node, token, request });
        token
    }

    /// Takes the oldest message that has arrived by now.
    pub(crate) fn arrived(&mut self, now_ms: u64) -> Option<Parcel> {
        let first = self.on_their_way.first_entry()?;
        (first.key().0 <= now_ms).then(|| first.remove())
    }

    pub(crate) fn keep(&mut self, token: Token, answer: Answer) {
        self.answers.insert(token, answer);
    }

    /// Takes the answer to a request, if it has come.
    pub(crate) fn take(&mut self, token: Token) -> Option<Answer> {
        self.answers.remove(&token)
    }

    /// Drops an answer that no client waits for any more.
    pub(crate) fn forget(&mut self, token: Token) {
        self.answers.remove(&token);
    }
}
