//! Transcripts: the input of a member, and its next step.

use std::time::Duration;

use super::*;

/// The topic of a letter has that letter as its id.
fn id(letter: char) -> Uuid {
    Uuid::from_u128(letter as u128)
}

/// Partitions such as `a0,a1,b0`; none as `-`.
fn partitions(text: &str) -> Partitions {
    let mut partitions = Partitions::new();
    for one in text.split(',').filter(|one| *one != "-") {
        let (topic, partition) = one.split_at(1);
        let topic = id(topic.chars().next().unwrap());
        partitions.entry(topic).or_default().insert(partition.parse().unwrap());
    }
    partitions
}

fn shown(partitions: &Partitions) -> String {
    let one = |(id, partitions): (&Uuid, &BTreeSet<i32>)| {
        let letter = char::from(id.to_u128() as u8);
        partitions.iter().map(|one| format!("{letter}{one}")).collect::<Vec<_>>()
    };
    let all: Vec<String> = partitions.iter().flat_map(one).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(",") }
}

fn keys(keys: &BTreeSet<TopicPartition>) -> String {
    keys.iter().map(|key| format!("{}{}", key.topic, key.partition)).collect::<Vec<_>>().join(",")
}

fn beat(beat: &Heartbeat) -> String {
    let full = if beat.is_full { " full" } else { "" };
    let owned = beat.owned.as_ref().map(|owned| format!(" has {}", shown(owned))).unwrap_or_default();
    format!("beat {}{full}{owned}", beat.epoch)
}

fn step(step: &Step) -> String {
    match step {
        Step::Beat(heartbeat) => beat(heartbeat),
        Step::Revoke(revoked) => format!("revoke {}", keys(revoked)),
        Step::Assign(added) => format!("assign {}", keys(added)),
        Step::Withdraw => "withdraw".to_owned(),
        Step::Lose => "lose".to_owned(),
        Step::Fail(error) => format!("fail {}", error.code().unwrap().name()),
        Step::Wait(u64::MAX) => "wait".to_owned(),
        Step::Wait(until) => format!("wait {until}"),
    }
}

fn refusal(code: &str) -> Error {
    let code = ErrorCode::ALL.iter().copied().find(|known| known.name() == code).expect("a code");
    Error::Broker { code, message: String::new(), what: String::new(), broker: String::new() }
}

fn tell(member: &mut Membership, now_ms: u64, words: &[&str]) {
    match words {
        [] => {}
        ["name", topics] => {
            let names = topics.chars().map(|topic| (id(topic), Arc::from(topic.to_string())));
            member.named(names.collect::<Vec<_>>());
        }
        ["answer", epoch, interval, rest @ ..] => member.answered(Answer {
            epoch: epoch.parse().unwrap(),
            interval_ms: interval.parse().unwrap(),
            assignment: rest.first().map(|text| partitions(text)),
        }),
        ["refuse", code] => member.refused(&refusal(code), now_ms, 0.5),
        ["lose", "connection"] => {
            let lost = Error::ConnectionLost { broker: String::new(), api: "", reason: String::new() };
            member.refused(&lost, now_ms, 0.5);
        }
        ["reconciled"] => member.reconciled(),
        ["withdrawn"] => member.withdrawn(),
        ["lost"] => member.lost(now_ms),
        ["stop", sends @ ..] => {
            let leave = member.leave().map(|leave| beat(&leave)).unwrap_or_default();
            assert_eq!(leave, sends.join(" "));
        }
        ["idle", sends @ ..] => {
            let leave = member.go_idle().map(|leave| beat(&leave)).unwrap_or_default();
            assert_eq!(leave, sends.join(" "));
        }
        _ => panic!("{words:?}"),
    }
}

/// Each line: the time, the input of the member if there is one, and after the arrow its next step.
fn check(is_static: bool, transcript: &str) {
    let backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(200));
    let mut member = Membership::new(is_static, backoff);
    for line in transcript.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (input, expected) = line.split_once("->").expect("an arrow");
        let words: Vec<&str> = input.split_whitespace().collect();
        let now_ms = words[0].parse().unwrap();
        tell(&mut member, now_ms, &words[1..]);
        assert_eq!(step(&member.next(now_ms)), expected.trim(), "{line}");
    }
}

#[test]
fn a_member_joins_takes_over_acknowledges_and_beats_in_time() {
    check(
        false,
        "0                       -> beat 0 full has -
         0                       -> wait
         5 name ab               -> wait
         7 answer 1 5000 a0,a1   -> assign a0,a1
         7                       -> wait 5000
         90 reconciled           -> beat 1 has a0,a1
         95 answer 1 5000        -> wait 5090
         5090                    -> beat 1
         5091 answer 1 5000      -> wait 10090",
    );
}

#[test]
fn what_is_revoked_is_acknowledged_before_more_comes() {
    check(
        false,
        "0                       -> beat 0 full has -
         0 name ab               -> wait
         1 answer 1 100 a0,a1    -> assign a0,a1
         2 reconciled            -> beat 1 has a0,a1
         3 answer 1 100          -> wait 102
         102                     -> beat 1
         103 answer 1 100 a0     -> revoke a1
         202                     -> beat 1
         203 answer 1 100        -> wait 302
         250 reconciled          -> beat 1 has a0
         251 answer 2 100 a0,b0  -> wait 350
         252 name b              -> assign b0
         260 reconciled          -> beat 2 has a0,b0",
    );
}

