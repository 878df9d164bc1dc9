//! Check of metadata that Apache Kafka wrote: a start refuses what this release cannot obey.

use mainstem_config::BrokerConfig;
use mainstem_controller::features::{METADATA_VERSION, METADATA_VERSION_RAISED_FROM};
use mainstem_controller::{MetadataImage, NodeView};

use super::ControllerError;

/// Refuses metadata of a newer or a much older release, of several nodes where this one is alone, or that asks for protection,
/// unless that is accepted.
pub(crate) fn check(
    image: &MetadataImage,
    view: &NodeView,
    config: &BrokerConfig,
    accept_unprotected: bool,
) -> Result<(), ControllerError> {
    check_features(image, view)?;
    let elsewhere = image.replicated_elsewhere(config.node_id).filter(|_| config.quorum.is_none());
    if let Some((topic, replicas)) = elsewhere {
        return Err(ControllerError::Replicated { topic: topic.to_owned(), replicas: replicas.to_vec() });
    }
    let has_sasl = has_sasl(config);
    let asks_for = image.protection(has_sasl, config.authorizer.is_some());
    if !asks_for.is_empty() && !accept_unprotected {
        return Err(ControllerError::Unprotected { records: asks_for.join(", ") });
    }
    if !asks_for.is_empty() {
        tracing::warn!(
            "the metadata has {}, which protect nothing here: that was accepted",
            asks_for.join(", ")
        );
    }
    if let Some(level) = image.feature(METADATA_VERSION.name).filter(|level| *level < METADATA_VERSION.max) {
        tracing::warn!(
            "metadata.version is raised from {level} to {}: releases of Kafka before 4.3 cannot take this directory \
             back",
            METADATA_VERSION.max
        );
    }
    Ok(())
}

/// Refuses metadata of a newer or a much older release.
pub(crate) fn check_features(image: &MetadataImage, view: &NodeView) -> Result<(), ControllerError> {
    let Some((name, level)) = image.unsupported_feature(view) else { return Ok(()) };
    let is_old = name == METADATA_VERSION.name && level < METADATA_VERSION_RAISED_FROM;
    Err(match is_old {
        true => ControllerError::OldMetadata { level },
        false => ControllerError::Feature { name: name.to_owned(), level },
    })
}

/// Refuses users that no listener would ask for, unless that is accepted.
pub(crate) fn check_users(
    users: usize,
    config: &BrokerConfig,
    accept_unprotected: bool,
) -> Result<(), ControllerError> {
    if users == 0 || has_sasl(config) || accept_unprotected {
        return Ok(());
    }
    Err(ControllerError::Unprotected {
        records: format!("{users} SCRAM credentials of users (bootstrap.checkpoint)"),
    })
}

/// Returns true if any listener, or the nodes among themselves, use SASL.
fn has_sasl(config: &BrokerConfig) -> bool {
    config.sasl_listeners.iter().any(Option::is_some)
        || config.nodes.as_ref().is_some_and(|nodes| nodes.sasl.is_some())
}
