//! `meta.properties`: whose directory this is. Kafka's file and keys (version 1), with one key of ours for the
//! version of the format on disk; Kafka's readers ignore keys that they do not know.

use crate::storage::{Storage, read_small_file, replace_file_unsynced};
use crate::uuid;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Name of the file in the log directory.
pub(crate) const META_PROPERTIES: &str = "meta.properties";

/// The newest format on disk that this release reads and writes (docs/format.md).
pub(crate) const FORMAT_VERSION: u32 = 3;

/// The format of a directory without groups, which is what each begins with.
pub(crate) const FIRST_FORMAT_VERSION: u32 = 1;

/// The format from the first Raft group on: a release that does not know `mainstem.groups` would serve the partitions
/// without it.
pub const GROUPS_FORMAT_VERSION: u32 = 2;

/// The format from level 2 of `mainstem.version` on: a release that does not know the frames of that level would cut them off the
/// journal of groups.
pub const LEVEL_2_FORMAT_VERSION: u32 = 3;

/// The longest name of a release.
const RELEASE_LEN_MAX: usize = 32;

/// Kafka's version of the file since KRaft.
const KAFKA_VERSION: u32 = 1;

/// Ours has about 150 bytes.
const LEN_MAX: usize = 64 << 10;

/// Whose directory it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaProperties {
    /// Id of the cluster.
    pub cluster_id: String,
    /// Id of the node.
    pub node_id: i32,
    /// Id of the directory (KIP-858). Absent in files of old releases of Kafka.
    pub directory_id: Option<[u8; 16]>,
    /// Version of the format on disk; absent in a directory that Kafka made, which has the layout of version 1.
    pub format_version: Option<u32>,
    /// The release that raised the format. It is named from [`LEVEL_2_FORMAT_VERSION`] on.
    pub release: Option<String>,
}

/// The reason for which a `meta.properties` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaPropertiesError {
    /// The file is of a newer release.
    #[error(
        "{key}={found} is newer than {supported}, the newest that this release knows{}",
        release.as_ref().map_or(String::new(), |release| format!("; Mainstem {release} has written it"))
    )]
    Newer {
        /// The version's key.
        key: &'static str,
        /// The version in the file.
        found: u32,
        /// The newest supported.
        supported: u32,
        /// The release that raised it, if the file names one.
        release: Option<String>,
    },
    /// The file is from the time before KRaft.
    #[error("version=0 was written by a Kafka that used ZooKeeper; only version=1 is supported")]
    BeforeKraft,
    /// A key is missing or its value makes no sense.
    #[error("{key} is missing or has no legal value")]
    Malformed {
        /// The key.
        key: &'static str,
    },
    /// The file is not text.
    #[error("it is not a text file")]
    NotText,
}

