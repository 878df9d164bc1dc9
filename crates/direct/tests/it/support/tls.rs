//! Certificates, and the refusal of those that are not accepted.

use mainstem_direct::{Address, Admin};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// An authority, and certificates of it with their keys, in PEM.
pub(crate) struct Certificates {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pub(crate) authority: String,
    pub(crate) server: (String, String),
    pub(crate) client: (String, String),
}

impl Certificates {
    pub(crate) fn issue(&self, name: &str) -> (String, String) {
        issue(&self.issuer, name)
    }
}

fn issue(issuer: &CertifiedIssuer<'static, KeyPair>, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}

pub(crate) fn certificates() -> Certificates {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let (server, client) = (issue(&issuer, "localhost"), issue(&issuer, "analytics"));
    Certificates { server, client, authority: issuer.pem(), issuer }
}

/// Returns the reason why a call fails at an address: with TLS 1.3 a refused certificate shows at the first call.
pub(crate) async fn refusal_of(address: Address) -> String {
    answered(address).await.unwrap_err().to_string()
}

/// A call, after a new handshake.
pub(crate) async fn answered(address: Address) -> mainstem_direct::Result<()> {
    Admin::connect(address).await?.describe("").await.map(drop)
}
