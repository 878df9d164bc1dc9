//! The principals, by their rules.

use mainstem_tests::client::Client;
use mainstem_tests::wait::eventually;
use mainstem_wire::messages::create_acls_request::{AclCreation, CreateAclsRequest};
use mainstem_wire::messages::describe_acls_request::DescribeAclsRequest;

use crate::permissions::names::{MY_GROUPS, MY_PREFIXES, MY_TOPICS, MY_TRANSACTIONS, PUBLIC};

/// The super user.
pub(crate) const ROOT: &str = "root";
/// The password of all users.
pub(crate) const PASSWORD: &str = "a-password";

/// Rules of one principal are created in one request; Kafka takes at most 10,000 records in one.
const RULES_AT_ONCE: usize = 500;

const CLUSTER_NAME: &str = "kafka-cluster";

/// A principal whose name describes its rules.
pub(crate) struct Principal {
    pub(crate) user: String,
    pub(crate) name: String,
    pub(crate) rules: Vec<Rule>,
}

/// Kinds of resources, by the protocol's codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Topic = 2,
    Group = 3,
    Cluster = 4,
    TransactionalId = 5,
}

const KINDS: [Kind; 4] = [Kind::Topic, Kind::Group, Kind::Cluster, Kind::TransactionalId];

const ALL: i8 = 2;
const READ: i8 = 3;

/// Operations by the protocol's codes, as a rule names them.
const OPERATIONS: [(i8, &str); 12] = [
    (2, "All"),
    (3, "Read"),
    (4, "Write"),
    (5, "Create"),
    (6, "Delete"),
    (7, "Alter"),
    (8, "Describe"),
    (9, "ClusterAction"),
    (10, "DescribeConfigs"),
    (11, "AlterConfigs"),
    (12, "IdempotentWrite"),
    (15, "TwoPhaseCommit"),
];

#[derive(Clone, Copy)]
enum Pattern {
    Literal = 3,
    Prefixed = 4,
}

#[derive(Clone, Copy)]
enum Permission {
    Deny = 2,
    Allow = 3,
}

/// One rule of a principal.
pub(crate) struct Rule {
    kind: Kind,
    name: &'static str,
    pattern: Pattern,
    permission: Permission,
    operation: i8,
    host: &'static str,
    /// The principal in the rule; none is the rule's own principal.
    principal: Option<&'static str>,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Topic => "Topic",
            Kind::Group => "Group",
            Kind::Cluster => "Cluster",
            Kind::TransactionalId => "TransactionalId",
        }
    }

    /// The operations of resources of this kind.
    fn operations(self) -> &'static [i8] {
        match self {
            Kind::Topic => &[2, 3, 4, 5, 6, 7, 8, 10, 11],
            Kind::Group => &[2, 3, 6, 8, 10, 11],
            Kind::Cluster => &[2, 5, 7, 8, 9, 10, 11, 12],
            Kind::TransactionalId => &[2, 4, 8, 15],
        }
    }

    fn mine(self) -> &'static [&'static str] {
        match self {
            Kind::Topic => &MY_TOPICS,
            Kind::Group => &MY_GROUPS,
            Kind::Cluster => &[CLUSTER_NAME],
            Kind::TransactionalId => &MY_TRANSACTIONS,
        }
    }

    /// The resource name in a rule for all of them; clusters have only one name.
    fn wildcard(self) -> &'static str {
        if self == Kind::Cluster { CLUSTER_NAME } else { "*" }
    }

    fn my_prefix(self) -> &'static str {
        match self {
            Kind::Topic => MY_PREFIXES[0],
            Kind::Group => MY_PREFIXES[1],
            Kind::Cluster => CLUSTER_NAME,
            Kind::TransactionalId => MY_PREFIXES[2],
        }
    }
}

impl Rule {
    fn new(permission: Permission, operation: i8, kind: Kind, name: &'static str) -> Rule {
        Rule { kind, name, pattern: Pattern::Literal, permission, operation, host: "*", principal: None }
    }

