//! The choice of the directory from which a partition is served after a start, when there are several.
//!
//! A move has these steps: appended records stop counting as durable; the copy is synced, and is complete; the original is
//! renamed to `-delete`, durably; the copy gets the partition's name, durably; appended records count again; the metadata
//! learns of it. So after a kill or a power cut a start finds one of two things. Either the original is there, and the copy
//! counts for nothing. Or the copy alone is there, and has all that was durable.

/// The id of a log directory.
pub type DirectoryId = [u8; 16];

/// The directories, of those that could be opened, in which a partition was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sightings {
    /// Directories with the partition under its own name.
    pub originals: Vec<DirectoryId>,
    /// Directories with a copy of it.
    pub copies: Vec<DirectoryId>,
}

/// The log directories, as far as a placement depends on them.
#[derive(Debug, Clone, Copy)]
pub struct Directories<'a> {
    /// Directories that could be opened.
    pub online: &'a [DirectoryId],
    /// True if some directories could not be opened. Their ids need not be known.
    pub any_offline: bool,
}

/// The directory from which a partition is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// The partition is here.
    Here(DirectoryId),
    /// A whole copy of it is here and gets its name.
    Promote(DirectoryId),
    /// It was never written to, and is created here.
    Create(DirectoryId),
    /// It was assigned to no directory, and is nowhere: any directory will do.
    Anywhere,
    /// It may be in a directory that is offline.
    Offline,
    /// It is assigned to a directory that is not among `log.dirs`.
    Missing,
    /// It is in two directories; an operator has to say which one counts.
    Twice(DirectoryId, DirectoryId),
}

/// Decides for one partition that the metadata assigns to `assigned`; `None`: to no directory in particular.
pub fn place(assigned: Option<DirectoryId>, found: &Sightings, dirs: Directories<'_>) -> Placement {
    match found.originals[..] {
        [one] => return Placement::Here(one),
        [one, other, ..] => return Placement::Twice(one, other),
        [] => {}
    }
    let Some(assigned) = assigned else {
        return if dirs.any_offline { Placement::Offline } else { Placement::Anywhere };
    };
    if !dirs.online.contains(&assigned) {
        return if dirs.any_offline { Placement::Offline } else { Placement::Missing };
    }
    match found.copies[..] {
        // Only the end of a move takes the original away from the directory that it is assigned to.
        [copy] => Placement::Promote(copy),
        [one, other, ..] => Placement::Twice(one, other),
        // A move may have ended in a directory that is offline by now, before the metadata could learn of it.
        [] if dirs.any_offline => Placement::Offline,
        [] => Placement::Create(assigned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DirectoryId = [0xa; 16];
    const B: DirectoryId = [0xb; 16];
    const C: DirectoryId = [0xc; 16];

    #[test]
    fn a_partition_is_served_from_where_its_records_are() {
        use Placement::*;
        let check = |assigned, originals: &[_], copies: &[_], any_offline, expected| {
            let found = Sightings { originals: originals.to_vec(), copies: copies.to_vec() };
            let dirs = Directories { online: &[A, B], any_offline };
            let placed = place(assigned, &found, dirs);
            assert_eq!(placed, expected, "{assigned:?} {found:?} offline: {any_offline}");
        };
        check(Some(A), &[A], &[], false, Here(A));
        // Its directory was moved while the broker was stopped.
        check(Some(A), &[B], &[], false, Here(B));
        check(Some(C), &[B], &[], true, Here(B));
        check(None, &[B], &[], true, Here(B));
        // A move that was cut short before its end, and at it.
        check(Some(A), &[A], &[B], false, Here(A));
        check(Some(A), &[], &[B], false, Promote(B));
        check(Some(A), &[], &[B], true, Promote(B));
        // Created, and killed before its directory was.
        check(Some(A), &[], &[], false, Create(A));
        check(None, &[], &[], false, Anywhere);
        // It may be in a directory that cannot be read.
        check(Some(A), &[], &[], true, Offline);
        check(Some(C), &[], &[], true, Offline);
        check(Some(C), &[], &[B], true, Offline);
        check(None, &[], &[], true, Offline);
        check(Some(C), &[], &[], false, Missing);
        check(Some(C), &[], &[B], false, Missing);
        check(Some(A), &[A, B], &[], false, Twice(A, B));
        check(Some(B), &[A, B], &[], true, Twice(A, B));
    }
}
