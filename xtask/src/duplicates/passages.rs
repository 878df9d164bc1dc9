//! The search for equal passages: windows of tokens that have the same hash, extended as far as they are equal.

use std::collections::HashMap;

use super::{Extent, Pair};
use crate::sources::{Source, in_parallel};
use crate::tokens::{Token, Tokens};

/// The tokens of all files, one file behind the other.
pub(super) struct Passages<'s> {
    /// A hash of each token: those that are equal are taken for the same token.
    hashes: Vec<u64>,
    /// The line of each.
    lines: Vec<u32>,
    /// Each file, and where its tokens begin.
    files: Vec<(&'s str, usize)>,
}

impl<'s> Passages<'s> {
    pub(super) fn of(sources: &[(&'s Source, Tokens<'_>)]) -> Passages<'s> {
        let mut all = Passages { hashes: Vec::new(), lines: Vec::new(), files: Vec::new() };
        let counted = in_parallel(sources, |(_, tokens)| of_file(&tokens.code));
        for ((source, _), (hashes, lines)) in sources.iter().zip(counted) {
            all.files.push((&source.path, all.hashes.len()));
            all.hashes.extend(hashes);
            all.lines.extend(lines);
        }
        all
    }

    /// Returns the pairs of passages of so many tokens or more, the longest first.
    pub(super) fn pairs(&self, tokens_min: usize) -> Vec<Pair> {
        let mut found = Vec::new();
        for places in self.repeated(tokens_min) {
            for (index, first) in places.iter().enumerate() {
                let seconds = places[index + 1..].iter();
                found.extend(seconds.filter_map(|second| self.pair(*first, *second, tokens_min)));
            }
        }
        found.sort_by(|a: &(usize, usize, usize), b| b.2.cmp(&a.2).then(a.cmp(b)));
        found.iter().map(|(first, second, length)| self.describe(*first, *second, *length)).collect()
    }

    /// Returns the places, in their order, at which windows of the same hash begin: one list for each hash that occurs twice or more.
    fn repeated(&self, window: usize) -> Vec<Vec<usize>> {
        let windows = self.windows(window);
        // Most windows occur once. Two tables leave them out before the others are sorted by hash.
        let (mut seen, mut again) = (vec![false; 1 << BITS], vec![false; 1 << BITS]);
        for (hash, _) in &windows {
            let slot = slot(*hash);
            again[slot] = seen[slot];
            seen[slot] = true;
        }
        let mut places: HashMap<u64, Vec<usize>> = HashMap::new();
        for (hash, place) in windows.into_iter().filter(|(hash, _)| again[slot(*hash)]) {
            places.entry(hash).or_default().push(place);
        }
        let apart = places.into_values().map(|places| self.apart(&places, window));
        apart.filter(|places| places.len() > 1).collect()
    }

    /// Returns the places whose window does not overlap the one before it. A passage that repeats itself, such as a row of zeros, has equal
    /// windows at many places, and counts at the first of them.
    fn apart(&self, places: &[usize], window: usize) -> Vec<usize> {
        let is_apart =
            |before: usize, place: usize| place - before >= window || self.file(before) != self.file(place);
        let befores = std::iter::once(None).chain(places.iter().map(|place| Some(*place)));
        let apart = places
            .iter()
            .zip(befores)
            .filter(|(place, before)| before.is_none_or(|before| is_apart(before, **place)));
        apart.map(|(place, _)| *place).collect()
    }

    /// Returns the hash and the place of each window that is in one file.
    fn windows(&self, window: usize) -> Vec<(u64, usize)> {
        let ends = self.files.iter().skip(1).map(|(_, begin)| *begin).chain([self.hashes.len()]);
        let mut found = Vec::with_capacity(self.hashes.len());
        for ((_, begin), end) in self.files.iter().zip(ends) {
            let mut hash = Rolling::new(window);
            for at in *begin..end {
                let leaves = if at < begin + window { 0 } else { self.hashes[at - window] };
                hash.turn(leaves, self.hashes[at]);
                if at + 1 >= begin + window {
                    found.push((hash.value, at + 1 - window));
                }
            }
        }
        found
    }

    /// Returns two places, the first one first, and for how many tokens they are equal: nothing if they are equal before these places,
    /// where another window has found them.
    fn pair(&self, first: usize, second: usize, tokens_min: usize) -> Option<(usize, usize, usize)> {
        let (file, other) = (self.file(first), self.file(second));
        let begins = self.files[file].1 == first || self.files[other].1 == second;
        if !begins && self.hashes[first - 1] == self.hashes[second - 1] {
            return None;
        }
        let most = (self.end(other) - second).min(self.end(file) - first);
        // Passages of one file do not overlap.
        let most = if file == other { most.min(second - first) } else { most };
        let length = (0..most).take_while(|at| self.hashes[first + at] == self.hashes[second + at]).count();
        (length >= tokens_min).then_some((first, second, length))
    }

    /// Returns the index of the file in which a token is.
    fn file(&self, token: usize) -> usize {
        self.files.partition_point(|(_, begin)| *begin <= token) - 1
    }

    /// Returns the end of a file.
    fn end(&self, file: usize) -> usize {
        self.files.get(file + 1).map_or(self.hashes.len(), |(_, begin)| *begin)
    }

    fn describe(&self, first: usize, second: usize, tokens: usize) -> Pair {
        let extent = |begin: usize| Extent {
            file: self.files[self.file(begin)].0.to_owned(),
            first_line: self.lines[begin],
            last_line: self.lines[begin + tokens - 1],
        };
        Pair { tokens, passages: [extent(first), extent(second)] }
    }
}

