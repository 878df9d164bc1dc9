//! A certificate authority of one's own, and its certificates.

use anyhow::{Context, Result, bail, ensure};
use mainstem_security::store::{KeyStore, StorePasswords};
use mainstem_security::x509::CertificateInfo;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::timestamp;

/// The common name of the authority.
const NAME: &str = "Mainstem authority";

/// The validity of the authority, in days, and the longest that `security init` allows for its certificates.
pub(super) const AUTHORITY_DAYS: u32 = 3_650;
const MS_PER_DAY: i64 = 86_400_000;

/// A certificate authority.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, in PEM.
    pub(super) certificate: String,
    /// Its key, in PEM.
    pub(super) key: String,
    info: CertificateInfo,
}

/// A certificate and its key, in PEM.
pub(super) struct Issued {
    certificate: String,
    key: String,
    /// The end of its validity, in milliseconds since 1970.
    pub(super) ends_ms: i64,
}

impl Issued {
    /// The key and the certificate in one file, as Kafka reads it.
    pub(super) fn pem(&self) -> String {
        format!("{}{}", self.key, self.certificate)
    }
}

/// Parameters of a certificate. It is valid from yesterday on, as clocks differ, and for so many days from now.
fn named(name: &str, hosts: &[String], days: u32) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(hosts).context("a host is neither a name nor an address")?;
    let day = |days: i64| -> Result<_> {
        let (year, month, day) = timestamp::date(timestamp::now_ms() + days * MS_PER_DAY);
        Ok(date_time_ymd(i32::try_from(year)?, u8::try_from(month)?, u8::try_from(day)?))
    };
    params.not_before = day(-1)?;
    params.not_after = day(i64::from(days) + 1)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn authority_params() -> Result<CertificateParams> {
    let mut params = named(NAME, &[], AUTHORITY_DAYS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

impl Authority {
    /// Makes a new authority.
    pub(super) fn new() -> Result<Authority> {
        let params = authority_params()?;
        let key = KeyPair::generate().context("no key can be made")?;
        let certificate = params.self_signed(&key).context("no certificate can be made")?;
        let info = CertificateInfo::parse(certificate.der())?;
        let text = key.serialize_pem();
        Ok(Authority { issuer: Issuer::new(params, key), certificate: certificate.pem(), key: text, info })
    }

    /// Reads an authority that was made before.
    pub(super) fn from_pem(certificate: &str, key: &str) -> Result<Authority> {
        let pair = KeyPair::from_pem(key).context("ca.key has no key that can be used")?;
        let passwords = StorePasswords { store: None, key: None };
        let store = KeyStore::open("ca.pem", certificate.as_bytes(), passwords)?;
        let (_, bytes) = store.trusted.first().context("ca.pem has no certificate")?;
        let public = pair.public_key_raw().to_vec();
        let is_its = bytes.windows(public.len()).any(|window| window == public);
        let info = CertificateInfo::parse(bytes)?;
        let is_ours = info.subject == format!("CN={NAME}");
        ensure!(is_its && is_ours, "ca.pem and ca.key are not those that `mainstem security init` has made");
        let issuer = Issuer::new(authority_params()?, pair);
        Ok(Authority { issuer, certificate: certificate.to_owned(), key: key.to_owned(), info })
    }

    /// Returns true if the signature of a certificate is by this authority's key. All authorities of this command
    /// have the same name, so that the name proves nothing.
    pub(super) fn has_issued(&self, certificate: &CertificateInfo) -> bool {
        certificate.issuer_der == self.info.subject_der
            && certificate.authority_key_id.is_some()
            && certificate.authority_key_id == self.info.subject_key_id
    }

    /// Refuses a certificate that would outlive this authority, as it is not trusted for longer.
    fn check_ends(&self, days: u32) -> Result<()> {
        let ends_ms = self.info.not_after.saturating_mul(1_000);
        // Both end at midnight.
        let days_max = ends_ms.div_euclid(MS_PER_DAY) - timestamp::now_ms().div_euclid(MS_PER_DAY) - 1;
        if i64::from(days) <= days_max {
            return Ok(());
        }
        let fewer = match days_max {
            1.. => format!("ask for at most --days {days_max}, or make"),
            _ => "make".to_owned(),
        };
        bail!(
            "the authority of ca.pem ends at {}, before a certificate of {days} days would: {fewer} another authority by `mainstem security \
             init` in another directory, have clients and brokers trust both (their ca.pem one behind the other in one file), and \
             then make certificates by the new one",
            timestamp::format(ends_ms)
        )
    }

    /// A certificate for a client and, with hosts, for a server, for so many days.
    pub(super) fn issue(&self, name: &str, hosts: &[String], days: u32) -> Result<Issued> {
        self.check_ends(days)?;
        let mut params = named(name, hosts, days)?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        if !hosts.is_empty() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let key = KeyPair::generate().context("no key can be made")?;
        let certificate = params.signed_by(&key, &self.issuer).context("no certificate can be made")?;
        let ends_ms = CertificateInfo::parse(certificate.der())?.not_after.saturating_mul(1_000);
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem(), ends_ms })
    }
}

/// The names by which clients connect to this host, and those asked for.
pub(super) fn own_hosts(asked_for: &[&str]) -> Vec<String> {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut hosts: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    for host in [own.as_str()].iter().chain(asked_for) {
        if !host.is_empty() && !hosts.iter().any(|known| known == host) {
            hosts.push((*host).to_owned());
        }
    }
    hosts
}
