//! The mount points on which log directories are. A disk that is not mounted looks like an empty directory, and its replicas would be
//! taken for lost.
//!
//! A node of a cluster notes the mount points of its log directories, in a file of the directory with the metadata log. The next start
//! is refused where one of them is no mount point any more.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use mainstem_log::storage::{Storage, read_small_file, replace_file};

/// Name of the file.
pub const FILE: &str = "mainstem.mounts";

/// Bytes of the file and of the system's list that are read at most.
const LEN_MAX: usize = 4 << 20;

const HEAD: &str = "\
# Mount points of the log directories when this node ran last. A start is refused where one of them is missing:
# the disk may not be mounted. Remove the line of a disk that is gone for good.
";

/// A log directory whose disk is not mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotMounted {
    /// The mount point of the disk.
    pub mount_point: PathBuf,
    /// The file with the note.
    pub file: PathBuf,
}

/// The mount points of this process.
///
/// # Errors
/// The system's, or what cannot be read.
pub fn mount_points() -> io::Result<BTreeSet<PathBuf>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mount points of a list as `proc_pid_mountinfo(5)` has it: the fifth field of each line, with octal escapes.
fn parse(mountinfo: &[u8]) -> BTreeSet<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let fifth = |line: &[u8]| line.split(|byte| *byte == b' ').nth(4).map(unescaped);
    lines.filter_map(fifth).map(|bytes| PathBuf::from(std::ffi::OsString::from_vec(bytes))).collect()
}

fn unescaped(field: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field);
    while let [first, behind @ ..] = rest {
        let octal = (*first == b'\\').then(|| behind.get(..3)).flatten();
        let value = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(value.unwrap_or(*first));
        rest = if value.is_some() { &behind[3..] } else { behind };
    }
    bytes
}

/// The mount point that a path is on; the root is none that could be missing.
fn mount_of<'a>(path: &Path, mounted: &'a BTreeSet<PathBuf>) -> Option<&'a Path> {
    let on = mounted.iter().filter(|point| path.starts_with(point) && point.parent().is_some());
    on.max_by_key(|point| point.components().count()).map(PathBuf::as_path)
}

/// Notes the mount points of log directories in the one with the metadata log, durably. Nothing is written where nothing is new.
///
/// # Errors
/// The disk's.
pub fn note(
    storage: &dyn Storage,
    metadata: &Path,
    dirs: &[PathBuf],
    mounted: &BTreeSet<PathBuf>,
) -> io::Result<()> {
    let mut text = String::from(HEAD);
    let points: BTreeSet<_> = dirs.iter().filter_map(|dir| mount_of(dir, mounted)).collect();
    // A name that is no text in one line is not noted.
    for point in points.iter().filter_map(|point| point.to_str()).filter(|point| !point.contains('\n')) {
        text.push_str(point);
        text.push('\n');
    }
    let path = metadata.join(FILE);
    let known = read_small_file(storage, &path, LEN_MAX);
    match known {
        Ok(known) if known == text.as_bytes() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && points.is_empty() => Ok(()),
        _ => replace_file(storage, &path, text.as_bytes()),
    }
}

/// Checks that the mount points are there that were noted for these log directories.
///
/// # Errors
/// One that is not. A file that cannot be read says nothing: the start reports what is wrong with its directory.
pub fn check(
    storage: &dyn Storage,
    metadata: &Path,
    dirs: &[PathBuf],
    mounted: &BTreeSet<PathBuf>,
) -> Result<(), NotMounted> {
    let file = metadata.join(FILE);
    let Ok(bytes) = read_small_file(storage, &file, LEN_MAX) else { return Ok(()) };
    let text = String::from_utf8_lossy(&bytes);
    let noted = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let is_used = |point: &PathBuf| dirs.iter().any(|dir| dir.starts_with(point));
    match noted.map(PathBuf::from).find(|point| is_used(point) && !mounted.contains(point)) {
        Some(mount_point) => Err(NotMounted { mount_point, file }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::sim::SimStorage;

    use super::*;

    const MOUNTINFO: &str = "\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:20 / /proc rw - proc proc rw
40 21 254:16 / /mnt/one rw - ext4 /dev/vdb rw
41 21 254:32 / /mnt/the\\040other\\134 rw - ext4 /dev/vdc rw
";

    fn points(paths: &[&str]) -> BTreeSet<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn mount_points_are_read_from_the_systems_list() {
        let found = parse(MOUNTINFO.as_bytes());
        assert_eq!(found, points(&["/", "/proc", "/mnt/one", "/mnt/the other\\"]));
        assert_eq!(parse(b"garbage\n1 2 3\n\\9 a b c \\x\n"), points(&["\\x"]));
        let own = mount_points().expect("the system's list");
        assert!(own.contains(Path::new("/")), "{own:?}");
    }

    /// Trap: a disk that is not mounted is taken for one that was lost.
    #[test]
    fn a_start_without_a_disk_that_was_mounted_is_refused() {
        let (storage, metadata) = (SimStorage::new(), Path::new("/var/lib/one"));
        metadata.ancestors().collect::<Vec<_>>().iter().rev().for_each(|dir| {
            let _ = storage.create_dir(dir);
        });
        let dirs = [metadata.to_owned(), "/mnt/one/log".into(), "/mnt/two".into()];
        let both = points(&["/", "/mnt/one", "/mnt/two", "/mnt/three"]);
        let check = |dirs: &[PathBuf], mounted: &BTreeSet<PathBuf>| check(&storage, metadata, dirs, mounted);
        assert_eq!(check(&dirs, &both), Ok(()), "nothing is noted");
        note(&storage, metadata, &dirs, &both).expect("a disk");
        assert_eq!(check(&dirs, &both), Ok(()));
        let missing = NotMounted { mount_point: "/mnt/two".into(), file: metadata.join(FILE) };
        assert_eq!(check(&dirs, &points(&["/", "/mnt/one"])), Err(missing));
        assert_eq!(check(&dirs[..2], &points(&["/", "/mnt/one"])), Ok(()), "it is not configured any more");
    }

    #[test]
    fn a_node_whose_directories_are_on_the_root_notes_nothing() {
        let (storage, metadata) = (SimStorage::new(), Path::new("/data"));
        storage.create_dir(metadata).expect("a directory");
        note(&storage, metadata, &[metadata.to_owned()], &points(&["/", "/mnt/one"])).expect("a disk");
        assert!(!storage.exists(&metadata.join(FILE)).expect("a disk"));
    }
}