/// The size of the tables that leave out windows which occur once.
const BITS: u32 = 24;

fn slot(hash: u64) -> usize {
    (hash >> (u64::BITS - BITS)) as usize
}

/// The hash of the last tokens, which follows from that of the ones before.
struct Rolling {
    value: u64,
    /// The factor of the token that leaves.
    oldest: u64,
}

impl Rolling {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

    fn new(window: usize) -> Rolling {
        Rolling { value: 0, oldest: (0..window).fold(1, |power: u64, _| power.wrapping_mul(Self::FACTOR)) }
    }

    fn turn(&mut self, leaves: u64, comes: u64) {
        let gone = leaves.wrapping_mul(self.oldest);
        self.value = self.value.wrapping_mul(Self::FACTOR).wrapping_add(comes).wrapping_sub(gone);
    }
}

/// Returns hash and line of each token of a file that counts.
fn of_file(code: &[Token<'_>]) -> (Vec<u64>, Vec<u32>) {
    let (mut hashes, mut lines) = (Vec::with_capacity(code.len()), Vec::with_capacity(code.len()));
    let mut at = 0;
    while at < code.len() {
        let left_out = left_out(&code[at..]);
        if left_out == 0 {
            hashes.push(hash(code[at].text));
            lines.push(code[at].line);
        }
        at += left_out.max(1);
    }
    (hashes, lines)
}

/// Returns how many tokens at the beginning are a `use` or a `#[derive(..)]`.
fn left_out(code: &[Token<'_>]) -> usize {
    let end = match code {
        // `use<..>` in a type is no list.
        [word, next, ..] if word.is_word("use") && !next.is_sign("<") => ";",
        [hash, bracket, word, ..] if hash.is_sign("#") && bracket.is_sign("[") && word.is_word("derive") => {
            "]"
        }
        _ => return 0,
    };
    code.iter().position(|token| token.is_sign(end)).map_or(code.len(), |end| end + 1)
}

/// FNV-1a of 64 bits, and a last step that spreads it.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::tokens;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    /// The pairs of passages of five tokens and more, as they are printed.
    fn pairs(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| source(path, text)).collect();
        let all: Vec<_> = sources.iter().map(|source| (source, tokens(&source.text))).collect();
        let pairs = Passages::of(&all).pairs(5);
        pairs.iter().map(|Pair { tokens, passages: [a, b] }| format!("{tokens}: {a} {b}")).collect()
    }

    #[test]
    fn a_passage_in_two_files_is_a_pair_as_long_as_it_can_be() {
        let found = pairs(&[("a.rs", "x a b c\nd e f y"), ("b.rs", "z\n\na b c d\n// not this\ne\nf w")]);
        assert_eq!(found, ["6: a.rs:1-2 b.rs:3-6"]);
    }

    #[test]
    fn the_longest_comes_first_and_each_is_there_once() {
        let found = pairs(&[("a.rs", "a b c d e 1 f g h i j k"), ("b.rs", "f g h i j k 2 a b c d e 3")]);
        assert_eq!(found, ["6: a.rs:1-1 b.rs:1-1", "5: a.rs:1-1 b.rs:1-1"]);
        assert_eq!(pairs(&[("a.rs", "a b c d e"), ("b.rs", "a b c d e"), ("c.rs", "a b c d e")]).len(), 3);
    }

    #[test]
    fn shorter_ones_and_those_that_differ_in_a_name_or_a_literal_are_none() {
        assert_eq!(pairs(&[("a.rs", "a b c d"), ("b.rs", "a b c d")]), [""; 0]);
        assert_eq!(pairs(&[("a.rs", "a b c d e"), ("b.rs", "a b c d f")]), [""; 0]);
        assert_eq!(pairs(&[("a.rs", "a b 1 d e"), ("b.rs", "a b 2 d e")]), [""; 0]);
    }

    #[test]
    fn a_passage_does_not_reach_from_one_file_into_the_next() {
        assert_eq!(pairs(&[("a.rs", "a b c"), ("b.rs", "d e f"), ("c.rs", "a b c d e f")]), [""; 0]);
    }

    #[test]
    fn passages_of_one_file_do_not_overlap() {
        assert_eq!(pairs(&[("a.rs", "1 a b c d e\n2 a b c d e")]), ["5: a.rs:1-1 a.rs:2-2"]);
        assert_eq!(pairs(&[("a.rs", "a b c d e\na b c d e\na b c d")]), ["5: a.rs:1-1 a.rs:2-2"]);
    }

    #[test]
    fn a_passage_that_repeats_itself_counts_once() {
        let zeros = "0, ".repeat(40);
        assert_eq!(pairs(&[("a.rs", &zeros)]), [""; 0]);
        assert_eq!(pairs(&[("a.rs", &zeros), ("b.rs", &format!("x {zeros}"))]), ["80: a.rs:1-1 b.rs:1-1"]);
    }

    #[test]
    fn uses_and_derives_do_not_count() {
        let uses = "use a::{b, c, d};\n#[derive(A, B, C)]\n";
        assert_eq!(pairs(&[("a.rs", uses), ("b.rs", uses)]), [""; 0]);
        assert_eq!(pairs(&[("a.rs", "a b #[derive(A)] c d e"), ("b.rs", "a b c d e")]).len(), 1);
        assert_eq!(pairs(&[("a.rs", "-> impl use<'a> {"), ("b.rs", "-> impl use<'a> {")]).len(), 1);
    }
}
