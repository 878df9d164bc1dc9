//! The resources that principals ask for: of each kind an existing and a missing one, of those with rules and of
//! others.

use mainstem_tests::client::Client;
use mainstem_tests::kafka::batch;
use mainstem_tests::wait::eventually;
use mainstem_wire::Uuid;
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;

/// Topics with rules.
pub(crate) const MY_TOPICS: [&str; 3] = ["t-mine", "t-mine-missing", "t-mine-new"];
/// Topics of requests. `User:*` may read the public one.
pub(crate) const TOPICS: [&str; 5] = ["t-mine", "t-other", PUBLIC, "t-mine-missing", "t-other-missing"];
/// The topic that all users may read.
pub(crate) const PUBLIC: &str = "t-public";
/// Topics that come and go.
pub(crate) const NEW_TOPICS: [&str; 2] = ["t-mine-new", "t-other-new"];

/// Groups with rules.
pub(crate) const MY_GROUPS: [&str; 2] = ["g-mine", "g-mine-missing"];
/// Groups of requests.
pub(crate) const GROUPS: [&str; 4] = ["g-mine", "g-other", "g-mine-missing", "g-other-missing"];

/// Transactional ids with rules.
pub(crate) const MY_TRANSACTIONS: [&str; 2] = ["x-mine", "x-mine-missing"];
/// Transactional ids of requests.
pub(crate) const TRANSACTIONS: [&str; 4] = ["x-mine", "x-other", "x-mine-missing", "x-other-missing"];

/// The prefixes of all names with rules, by kind.
pub(crate) const MY_PREFIXES: [&str; 3] = ["t-mine", "g-mine", "x-mine"];

/// The ids of the topics that stay.
#[derive(Default, Clone)]
pub(crate) struct Ids {
    pub(crate) topics: Vec<(&'static str, Uuid)>,
}

/// An id that no topic has.
pub(crate) const NO_TOPIC: Uuid = Uuid([7; 16]);

impl Ids {
    /// The ids in requests: those of existing topics, and one of none.
    pub(crate) fn asked(&self) -> impl Iterator<Item = Uuid> + '_ {
        self.topics.iter().map(|(_, id)| *id).chain([NO_TOPIC])
    }
}

/// Creates the resources that exist in all of the test.
pub(crate) fn create_all(root: &mut Client) -> Ids {
    let mut ids = Ids::default();
    for name in ["t-mine", "t-other", PUBLIC] {
        let id = root.create_topic(name, 1, &[]).unwrap();
        eventually("the topic's leader", || root.produce(name, 0, -1, &batch(&[b"a record"])).ok());
        ids.topics.push((name, id));
    }
    for group in ["g-mine", "g-other"] {
        eventually("the group's coordinator", || root.find_coordinator(group).ok());
        for topic in ["t-mine", "t-other", PUBLIC] {
            eventually("a commit", || root.commit(group, topic, 0, 1).ok());
        }
    }
    for id in ["x-mine", "x-other"] {
        eventually("the transaction's coordinator", || {
            let request = FindCoordinatorRequest {
                key_type: 1,
                coordinator_keys: vec![id.into()],
                ..Default::default()
            };
            (root.call(&request, 6).coordinators[0].error_code == 0).then_some(())
        });
        eventually("a transactional id", || {
            let request = InitProducerIdRequest {
                transactional_id: Some(id.into()),
                transaction_timeout_ms: 60_000,
                ..Default::default()
            };
            (root.call(&request, 4).error_code == 0).then_some(())
        });
    }
    ids
}

/// Makes sure that a topic exists.
pub(crate) fn ensure_topic(root: &mut Client, name: &str) {
    // The topic may exist already.
    let _ = root.create_topic(name, 1, &[]);
}
