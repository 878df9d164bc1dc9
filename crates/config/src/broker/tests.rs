use std::collections::BTreeMap;

use super::super::origin::{StaticOrigin, environment_name};
use super::super::problem::ConfigError;
use super::super::properties::Properties;
use super::super::sources::Sources;
use super::*;

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn build(
    file: &str,
    environment: &[(&str, &str)],
    overrides: &[(&str, &str)],
) -> Result<BrokerConfig, ConfigError> {
    let file = Properties::parse(file.as_bytes()).expect("the test's file is well formed");
    let (environment, overrides) = (pairs(environment), pairs(overrides));
    BrokerConfig::from_sources(Sources {
        file: Some(&file),
        environment: &environment,
        overrides: &overrides,
    })
}

fn refused(file: &str, expect: &str) {
    let error = build(file, &[], &[]).expect_err("the file is wrong");
    assert_eq!(error.to_string(), expect, "{file}");
}

#[test]
fn defaults_need_nothing() {
    let config = BrokerConfig::from_sources(Sources::default()).expect("defaults are valid");
    assert_eq!(config.warnings, []);
    assert_eq!((config.node_id, config.log_dirs.as_slice()), (1, ["mainstem-data".to_string()].as_slice()));
    assert_eq!(config.network.queued_max_request_bytes, Some(64 << 20));
    assert_eq!(config.http_listener, None);
    assert_eq!(config.attach, []);
    assert_eq!(config.offsets.retention_ms, 7 * 24 * 3_600_000);
    assert_eq!(config.network.connections_max_idle_ms, Some(600_000));
}

#[test]
fn kafkas_own_file_starts_unchanged() {
    let config =
        build(include_str!("../fixtures/server.properties"), &[], &[]).expect("Kafka starts from it");
    assert_eq!(config.listeners.open.len(), 1);
    assert_eq!(config.log_dirs, ["/tmp/kraft-combined-logs"]);
    let warned: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
    expect_test::expect_file!["../fixtures/server.properties.warnings"]
        .assert_eq(&(warned.join("\n") + "\n"));
}

#[test]
fn set_counts_before_environment_before_file() {
    let file = "num.partitions=2\nlog.segment.bytes=2000000\nlog.roll.hours=2\n";
    let environment =
        [("MAINSTEM_NUM_PARTITIONS", "3"), ("MAINSTEM_LOG_SEGMENT_BYTES", "3000000"), ("HOME", "/")];
    let config = build(file, &environment, &[("num.partitions", "4")]).expect("valid");
    assert_eq!(config.topics.num_partitions, 4);
    assert_eq!(config.values.origin("num.partitions"), Some(StaticOrigin::Override));
    assert_eq!(config.values.origin("log.segment.bytes"), Some(StaticOrigin::Environment));
    assert_eq!(config.values.origin("log.roll.hours"), Some(StaticOrigin::File { line: 3 }));
    assert_eq!(config.values.origin("log.roll.ms"), None);
    assert_eq!(environment_name("log.roll.ms"), "MAINSTEM_LOG_ROLL_MS");
}

#[test]
fn unknown_keys_are_warned_of_unless_they_were_typed() {
    let config = build("orders.limit=1\nnum.partition=2\nnum.partitions=1", &[("MAINSTEM_X", "1")], &[])
        .expect("valid");
    let warned: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warned,
        [
            "environment: unknown key MAINSTEM_X is ignored",
            "file line 2: unknown key num.partition is ignored; did you mean num.partitions?",
            "file line 1: unknown key orders.limit is ignored",
        ]
    );
    let error = build("", &[], &[("num.partition", "2")]).expect_err("typed");
    assert_eq!(
        error.to_string(),
        "--set: Unknown broker config name: num.partition; did you mean num.partitions?"
    );
}

