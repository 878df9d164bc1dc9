//! Kafka's rules one by one, and the index against a plain loop.

use expect_test::expect;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::acl::{AclPermissionType, PatternType, scan};

const HERE: &str = "10.0.0.1";

fn rule(text: &str) -> AclBinding {
    let parts: Vec<&str> = text.split(' ').collect();
    let [permission, principal, operation, resource, host] = parts[..] else {
        panic!("a rule is PERMISSION USER OPERATION TYPE:NAME HOST, not {text}")
    };
    let (resource_type, name) = resource.split_once(':').unwrap();
    let (pattern_type, name) = match name.strip_suffix("...") {
        Some(prefix) => (PatternType::Prefixed, prefix),
        None => (PatternType::Literal, name),
    };
    AclBinding {
        resource_type: ResourceType::from_name(resource_type).unwrap(),
        name: name.to_owned(),
        pattern_type,
        principal: format!("User:{principal}"),
        host: host.to_owned(),
        operation: AclOperation::from_name(operation).unwrap(),
        permission: AclPermissionType::from_name(permission).unwrap(),
    }
}

/// `USER OPERATION TYPE:NAME` from [`HERE`]: `+` if allowed. The index and the loop must agree.
fn ask(rules: &[&str], settings: &AuthorizerRules, question: &str) -> Verdict {
    let bindings: Vec<AclBinding> = rules.iter().map(|text| rule(text)).collect();
    let mut index = AclIndex::new(settings.clone());
    for (id, binding) in (1..).zip(&bindings) {
        index.add(Uuid::from_u128(id), binding.clone());
    }
    let parts: Vec<&str> = question.split(' ').collect();
    let [user, operation, resource] = parts[..] else { panic!("{question}") };
    let (resource_type, name) = resource.split_once(':').unwrap();
    let question = Question {
        principal: &format!("User:{user}"),
        host: HERE.parse().unwrap(),
        operation: AclOperation::from_name(operation).unwrap(),
        resource_type: ResourceType::from_name(resource_type).unwrap(),
        name,
    };
    let verdict = index.publish().decide(&question);
    index.check();
    assert_eq!(verdict, scan::decide(settings, &bindings, &question).0, "{rules:?} {question:?}");
    verdict
}

fn allows(rules: &[&str], question: &str) -> bool {
    ask(rules, &AuthorizerRules::default(), question).is_allowed()
}

#[test]
fn nothing_is_allowed_by_default() {
    assert_eq!(ask(&[], &AuthorizerRules::default(), "a Read topic:t"), Verdict::DefaultDeny);
}

#[test]
fn names() {
    assert!(allows(&["Allow a Read topic:t *"], "a Read topic:t"));
    assert!(!allows(&["Allow a Read topic:t *"], "a Read topic:tt"));
    assert!(!allows(&["Allow a Read topic:t *"], "a Read group:t"));
    assert!(!allows(&["Allow a Read topic:t *"], "A Read topic:t"));
    assert!(allows(&["Allow a Read topic:* *"], "a Read topic:t"));
    assert!(allows(&["Allow a Read topic:t... *"], "a Read topic:t"));
    assert!(allows(&["Allow a Read topic:t... *"], "a Read topic:tuv"));
    assert!(!allows(&["Allow a Read topic:tu... *"], "a Read topic:t"));
    assert!(!allows(&["Allow a Read topic:*... *"], "a Read topic:t"), "a prefix is no wildcard");
    assert!(allows(&["Allow a Read topic:*... *"], "a Read topic:*t"));
    assert!(allows(&["Allow a Read topic:... *"], "a Read topic:t"), "an empty prefix begins every name");
    assert!(!allows(&["Allow a Read topic:é... *"], "a Read topic:è"), "two characters that share a byte");
}

#[test]
fn principals_and_hosts() {
    assert!(allows(&["Allow * Read topic:t *"], "a Read topic:t"));
    assert!(allows(&["Allow a Read topic:t 10.0.0.1"], "a Read topic:t"));
    assert!(allows(&["Allow a Read topic:t ::ffff:10.0.0.1"], "a Read topic:t"));
    assert!(!allows(&["Allow a Read topic:t 10.0.0.2"], "a Read topic:t"));
    assert!(!allows(&["Allow a Read topic:t localhost"], "a Read topic:t"));
    let mut index = AclIndex::new(AuthorizerRules::default());
    for (id, host) in [(1, "0:0:0:0:0:0:0:1"), (2, "2001:DB8::7"), (3, "10.0.0.9")] {
        index.add(Uuid::from_u128(id), rule(&format!("Allow a Read topic:t {host}")));
    }
    let authorizer = index.publish();
    for (host, expected) in
        [("::1", true), ("2001:db8:0:0:0:0:0:7", true), ("::ffff:10.0.0.9", true), ("::2", false)]
    {
        let question = Question {
            principal: "User:a",
            host: host.parse().unwrap(),
            operation: AclOperation::Read,
            resource_type: ResourceType::Topic,
            name: "t",
        };
        assert_eq!(authorizer.decide(&question).is_allowed(), expected, "{host}");
    }
}

