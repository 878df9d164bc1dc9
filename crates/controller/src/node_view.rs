//! A node's view of its cluster: its own configuration and limits, beside the metadata. Decisions need it, since defaults and limits are
//! those of the node that decides; records are applied without it.

use std::borrow::Cow;

use mainstem_config::BrokerConfig;
use mainstem_wire::ErrorCode;

use super::error::ApiError;
use super::features::{Feature, MAINSTEM_VERSION};
use super::image::{ConfigResource, MetadataImage, PartitionImage, ResourceKind};

/// A node's own configuration and limits, which are not in the metadata. They do not change while the node runs.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// Values known at start; those set while running are in the metadata.
    start: BrokerConfig,
    /// The number of partitions that a start of this node could open.
    partitions_max: usize,
    /// `mainstem.version`, with the levels at which this node can work.
    pub(super) mainstem_version: Feature,
    /// Its level in a cluster that begins.
    pub(super) first_mainstem_version: i16,
}

impl NodeView {
    /// The view of a node with this configuration. `partitions_max` is the number of partitions that a start of it could open.
    pub fn new(start: BrokerConfig, partitions_max: usize) -> NodeView {
        let mainstem_version = MAINSTEM_VERSION;
        NodeView { start, partitions_max, mainstem_version, first_mainstem_version: mainstem_version.min }
    }

    /// Sets the highest level of `mainstem.version` at which this node can work, and the level of a cluster that begins: the highest at
    /// which all of its first nodes can work.
    pub fn with_mainstem_version(mut self, highest: i16, of_new_cluster: i16) -> NodeView {
        self.mainstem_version.max = highest;
        self.first_mainstem_version = of_new_cluster.min(highest);
        self
    }

    /// The configuration that is known at start.
    pub fn start(&self) -> &BrokerConfig {
        &self.start
    }

    /// The node's number.
    pub fn node_id(&self) -> i32 {
        self.start.node_id
    }

    /// The node's configuration under the values that an image has for the cluster and for this node. If those no longer fit the
    /// configuration at start, they count as unset, so that the node starts and can be corrected. If values are set, each call makes the
    /// configuration again.
    pub fn config(&self, image: &MetadataImage) -> Cow<'_, BrokerConfig> {
        let values = |name: String| image.configs(&ConfigResource::new(ResourceKind::Broker, name));
        let (cluster, node) = (values(String::new()), values(self.node_id().to_string()));
        if cluster.is_empty() && node.is_empty() {
            return Cow::Borrowed(&self.start);
        }
        let config = self.start.with_dynamic(cluster.clone(), node.clone());
        config.map_or(Cow::Borrowed(&self.start), Cow::Owned)
    }

    /// Returns true if the cluster has nodes beside this one.
    pub(super) fn has_several_nodes(&self) -> bool {
        self.start.quorum.is_some()
    }

    /// Returns true if a node is one of the cluster's voters, in which each node has one vote for as long as the list names it.
    pub(super) fn has_voter(&self, id: i32) -> bool {
        self.start.quorum.as_ref().is_some_and(|quorum| quorum.voter(id).is_some())
    }

    /// Returns true if the replicas of a partition elect their leader. Then its record only reports the leader.
    pub(super) fn replicas_elect(&self, partition: &PartitionImage) -> bool {
        self.has_several_nodes() && partition.has_group()
    }

    /// Checks that a start can open `more` partitions than now. Existing partitions stay, even if they are too many.
    ///
    /// # Errors
    /// POLICY_VIOLATION.
    pub(super) fn check_partition_limit(&self, image: &MetadataImage, more: usize) -> Result<(), ApiError> {
        let there: usize = image.topics().map(|topic| topic.partitions.len()).sum();
        if there + more <= self.partitions_max {
            return Ok(());
        }
        let message = format!(
            "Too many partitions: {there} are there and {} are allowed by the limit of open files of the node; raise it \
             (ulimit -n) and start the node again.",
            self.partitions_max
        );
        Err(ApiError::new(ErrorCode::POLICY_VIOLATION, message))
    }
}

#[cfg(test)]
mod tests {
    use mainstem_config::alter::Operation::Set;
    use mainstem_wire::Uuid;

    use super::*;
    use crate::session::{OTHER_DIR, Session, node_start, topic, view};
    use crate::{MetadataStateMachine, NodeStart};

    const BROKER: i8 = 4;

    /// Nodes of one cluster, each with defaults and rules of its own.
    const FIRST: &str = "node.id=1\nnum.partitions=3\nmax.connections=10\nlog.segment.bytes=2000000\n";
    const SECOND: &str = "node.id=2\nnum.partitions=5\nmax.connections=11\ndelete.topic.enable=false\n\
                          listeners=SASL_PLAINTEXT://127.0.0.1:9092\nsasl.enabled.mechanisms=SCRAM-SHA-512\n";

    /// A machine that has applied a log.
    fn applied(log: &[Vec<u8>]) -> MetadataStateMachine {
        let mut machine = MetadataStateMachine::default();
        for (offset, value) in (0..).zip(log) {
            machine.replay(offset, value).expect("a record of the log");
        }
        machine
    }

