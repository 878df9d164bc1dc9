//! Trust in certificates that trusted authorities issued, and, as in Java, in certificates of the trust store themselves.

use std::cell::RefCell;
use std::collections::HashSet;

use rustls::DistinguishedName;
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeId, KeyPurposeIdIter, VerifiedPath};

use super::faults::{self, Chain, Fault};
use super::refusal::Refusal;
use crate::SecurityError;
use crate::x509::{CLIENT_AUTH, CertificateInfo, SERVER_AUTH};
use mainstem_lines::OneLine;

/// The certificates of a trust store, as issuers and by themselves.
#[derive(Debug)]
pub(super) struct Trust {
    /// Those that may issue others.
    anchors: Vec<TrustAnchor<'static>>,
    own: HashSet<Vec<u8>>,
    /// The contents of all of them.
    infos: Vec<CertificateInfo>,
}

/// The side that shows the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

impl Role {
    /// The purpose that an extended key usage has to allow.
    pub(super) fn purpose(self) -> &'static str {
        match self {
            Role::Client => CLIENT_AUTH,
            Role::Server => SERVER_AUTH,
        }
    }

    /// The name of that in OpenSSL's and keytool's configuration.
    pub(super) fn purpose_name(self) -> &'static str {
        match self {
            Role::Client => "clientAuth",
            Role::Server => "serverAuth",
        }
    }
}

/// Certificates that a peer shows, and the time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) end_entity: &'a CertificateDer<'a>,
    pub(super) intermediates: &'a [CertificateDer<'a>],
    pub(super) now: UnixTime,
    pub(super) role: Role,
}

impl Shown<'_> {
    pub(super) fn seconds(&self) -> i64 {
        i64::try_from(self.now.as_secs()).unwrap_or(i64::MAX)
    }
}

impl Trust {
    pub(super) fn new(trusted: &[CertificateDer<'static>]) -> Result<Trust, SecurityError> {
        let mut trust = Trust { anchors: Vec::new(), own: HashSet::new(), infos: Vec::new() };
        let unusable = |which: &dyn std::fmt::Display| SecurityError::TlsMaterial {
            what: "the trust store".to_owned(),
            reason: format!("{which} cannot be used: take it out, or have it issued again"),
        };
        for certificate in trusted {
            let info = CertificateInfo::parse(certificate)
                .map_err(|error| unusable(&format!("one of its certificates is malformed ({error}) and")))?;
            let anchor = webpki::anchor_from_trusted_cert(certificate).map_err(|_| {
                unusable(&format!("its certificate {} is malformed and", OneLine(&info.subject)))
            })?;
            if faults::of_anchor(&info).is_none() {
                trust.anchors.push(anchor.to_owned());
            }
            trust.own.insert(certificate.to_vec());
            trust.infos.push(info);
        }
        Ok(trust)
    }

    /// The subjects of all trusted certificates: a peer with several chooses by them which one it shows.
    pub(super) fn subjects(&self) -> Vec<DistinguishedName> {
        self.infos.iter().map(|info| DistinguishedName::from(info.subject_der.clone())).collect()
    }

    /// Checks whether a chain is trusted; returns the contents of its first certificate.
    pub(super) fn check(
        &self,
        shown: &Shown<'_>,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<CertificateInfo, Refusal> {
        let info = parsed(shown.end_entity)?;
        match self.fault(&info, shown, algorithms) {
            Ok(()) => Ok(info),
            Err(fault) => Err(Refusal::of_peer(&info, fault)),
        }
    }

    fn fault(
        &self,
        info: &CertificateInfo,
        shown: &Shown<'_>,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), Fault> {
        let none = |fault: Option<Fault>| fault.map_or(Ok(()), Err);
        none(faults::of_form(info))?;
        let end_entity = EndEntityCert::try_from(shown.end_entity)
            .map_err(|error| faults::of_chain(&error, &Chain::alone(info), shown))?;
        none(faults::of_time(info, shown.seconds()))?;
        none(faults::of_purpose(info, shown.role))?;
        // As in Java: the purpose of a key is not checked if its certificate itself is in the trust store.
        if self.own.contains(shown.end_entity.as_ref()) {
            return Ok(());
        }
        none(faults::of_end_entity(info))?;
        self.check_path(&end_entity, info, shown, algorithms)
    }

    fn check_path(
        &self,
        end_entity: &EndEntityCert<'_>,
        info: &CertificateInfo,
        shown: &Shown<'_>,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), Fault> {
        let unsuitable = RefCell::new(None);
        // webpki does not look at the key usage of authorities.
        let may_issue = |path: &VerifiedPath<'_>| {
            for issuer in path.intermediate_certificates() {
                let issuer = CertificateInfo::parse(&issuer.der()).map_err(|_| webpki::Error::BadDer)?;
                if let Some(fault) = faults::of_issuer(&issuer) {
                    *unsuitable.borrow_mut() = Some(fault);
                    return Err(webpki::Error::EndEntityUsedAsCa);
                }
            }
            Ok(())
        };
        let verified = end_entity.verify_for_usage(
            algorithms,
            &self.anchors,
            shown.intermediates,
            shown.now,
            Purpose::of(shown.role),
            None,
            Some(&may_issue),
        );
        let Err(error) = verified else { return Ok(()) };
        let parse = |certificate: &CertificateDer<'_>| CertificateInfo::parse(certificate).ok();
        let intermediates: Vec<_> = shown.intermediates.iter().filter_map(parse).collect();
        let of_chain = || faults::of_chain(&error, &Chain::new(info, &intermediates, &self.infos), shown);
        Err(unsuitable.take().unwrap_or_else(of_chain))
    }
}

/// Parses a peer's certificate.
pub(super) fn parsed(certificate: &CertificateDer<'_>) -> Result<CertificateInfo, Refusal> {
    CertificateInfo::parse(certificate).map_err(|error| match error {
        SecurityError::Certificate(what) => Refusal::unreadable(what),
        other => Refusal::unreadable(&other.to_string()),
    })
}

/// The purpose that an extended key usage, if there is one, has to allow: this one, or any.
#[derive(Debug)]
struct Purpose {
    role: Role,
    id: KeyPurposeId<'static>,
}

/// `1.3.6.1.5.5.7.3.1`, `1.3.6.1.5.5.7.3.2`, and `2.5.29.37.0`, which RFC 5280 (4.2.1.12) has for any purpose.
const SERVER: KeyPurposeId<'static> = KeyPurposeId::new(&[0x2b, 6, 1, 5, 5, 7, 3, 1]);
const CLIENT: KeyPurposeId<'static> = KeyPurposeId::new(&[0x2b, 6, 1, 5, 5, 7, 3, 2]);
const ANY: KeyPurposeId<'static> = KeyPurposeId::new(&[0x55, 0x1d, 37, 0]);

impl Purpose {
    fn of(role: Role) -> Purpose {
        let id = match role {
            Role::Client => CLIENT,
            Role::Server => SERVER,
        };
        Purpose { role, id }
    }
}

impl ExtendedKeyUsageValidator for Purpose {
    fn validate(&self, ids: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        let mut present = Vec::new();
        for id in ids {
            let id = id?;
            if id == self.id || id == ANY {
                return Ok(());
            }
            present.push(id.to_decoded_oid());
        }
        if present.is_empty() {
            return Ok(());
        }
        let required = match self.role {
            Role::Client => webpki::KeyUsage::client_auth(),
            Role::Server => webpki::KeyUsage::server_auth(),
        };
        let context = webpki::RequiredEkuNotFoundContext { required, present };
        Err(webpki::Error::RequiredEkuNotFoundContext(context))
    }
}
