use super::*;
use crate::copies::manifest::{CopyFile, CopyFileKind};
use crate::group::{Configuration, GroupId, ReplicaId};
use crate::journal::Start;
use mainstem_testkit::{Random, cases, seed};

const MIB: u64 = 1 << 20;

/// A manifest of segments with these lengths, and a snapshot with the last one.
fn manifest(lens: &[u64]) -> Arc<Manifest> {
    let (snapshot, logs) = lens.split_last().unwrap();
    let offset = 100 * logs.len() as i64;
    let log = |(place, len): (usize, &u64)| CopyFile {
        base_offset: 100 * place as i64,
        kind: CopyFileKind::Log,
        len: *len,
    };
    let mut files: Vec<_> = logs.iter().enumerate().map(log).collect();
    files.push(CopyFile { base_offset: offset, kind: CopyFileKind::Snapshot, len: *snapshot });
    let manifest = Manifest {
        group: GroupId { topic_id: [7; 16], partition: 3 },
        start: Start { index: 9, term: 4, offset },
        log_start: 0,
        compacted_to: None,
        configuration: Configuration::of_voters(&[ReplicaId::new(1, 1)]),
        epochs: vec![],
        files,
    };
    assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(&manifest));
    Arc::new(manifest)
}

fn transfer(lens: &[u64], synced: u64, found: &[u64]) -> Transfer {
    let transfer = Transfer::new(manifest(lens), synced, found.to_vec()).unwrap();
    transfer.check();
    transfer
}

/// The next question as file, position, length, and whether it is a comparison.
fn asked(transfer: &Transfer) -> Option<(u32, u64, u32, bool)> {
    let question = transfer.next()?;
    assert_eq!(question.group, transfer.manifest().group);
    assert_eq!(question.manifest, transfer.manifest().content().crc);
    let Part::File(file) = question.part else { panic!("the manifest is here") };
    let compared = question.is_comparison.then_some((file as usize, question.position, question.len));
    assert_eq!(transfer.range(), compared);
    Some((file, question.position, question.len, question.is_comparison))
}

/// Answers with zeros, or with the checksum 1.
fn answer(transfer: &mut Transfer, own_crc: Option<u32>) {
    let (_, _, len, is_comparison) = asked(transfer).unwrap();
    let zeros = vec![0; len as usize];
    let bytes = if is_comparison { &[][..] } else { &zeros };
    transfer.take(&Answer::Range { crc: 1, bytes }, own_crc).unwrap();
    transfer.check();
}

#[test]
fn ranges_end_with_files() {
    let lens = [2 * MIB + 5, MIB, 10];
    let mut transfer = transfer(&lens, 0, &[0; 3]);
    let mib = MIB as u32;
    for range in [(0, 0, mib), (0, MIB, mib), (0, 2 * MIB, 5), (1, 0, mib), (2, 0, 10)] {
        assert_eq!(asked(&transfer), Some((range.0, range.1, range.2, false)));
        answer(&mut transfer, None);
    }
    assert!(transfer.is_done() && transfer.next().is_none() && transfer.range().is_none());
    assert_eq!(transfer.received(), lens.iter().sum::<u64>());
    assert_eq!(transfer.take(&Answer::Later, None), Err(TransferError::NotAsked));
}

#[test]
fn a_transfer_resumes_behind_what_is_synced() {
    let lens = [100, 50, 10];
    for (synced, next) in [
        (0, Some((0, 0, 100, false))),
        (1, Some((0, 1, 99, false))),
        (99, Some((0, 99, 1, false))),
        (100, Some((1, 0, 50, false))),
        (149, Some((1, 49, 1, false))),
        (150, Some((2, 0, 10, false))),
        (160, None),
    ] {
        let transfer = transfer(&lens, synced, &[0; 3]);
        assert_eq!((asked(&transfer), transfer.received()), (next, synced));
    }
}

#[test]
fn what_was_found_is_compared_first() {
    let mut transfer = transfer(&[100, 50, 10], 20, &[70, u64::MAX, 0]);
    let mut took = |own_crc| {
        let range = asked(&transfer);
        answer(&mut transfer, own_crc);
        range
    };
    assert_eq!(took(Some(1)), Some((0, 20, 50, true)), "cut to what was found");
    assert_eq!(took(None), Some((0, 70, 30, false)));
    assert_eq!(took(Some(1)), Some((1, 0, 50, true)), "no more than the file has");
    assert_eq!(took(Some(1)), Some((2, 0, 10, false)), "nothing was found");
    assert!(transfer.is_done());
}

