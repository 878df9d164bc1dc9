//! `xtask/tidy.toml`: the number of each kind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

use super::findings::Finding;
use super::{Counts, KINDS};
use crate::workspace;

/// Tables of numbers. The kind of a number is its table and its key, with a dot between them.
const TABLES: [&str; 4] = [PUB_ITEMS, "words", "parts", "names"];
const PUB_ITEMS: &str = "pub_items";

/// The numbers, and the text that has them.
pub(super) struct Limits {
    text: String,
    numbers: BTreeMap<String, usize>,
}

/// A count that has fallen: its kind, the number that it had, and the new one.
type Fallen = (String, usize, usize);

impl Limits {
    /// Reads the numbers of this repository.
    ///
    /// # Errors
    /// If they cannot be read, or one is of no kind that is counted.
    pub(super) fn read() -> Result<Limits> {
        let text = fs::read_to_string(path()).with_context(|| format!("read {}", path().display()))?;
        Limits::parse(text).with_context(|| format!("in {}", path().display()))
    }

    fn parse(text: String) -> Result<Limits> {
        let mut numbers = BTreeMap::new();
        for (key, value) in text.parse::<Table>()? {
            match value {
                Value::Table(table) if TABLES.contains(&key.as_str()) => {
                    for (of_table, value) in table {
                        numbers.insert(format!("{key}.{of_table}"), number(&of_table, &value)?);
                    }
                }
                value if KINDS.contains(&key.as_str()) => {
                    numbers.insert(key.clone(), number(&key, &value)?);
                }
                _ => bail!("{key} is nothing that is counted: remove it"),
            }
        }
        Ok(Limits { text, numbers })
    }

    /// Returns the kinds that have a number.
    pub(super) fn kinds(&self) -> impl Iterator<Item = &str> {
        self.numbers.keys().map(String::as_str)
    }

    /// Returns the kinds that are words, parts and names.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        self.kinds().filter(|kind| kind.contains('.') && !kind.starts_with(PUB_ITEMS))
    }

    /// Returns a finding for each count that is not its number. A kind without a number has none.
    pub(super) fn compare<'c>(&'c self, counts: &'c Counts) -> Vec<Finding<'c>> {
        let kinds: BTreeSet<&str> = self.kinds().chain(counts.keys().map(String::as_str)).collect();
        let finding = |kind: &'c str| {
            let places = counts.get(kind).map_or(&[][..], Vec::as_slice);
            let number = self.numbers.get(kind).copied().unwrap_or(0);
            match places.len().cmp(&number) {
                std::cmp::Ordering::Greater => Some(Finding::Above { kind, number, places }),
                std::cmp::Ordering::Less => Some(Finding::Below { kind, number, count: places.len() }),
                std::cmp::Ordering::Equal => None,
            }
        };
        kinds.into_iter().filter_map(finding).collect()
    }

    /// Writes the counts that are below their numbers, and returns them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn lower(&self, counts: &Counts) -> Result<Vec<Fallen>> {
        let (text, fallen) = self.lowered(counts);
        fs::write(path(), text).with_context(|| format!("write {}", path().display()))?;
        Ok(fallen)
    }

    /// Returns the text with the lower numbers. All else in it stays as it is; a crate that has no items any more has no line.
    fn lowered(&self, counts: &Counts) -> (String, Vec<Fallen>) {
        let (mut text, mut fallen, mut table) = (String::new(), Vec::new(), String::new());
        for line in self.text.split_inclusive('\n') {
            if let Some(name) = line.trim().strip_prefix('[').and_then(|line| line.split(']').next()) {
                table = format!("{name}.");
            }
            let number = key(line).and_then(|key| {
                let kind = format!("{table}{key}");
                let number = *self.numbers.get(&kind)?;
                Some((kind, number))
            });
            let Some((kind, number)) = number else {
                text.push_str(line);
                continue;
            };
            let count = counts.get(&kind).map_or(0, Vec::len);
            let is_gone = count == 0 && table == format!("{PUB_ITEMS}.");
            match count < number {
                true if is_gone => {}
                true => text.push_str(&line.replacen(&format!("= {number}"), &format!("= {count}"), 1)),
                false => text.push_str(line),
            }
            if count < number {
                fallen.push((kind, number, count));
            }
        }
        (text, fallen)
    }
}

