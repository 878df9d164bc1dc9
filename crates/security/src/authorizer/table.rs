//! The rules of one principal, by their resources.

use std::array;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::ops::{BitOr, BitOrAssign};

use foldhash::fast::SeedableRandomState;

use crate::acl::{
    AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType, WILDCARD, bit,
    implied_operations, named_operations, parse_host,
};

/// The operations that rules allow or deny on one resource, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mask {
    /// Operations that a rule allows by name.
    named: u16,
    /// Operations that another allowed operation implies.
    implied: u16,
    denied: u16,
}

impl Mask {
    fn of(binding: &AclBinding) -> Mask {
        let named = named_operations(binding.operation);
        match binding.permission {
            AclPermissionType::Allow => {
                Mask { named, implied: implied_operations(binding.operation), denied: 0 }
            }
            AclPermissionType::Deny => Mask { denied: named, ..Mask::default() },
        }
    }

    pub(super) fn denies(self, operation: AclOperation) -> bool {
        self.denied & bit(operation) != 0
    }

    pub(super) fn allows(self, operation: AclOperation) -> bool {
        (self.named | self.implied) & bit(operation) != 0
    }

    /// Returns true if a rule allows the operation by name.
    pub(super) fn names(self, operation: AclOperation) -> bool {
        self.named & bit(operation) != 0
    }
}

impl BitOr for Mask {
    type Output = Mask;

    fn bitor(self, other: Mask) -> Mask {
        Mask {
            named: self.named | other.named,
            implied: self.implied | other.implied,
            denied: self.denied | other.denied,
        }
    }
}

impl BitOrAssign for Mask {
    fn bitor_assign(&mut self, other: Mask) {
        *self = *self | other;
    }
}

/// The rules for one name: those for all hosts together, and those for single hosts.
#[derive(Debug, Clone, Default)]
struct Rules {
    everywhere: Mask,
    /// By address; few have any.
    by_host: Vec<(IpAddr, Mask)>,
}

impl Rules {
    fn add(&mut self, binding: &AclBinding) {
        let mask = Mask::of(binding);
        if binding.host == WILDCARD {
            self.everywhere |= mask;
        } else if let Some(host) = parse_host(&binding.host) {
            match self.by_host.iter_mut().find(|(known, _)| *known == host) {
                Some((_, known)) => *known |= mask,
                None => self.by_host.push((host, mask)),
            }
        }
    }

    fn mask(&self, host: IpAddr) -> Mask {
        if self.by_host.is_empty() {
            return self.everywhere;
        }
        let host = host.to_canonical();
        let here = self.by_host.iter().filter(|(known, _)| *known == host);
        here.fold(self.everywhere, |mask, (_, own)| mask | *own)
    }
}

type RulesByName = HashMap<Box<str>, Rules, SeedableRandomState>;

/// The rules for one kind of resource.
#[derive(Debug, Clone)]
struct TypeTable {
    /// Those for every name.
    wildcard: Rules,
    literals: RulesByName,
    prefixes: RulesByName,
    /// The lengths that prefixes have, in bytes, rising.
    prefix_lengths: Vec<usize>,
}

impl TypeTable {
    fn new(hashes: &SeedableRandomState) -> TypeTable {
        TypeTable {
            wildcard: Rules::default(),
            literals: HashMap::with_hasher(hashes.clone()),
            prefixes: HashMap::with_hasher(hashes.clone()),
            prefix_lengths: Vec::new(),
        }
    }

    fn add(&mut self, binding: &AclBinding) {
        let rules = match binding.pattern_type {
            PatternType::Literal if binding.name == WILDCARD => &mut self.wildcard,
            PatternType::Literal => self.literals.entry(binding.name.as_str().into()).or_default(),
            PatternType::Prefixed => {
                if let Err(place) = self.prefix_lengths.binary_search(&binding.name.len()) {
                    self.prefix_lengths.insert(place, binding.name.len());
                }
                self.prefixes.entry(binding.name.as_str().into()).or_default()
            }
        };
        rules.add(binding);
    }

    fn mask(&self, name: &str, host: IpAddr) -> Mask {
        let mut mask = self.wildcard.mask(host);
        if let Some(rules) = self.literals.get(name) {
            mask |= rules.mask(host);
        }
        // A prefix of a name ends between two of its characters, or it is none.
        for prefix in self.prefix_lengths.iter().map_while(|length| until(name, *length)).flatten() {
            if let Some(rules) = self.prefixes.get(prefix) {
                mask |= rules.mask(host);
            }
        }
        mask
    }
}

/// The first bytes of a name: the outer None if it is shorter, the inner one if they are no UTF-8.
fn until(name: &str, length: usize) -> Option<Option<&str>> {
    (length <= name.len()).then(|| name.get(..length))
}