#[test]
fn from_the_first_difference_on_a_file_is_fetched() {
    let mib = MIB as u32;
    for own_crc in [Some(2), None] {
        let mut transfer = transfer(&[3 * MIB, MIB, 10], 0, &[2 * MIB + 1, 5, 0]);
        let mut took = |own_crc| {
            let (range, received) = (asked(&transfer), transfer.received());
            answer(&mut transfer, own_crc);
            (range.unwrap(), transfer.received() - received)
        };
        assert_eq!(took(Some(1)), ((0, 0, mib, true), MIB));
        assert_eq!(took(own_crc), ((0, MIB, mib, true), 0));
        assert_eq!(took(None), ((0, MIB, mib, false), MIB), "the same range");
        assert_eq!(took(None), ((0, 2 * MIB, 1, false), 1), "where the found bytes end");
        assert_eq!(took(None), ((0, 2 * MIB + 1, mib - 1, false), MIB - 1));
        assert_eq!(took(Some(1)), ((1, 0, 5, true), 5), "the next file may be the same");
    }
}

#[test]
fn an_answer_says_what_to_do() {
    let mut transfer = transfer(&[3, 2], 0, &[0, 2]);
    let range = |bytes| Answer::Range { crc: 9, bytes };
    assert_eq!(transfer.take(&Answer::Later, None), Ok(Taken::Later));
    assert_eq!(transfer.take(&Answer::Gone, None), Ok(Taken::Gone));
    assert_eq!(transfer.received(), 0);
    let write = Taken::Write { file: 0, position: 0, bytes: b"abc" };
    assert_eq!(transfer.take(&range(b"abc"), Some(1)), Ok(write));
    assert_eq!(transfer.take(&range(b""), Some(8)), Ok(Taken::Differs));
    let write = Taken::Write { file: 1, position: 0, bytes: b"ab" };
    assert_eq!(transfer.clone().take(&range(b"ab"), Some(8)), Ok(write));
    transfer.differs = false;
    let matches = Taken::Matches { file: 1, position: 0, len: 2 };
    assert_eq!(transfer.take(&range(b""), Some(9)), Ok(matches));
    assert!(transfer.is_done());
}

#[test]
fn answers_of_another_length_are_refused() {
    let mut transfer = transfer(&[3, 2], 0, &[0, 2]);
    let before = asked(&transfer);
    for bytes in [&b""[..], b"ab", b"abcd"] {
        let refused = Err(TransferError::Length { received: bytes.len(), asked: 3 });
        assert_eq!(transfer.take(&Answer::Range { crc: 1, bytes }, Some(1)), refused);
        assert_eq!(asked(&transfer), before);
    }
    answer(&mut transfer, None);
    let refused = Err(TransferError::Length { received: 2, asked: 0 });
    assert_eq!(transfer.take(&Answer::Range { crc: 1, bytes: b"ab" }, Some(1)), refused);
}

#[test]
fn a_transfer_of_other_files_does_not_begin() {
    let of = |synced, found: &[u64]| Transfer::new(manifest(&[3, 2]), synced, found.to_vec()).map(drop);
    assert_eq!(of(5, &[0, 0]), Ok(()));
    assert_eq!(of(6, &[0, 0]), Err(TransferError::Synced { synced: 6, len: 5 }));
    assert_eq!(of(0, &[0]), Err(TransferError::Found { found: 1, files: 2 }));
}

/// Bytes in blocks that differ from each other.
fn random_bytes(random: &mut Random, len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < len {
        let block = (1 + random.below(100_000)).min(len - bytes.len() as u64);
        bytes.resize(bytes.len() + block as usize, random.below(256) as u8);
    }
    bytes
}

/// A leader that offers a copy. All goes through the encodings.
struct Source {
    manifest: Arc<Manifest>,
    files: Vec<Vec<u8>>,
}

impl Source {
    fn new(random: &mut Random) -> Source {
        let count = 2 + random.below(4);
        let lens: Vec<u64> = (0..count).map(|_| 1 + random.below(5 * MIB / 2)).collect();
        let files = lens.iter().map(|len| random_bytes(random, *len)).collect();
        Source { manifest: manifest(&lens), files }
    }

    fn answer(&self, question: &[u8], random: &mut Random) -> Vec<u8> {
        let question = Question::decode(question).unwrap();
        assert_eq!(question.manifest, self.manifest.content().crc);
        if random.below(5) == 0 {
            return Answer::Later.encode();
        }
        let Part::File(file) = question.part else { panic!("the manifest is at the target") };
        let bytes = range_of(&self.files[file as usize], question.position, question.len);
        let sent = if question.is_comparison { &[][..] } else { bytes };
        Answer::Range { crc: crc32c::crc32c(bytes), bytes: sent }.encode()
    }
}

