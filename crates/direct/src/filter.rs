//! Filters of the events that a consumer sees: exclude first, include overrides.
//!
//! A filter comes from a peer. It is compiled once, within bounds: of its size, of the number and length of its patterns, and of
//! the memory of each. Patterns are RE2's, matched in linear time.

mod topic;

use mainstem_lines::OneLine;
use mainstem_records::{Record, slice_of};
use prost::Message as _;
use regex::bytes::{Regex, RegexBuilder};
use tonic::Status;

use crate::proto::{self, criterion::Matches};
use crate::slices::SliceRange;
pub use topic::TopicPattern;

/// The name of the header that has a tag; an event may have several.
pub const TAG_HEADER: &str = "__mainstem.tag";
/// The name of the header whose value topic patterns match.
pub const TOPIC_HEADER: &str = "topic";
/// A filter has at most this many bytes as a message of the protocol.
pub const FILTER_BYTES_MAX: usize = 32 << 10;
/// A pattern has at most this many bytes.
pub const PATTERN_BYTES_MAX: usize = 4 << 10;
/// A filter has at most this many patterns.
pub const PATTERNS_MAX: usize = 32;
/// All filters that are in use at a publisher have at most this many patterns, equal filters once.
pub const PATTERNS_IN_ALL_MAX: usize = 1_024;
/// The most bytes of a compiled pattern, and of its lazy automaton.
const COMPILED_BYTES_MAX: usize = 256 << 10;
const NESTING_MAX: u32 = 64;

/// The reason why a filter is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The filter is too large.
    #[error("the filter has {bytes} bytes, and {FILTER_BYTES_MAX} are the most")]
    TooLarge {
        /// Its size as a message of the protocol.
        bytes: usize,
    },
    /// The filter has too many patterns.
    #[error("the filter has more than {PATTERNS_MAX} patterns; join some by |")]
    TooManyPatterns,
    /// The filters in use at a publisher would have too many patterns with it.
    #[error(
        "the filters that are in use at this publisher would have more than {PATTERNS_IN_ALL_MAX} patterns with this one; join some by |, \
         or use prefixes"
    )]
    TooManyInAll,
    /// The filters that one address has brought would have too many patterns with it.
    #[error(
        "the filters that your address has in use at this publisher would have more than {most} patterns with this one; join some by |, \
         or use prefixes"
    )]
    TooManyOfPeer {
        /// The most patterns of one address.
        most: usize,
    },
    /// A pattern is too long.
    #[error("a pattern of the filter has {bytes} bytes, and {PATTERN_BYTES_MAX} are the most")]
    PatternTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A text is no pattern, or would be too large when compiled.
    #[error("the pattern {:?} cannot be used: {}", OneLine(pattern), OneLine(reason))]
    Pattern {
        /// The pattern, or its beginning.
        pattern: String,
        /// The reason.
        reason: String,
    },
    /// A range of slices is empty or too large.
    #[error("the slices {from} to {to} are none; they go from 0 to 1,024")]
    Slices {
        /// The first slice.
        from: u32,
        /// The slice behind the last one.
        to: u32,
    },
    /// A criterion is empty, as one of a later version of the protocol is.
    #[error("a criterion of the filter is empty, or of a later version of the protocol")]
    Empty,
}

impl FilterError {
    /// Returns the gRPC status of the error.
    pub(crate) fn to_status(&self) -> Status {
        match self {
            // It may be possible once other filters are not in use any more.
            FilterError::TooManyInAll | FilterError::TooManyOfPeer { .. } => {
                Status::resource_exhausted(self.to_string())
            }
            _ => Status::invalid_argument(self.to_string()),
        }
    }
}

/// A compiled filter.
#[derive(Debug)]
pub struct Filter {
    exclude: Vec<Criterion>,
    include: Vec<Criterion>,
}

#[derive(Debug)]
enum Criterion {
    Everything,
    Tags(Vec<String>),
    Header(String, Vec<Vec<u8>>),
    Keys(Vec<Vec<u8>>),
    KeyPrefixes(Vec<Vec<u8>>),
    KeyPatterns(Vec<Regex>),
    Topics(Vec<TopicPattern>),
    Slices(SliceRange),
}

