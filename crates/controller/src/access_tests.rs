//! Access control entries and SCRAM credentials: refusals and their messages, descriptions, and the records in the log and its snapshots.

use std::borrow::Cow;

use expect_test::expect;
use mainstem_security::Secret;
use mainstem_security::scram::{ScramCredential, ScramMechanism};
use mainstem_wire::messages::alter_user_scram_credentials_request::{
    AlterUserScramCredentialsRequest, ScramCredentialDeletion, ScramCredentialUpsertion,
};
use mainstem_wire::messages::create_acls_request::{AclCreation, CreateAclsRequest};
use mainstem_wire::messages::delete_acls_request::{DeleteAclsFilter, DeleteAclsRequest};
use mainstem_wire::messages::describe_acls_request::DescribeAclsRequest;
use mainstem_wire::messages::describe_user_scram_credentials_request::{
    DescribeUserScramCredentialsRequest, UserName,
};
use mainstem_wire::metadata_frame::MetadataRecord;

use super::session::{Session, said};
use super::*;

/// Resource type, name, pattern type, principal, operation, permission; for every host.
type Entry<'a> = (i8, &'a str, i8, &'a str, i8, i8);

/// The same, as a filter: None matches anything.
type Chosen<'a> = (i8, Option<&'a str>, i8, Option<&'a str>, i8, i8);

const READ_T: Entry<'static> = (2, "t", 3, "User:a", 3, 3);

pub(super) fn create(session: &mut Session, entries: &[Entry<'_>]) -> Vec<String> {
    let creation =
        |(resource_type, name, pattern, principal, operation, permission): &Entry<'_>| AclCreation {
            resource_type: *resource_type,
            resource_name: Cow::Owned((*name).to_owned()),
            resource_pattern_type: *pattern,
            principal: Cow::Owned((*principal).to_owned()),
            host: Cow::Borrowed("*"),
            operation: *operation,
            permission_type: *permission,
            ..AclCreation::default()
        };
    let creations = entries.iter().map(creation).collect();
    let request = CreateAclsRequest { creations, ..CreateAclsRequest::default() };
    let mut next = u128::try_from(session.end()).unwrap() << 32;
    let mut ids = || {
        next += 1;
        next / 2 // each id comes twice: one that is taken is not used again
    };
    let decision = session.machine.create_acls(&request, &mut ids);
    let response = session.append(decision);
    session.commit_all();
    let shown = response.results.iter().map(|result| match result.error_code {
        0 => {
            assert_eq!(result.error_message.as_deref(), Some(""), "as in Kafka");
            "ok".to_owned()
        }
        code => said(code, result.error_message.as_deref()),
    });
    shown.collect()
}

pub(super) fn delete(session: &mut Session, filters: &[Chosen<'_>]) -> Vec<String> {
    let filter =
        |(resource_type, name, pattern, principal, operation, permission): &Chosen<'_>| DeleteAclsFilter {
            resource_type_filter: *resource_type,
            resource_name_filter: name.map(|name| Cow::Owned(name.to_owned())),
            pattern_type_filter: *pattern,
            principal_filter: principal.map(|name| Cow::Owned(name.to_owned())),
            host_filter: None,
            operation: *operation,
            permission_type: *permission,
            ..DeleteAclsFilter::default()
        };
    let filters = filters.iter().map(filter).collect();
    let request = DeleteAclsRequest { filters, ..DeleteAclsRequest::default() };
    let decision = session.machine.delete_acls(&request);
    let response = session.append(decision);
    session.commit_all();
    let shown = response.filter_results.iter().map(|result| {
        let matching = result.matching_acls.iter().map(|acl| format!(" {}", acl.resource_name));
        said(result.error_code, result.error_message.as_deref()) + &matching.collect::<String>()
    });
    shown.collect()
}

fn describe(session: &Session, request: &DescribeAclsRequest<'_>) -> String {
    let response = session.machine.image().describe_acls(request);
    assert_eq!((response.error_code, response.error_message.as_deref()), (0, Some("")));
    let resources = response.resources.iter().map(|resource| {
        let acls = resource.acls.iter().map(|acl| {
            format!(" [{} {} {} {}]", acl.permission_type, acl.principal, acl.host, acl.operation)
        });
        let acls = acls.collect::<String>();
        format!("{}:{}:{}{acls}\n", resource.resource_type, resource.resource_name, resource.pattern_type)
    });
    resources.collect()
}

