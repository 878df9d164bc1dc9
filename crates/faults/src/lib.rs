//! The vocabulary of storage faults: what an error of the operating system means for the data, and so what a log, a
//! journal or a queue does about it. The same error has the same meaning in all of them.
//!
//! Architecture invariant: a leaf. It knows no file and no path.

use std::fmt;
use std::io;

/// The meaning of an error of a file operation.
///
/// A sync that was asked of an open file is an exception: whatever its error says, what was written before it may be
/// lost. Only where the file could not be opened for the sync, the error is one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StorageFault {
    /// The file system is full, or a quota is spent. What did not fit is taken back, what is there stays good, and the
    /// same succeeds when there is space again.
    NoSpace,
    /// The process or the system has no descriptor, memory, mapping or thread left. The call was not made: no file is
    /// different from before, and the same succeeds when there are some again.
    NoHandles,
    /// The device fails or is gone, or its file system is damaged or was made read-only. Nothing else on it is to be
    /// trusted, either.
    Medium,
    /// Any other error concerns this one file: it is missing, of another kind, without permission, or has wrong contents.
    File,
}

/// A device that fails or is gone, and a file system that is damaged or was made read-only.
const MEDIUM: [i32; 8] = [
    libc::EIO,
    libc::EROFS,
    libc::ENODEV,
    libc::ENXIO,
    libc::ESTALE,
    libc::ENOTCONN,
    libc::ETIMEDOUT,
    libc::EBADMSG,
];

/// EAGAIN is of threads and of locked memory: a file lock that another process holds is no fault, and has no place here.
const NO_HANDLES: [i32; 4] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN];

impl StorageFault {
    /// All of them.
    pub const ALL: [StorageFault; 4] =
        [StorageFault::NoSpace, StorageFault::NoHandles, StorageFault::Medium, StorageFault::File];

    /// The meaning of an error.
    pub fn of(error: &io::Error) -> StorageFault {
        match (error.raw_os_error(), error.kind()) {
            (_, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => StorageFault::NoSpace,
            (Some(code), _) if NO_HANDLES.contains(&code) => StorageFault::NoHandles,
            (Some(code), _) if MEDIUM.contains(&code) || is_structure_damage(code) => StorageFault::Medium,
            _ => StorageFault::File,
        }
    }

    /// Returns true if what failed can be tried again: the data are as they were, and so is the disk.
    pub fn is_temporary(self) -> bool {
        matches!(self, StorageFault::NoSpace | StorageFault::NoHandles)
    }
}

impl fmt::Display for StorageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StorageFault::NoSpace => "no space",
            StorageFault::NoHandles => "no descriptors or memory",
            StorageFault::Medium => "a failing medium",
            StorageFault::File => "one file",
        })
    }
}

/// EUCLEAN, which only Linux has: the file system's own structures are damaged.
#[cfg(target_os = "linux")]
fn is_structure_damage(code: i32) -> bool {
    code == libc::EUCLEAN
}

#[cfg(not(target_os = "linux"))]
fn is_structure_damage(_: i32) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_one_meaning() {
        let table = [
            (libc::ENOSPC, StorageFault::NoSpace),
            (libc::EDQUOT, StorageFault::NoSpace),
            (libc::EMFILE, StorageFault::NoHandles),
            (libc::ENFILE, StorageFault::NoHandles),
            (libc::ENOMEM, StorageFault::NoHandles),
            (libc::EAGAIN, StorageFault::NoHandles),
            (libc::EIO, StorageFault::Medium),
            (libc::EROFS, StorageFault::Medium),
            (libc::ENODEV, StorageFault::Medium),
            (libc::EUCLEAN, StorageFault::Medium),
            (libc::ENOENT, StorageFault::File),
            (libc::EACCES, StorageFault::File),
            (libc::EPERM, StorageFault::File),
            (libc::EISDIR, StorageFault::File),
            (libc::EFBIG, StorageFault::File),
            (libc::EINVAL, StorageFault::File),
        ];
        for (code, meaning) in table {
            assert_eq!(StorageFault::of(&io::Error::from_raw_os_error(code)), meaning, "{code}");
        }
        // Those that our own code makes have no number.
        assert_eq!(StorageFault::of(&io::ErrorKind::StorageFull.into()), StorageFault::NoSpace);
        assert_eq!(StorageFault::of(&io::ErrorKind::WouldBlock.into()), StorageFault::File, "a lock is held");
        assert_eq!(StorageFault::of(&io::ErrorKind::UnexpectedEof.into()), StorageFault::File);
    }
}
