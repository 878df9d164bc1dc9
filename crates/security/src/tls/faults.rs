//! Faults of certificates as messages, each with advice.

use webpki::Error;

use super::refusal::Kind;
use super::trust::{Role, Shown};
use crate::x509::{CertificateInfo, PublicKey, day};
use mainstem_lines::OneLine;

/// A fault of a certificate, or of the chain above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// The kind that an alert can name.
    pub(super) kind: Kind,
    /// The fault and, behind a colon, the advice. Begins with "it" or "its" if it is about one certificate.
    pub(super) what: String,
}

impl Fault {
    fn new(kind: Kind, what: impl Into<String>) -> Fault {
        Fault { kind, what: what.into() }
    }

    fn unsuitable(what: impl Into<String>) -> Fault {
        Fault::new(Kind::Unsuitable, what)
    }

    /// Returns the fault as one of an authority above the peer's certificate.
    fn of_authority(self, authority: &CertificateInfo) -> Fault {
        let name = OneLine(&authority.subject);
        let what = self.what.replace(": have it ", ": have that one ");
        let what = match (what.strip_prefix("its "), what.strip_prefix("it ")) {
            (Some(rest), _) => format!("of its issuer {name} the {rest}"),
            (None, Some(rest)) => format!("its issuer {name} {rest}"),
            (None, None) => what,
        };
        Fault { what, ..self }
    }
}

/// Extensions that webpki understands.
const UNDERSTOOD: [&str; 6] = ["2.5.29.15", "2.5.29.17", "2.5.29.19", "2.5.29.30", "2.5.29.31", "2.5.29.37"];

/// A certificate of a form that is not supported.
pub(super) fn of_form(info: &CertificateInfo) -> Option<Fault> {
    if let Some(fault) = of_version(info) {
        return Some(fault);
    }
    if info.subject.is_empty() && info.alternative_names.is_empty() {
        return Some(Fault::new(Kind::Malformed, "it has no name: have it issued with a subject"));
    }
    info.key.fault().map(|fault| Fault::unsuitable(format!("its {fault}")))
}

fn of_version(info: &CertificateInfo) -> Option<Fault> {
    let version = info.version;
    let what = format!("it is of version {version} of X.509: have it issued as version 3, with extensions");
    (version != 3).then(|| Fault::new(Kind::Malformed, what))
}

/// A certificate that is not valid at a second since 1970.
pub(super) fn of_time(info: &CertificateInfo, seconds: i64) -> Option<Fault> {
    let [from, until] = [info.not_before, info.not_after].map(day);
    if seconds < info.not_before {
        let what = format!("it is not valid before {from}: wait, or set the clock of this machine right");
        return Some(Fault::new(Kind::NotValidYet, what));
    }
    let what = format!("it has expired on {until}: have it renewed");
    (seconds > info.not_after).then(|| Fault::new(Kind::Expired, what))
}

/// A certificate for another purpose.
pub(super) fn of_purpose(info: &CertificateInfo, role: Role) -> Option<Fault> {
    let name = role.purpose_name();
    let what = format!("its extended key usage lacks {name}: have it issued with that, or without one");
    (!info.is_for(role.purpose())).then(|| Fault::unsuitable(what))
}

/// A peer's certificate that may not sign a handshake, or is an authority's.
pub(super) fn of_end_entity(info: &CertificateInfo) -> Option<Fault> {
    if info.key_usage.is_some_and(|usage| !usage.digital_signature) {
        let what = "its key usage lacks digitalSignature: have it issued with that";
        return Some(Fault::unsuitable(what));
    }
    let what = "it is an authority's (CA:TRUE), and no peer's: have one issued with CA:FALSE, or put this one itself into the \
                trust store";
    info.is_authority.then(|| Fault::unsuitable(what))
}

/// An authority that may not issue certificates.
pub(super) fn of_issuer(info: &CertificateInfo) -> Option<Fault> {
    if !info.is_authority {
        let what = "it is no authority (CA:TRUE is lacking): have it issued as one";
        return Some(Fault::unsuitable(what).of_authority(info));
    }
    let what = "its key usage lacks keyCertSign: have it issued with that";
    let may_sign = info.key_usage.is_none_or(|usage| usage.cert_sign);
    (!may_sign).then(|| Fault::unsuitable(what).of_authority(info))
}

/// A trusted certificate that may not issue others. Those of version 1 cannot say so.
pub(super) fn of_anchor(info: &CertificateInfo) -> Option<Fault> {
    if info.version < 3 { None } else { of_issuer(info) }
}

