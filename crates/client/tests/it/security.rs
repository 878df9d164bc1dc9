//! Tests that differ between brokers, or concern the whole process: see `src/secured_brokers.rs` for the rest.
#![allow(clippy::print_stdout, reason = "a process of its own says how it went")]

use std::process::Command;

use mainstem_broker::EmbeddedBroker;
use mainstem_client::{Admin, ClientConfig, ErrorClass, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// An authority of a test, with the files of a broker.
struct Authority {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), &certificate).unwrap();
        Authority { issuer: Issuer::new(params, key), certificate, dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A broker with an SSL listener that shows a certificate of this authority.
    fn broker(&self) -> EmbeddedBroker {
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let store = self.path("broker.pem");
        std::fs::write(&store, key.serialize_pem() + &certificate).unwrap();
        EmbeddedBroker::start(&[
            ("listeners", "SSL://127.0.0.1:0"),
            ("ssl.keystore.type", "PEM"),
            ("ssl.keystore.location", &store),
        ])
    }
}

/// It differs from the error of a broker that cannot be reached: another attempt would not help.
#[tokio::test]
async fn a_listener_without_tls_is_reported_at_once() {
    let authority = Authority::new("ours");
    let plain = EmbeddedBroker::start(&[]);
    let tls = Tls::trusting(&authority.certificate).unwrap();
    let error = Admin::connect(ClientConfig::new(plain.address()).unwrap().tls(tls)).await.map(|_| ());
    let error = error.expect_err("there is no TLS");
    assert_eq!(error.class(), ErrorClass::Fatal, "{error}");
    assert!(error.to_string().contains("the broker may not speak TLS at this port"), "{error}");
}

const ADDRESS: &str = "MAINSTEM_TEST_ADDRESS";

/// The system's authorities are those of the process: this one is started again for each that is the test's.
#[tokio::test]
async fn a_broker_is_believed_by_the_authorities_of_the_system() {
    if let Ok(address) = std::env::var(ADDRESS) {
        return connect_by_the_system(&address).await;
    }
    let (authority, untrusted) = (Authority::new("ours"), Authority::new("theirs"));
    let broker = authority.broker();
    let connect = |system: &Authority| {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args([
            "--exact",
            "security::a_broker_is_believed_by_the_authorities_of_the_system",
            "--nocapture",
        ]);
        process.env("SSL_CERT_FILE", system.path("ca.pem")).env_remove("SSL_CERT_DIR");
        process.env(ADDRESS, broker.address()).output().unwrap()
    };
    let (believed, refused) = std::thread::scope(|scope| {
        let (ours, theirs) = (scope.spawn(|| connect(&authority)), scope.spawn(|| connect(&untrusted)));
        (ours.join().unwrap(), theirs.join().unwrap())
    });
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said(&believed).contains("connected"), "{believed:?}");
    assert!(said(&refused).contains("is not in the trust store"), "{refused:?}");
}

/// The test above starts this in a process of its own, which prints the outcome.
async fn connect_by_the_system(address: &str) {
    let config = ClientConfig::new(address).unwrap().tls(Tls::system().unwrap());
    match Admin::connect(config).await {
        Ok(admin) => println!("connected to {:?}", admin.nodes().await.unwrap()),
        Err(error) => println!("{error}"),
    }
}
