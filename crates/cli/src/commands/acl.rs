//! `mainstem acl`: rules about who may do what (ACLs).

mod options;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use mainstem_client::acl::{
    AclBinding, AclOperation, AclPermissionType, PatternFilter, PatternType, ResourceType, scan,
};
use mainstem_client::{AclFilter, Admin, ConfigResource};
use mainstem_security::{AuthorizerRules, Question, Verdict};
use serde_json::{Value, json};

use self::options::{Resources, any_principal, operation, pattern, permission, principal};
use crate::output::{counted, print, print_json, print_line, shown, table};
use crate::target::Target;

const SUPER_USERS: &str = "super.users";
const ALLOW_EVERYONE: &str = "allow.everyone.if.no.acl.found";

/// Arguments of `acl`.
#[derive(Debug, Args)]
pub(crate) struct AclArguments {
    #[command(subcommand)]
    command: AclCommand,
}

#[derive(Debug, Subcommand)]
enum AclCommand {
    /// List rules.
    List(Chosen),
    /// Add rules.
    Add(Add),
    /// Remove the chosen rules. For resources named on the command line, these are the rules for the whole name
    /// (`--pattern literal`), unless --pattern asks for others.
    Remove(Chosen),
    /// Say whether a user may do something, and by which rule, super users included. The broker is asked for
    /// `super.users` and `allow.everyone.if.no.acl.found`, which needs DescribeConfigs of the cluster.
    Check(Check),
}

/// Arguments that choose rules.
#[derive(Debug, Args)]
struct Chosen {
    #[command(flatten)]
    resources: Resources,
    /// The user that the rules are about: NAME, User:NAME, or * for the rules about everybody; TYPE:NAME for rules about principals of
    /// another type.
    #[arg(long, value_name = "USER", value_parser = any_principal)]
    user: Option<String>,
    /// The operation that the rules are about.
    #[arg(long, value_name = "OPERATION", value_parser = operation)]
    operation: Option<AclOperation>,
    /// The pattern type of the rules: literal; prefixed; any; or match, for all rules that concern a resource of the
    /// name, also by prefix or as *.
    #[arg(long, value_name = "TYPE", value_parser = pattern)]
    pattern: Option<PatternFilter>,
    /// The address in the rules, or * for the rules about all addresses.
    #[arg(long, value_name = "ADDRESS")]
    host: Option<String>,
    /// Only rules that allow, or that deny.
    #[arg(long, value_name = "allow|deny", value_parser = permission)]
    permission: Option<AclPermissionType>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `acl add`.
#[derive(Debug, Args)]
#[group(id = "who", required = true, multiple = true, args = ["allow", "deny"])]
struct Add {
    /// A user who is allowed: NAME, User:NAME, or * for everybody; may be given several times.
    #[arg(long, value_name = "USER", value_parser = principal)]
    allow: Vec<String>,
    /// A user who is forbidden, whatever other rules allow; may be given several times.
    #[arg(long, value_name = "USER", value_parser = principal)]
    deny: Vec<String>,
    /// Operations, with commas between them: read, write, create, delete, alter, describe, alter-configs,
    /// describe-configs, cluster-action, idempotent-write, all.
    #[arg(long, required = true, value_delimiter = ',', value_name = "OPERATION", value_parser = operation)]
    operation: Vec<AclOperation>,
    #[command(flatten)]
    resources: Resources,
    /// The names are the beginnings of names.
    #[arg(long)]
    prefix: bool,
    /// The address from which the user comes; * is any.
    #[arg(long, default_value = "*", value_name = "ADDRESS")]
    host: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `acl check`.
#[derive(Debug, Args)]
struct Check {
    /// The user: NAME or User:NAME.
    #[arg(value_name = "USER", value_parser = principal)]
    user: String,
    /// The operation.
    #[arg(value_name = "OPERATION", value_parser = operation)]
    operation: AclOperation,
    #[command(flatten)]
    resources: Resources,
    /// The address from which the user comes.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: std::net::IpAddr,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Runs the command.
pub(crate) async fn run(arguments: &AclArguments) -> Result<()> {
    match &arguments.command {
        AclCommand::List(chosen) => list(chosen).await,
        AclCommand::Add(add) => add_rules(add).await,
        AclCommand::Remove(chosen) => remove(chosen).await,
        AclCommand::Check(asked) => check(asked).await,
    }
}

impl Chosen {
    /// One for each resource that is named, or one for all.
    fn filters(&self) -> Vec<AclFilter> {
        let common = AclFilter {
            pattern: self.pattern,
            principal: self.user.clone(),
            host: self.host.clone(),
            operation: self.operation,
            permission: self.permission,
            ..AclFilter::default()
        };
        let named = self.resources.all();
        let of = |(resource_type, name): &(_, String)| AclFilter {
            resource_type: Some(*resource_type),
            name: Some(name.clone()),
            ..common.clone()
        };
        if named.is_empty() { vec![common] } else { named.iter().map(of).collect() }
    }