#[test]
fn a_revocation_is_acknowledged_before_the_rest_is_taken_over() {
    check(
        false,
        "0                       -> beat 0 full has -
         0 name ab               -> wait
         1 answer 1 100 a0       -> assign a0
         2 reconciled            -> beat 1 has a0
         3 answer 2 100 b0       -> revoke a0
         4 name b                -> wait 102
         4 reconciled            -> assign b0
         5                       -> beat 2 has -
         6 answer 2 100          -> wait 105
         7 reconciled            -> beat 2 has b0",
    );
}

#[test]
fn what_is_not_wanted_any_more_is_withdrawn_and_that_is_reported() {
    check(
        false,
        "0                       -> beat 0 full has -
         0 name ab               -> wait
         1 answer 1 100 a0       -> assign a0
         100                     -> beat 1
         101 answer 2 100 b0     -> withdraw
         102 name b              -> wait 200
         102 withdrawn           -> assign b0
         103                     -> beat 2 has -
         104 answer 2 100        -> wait 203
         110 reconciled          -> beat 2 has b0",
    );
}

#[test]
fn partitions_that_the_consumer_has_begun_with_are_revoked_after_that() {
    check(
        false,
        "0                       -> beat 0 full has -
         0 name ab               -> wait
         1 answer 1 100 a0       -> assign a0
         100                     -> beat 1
         101 answer 2 100 b0     -> withdraw
         102 name b              -> wait 200
         103 answer 3 100 b1     -> wait 200
         150 reconciled          -> revoke a0
         160 reconciled          -> assign b1
         161                     -> beat 3 has -",
    );
}

#[test]
fn more_of_the_same_waits_for_what_is_under_way() {
    check(
        false,
        "0                       -> beat 0 full has -
         0 name ab               -> wait
         1 answer 1 100 a0       -> assign a0
         100                     -> beat 1
         101 answer 2 100 a0,a1  -> wait 200
         150 reconciled          -> assign a1",
    );
}

#[test]
fn topics_are_taken_over_when_their_names_are_known() {
    check(
        false,
        "0                       -> beat 0 full has -
         0 name a                -> wait
         1 answer 1 100 a0,b0    -> assign a0
         2 reconciled            -> beat 1 has a0
         3 answer 1 100          -> wait 102
         50 name b               -> assign b0
         51 reconciled           -> beat 1 has a0,b0",
    );
}

#[test]
fn a_topic_that_is_created_again_is_another_one() {
    check(
        false,
        "0                       -> beat 0 full has -
         0 name ab               -> wait
         1 answer 1 100 a0       -> assign a0
         2 reconciled            -> beat 1 has a0
         3 answer 2 100 b0       -> revoke a0
         4 name b                -> wait 102
         5 reconciled            -> assign b0",
    );
}

#[test]
fn who_is_thrown_out_gives_up_and_joins_again() {
    for code in ["FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"] {
        check(
            false,
            &format!(
                "0                       -> beat 0 full has -
                 0 name a                -> wait
                 1 answer 3 100 a0       -> assign a0
                 2 reconciled            -> beat 3 has a0
                 3 refuse {code}         -> lose
                 4                       -> wait
                 5 reconciled            -> wait
                 6 lost                  -> beat 0 full has -
                 7 answer 4 100 a0       -> assign a0"
            ),
        );
    }
}

#[test]
fn after_a_failure_everything_is_said_again() {
    check(
        false,
        "0                                 -> beat 0 full has -
         0 lose connection                 -> wait 100
         100                               -> beat 0 full has -
         101 refuse NOT_COORDINATOR        -> wait 301
         301 name a                        -> beat 0 full has -
         302 answer 1 1000 a0              -> assign a0
         303 reconciled                    -> beat 1 has a0
         304 refuse COORDINATOR_LOAD_IN_PROGRESS -> wait 404
         404                               -> beat 1 full has a0
         405 answer 1 1000                 -> wait 1404",
    );
}

#[test]
fn what_cannot_be_mended_ends_it() {
    for code in [
        "UNRELEASED_INSTANCE_ID",
        "FENCED_INSTANCE_ID",
        "UNSUPPORTED_ASSIGNOR",
        "INVALID_REGULAR_EXPRESSION",
        "GROUP_MAX_SIZE_REACHED",
        "GROUP_AUTHORIZATION_FAILED",
        "INVALID_REQUEST",
    ] {
        let transcript = format!(
            "0                    -> beat 0 full has -
             1 refuse {code}      -> fail {code}
             2                    -> fail {code}"
        );
        check(true, &transcript);
    }
}

#[test]
fn who_is_idle_leaves_and_comes_back() {
    for (is_static, epoch) in [(false, -1), (true, -2)] {
        let transcript = format!(
            "0                     -> beat 0 full has -
             0 name a              -> wait
             1 answer 1 100 a0     -> assign a0
             2 reconciled          -> beat 1 has a0
             3 answer 1 100        -> wait 102
             50 idle beat {epoch}  -> lose
             60 lost               -> beat 0 full has -"
        );
        check(is_static, &transcript);
    }
}

#[test]
fn who_stops_leaves_as_soon_as_it_has_asked_to_join() {
    for (is_static, epoch) in [(false, -1), (true, -2)] {
        let transcript = format!(
            "0 stop                        -> beat 0 full has -
             1 stop beat {epoch}           -> wait
             2 lose connection             -> wait 102
             3 stop beat {epoch}           -> wait 102
             102                           -> beat 0 full has -
             103 answer 1 100              -> wait 202
             104 stop beat {epoch}         -> wait 202
             202                           -> beat 1
             203 refuse UNKNOWN_MEMBER_ID  -> lose
             204 stop                      -> wait"
        );
        check(is_static, &transcript);
    }
}
