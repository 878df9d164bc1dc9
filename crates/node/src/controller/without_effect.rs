//! Settings of topics that this release accepts and does not carry out. The log warns when a topic gets one, and at each start.

use std::collections::BTreeMap;

use mainstem_config::{BrokerConfig, TopicConfigValues};
use mainstem_controller::{ConfigResource, MetadataImage, ResourceKind, TopicImage, names};

/// The most topics that a line names.
const NAMED_MAX: usize = 5;

/// Warns of topics with such settings, in a line for each setting.
pub(crate) fn warn<'t>(
    image: &MetadataImage,
    config: &BrokerConfig,
    topics: impl IntoIterator<Item = &'t TopicImage>,
) {
    let topics = topics.into_iter().filter(|topic| !names::is_internal(&topic.name)).map(|topic| {
        let own = image.configs(&ConfigResource::new(ResourceKind::Topic, topic.name.clone()));
        let replicas = topic.replication_factor();
        let values = TopicConfigValues::resolve(own, &config.values);
        (topic.name.as_str(), values.without_effect(replicas))
    });
    lines(topics).iter().for_each(|line| tracing::warn!("{line}"));
}

/// The lines for topics, each with its settings and what happens in their place.
fn lines<'t>(topics: impl IntoIterator<Item = (&'t str, Vec<(&'static str, &'static str)>)>) -> Vec<String> {
    let mut by_setting: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for (name, settings) in topics {
        settings.into_iter().for_each(|setting| by_setting.entry(setting).or_default().push(name));
    }
    let line = |((setting, instead), names): ((&str, &str), Vec<&str>)| {
        let more = match names.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = names[..names.len().min(NAMED_MAX)].join(", ");
        format!("{setting} has no effect in this release: {instead}; it is set for {named}{more}")
    };
    by_setting.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_setting_and_some_of_its_topics() {
        let (one, other) = (("a=b", "x happens"), ("c=d", "y happens"));
        let names: Vec<_> = (0..7).map(|number| format!("t{number}")).collect();
        let topics = names.iter().map(|name| (name.as_str(), vec![one])).chain([("u", vec![one, other])]);
        assert_eq!(
            lines(topics),
            [
                "a=b has no effect in this release: x happens; it is set for t0, t1, t2, t3, t4 and 3 more",
                "c=d has no effect in this release: y happens; it is set for u",
            ]
        );
        assert!(lines([("t", Vec::new())]).is_empty());
    }
}
