//! Messages of both ends for failed TLS connections: the refused certificate, the reason, and what to do.

use crate::support::log::{log, until_logged};
use crate::support::tls::refusal_of;
use crate::support::{open, serve};
use mainstem_direct::{Address, Consumer, ConsumerConfig, DirectError, Publisher, Serving};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

/// A certificate with its key, in PEM.
type Shown = (String, String);

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn issue(&self, name: &str, host: &str, expired_in: Option<i32>) -> Shown {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(year) = expired_in {
            (params.not_before, params.not_after) =
                (date_time_ymd(year - 1, 1, 1), date_time_ymd(year, 1, 1));
        }
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

async fn serving(dir: &tempfile::TempDir, shown: &Shown, clients: Option<&Authority>) -> Serving {
    let name = format!("words-{}", std::fs::read_dir(dir.path()).unwrap().count());
    let journal = open(&dir.path().join(name));
    let publisher = Publisher::new().stream(&journal).tls(shown.0.clone(), shown.1.clone());
    let publisher = match clients {
        Some(authority) => publisher.client_authorities(authority.pem()),
        None => publisher,
    };
    publisher.start("127.0.0.1:0").await.unwrap()
}

fn at(serving: &Serving) -> Address {
    Address::new(&format!("grpc://localhost:{}", serving.address().port())).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_learns_whose_certificate_is_refused_and_what_to_do() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let (own, other) = (Authority::new("own authority"), Authority::new("other authority"));
    for (shown, trusted, words) in [
        (
            own.issue("old publisher", "localhost", Some(2020)),
            &own,
            "the certificate CN=old publisher is refused: it has expired on 2020-01-01: have it renewed",
        ),
        (
            own.issue("elsewhere", "elsewhere.example", None),
            &own,
            "the certificate CN=elsewhere is refused: it is for elsewhere.example, and not for localhost: connect to",
        ),
        (
            own.issue("strange", "localhost", None),
            &other,
            "the certificate CN=strange is refused: its issuer, CN=own authority, is not among the trusted authorities",
        ),
    ] {
        let serving = serving(&dir, &shown, None).await;
        let address = || at(&serving).tls(trusted.pem());
        let refused = refusal_of(address()).await;
        assert!(refused.contains("by TLS: ") && refused.contains(words), "{refused}");
        // A handler gets the same error, and so does the log.
        let mut consumer = Consumer::new(ConsumerConfig::new(address(), "cart", "analytics"));
        let error = consumer.next().await.unwrap_err();
        assert!(matches!(&error, DirectError::Tls { reason, .. } if reason.contains(words)), "{error}");
        until_logged(0, &["ERROR", words]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_without_a_certificate_or_with_an_unknown_one_is_refused_with_a_reason_at_both_ends() {
    let _ = log();
    let dir = tempfile::tempdir().unwrap();
    let (own, other) = (Authority::new("own authority"), Authority::new("other authority"));
    let serving = serving(&dir, &own.issue("publisher", "localhost", None), Some(&own)).await;
    let address = || at(&serving).tls(own.pem());
    for (shown, words, logged) in [
        (
            None,
            "the publisher asks for a certificate of this client, and none was shown: show one (Address::identity)",
            "the client has shown no certificate, and the publisher asks for one",
        ),
        (
            Some(other.issue("unknown client", "unknown", None)),
            "the publisher does not trust the authority of this client's certificate: show one of an authority that",
            "the certificate CN=unknown client is refused: its issuer, CN=other authority, is not among the trusted",
        ),
        (
            Some(own.issue("old client", "old", Some(2021))),
            "the publisher refuses this client's certificate, which has expired: have it renewed",
            "the certificate CN=old client is refused: it has expired on 2021-01-01: have it renewed",
        ),
    ] {
        let before = log().lines().count();
        let address = match &shown {
            Some((certificate, key)) => address().identity(certificate, key),
            None => address(),
        };
        let refused = refusal_of(address).await;
        // The connection may end before its alert is read.
        let says_why = refused.contains(words)
            || refused.contains("the publisher may want a certificate of this client, or not accept it");
        assert!(says_why && !refused.contains("fatal alert"), "{refused}");
        until_logged(before, &["has ended without a request", logged]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_without_tls_is_said_to_have_none() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("plain"));
    let serving = serve(&journal).await;
    let refused = refusal_of(at(&serving).tls(Authority::new("own authority").pem())).await;
    assert!(refused.contains("the publisher may not speak TLS at this port"), "{refused}");
}
