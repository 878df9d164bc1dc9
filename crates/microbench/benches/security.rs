//! Cost of an authorisation: one question with 10,000 rules on 1,000 principals, and with all of them on one.

#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::net::{IpAddr, Ipv4Addr};

use mainstem_microbench::{Case, Suite};
use mainstem_security::acl::{AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType};
use mainstem_security::{AclIndex, Authorizer, AuthorizerRules, Question};
use mainstem_wire::Uuid;

const RULES: u128 = 10_000;

/// A fixed seed, with which the same names collide in each run.
const HASH_SEED: u64 = 1;

fn main() {
    let mut suite = Suite::from_args("security");
    for (name, principals) in [("authorize_1000_principals", 1_000), ("authorize_1_principal", 1)] {
        let input = || authorizer(principals);
        suite.measure(Case { name, calls: 1_000 }, input, |authorizer| {
            authorizer.decide(&Question {
                principal: "User:team-0-service",
                host: IpAddr::V4(Ipv4Addr::LOCALHOST),
                operation: AclOperation::Read,
                resource_type: ResourceType::Topic,
                name: "team.orders.created.v1",
            })
        });
    }
}

/// One rule in ten is a prefix, of eight lengths; one question has to look at all of them.
fn authorizer(principals: u128) -> Authorizer {
    let mut index = AclIndex::with_hash_seed(AuthorizerRules::default(), HASH_SEED);
    for number in 0..RULES {
        let is_prefix = (number / principals).is_multiple_of(10);
        let tail = "x".repeat(usize::try_from(number % 8).unwrap());
        index.add(
            Uuid::from_u128(number + 1),
            AclBinding {
                resource_type: ResourceType::Topic,
                name: if is_prefix { format!("team.{tail}{number}") } else { format!("team.topic.{number}") },
                pattern_type: if is_prefix { PatternType::Prefixed } else { PatternType::Literal },
                principal: format!("User:team-{}-service", number % principals),
                host: "*".to_owned(),
                operation: AclOperation::Read,
                permission: AclPermissionType::Allow,
            },
        );
    }
    index.publish()
}
