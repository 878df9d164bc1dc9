//! Connections to listeners with TLS and SASL: who is believed, on either side, and sessions that are renewed under load.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

use std::time::{Duration, Instant};

use mainstem_broker::EmbeddedBroker;
use mainstem_client::{
    Admin, ClientConfig, Consumer, ConsumerConfig, Error, ErrorClass, NewTopic, Position, Producer,
    ProducerConfig, Record, Sasl, Tls, TopicPartition,
};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};

/// An authority of a test, and the files of its broker.
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

    /// A certificate of these names, and its key.
    fn issue(&self, subject: &str, names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn broker(&self, protocol: &str, names: &[&str], settings: &[(&str, &str)]) -> EmbeddedBroker {
        let (certificate, key) = self.issue("broker", names);
        let path = |name: &str| self.dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("broker.pem"), key + &certificate).unwrap();
        let (store, trust) = (path("broker.pem"), path("ca.pem"));
        let jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required user_alice=\"secret\";";
        let listeners = format!("{protocol}://127.0.0.1:0");
        let own = [
            ("listeners", listeners.as_str()),
            ("sasl.enabled.mechanisms", "PLAIN"),
            ("listener.name.sasl_ssl.plain.sasl.jaas.config", jaas),
            ("ssl.keystore.type", "PEM"),
            ("ssl.keystore.location", &store),
            ("ssl.truststore.type", "PEM"),
            ("ssl.truststore.location", &trust),
        ];
        EmbeddedBroker::start(&[&own[..], settings].concat())
    }

    fn tls(&self) -> Tls {
        Tls::trusting(&self.certificate).unwrap()
    }
}

const NAMES: &[&str] = &["localhost", "127.0.0.1"];

/// Writes so many records and reads them back, in their order.
async fn round_trip(config: ClientConfig, count: usize) -> Result<(), Error> {
    let producer = Producer::new(ProducerConfig::new(config.clone()))?;
    let value = |number: usize| format!("{number}:{}", "x".repeat(number % 2000));
    let mut sent = Vec::new();
    for number in 0..count {
        sent.push(producer.send(Record::new("orders", value(number))).await?);
    }
    for delivery in sent {
        delivery.await?;
    }
    let mut consumer = Consumer::new(ConsumerConfig::new(config))?;
    consumer.assign([(TopicPartition::new("orders", 0), Position::Beginning)]);
    let mut read = 0;
    while read < count {
        for record in consumer.next().await?.owned_records() {
            assert_eq!(record?.value.as_deref(), Some(value(read).as_bytes()), "record {read}");
            read += 1;
        }
    }
    Ok(())
}

#[tokio::test]
async fn records_go_both_ways_over_a_session() {
    let authority = Authority::new("ours");
    let broker = authority.broker("SSL", NAMES, &[]);
    let config = ClientConfig::new(broker.address()).unwrap().tls(authority.tls());
    round_trip(config, 5000).await.unwrap();
}

/// What connecting is refused with, at once, though there would be time for more attempts.
async fn refused(config: ClientConfig) -> Error {
    let began = Instant::now();
    let error = match Admin::connect(config).await {
        Ok(admin) => admin.topics().await.map(|_| ()).expect_err("it is refused"),
        Err(error) => error,
    };
    assert!(began.elapsed() < Duration::from_secs(5), "{error}");
    assert_eq!(error.class(), ErrorClass::Fatal, "{error}");
    error
}

#[tokio::test]
async fn a_broker_is_believed_by_its_issuer_and_its_name() {
    let (authority, strangers) = (Authority::new("ours"), Authority::new("theirs"));
    let broker = authority.broker("SSL", NAMES, &[]);
    let config = ClientConfig::new(broker.address()).unwrap();
    let error = refused(config.clone().tls(strangers.tls())).await.to_string();
    assert!(error.contains("UnknownIssuer") && error.contains("ssl.truststore.location"), "{error}");
    let other = authority.broker("SSL", &["elsewhere.example"], &[]);
    let error = refused(ClientConfig::new(other.address()).unwrap().tls(authority.tls())).await.to_string();
    assert!(error.contains("connect to a name that the broker's certificate has"), "{error}");
}

#[tokio::test]
async fn who_has_no_certificate_that_is_believed_is_reported_at_once() {
    let (authority, strangers) = (Authority::new("ours"), Authority::new("theirs"));
    let broker = authority.broker("SSL", NAMES, &[("ssl.client.auth", "required")]);
    let config = ClientConfig::new(broker.address()).unwrap();
    let show = |(chain, key): (String, String)| Tls::mutual(&authority.certificate, &chain, &key).unwrap();
    round_trip(config.clone().tls(show(authority.issue("alice", &[]))), 10).await.unwrap();
    for tls in [authority.tls(), show(strangers.issue("mallory", &[]))] {
        let error = refused(config.clone().tls(tls)).await.to_string();
        assert!(error.contains("show a certificate that the broker trusts"), "{error}");
    }
}

#[tokio::test]
async fn a_password_is_shown_within_a_session() {
    let authority = Authority::new("ours");
    let broker = authority.broker("SASL_SSL", NAMES, &[]);
    let config = ClientConfig::new(broker.address()).unwrap().tls(authority.tls());
    round_trip(config.clone().sasl(Sasl::plain("alice", "secret")), 10).await.unwrap();
    let error = refused(config.sasl(Sasl::plain("alice", "wrong"))).await.to_string();
    assert!(error.contains("Invalid username or password"), "{error}");
}

#[tokio::test]
async fn protocols_that_do_not_fit_are_reported() {
    let authority = Authority::new("ours");
    let plain = EmbeddedBroker::start(&[]);
    let mut config = ClientConfig::new(plain.address()).unwrap().tls(authority.tls());
    config.operation_timeout = Duration::from_secs(1);
    assert!(Admin::connect(config).await.is_err());
}

#[tokio::test]
async fn sessions_are_renewed_while_records_are_sent() {
    let authority = Authority::new("ours");
    let broker = authority.broker("SASL_SSL", NAMES, &[("connections.max.reauth.ms", "1300")]);
    let config = ClientConfig::new(broker.address()).unwrap().tls(authority.tls());
    let config = config.sasl(Sasl::plain("alice", "secret"));
    let admin = Admin::connect(config.clone()).await.unwrap();
    admin.create_topic(&NewTopic { partitions: Some(1), ..NewTopic::new("orders") }).await.unwrap();
    let producer = Producer::new(ProducerConfig::new(config.clone())).unwrap();
    let (began, mut sent) = (Instant::now(), Vec::new());
    while began.elapsed() < Duration::from_secs(5) {
        sent.push(producer.send(Record::new("orders", sent.len().to_string())).await.unwrap());
        if sent.len() % 100 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let count = sent.len();
    for (number, delivery) in sent.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, Some(number as i64), "in order, once");
    }
    admin.topics().await.unwrap();
    assert!(count > 1000, "{count} records");
}
