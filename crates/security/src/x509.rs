//! The contents of a certificate besides its signature, which the TLS library checks: its subject, its other names, its validity.

mod key;
mod name;

use std::net::IpAddr;

use crate::SecurityError;
use crate::crypto::Hash;
use crate::der::{self, Malformed, Reader, SEQUENCE, context};

pub use key::PublicKey;
pub(crate) use name::rfc2253;

/// The parts of a certificate that are looked at here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The subject, as Java prints it by RFC 2253. ACLs and mapping rules use this form.
    pub subject: String,
    /// The subject as in the certificate.
    pub subject_der: Vec<u8>,
    /// The issuer, like the subject.
    pub issuer: String,
    /// The issuer as in the certificate.
    pub issuer_der: Vec<u8>,
    /// Alternative names: DNS names, addresses and others, each with its tag.
    pub alternative_names: Vec<(u8, Vec<u8>)>,
    /// The seconds since 1970 from which it is valid.
    pub not_before: i64,
    /// The last second since 1970 at which it is valid.
    pub not_after: i64,
    /// The purposes of its key as object identifiers; none for any.
    pub extended_key_usage: Option<Vec<String>>,
    /// The uses of its key; none for any.
    pub key_usage: Option<KeyUsage>,
    /// The version of X.509: 1, 2 or 3.
    pub version: u32,
    /// Its basic constraints say that it is an authority's.
    pub is_authority: bool,
    /// Its public key.
    pub key: PublicKey,
    /// The algorithm that its issuer signed it by, as an object identifier.
    pub signature_algorithm: String,
    /// Extensions that have to be understood, as object identifiers.
    pub critical_extensions: Vec<String>,
    /// The identifier of its key among others of the same subject (RFC 5280, 4.2.1.2); None if there is none in that form.
    pub subject_key_id: Option<Vec<u8>>,
    /// The same of the issuer's key (RFC 5280, 4.2.1.1).
    pub authority_key_id: Option<Vec<u8>>,
}

/// The parts of a key usage (RFC 5280, 4.2.1.3) that are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyUsage {
    /// `digitalSignature`: a handshake may be signed.
    pub digital_signature: bool,
    /// `keyCertSign`: certificates may be signed.
    pub cert_sign: bool,
}

/// `TLS Web Client Authentication` and "any", in an extended key usage.
pub(crate) const CLIENT_AUTH: &str = "1.3.6.1.5.5.7.3.2";
pub(crate) const SERVER_AUTH: &str = "1.3.6.1.5.5.7.3.1";
const ANY_USAGE: &str = "2.5.29.37.0";
/// Alternative names (RFC 5280, 4.2.1.6), by their tags.
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;

/// The SHA-256 of a certificate in DER, as OpenSSL's `-fingerprint` shows it.
pub fn fingerprint(certificate: &[u8]) -> String {
    let digest = Hash::Sha256.digest(certificate);
    digest.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}

impl CertificateInfo {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// When it is no certificate.
    pub fn parse(certificate: &[u8]) -> Result<CertificateInfo, SecurityError> {
        info_of(certificate).map_err(|Malformed(what)| SecurityError::Certificate(what))
    }

    /// Returns true if the certificate is valid at a second since 1970.
    pub fn is_valid_at(&self, seconds: i64) -> bool {
        (self.not_before..=self.not_after).contains(&seconds)
    }

