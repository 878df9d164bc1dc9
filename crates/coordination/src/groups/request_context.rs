//! The origin of a request, and the topics that its sender may know of.

use std::fmt;

/// The origin of a request, as far as groups need it.
#[derive(Debug, Clone, Copy)]
pub struct RequestContext<'a> {
    /// The version that the client sent the request in.
    pub api_version: i16,
    /// The client id of the request's header, empty if null.
    pub client_id: &'a str,
    /// The peer as Kafka shows it in DescribeGroups: a slash and the address.
    pub client_host: &'a str,
    /// The topics that patterns of the request may match.
    pub visible: VisibleTopics<'a>,
}

/// The topics that the sender of a request may know of: a pattern matches no others (KIP-848).
#[derive(Clone, Copy, Default)]
pub struct VisibleTopics<'a>(Option<&'a dyn Fn(&str) -> bool>);

impl<'a> VisibleTopics<'a> {
    /// Every topic.
    pub const ALL: VisibleTopics<'static> = VisibleTopics(None);

    /// The topics for whose names `may_describe` returns true.
    pub fn by(may_describe: &'a dyn Fn(&str) -> bool) -> Self {
        VisibleTopics(Some(may_describe))
    }

    pub(crate) fn has(self, name: &str) -> bool {
        self.0.is_none_or(|may_describe| may_describe(name))
    }
}

impl fmt::Debug for VisibleTopics<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "those that may be described" } else { "all" })
    }
}