/// Returns the key of a line that has a number.
fn key(line: &str) -> Option<&str> {
    let (key, _) = line.split_once(" = ")?;
    Some(key.trim().trim_matches('"')).filter(|key| !key.starts_with('#'))
}

fn number(key: &str, value: &Value) -> Result<usize> {
    let number = value.as_integer().and_then(|number| usize::try_from(number).ok());
    number.with_context(|| format!("{key} is no number: write {key} = 0"))
}

fn path() -> PathBuf {
    workspace::root().join("xtask").join("tidy.toml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::Place;

    const TEXT: &str = "# A comment.\nlong_files = 2 # why\n\n[pub_items]\nflow-derive = 1\nlog = 3\n\n[words]\n\"goes far\" = 2 # say: reaches\nblue = 1\n";

    fn limits(text: &str) -> Limits {
        Limits::parse(text.to_owned()).unwrap()
    }

    fn counts(counts: &[(&str, usize)]) -> Counts {
        counts.iter().map(|(kind, count)| ((*kind).to_owned(), vec![Place::default(); *count])).collect()
    }

    const EQUAL: [(&str, usize); 5] = [
        ("long_files", 2),
        ("pub_items.flow-derive", 1),
        ("pub_items.log", 3),
        ("words.goes far", 2),
        ("words.blue", 1),
    ];

    #[test]
    fn a_count_has_to_be_its_number() {
        let limits = limits(TEXT);
        assert_eq!(limits.compare(&counts(&EQUAL)), []);
        for (kind, number) in EQUAL {
            let with = |count| {
                counts(&EQUAL.map(|(other, number)| (other, if other == kind { count } else { number })))
            };
            let above = with(number + 1);
            assert_eq!(limits.compare(&above), [Finding::Above { kind, number, places: &above[kind] }]);
            assert_eq!(
                limits.compare(&with(number - 1)),
                [Finding::Below { kind, number, count: number - 1 }]
            );
        }
    }

    #[test]
    fn a_kind_without_a_number_has_none_and_one_without_a_count_has_fallen() {
        let all = counts(&[("pub_items.new", 1)]);
        let (above, places) = (limits(""), &all["pub_items.new"][..]);
        assert_eq!(above.compare(&all), [Finding::Above { kind: "pub_items.new", number: 0, places }]);
        assert_eq!(limits(TEXT).compare(&counts(&[])).len(), EQUAL.len());
    }

    #[test]
    fn lower_numbers_are_written_and_all_else_stays() {
        let (text, fallen) =
            limits(TEXT).lowered(&counts(&[("long_files", 1), ("pub_items.log", 4), ("words.blue", 1)]));
        let expected = TEXT
            .replace("files = 2", "files = 1")
            .replace("flow-derive = 1\n", "")
            .replace("\" = 2", "\" = 0");
        assert_eq!(text, expected);
        let fallen: Vec<(&str, usize, usize)> =
            fallen.iter().map(|(kind, from, to)| (kind.as_str(), *from, *to)).collect();
        assert_eq!(fallen, [("long_files", 2, 1), ("pub_items.flow-derive", 1, 0), ("words.goes far", 2, 0)]);
    }

    #[test]
    fn what_is_not_counted_has_no_number() {
        for text in
            ["long_filez = 1", "[word]\na = 1", "long_files = -1", "long_files = \"1\"", "[words]\na = true"]
        {
            assert!(Limits::parse(text.to_owned()).is_err(), "{text}");
        }
    }

    /// `lowered` changes lines that are written as all of them are: a key, ` = `, a number.
    #[test]
    fn every_number_of_the_repository_can_be_lowered() {
        let limits = Limits::read().unwrap();
        let (text, fallen) = limits.lowered(&Counts::new());
        let above_zero = limits.numbers.values().filter(|number| **number > 0).count();
        assert_eq!(fallen.len(), above_zero);
        assert!(Limits::parse(text).unwrap().numbers.values().all(|number| *number == 0));
    }
}
