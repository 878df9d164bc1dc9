//! Client quotas: refusals and their messages, descriptions, and the records in the log.

use std::borrow::Cow;

use mainstem_wire::messages::alter_client_quotas_request::{
    AlterClientQuotasRequest, EntityData, EntryData, OpData,
};
use mainstem_wire::messages::describe_client_quotas_request::{ComponentData, DescribeClientQuotasRequest};

use super::session::{Session, said, topic};
use super::*;

type Parts<'a> = &'a [(&'a str, Option<&'a str>)];
type Ops<'a> = &'a [(&'a str, Option<f64>)];

const USER: Parts<'static> = &[("user", Some("u"))];
const RATE: Ops<'static> = &[("producer_byte_rate", Some(1000.0))];

fn entry<'a>(parts: Parts<'a>, ops: Ops<'a>) -> EntryData<'a> {
    let part = |(kind, name): &(&'a str, Option<&'a str>)| EntityData {
        entity_type: Cow::Borrowed(*kind),
        entity_name: name.map(Cow::Borrowed),
        ..EntityData::default()
    };
    let op = |(key, value): &(&'a str, Option<f64>)| OpData {
        key: Cow::Borrowed(*key),
        value: value.unwrap_or_default(),
        remove: value.is_none(),
        ..OpData::default()
    };
    EntryData {
        entity: parts.iter().map(part).collect(),
        ops: ops.iter().map(op).collect(),
        ..EntryData::default()
    }
}

/// Alters and commits; returns the answers as text.
fn alter_all(session: &mut Session, entries: &[(Parts<'_>, Ops<'_>)], validate_only: bool) -> Vec<String> {
    let entries = entries.iter().map(|(parts, ops)| entry(parts, ops)).collect();
    let request = AlterClientQuotasRequest { entries, validate_only, ..Default::default() };
    let decision = session.machine.alter_client_quotas(&request, &|ip| ip != "no.such.host");
    let response = session.append(decision);
    session.commit_all();
    response.entries.iter().map(|e| said(e.error_code, e.error_message.as_deref())).collect()
}

pub(super) fn alter(session: &mut Session, parts: Parts<'_>, ops: Ops<'_>) -> String {
    alter_all(session, &[(parts, ops)], false).remove(0)
}

/// `kind=name,kind=name key=value`, or the error.
fn describe(session: &Session, components: &[(&str, i8, Option<&str>)], strict: bool) -> Vec<String> {
    let components = components.iter().map(|(kind, match_type, name)| ComponentData {
        entity_type: Cow::Borrowed(*kind),
        match_type: *match_type,
        match_: name.map(Cow::Borrowed),
        ..ComponentData::default()
    });
    let request =
        DescribeClientQuotasRequest { components: components.collect(), strict, ..Default::default() };
    let entries = match session.machine.image().describe_client_quotas(&request) {
        Ok(entries) => entries,
        Err(error) => return vec![said(error.code.0, Some(&error.message))],
    };
    let shown = entries.iter().map(|entry| {
        let parts = entry.entity.iter();
        let parts = parts.map(|p| format!("{}={}", p.entity_type, p.entity_name.as_deref().unwrap_or("*")));
        let values = entry.values.iter().map(|value| format!("{}={}", value.key, value.value));
        format!("{} {}", parts.collect::<Vec<_>>().join(","), values.collect::<Vec<_>>().join(","))
    });
    shown.collect()
}

#[test]
fn what_is_no_quota_is_refused_in_kafkas_words() {
    let mut session = Session::new("");
    let mut refused = |parts: Parts<'_>, ops: Ops<'_>, expect: &str| {
        assert_eq!(alter(&mut session, parts, ops), format!("INVALID_REQUEST: {expect}"));
    };
    refused(&[], RATE, "Invalid empty client quota entity");
    refused(&[("group", Some("g"))], RATE, "Unhandled client quota entity type: group");
    refused(&[("user", Some(""))], RATE, "Empty user not supported");
    refused(
        &[("user", Some("u")), ("ip", None)],
        RATE,
        "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
    );
    let connections = [("connection_creation_rate", Some(5.0))];
    refused(
        &[("ip", Some("no.such.host"))],
        &connections,
        "no.such.host is not a valid IP or resolvable host.",
    );
    refused(USER, &[("nope", Some(1.0))], "Invalid configuration key nope");
    refused(USER, &connections, "Invalid configuration key connection_creation_rate");
    refused(&[("ip", None)], RATE, "Invalid configuration key producer_byte_rate");
    for value in [0.0, -1.0, f64::NAN] {
        let message = "Quota producer_byte_rate must be greater than 0";
        refused(USER, &[("producer_byte_rate", Some(value))], message);
    }
    refused(USER, &[("consumer_byte_rate", Some(1.5))], "consumer_byte_rate cannot be a fractional value.");
    refused(
        USER,
        &[("consumer_byte_rate", Some(f64::INFINITY))],
        "Proposed value for consumer_byte_rate is too large for a LONG.",
    );
    refused(
        &[("ip", None)],
        &[("connection_creation_rate", Some(3e9))],
        "Proposed value for connection_creation_rate is too large for an INT.",
    );
    refused(
        USER,
        &[("request_percentage", Some(f64::INFINITY))],
        "Quota request_percentage must be a finite number",
    );
    refused(
        USER,
        &[("producer_byte_rate", Some(1.0)), ("producer_byte_rate", Some(2.0))],
        "Duplicate quota key producer_byte_rate not updating quota for this entity \
         ClientQuotaEntity(entries={user=u})",
    );
    assert_eq!(describe(&session, &[], false), [""; 0]);
}

#[test]
fn an_entity_changes_wholly_or_not_and_the_others_with_it_or_without() {
    let mut session = Session::new("");
    let before = session.end();
    let bad = [("request_percentage", Some(50.5)), ("nope", Some(1.0))];
    let answers = alter_all(&mut session, &[(USER, &bad), (&[("client-id", None)], RATE)], false);
    assert_eq!(answers, ["INVALID_REQUEST: Invalid configuration key nope", "ok"]);
    assert_eq!(session.end(), before + 1);
    assert_eq!(alter_all(&mut session, &[(USER, RATE)], true), ["ok"], "validate only");
    assert_eq!(alter(&mut session, &[("client-id", None)], RATE), "ok", "as it is");
    assert_eq!(alter(&mut session, USER, &[("producer_byte_rate", None)]), "ok", "there is none");
    assert_eq!(session.end(), before + 1, "nothing to write");
}

#[test]
fn an_entity_that_is_named_twice_is_answered_once_and_left_as_it_is() {
    let mut session = Session::new("");
    let twice: Parts<'_> = &[("user", Some("other")), ("user", Some("u"))];
    let answers =
        alter_all(&mut session, &[(USER, RATE), (&[("client-id", None)], RATE), (twice, RATE)], false);
    assert_eq!(
        answers,
        ["INVALID_REQUEST: Ignoring duplicate entity ClientQuotaEntity(entries={user=u})", "ok"]
    );
    assert_eq!(describe(&session, &[], false), ["client-id=* producer_byte_rate=1000"]);
}

#[test]
fn of_a_kind_that_an_entity_names_twice_the_last_one_counts() {
    let mut session = Session::new("");
    let entry = entry(&[("user", Some("other")), ("client-id", None), ("user", Some("u"))], RATE);
    let request = AlterClientQuotasRequest { entries: vec![entry], ..Default::default() };
    let decision = session.machine.alter_client_quotas(&request, &|_| true);
    let response = session.append(decision);
    session.commit_all();
    let answered: Vec<_> = response.entries[0].entity.iter().map(|part| &*part.entity_type).collect();
    assert_eq!(answered, ["client-id", "user"]);
    assert_eq!(describe(&session, &[], false), ["client-id=*,user=u producer_byte_rate=1000"]);
}

#[test]
fn quotas_are_set_described_and_removed() {
    let mut session = Session::new("");
    let percent = [("request_percentage", Some(12.5)), ("controller_mutation_rate", Some(0.5))];
    alter(&mut session, USER, RATE);
    alter(&mut session, USER, &percent);
    alter(&mut session, &[("user", None)], RATE);
    alter(&mut session, &[("user", Some("u")), ("client-id", None)], RATE);
    alter(&mut session, &[("client-id", Some("c"))], RATE);
    alter(&mut session, &[("ip", Some("10.0.0.1"))], &[("connection_creation_rate", Some(7.0))]);
    let user = "user=u controller_mutation_rate=0.5,producer_byte_rate=1000,request_percentage=12.5";
    let pair = "client-id=*,user=u producer_byte_rate=1000";
    let default = "user=* producer_byte_rate=1000";
    let ip = "ip=10.0.0.1 connection_creation_rate=7";
    let client_id = "client-id=c producer_byte_rate=1000";
    assert_eq!(describe(&session, &[], false), [ip, client_id, default, user, pair]);
    assert_eq!(describe(&session, &[("user", 0, Some("u"))], false), [user, pair]);
    assert_eq!(describe(&session, &[("user", 0, Some("u"))], true), [user]);
    assert_eq!(describe(&session, &[("user", 1, None)], true), [default]);
    assert_eq!(describe(&session, &[("user", 2, None)], true), [default, user]);
    assert_eq!(describe(&session, &[("user", 2, None), ("client-id", 1, None)], false), [pair]);
    assert_eq!(describe(&session, &[("ip", 2, None)], false), [ip]);
    assert_eq!(describe(&session, &[("user", 0, Some("x"))], false), [""; 0]);
    assert_eq!(describe(&session, &[], true), [""; 0]);
    alter(&mut session, USER, &[("producer_byte_rate", None), ("request_percentage", None)]);
    assert_eq!(describe(&session, &[("user", 0, Some("u"))], true), ["user=u controller_mutation_rate=0.5"]);
    alter(&mut session, USER, &[("controller_mutation_rate", None)]);
    assert_eq!(describe(&session, &[("user", 0, Some("u"))], true), [""; 0]);
    // A restart finds them in the log.
    let mut again = MetadataStateMachine::default();
    for (offset, record) in (0..).zip(&session.log) {
        again.replay(offset, record).expect("the state machine's own records");
    }
    assert_eq!(again.image().client_quotas(), session.machine.image().client_quotas());
}

#[test]
fn filters_that_make_no_sense_are_refused() {
    let session = Session::new("");
    let refused = |components: &[(&str, i8, Option<&str>)], expect: &str| {
        assert_eq!(describe(&session, components, false), [expect]);
    };
    refused(&[("", 0, Some("u"))], "INVALID_REQUEST: Invalid empty entity type.");
    refused(&[("group", 2, None)], "UNSUPPORTED_VERSION: Unsupported entity type group");
    refused(
        &[("user", 2, None), ("user", 1, None)],
        "INVALID_REQUEST: Entity type user cannot appear more than once in the filter.",
    );
    refused(
        &[("user", 0, None)],
        "INVALID_REQUEST: Request specified MATCH_TYPE_EXACT, but set match string to null.",
    );
    for (code, kind) in [(1, "DEFAULT"), (2, "SPECIFIED")] {
        let message = format!(
            "INVALID_REQUEST: Request specified MATCH_TYPE_{kind}, but also specified a match string."
        );
        refused(&[("user", code, Some("u"))], &message);
    }
    refused(&[("user", 9, None)], "INVALID_REQUEST: Unknown match type 9");
    refused(
        &[("user", 2, None), ("ip", 2, None)],
        "INVALID_REQUEST: Invalid entity filter component combination. IP filter component should not be used \
         with user or clientId filter component.",
    );
}

#[test]
fn partitions_beyond_the_quota_are_not_created_or_deleted() {
    const EXCEEDED: &str = "THROTTLING_QUOTA_EXCEEDED: The throttling quota has been exceeded.";
    let mut session = Session::new("");
    session.permits = 5;
    assert_eq!(session.create(topic("a", 3, 1)), "ok 3x1");
    assert_eq!(session.create(topic("b", 3, 1)), EXCEEDED);
    assert_eq!(session.grow("a", 6, None), EXCEEDED);
    assert_eq!(session.grow("a", 4, None), "ok");
    assert_eq!(session.create_missing(&["c", "d"]), ["ok 1x1", EXCEEDED]);
    assert_eq!(session.delete(&[(Some("a"), mainstem_wire::Uuid::ZERO)]), [EXCEEDED]);
    session.commit_all();
    assert_eq!(session.machine.image().topics().count(), 2);
    session.permits = 4;
    assert_eq!(session.delete(&[(Some("a"), mainstem_wire::Uuid::ZERO)]), ["ok"]);
}

#[test]
fn entities_with_quotas_are_bounded() {
    let mut session = Session::new("");
    let names: Vec<String> = (0..10_001).map(|number| format!("u{number}")).collect();
    let parts: Vec<[(&str, Option<&str>); 1]> =
        names.iter().map(|name| [("user", Some(name.as_str()))]).collect();
    let entries: Vec<(Parts<'_>, Ops<'_>)> = parts.iter().map(|parts| (parts.as_slice(), RATE)).collect();
    let answers = alter_all(&mut session, &entries, false);
    assert!(answers[10_000].contains("at most 10000 entities") && !answers[9_999].contains("entities"));
    assert!(
        alter(&mut session, entries[10_000].0, RATE).contains("at most"),
        "also from the next request on"
    );
    let gone: Ops<'_> = &[("producer_byte_rate", None)];
    alter(&mut session, entries[0].0, gone);
    assert!(!alter(&mut session, entries[10_000].0, RATE).contains("at most"));
    let long = "u".repeat(4_097);
    assert!(alter(&mut session, &[("user", Some(&long))], RATE).contains("longer than"));
}