#[test]
fn deny_wins() {
    assert!(!allows(&["Allow a All topic:t *", "Deny a Read topic:t *"], "a Read topic:t"));
    assert!(!allows(&["Allow a Read topic:tuv *", "Deny a Read topic:t... *"], "a Read topic:tuv"));
    assert!(!allows(&["Deny * Read topic:* *", "Allow a Read topic:tuv *"], "a Read topic:tuv"));
    assert!(!allows(&["Deny a All topic:t 10.0.0.1", "Allow a Read topic:t *"], "a Read topic:t"));
    assert!(allows(&["Deny a All topic:t 10.0.0.2", "Allow a Read topic:t *"], "a Read topic:t"));
    assert!(allows(&["Deny b Read topic:t *", "Allow a Read topic:t *"], "a Read topic:t"));
}

#[test]
fn what_is_implied() {
    for operation in ["Read", "Write", "Delete", "Alter", "All", "Describe"] {
        assert!(allows(&[&format!("Allow a {operation} topic:t *")], "a Describe topic:t"), "{operation}");
    }
    for operation in ["Create", "AlterConfigs", "DescribeConfigs", "IdempotentWrite", "ClusterAction"] {
        assert!(!allows(&[&format!("Allow a {operation} topic:t *")], "a Describe topic:t"), "{operation}");
    }
    assert!(allows(&["Allow a AlterConfigs topic:t *"], "a DescribeConfigs topic:t"));
    assert!(!allows(&["Allow a Alter topic:t *"], "a DescribeConfigs topic:t"));
    assert!(allows(&["Allow a Read topic:t *", "Deny a Write topic:t *"], "a Describe topic:t"));
}

#[test]
fn super_users_and_open_resources() {
    let super_users = AuthorizerRules::super_users(" User:root ; User:CN=a,O=b;; ").unwrap();
    let settings = AuthorizerRules { super_users, allow_everyone_if_no_acl_found: true };
    let ask = |rules: &[&str], question: &str| ask(rules, &settings, question);
    assert_eq!(ask(&["Deny root All topic:* *"], "root Read topic:t"), Verdict::SuperUser);
    assert_eq!(ask(&[], "CN=a,O=b Read topic:t"), Verdict::SuperUser);
    assert_eq!(ask(&[], "a Read topic:t"), Verdict::DefaultAllow);
    assert_eq!(ask(&["Allow b Read topic:u *"], "a Read topic:t"), Verdict::DefaultAllow);
    assert_eq!(
        ask(&["Allow b Read topic:t *"], "a Read topic:t"),
        Verdict::DefaultDeny,
        "a rule of another principal"
    );
    assert_eq!(ask(&["Allow b Read topic:t... 10.9.9.9"], "a Read topic:tu"), Verdict::DefaultDeny);
    assert_eq!(ask(&["Allow b Read topic:* *"], "a Read topic:t"), Verdict::DefaultDeny);
    assert!(AuthorizerRules::super_users("root").is_err());
}

#[test]
fn rules_come_and_go() {
    let mut index = AclIndex::new(AuthorizerRules::default());
    let ids = [Uuid::from_u128(1), Uuid::from_u128(2)];
    let question = Question {
        principal: "User:a",
        host: HERE.parse().unwrap(),
        operation: AclOperation::Read,
        resource_type: ResourceType::Topic,
        name: "t",
    };
    index.add(ids[0], rule("Allow a Read topic:t *"));
    let before = index.publish();
    index.add(ids[1], rule("Deny * Read topic:t *"));
    let after = index.publish();
    assert_eq!(before.decide(&question), Verdict::Allowed, "what was published stays as it is");
    assert_eq!(after.decide(&question), Verdict::Denied);
    index.remove(ids[1]);
    index.remove(ids[1]);
    assert_eq!(index.publish().decide(&question), Verdict::Allowed);
    index.add(ids[0], rule("Allow b Read topic:t *"));
    assert_eq!(index.publish().decide(&question), Verdict::DefaultDeny, "an id has one rule");
    index.remove(ids[0]);
    index.publish();
    index.check();
    assert_eq!(index.acls().count(), 0);
}

#[test]
fn kafkas_audit_line() {
    let rule = rule("Deny a Read topic:t... *");
    let question = Question {
        principal: "User:a",
        host: "::ffff:10.0.0.1".parse().unwrap(),
        operation: AclOperation::Read,
        resource_type: ResourceType::TransactionalId,
        name: "tx",
    };
    let mut line =
        AuditLine { question, verdict: Verdict::Denied, rule: Some(&rule), request: "FETCH", references: 2 };
    expect!["Principal = User:a is Denied operation = READ from host = 10.0.0.1 on resource = TransactionalId:LITERAL:tx for request = FETCH with resourceRefCount = 2 based on rule MatchingAcl(acl=StandardAcl(resourceType=TOPIC, resourceName=t, patternType=PREFIXED, principal=User:a, host=*, operation=READ, permissionType=DENY))"]
    .assert_eq(&line.to_string());
    line = AuditLine { rule: None, verdict: Verdict::SuperUser, ..line };
    assert!(line.to_string().ends_with("is Allowed operation = READ from host = 10.0.0.1 on resource = TransactionalId:LITERAL:tx for request = FETCH with resourceRefCount = 2 based on rule SuperUser"));
}