/// A name that a server's certificate does not have.
pub(super) fn of_name(info: &CertificateInfo, host: &str) -> Fault {
    let hosts = info.hosts();
    let what = if hosts.is_empty() {
        format!(
            "it has no host among its alternative names, and its CN does not count: have it issued for {host}"
        )
    } else {
        let hosts = hosts.join(", ");
        let of_star = if hosts.contains('*') { " (* is one whole label, with two behind it)" } else { "" };
        format!(
            "it is for {}{of_star}, and not for {host}: connect to what it is for, or have it issued for {host}",
            OneLine(&hosts)
        )
    };
    Fault::new(Kind::OtherName, what)
}

/// A signature of the handshake that is not one of the certificate's key.
pub(super) fn of_proof(info: &CertificateInfo) -> Fault {
    match info.key.fault() {
        Some(fault) => Fault::unsuitable(format!("its {fault}")),
        None => {
            let what = "the peer did not prove that it has its key: give the peer the key that belongs to it";
            Fault::new(Kind::BadSignature, what)
        }
    }
}

/// The most authorities of a peer that are looked at: more than a path may have. A peer may show any number.
const AUTHORITIES_MAX: usize = 8;

/// The certificates from a peer's own up to a trusted one, as far as the shown certificates lead there.
#[derive(Debug)]
pub(super) struct Chain<'a> {
    own: &'a CertificateInfo,
    /// The one that issued the peer's own first.
    authorities: Vec<&'a CertificateInfo>,
    /// The trusted certificate that has the name of the last one's issuer.
    anchor: Option<&'a CertificateInfo>,
}

impl<'a> Chain<'a> {
    pub(super) fn alone(own: &'a CertificateInfo) -> Chain<'a> {
        Chain { own, authorities: Vec::new(), anchor: None }
    }

    pub(super) fn new(
        own: &'a CertificateInfo,
        intermediates: &'a [CertificateInfo],
        trusted: &'a [CertificateInfo],
    ) -> Chain<'a> {
        let mut chain = Chain::alone(own);
        loop {
            let issuer = &chain.last().issuer_der;
            let has_issued = |info: &&CertificateInfo| info.subject_der == *issuer;
            // Of several with that name, as during a renewal, one that may issue is chosen.
            let named = || trusted.iter().filter(has_issued);
            chain.anchor = named().find(|info| of_anchor(info).is_none()).or_else(|| named().next());
            if chain.anchor.is_some() || chain.authorities.len() == AUTHORITIES_MAX {
                return chain;
            }
            let is_new = |info: &&CertificateInfo| !chain.authorities.contains(info);
            match intermediates.iter().filter(has_issued).find(is_new) {
                Some(issuer) => chain.authorities.push(issuer),
                None => return chain,
            }
        }
    }

    fn last(&self) -> &'a CertificateInfo {
        self.authorities.last().unwrap_or(&self.own)
    }

    /// The first fault of the peer's certificate, or of one of the authorities that it shows.
    fn find(&self, fault: &dyn Fn(&CertificateInfo) -> Option<Fault>) -> Option<Fault> {
        fault(self.own).or_else(|| self.find_above(self.authorities.iter().copied(), fault))
    }

    fn find_above(
        &self,
        mut authorities: impl Iterator<Item = &'a CertificateInfo>,
        fault: &dyn Fn(&CertificateInfo) -> Option<Fault>,
    ) -> Option<Fault> {
        authorities.find_map(|info| Some(fault(info)?.of_authority(info)))
    }

    /// A key of an authority that verifies no signature.
    fn key_of_authority(&self) -> Option<Fault> {
        let fault = |info: &CertificateInfo| Some(Fault::unsuitable(format!("its {}", info.key.fault()?)));
        self.find_above(self.authorities.iter().copied().chain(self.anchor), &fault)
    }
}

/// The message for webpki's error about a chain.
pub(super) fn of_chain(error: &Error, chain: &Chain<'_>, shown: &Shown<'_>) -> Fault {
    let found = match error {
        Error::UnknownIssuer => chain.anchor.and_then(of_anchor).or_else(|| Some(unknown_issuer(chain))),
        Error::InvalidSignatureForPublicKey => Some(bad_signature(chain)),
        Error::CertExpired { .. } | Error::CertNotValidYet { .. } | Error::InvalidCertValidity => {
            let found = chain.find(&|info| of_time(info, shown.seconds()));
            let what = "an issuer that the peer shows is not valid now: have that one renewed";
            found.or_else(|| Some(Fault::new(Kind::Expired, what)))
        }
        Error::UnsupportedSignatureAlgorithmContext(_)
        | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
            chain.key_of_authority().or_else(|| chain.find(&weak_signature))
        }
        Error::UnsupportedCriticalExtension => chain.find(&unknown_extension),
        Error::UnsupportedCertVersion => chain.find(&of_version),
        Error::EndEntityUsedAsCa => {
            let found = chain.authorities.iter().find_map(|info| of_issuer(info));
            found.or_else(|| chain.anchor.and_then(of_anchor))
        }
        Error::RequiredEkuNotFoundContext(_) => chain.find(&|info| of_purpose(info, shown.role)),
        Error::PathLenConstraintViolated => Some(Fault::unsuitable(
            "there are more authorities between it and the trusted one than one of them allows (path length): have it issued by one \
             that may",
        )),
        Error::MaximumPathDepthExceeded => Some(Fault::unsuitable(
            "there are more than six authorities between it and the trusted one: add one of them to ssl.truststore.*",
        )),
        Error::MaximumSignatureChecksExceeded
        | Error::MaximumPathBuildCallsExceeded
        | Error::MaximumNameConstraintComparisonsExceeded => Some(Fault::unsuitable(
            "the peer shows more certificates or names than are looked through: have it show its own and those between that and a \
             trusted one alone",
        )),
        Error::NameConstraintViolation => Some(Fault::unsuitable(
            "it has a name that one of its authorities may not give (name constraints): have it issued without that name, or by \
             another authority",
        )),
        _ => None,
    };
    found.unwrap_or_else(|| {
        let what = "it, or an authority that the peer shows, is malformed: have them issued again";
        Fault::new(Kind::Malformed, what)
    })
}

