//! The authorizer: permissions of principals, by an index over the access control lists.
//!
//! Deny wins over allow, however long the names are. Read, Write, Delete and Alter imply Describe, and AlterConfigs implies
//! DescribeConfigs, in allowing rules only. Super users may do everything. An operation without a matching rule is denied, unless
//! `allow.everyone.if.no.acl.found` is set and no rule concerns the resource. [`crate::acl::scan`] gives the same answers by a plain loop.
//!
//! ```text
//!  AclIndex ── add, remove ──▶ the tables of the principals concerned are rebuilt
//!     │ publish
//!     ▼
//!  Authorizer, immutable: shared with the event loops, which replace theirs when there is a new one
//! ```
//!
//! A question is a hash look-up of the principal. In its table, and in the table of all principals, follow a look-up of the name and one
//! for each length of a prefix. It takes no lock and allocates nothing, whatever the number of rules.

mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use mainstem_wire::Uuid;
use table::{Mask, Names, Table};

use crate::acl::{AclBinding, AclOperation, ResourceType, WILDCARD_PRINCIPAL};
use crate::{KafkaPrincipal, SecurityError};
use mainstem_lines::OneLine;

/// The configuration of authorisation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthorizerRules {
    /// `super.users`: principals that may do everything, as `User:NAME`.
    pub super_users: HashSet<String>,
    /// `allow.everyone.if.no.acl.found`: true if resources that no rule concerns are open.
    pub allow_everyone_if_no_acl_found: bool,
}

impl AuthorizerRules {
    /// Reads `super.users`: principals with semicolons between them.
    ///
    /// # Errors
    /// When one of them is no principal.
    pub fn super_users(text: &str) -> Result<HashSet<String>, SecurityError> {
        let users = text.split(';').map(str::trim).filter(|user| !user.is_empty());
        users.map(|user| user.parse::<KafkaPrincipal>().map(|principal| principal.to_string())).collect()
    }
}

/// The question whether a principal at an address may perform an operation on a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<'a> {
    /// `User:NAME`.
    pub principal: &'a str,
    /// The peer's address.
    pub host: IpAddr,
    /// The operation; never [`AclOperation::All`].
    pub operation: AclOperation,
    /// The kind of resource.
    pub resource_type: ResourceType,
    /// The resource's name.
    pub name: &'a str,
}

/// The answer, and its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Yes: super users may do everything.
    SuperUser,
    /// Yes: a rule allows it and none denies it.
    Allowed,
    /// No: a rule denies it.
    Denied,
    /// Yes: no rule concerns the resource, and such resources are open.
    DefaultAllow,
    /// No: no rule allows it.
    DefaultDeny,
}

impl Verdict {
    /// Returns true if the operation is allowed.
    pub const fn is_allowed(self) -> bool {
        matches!(self, Verdict::SuperUser | Verdict::Allowed | Verdict::DefaultAllow)
    }
}

/// The rules of a cluster, as far as they are known, and a table for each principal that has one.
#[derive(Debug, Clone, Default)]
pub struct AclIndex {
    rules: Arc<AuthorizerRules>,
    acls: BTreeMap<Uuid, AclBinding>,
    by_principal: BTreeMap<String, BTreeSet<Uuid>>,
    tables: HashMap<Arc<str>, Arc<Table>, SeedableRandomState>,
    /// Principals whose tables are old.
    stale: BTreeSet<String>,
}

impl AclIndex {
    /// No rule yet.
    pub fn new(rules: AuthorizerRules) -> AclIndex {
        AclIndex { rules: Arc::new(rules), ..AclIndex::default() }
    }

    /// As [`new`](Self::new), with hashes that are the same in each run, for benchmarks that count instructions. An attacker who knows the
    /// hashes can choose names that collide.
    pub fn with_hash_seed(rules: AuthorizerRules, seed: u64) -> AclIndex {
        let hashes = SeedableRandomState::with_seed(seed, SharedSeed::global_fixed());
        AclIndex { tables: HashMap::with_hasher(hashes), ..AclIndex::new(rules) }
    }

    /// Adds a rule. One of the same id is replaced.
    pub fn add(&mut self, id: Uuid, binding: AclBinding) {
        self.remove(id);
        self.stale.insert(binding.principal.clone());
        self.by_principal.entry(binding.principal.clone()).or_default().insert(id);
        self.acls.insert(id, binding);
    }