    /// The first node decides, then the second one. Each that applies has the same state; only their views differ.
    #[test]
    fn equal_records_make_equal_states_on_nodes_that_are_configured_differently() {
        let mut session = Session::new(FIRST);
        session.start(&NodeStart { node_id: 2, ..node_start(2, &[OTHER_DIR], &[]) });
        let set = |value| [("max.connections", Set, Some(value))];
        assert_eq!(session.create(topic("a", -1, -1)), "ok 3x1");
        assert_eq!(session.alter(BROKER, "", &set("20"), false), "ok");
        assert_eq!(session.alter(BROKER, "1", &set("30"), false), "ok");
        session.commit_all();

        let (first, second) = (std::mem::replace(&mut session.view, view(SECOND)), applied(&session.log));
        assert_eq!(second, session.machine);
        session.machine = second;
        assert_eq!(session.create(topic("b", -1, -1)), "ok 5x1");
        let drawn = session.machine.draw_decoy_secret(&session.view, || "drawn".to_owned());
        session.append(drawn);
        session.commit_all();

        let machine = applied(&session.log);
        assert_eq!(machine, session.machine);
        let connections = |view: &NodeView| view.config(machine.image()).network.max_connections;
        assert_eq!((connections(&first), connections(&session.view)), (30, 20));
        assert_eq!(connections(&view("node.id=3\nmax.connections=12")), 20);
        assert_eq!(connections(&first), 30, "a view stays as it is");
    }

    /// One state, and the same requests on two nodes.
    #[test]
    fn proposals_take_what_is_a_nodes_own_from_its_view() {
        let mut session = Session::new(FIRST);
        session.create(topic("a", 2, 1));
        session.commit_all();
        let log = session.log.clone();
        let mut propose = |view: NodeView| {
            (session.machine, session.log, session.view) = (applied(&log), log.clone(), view);
            let segment_bytes = session.create_all(vec![topic("b", -1, -1)], false).topics[0]
                .configs
                .as_ref()
                .and_then(|configs| configs.iter().find(|config| config.name == "segment.bytes"))
                .and_then(|config| config.value.as_deref().map(str::to_owned));
            session.commit_all();
            let partitions = session.machine.image().topic("b").map(|topic| topic.partitions.len());
            let deleted = session.delete(&[(Some("a"), Uuid::ZERO)]).remove(0);
            let grown = session.grow("a", 9, None);
            let end = session.end();
            let drawn = session.machine.draw_decoy_secret(&session.view, || "drawn".to_owned());
            session.append(drawn);
            let altered = session.alter(BROKER, "1", &[("max.connections", Set, Some("7"))], true);
            let text = |text: &str| text.split([':', '.']).next().unwrap_or_default().to_owned();
            let draws = session.end() - end;
            (segment_bytes, partitions, [deleted, grown, altered].map(|answer| text(&answer)), draws)
        };
        let words = |answers: [&str; 3]| answers.map(str::to_owned);
        let own = "2000000".to_owned();
        let answers = ["ok", "UNKNOWN_TOPIC_OR_PARTITION", "ok"];
        assert_eq!(propose(view(FIRST)), (Some(own), Some(3), words(answers), 0));
        let default = "1073741824".to_owned();
        let answers = ["TOPIC_DELETION_DISABLED", "ok", "INVALID_REQUEST"];
        assert_eq!(propose(view(SECOND)), (Some(default), Some(5), words(answers), 1));
    }

    #[test]
    fn partitions_that_a_start_of_the_node_could_not_open_are_refused() {
        let mut session = Session::new("");
        session.create(topic("a", 2, 1));
        session.view = NodeView::new(session.view.start.clone(), 4);
        assert_eq!(session.grow("a", 3, None), "ok");
        let refused = session.create(topic("b", 2, 1));
        assert!(refused.starts_with("POLICY_VIOLATION: Too many partitions: 3 are there and 4"), "{refused}");
        let refused = session.grow("a", 5, None);
        assert!(refused.starts_with("POLICY_VIOLATION: Too many partitions: 3 are there and 4"), "{refused}");
        assert_eq!(session.create(topic("b", 1, 1)), "ok 1x1");
    }

    /// A release with other rules accepted the value: the node has to start so that it can be corrected.
    #[test]
    fn values_that_do_not_fit_count_as_unset() {
        let mut session = Session::new(FIRST);
        assert_eq!(session.alter(BROKER, "1", &[("max.connections", Set, Some("30"))], false), "ok");
        session.commit_all();
        let mut image = session.machine.image().clone();
        let resource = ConfigResource::new(ResourceKind::Broker, "1");
        let values = image.configs.get_mut(&resource).expect("one is set");
        values.insert("log.retention.ms".to_owned(), "0".to_owned());
        assert_eq!(session.view.config(&image).network.max_connections, 10);
        assert_eq!(session.config().network.max_connections, 30);
    }
}
