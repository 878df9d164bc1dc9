//! Files that a configuration or a program names. They may be anything: a device without an end, a pipe without a writer.
//!
//! Architecture invariant: it knows nothing of what it reads, and says of what it refuses what to do.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Bytes that are read of one at most: stores of keys with all authorities of a company have some hundreds of KiB.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// The whole of a regular file.
///
/// # Errors
/// If it cannot be read, is no regular file, or has more than [`FILE_BYTES_MAX`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe opens immediately like this, with or without a writer.
    let nonblocking =
        i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("flags of open(2) are an int");
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() {
        let named = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a pipe",
            () if kind.is_socket() => "a socket",
            () => "a device",
        };
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it is {named}, and no regular file; name a regular file that has the contents"),
        ));
    }
    read_bounded(file)
}

/// The whole of what an operator gives to a command, which may be a pipe from another one.
///
/// # Errors
/// If it cannot be read, or has more than [`FILE_BYTES_MAX`].
pub fn read_given(path: &Path) -> io::Result<Vec<u8>> {
    read_bounded(File::open(path)?)
}

fn read_bounded(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > FILE_BYTES_MAX {
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "it has more than {} MiB, which nothing of this kind has; look whether another file was meant",
                FILE_BYTES_MAX >> 20
            ),
        )),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn refusal(path: &Path) -> String {
        read(path).expect_err("it is refused").to_string()
    }

    #[test]
    fn regular_files_with_an_end_are_read_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "text").expect("it is written");
        std::os::unix::fs::symlink(at("file"), at("link")).expect("a link");
        assert_eq!(read(&at("link")).expect("it is a file behind it"), b"text");
        assert_eq!(
            refusal(dir.path()),
            "it is a directory, and no regular file; name a regular file that has the contents"
        );
        assert_eq!(
            refusal(Path::new("/dev/zero")),
            "it is a device, and no regular file; name a regular file that has the contents"
        );
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        assert_eq!(
            refusal(&at("pipe")),
            "it is a pipe, and no regular file; name a regular file that has the contents"
        );
        assert_eq!(read(&at("none")).expect_err("there is none").kind(), io::ErrorKind::NotFound);
        let large = File::create(at("large")).expect("a file");
        large.set_len(FILE_BYTES_MAX).expect("its length");
        assert_eq!(read(&at("large")).expect("it is as large as may be").len() as u64, FILE_BYTES_MAX);
        large.set_len(FILE_BYTES_MAX + 1).expect("its length");
        assert_eq!(
            refusal(&at("large")),
            "it has more than 16 MiB, which nothing of this kind has; look whether another file was meant"
        );
    }

    #[test]
    fn what_is_given_has_an_end_too() {
        let endless = read_given(Path::new("/dev/zero")).expect_err("it has no end");
        assert_eq!(endless.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_given(Path::new("/dev/null")).expect("it has none"), b"");
    }
}