    fn prefixed(self) -> Rule {
        Rule { pattern: Pattern::Prefixed, ..self }
    }

    fn from(self, host: &'static str) -> Rule {
        Rule { host, ..self }
    }

    fn of(self, principal: &'static str) -> Rule {
        Rule { principal: Some(principal), ..self }
    }

    fn is_about_mine(&self) -> bool {
        self.kind.mine().contains(&self.name) || self.name == self.kind.my_prefix()
    }

    fn creation(&self, user: &str) -> AclCreation<'static> {
        AclCreation {
            resource_type: self.kind as i8,
            resource_name: self.name.into(),
            resource_pattern_type: self.pattern as i8,
            principal: self.principal.map_or_else(|| format!("User:{user}").into(), Into::into),
            host: self.host.into(),
            operation: self.operation,
            permission_type: self.permission as i8,
            ..Default::default()
        }
    }
}

/// The rules of a function for each kind.
fn of_each_kind<R: IntoIterator<Item = Rule>>(rules: impl Fn(Kind) -> R) -> Vec<Rule> {
    KINDS.into_iter().flat_map(rules).collect()
}

/// Rules of one operation for the kind's own resources.
fn mine(permission: Permission, operation: i8, kind: Kind) -> Vec<Rule> {
    kind.mine().iter().map(|name| Rule::new(permission, operation, kind, name)).collect()
}

fn everything() -> Vec<Rule> {
    of_each_kind(|kind| [Rule::new(Permission::Allow, ALL, kind, kind.wildcard())])
}

fn with(mut rules: Vec<Rule>, more: Vec<Rule>) -> Vec<Rule> {
    rules.extend(more);
    rules
}

/// All principals, with users.
pub(crate) fn all() -> Vec<Principal> {
    let mut all = shapes();
    for kind in KINDS {
        for operation in kind.operations() {
            let (_, name) = OPERATIONS.iter().find(|(code, _)| code == operation).unwrap();
            let only = mine(Permission::Allow, *operation, kind);
            all.push(Principal::new(format!("only {} {name}", kind.name()), only));
            let but = with(everything(), mine(Permission::Deny, *operation, kind));
            all.push(Principal::new(format!("not {} {name}", kind.name()), but));
        }
    }
    for (number, principal) in all.iter_mut().enumerate().skip(1) {
        principal.user = format!("User-{number}");
    }
    all[0].user = ROOT.to_owned();
    all
}

/// Principals whose rules are about their own resources alone. Other resources have no rules, so that the default for those applies.
pub(crate) fn of_few_rules() -> Vec<Principal> {
    let mut few = all();
    few.retain(|principal| principal.rules.iter().all(Rule::is_about_mine));
    let denied = |operation: i8| move |kind| mine(Permission::Deny, operation, kind);
    for (name, operation) in [("denied everything", ALL), ("denied to read", READ)] {
        let user = format!("User-{}", few.len() + FIRST_DENIED);
        few.push(Principal { user, ..Principal::new(name.to_owned(), of_each_kind(denied(operation))) });
    }
    few
}

/// The first number of denied users, above all others.
const FIRST_DENIED: usize = 1000;

