//! Access control entries as metadata: their records, and their place in the image.

use std::borrow::Cow;

use mainstem_security::acl::{AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType};
use mainstem_wire::Uuid;
use mainstem_wire::messages::access_control_entry_record::AccessControlEntryRecord;
use mainstem_wire::messages::remove_access_control_entry_record::RemoveAccessControlEntryRecord;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::Inconsistency;
use super::image::{MetadataChange, MetadataImage};

/// The record that makes an entry.
pub(super) fn record(id: Uuid, binding: &AclBinding) -> MetadataRecord<'static> {
    MetadataRecord::AccessControlEntryRecord(Box::new(AccessControlEntryRecord {
        id,
        resource_type: binding.resource_type.code(),
        resource_name: Cow::Owned(binding.name.clone()),
        pattern_type: binding.pattern_type.code(),
        principal: Cow::Owned(binding.principal.clone()),
        host: Cow::Owned(binding.host.clone()),
        operation: binding.operation.code(),
        permission_type: binding.permission.code(),
        ..AccessControlEntryRecord::default()
    }))
}

/// The record that removes an entry.
pub(super) fn removal(id: Uuid) -> MetadataRecord<'static> {
    MetadataRecord::RemoveAccessControlEntryRecord(Box::new(RemoveAccessControlEntryRecord {
        id,
        ..RemoveAccessControlEntryRecord::default()
    }))
}

/// The entry of a record. An unknown code is an error: a rule must not be ignored.
fn binding_of(record: &AccessControlEntryRecord<'_>) -> Result<AclBinding, Inconsistency> {
    fn known<T>(what: &'static str, code: i8, value: Option<T>) -> Result<T, Inconsistency> {
        value.ok_or(Inconsistency::AclCode { what, code })
    }
    let (resource, pattern) = (record.resource_type, record.pattern_type);
    let (operation, permission) = (record.operation, record.permission_type);
    Ok(AclBinding {
        resource_type: known("resource type", resource, ResourceType::from_code(resource))?,
        name: record.resource_name.to_string(),
        pattern_type: known("pattern type", pattern, PatternType::from_code(pattern))?,
        principal: record.principal.to_string(),
        host: record.host.to_string(),
        operation: known("operation", operation, AclOperation::from_code(operation))?,
        permission: known("permission type", permission, AclPermissionType::from_code(permission))?,
    })
}

/// Applying, and reading.
impl MetadataImage {
    pub(super) fn add_acl(
        &mut self,
        record: &AccessControlEntryRecord<'_>,
    ) -> Result<MetadataChange, Inconsistency> {
        let id = record.id;
        let binding = binding_of(record)?;
        if self.acls.contains_key(&id) {
            return Err(Inconsistency::AclExists(id));
        }
        self.acls.insert(id, binding);
        Ok(MetadataChange::AclChanged { id })
    }

    pub(super) fn remove_acl(&mut self, id: Uuid) -> Result<MetadataChange, Inconsistency> {
        self.acls.remove(&id).ok_or(Inconsistency::UnknownAcl(id))?;
        Ok(MetadataChange::AclChanged { id })
    }

    /// The access control entries, by id.
    pub fn acls(&self) -> impl Iterator<Item = (Uuid, &AclBinding)> + Clone {
        self.acls.iter().map(|(id, binding)| (*id, binding))
    }

    /// An access control entry.
    pub fn acl(&self, id: Uuid) -> Option<&AclBinding> {
        self.acls.get(&id)
    }
}
