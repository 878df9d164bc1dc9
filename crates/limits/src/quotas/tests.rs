//! Decisions of the quotas, by example.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use super::*;

const WINDOWS: Windows = Windows { count: 11, size_ms: 1000 };

pub(super) fn entity(user: Option<Option<&str>>, client_id: Option<Option<&str>>) -> QuotaEntity {
    QuotaEntity { user: user.map(EntityName::new), client_id: client_id.map(EntityName::new), ip: None }
}

pub(super) fn limits(quotas: &[(QuotaEntity, f64)]) -> ClientLimits {
    let key = QuotaKey::ProducerByteRate;
    let values = |limit: &f64| BTreeMap::from([(key.name().to_owned(), *limit)]);
    let quotas: Vec<_> = quotas.iter().map(|(entity, limit)| (entity.clone(), values(limit))).collect();
    ClientLimits::new(quotas.iter().map(|(entity, values)| (entity, values)), key)
}

fn client<'a>(user: &'a str, client_id: &'a str) -> Client<'a> {
    Client { user, client_id }
}

/// In Kafka such an answer is never within a quota.
#[test]
fn an_answer_that_is_more_than_all_windows_hold_is_sent_when_nothing_was_of_late() {
    let mut quota = RateQuota::new(WINDOWS);
    quota.set_limits(limits(&[(entity(Some(Some("u")), None), 100.0)]));
    let mut charge = |value, now_ms| {
        let charged = quota.charge_answer(client("u", "c"), value, now_ms);
        if let Charged::Instead(_) = charged {
            quota.refund(client("u", "c"), value, now_ms);
        }
        charged
    };
    assert_eq!(charge(5_000.0, 0), Charged::After(50_000), "at 100 a second");
    assert!(matches!(charge(5_000.0, 5_000), Charged::Instead(_)), "it has had some");
    assert_eq!(charge(10.0, 20_000), Charged::Instead(30_000), "the windows have forgotten it");
    assert_eq!(charge(5_000.0, 50_000), Charged::After(50_000));
    assert_eq!(charge(1_000.0, 100_000), Charged::Within, "all that ten seconds hold");
    assert!(matches!(charge(1_001.0, 100_000), Charged::Instead(_)));
}

/// Kafka 4.3.0's own `Rate`, `TokenBucket` and `QuotaUtils` computed the times of this file.
#[test]
fn times_to_wait_equal_kafkas() {
    let mut windows = WINDOWS;
    let mut limit = 0.0;
    let (mut rate, mut bucket) = (Rate::default(), None);
    let mut compared = 0;
    for line in include_str!("fixtures/kafka-4.3.0-throttle.tsv").lines() {
        if let Some(shape) = line.strip_prefix("# windows ") {
            let words: Vec<&str> = shape.split([' ', ',']).collect();
            let number = |at: usize| words[at].parse::<f64>().expect("a number");
            windows = Windows { count: number(0) as u32, size_ms: number(2) as u64 * 1000 };
            limit = number(words.len() - 1);
            (rate, bucket) = (Rate::default(), Some(TokenBucket::full(windows, limit, 0)));
            continue;
        }
        let fields: Vec<f64> = line.split('\t').map(|field| field.parse().expect("a number")).collect();
        let [at, value, rate_ms, bucket_ms] = fields[..] else { panic!("{line}") };
        let at = at as u64;
        rate.record(windows, value, at);
        assert_eq!(rate.throttle_ms(windows, limit, at), rate_ms as u64, "{line}");
        let bucket = bucket.as_mut().expect("a shape comes first");
        bucket.take(windows, limit, value, at);
        assert_eq!(bucket.throttle_ms(windows, limit, at), bucket_ms as u64, "{line}");
        compared += 1;
    }
    assert_eq!(compared, 360);
}