/// Each form of a rule, for all operations at once.
fn shapes() -> Vec<Principal> {
    use Permission::{Allow, Deny};
    let literal = || of_each_kind(|kind| mine(Allow, ALL, kind));
    let prefixed = |permission| {
        of_each_kind(move |kind| [Rule::new(permission, ALL, kind, kind.my_prefix()).prefixed()])
    };
    let wildcard = |permission| of_each_kind(move |kind| [Rule::new(permission, ALL, kind, kind.wildcard())]);
    let from = |host: &'static str| wildcard(Allow).into_iter().map(|rule| rule.from(host)).collect();
    let others =
        |principal: &'static str| wildcard(Allow).into_iter().map(|rule| rule.of(principal)).collect();
    let shapes: [(&str, Vec<Rule>); 15] = [
        ("super user", Vec::new()),
        ("no rule", Vec::new()),
        ("everything", everything()),
        ("literal", literal()),
        ("prefixed", prefixed(Allow)),
        (
            "prefix of one character",
            of_each_kind(|kind| {
                let name = if kind == Kind::Cluster { CLUSTER_NAME } else { &kind.my_prefix()[..1] };
                [Rule::new(Allow, ALL, kind, name).prefixed()]
            }),
        ),
        ("prefix *", of_each_kind(|kind| [Rule::new(Allow, ALL, kind, kind.wildcard()).prefixed()])),
        ("literal under a denied wildcard", with(literal(), wildcard(Deny))),
        ("literal under a denied prefix", with(literal(), prefixed(Deny))),
        ("wildcard over a denied prefix", with(wildcard(Allow), prefixed(Deny))),
        ("prefixed over a denied literal", with(prefixed(Allow), of_each_kind(|kind| mine(Deny, ALL, kind)))),
        ("from this host", from("127.0.0.1")),
        ("from another host", from("127.0.0.2")),
        ("of a name in small letters", others("User:user-13")),
        ("of another kind of principal", others("Group:User-14")),
    ];
    shapes.into_iter().map(|(name, rules)| Principal::new(name.to_owned(), rules)).collect()
}

/// The users of PLAIN, among them the broker itself.
pub(crate) fn jaas() -> String {
    let mut text = format!(
        "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"{ROOT}\" password=\"{PASSWORD}\""
    );
    let users =
        all().into_iter().chain(of_few_rules().into_iter().filter(|few| few.name.starts_with("denied")));
    for principal in users {
        text += &format!(" user_{}=\"{PASSWORD}\"", principal.user);
    }
    text + ";"
}

/// Names of principals in one text, with those of one kind of rule together: "only Topic Read+Write", "not Group (each)".
pub(crate) fn summary(names: &[&str]) -> String {
    let mut summary: Vec<String> =
        names.iter().filter(|name| split(name).is_none()).map(|name| (*name).to_owned()).collect();
    for kind in KINDS {
        for how in ["only", "not"] {
            let begin = format!("{how} {}", kind.name());
            let found = names.iter().filter_map(|name| split(name)).filter(|(kind, _)| *kind == begin);
            let operations: Vec<_> = found.map(|(_, operation)| operation).collect();
            match operations.len() {
                0 => {}
                count if count == kind.operations().len() => summary.push(format!("{begin} (each)")),
                _ => summary.push(format!("{begin} {}", operations.join("+"))),
            }
        }
    }
    summary.join(", ")
}

/// "only Topic" and "Read".
fn split(name: &str) -> Option<(&str, &str)> {
    let is_of_one = name.starts_with("only ") || name.starts_with("not ");
    is_of_one.then(|| name.rsplit_once(' ')).flatten()
}

/// Creates the rules, and waits until they are in effect.
pub(crate) fn create_rules(root: &mut Client, principals: &[Principal]) {
    let everybody = Rule::new(Permission::Allow, READ, Kind::Topic, PUBLIC).of("User:*");
    let mut creations = vec![everybody.creation("")];
    for principal in principals {
        creations.extend(principal.rules.iter().map(|rule| rule.creation(&principal.user)));
    }
    for some in creations.chunks(RULES_AT_ONCE) {
        let request = CreateAclsRequest { creations: some.to_vec(), ..Default::default() };
        let response = root.call(&request, 3);
        assert!(response.results.iter().all(|result| result.error_code == 0), "{response:?}");
    }
    eventually("the rules", || (count(root) == creations.len()).then_some(()));
}

fn count(root: &mut Client) -> usize {
    const ANY: i8 = 1;
    let request = DescribeAclsRequest {
        resource_type_filter: ANY,
        resource_name_filter: None,
        principal_filter: None,
        host_filter: None,
        pattern_type_filter: ANY,
        operation: ANY,
        permission_type: ANY,
        ..Default::default()
    };
    root.call(&request, 3).resources.iter().map(|resource| resource.acls.len()).sum()
}