impl Filter {
    /// Compiles a filter of a peer.
    ///
    /// # Errors
    /// See [`FilterError`].
    pub fn compile(filter: &proto::Filter) -> Result<Filter, FilterError> {
        let bytes = filter.encoded_len();
        if bytes > FILTER_BYTES_MAX {
            return Err(FilterError::TooLarge { bytes });
        }
        let mut patterns = 0;
        let mut compile = |criteria: &[proto::Criterion]| {
            criteria.iter().map(|one| Criterion::compile(one, &mut patterns)).collect::<Result<Vec<_>, _>>()
        };
        let (exclude, include) = (compile(&filter.exclude)?, compile(&filter.include)?);
        Ok(Filter { exclude, include })
    }

    /// Returns the number of patterns of a filter.
    ///
    /// # Errors
    /// [`FilterError::TooManyPatterns`].
    pub(crate) fn patterns_of(filter: &proto::Filter) -> Result<usize, FilterError> {
        let of = |criterion: &proto::Criterion| match &criterion.matches {
            Some(Matches::KeyPatterns(texts)) => texts.any.len(),
            _ => 0,
        };
        let patterns: usize = filter.exclude.iter().chain(&filter.include).map(of).sum();
        if patterns > PATTERNS_MAX { Err(FilterError::TooManyPatterns) } else { Ok(patterns) }
    }

    /// Returns true if it lets everything pass.
    pub fn is_empty(&self) -> bool {
        self.exclude.is_empty()
    }

    /// Returns true if an event passes.
    pub fn passes(&self, event: &Record<'_>) -> bool {
        !self.exclude.iter().any(|criterion| criterion.matches(event))
            || self.include.iter().any(|criterion| criterion.matches(event))
    }
}

impl Criterion {
    fn compile(criterion: &proto::Criterion, patterns: &mut usize) -> Result<Criterion, FilterError> {
        let mut count = |more: usize| {
            *patterns += more;
            (*patterns <= PATTERNS_MAX).then_some(()).ok_or(FilterError::TooManyPatterns)
        };
        let owned = |keys: &[bytes::Bytes]| keys.iter().map(|key| key.to_vec()).collect::<Vec<_>>();
        Ok(match criterion.matches.as_ref().ok_or(FilterError::Empty)? {
            Matches::Everything(_) => Criterion::Everything,
            Matches::Tags(tags) => Criterion::Tags(tags.any.clone()),
            Matches::Header(header) => Criterion::Header(header.name.clone(), owned(&header.any)),
            Matches::Keys(keys) => Criterion::Keys(owned(&keys.any)),
            Matches::KeyPrefixes(keys) => Criterion::KeyPrefixes(owned(&keys.any)),
            Matches::KeyPatterns(texts) => {
                count(texts.any.len())?;
                Criterion::KeyPatterns(texts.any.iter().map(|text| pattern(text)).collect::<Result<_, _>>()?)
            }
            Matches::Topics(texts) => {
                let compile = |text: &String| {
                    TopicPattern::parse(text)
                        .map_err(|reason| FilterError::Pattern { pattern: shortened(text), reason })
                };
                Criterion::Topics(texts.any.iter().map(compile).collect::<Result<_, _>>()?)
            }
            Matches::Slices(slices) => {
                let range = SliceRange::of_proto(slices);
                Criterion::Slices(range.ok_or(FilterError::Slices { from: slices.from, to: slices.to })?)
            }
        })
    }

    fn matches(&self, event: &Record<'_>) -> bool {
        let key = event.key.unwrap_or_default();
        match self {
            Criterion::Everything => true,
            Criterion::Tags(tags) => {
                values_of(event, TAG_HEADER).any(|value| tags.iter().any(|tag| value == Some(tag.as_bytes())))
            }
            Criterion::Header(name, any) => values_of(event, name)
                .any(|value| any.is_empty() || any.iter().any(|wanted| value == Some(wanted.as_slice()))),
            Criterion::Keys(keys) => event.key.is_some_and(|key| keys.iter().any(|one| one == key)),
            Criterion::KeyPrefixes(prefixes) => {
                event.key.is_some() && prefixes.iter().any(|prefix| key.starts_with(prefix))
            }
            Criterion::KeyPatterns(patterns) => {
                event.key.is_some() && patterns.iter().any(|pattern| pattern.is_match(key))
            }
            Criterion::Topics(patterns) => values_of(event, TOPIC_HEADER)
                .flatten()
                .filter_map(|value| str::from_utf8(value).ok())
                .any(|topic| patterns.iter().any(|pattern| pattern.matches(topic))),
            Criterion::Slices(slices) => slices.contains(slice_of(event.key, event.offset)),
        }
    }
}