#[test]
fn the_most_specific_quota_counts() {
    let all = [
        (entity(Some(Some("u")), Some(Some("c"))), 1.0),
        (entity(Some(Some("u")), Some(None)), 2.0),
        (entity(Some(Some("u")), None), 3.0),
        (entity(Some(None), Some(Some("c"))), 4.0),
        (entity(Some(None), Some(None)), 5.0),
        (entity(Some(None), None), 6.0),
        (entity(None, Some(Some("c"))), 7.0),
        (entity(None, Some(None)), 8.0),
    ];
    for first in 0..all.len() {
        let limits = limits(&all[first..]);
        let (tags, limit) = limits.find(client("u", "c")).expect("one applies");
        assert_eq!(limit, all[first].1, "without the first {first}");
        let shared = (tags.user.is_empty(), tags.client_id.is_empty());
        let expect = (all[first].0.user.is_none(), all[first].0.client_id.is_none());
        assert_eq!(shared, expect, "without the first {first}");
    }
    assert_eq!(limits(&[]).find(client("u", "c")), None);
    assert_eq!(limits(&all[..1]).find(client("u", "other")), None);
}

#[test]
fn clients_of_a_user_share_the_users_limit() {
    let mut quota = RateQuota::new(WINDOWS);
    quota.set_limits(limits(&[(entity(Some(Some("u")), None), 100.0)]));
    assert_eq!(quota.charge(client("u", "a"), 1000.0, 0), 0, "ten seconds' worth at once");
    assert_eq!(quota.charge(client("v", "a"), 9999.0, 0), 0, "another user");
    assert_eq!(quota.charge(client("u", "b"), 100.0, 0), 1000, "1100 in 10 s are a second too many");
    assert_eq!(quota.len(), 1);
    assert_eq!(quota.most_at_once(client("u", "c")), Some(1000.0));
    quota.refund(client("u", "b"), 100.0, 0);
    assert_eq!(quota.charge(client("u", "c"), 0.0, 0), 0);
    let usage: Vec<_> = quota.usage(0).collect();
    assert_eq!((usage[0].user.as_str(), usage[0].client_id.as_str()), ("u", ""));
    assert_eq!((usage[0].value, usage[0].throttle_ms), (100.0, 1000));
}

#[test]
fn time_of_threads_holds_back_for_at_most_one_window() {
    let mut quota = RateQuota::new(WINDOWS).with_throttle_max_ms(WINDOWS.size_ms);
    quota.set_limits(limits(&[(entity(None, Some(None)), 1.0)]));
    assert_eq!(quota.charge(client("u", "a"), 1_000_000.0, 5), 1000);
}

#[test]
fn quotas_change_while_clients_are_measured() {
    let mut quota = RateQuota::new(WINDOWS);
    let one = |limit| limits(&[(entity(None, Some(Some("a"))), limit)]);
    quota.set_limits(one(100.0));
    assert_eq!(quota.charge(client("u", "a"), 2000.0, 0), 10_000);
    quota.set_limits(one(200.0));
    assert_eq!(quota.charge(client("u", "a"), 0.0, 0), 0, "what was done counts against the new limit");
    quota.set_limits(limits(&[]));
    assert!(!quota.is_active() && quota.is_empty());
}

#[test]
fn changes_beyond_the_quota_are_refused_or_slowed_down() {
    let mut quota = MutationQuota::new(WINDOWS);
    quota.set_limits(limits(&[(entity(Some(None), None), 10.0)]));
    let mut take = |permits, strictness, now| quota.take(client("u", "a"), permits, strictness, now);
    assert_eq!(take(115.0, Strictness::Strict, 0), Taken::Granted(0), "what is there may be overdrawn once");
    assert_eq!(take(1.0, Strictness::Strict, 0), Taken::Refused(500));
    assert_eq!(take(1.0, Strictness::Permissive, 0), Taken::Granted(600));
    assert_eq!(take(1.0, Strictness::Strict, 599), Taken::Refused(1));
    assert_eq!(take(1.0, Strictness::Strict, 600), Taken::Granted(0));
    assert_eq!(quota.usage(600).map(|usage| usage.value.round()).collect::<Vec<_>>(), [-1.0]);
}