/// The rules of one principal.
#[derive(Debug, Clone)]
pub(super) struct Table {
    types: [TypeTable; TYPES],
}

/// The number of kinds of resources.
const TYPES: usize = ResourceType::ALL.len();

fn index(resource_type: ResourceType) -> usize {
    resource_type as usize - ResourceType::Topic as usize
}

impl Table {
    pub(super) fn new<'a>(
        bindings: impl Iterator<Item = &'a AclBinding>,
        hashes: &SeedableRandomState,
    ) -> Table {
        let mut table = Table { types: array::from_fn(|_| TypeTable::new(hashes)) };
        for binding in bindings {
            table.types[index(binding.resource_type)].add(binding);
        }
        table
    }

    /// Returns the operations that rules allow or deny on a resource.
    pub(super) fn mask(&self, resource_type: ResourceType, name: &str, host: IpAddr) -> Mask {
        self.types[index(resource_type)].mask(name, host)
    }

    /// Returns the operations that wildcard rules allow or deny.
    pub(super) fn wildcard(&self, resource_type: ResourceType, host: IpAddr) -> Mask {
        self.types[index(resource_type)].wildcard.mask(host)
    }

    /// Returns the operations that literal rules of this name allow or deny.
    pub(super) fn literal(&self, resource_type: ResourceType, name: &str, host: IpAddr) -> Mask {
        let rules = self.types[index(resource_type)].literals.get(name);
        rules.map(|rules| rules.mask(host)).unwrap_or_default()
    }

    /// Returns the operations that prefixed rules of this name allow or deny.
    pub(super) fn prefix(&self, resource_type: ResourceType, prefix: &str, host: IpAddr) -> Mask {
        let rules = self.types[index(resource_type)].prefixes.get(prefix);
        rules.map(|rules| rules.mask(host)).unwrap_or_default()
    }

    /// The names of literal rules that allow the operation by name.
    pub(super) fn literals_naming(
        &self,
        resource_type: ResourceType,
        operation: AclOperation,
        host: IpAddr,
    ) -> impl Iterator<Item = &str> {
        naming(&self.types[index(resource_type)].literals, operation, host)
    }

    /// The names of prefixed rules that allow the operation by name.
    pub(super) fn prefixes_naming(
        &self,
        resource_type: ResourceType,
        operation: AclOperation,
        host: IpAddr,
    ) -> impl Iterator<Item = &str> {
        naming(&self.types[index(resource_type)].prefixes, operation, host)
    }
}

fn naming(rules: &RulesByName, operation: AclOperation, host: IpAddr) -> impl Iterator<Item = &str> {
    let naming = rules.iter().filter(move |(_, rules)| rules.mask(host).names(operation));
    naming.map(|(name, _)| name.as_ref())
}

/// The names that any rule concerns, of all principals.
#[derive(Debug, Clone)]
pub(super) struct Names {
    types: [TypeNames; TYPES],
}

#[derive(Debug, Clone)]
struct TypeNames {
    all: bool,
    literals: HashSet<Box<str>, SeedableRandomState>,
    prefixes: HashSet<Box<str>, SeedableRandomState>,
    prefix_lengths: Vec<usize>,
}

impl TypeNames {
    fn new(hashes: &SeedableRandomState) -> TypeNames {
        let (literals, prefixes) =
            (HashSet::with_hasher(hashes.clone()), HashSet::with_hasher(hashes.clone()));
        TypeNames { all: false, literals, prefixes, prefix_lengths: Vec::new() }
    }
}

impl Names {
    pub(super) fn new<'a>(
        bindings: impl Iterator<Item = &'a AclBinding>,
        hashes: &SeedableRandomState,
    ) -> Names {
        let mut names = Names { types: array::from_fn(|_| TypeNames::new(hashes)) };
        for binding in bindings {
            let own = &mut names.types[index(binding.resource_type)];
            match binding.pattern_type {
                PatternType::Literal => {
                    own.all |= binding.name == WILDCARD;
                    own.literals.insert(binding.name.as_str().into());
                }
                PatternType::Prefixed => {
                    own.prefixes.insert(binding.name.as_str().into());
                    own.prefix_lengths.push(binding.name.len());
                }
            }
        }
        for own in &mut names.types {
            own.prefix_lengths.sort_unstable();
            own.prefix_lengths.dedup();
        }
        names
    }

    /// Returns true if a rule concerns the resource.
    pub(super) fn has(&self, resource_type: ResourceType, name: &str) -> bool {
        let own = &self.types[index(resource_type)];
        let mut prefixes = own.prefix_lengths.iter().map_while(|length| until(name, *length)).flatten();
        own.all || own.literals.contains(name) || prefixes.any(|prefix| own.prefixes.contains(prefix))
    }
}
