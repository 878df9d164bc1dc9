//! Secrets that the tool does not print: values of sensitive settings, and credentials of users in records of the metadata.

use std::borrow::Cow;

use mainstem_broker::config::ConfigKey;
use mainstem_broker::config::table::find_broker;
use mainstem_wire::metadata_frame::MetadataRecord;

/// The text in place of a secret.
pub(crate) const HIDDEN: &str = "[hidden]";

/// Kafka's number of the resource type "broker".
const BROKER: i8 = 4;

/// Returns true if a broker's setting is a secret. An unknown name may belong to a plug-in, and counts as one, as in Kafka.
pub(crate) fn is_sensitive(broker_key: &str) -> bool {
    find_broker(broker_key).is_none_or(ConfigKey::is_sensitive)
}

/// The value of a record as it may be printed. In a record of the metadata log, salts and keys of SCRAM users and
/// sensitive settings of brokers are replaced, wherever the file lies. With `of_metadata` the file is one of the
/// metadata log: there a value that cannot be read is hidden as a whole, as it may have a secret anywhere.
pub(crate) fn shown_value(value: &[u8], of_metadata: bool) -> Cow<'_, [u8]> {
    match MetadataRecord::decode(value) {
        Ok((record, version)) => match masked(record) {
            Some(record) => encoded(&record, version),
            None => value.into(),
        },
        Err(_) if of_metadata => HIDDEN.as_bytes().into(),
        Err(_) => value.into(),
    }
}

/// The record without its secrets; none if it has no secret.
fn masked(record: MetadataRecord<'_>) -> Option<MetadataRecord<'_>> {
    let hidden = || HIDDEN.as_bytes().into();
    match record {
        MetadataRecord::UserScramCredentialRecord(mut credential) => {
            credential.salt = hidden();
            credential.stored_key = hidden();
            credential.server_key = hidden();
            Some(MetadataRecord::UserScramCredentialRecord(credential))
        }
        MetadataRecord::ConfigRecord(mut config) => {
            let is_secret =
                config.value.is_some() && config.resource_type == BROKER && is_sensitive(&config.name);
            config.value = is_secret.then(|| HIDDEN.into());
            is_secret.then_some(MetadataRecord::ConfigRecord(config))
        }
        _ => None,
    }
}

/// A record that cannot be written is hidden as a whole.
fn encoded(record: &MetadataRecord<'_>, version: i16) -> Cow<'static, [u8]> {
    let mut bytes = Vec::new();
    match record.encode(&mut bytes, version) {
        Ok(()) => bytes.into(),
        Err(_) => HIDDEN.as_bytes().into(),
    }
}

#[cfg(test)]
mod tests {
    use mainstem_wire::messages::config_record::ConfigRecord;
    use mainstem_wire::messages::user_scram_credential_record::UserScramCredentialRecord;

    use super::*;

    fn config(resource_type: i8, name: &str) -> Vec<u8> {
        let record = ConfigRecord {
            resource_type,
            resource_name: "1".into(),
            name: name.into(),
            value: Some("s3cret".into()),
            ..Default::default()
        };
        let mut bytes = Vec::new();
        MetadataRecord::ConfigRecord(Box::new(record)).encode(&mut bytes, 0).unwrap();
        bytes
    }

    fn has(bytes: &[u8], text: &str) -> bool {
        bytes.windows(text.len()).any(|part| part == text.as_bytes())
    }

    #[test]
    fn settings_that_are_secrets_are_hidden() {
        for (resource_type, name, is_secret) in [
            (BROKER, "ssl.key.password", true),
            (BROKER, "listener.name.x.ssl.keystore.key", true),
            (BROKER, "listener.name.x.plain.sasl.jaas.config", true),
            (BROKER, "some.plugin.key", true),
            (BROKER, "log.retention.ms", false),
            (2, "retention.ms", false),
        ] {
            let bytes = config(resource_type, name);
            let shown = shown_value(&bytes, false);
            assert_eq!((has(&shown, "s3cret"), has(&shown, HIDDEN)), (!is_secret, is_secret), "{name}");
            assert!(has(&shown, name), "{name} itself is shown");
        }
    }

    #[test]
    fn credentials_are_hidden() {
        let record = UserScramCredentialRecord {
            name: "alice".into(),
            mechanism: 1,
            salt: b"the-salt".into(),
            stored_key: b"the-stored-key".into(),
            server_key: b"the-server-key".into(),
            iterations: 4096,
            ..Default::default()
        };
        let mut bytes = Vec::new();
        MetadataRecord::UserScramCredentialRecord(Box::new(record)).encode(&mut bytes, 0).unwrap();
        let shown = shown_value(&bytes, false);
        assert!(has(&shown, "alice") && !has(&shown, "the-s"), "{shown:?}");
        assert!(MetadataRecord::decode(&shown).is_ok(), "it is still a record");
        // Half a record of the metadata log cannot be read, and may have half of a secret.
        let half = &bytes[..bytes.len() - 1];
        assert_eq!(shown_value(half, true), HIDDEN.as_bytes());
        assert_eq!(shown_value(half, false), half);
    }
}
