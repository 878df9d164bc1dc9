//! Quotas against simple models.

use proptest::prelude::*;

use super::tests::{entity, limits};
use super::*;

/// Names of users and client ids; the last one has no quota of its own.
const NAMES: [&str; 3] = ["a", "b", "c"];

type Part = Option<Option<&'static str>>;

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![Just(None), Just(Some(None)), Just(Some(Some("a"))), Just(Some(Some("b")))]
}

/// The first of Kafka's eight combinations that has a quota. While only user-and-client-id quotas, or only user
/// quotas, or only client-id quotas are set, a client has none of another kind anyway.
fn first_match(quotas: &[((Part, Part), f64)], user: &'static str, client_id: &'static str) -> Option<f64> {
    let (user, client_id) = (Some(Some(user)), Some(Some(client_id)));
    let any = Some(None);
    let order = [
        (user, client_id),
        (user, any),
        (user, None),
        (any, client_id),
        (any, any),
        (any, None),
        (None, client_id),
        (None, any),
    ];
    // The last quota that was set for an entity counts.
    let find = |wanted| quotas.iter().rev().find(|(entity, _)| *entity == wanted).map(|(_, limit)| *limit);
    order.into_iter().find_map(find)
}

/// Sends these multiples of the limit one after another, each as soon as it may. Returns the sum, and the seconds that it took.
fn obey(windows: Windows, limit: f64, sizes: &[f64]) -> (f64, f64) {
    let mut quota = RateQuota::new(windows);
    quota.set_limits(limits(&[(entity(None, Some(None)), limit)]));
    let (mut now_ms, mut sent) = (0, 0.0);
    for size in sizes {
        sent += size * limit;
        now_ms += 1 + quota.charge(Client { user: "u", client_id: "c" }, size * limit, now_ms);
    }
    (sent, now_ms as f64 / 1000.0)
}

proptest! {
    #[test]
    fn the_limit_is_that_of_the_first_combination(
        quotas in proptest::collection::vec(((part(), part()), 1.0f64..100.0), 0..8),
    ) {
        let set: Vec<_> =
            quotas.iter().map(|((user, client_id), limit)| (entity(*user, *client_id), *limit)).collect();
        let limits = limits(&set);
        for user in NAMES {
            for client_id in NAMES {
                let mut quota = RateQuota::new(Windows { count: 2, size_ms: 1000 });
                quota.set_limits(limits.clone());
                prop_assert_eq!(
                    quota.most_at_once(Client { user, client_id }),
                    first_match(&quotas, user, client_id),
                    "{} {}", user, client_id
                );
            }
        }
    }

    /// A client that sends as soon as it may is hardly faster than its limit, after its burst: Kafka's samples forget a little
    /// early.
    #[test]
    fn an_obedient_client_stays_within_its_limit(
        limit in 100.0f64..10_000.0,
        sizes in proptest::collection::vec(0.01f64..2.0, 50..200),
    ) {
        let windows = Windows { count: 11, size_ms: 1000 };
        let (sent, seconds) = obey(windows, limit, &sizes);
        // Before that, the burst that fills the windows. After it, one request more: it is judged after it was served.
        let most = limit * (seconds * 1.1 + windows.span_ms() as f64 / 1000.0 + 2.0);
        prop_assert!(sent <= most, "{sent} in {seconds} s of {limit}/s");
    }

    /// With Kafka's eleven windows it also gets what it may have.
    #[test]
    fn a_steady_client_gets_its_limit(limit in 100.0f64..10_000.0, size in 0.02f64..0.5) {
        let windows = Windows { count: 11, size_ms: 1000 };
        let (sent, seconds) = obey(windows, limit, &vec![size; (60.0 / size) as usize]);
        prop_assert!(sent >= limit * seconds * 0.85, "{sent} in {seconds} s of {limit}/s");
    }

    /// Whatever is taken, the bucket gives its burst and then the limit.
    #[test]
    fn a_bucket_gives_its_burst_and_then_the_limit(
        limit in 0.5f64..100.0,
        steps in proptest::collection::vec((0u64..3000, 1u32..50), 1..100),
    ) {
        let windows = Windows { count: 11, size_ms: 1000 };
        let mut quota = MutationQuota::new(windows);
        quota.set_limits(limits(&[(entity(Some(None), None), limit)]));
        let client = Client { user: "u", client_id: "c" };
        let (mut now_ms, mut granted, mut largest) = (0, 0.0, 0.0f64);
        for (pause_ms, permits) in steps {
            now_ms += pause_ms;
            let permits = f64::from(permits);
            match quota.take(client, permits, Strictness::Strict, now_ms) {
                Taken::Granted(wait_ms) => {
                    prop_assert_eq!(wait_ms, 0);
                    granted += permits;
                    largest = largest.max(permits);
                }
                Taken::Refused(wait_ms) => {
                    prop_assert!(wait_ms > 0);
                    // Not before, and surely then.
                    let again = quota.take(client, 0.0, Strictness::Strict, now_ms + wait_ms + 1);
                    prop_assert_eq!(again, Taken::Granted(0));
                    now_ms += wait_ms + 1;
                }
            }
        }
        let most = limit * (windows.span_ms() + now_ms) as f64 / 1000.0 + largest;
        prop_assert!(granted <= most + 1e-6, "{granted} of at most {most}");
    }
}
