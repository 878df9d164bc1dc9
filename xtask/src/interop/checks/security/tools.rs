//! Kafka's tools for users and rules, each with its options, as the administrator that `mainstem security init` made.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};

use super::super::super::report::Report;
use super::super::super::world::World;
use super::{Guarded, PASSWORD, ROTATED};

const ACLS: &str = "kafka-acls";
const CONFIGS: &str = "kafka-configs";

/// The listener whose certificate Kafka's tool changes.
pub(super) const LISTENER: &str = "CHANGED";

/// The tools against one broker.
struct Tools<'a> {
    world: &'a World,
    guarded: &'a Guarded,
}

/// Runs them all.
pub(super) fn run(world: &World, report: &Report, guarded: &Guarded) {
    let tools = Tools { world, guarded };
    report.check(ACLS, "allow and deny: principals, hosts, operations, topics", || tools.rules_of_topics());
    report.check(ACLS, "the rules of a producer and of a consumer", || tools.rules_of_clients());
    report.check(ACLS, "clusters, groups, transactional ids, tokens, users", || tools.rules_of_resources());
    report.check(ACLS, "patterns: literal, prefixed, match, any", || tools.patterns());
    report.check(CONFIGS, "SCRAM users: add, log in, describe, delete", || tools.users());
    report.check(CONFIGS, "a listener's certificate: changed, one that is missing refused", || {
        tools.certificate()
    });
}