fn everything() -> DescribeAclsRequest<'static> {
    DescribeAclsRequest {
        resource_type_filter: 1,
        resource_name_filter: None,
        pattern_type_filter: 1,
        principal_filter: None,
        host_filter: None,
        operation: 1,
        permission_type: 1,
        ..DescribeAclsRequest::default()
    }
}

/// Checks that the log, and a snapshot, make the same image again.
fn check_log(session: &Session) {
    let mut again = MetadataStateMachine::default();
    for (offset, value) in (0..).zip(&session.log) {
        again.replay(offset, value).unwrap();
    }
    assert_eq!(again.image(), session.machine.image());
    let mut loaded = MetadataStateMachine::default();
    for value in session.machine.image().snapshot() {
        loaded.load(session.end(), &value).unwrap();
    }
    assert_eq!(loaded.image(), session.machine.image());
}

#[test]
fn entries_are_made_found_and_removed() {
    let mut session = Session::new("");
    let more = [
        READ_T,
        (2, "t", 4, "User:b", 8, 2),
        (2, "*", 3, "User:*", 2, 3),
        (4, "kafka-cluster", 3, "User:a", 7, 3),
    ];
    assert_eq!(create(&mut session, &more), ["ok"; 4]);
    let records = session.log.len();
    assert_eq!(create(&mut session, &[READ_T, READ_T]), ["ok"; 2], "what exists is made once");
    assert_eq!(session.log.len(), records);
    expect![[r#"
        2:*:3 [3 User:* * 2]
        2:t:3 [3 User:a * 3]
        2:t:4 [2 User:b * 8]
        4:kafka-cluster:3 [3 User:a * 7]
    "#]]
    .assert_eq(&describe(&session, &everything()));
    let of_t = DescribeAclsRequest {
        resource_name_filter: Some("t".into()),
        pattern_type_filter: 2,
        ..everything()
    };
    expect![[r#"
        2:*:3 [3 User:* * 2]
        2:t:3 [3 User:a * 3]
        2:t:4 [2 User:b * 8]
    "#]]
    .assert_eq(&describe(&session, &of_t));
    for unknown in [
        DescribeAclsRequest { resource_type_filter: 99, ..everything() },
        DescribeAclsRequest { operation: 99, ..everything() },
    ] {
        assert_eq!(describe(&session, &unknown), "");
    }
    check_log(&session);
    let filters = [
        (2, Some("t"), 1, None, 1, 1),
        (1, None, 1, Some("User:a"), 1, 1),
        (1, None, 99, None, 1, 1),
        (1, None, 1, None, 1, 9),
        (5, None, 1, None, 1, 1),
    ];
    let answers = delete(&mut session, &filters);
    expect![[r#"
        ok t t
        ok t kafka-cluster
        INVALID_REQUEST: Unknown patternFilter.
        INVALID_REQUEST: Unknown entryFilter.
        ok"#]]
    .assert_eq(&answers.join("\n"));
    expect![[r#"
        2:*:3 [3 User:* * 2]
    "#]]
    .assert_eq(&describe(&session, &everything()));
    check_log(&session);
}

#[test]
fn entries_that_cannot_be() {
    let mut session = Session::new("");
    let records = session.log.len();
    let answers = create(
        &mut session,
        &[
            (4, "other", 3, "User:a", 7, 3),
            (2, "", 3, "User:a", 3, 3),
            (1, "t", 3, "User:a", 3, 3),
            (0, "t", 3, "User:a", 3, 3),
            (99, "t", 3, "User:a", 3, 3),
            (2, "t", 1, "User:a", 3, 3),
            (2, "t", 2, "User:a", 3, 3),
            (2, "t", 9, "User:a", 3, 3),
            (2, "t", 3, "User:a", 1, 3),
            (2, "t", 3, "User:a", 99, 3),
            (2, "t", 3, "User:a", 3, 1),
            (2, "t", 3, "a", 3, 3),
        ],
    );
    expect![[r#"
        INVALID_REQUEST: The only valid name for the CLUSTER resource is kafka-cluster
        INVALID_REQUEST: Invalid empty resource name
        INVALID_REQUEST: Invalid resourceType ANY
        INVALID_REQUEST: Invalid resourceType UNKNOWN
        INVALID_REQUEST: Invalid resourceType UNKNOWN
        INVALID_REQUEST: Invalid patternType ANY
        INVALID_REQUEST: Invalid patternType MATCH
        INVALID_REQUEST: Invalid patternType UNKNOWN
        INVALID_REQUEST: Invalid operation ANY
        INVALID_REQUEST: Invalid operation UNKNOWN
        INVALID_REQUEST: Invalid permissionType ANY
        INVALID_REQUEST: Could not parse principal from `a` (no colon is present separating the principal type from the principal name)"#]]
    .assert_eq(&answers.join("\n"));
    assert_eq!(session.log.len(), records);
}

#[test]
fn a_request_changes_so_many_entries_at_most() {
    let mut session = Session::new("");
    let names: Vec<String> = (0..10_001).map(|number| format!("t{number}")).collect();
    let entries: Vec<Entry<'_>> = names.iter().map(|name| (2, name.as_str(), 3, "User:a", 3, 3)).collect();
    let answers = create(&mut session, &entries);
    assert_eq!(answers[0], "POLICY_VIOLATION: Unable to perform excessively large batch operation.");
    assert_eq!(session.machine.image().acls().count(), 0);
    assert_eq!(create(&mut session, &entries[1..]), vec!["ok"; 10_000]);
    assert_eq!(create(&mut session, &entries[..1]), ["ok"]);
    let all = (1, None, 1, None, 1, 1);
    let answers = delete(&mut session, &[(2, Some("t5"), 1, None, 1, 1), all]);
    let refused = "POLICY_VIOLATION: Cannot remove more than 10000 acls in a single delete operation.";
    assert_eq!(answers, ["ok t5", refused]);
    assert_eq!(delete(&mut session, &[all]).len(), 1);
    assert_eq!(session.machine.image().acls().count(), 0);
}

pub(super) fn upsertion(user: &str, mechanism: i8, iterations: i32) -> ScramCredentialUpsertion<'_> {
    ScramCredentialUpsertion {
        name: Cow::Borrowed(user),
        mechanism,
        iterations,
        salt: Cow::Borrowed(b"salt"),
        salted_password: Cow::Borrowed(b"hashed by the client"),
        ..ScramCredentialUpsertion::default()
    }
}

pub(super) fn alter(
    session: &mut Session,
    deletions: &[(&str, i8)],
    upsertions: Vec<ScramCredentialUpsertion<'_>>,
) -> Vec<String> {
    let deletion = |(user, mechanism): &(&str, i8)| ScramCredentialDeletion {
        name: Cow::Owned((*user).to_owned()),
        mechanism: *mechanism,
        ..ScramCredentialDeletion::default()
    };
    let deletions = deletions.iter().map(deletion).collect();
    let request = AlterUserScramCredentialsRequest { deletions, upsertions, ..Default::default() };
    let decision = session.machine.alter_user_scram_credentials(&request);
    let response = session.append(decision);
    session.commit_all();
    let shown = response.results.iter().map(|result| {
        format!("{}: {}", result.user, said(result.error_code, result.error_message.as_deref()))
    });
    shown.collect()
}

fn describe_users(session: &Session, users: Option<&[&str]>) -> String {
    let user = |name: &&str| UserName { name: Cow::Owned((*name).to_owned()), ..UserName::default() };
    let users = users.map(|users| users.iter().map(user).collect());
    let request = DescribeUserScramCredentialsRequest { users, ..Default::default() };
    let response = session.machine.image().describe_user_scram_credentials(&request);
    let shown = response.results.iter().map(|result| {
        let infos =
            result.credential_infos.iter().map(|info| format!(" {}x{}", info.mechanism, info.iterations));
        let infos = infos.collect::<String>();
        format!(
            "{} {} {}{infos}\n",
            result.user,
            result.error_code,
            result.error_message.as_deref().unwrap_or("-")
        )
    });
    shown.collect()
}

#[test]
fn credentials_are_set_shown_and_removed() {
    let mut session = Session::new("");
    let set = alter(&mut session, &[], vec![upsertion("alice", 1, 4096), upsertion("bob", 2, 16_384)]);
    assert_eq!(set, ["alice: ok", "bob: ok"]);
    alter(&mut session, &[], vec![upsertion("alice", 2, 8192)]);
    expect![[r#"
        alice 0  1x4096 2x8192
        bob 0  2x16384
    "#]]
    .assert_eq(&describe_users(&session, None));
    assert_eq!(describe_users(&session, Some(&[])), describe_users(&session, None));
    expect![[r#"
        alice 92 Cannot describe SCRAM credentials for the same user twice in a single request: alice
        bob 0  2x16384
        carol 91 Attempt to describe a user credential that does not exist: carol
    "#]]
    .assert_eq(&describe_users(&session, Some(&["carol", "alice", "bob", "alice"])));
    check_log(&session);
    let salted = Secret::from("hashed by the client");
    let expected = ScramCredential::from_salted_password(ScramMechanism::Sha256, &salted, *b"salt", 4096);
    let image = session.machine.image();
    assert_eq!(image.scram_credential(ScramMechanism::Sha256, "alice"), Some(&expected));
    assert_eq!(image.scram_credential(ScramMechanism::Sha256, "Alice"), None);
    assert!(!format!("{image:?}").contains("hashed"), "no secret is printed");
    assert_eq!(alter(&mut session, &[("alice", 1)], vec![]), ["alice: ok"]);
    assert_eq!(alter(&mut session, &[("alice", 2), ("bob", 2)], vec![]), ["alice: ok", "bob: ok"]);
    assert_eq!(describe_users(&session, None), "");
    check_log(&session);
}

#[test]
fn credentials_that_cannot_be() {
    let mut session = Session::new("");
    alter(&mut session, &[], vec![upsertion("alice", 1, 4096), upsertion("bob", 1, 4096)]);
    let answers = alter(
        &mut session,
        &[("missing", 1), ("alice", 1), ("alice", 1), ("bob", 1), ("", 1), ("x", 3)],
        vec![
            upsertion("bob", 1, 4096),
            upsertion("c", 1, 4095),
            upsertion("d", 1, 16_385),
            upsertion("e", 1, -1),
            upsertion("f", 0, 4096),
            upsertion("g", 1, 4096),
            upsertion("g", 2, 4096),
            upsertion("h", 1, 5000),
        ],
    );
    expect![[r#"
        h: ok
        missing: RESOURCE_NOT_FOUND: Attempt to delete a user credential that does not exist
        alice: DUPLICATE_RESOURCE: A user credential cannot be altered twice in the same request
        : UNACCEPTABLE_CREDENTIAL: Username must not be empty
        x: UNSUPPORTED_SASL_MECHANISM: Unknown SCRAM mechanism
        bob: DUPLICATE_RESOURCE: A user credential cannot be altered twice in the same request
        c: UNACCEPTABLE_CREDENTIAL: Too few iterations
        d: UNACCEPTABLE_CREDENTIAL: Too many iterations
        e: UNACCEPTABLE_CREDENTIAL: Too few iterations
        f: UNSUPPORTED_SASL_MECHANISM: Unknown SCRAM mechanism
        g: DUPLICATE_RESOURCE: A user credential cannot be altered twice in the same request"#]]
    .assert_eq(&answers.join("\n"));
    check_log(&session);
}

#[test]
fn a_decoy_has_the_shape_of_the_majority() {
    let mut session = Session::new("");
    let shape = |session: &Session| {
        let shape = session.machine.image().scram_decoy(ScramMechanism::Sha256, Secret::from("k"));
        (shape.iterations, shape.salt_bytes, shape.is_text)
    };
    assert_eq!(shape(&session), (4096, 25, true));
    let raw = |user| ScramCredentialUpsertion { salt: Cow::Borrowed(&[0; 20]), ..upsertion(user, 1, 10_000) };
    alter(&mut session, &[], vec![upsertion("a", 1, 4096), raw("b"), raw("c"), upsertion("d", 2, 4096)]);
    assert_eq!(shape(&session), (10_000, 20, false));
}

#[test]
fn what_decoys_are_made_from_is_drawn_once_and_kept() {
    const SASL: &str = "listeners=SASL_PLAINTEXT://127.0.0.1:9092\nsasl.enabled.mechanisms=SCRAM-SHA-512\n";
    let secret = |session: &Session| {
        let config = session.config();
        config.authentication.decoy_secret.as_ref().map(|secret| secret.expose().to_owned())
    };
    let draw = |session: &mut Session, text: &str| {
        let decision = session.machine.draw_decoy_secret(&session.view, || text.to_owned());
        session.append(decision);
        session.commit_all();
    };
    let mut session = Session::new(SASL);
    assert_eq!(secret(&session), None);
    draw(&mut session, "first");
    let end = session.end();
    draw(&mut session, "second");
    assert_eq!((secret(&session).as_deref(), session.end()), (Some("first"), end));
    let kept = session.machine.image().configs(&ConfigResource::new(ResourceKind::Broker, "")).clone();
    assert_eq!(kept.get("mainstem.scram.decoy.secret").map(String::as_str), Some("first"));
    check_log(&session);

    let mut set = Session::new(&format!("{SASL}mainstem.scram.decoy.secret=mine"));
    draw(&mut set, "drawn");
    assert_eq!(secret(&set).as_deref(), Some("mine"), "what is configured counts");
    let mut open = Session::new("");
    let end = open.end();
    draw(&mut open, "drawn");
    assert_eq!(open.end(), end, "no listener has SASL");
}

/// Records that cannot be applied are refused and change nothing.
#[test]
fn records_that_contradict() {
    let mut session = Session::new("");
    create(&mut session, &[READ_T]);
    let (id, binding) =
        session.machine.image().acls().next().map(|(id, binding)| (id, binding.clone())).unwrap();
    let spoiled = |spoil: fn(
        &mut mainstem_wire::messages::access_control_entry_record::AccessControlEntryRecord<'_>,
    )| {
        let MetadataRecord::AccessControlEntryRecord(mut record) = acls::record(id, &binding) else {
            panic!()
        };
        spoil(&mut record);
        MetadataRecord::AccessControlEntryRecord(record)
    };
    let absent = mainstem_wire::Uuid::from_u128(99);
    let credential =
        ScramCredential::from_salted_password(ScramMechanism::Sha256, &Secret::from("x"), *b"s", 1);
    let MetadataRecord::UserScramCredentialRecord(mut unknown) =
        scram_credentials::record("u", ScramMechanism::Sha256, &credential)
    else {
        panic!()
    };
    let mut negative = unknown.clone();
    negative.iterations = -1;
    unknown.mechanism = 3;
    let records = [
        spoiled(|_| ()),
        spoiled(|record| record.resource_type = 99),
        spoiled(|record| record.pattern_type = 2),
        spoiled(|record| record.operation = 1),
        spoiled(|record| record.permission_type = 0),
        acls::removal(absent),
        MetadataRecord::UserScramCredentialRecord(unknown),
        MetadataRecord::UserScramCredentialRecord(negative),
        scram_credentials::removal("u", ScramMechanism::Sha512),
    ];
    let before = session.machine.image().clone();
    let errors = records.iter().map(|record| {
        let mut value = Vec::new();
        record.encode(&mut value, 0).unwrap();
        let offset = session.end();
        let error = session.machine.replay(offset, &value).unwrap_err().to_string();
        error.split_once(": ").unwrap().1.replace(&id.to_string(), "ID")
    });
    expect![[r#"
        an access control entry has the id ID already
        an access control entry has the unknown resource type 99
        an access control entry has the unknown pattern type 2
        an access control entry has the unknown operation 1
        an access control entry has the unknown permission type 0
        no access control entry has the id AAAAAAAAAAAAAAAAAAAAYw
        SCRAM mechanism 3 is not supported
        the SCRAM credential of u has -1 iterations
        u has no SCRAM-SHA-512 credential"#]]
    .assert_eq(&errors.collect::<Vec<_>>().join("\n"));
    assert_eq!(session.machine.image(), &before);
}
