//! Stray partitions: directories that no topic owned at a start, set aside under names of their own (KIP-858). No broker deletes
//! them: one may be the only copy of somebody's records. An operator does.

use crate::partition_dir::{SetAside, TopicPartition, stray_of, with_reason};
use crate::storage::Storage;
use std::io;
use std::path::{Path, PathBuf};

/// The end of the names of files with records.
const LOG_SUFFIX: &str = ".log";

/// A stray partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// The partition that it was. A long topic is cut short in the name.
    pub partition: TopicPartition,
    /// Its directory.
    pub path: PathBuf,
    /// The size of what is in it.
    pub extent: StrayExtent,
}

/// The size of what is in the directory of a stray partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StrayExtent {
    /// Bytes of all files. Links count as themselves.
    pub bytes: u64,
    /// Files of records.
    pub segments: u64,
}

/// The stray partitions of a log directory, in the order of their names. Links and files are none, and none is followed.
///
/// # Errors
/// When the log directory, or a stray one that stays, cannot be listed.
pub fn find(storage: &dyn Storage, log_dir: &Path) -> io::Result<Vec<Stray>> {
    let mut entries = storage.list(log_dir)?;
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let mut strays = Vec::new();
    for entry in entries.into_iter().filter(|entry| entry.is_dir) {
        let Some(partition) = stray_of(&entry.name) else { continue };
        let path = log_dir.join(&entry.name);
        match extent(storage, &path) {
            Ok(extent) => strays.push(Stray { partition, path, extent }),
            // Another one has removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }
    Ok(strays)
}

/// The size of what is in a directory.
pub(crate) fn extent(storage: &dyn Storage, dir: &Path) -> io::Result<StrayExtent> {
    let mut extent = StrayExtent::default();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in storage.list(&dir)? {
            if entry.is_dir {
                dirs.push(dir.join(&entry.name));
                continue;
            }
            extent.bytes += entry.len;
            extent.segments += u64::from(entry.name.ends_with(LOG_SUFFIX));
        }
    }
    Ok(extent)
}

/// Deletes a stray partition for good. It is first renamed as a deleted one, durably. If the deletion is cut short, the rest
/// is no stray any more, and the next start of a broker removes it.
///
/// # Errors
/// When the directory cannot be renamed or removed, or its log directory cannot be synced.
pub fn remove(storage: &dyn Storage, stray: &Stray) -> io::Result<()> {
    let name = stray.path.file_name().and_then(|name| name.to_str());
    let (Some(log_dir), Some(deleted)) =
        (stray.path.parent(), name.and_then(|name| with_reason(name, SetAside::Delete)))
    else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "its name is not that of a stray partition"));
    };
    let deleted = log_dir.join(deleted);
    storage.rename(&stray.path, &deleted)?;
    storage.sync_dir(log_dir)?;
    storage.remove_dir_all(&deleted)?;
    storage.sync_dir(log_dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition_dir::DirName;
    use crate::sim::{Random, SimStorage};
    use crate::storage::{OpenMode, RealStorage, write_all_at};
    use std::fs;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn strays_are_found_by_the_exact_form_of_their_names() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        let stray = format!("a.b-7.{ID}-stray");
        let others = [
            "t-0".to_owned(),
            format!("t-0.{ID}-delete"),
            format!("t-0.{ID}-future"),
            "t-0.0123-stray".to_owned(),
            format!("t-0.{}-stray", ID.to_uppercase()),
            format!("t-01.{ID}-stray"),
            format!("t.{ID}-stray"),
            format!("-0.{ID}-stray"),
            "my-stray".to_owned(),
        ];
        for name in others.iter().chain([&stray]) {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join("00000000000000000000.log"), [0; 100]).unwrap();
        }
        fs::write(path(&stray).join("00000000000000000000.index"), [0; 8]).unwrap();
        fs::write(path(&format!("file-0.{ID}-stray")), "a file").unwrap();
        std::os::unix::fs::symlink(path("t-0"), path(&format!("link-0.{ID}-stray"))).unwrap();
        let expected = Stray {
            partition: TopicPartition::new("a.b", 7),
            path: path(&stray),
            extent: StrayExtent { bytes: 108, segments: 1 },
        };
        assert_eq!(find(&RealStorage, home.path()).unwrap(), std::slice::from_ref(&expected));
        let before = names(home.path());
        remove(&RealStorage, &expected).unwrap();
        let expected = before.into_iter().filter(|name| *name != stray).collect::<Vec<_>>();
        assert_eq!(names(home.path()), expected);
    }

    #[test]
    fn links_in_a_stray_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let elsewhere = home.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("kept"), [1; 1_000]).unwrap();
        let log_dir = home.path().join("data");
        let path = log_dir.join(format!("t-0.{ID}-stray"));
        fs::create_dir_all(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, path.join("link")).unwrap();
        let [stray] = &find(&RealStorage, &log_dir).unwrap()[..] else { panic!("one is there") };
        assert!(stray.extent.bytes < 1_000, "{stray:?}");
        remove(&RealStorage, stray).unwrap();
        assert_eq!(names(&elsewhere), ["kept"]);
        assert!(names(&log_dir).is_empty());
    }

    #[test]
    fn a_deletion_that_is_cut_short_anywhere_leaves_no_half_of_a_stray_and_no_partition() {
        let log_dir = Path::new("/data");
        for (seed, changes) in (0..8).flat_map(|seed| (0..8).map(move |changes| (seed, changes))) {
            let disk = SimStorage::new();
            let path = log_dir.join(format!("t-0.{ID}-stray"));
            disk.create_dir(&path).unwrap();
            for base in 0..3 {
                let name = path.join(format!("{base:020}.log"));
                let file = disk.open(&name, OpenMode::Create).unwrap();
                write_all_at(&*file, &[1; 100], 0).unwrap();
                file.sync_data().unwrap();
            }
            [path.as_path(), log_dir, Path::new("/")].iter().for_each(|dir| disk.sync_dir(dir).unwrap());
            let whole = find(&disk, log_dir).unwrap();
            assert_eq!(whole.len(), 1);
            disk.stop_after(Some(changes));
            let removed = remove(&disk, &whole[0]);
            disk.stop_after(None);
            disk.power_cut(&mut Random::new(seed));
            let left = disk.list(log_dir).unwrap();
            let context = format!("seed {seed}, {changes} changes: {left:?}");
            assert!(removed.is_err() || left.is_empty(), "{context}");
            for entry in &left {
                assert!(matches!(DirName::parse(&entry.name), DirName::SetAside(_)), "{context}");
            }
            let strays = find(&disk, log_dir).unwrap();
            assert!(strays.is_empty() || strays == whole, "{context}");
        }
    }
}
