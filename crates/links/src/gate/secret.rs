//! The secret that all nodes of a cluster have: by SCRAM it proves that a peer is one of them, and is never sent.
//!
//! The user name of an exchange holds the node that dials and the one that it wants to reach (`node:1>3`), and is a part of the proof.
//! So a proof for one node is not valid for another, and a peer cannot pose as a node by forwarding its messages.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use mainstem_config::{SaslListener, SaslMechanism, files};
use mainstem_security::Secret;
use mainstem_security::scram::{ScramCredential, ScramMechanism};

use super::ANY_NODE;
use super::login::Login;
use mainstem_runtime::random;

/// The beginning of the users of all nodes.
const USER: &str = "node:";
/// Between the node that dials and the one that it wants to reach.
const TO: char = '>';
/// Any node, in the place of the one that it wants to reach. Such a proof is valid for questions, and not for a link.
const ANY: &str = "*";
const MECHANISM: ScramMechanism = ScramMechanism::Sha256;
/// The least number of times that the secret is hashed. It is long and random, so that more would only take time.
const ITERATIONS: u32 = 4096;
/// Characters of the shortest secret: a shorter one could be guessed.
const CHARACTERS_MIN: usize = 16;
/// Bytes of the largest file.
const BYTES_MAX: u64 = 1024;
/// Bytes of the largest frame before a peer has proven that it is a node.
const RECEIVE_BYTES_MAX: usize = 4 << 10;
/// Users other than the owner and the group may read the file.
const READABLE_BY_OTHERS: u32 = 0o004;

/// The nodes' secret.
pub(super) struct NodeSecret {
    /// The id of this node.
    own: i32,
    secret: Secret,
    /// The form in which an exchange needs it.
    credential: ScramCredential,
}

impl NodeSecret {
    /// Reads it from its file, without the white space around it.
    ///
    /// # Errors
    /// If the file cannot be read, or what it has is no good secret; the text says what to do.
    pub(super) fn read(path: &Path, own: i32) -> Result<NodeSecret, String> {
        let shown = path.display();
        let advice = "`mainstem security node-secret FILE` makes one, which goes to every node";
        let failed = |error| format!("cannot read mainstem.node.secret.location={shown}: {error}; {advice}");
        let bytes = files::read(path).map_err(failed)?;
        let metadata = path.metadata().map_err(failed)?;
        let text = String::from_utf8_lossy(&bytes);
        let secret = text.trim();
        let is_printable = secret.bytes().all(|byte| byte.is_ascii_graphic());
        if secret.len() < CHARACTERS_MIN || bytes.len() as u64 > BYTES_MAX || !is_printable {
            return Err(format!(
                "mainstem.node.secret.location={shown} has no secret of {CHARACTERS_MIN} to {BYTES_MAX} printable ASCII \
                 characters without spaces; {advice}"
            ));
        }
        if metadata.mode() & READABLE_BY_OTHERS != 0 {
            tracing::warn!(file = %shown, "every user of this host can read the nodes' secret: chmod o-r");
        }
        let secret = Secret::from(secret);
        let credential = ScramCredential::new(MECHANISM, &secret, random::bytes::<32>(), ITERATIONS);
        let credential = credential.map_err(|error| error.to_string())?;
        Ok(NodeSecret { own, secret, credential })
    }

    /// The keys of a listener that asks for it.
    pub(super) fn listener() -> SaslListener {
        let mechanism = SaslMechanism { name: MECHANISM.name(), jaas_config: None, max_reauth_ms: 0 };
        SaslListener { mechanisms: vec![mechanism], receive_bytes_max: RECEIVE_BYTES_MAX }
    }

    /// The proof of this node to another one, or to any ([`ANY_NODE`]).
    pub(super) fn login(&self, to: i32) -> Login {
        let to = if to == ANY_NODE { ANY.to_owned() } else { to.to_string() };
        Login::of(MECHANISM, &format!("{USER}{}{TO}{to}", self.own), self.secret.clone())
    }

    /// The credential of a user: of a node that wants to reach this one.
    pub(super) fn credential(&self, mechanism: ScramMechanism, user: &str) -> Option<&ScramCredential> {
        let is_for_this = || {
            let (from, to) = user.strip_prefix(USER)?.split_once(TO)?;
            let is_here = to == ANY || number(to)? == self.own;
            Some(is_here && number(from)? != self.own)
        };
        (mechanism == MECHANISM && is_for_this() == Some(true)).then_some(&self.credential)
    }
}

/// The node that dialled, by the name that it has proven.
pub(super) fn node_of(principal: &str) -> Option<i32> {
    number(principal.strip_prefix(USER)?.split_once(TO)?.0)
}

/// Returns true if the proof is one for whichever node is there.
pub(super) fn is_for_any(principal: &str) -> bool {
    principal.strip_prefix(USER).and_then(|pair| pair.split_once(TO)).is_some_and(|(_, to)| to == ANY)
}

/// The number that a text is, in the one way that it is written.
fn number(text: &str) -> Option<i32> {
    text.parse().ok().filter(|number: &i32| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<NodeSecret, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.secret");
        std::fs::write(&path, text).expect("a file");
        NodeSecret::read(&path, 3)
    }

    #[test]
    fn white_space_around_a_secret_is_none_of_it() {
        let secret = read("\n 0123456789abcdef\r\n").expect("it is one");
        assert_eq!(secret.secret, Secret::from("0123456789abcdef"));
    }

    #[test]
    fn a_proof_for_one_node_is_none_to_another() {
        let secret = read("0123456789abcdef").expect("it is one");
        let knows = |user: &str| secret.credential(MECHANISM, user).is_some();
        assert!(knows("node:1>3") && knows("node:2>3"));
        // For another node, of this one, and what no node is called.
        for user in
            ["node:1>2", "node:3>3", "node:3>1", "node:1", "node:>3", "node:+1>3", "node:01>3", "admin", ""]
        {
            assert!(!knows(user), "{user}");
        }
        assert!(secret.credential(ScramMechanism::Sha512, "node:1>3").is_none());
        assert_eq!(["node:7>3", "admin", "node:x>3"].map(node_of), [Some(7), None, None]);
        assert!(knows("node:1>*") && !knows("node:3>*") && !knows("*") && !knows("node:*>3"));
        assert!(is_for_any("node:1>*") && !is_for_any("node:1>3") && !is_for_any("*"));
    }

    #[test]
    fn what_is_no_secret_is_refused_with_its_file() {
        for text in ["", "0123456789abcde", "0123456789 abcdef", "0123456789abcdéf", &"x".repeat(1025)] {
            let why = read(text).err().expect("it is refused");
            assert!(why.contains("node.secret") && why.contains("mainstem security node-secret"), "{why}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let why = NodeSecret::read(folder.path(), 3).err().expect("a folder is no file");
        assert!(why.contains("no regular file"), "{why}");
        let why = NodeSecret::read(&folder.path().join("x"), 3).err().expect("it is missing");
        assert!(why.contains("cannot read"), "{why}");
    }
}
