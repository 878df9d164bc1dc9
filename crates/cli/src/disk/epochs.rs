//! `leader-epoch-checkpoint`: the first offset of each leader epoch. Text: a version, a count, then a
//! line `epoch start_offset` for each epoch.

/// Name of the file in a partition's directory.
pub(crate) const LEADER_EPOCH_CHECKPOINT: &str = "leader-epoch-checkpoint";

/// A leader epoch and the offset of its first record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochEntry {
    pub(crate) epoch: i32,
    pub(crate) start_offset: i64,
}

/// Reads the file's text; the error says what is wrong. An empty file has no epochs.
pub(crate) fn read_epochs(text: &str) -> Result<Vec<EpochEntry>, String> {
    let mut lines = text.lines();
    match lines.next() {
        None => return Ok(Vec::new()),
        Some("0") => {}
        Some(version) => return Err(format!("its version is {version:?} and not 0")),
    }
    let count = lines.next().unwrap_or_default();
    let entries: Vec<EpochEntry> = lines.map(parse).collect::<Result<_, _>>()?;
    if count.parse() != Ok(entries.len()) {
        return Err(format!("it says {count:?} entries and has {}", entries.len()));
    }
    let descends =
        |pair: &[EpochEntry]| pair[0].epoch >= pair[1].epoch || pair[0].start_offset >= pair[1].start_offset;
    match entries.windows(2).find(|pair| descends(pair)) {
        Some(pair) => {
            Err(format!("epoch {} follows epoch {} but does not ascend", pair[1].epoch, pair[0].epoch))
        }
        None => Ok(entries),
    }
}

fn parse(line: &str) -> Result<EpochEntry, String> {
    let entry = || {
        let (epoch, start_offset) = line.split_once(' ')?;
        Some(EpochEntry { epoch: epoch.parse().ok()?, start_offset: start_offset.parse().ok()? })
    };
    entry().ok_or_else(|| format!("the line {line:?} is no epoch and offset"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let entry = |epoch, start_offset| EpochEntry { epoch, start_offset };
        assert_eq!(read_epochs("0\n2\n0 0\n3 17\n"), Ok(vec![entry(0, 0), entry(3, 17)]));
        assert_eq!(read_epochs(""), Ok(vec![]));
        for (text, why) in [
            ("1\n0\n", "version"),
            ("0\n1\n", "has 0"),
            ("0\n1\n0 x\n", "no epoch and offset"),
            ("0\n2\n1 0\n1 5\n", "does not ascend"),
            ("0\n2\n1 5\n2 5\n", "does not ascend"),
        ] {
            let error = read_epochs(text).expect_err(text);
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