fn unknown_issuer(chain: &Chain<'_>) -> Fault {
    let issuer = OneLine(&chain.last().issuer);
    let whose = if chain.authorities.is_empty() { "its issuer," } else { "the last issuer above it," };
    let what = if chain.own.subject_der == chain.own.issuer_der {
        "it is self-signed, and not in the trust store: add it to ssl.truststore.*, or have it issued by an authority that is in \
         there"
            .to_owned()
    } else {
        format!(
            "{whose} {issuer}, is not in the trust store: add that one to ssl.truststore.*, or have the peer show all certificates \
             between its own and a trusted one"
        )
    };
    Fault::new(Kind::UnknownIssuer, what)
}

fn bad_signature(chain: &Chain<'_>) -> Fault {
    chain.key_of_authority().unwrap_or_else(|| {
        let what = format!(
            "another authority has signed it than the trusted one of the name {}: add that other one to ssl.truststore.*, or have \
             it issued by the trusted one",
            OneLine(&chain.last().issuer)
        );
        Fault::new(Kind::BadSignature, what)
    })
}

fn weak_signature(info: &CertificateInfo) -> Option<Fault> {
    let algorithm = weak_algorithm(info)?;
    let what = format!(
        "it is signed by {algorithm}: have it signed with SHA-256 (RSA, RSA-PSS or ECDSA), or by Ed25519"
    );
    Some(Fault::unsuitable(what))
}

/// The name of an algorithm that is not accepted.
fn weak_algorithm(info: &CertificateInfo) -> Option<&str> {
    Some(match info.signature_algorithm.as_str() {
        // RSA with SHA-256, SHA-384 and SHA-512, ECDSA with the same, Ed25519.
        "1.2.840.113549.1.1.11" | "1.2.840.113549.1.1.12" | "1.2.840.113549.1.1.13" => return None,
        "1.2.840.10045.4.3.2" | "1.2.840.10045.4.3.3" | "1.2.840.10045.4.3.4" | "1.3.101.112" => return None,
        // ML-DSA is named as its keys are.
        other
            if matches!(&info.key, PublicKey::Other(kind) if kind == other) && info.key.fault().is_none() =>
        {
            return None;
        }
        "1.2.840.113549.1.1.10" => "RSA-PSS with other digests or another salt than are supported",
        "1.2.840.113549.1.1.2" => "MD2 with RSA, which is too weak",
        "1.2.840.113549.1.1.4" => "MD5 with RSA, which is too weak",
        "1.2.840.113549.1.1.5" => "SHA-1 with RSA, which is too weak",
        "1.2.840.10045.4.1" => "SHA-1 with ECDSA, which is too weak",
        "1.2.840.113549.1.1.14" => "SHA-224 with RSA, which is not supported",
        "1.2.840.10045.4.3.1" => "SHA-224 with ECDSA, which is not supported",
        "1.3.101.113" => "Ed448, which is not supported",
        other => other,
    })
}

fn unknown_extension(info: &CertificateInfo) -> Option<Fault> {
    let extension = info.critical_extensions.iter().find(|oid| !UNDERSTOOD.contains(&oid.as_str()))?;
    let what = format!(
        "it has the critical extension {}, which is not supported: have it issued without that, or with that not critical",
        extension_name(extension)
    );
    Some(Fault::new(Kind::Malformed, what))
}

fn extension_name(oid: &str) -> &str {
    match oid {
        "2.5.29.32" => "certificatePolicies",
        "2.5.29.33" => "policyMappings",
        "2.5.29.36" => "policyConstraints",
        "2.5.29.54" => "inhibitAnyPolicy",
        other => other,
    }
}
