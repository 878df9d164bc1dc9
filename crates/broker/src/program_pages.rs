//! Pages of the program that its start has needed, and that later work does not need.
//!
//! The kernel maps the surroundings of each page of the program that is touched, 64 KiB at a time. A start runs
//! through much of the program once, and its pages stay resident until the machine is short of memory. They are freed
//! when the node is ready, as the kernel would do then. Pages that are needed again come back from the page cache.
#![allow(unsafe_code, reason = "madvise(2), which has no safe wrapper")]

use std::fs;
use std::ops::Range;

/// Frees the pages of the program's code and constants.
pub(crate) fn give_back() {
    let program = fs::read_link("/proc/self/exe");
    let (Ok(program), Ok(maps)) = (program, fs::read_to_string("/proc/self/maps")) else { return };
    for range in unwritten(&maps, &program.to_string_lossy()) {
        let start = range.start as *mut libc::c_void;
        // SAFETY: the range is a private mapping of a file that nothing has written to. The next access reads the same bytes from the file.
        unsafe { libc::madvise(start, range.len(), libc::MADV_DONTNEED) };
    }
}

/// Mappings of a program that are equal to its file: its code, and the beginning of the file with its constants.
/// Constants with addresses were changed when the program was loaded; they have mappings of their own.
fn unwritten(maps: &str, program: &str) -> Vec<Range<usize>> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(6, ' ');
        let (addresses, rights, offset) = (fields.next()?, fields.next()?, fields.next()?);
        let path = fields.nth(2)?.trim_start();
        let is_file = rights == "r-xp" || (rights == "r--p" && usize::from_str_radix(offset, 16) == Ok(0));
        let (start, end) = addresses.split_once('-').filter(|_| is_file && path == program)?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    maps.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_the_beginning_of_the_file_were_not_written_to() {
        const MAPS: &str = "\
1000-3000 r--p 00000000 fe:00 60556                              /usr/bin/mainstem
3000-9000 r-xp 00002000 fe:00 60556                              /usr/bin/mainstem
9000-a000 r--p 00008000 fe:00 60556                              /usr/bin/mainstem
a000-b000 rw-p 00009000 fe:00 60556                              /usr/bin/mainstem
b000-c000 rw-p 00000000 00:00 0                                  [heap]
d000-e000 r-xp 00000000 fe:00 99                                 /usr/lib/libc.so.6
f000-ff00 r-xp 00000000 00:00 0
";
        assert_eq!(unwritten(MAPS, "/usr/bin/mainstem"), [0x1000..0x3000, 0x3000..0x9000]);
        assert!(unwritten(MAPS, "/usr/bin/main").is_empty());
    }

    #[test]
    fn what_is_given_back_is_not_resident_and_comes_back() {
        let resident = || {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        let before = resident();
        give_back();
        assert!(resident() < before, "{before} KiB");
    }
}
