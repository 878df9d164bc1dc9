//! Users of the metadata, by their passwords and credentials.

use std::borrow::Cow;

use mainstem_listener_security::SaslSettings;
use mainstem_security::plain::PlainUsers;
use mainstem_security::scram::{ScramCredential, ScramMechanism};
use mainstem_security::{Credentials, DecoyShape, KafkaPrincipal, Secret, TokenCredential};

use crate::broker::Broker;

/// The most frequent mechanism and iterations of users' passwords.
pub(crate) fn shape_of_most(broker: &Broker) -> (ScramMechanism, u32) {
    let image = broker.controller.image();
    let count = |mechanism| image.scram_credentials(mechanism).count();
    let most = match count(ScramMechanism::Sha256) > count(ScramMechanism::Sha512) {
        true => ScramMechanism::Sha256,
        false => ScramMechanism::Sha512,
    };
    drop(image);
    (most, broker.security.decoy((&broker.config, &broker.controller), most).iterations)
}

/// The user of a password, with any mechanism of SCRAM. An unknown user takes the same time.
pub(crate) fn user_of_password(broker: &Broker, name: &str, password: &Secret) -> Option<KafkaPrincipal> {
    // This is done for every user.
    let (of_most, iterations) = shape_of_most(broker);
    let known = [ScramMechanism::Sha512, ScramMechanism::Sha256].into_iter().find_map(|mechanism| {
        let credential = broker.controller.image().scram_credential(mechanism, name).cloned()?;
        Some((mechanism, credential))
    });
    let Some((mechanism, credential)) = known else {
        // It takes as long as the check of most users.
        let _ = ScramCredential::new(of_most, password, *b"none", iterations);
        return None;
    };
    let given =
        ScramCredential::new(mechanism, password, credential.salt.clone(), credential.iterations).ok()?;
    (given.stored_key == credential.stored_key).then(|| KafkaPrincipal::user(name))
}

/// The users of one listener, for an exchange.
pub(crate) struct KnownUsers<'a> {
    /// The broker with the metadata.
    pub(crate) broker: &'a Broker,
    /// The listener.
    pub(crate) settings: &'a SaslSettings,
}

impl Credentials for KnownUsers<'_> {
    fn plain(&self) -> Option<&PlainUsers> {
        self.settings.plain_users()
    }

    fn scram(&self, mechanism: ScramMechanism, user: &str) -> Option<Cow<'_, ScramCredential>> {
        let image = self.broker.controller.image();
        image.scram_credential(mechanism, user).cloned().map(Cow::Owned)
    }

    /// Delegation tokens are not supported yet.
    fn token(&self, _mechanism: ScramMechanism, _id: &str) -> Option<TokenCredential> {
        None
    }

    fn decoy(&self, mechanism: ScramMechanism) -> DecoyShape {
        self.broker.security.decoy((&self.broker.config, &self.broker.controller), mechanism)
    }
}