    /// Removes a rule, if there is one of this id.
    pub fn remove(&mut self, id: Uuid) {
        let Some(binding) = self.acls.remove(&id) else { return };
        if let Some(ids) = self.by_principal.get_mut(&binding.principal) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_principal.remove(&binding.principal);
            }
        }
        self.stale.insert(binding.principal);
    }

    /// Sets the configuration: `super.users` can be changed while running.
    pub fn configure(&mut self, rules: AuthorizerRules) {
        self.rules = Arc::new(rules);
    }

    /// The number of rules.
    pub fn len(&self) -> usize {
        self.acls.len()
    }

    /// Returns true if there is no rule.
    pub fn is_empty(&self) -> bool {
        self.acls.is_empty()
    }

    /// All rules.
    pub fn acls(&self) -> impl Iterator<Item = &AclBinding> + Clone {
        self.acls.values()
    }

    /// Rebuilds the tables of principals whose rules have changed, and returns the new authorizer. The time is proportional to their rules
    /// and to the number of principals; with `allow.everyone.if.no.acl.found` to all rules.
    pub fn publish(&mut self) -> Authorizer {
        let hashes = self.tables.hasher().clone();
        for principal in std::mem::take(&mut self.stale) {
            match self.by_principal.get(&principal) {
                Some(ids) => {
                    let bindings = ids.iter().filter_map(|id| self.acls.get(id));
                    self.tables
                        .insert(Arc::from(principal.as_str()), Arc::new(Table::new(bindings, &hashes)));
                }
                None => drop(self.tables.remove(principal.as_str())),
            }
        }
        let named = self
            .rules
            .allow_everyone_if_no_acl_found
            .then(|| Arc::new(Names::new(self.acls.values(), &hashes)));
        Authorizer {
            rules: Arc::clone(&self.rules),
            everybody: self.tables.get(WILDCARD_PRINCIPAL).cloned(),
            tables: self.tables.clone(),
            named,
        }
    }

    /// Asserts that rules and tables agree.
    pub fn check(&self) {
        let counted: usize = self.by_principal.values().map(BTreeSet::len).sum();
        assert_eq!(counted, self.acls.len(), "each rule is its principal's");
        for (principal, ids) in &self.by_principal {
            assert!(!ids.is_empty(), "{principal} has rules");
            assert!(ids.iter().all(|id| self.acls[id].principal == *principal), "{principal}'s own");
        }
        if self.stale.is_empty() {
            assert_eq!(self.tables.len(), self.by_principal.len(), "a table for each principal");
        }
    }
}

/// Answers questions by the rules of one moment.
#[derive(Debug, Clone, Default)]
pub struct Authorizer {
    rules: Arc<AuthorizerRules>,
    tables: HashMap<Arc<str>, Arc<Table>, SeedableRandomState>,
    everybody: Option<Arc<Table>>,
    /// The resources that rules concern; only if `allow.everyone.if.no.acl.found` is set.
    named: Option<Arc<Names>>,
}

impl Authorizer {
    /// Answers as [`crate::acl::scan::decide`] does.
    pub fn decide(&self, question: &Question<'_>) -> Verdict {
        if self.rules.super_users.contains(question.principal) {
            return Verdict::SuperUser;
        }
        let mut mask = Mask::default();
        for table in self.tables_of(question.principal) {
            mask |= table.mask(question.resource_type, question.name, question.host);
        }
        if mask.denies(question.operation) {
            Verdict::Denied
        } else if mask.allows(question.operation) {
            Verdict::Allowed
        } else if self.named.as_ref().is_some_and(|named| !named.has(question.resource_type, question.name)) {
            Verdict::DefaultAllow
        } else {
            Verdict::DefaultDeny
        }
    }

    /// Answers as [`crate::acl::scan::any_of_type`] does. Takes time in proportion to the principal's rules.
    pub fn any_of_type(
        &self,
        (principal, host): (&str, IpAddr),
        operation: AclOperation,
        resource_type: ResourceType,
    ) -> bool {
        let example = Question { principal, host, operation, resource_type, name: "hardcode" };
        if self.decide(&example).is_allowed() {
            return true;
        }
        let tables = || self.tables_of(principal);
        let wildcard =
            tables().fold(Mask::default(), |mask, table| mask | table.wildcard(resource_type, host));
        if wildcard.denies(operation) {
            return false;
        }
        let denies_prefix =
            |prefix: &str| tables().any(|table| table.prefix(resource_type, prefix, host).denies(operation));
        let denies_literal =
            |name: &str| tables().any(|table| table.literal(resource_type, name, host).denies(operation));
        let is_within_denied = |name: &str| {
            let ends = name.char_indices().map(|(at, character)| at + character.len_utf8());
            ends.into_iter().any(|end| denies_prefix(&name[..end]))
        };
        wildcard.names(operation)
            || tables().any(|table| {
                let mut literals = table.literals_naming(resource_type, operation, host);
                let mut prefixes = table.prefixes_naming(resource_type, operation, host);
                literals.any(|name| !denies_literal(name) && !is_within_denied(name))
                    || prefixes.any(|prefix| !is_within_denied(prefix))
            })
    }

    fn tables_of(&self, principal: &str) -> impl Iterator<Item = &Table> {
        let own =
            self.tables.get(principal).filter(|_| principal != WILDCARD_PRINCIPAL && principal.contains(':'));
        own.into_iter().chain(&self.everybody).map(Arc::as_ref)
    }
}

/// A line of Kafka's audit log (`kafka.authorizer.logger`). Names come from clients: they cannot break the line.
#[derive(Debug, Clone, Copy)]
pub struct AuditLine<'a> {
    /// The question.
    pub question: Question<'a>,
    /// The answer.
    pub verdict: Verdict,
    /// The rule that decided, if it was one.
    pub rule: Option<&'a AclBinding>,
    /// The API for which it was asked, as Kafka names it.
    pub request: &'a str,
    /// The number of times that the request named the resource.
    pub references: usize,
}

impl fmt::Display for AuditLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Question { principal, host, operation, resource_type, name } = self.question;
        let verdict = if self.verdict.is_allowed() { "Allowed" } else { "Denied" };
        write!(
            f,
            "Principal = {} is {verdict} operation = {operation} from host = {} on resource = {}:LITERAL:{} for \
             request = {} with resourceRefCount = {} based on rule ",
            OneLine(principal),
            host.to_canonical(),
            resource_type.name(),
            OneLine(name),
            self.request,
            self.references
        )?;
        match (self.rule, self.verdict) {
            (Some(rule), _) => write!(f, "MatchingAcl(acl={rule})"),
            (None, Verdict::SuperUser) => f.write_str("SuperUser"),
            (None, Verdict::DefaultAllow) => f.write_str("DefaultAllow"),
            (None, _) => f.write_str("DefaultDeny"),
        }
    }
}