#[test]
fn client_ids_beyond_the_bound_share_a_meter_until_others_are_idle() {
    let mut quota = RateQuota::new(WINDOWS);
    quota.set_limits(limits(&[(entity(None, Some(None)), 10.0)]));
    for number in 0..ENTITIES_MAX {
        assert_eq!(quota.charge(client("u", &number.to_string()), 1.0, 1000), 0);
    }
    assert_eq!(quota.charge(client("u", "x"), 100.0, 2000), 0);
    assert_eq!(quota.charge(client("u", "y"), 10.0, 2000), 1000, "x and y are one");
    assert_eq!(quota.len(), ENTITIES_MAX);
    let later = 2000 + WINDOWS.span_ms();
    assert_eq!(quota.charge(client("u", "y"), 10.0, later), 0);
    assert_eq!(quota.len(), 1, "meters that would say nothing made room");
    quota.charge(client("u", "y"), 0.0, later + 3_600_000 + 60_000);
    assert_eq!(quota.len(), 1);
}

#[test]
fn addresses_of_one_network_are_one_for_the_default_quota_and_apart_where_they_are_named() {
    let address = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
    let ip = |name| QuotaEntity { ip: Some(EntityName::new(name)), ..QuotaEntity::default() };
    let rate = |limit| BTreeMap::from([("connection_creation_rate".to_owned(), limit)]);
    let quotas = [(ip(Some("2001:db8::9")), rate(1.0)), (ip(None), rate(1.0))];
    let resolve = |name: &str| name.parse().into_iter().collect();
    let mut quota = ConnectionQuota::new(Windows { count: 2, size_ms: 1000 });
    quota.set_ip_limits(IpLimits::new(quotas.iter().map(|(ip, values)| (ip, values)), &resolve));
    let unlimited = ConnectionRates { broker: u32::MAX, listener: u32::MAX };
    let admitted = Admission::Admitted { pause_ms: 0 };
    assert_eq!(quota.admit(0, address(1), unlimited, 0), admitted);
    assert_eq!(quota.admit(0, address(2), unlimited, 0), Admission::Delayed { close_after_ms: 1000 });
    assert_eq!(quota.admit(0, address(9), unlimited, 0), admitted, "it was named");
    let elsewhere = IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, 1]);
    assert_eq!(quota.admit(0, elsewhere, unlimited, 0), admitted);
}

#[test]
fn connections_are_paced_by_listener_and_refused_by_address() {
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    let ip = |name| QuotaEntity { ip: Some(EntityName::new(name)), ..QuotaEntity::default() };
    let rate = |limit| BTreeMap::from([("connection_creation_rate".to_owned(), limit)]);
    let quotas = [(ip(Some("10.0.0.1")), rate(1.0)), (ip(None), rate(2.0))];
    let resolve = |name: &str| name.parse().into_iter().collect();
    let mut quota = ConnectionQuota::new(Windows { count: 2, size_ms: 1000 });
    quota.set_ip_limits(IpLimits::new(quotas.iter().map(|(ip, values)| (ip, values)), &resolve));
    let unlimited = ConnectionRates { broker: u32::MAX, listener: u32::MAX };
    let admitted = Admission::Admitted { pause_ms: 0 };
    assert_eq!(quota.admit(0, address(1), unlimited, 0), admitted);
    let refused = Admission::Delayed { close_after_ms: 1000 };
    assert_eq!(quota.admit(0, address(1), unlimited, 0), refused);
    let later = Admission::Delayed { close_after_ms: 900 };
    assert_eq!(quota.admit(0, address(1), unlimited, 100), later, "tries that failed do not count");
    assert_eq!(quota.admit(0, address(2), unlimited, 100), admitted);
    assert_eq!(quota.admit(0, address(2), unlimited, 100), admitted);
    assert_eq!(quota.admit(0, address(1), unlimited, 2100), admitted);
    let slow = ConnectionRates { broker: u32::MAX, listener: 2 };
    assert_eq!(quota.admit(1, address(3), slow, 3000), admitted);
    assert_eq!(quota.admit(1, address(4), slow, 3000), admitted);
    assert_eq!(quota.admit(1, address(5), slow, 3000), Admission::Admitted { pause_ms: 500 });
    assert_eq!(quota.admit(0, address(6), unlimited, 3000), admitted, "another listener");
}