#[test]
fn every_problem_is_named_with_its_place() {
    refused(
        "num.partitions=0\nlog.dirs=\n",
        "file line 1: Invalid value 0 for configuration num.partitions: Value must be at least 1\n\
         file line 2: Configuration 'log.dirs' must not be empty. Valid values include: any non-empty value",
    );
    let retention = "log.retention.ms must be unlimited (-1) or, greater than or equal to 1";
    for key in ["log.retention.ms", "log.retention.minutes", "log.retention.hours"] {
        refused(&format!("{key}=0"), retention);
    }
    refused(
        "log.dirs=/a,/b\ncordoned.log.dirs=*,/a",
        "When cordoned.log.dirs is set to *, it must not contain other values",
    );
    refused(
        "log.dirs=/a,/b\ncordoned.log.dirs=/c,/a,/d",
        "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. Missing entries : /c, /d",
    );
    refused("node.id=1\nbroker.id=2", "You must set `node.id` to the same value as `broker.id`.");
    refused(
        "process.roles=controller",
        "process.roles must name broker: this program is no controller alone",
    );
    refused(
        "max.connections.per.ip=0",
        "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
    );
    refused(
        "socket.request.max.bytes=5",
        "socket.request.max.bytes=5 is less than the first requests of clients take, so that none could connect: the least is \
         1024, and the default 104857600",
    );
    refused(
        "max.connections.per.ip.overrides=a:b",
        "Error parsing configuration property 'max.connections.per.ip.overrides': a:b is not address:count",
    );
    refused(
        "mainstem.attach=trades=/q,trades=/r",
        "Invalid value trades=/r for configuration mainstem.attach: there is a queue for this topic already",
    );
    refused(
        "mainstem.http.listener=9644",
        "Invalid value 9644 for configuration mainstem.http.listener: \
         must be host:port, such as 127.0.0.1:9644",
    );
    refused(
        "log.cleaner.min.compaction.lag.ms=10\nlog.cleaner.max.compaction.lag.ms=5",
        "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
    );
}

#[test]
fn typed_values_follow_their_keys() {
    let config = build(
        "broker.id=7\nlog.dir=/a\nmax.connections.per.ip.overrides=127.0.0.1:5, ::1:6\n\
         socket.receive.buffer.bytes=102400\nqueued.max.request.bytes=-1\nconnections.max.idle.ms=-1\n\
         mainstem.http.listener=[::1]:9644\nmainstem.attach=trades=/q/t, logs = /q/l\ndefault.replication.factor=3",
        &[],
        &[],
    )
    .expect("valid");
    assert_eq!((config.node_id, config.metadata_log_dir), (7, None));
    let overrides = [("127.0.0.1".to_string(), 5), ("::1".to_string(), 6)];
    assert_eq!(config.network.max_connections_per_ip_overrides, overrides);
    assert_eq!(config.network.send_buffer_bytes, None, "it is left to the system");
    assert_eq!(config.network.receive_buffer_bytes, Some(102_400));
    assert_eq!(config.network.queued_max_request_bytes, None);
    assert_eq!(config.network.connections_max_idle_ms, None);
    assert_eq!(config.http_listener, Some(("::1".to_string(), 9644)));
    let attached = [("trades", "/q/t"), ("logs", "/q/l")];
    assert_eq!(config.attach, attached.map(|(name, dir)| (name.to_string(), PathBuf::from(dir))));
    assert_eq!(
        config.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["default.replication.factor=3 cannot be met: there is one node, so topics that need it are refused"]
    );
}

#[test]
fn values_set_while_running_lie_over_those_at_start() {
    let config = build("max.connections=10", &[], &[]).expect("valid");
    let map = |value: &str| BTreeMap::from([("max.connections".to_string(), value.to_string())]);
    let over = config.with_dynamic(map("20"), BTreeMap::new()).expect("valid");
    assert_eq!(over.network.max_connections, 20);
    let over = over.with_dynamic(map("20"), map("30")).expect("valid");
    assert_eq!(over.network.max_connections, 30);
    let back = over.with_dynamic(BTreeMap::new(), BTreeMap::new()).expect("valid");
    assert_eq!(back, config);
}