fn values_of<'a>(event: &Record<'a>, name: &str) -> impl Iterator<Item = Option<&'a [u8]>> {
    event.headers.filter(move |header| header.key == name.as_bytes()).map(|header| header.value)
}

/// Compiles a pattern that has to match the whole key.
fn pattern(text: &str) -> Result<Regex, FilterError> {
    if text.len() > PATTERN_BYTES_MAX {
        return Err(FilterError::PatternTooLong { bytes: text.len() });
    }
    let whole = format!("^(?:{text})$");
    let compiled = RegexBuilder::new(&whole)
        .size_limit(COMPILED_BYTES_MAX)
        .dfa_size_limit(COMPILED_BYTES_MAX)
        .nest_limit(NESTING_MAX)
        .build();
    compiled.map_err(|error| FilterError::Pattern { pattern: shortened(text), reason: fault_of(&error) })
}

/// Returns the reason of a pattern's error, without the lines that repeat the pattern.
fn fault_of(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().next_back().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Writes filters, for [`ConsumerConfig`](crate::ConsumerConfig) and `mainstem direct filter`.
pub mod criteria {
    use super::{Matches, proto};

    /// A filter that lets only these pass.
    pub fn only(include: impl IntoIterator<Item = proto::Criterion>) -> proto::Filter {
        let include = include.into_iter().collect();
        proto::Filter { exclude: vec![everything()], include }
    }

    /// Matches every event.
    pub fn everything() -> proto::Criterion {
        of(Matches::Everything(proto::Everything {}))
    }

    /// Matches events with this tag.
    pub fn tag(tag: impl Into<String>) -> proto::Criterion {
        of(Matches::Tags(proto::Texts { any: vec![tag.into()] }))
    }

    /// Matches events with a header; with this value, if one is given.
    pub fn header(name: impl Into<String>, value: Option<&[u8]>) -> proto::Criterion {
        let any = value.map(bytes::Bytes::copy_from_slice).into_iter().collect();
        of(Matches::Header(proto::HeaderMatch { name: name.into(), any }))
    }

    /// Matches events with this key.
    pub fn key(key: impl AsRef<[u8]>) -> proto::Criterion {
        of(Matches::Keys(keys(key)))
    }

    /// Matches events whose key begins with this prefix.
    pub fn key_prefix(prefix: impl AsRef<[u8]>) -> proto::Criterion {
        of(Matches::KeyPrefixes(keys(prefix)))
    }

    /// Matches events whose whole key matches a pattern of RE2's syntax.
    pub fn key_pattern(pattern: impl Into<String>) -> proto::Criterion {
        of(Matches::KeyPatterns(proto::Texts { any: vec![pattern.into()] }))
    }

    /// Matches events whose header `topic` matches a pattern with `+` and `#`.
    pub fn topic(pattern: impl Into<String>) -> proto::Criterion {
        of(Matches::Topics(proto::Texts { any: vec![pattern.into()] }))
    }

    /// Matches events of the slices `from` up to, and without, `to`.
    pub fn slices(from: u32, to: u32) -> proto::Criterion {
        of(Matches::Slices(proto::Slices { from, to }))
    }

    fn of(matches: Matches) -> proto::Criterion {
        proto::Criterion { matches: Some(matches) }
    }

    fn keys(key: impl AsRef<[u8]>) -> proto::Keys {
        proto::Keys { any: vec![bytes::Bytes::copy_from_slice(key.as_ref())] }
    }
}

#[cfg(test)]
mod tests {
    use super::criteria::*;
    use super::*;
    use mainstem_records::{Batch, BatchBuilder, BatchOptions, Header, Scratch};
    use proptest::prelude::*;

    fn with_record<T>(
        key: Option<&[u8]>,
        headers: &[(&str, &str)],
        look: impl FnOnce(&Record<'_>) -> T,
    ) -> T {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| Header { key: name.as_bytes(), value: Some(value.as_bytes()) })
            .collect();
        let mut builder = BatchBuilder::new(BatchOptions::default());
        builder.append(1, key, Some(b"value"), &headers).unwrap();
        let bytes = builder.build().unwrap();
        let (batch, _) = Batch::split_first(&bytes).unwrap();
        let mut buffer = Vec::new();
        let record =
            batch.records(&mut buffer, 1 << 20, &mut Scratch::default()).unwrap().next().unwrap().unwrap();
        look(&record)
    }

    fn passes(filter: &proto::Filter, key: Option<&str>, headers: &[(&str, &str)]) -> bool {
        let filter = Filter::compile(filter).unwrap();
        with_record(key.map(str::as_bytes), headers, |record| filter.passes(record))
    }

    #[test]
    fn each_criterion_matches_what_it_says() {
        let slice = u32::from(slice_of(Some(b"cart-7"), 0));
        let event = (Some("cart-7"), [("__mainstem.tag", "vip"), ("type", "Added"), ("topic", "eu/carts/7")]);
        for (criterion, matches) in [
            (everything(), true),
            (tag("vip"), true),
            (tag("vi"), false),
            (header("type", None), true),
            (header("type", Some(b"Added")), true),
            (header("type", Some(b"Removed")), false),
            (header("kind", None), false),
            (key("cart-7"), true),
            (key("cart-70"), false),
            (key_prefix("cart-"), true),
            (key_prefix("order-"), false),
            (key_pattern("cart-[0-9]+"), true),
            (key_pattern("art"), false),
            (topic("eu/+/7"), true),
            (topic("eu/#"), true),
            (topic("+/carts"), false),
            (slices(slice, slice + 1), true),
            (slices(0, slice), false),
        ] {
            let what = format!("{criterion:?}");
            let excluded = proto::Filter { exclude: vec![criterion.clone()], include: vec![] };
            assert_eq!(passes(&excluded, event.0, &event.1), !matches, "exclude {what}");
            assert_eq!(passes(&only([criterion]), event.0, &event.1), matches, "only {what}");
        }
    }

    #[test]
    fn include_overrides_exclude_and_an_empty_filter_lets_pass() {
        let carts = proto::Filter { exclude: vec![key_prefix("cart-")], include: vec![tag("vip")] };
        assert!(!passes(&carts, Some("cart-1"), &[]));
        assert!(passes(&carts, Some("cart-1"), &[(TAG_HEADER, "vip")]));
        assert!(passes(&carts, Some("order-1"), &[]));
        assert!(passes(&carts, None, &[]), "an event without a key has no prefix");
        assert!(passes(&proto::Filter::default(), None, &[]));
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let refused = |filter: proto::Filter| Filter::compile(&filter).unwrap_err().to_string();
        assert!(refused(only([key(vec![0; FILTER_BYTES_MAX])])).contains("are the most"));
        assert!(refused(only([key_pattern("a".repeat(PATTERN_BYTES_MAX + 1))])).contains("4097 bytes"));
        assert!(refused(only((0..33).map(|_| key_pattern("a")))).contains("more than 32 patterns"));
        assert!(refused(only([key_pattern("a(")])).contains("cannot be used"));
        assert!(refused(only([key_pattern("(?:(?:a{1000}){1000}){1000}")])).contains("size"));
        assert!(
            refused(only([key_pattern("(".repeat(2_000) + &")".repeat(2_000))])).contains("cannot be used")
        );
        assert!(refused(only([slices(3, 3)])).contains("slices 3 to 3"));
        assert!(refused(only([slices(0, 1_025)])).contains("1,024"));
        assert!(refused(only([topic("a/#/b")])).contains("only as the last"));
        assert!(refused(only([proto::Criterion { matches: None }])).contains("later version"));
    }

    proptest! {
        #[test]
        fn any_bytes_of_a_filter_are_compiled_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(filter) = proto::Filter::decode(&bytes[..]) && let Ok(filter) = Filter::compile(&filter) {
                with_record(Some(b"key"), &[("topic", "a/b")], |record| filter.passes(record));
            }
        }
    }
}