#[test]
fn names_cannot_forge_lines_of_the_audit_log() {
    let forged = "t\n2026-01-01T00:00:00Z  INFO kafka.authorizer.logger: Principal = User:a is Allowed";
    let rule =
        AclBinding { name: "t\r".into(), principal: "User:\u{2028}".into(), ..rule("Deny a Read topic:t *") };
    let question = Question {
        principal: "User:CN=a\u{1b}[1A",
        host: "10.0.0.1".parse().unwrap(),
        operation: AclOperation::Read,
        resource_type: ResourceType::Topic,
        name: forged,
    };
    let line =
        AuditLine { question, verdict: Verdict::Denied, rule: Some(&rule), request: "Fetch", references: 1 };
    let line = line.to_string();
    assert!(!line.contains(|c: char| c.is_control() || c == '\u{2028}'), "{line:?}");
    assert!(line.starts_with(r"Principal = User:CN=a\u{1b}[1A is Denied"), "{line}");
    assert!(line.contains(r"Topic:LITERAL:t\n2026") && line.contains(r"resourceName=t\r,"), "{line}");
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![5 => "[ab]{0,3}", 1 => Just("*".to_owned()), 1 => Just("hardcode".to_owned()), 1 => "[aéè]{1,2}"]
}

fn binding() -> impl Strategy<Value = AclBinding> {
    let who = prop_oneof![
        5 => select(vec!["User:a", "User:b", "User:*"]),
        1 => select(vec!["Group:a", "untyped"])
    ];
    let host = select(vec!["*", "*", "*", HERE, "::ffff:10.0.0.1", "10.0.0.2", "::1"]);
    let types = select(vec![ResourceType::Topic, ResourceType::Topic, ResourceType::User]);
    (
        types,
        name(),
        select(PatternType::ALL),
        who,
        host,
        select(AclOperation::ALL),
        select(AclPermissionType::ALL),
    )
        .prop_map(|(resource_type, name, pattern_type, principal, host, operation, permission)| {
            AclBinding {
                resource_type,
                name,
                pattern_type,
                principal: principal.to_owned(),
                host: host.to_owned(),
                operation,
                permission,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mainstem_testkit::cases(512)))]

    /// The index, changed step by step, gives the same answer as a loop over the rules to every question.
    #[test]
    fn the_index_agrees_with_a_loop(
        changes in proptest::collection::vec((0u128..12, proptest::option::weighted(0.8, binding())), 0..24),
        names in proptest::collection::vec(name(), 4),
        allow_everyone_if_no_acl_found: bool,
        publish_often: bool,
    ) {
        let super_users = HashSet::from(["User:root".to_owned()]);
        let settings = AuthorizerRules { super_users, allow_everyone_if_no_acl_found };
        let mut index = AclIndex::new(settings.clone());
        for (id, change) in changes {
            match change {
                Some(binding) => index.add(Uuid::from_u128(id), binding),
                None => index.remove(Uuid::from_u128(id)),
            }
            if publish_often {
                let _ = index.publish();
            }
            index.check();
        }
        let authorizer = index.publish();
        index.check();
        for principal in ["User:a", "User:c", "User:root", "Group:a", "untyped", "User:*"] {
            for host in [HERE, "::1", "::ffff:10.0.0.2"] {
                let host: IpAddr = host.parse().unwrap();
                for operation in &AclOperation::ALL[1..] {
                    for name in &names {
                        let resource_type = ResourceType::Topic;
                        let question = Question { principal, host, operation: *operation, resource_type, name };
                        let expected = scan::decide(&settings, index.acls(), &question).0;
                        prop_assert_eq!(authorizer.decide(&question), expected, "{:?}", question);
                    }
                    let peer = (principal, host);
                    let expected =
                        scan::any_of_type(&settings, index.acls(), peer, *operation, ResourceType::Topic);
                    let answer = authorizer.any_of_type(peer, *operation, ResourceType::Topic);
                    prop_assert_eq!(answer, expected, "{:?} {:?} {:?}", peer, operation, index.acls().collect::<Vec<_>>());
                }
            }
        }
    }
}

#[test]
fn a_hash_seed_makes_indexes_alike() {
    let index = || {
        let mut index = AclIndex::with_hash_seed(AuthorizerRules::default(), 1);
        for number in 1..=100_u128 {
            index.add(Uuid::from_u128(number), rule(&format!("Allow user-{number} Read topic:t *")));
        }
        index.publish()
    };
    let (one, other) = (index(), index());
    assert!(one.tables.keys().eq(other.tables.keys()), "their tables lie in the same order");
}