    /// The hosts of the certificate: DNS names as in it, escaped if they are not printable, and addresses.
    pub fn hosts(&self) -> Vec<String> {
        let host = |(tag, value): &(u8, Vec<u8>)| match (*tag, value.as_slice()) {
            (DNS_NAME, name) => Some(String::from_utf8_lossy(name).escape_debug().to_string()),
            (IP_ADDRESS, &[a, b, c, d]) => Some(IpAddr::from([a, b, c, d]).to_string()),
            (IP_ADDRESS, bytes) => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string()),
            _ => None,
        };
        self.alternative_names.iter().filter_map(host).collect()
    }

    /// Returns true if its key may authenticate a client.
    pub fn is_for_clients(&self) -> bool {
        self.is_for(CLIENT_AUTH)
    }

    /// Returns true if its key may authenticate a server.
    pub fn is_for_servers(&self) -> bool {
        self.is_for(SERVER_AUTH)
    }

    pub(crate) fn is_for(&self, usage: &str) -> bool {
        self.extended_key_usage
            .as_ref()
            .is_none_or(|usages| usages.iter().any(|each| each == usage || each == ANY_USAGE))
    }
}

/// `TBSCertificate` of RFC 5280, 4.1.
fn info_of(certificate: &[u8]) -> der::Result<CertificateInfo> {
    let mut outer = Reader::new(certificate).enter(SEQUENCE, "it is no certificate")?;
    let mut fields = outer.enter(SEQUENCE, "it has no body")?;
    // It is left out in version 1, and counted from 0.
    let version = match fields.optional(context(0))? {
        Some(version) => Reader::new(version).unsigned("its version is no number")?.saturating_add(1),
        None => 1,
    };
    fields.take(der::INTEGER, "it has no serial number")?;
    let mut algorithm = fields.enter(SEQUENCE, "it has no signature algorithm")?;
    let signature_algorithm =
        der::dotted(algorithm.take(der::OID, "its signature algorithm has no identifier")?);
    let issuer = fields.any()?.filter(|issuer| issuer.tag == SEQUENCE);
    let issuer = issuer.ok_or(Malformed("it has no issuer"))?;
    let mut validity = fields.enter(SEQUENCE, "it has no validity")?;
    let not_before = time(&mut validity)?;
    let not_after = time(&mut validity)?;
    let subject = fields.any()?.filter(|subject| subject.tag == SEQUENCE);
    let subject = subject.ok_or(Malformed("it has no subject"))?;
    let key = PublicKey::read(fields.enter(SEQUENCE, "it has no public key")?)?;
    let mut info = CertificateInfo {
        subject: rfc2253(subject.value)?,
        subject_der: subject.whole.to_vec(),
        issuer: rfc2253(issuer.value)?,
        issuer_der: issuer.whole.to_vec(),
        alternative_names: Vec::new(),
        not_before,
        not_after,
        extended_key_usage: None,
        key_usage: None,
        version,
        is_authority: false,
        key,
        signature_algorithm,
        critical_extensions: Vec::new(),
        subject_key_id: None,
        authority_key_id: None,
    };
    while let Some(field) = fields.any()? {
        if field.tag == context(3) {
            extensions(Reader::new(field.value).enter(SEQUENCE, "its extensions are no list")?, &mut info)?;
        }
    }
    Ok(info)
}

const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 14];
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 35];
/// The identifier within that of an authority.
const KEY_ID: u8 = 0x80;
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];