impl Tools<'_> {
    /// Returns the output of a tool, run as the administrator.
    fn call(&self, tool: &str, arguments: &[&str]) -> Result<String> {
        self.call_as("admin.properties", tool, arguments)
    }

    /// Returns the output of a tool, with a file of properties in the broker's directory.
    fn call_as(&self, properties: &str, tool: &str, arguments: &[&str]) -> Result<String> {
        let properties = self.guarded.dir.join(properties).display().to_string();
        let connection =
            ["--bootstrap-server", &self.guarded.bootstrap, "--command-config", properties.as_str()];
        self.world.tool(tool, &[&connection[..], arguments].concat(), "")?.success()
    }

    fn acls(&self, arguments: &[&str]) -> Result<String> {
        self.call(ACLS, arguments)
    }

    /// The rules that `--list` prints, each as `RESOURCE PRINCIPAL HOST OPERATION PERMISSION`.
    fn rules(&self, filter: &[&str]) -> Result<BTreeSet<String>> {
        let shown = self.acls(&[&["--list"], filter].concat())?;
        let mut resource = String::new();
        let mut rules = BTreeSet::new();
        for line in shown.lines() {
            let field = |name: &str| {
                let rest = line.split_once(&format!("{name}="))?.1;
                Some(rest.split([',', ')']).next().unwrap_or_default().to_owned())
            };
            if let (Some(kind), Some(name), Some(pattern)) =
                (field("resourceType"), field("name"), field("patternType"))
            {
                resource = format!("{kind}:{name}:{pattern}");
            } else if let (Some(principal), Some(host), Some(operation), Some(permission)) =
                (field("principal"), field("host"), field("operation"), field("permissionType"))
            {
                rules.insert(format!("{resource} {principal} {host} {operation} {permission}"));
            }
        }
        Ok(rules)
    }

    /// Lists by a filter, and compares with what is expected.
    fn expect(&self, filter: &[&str], expected: &[String]) -> Result<()> {
        let expected: BTreeSet<String> = expected.iter().cloned().collect();
        let found = self.rules(filter)?;
        ensure!(found == expected, "{filter:?}: {found:#?}, not {expected:#?}");
        Ok(())
    }

    fn rules_of_topics(&self) -> Result<()> {
        let allow = ["--allow-principal", "User:anna", "--allow-principal", "User:bela"];
        let hosts = ["--allow-host", "127.0.0.1", "--allow-host", "127.0.0.2"];
        let deny = ["--deny-principal", "User:carl", "--deny-host", "10.0.0.1"];
        let operations = ["--operation", "Read", "--operation", "DescribeConfigs"];
        let topics = ["--topic", "rules-1", "--topic", "rules-2"];
        let rule = [&allow[..], &hosts, &deny, &operations, &topics].concat();
        self.acls(&[&["--add"], &rule[..]].concat())?;
        let of = |topic: &str| {
            let mut rules = Vec::new();
            for operation in ["READ", "DESCRIBE_CONFIGS"] {
                for (user, host) in [
                    ("anna", "127.0.0.1"),
                    ("anna", "127.0.0.2"),
                    ("bela", "127.0.0.1"),
                    ("bela", "127.0.0.2"),
                ] {
                    rules.push(format!("TOPIC:{topic}:LITERAL User:{user} {host} {operation} ALLOW"));
                }
                rules.push(format!("TOPIC:{topic}:LITERAL User:carl 10.0.0.1 {operation} DENY"));
            }
            rules
        };
        self.expect(&["--topic", "rules-1"], &of("rules-1"))?;
        let of_carl: Vec<String> = ["rules-1", "rules-2"]
            .iter()
            .flat_map(|topic| of(topic))
            .filter(|rule| rule.contains("carl"))
            .collect();
        self.expect(&["--principal", "User:carl"], &of_carl)?;
        // Some of them are removed, by the same words; then all of a topic.
        let some = ["--allow-principal", "User:anna", "--allow-host", "127.0.0.2", "--operation", "Read"];
        self.acls(&[&["--remove", "--force"], &some[..], &["--topic", "rules-1"]].concat())?;
        let left: Vec<String> =
            of("rules-1").into_iter().filter(|rule| !rule.contains("anna 127.0.0.2 READ")).collect();
        self.expect(&["--topic", "rules-1"], &left)?;
        for topic in ["rules-1", "rules-2"] {
            self.acls(&["--remove", "--force", "--topic", topic])?;
            self.expect(&["--topic", topic], &[])?;
        }
        Ok(())
    }

    fn rules_of_clients(&self) -> Result<()> {
        let producer = [
            "--producer",
            "--allow-principal",
            "User:prod",
            "--topic",
            "sold",
            "--transactional-id",
            "tx",
            "--idempotent",
        ];
        self.acls(&[&["--add"], &producer[..]].concat())?;
        let consumer =
            ["--consumer", "--allow-principal", "User:cons", "--topic", "sold", "--group", "buyers"];
        self.acls(&[&["--add"], &consumer[..]].concat())?;
        let rules = |user: &str, rules: &[(&str, &str)]| -> Vec<String> {
            rules
                .iter()
                .map(|(resource, operation)| format!("{resource}:LITERAL User:{user} * {operation} ALLOW"))
                .collect()
        };
        let of_producer = rules(
            "prod",
            &[
                ("TOPIC:sold", "WRITE"),
                ("TOPIC:sold", "DESCRIBE"),
                ("TOPIC:sold", "CREATE"),
                ("TRANSACTIONAL_ID:tx", "WRITE"),
                ("TRANSACTIONAL_ID:tx", "DESCRIBE"),
                ("CLUSTER:kafka-cluster", "IDEMPOTENT_WRITE"),
            ],
        );
        self.expect(&["--principal", "User:prod"], &of_producer)?;
        let of_consumer =
            rules("cons", &[("TOPIC:sold", "READ"), ("TOPIC:sold", "DESCRIBE"), ("GROUP:buyers", "READ")]);
        self.expect(&["--principal", "User:cons"], &of_consumer)?;
        for (user, words) in [("User:prod", &producer[..]), ("User:cons", &consumer[..])] {
            self.acls(&[&["--remove", "--force"], words].concat())?;
            self.expect(&["--principal", user], &[])?;
        }
        Ok(())
    }

    fn rules_of_resources(&self) -> Result<()> {
        let resources: [(&[&str], &str, &str); 5] = [
            (&["--cluster"], "CLUSTER:kafka-cluster", "Alter"),
            (&["--group", "g-1"], "GROUP:g-1", "Delete"),
            (&["--transactional-id", "t-1"], "TRANSACTIONAL_ID:t-1", "Describe"),
            (&["--delegation-token", "k-1"], "DELEGATION_TOKEN:k-1", "Describe"),
            (&["--user-principal", "User:owner"], "USER:User:owner", "CreateTokens"),
        ];
        for (resource, name, operation) in resources {
            let rule = [&["--allow-principal", "User:rita", "--operation", operation], resource].concat();
            self.acls(&[&["--add"], &rule[..]].concat())?;
            let shown = match operation {
                "CreateTokens" => "CREATE_TOKENS".to_owned(),
                plain => plain.to_uppercase(),
            };
            let expected = format!("{name}:LITERAL User:rita * {shown} ALLOW");
            let found = self.rules(resource)?;
            ensure!(found.contains(&expected), "{resource:?}: {found:?}, without {expected}");
            self.acls(&[&["--remove", "--force"], &rule[..]].concat())?;
            ensure!(!self.rules(resource)?.contains(&expected), "{expected} is gone");
        }
        Ok(())
    }

    fn patterns(&self) -> Result<()> {
        let user = ["--allow-principal", "User:pat", "--operation", "Write"];
        let rule = |name: &str, pattern: &str| format!("TOPIC:{name}:{pattern} User:pat * WRITE ALLOW");
        self.acls(&[&["--add"], &user[..], &["--topic", "by-name"]].concat())?;
        self.acls(
            &[&["--add"], &user[..], &["--topic", "by-", "--resource-pattern-type", "prefixed"]].concat(),
        )?;
        self.acls(&[&["--add"], &user[..], &["--topic", "*"]].concat())?;
        let all = [rule("by-name", "LITERAL"), rule("by-", "PREFIXED"), rule("*", "LITERAL")];
        let of = |pattern: &'static str| {
            ["--principal", "User:pat", "--topic", "by-name", "--resource-pattern-type", pattern]
        };
        self.expect(&of("literal"), &all[..1])?;
        self.expect(&of("match"), &all)?;
        self.expect(
            &["--principal", "User:pat", "--topic", "by-", "--resource-pattern-type", "prefixed"],
            &all[1..2],
        )?;
        self.expect(
            &["--principal", "User:pat", "--topic", "by-", "--resource-pattern-type", "any"],
            &all[1..2],
        )?;
        let checked = self.guarded.tool(&["acl", "check", "pat", "write", "--topic", "by-the-way"])?;
        ensure!(checked.starts_with("allowed"), "our tool says the same: {checked}");
        self.acls(
            &[
                &["--remove", "--force"],
                &user[..],
                &["--topic", "by-name", "--resource-pattern-type", "match"],
            ]
            .concat(),
        )?;
        self.expect(&["--principal", "User:pat"], &[])
    }

    fn users(&self) -> Result<()> {
        let of = ["--entity-type", "users", "--entity-name", "tool"];
        // One mechanism at a time: Kafka's controller changes a user once in a request.
        let first = format!("SCRAM-SHA-256=[iterations=8192,password={PASSWORD}]");
        for added in [first, format!("SCRAM-SHA-512=[password={PASSWORD}]")] {
            self.call(CONFIGS, &[&["--alter", "--add-config", &added], &of[..]].concat())?;
        }
        let shown = self.call(CONFIGS, &[&["--describe"], &of[..]].concat())?;
        for part in ["SCRAM-SHA-256=iterations=8192", "SCRAM-SHA-512=iterations=4096"] {
            ensure!(shown.contains(part), "{part}: {shown}");
        }
        ensure!(!shown.contains(PASSWORD), "{shown}");
        let shown = self.call(CONFIGS, &["--describe", "--user", "tool"])?;
        ensure!(shown.contains("SCRAM-SHA-512=iterations=4096"), "{shown}");
        ensure!(self.guarded.tool(&["user", "list"])?.contains("tool"), "our tool sees the user");
        self.log_in_as("tool")?;
        // A quota and a user of the same name are independent.
        self.call(CONFIGS, &[&["--alter", "--add-config", "consumer_byte_rate=1000000"], &of[..]].concat())?;
        self.call(CONFIGS, &[&["--alter", "--delete-config", "SCRAM-SHA-256"], &of[..]].concat())?;
        let shown = self.call(CONFIGS, &[&["--describe"], &of[..]].concat())?;
        let is_left =
            shown.contains("consumer_byte_rate=1000000") && shown.contains("SCRAM-SHA-512=iterations=4096");
        ensure!(is_left && !shown.contains("SCRAM-SHA-256"), "{shown}");
        // The tool changes one kind in a call.
        for rest in ["SCRAM-SHA-512", "consumer_byte_rate"] {
            self.call(CONFIGS, &[&["--alter", "--delete-config", rest], &of[..]].concat())?;
        }
        ensure!(!self.guarded.tool(&["user", "list"])?.contains("tool"), "the user is gone");
        Ok(())
    }

    fn certificate(&self) -> Result<()> {
        let of = ["--entity-type", "brokers", "--entity-name", "1"];
        let key = format!("listener.name.{}.ssl.keystore.location", LISTENER.to_lowercase());
        let set = |file: &str| {
            let setting = format!("{key}={}", self.guarded.dir.join(file).display());
            self.call(CONFIGS, &[&["--alter", "--add-config", &setting], &of[..]].concat())
        };
        let refused = set("missing.pem").err().context("a file that is not there is refused")?.to_string();
        ensure!(refused.contains("cannot use TLS") && refused.contains("missing.pem"), "{refused}");
        ensure!(!self.guarded.is_rotated(LISTENER)?, "the first certificate is shown");
        set(ROTATED)?;
        ensure!(self.guarded.is_rotated(LISTENER)?, "the new certificate is shown");
        let shown = self.call(CONFIGS, &[&["--describe"], &of[..]].concat())?;
        ensure!(shown.contains(ROTATED) && !shown.contains("missing.pem"), "{shown}");
        Ok(())
    }

    /// Checks that Kafka's tool can log in as a user with the password of all.
    fn log_in_as(&self, user: &str) -> Result<()> {
        let admin = fs::read_to_string(self.guarded.dir.join("admin.properties"))?;
        let line = admin.lines().find(|line| line.starts_with("sasl.jaas.config=")).context("a login")?;
        let login = format!(
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username=\"{user}\" \
             password=\"{PASSWORD}\";"
        );
        fs::write(self.guarded.dir.join("tool.properties"), admin.replace(line, &login))?;
        self.acls(&[
            "--add",
            "--allow-principal",
            &format!("User:{user}"),
            "--operation",
            "Describe",
            "--topic",
            "secret",
        ])?;
        let shown = self.call_as("tool.properties", "kafka-topics", &["--list"])?;
        ensure!(shown.trim() == "secret", "it sees the one topic that it may describe: {shown}");
        self.acls(&["--remove", "--force", "--topic", "secret"]).map(drop)
    }
}
