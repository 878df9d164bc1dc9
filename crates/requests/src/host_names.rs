//! Host names in settings and quotas, looked up on a thread of their own: a resolver that does not answer only delays the names
//! that it was asked for.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use mainstem_runtime::supervised;

/// Addresses by host name; the list is empty for a name without any.
pub type Addresses = HashMap<String, Vec<IpAddr>>;

/// Called with the addresses at once and after each lookup, under a lock: it must not wait.
type Apply = Arc<dyn Fn(&Addresses) + Send + Sync>;

type Lookup = Arc<dyn Fn(&str) -> Vec<IpAddr> + Send + Sync>;

/// The host names of one setting.
pub struct HostNames {
    state: Mutex<State>,
    lookup: Lookup,
}

#[derive(Default)]
struct State {
    known: Addresses,
    /// Names to look up, in this order; the first may be under way.
    missing: VecDeque<String>,
    is_running: bool,
    apply: Option<Apply>,
}

impl HostNames {
    /// No names yet; the system's resolver looks them up.
    pub fn new() -> Arc<Self> {
        Self::with_lookup(Arc::new(addresses))
    }

    fn with_lookup(lookup: Lookup) -> Arc<Self> {
        Arc::new(HostNames { state: Mutex::default(), lookup })
    }

    /// Sets the names. `apply` is called before this returns, with the addresses that are known, and later from another thread, as
    /// more are found. The next call of this function ends the calls of an earlier `apply`.
    pub fn set(self: &Arc<Self>, names: impl IntoIterator<Item = String>, apply: Apply) {
        let mut state = self.state.lock();
        let mut before = std::mem::take(&mut state.known);
        state.missing.clear();
        for name in names {
            match before.remove(&name).or_else(|| literal(&name).map(|address| vec![address])) {
                Some(addresses) => _ = state.known.insert(name, addresses),
                None if state.missing.contains(&name) || state.known.contains_key(&name) => {}
                None => state.missing.push_back(name),
            }
        }
        apply(&state.known);
        state.apply = Some(apply);
        if state.missing.is_empty() || state.is_running {
            return;
        }
        let this = self.clone();
        let why = "connections and requests would not be counted by their addresses any more";
        match supervised::spawn_vital("host-names", why, move || this.run()) {
            Ok(_) => state.is_running = true,
            Err(error) => tracing::error!("host names are not looked up: no thread can be made: {error}"),
        }
    }

    fn run(&self) {
        loop {
            let name = {
                let mut state = self.state.lock();
                let Some(name) = state.missing.front().cloned() else {
                    state.is_running = false;
                    return;
                };
                name
            };
            // Operators and administrators write these names. If the resolver panics for one, that one has no address, and
            // the others are looked up.
            let found = catch_unwind(AssertUnwindSafe(|| (self.lookup)(&name))).unwrap_or_default();
            if found.is_empty() {
                tracing::warn!(host = name, "a host name in a quota or a limit has no address");
            }
            let mut state = self.state.lock();
            // The names may have changed meanwhile, so that this one has another place, or none.
            if let Some(at) = state.missing.iter().position(|other| *other == name) {
                state.missing.remove(at);
                state.known.insert(name, found);
                if let Some(apply) = state.apply.clone() {
                    apply(&state.known);
                }
            }
        }
    }
}

fn literal(name: &str) -> Option<IpAddr> {
    name.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// The addresses of a name or of an address; none if there are none. May wait for the resolver, for long.
pub fn addresses(host: &str) -> Vec<IpAddr> {
    if let Some(address) = literal(host) {
        return vec![address];
    }
    match (host, 0).to_socket_addrs() {
        Ok(found) => found.map(|address| address.ip().to_canonical()).collect(),
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn a_resolver_that_hangs_holds_up_no_caller() {
        let (answer, answers) = mpsc::channel::<&str>();
        let (ask, asked) = mpsc::channel();
        let answers = Mutex::new(answers);
        let lookup = move |name: &str| {
            ask.send(name.to_owned()).expect("the test listens");
            let answer = answers.lock().recv().expect("the test runs");
            literal(answer).into_iter().collect()
        };
        let names = HostNames::with_lookup(Arc::new(lookup));
        let (sender, applied) = mpsc::channel();
        let apply: Apply = Arc::new(move |known| {
            let mut known: Vec<_> = known.iter().map(|(name, found)| format!("{name} {found:?}")).collect();
            known.sort();
            sender.send(known.join(", ")).expect("the test listens");
        });
        let next = || applied.recv_timeout(TIMEOUT).expect("it is applied");
        let set = |wanted: &[&str]| names.set(wanted.iter().map(|name| (*name).to_owned()), apply.clone());
        set(&["10.0.0.1", "one", "two"]);
        assert_eq!(next(), "10.0.0.1 [10.0.0.1]", "what needs no resolver counts at once");
        assert_eq!(asked.recv_timeout(TIMEOUT).as_deref(), Ok("one"));
        set(&["two", "three", "10.0.0.2"]);
        assert_eq!(next(), "10.0.0.2 [10.0.0.2]");
        // The answer for the first name is late: it is not wanted any more.
        answer.send("10.1.1.1").expect("it waits");
        answer.send("10.2.2.2").expect("it waits");
        assert_eq!(next(), "10.0.0.2 [10.0.0.2], two [10.2.2.2]");
        answer.send("no address").expect("it waits");
        assert_eq!(next(), "10.0.0.2 [10.0.0.2], three [], two [10.2.2.2]");
        set(&["two"]);
        assert_eq!(next(), "two [10.2.2.2]", "what is known is not looked up again");
    }

    #[test]
    fn a_lookup_that_panics_holds_up_no_other_one() {
        let lookup = |name: &str| match name {
            "bad" => panic!("a mistake of the test"),
            _ => vec![IpAddr::from([10, 0, 0, 1])],
        };
        let names = HostNames::with_lookup(Arc::new(lookup));
        let (sender, applied) = mpsc::channel();
        let apply: Apply = Arc::new(move |known| sender.send(known.clone()).expect("the test listens"));
        let next = || applied.recv_timeout(TIMEOUT).expect("it is applied");
        names.set(["bad".to_owned(), "good".to_owned()], apply.clone());
        assert!(next().is_empty());
        assert!(next().get("bad").is_some_and(Vec::is_empty), "it has no address");
        assert_eq!(next().get("good").map(Vec::len), Some(1), "the next one is looked up");
        names.set(["later".to_owned()], apply);
        assert!(next().is_empty());
        assert_eq!(next().get("later").map(Vec::len), Some(1));
    }
}
