//! The output of `kafka-broker-api-versions` for a broker, beside its output for Apache Kafka 4.3.0.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

/// Recorded from Apache Kafka 4.3.0 in combined roles: an API, its number and its versions on each line.
const KAFKA: &str = include_str!("api-versions-4.3.0.txt");

/// APIs that may be missing here, and are then refused as unsupported.
const NOT_AS_KAFKA: &[&str] = &[
    // Delegation tokens.
    "CreateDelegationToken(38)",
    "RenewDelegationToken(39)",
    "ExpireDelegationToken(40)",
    "DescribeDelegationToken(41)",
    // Share groups.
    "ShareGroupHeartbeat(76)",
    "ShareGroupDescribe(77)",
    "ShareFetch(78)",
    "ShareAcknowledge(79)",
    "InitializeShareGroupState(83)",
    "ReadShareGroupState(84)",
    "WriteShareGroupState(85)",
    "DeleteShareGroupState(86)",
    "ReadShareGroupStateSummary(87)",
    "DescribeShareGroupOffsets(90)",
    "AlterShareGroupOffsets(91)",
    "DeleteShareGroupOffsets(92)",
    // Streams groups.
    "StreamsGroupHeartbeat(88)",
    "StreamsGroupDescribe(89)",
];

/// APIs that are served here without a plugin for what clients push, which Kafka needs for them.
const BEYOND_KAFKA: &[&str] = &["GetTelemetrySubscriptions(71)", "PushTelemetry(72)"];

const UNSUPPORTED: &str = "UNSUPPORTED";

/// Compares the tool's output with what it was for Kafka.
pub(super) fn compare(output: &str) -> Result<()> {
    let (ours, kafkas) = (versions(output), versions(KAFKA));
    ensure!(!kafkas.is_empty(), "what Kafka printed is not readable");
    for (api, kafka) in &kafkas {
        let own = *ours.get(api).with_context(|| format!("no {api} in:\n{output}"))?;
        let may_differ = match own {
            UNSUPPORTED => NOT_AS_KAFKA.contains(api),
            _ => BEYOND_KAFKA.contains(api),
        };
        ensure!(own == *kafka || may_differ, "{api}: {own}, and Apache Kafka has {kafka}");
    }
    let more = ours.keys().find(|api| !kafkas.contains_key(*api));
    ensure!(more.is_none(), "{more:?} is none of Kafka's");
    Ok(())
}

/// The versions of each API, without the one that the tool's client would use.
fn versions(output: &str) -> BTreeMap<&str, &str> {
    let lines = output.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(": "));
    let apis = lines.filter(|(api, _)| api.ends_with(')') && !api.contains(' '));
    apis.map(|(api, versions)| (api, versions.split(" [").next().unwrap_or(versions))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_differs_is_found() {
        compare(KAFKA).unwrap();
        compare(&KAFKA.replace("ShareFetch(78): 1 to 2", "ShareFetch(78): UNSUPPORTED")).unwrap();
        compare(&KAFKA.replace("PushTelemetry(72): UNSUPPORTED", "PushTelemetry(72): 0 [usable: 0]"))
            .unwrap();
        for (from, to) in [
            ("Fetch(1): 4 to 18", "Fetch(1): 4 to 17"),
            ("Fetch(1): 4 to 18", "Fetch(1): UNSUPPORTED"),
            ("CreateAcls(30): 1 to 3", "CreateAcls(30): UNSUPPORTED"),
            ("ShareFetch(78): 1 to 2", "ShareFetch(78): 1"),
            ("Fetch(1)", "Other(1)"),
        ] {
            assert!(KAFKA.contains(from) && compare(&KAFKA.replace(from, to)).is_err(), "{to}");
        }
    }
}