fn range_of(file: &[u8], position: u64, len: u32) -> &[u8] {
    &file[position as usize..][..len as usize]
}

/// A replica with files of an earlier copy, which is killed now and then.
struct Target {
    /// The files as they are read, of the lengths in the manifest.
    files: Vec<Vec<u8>>,
    /// The files as they are after a power cut.
    durable: Vec<Vec<u8>>,
    found: Vec<u64>,
    /// Bytes that were noted as synced.
    synced: u64,
    /// Kept ranges of this run, as file, first and last position.
    matched: Vec<(usize, u64, u64)>,
    /// Files whose found bytes are all the source's.
    equal: Vec<bool>,
}

impl Target {
    /// Begins with an earlier copy that has the same bytes of each file, others, or none.
    fn new(source: &Source, random: &mut Random) -> Target {
        let (mut files, mut found, mut equal) = (Vec::new(), Vec::new(), Vec::new());
        for file in &source.files {
            let len = file.len() as u64;
            let here = [0, len, random.below(len + 1)][random.below(3) as usize];
            let mut bytes = file[..here as usize].to_vec();
            let has_others = here > 0 && random.below(2) == 0;
            if has_others {
                bytes[random.below(here) as usize] ^= 1 << random.below(8);
            }
            bytes.resize(file.len(), 0);
            files.push(bytes);
            let is_longer = here == len && random.below(2) == 0;
            found.push(if is_longer { here + 7 } else { here });
            equal.push(!has_others);
        }
        let (durable, matched) = (files.clone(), Vec::new());
        Target { files, durable, found, synced: 0, matched, equal }
    }

    fn begin(&mut self, source: &Source) -> Transfer {
        self.matched.clear();
        Transfer::new(source.manifest.clone(), self.synced, self.found.clone()).unwrap()
    }

    fn step(&mut self, transfer: &mut Transfer, source: &Source, random: &mut Random) {
        let answer = source.answer(&transfer.next().unwrap().encode(), random);
        let own = transfer.range();
        let own = own.map(|(file, at, len)| crc32c::crc32c(range_of(&self.files[file], at, len)));
        match transfer.take(&Answer::decode(&answer).unwrap(), own).unwrap() {
            Taken::Write { file, position, bytes } => self.write(file, position, bytes),
            Taken::Matches { file, position, len } => {
                self.matched.push((file, position, position + u64::from(len) - 1));
            }
            Taken::Differs => assert!(own.is_some(), "only what was compared can differ"),
            Taken::Later => {}
            Taken::Gone => panic!("the source keeps its copy"),
        }
        transfer.check();
    }

    fn write(&mut self, file: usize, position: u64, bytes: &[u8]) {
        let end = position + bytes.len() as u64;
        let is_in = |(of, first, last): &(usize, u64, u64)| *of == file && position <= *last && *first < end;
        assert!(!self.matched.iter().any(is_in), "what was kept is not fetched");
        let is_found = position < self.found[file].min(self.files[file].len() as u64);
        assert!(!(is_found && self.equal[file]), "what is the same is not fetched");
        self.files[file][position as usize..end as usize].copy_from_slice(bytes);
    }

    fn sync(&mut self, transfer: &Transfer, random: &mut Random) {
        self.durable.clone_from(&self.files);
        // The note says how far it is, or a little less.
        let received = transfer.received();
        let noted = if random.below(2) == 0 { received } else { received - received % (MIB / 2) };
        self.synced = self.synced.max(noted);
    }

    /// Writes since the last sync survive the process, and not a power cut.
    fn kill(&mut self, random: &mut Random) {
        if random.below(2) == 0 {
            self.files.clone_from(&self.durable);
        }
    }
}

fn simulate(seed: u64) {
    let mut random = Random::new(seed);
    let source = Source::new(&mut random);
    let mut target = Target::new(&source, &mut random);
    let mut transfer = target.begin(&source);
    let (mut received, mut kills) = (0, 0);
    while !transfer.is_done() {
        target.step(&mut transfer, &source, &mut random);
        assert!(transfer.received() >= received, "seed {seed}: it only ascends");
        received = transfer.received();
        if random.below(4) == 0 {
            target.sync(&transfer, &mut random);
        }
        if kills < 10 && random.below(6) == 0 {
            kills += 1;
            target.kill(&mut random);
            transfer = target.begin(&source);
            received = transfer.received();
        }
    }
    assert_eq!(transfer.received(), source.manifest.len());
    let is_copy = target.files == source.files;
    assert!(is_copy, "seed {seed}: the target's bytes are the source's");
}

#[test]
fn a_target_gets_the_bytes_of_the_source() {
    let first = seed();
    (0..u64::from(cases(24))).for_each(|number| simulate(first.wrapping_add(number)));
}
