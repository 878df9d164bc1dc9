//! Files that answers keep open until they are read: how many different ones one peer may have.
//!
//! An answer to a fetch is sent from the files of segments. Who reads slowly keeps them open, also those that the cache of descriptors
//! would close, and those that retention has deleted. Each counts once for a peer, however many of its answers need it; what is
//! beyond its share is left out of an answer, and is asked for again.

use std::collections::hash_map::{Entry, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use mainstem_log::storage::StorageFile;
use mainstem_peers::Peer;
use parking_lot::Mutex;

/// A file, by where its handle is, which is there for as long as it is kept.
type FileId = usize;

/// What all peers keep open.
#[derive(Debug)]
pub(crate) struct SentFiles {
    most_of_one: usize,
    /// How many answers need each file of a peer; none is needed by 0.
    by_peer: Mutex<HashMap<Peer, HashMap<FileId, usize>>>,
}

/// A file that an answer of a peer needs, until it is dropped.
#[derive(Debug)]
pub(crate) struct SentFile {
    files: Arc<SentFiles>,
    peer: Peer,
    file: FileId,
}

impl SentFiles {
    /// One peer may have so many.
    pub(crate) fn new(most_of_one: usize) -> Arc<SentFiles> {
        Arc::new(SentFiles { most_of_one, by_peer: Mutex::new(HashMap::new()) })
    }

    /// Keeps a file for an answer to who is at an address; none if its peer has as many others as it may.
    pub(crate) fn keep(self: &Arc<Self>, address: IpAddr, file: &Arc<dyn StorageFile>) -> Option<SentFile> {
        let (peer, file) = (Peer::of(address), Arc::as_ptr(file).cast::<()>() as FileId);
        let mut by_peer = self.by_peer.lock();
        let own = by_peer.entry(peer).or_default();
        let has_room = own.len() < self.most_of_one;
        match own.entry(file) {
            Entry::Occupied(mut answers) => *answers.get_mut() += 1,
            Entry::Vacant(place) if has_room => _ = place.insert(1),
            Entry::Vacant(_) => return None,
        }
        Some(SentFile { files: self.clone(), peer, file })
    }
}

impl Drop for SentFile {
    fn drop(&mut self) {
        let mut by_peer = self.files.by_peer.lock();
        let Entry::Occupied(mut own) = by_peer.entry(self.peer) else { return };
        if let Entry::Occupied(mut answers) = own.get_mut().entry(self.file) {
            *answers.get_mut() -= 1;
            if *answers.get() == 0 {
                answers.remove();
            }
        }
        if own.get().is_empty() {
            own.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::storage::{OpenMode, RealStorage, Storage as _};

    use super::*;

    #[test]
    fn one_peer_keeps_its_share_open_and_another_one_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let open = |n: usize| RealStorage.open(&dir.path().join(n.to_string()), OpenMode::Create).unwrap();
        let files: Vec<_> = (0..4).map(open).collect();
        let sent = SentFiles::new(3);
        let of = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host]);
        let mut kept: Vec<_> = (0..3).map(|n| sent.keep(of(n), &files[usize::from(n)]).unwrap()).collect();
        assert!(sent.keep(of(7), &files[3]).is_none(), "a network has its share, whatever its host");
        let again = sent.keep(of(8), &files[0]).expect("it is open already");
        assert!(sent.keep([192, 0, 2, 1].into(), &files[3]).is_some(), "another peer has its own");
        kept.remove(0);
        assert!(sent.keep(of(7), &files[3]).is_none(), "another answer needs it");
        drop(again);
        assert!(sent.keep(of(7), &files[3]).is_some());
        drop(kept);
        assert!(sent.by_peer.lock().is_empty(), "nothing is kept of who needs none");
    }
}
