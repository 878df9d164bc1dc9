//! Apache Kafka with what `mainstem security init` has made: the same certificates, users and rules, by Kafka's own keys.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::super::super::install;
use super::{MECHANISMS, listeners_of_sessions};
use crate::process::Process;

/// The listener of the controllers, whose nodes authenticate by certificates.
pub(super) const CONTROLLERS: &str = "CONTROLLER";

const FORMAT_DEADLINE: Duration = Duration::from_secs(150);

/// Settings that Kafka needs beside those of both brokers.
pub(super) fn settings(dir: &Path, controllers: &str) -> String {
    let mut settings = format!(
        "log.dirs={}\n\
         controller.listener.names={CONTROLLERS}\n\
         controller.quorum.bootstrap.servers={controllers}\n\
         listener.name.controller.ssl.client.auth=required\n\
         inter.broker.listener.name=SSL\n\
         super.users=User:admin;User:CN=broker\n\
         offsets.topic.replication.factor=1\n\
         offsets.topic.num.partitions=4\n",
        dir.join("data-of-kafka").display()
    );
    // Each listener names the module of each of its mechanisms.
    let mut logs_in_by = |listener: &str, mechanism: &str| {
        settings.push_str(&format!(
            "listener.name.{listener}.{}.sasl.jaas.config=\
             org.apache.kafka.common.security.scram.ScramLoginModule required;\n",
            mechanism.to_lowercase()
        ));
    };
    for mechanism in MECHANISMS {
        logs_in_by("sasl_ssl", mechanism);
    }
    for listener in listeners_of_sessions() {
        logs_in_by(&listener.to_lowercase(), MECHANISMS[1]);
    }
    settings
}

/// Returns the command that starts Kafka with a file of properties, after formatting its directory with the administrator.
pub(super) fn command(dir: &Path, properties: &Path, logs: &Path) -> Result<Command> {
    let admin = fs::read_to_string(dir.join("admin.properties"))?;
    let password = admin.split_once("password=\"").and_then(|(_, rest)| rest.split_once('"'));
    let (password, _) = password.context("the administrator has a password")?;
    let mut format = install::java(256);
    format.args([install::tool_class("kafka-storage"), "format", "--standalone"]);
    format.args(["--cluster-id", "bWFpbnN0ZW0taW50ZXJvcA", "--config"]).arg(properties);
    format.arg("--add-scram").arg(format!("{}=[name=admin,password={password}]", MECHANISMS[1]));
    Process::start("guarded-format", &mut format, logs)?.wait(FORMAT_DEADLINE)?;
    let mut start = install::java(512);
    start.arg("kafka.Kafka");
    Ok(start)
}