fn extensions(mut list: Reader<'_>, info: &mut CertificateInfo) -> der::Result<()> {
    while !list.is_empty() {
        let mut extension = list.enter(SEQUENCE, "an extension is no list")?;
        let oid = extension.take(der::OID, "an extension has no identifier")?;
        if extension.optional(der::BOOLEAN)?.is_some_and(is_true) {
            info.critical_extensions.push(der::dotted(oid));
        }
        let value = extension.take(der::OCTET_STRING, "an extension has no value")?;
        match oid {
            SUBJECT_ALT_NAME => {
                let mut names = Reader::new(value).enter(SEQUENCE, "its alternative names are no list")?;
                while let Some(name) = names.any()? {
                    info.alternative_names.push((name.tag, name.value.to_vec()));
                }
            }
            EXTENDED_KEY_USAGE => {
                let mut usages = Reader::new(value).enter(SEQUENCE, "its key usages are no list")?;
                let known = info.extended_key_usage.get_or_insert_default();
                while !usages.is_empty() {
                    known.push(der::dotted(usages.take(der::OID, "a key usage is no identifier")?));
                }
            }
            KEY_USAGE => {
                let bits = Reader::new(value).take(der::BIT_STRING, "its key usage is no list of bits")?;
                // The first byte is the number of unused bits of the last one.
                let first = bits.get(1).copied().unwrap_or_default();
                let usage = KeyUsage { digital_signature: first & 0x80 != 0, cert_sign: first & 0x04 != 0 };
                info.key_usage = Some(usage);
            }
            BASIC_CONSTRAINTS => {
                let mut constraints = Reader::new(value).enter(SEQUENCE, "its constraints are no list")?;
                info.is_authority = constraints.optional(der::BOOLEAN)?.is_some_and(is_true);
            }
            // They decide nothing: in another form they are ignored.
            SUBJECT_KEY_ID => {
                info.subject_key_id = Reader::new(value).take(der::OCTET_STRING, "").ok().map(<[u8]>::to_vec);
            }
            AUTHORITY_KEY_ID => {
                let key_id = Reader::new(value).enter(SEQUENCE, "").and_then(|mut id| id.optional(KEY_ID));
                info.authority_key_id = key_id.ok().flatten().map(<[u8]>::to_vec);
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_true(boolean: &[u8]) -> bool {
    boolean.first().is_some_and(|value| *value != 0)
}

/// UTCTime or GeneralizedTime, in seconds since 1970.
fn time(validity: &mut Reader<'_>) -> der::Result<i64> {
    let malformed = Malformed("a date of its validity is none");
    let element = validity.any()?.ok_or(malformed)?;
    let text = std::str::from_utf8(element.value).map_err(|_| malformed)?;
    let digits = text.strip_suffix('Z').filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let digits = digits.ok_or(malformed)?;
    let (year, rest) = match (element.tag, digits.len()) {
        (0x17, 12) => {
            let year = number(&digits[..2]);
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (0x18, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return Err(malformed),
    };
    let part = |at: usize| number(&rest[at..at + 2]);
    let (month, day) = (part(0), part(2));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return Err(malformed);
    }
    Ok(days(year, month, day) * 86_400 + part(4) * 3600 + part(6) * 60 + part(8))
}

fn number(digits: &str) -> i64 {
    digits.bytes().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// Days since 1970 in the Gregorian calendar; years begin in March, so that the leap day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

/// The day of a second since 1970 in UTC, as `2026-11-29`.
pub(crate) fn day(seconds: i64) -> String {
    let days = seconds.div_euclid(86_400) + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = 400 * era + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_back() {
        for (year, month, of_month) in
            [(1970, 1, 1), (1969, 12, 31), (2000, 2, 29), (2001, 3, 1), (2100, 2, 28), (9999, 12, 31)]
        {
            let seconds = days(year, month, of_month) * 86_400;
            assert_eq!(day(seconds), format!("{year:04}-{month:02}-{of_month:02}"));
            assert_eq!(day(seconds + 86_399), day(seconds));
        }
    }

    #[test]
    fn dates() {
        assert_eq!(days(1970, 1, 1), 0);
        assert_eq!(days(2000, 2, 29), 11_016);
        assert_eq!(days(2026, 11, 23), 20_780);
        let read = |tag: u8, text: &str| {
            let bytes = [&[tag, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
            time(&mut Reader::new(&bytes))
        };
        assert_eq!(read(0x17, "700101000001Z"), Ok(1));
        assert_eq!(read(0x17, "491231235959Z"), Ok(2_524_607_999));
        assert_eq!(read(0x18, "20500101000000Z"), Ok(2_524_608_000));
        assert_eq!(read(0x18, "99991231235959Z"), Ok(253_402_300_799));
        for bad in ["", "Z", "7001010000Z", "70010100000Z", "701301000000Z", "700100000000Z", "7001010000é"]
        {
            assert!(read(0x17, bad).is_err(), "{bad}");
        }
    }
}
