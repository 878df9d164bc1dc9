//! Authorization: the rules of the metadata, as every connection uses them, and a log of denials.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mainstem_controller::MetadataImage;
use mainstem_lines::{Line, LineBudget};
use mainstem_security::acl::{AclOperation, CLUSTER_NAME, ResourceType, scan};
use mainstem_security::{AclIndex, AuditLine, Authorizer, AuthorizerRules, KafkaPrincipal, Question};
use mainstem_wire::Uuid;
use parking_lot::{Mutex, RwLock};

use crate::context::{Operation, RequestContext, Resource};
use crate::folded_lines::FoldedLines;
use mainstem_runtime::clock::Clock;

/// The number of different denials that are logged in a second; others are only counted. A denied client may ask very often, and
/// it takes time in proportion to all rules to find the one that denied.
const LOGGED_PER_SECOND: u32 = 20;

/// The rules, and the decisions by them.
pub struct Authorization {
    rules: AuthorizerRules,
    index: Mutex<AclIndex>,
    current: RwLock<Arc<Authorizer>>,
    /// The number of changes of the rules.
    version: AtomicU64,
    allowed: AtomicU64,
    denied: AtomicU64,
    lines: LineBudget,
    folded: FoldedLines,
    clock: Clock,
}

impl Authorization {
    /// Authorization without rules: super users may do everything, others nothing, unless that is configured.
    pub fn new(rules: AuthorizerRules, clock: Clock) -> Authorization {
        let mut index = AclIndex::new(rules.clone());
        let current = RwLock::new(Arc::new(index.publish()));
        let (lines, folded) = (LineBudget::new(LOGGED_PER_SECOND), FoldedLines::default());
        let (allowed, denied, index) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(index));
        let version = AtomicU64::new(0);
        Authorization { rules, index, current, version, allowed, denied, lines, folded, clock }
    }

    /// Takes on exactly the rules of the metadata. A node of a cluster first loads the rules that it had kept, and then those of
    /// the present metadata, whose changes it has missed while it was away.
    pub fn load(&self, image: &MetadataImage) {
        let mut index = self.index.lock();
        *index = AclIndex::new(self.rules.clone());
        image.acls().for_each(|(id, binding)| index.add(id, binding.clone()));
        self.publish(&mut index);
    }

    /// Takes on changed rules.
    pub fn changed(&self, image: &MetadataImage, ids: impl Iterator<Item = Uuid>) {
        let mut index = self.index.lock();
        for id in ids {
            match image.acl(id) {
                Some(binding) => index.add(id, binding.clone()),
                None => index.remove(id),
            }
        }
        self.publish(&mut index);
    }

    fn publish(&self, index: &mut AclIndex) {
        *self.current.write() = Arc::new(index.publish());
        self.version.fetch_add(1, Ordering::Release);
    }

    /// A number that changes with the rules: a request that was allowed before may be denied then.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The number of requests that were allowed.
    pub fn allowed(&self) -> u64 {
        self.allowed.load(Ordering::Relaxed)
    }

    /// The number of rules for all principals and resources.
    pub fn rules_count(&self) -> usize {
        self.index.lock().len()
    }

    /// The number of denials.
    pub fn denied(&self) -> u64 {
        self.denied.load(Ordering::Relaxed)
    }

    /// Returns true if a request may do this; otherwise logs the denial.
    pub fn allows(&self, context: &RequestContext, operation: Operation, resource: Resource<'_>) -> bool {
        let question = question(context, operation, resource);
        let verdict = self.current.read().decide(&question);
        if verdict.is_allowed() {
            self.allowed.fetch_add(1, Ordering::Relaxed);
        } else {
            self.denied.fetch_add(1, Ordering::Relaxed);
            self.log(context, question);
        }
        verdict.is_allowed()
    }

    /// The same without a log line, for a list that only leaves out denied resources.
    pub fn permits(&self, context: &RequestContext, operation: Operation, resource: Resource<'_>) -> bool {
        self.current.read().decide(&question(context, operation, resource)).is_allowed()
    }

    /// Returns true if an HTTP client may describe the cluster.
    pub fn may_describe_cluster(&self, principal: &KafkaPrincipal, host: IpAddr) -> bool {
        let question = Question {
            principal: &principal.to_string(),
            host,
            operation: AclOperation::Describe,
            resource_type: ResourceType::Cluster,
            name: CLUSTER_NAME,
        };
        self.current.read().decide(&question).is_allowed()
    }

    /// Returns true if a request may write to any topic (KIP-679).
    pub fn permits_any_topic(&self, context: &RequestContext) -> bool {
        let connection = &context.connection;
        let who = (&*connection.principal, connection.peer.ip());
        self.current.read().any_of_type(who, AclOperation::Write, ResourceType::Topic)
    }

    /// Logs the denials that were repeated in the last minute, with their number. To be called again and again.
    pub fn log_repeated(&self) {
        for (line, repeated) in self.repeated(self.clock.instant()) {
            tracing::info!(target: "kafka.authorizer.logger", repeated, "{line}");
        }
    }

    /// The lines of denials that were repeated for a minute, with their number. Counting starts again.
    pub fn repeated(&self, now: Instant) -> Vec<(String, u64)> {
        self.folded.due(now)
    }

    /// Logs a denial; one that is like another one of the last minute is counted.
    fn log(&self, context: &RequestContext, question: Question<'_>) {
        let Question { principal, host, operation, resource_type, name } = question;
        let (operation, resource_type) = (operation.code(), resource_type.code());
        let key = self.folded.key((principal, host, operation, resource_type, name, context.api as i16));
        if self.folded.is_repeated(key) {
            return;
        }
        let Line::Write { left_out } = self.lines.next(self.clock.instant()) else { return };
        if left_out > 0 {
            tracing::info!(target: "kafka.authorizer.logger", left_out, "further denials are not shown");
        }
        let index = self.index.lock();
        let (verdict, rule) = scan::decide(&self.rules, index.acls(), &question);
        let line = AuditLine { question, verdict, rule, request: context.api.name(), references: 1 };
        let line = line.to_string();
        drop(index);
        tracing::info!(target: "kafka.authorizer.logger", "{line}");
        self.folded.remember(key, line, self.clock.instant());
    }
}

fn question<'a>(context: &'a RequestContext, operation: Operation, resource: Resource<'a>) -> Question<'a> {
    let (resource_type, name) = resource.as_acl();
    let host: IpAddr = context.connection.peer.ip();
    Question {
        principal: &context.connection.principal,
        host,
        operation: operation.as_acl(),
        resource_type,
        name,
    }
}