impl MetaProperties {
    /// Reads the file of a directory; `None` when there is none.
    pub fn read(
        storage: &dyn Storage,
        dir: &Path,
    ) -> io::Result<Option<Result<MetaProperties, MetaPropertiesError>>> {
        match read_small_file(storage, &dir.join(META_PROPERTIES), LEN_MAX) {
            Ok(bytes) => Ok(Some(MetaProperties::parse(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the file; durable when the caller has synced the directory.
    pub(crate) fn write(&self, storage: &dyn Storage, dir: &Path) -> io::Result<()> {
        replace_file_unsynced(storage, &dir.join(META_PROPERTIES), self.format().as_bytes())
    }

    fn parse(bytes: &[u8]) -> Result<MetaProperties, MetaPropertiesError> {
        let text = std::str::from_utf8(bytes).map_err(|_| MetaPropertiesError::NotText)?;
        let properties = parse_properties(text);
        let number = |key| properties.get(key).map(|value| value.parse().map_err(|_| malformed(key)));
        let release = properties.get("mainstem.release").filter(|name| is_release(name)).cloned();
        check_version("version", number("version").transpose()?.unwrap_or(0), KAFKA_VERSION, None)?;
        let format_version = number("mainstem.format").transpose()?;
        let format = format_version.unwrap_or(FIRST_FORMAT_VERSION);
        check_version("mainstem.format", format, FORMAT_VERSION, release.as_ref())?;
        let directory_id = match properties.get("directory.id") {
            Some(id) => Some(uuid::from_base64url(id).ok_or(malformed("directory.id"))?),
            None => None,
        };
        Ok(MetaProperties {
            cluster_id: properties.get("cluster.id").cloned().ok_or(malformed("cluster.id"))?,
            node_id: properties.get("node.id").and_then(|id| id.parse().ok()).ok_or(malformed("node.id"))?,
            directory_id,
            format_version,
            release,
        })
    }

    fn format(&self) -> String {
        let mut text = String::from("#\n");
        let mut line = |key: &str, value: &str| {
            text.push_str(key);
            text.push('=');
            escape_value(value, &mut text);
            text.push('\n');
        };
        line("version", &KAFKA_VERSION.to_string());
        line("cluster.id", &self.cluster_id);
        line("node.id", &self.node_id.to_string());
        if let Some(id) = &self.directory_id {
            line("directory.id", &uuid::to_base64url(id));
        }
        if let Some(version) = self.format_version {
            line("mainstem.format", &version.to_string());
        }
        if let Some(release) = &self.release {
            line("mainstem.release", release);
        }
        text
    }
}

fn malformed(key: &'static str) -> MetaPropertiesError {
    MetaPropertiesError::Malformed { key }
}

fn check_version(
    key: &'static str,
    found: u32,
    supported: u32,
    release: Option<&String>,
) -> Result<(), MetaPropertiesError> {
    match found {
        0 => Err(MetaPropertiesError::BeforeKraft),
        _ if found > supported => {
            Err(MetaPropertiesError::Newer { key, found, supported, release: release.cloned() })
        }
        _ => Ok(()),
    }
}

/// Returns true for what may be the version of a release, which is shown to a person.
fn is_release(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
    !name.is_empty() && name.len() <= RELEASE_LEN_MAX && name.bytes().all(is_part)
}

/// Java's properties format (java.util.Properties.load), the later of two equal keys wins.
fn parse_properties(text: &str) -> BTreeMap<String, String> {
    logical_lines(text).iter().map(|line| split_property(line)).collect()
}

/// Lines without comments and blanks, continued ones joined.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut continued = false;
    for line in text.split(['\n', '\r']) {
        let line = line.trim_start_matches(is_blank);
        if !continued && (line.is_empty() || line.starts_with(['#', '!'])) {
            continue;
        }
        let backslashes = line.bytes().rev().take_while(|byte| *byte == b'\\').count();
        let continues = backslashes % 2 == 1;
        let line = if continues { &line[..line.len() - 1] } else { line };
        match lines.last_mut().filter(|_| continued) {
            Some(last) => last.push_str(line),
            None => lines.push(line.to_owned()),
        }
        continued = continues;
    }
    lines
}

fn is_blank(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\x0c')
}

/// The key ends at the first `=`, `:` or blank that is not escaped; blanks around the separator do not count.
fn split_property(line: &str) -> (String, String) {
    let mut escaped = false;
    let end = line.find(|char| {
        let ends = !escaped && (matches!(char, '=' | ':') || is_blank(char));
        escaped = !escaped && char == '\\';
        ends
    });
    let (key, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(is_blank);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start_matches(is_blank);
    (unescape(key), unescape(value))
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        let char = match char {
            '\\' => match chars.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\x0c',
                Some('u') => unescape_code_unit(&mut chars),
                Some(other) => other,
                None => break,
            },
            other => other,
        };
        plain.push(char);
    }
    plain
}

/// Four hexadecimal digits. Half of a surrogate pair, or no digits, becomes the replacement character: no key or
/// value that counts here has one.
fn unescape_code_unit(chars: &mut std::str::Chars<'_>) -> char {
    let code = (0..4).try_fold(0, |code, _| Some(code << 4 | chars.next()?.to_digit(16)?));
    code.and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn escape_value(value: &str, text: &mut String) {
    for (index, char) in value.chars().enumerate() {
        match char {
            ' ' if index > 0 => text.push(' '),
            '\t' => text.push_str("\\t"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\x0c' => text.push_str("\\f"),
            ' ' | '\\' | '=' | ':' | '#' | '!' => text.extend(['\\', char]),
            _ => text.push(char),
        }
    }
}

/// Fuzz body: what is read is read again from what would be written.
pub(crate) fn fuzz(data: &[u8]) {
    if let Ok(properties) = MetaProperties::parse(data) {
        assert_eq!(MetaProperties::parse(properties.format().as_bytes()), Ok(properties));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: &str = "version=1\ncluster.id=c\nnode.id=3\ndirectory.id=AAAAAAAAAAAAAAAAAAAAZQ\n";

    fn example() -> MetaProperties {
        MetaProperties {
            cluster_id: "c".to_owned(),
            node_id: 3,
            directory_id: Some(101_u128.to_be_bytes()),
            format_version: None,
            release: None,
        }
    }

    #[test]
    fn files_are_understood() {
        let check = |text: &str, expected: Result<MetaProperties, MetaPropertiesError>| {
            assert_eq!(MetaProperties::parse(text.as_bytes()), expected, "{text:?}");
        };
        check(WHOLE, Ok(example()));
        // As java.util.Properties.store() writes it.
        check(&format!("#\n#Sat Nov 21 21:00:00 UTC 2026\r\n{}", WHOLE.replace('\n', "\r\n")), Ok(example()));
        check(&WHOLE.replace('=', " : "), Ok(example()));
        check(&WHOLE.replace("cluster.id=c", "cluster.\\\n  id=\\u0063"), Ok(example()));
        check(&format!("{WHOLE}another.key=1\n"), Ok(example()));
        check(
            &format!("{WHOLE}mainstem.format=1"),
            Ok(MetaProperties { format_version: Some(1), ..example() }),
        );
        check(
            "version=1\ncluster.id=a\\=b\nnode.id=0",
            Ok(MetaProperties { cluster_id: "a=b".to_owned(), node_id: 0, directory_id: None, ..example() }),
        );
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let check = |text: &str, expected: &str| {
            let error = MetaProperties::parse(text.as_bytes()).expect_err(text);
            assert_eq!(error.to_string(), expected, "{text:?}");
        };
        check("", "version=0 was written by a Kafka that used ZooKeeper; only version=1 is supported");
        check(
            &WHOLE.replace("version=1", "version=2"),
            "version=2 is newer than 1, the newest that this release knows",
        );
        let newer = "mainstem.format=4 is newer than 3, the newest that this release knows";
        let named = format!("{newer}; Mainstem 0.3.0-rc.1 has written it");
        check(&format!("{WHOLE}mainstem.format=4"), newer);
        check(&format!("{WHOLE}mainstem.format=4\nmainstem.release=0.3.0-rc.1"), &named);
        check(&format!("{WHOLE}mainstem.format=4\nmainstem.release=0.3 \u{1b}[2J"), newer);
        check(&WHOLE.replace("version=1", "version=one"), "version is missing or has no legal value");
        check(&WHOLE.replace("cluster.id", "cluster"), "cluster.id is missing or has no legal value");
        check(&WHOLE.replace("node.id=3", "node.id=x"), "node.id is missing or has no legal value");
        check(&WHOLE.replace("AAAZQ", "AAA"), "directory.id is missing or has no legal value");
    }

    proptest! {
        #[test]
        fn properties_survive_their_file(
            cluster_id in any::<String>(), node_id: i32, directory_id: Option<[u8; 16]>, ours: bool,
        ) {
            let format_version = ours.then_some(FORMAT_VERSION);
            let release = ours.then(|| "0.2.0".to_owned());
            let properties = MetaProperties { cluster_id, node_id, directory_id, format_version, release };
            prop_assert_eq!(MetaProperties::parse(properties.format().as_bytes()), Ok(properties));
        }
    }
}