    fn chooses_all(&self) -> bool {
        let chooses_by_pattern = self.pattern.is_some_and(|pattern| pattern != PatternFilter::Any);
        let chooses_entries = self.host.is_some() || self.permission.is_some() || self.operation.is_some();
        self.user.is_none() && !chooses_entries && !chooses_by_pattern && self.resources.all().is_empty()
    }

    /// Filters of the rules to remove. For named resources these are the literal rules unless another pattern is asked for, as in
    /// `kafka-acls`.
    fn filters_to_remove(&self) -> Vec<AclFilter> {
        let literal = PatternFilter::Only(PatternType::Literal);
        let of = |filter: AclFilter| AclFilter {
            pattern: filter.pattern.or_else(|| filter.name.is_some().then_some(literal)),
            ..filter
        };
        self.filters().into_iter().map(of).collect()
    }
}

async fn found(admin: &Admin, chosen: &Chosen) -> Result<Vec<AclBinding>> {
    let mut rules = Vec::new();
    for filter in chosen.filters() {
        rules.extend(admin.acls(&filter).await?);
    }
    rules.sort();
    Ok(rules)
}

async fn list(chosen: &Chosen) -> Result<()> {
    let rules = found(&chosen.target.connect().await?, chosen).await?;
    if chosen.json {
        return print_json(&rules.iter().map(to_json).collect());
    }
    match rules.is_empty() {
        true => print("there are no such rules"),
        false => print(&table(
            &["RESOURCE", "NAME", "USER", "", "OPERATION", "HOST"],
            rules.iter().map(row).collect(),
        )),
    }
}

async fn add_rules(add: &Add) -> Result<()> {
    let resources = add.resources.all();
    ensure!(
        !resources.is_empty(),
        "say what the rules are about: --topic, --group, --transactional-id or --cluster"
    );
    let is_everything =
        |(kind, name): &&(ResourceType, String)| *kind != ResourceType::Cluster && name == "*";
    if let Some((kind, _)) = resources.iter().find(is_everything).filter(|_| add.prefix) {
        bail!(
            "with --prefix, * is the beginning of a name: the rules would concern a {} whose name begins with an asterisk; leave out \
             --prefix for all of them",
            kind.name().to_lowercase()
        );
    }
    ensure!(
        !(add.prefix && add.resources.has_cluster()),
        "with --prefix, rules are about the beginnings of names, and the cluster has one name; leave out --prefix, or --cluster"
    );
    let allowed = add.allow.iter().map(|user| (user, AclPermissionType::Allow));
    let denied = add.deny.iter().map(|user| (user, AclPermissionType::Deny));
    let pattern_type = if add.prefix { PatternType::Prefixed } else { PatternType::Literal };
    let mut rules = Vec::new();
    for (principal, permission) in allowed.chain(denied) {
        for (resource_type, name) in &resources {
            rules.extend(add.operation.iter().map(|operation| AclBinding {
                resource_type: *resource_type,
                name: name.clone(),
                pattern_type,
                principal: principal.clone(),
                host: add.host.clone(),
                operation: *operation,
                permission,
            }));
        }
    }
    add.target.connect().await?.create_acls(&rules).await?;
    match add.json {
        true => print_json(&rules.iter().map(to_json).collect()),
        false => print(&added(&rules)),
    }
}

/// The rules that were added, a sentence each.
fn added(rules: &[AclBinding]) -> String {
    let count = counted(rules.len() as u64, "rule");
    let sentences = rules.iter().map(|rule| format!("\n  {}", shown(&rule.sentence())));
    format!("added {count}:{}", sentences.collect::<String>())
}

async fn remove(chosen: &Chosen) -> Result<()> {
    ensure!(
        !chosen.chooses_all(),
        "say which rules to remove: --user, --operation, --host, --permission, --topic, --group, ..."
    );
    let admin = chosen.target.connect().await?;
    let mut removed = 0;
    for filter in chosen.filters_to_remove() {
        removed += admin.delete_acls(&filter).await?;
    }
    match chosen.json {
        true => print_json(&json!({ "removed": removed })),
        false => print_line(&format!("removed {}", counted(removed as u64, "rule"))),
    }
}

async fn check(asked: &Check) -> Result<()> {
    let resources = asked.resources.all();
    let [(resource_type, name)] = resources.as_slice() else {
        bail!("say which resource: one of --topic, --group, --transactional-id and --cluster");
    };
    let admin = asked.target.connect().await?;
    let rules = admin.acls(&AclFilter::default()).await?;
    let configured = configured_rules(&admin).await?;
    let question = Question {
        principal: &asked.user,
        host: asked.host,
        operation: asked.operation,
        resource_type: *resource_type,
        name,
    };
    let (verdict, rule) = scan::decide(&configured, &rules, &question);
    if asked.json {
        return print_json(&json!({
            "allowed": verdict.is_allowed(),
            "super_user": verdict == Verdict::SuperUser,
            "rule": rule.map(to_json),
        }));
    }
    let why = match (verdict, rule) {
        (_, Some(rule)) => format!("by the rule that says: {}", rule.sentence()),
        (Verdict::SuperUser, None) => format!("{} is one of {SUPER_USERS}", asked.user),
        (Verdict::DefaultAllow, None) => format!("no rule concerns it, and {ALLOW_EVERYONE} is true"),
        (_, None) => "no rule allows it".to_owned(),
    };
    print_line(&format!("{}: {}", if verdict.is_allowed() { "allowed" } else { "denied" }, shown(&why)))
}

/// The settings of a broker that decide beside the rules: super users, and access without a rule.
async fn configured_rules(admin: &Admin) -> Result<AuthorizerRules> {
    let node = *admin.nodes().await?.first().context("the cluster names no broker")?;
    let configs = admin.configs(&ConfigResource::Broker(node)).await.with_context(|| {
        format!("{SUPER_USERS} and {ALLOW_EVERYONE} decide beside the rules, and cannot be read")
    })?;
    let value = |key: &str| {
        let of_key = configs.iter().find(|config| config.name == key);
        of_key.and_then(|config| config.value.as_deref()).unwrap_or_default()
    };
    Ok(AuthorizerRules {
        super_users: AuthorizerRules::super_users(value(SUPER_USERS))?,
        allow_everyone_if_no_acl_found: value(ALLOW_EVERYONE) == "true",
    })
}

fn row(rule: &AclBinding) -> Vec<String> {
    let star = if rule.pattern_type == PatternType::Prefixed { "..." } else { "" };
    vec![
        rule.resource_type.name().to_owned(),
        format!("{}{star}", rule.name),
        rule.principal.clone(),
        rule.permission.name().to_lowercase(),
        rule.operation.name().to_owned(),
        rule.host.clone(),
    ]
}

fn to_json(rule: &AclBinding) -> Value {
    json!({
        "resource_type": rule.resource_type.name(),
        "name": rule.name,
        "pattern_type": rule.pattern_type.name(),
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation.name(),
        "permission": rule.permission.name(),
    })
}
