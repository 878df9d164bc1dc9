//! Listeners with TLS and SASL, the same ones on both brokers.

use std::net::TcpListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mainstem_broker::EmbeddedBroker;
use mainstem_testkit::port;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::kafka::KafkaPeer;
use super::{Broker, Release, World};
use crate::{Admin, ClientConfig, Sasl, ScramMechanism, Tls};

/// The names of the listeners, and their protocols.
const LISTENERS: [(&str, &str); 5] =
    [(TLS, "SSL"), (MUTUAL, "SSL"), (ELSEWHERE, "SSL"), (LOGIN, "SASL_SSL"), (SESSIONS, "SASL_SSL")];
/// The listener with a certificate of this host.
pub(crate) const TLS: &str = "TLS";
/// The listener that asks for a client certificate, too.
pub(crate) const MUTUAL: &str = "MUTUAL";
/// The listener with a certificate of another host.
pub(crate) const ELSEWHERE: &str = "ELSEWHERE";
/// The listener that asks for a password.
pub(crate) const LOGIN: &str = "LOGIN";
/// The listener that ends sessions after [`SESSION`]. Clients reach it through the proxy of one test.
pub(crate) const SESSIONS: &str = "SESSIONS";
/// The length of a session that is not renewed.
pub(crate) const SESSION: Duration = Duration::from_secs(5);
/// The user, and the password.
pub(crate) const USER: (&str, &str) = ("alice", "secret");
const MECHANISMS: [&str; 3] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];
const USERS_LIMIT: Duration = Duration::from_secs(60);

/// An issuer of certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), certificate }
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

    /// Trusts brokers whose certificates it has issued.
    pub(crate) fn tls(&self) -> Tls {
        Tls::trusting(&self.certificate).unwrap()
    }

    /// The same, and shows a certificate that `issuer` has issued.
    pub(crate) fn mutual(&self, issuer: &Authority) -> Tls {
        let (chain, key) = issuer.issue("alice", &[]);
        Tls::mutual(&self.certificate, &chain, &key).unwrap()
    }
}

/// The listeners of one broker.
pub(crate) struct SecuredListeners {
    pub(crate) authority: Authority,
    directory: PathBuf,
    ports: [u16; LISTENERS.len()],
    proxy_port: u16,
    /// A socket at the address that [`SESSIONS`] advertises, until a test takes it.
    proxy: Mutex<Option<StdListener>>,
}

impl SecuredListeners {
    /// Writes the key stores into a directory.
    pub(super) fn new(directory: &Path) -> SecuredListeners {
        let authority = Authority::new("an authority of tests");
        std::fs::write(directory.join("ca.pem"), &authority.certificate).unwrap();
        for (file, names) in
            [("here.pem", &["localhost", "127.0.0.1"][..]), ("elsewhere.pem", &["elsewhere.example"][..])]
        {
            let (certificate, key) = authority.issue("broker", names);
            std::fs::write(directory.join(file), key + &certificate).unwrap();
        }
        let proxy = StdListener::bind("127.0.0.1:0").unwrap();
        SecuredListeners {
            authority,
            directory: directory.to_owned(),
            ports: LISTENERS.map(|_| port()),
            proxy_port: proxy.local_addr().unwrap().port(),
            proxy: Mutex::new(Some(proxy)),
        }
    }

    fn port(&self, listener: &str) -> u16 {
        let at = LISTENERS.iter().position(|(name, _)| *name == listener);
        self.ports[at.expect("there is such a listener")]
    }

    /// For `listeners`, each after a comma.
    pub(super) fn listeners(&self) -> String {
        LISTENERS.iter().map(|(name, _)| format!(",{name}://127.0.0.1:{}", self.port(name))).collect()
    }

    /// For `advertised.listeners`, each after a comma.
    pub(super) fn advertised(&self) -> String {
        let of = |name: &str| if name == SESSIONS { self.proxy_port } else { self.port(name) };
        LISTENERS.iter().map(|(name, _)| format!(",{name}://127.0.0.1:{}", of(name))).collect()
    }

    /// For `listener.security.protocol.map`, each after a comma.
    pub(super) fn protocols() -> String {
        LISTENERS.iter().map(|(name, protocol)| format!(",{name}:{protocol}")).collect()
    }

    /// The properties of the listeners.
    pub(super) fn settings(&self) -> Vec<(String, String)> {
        let path = |file: &str| self.directory.join(file).to_str().unwrap().to_owned();
        let mut settings = vec![("sasl.enabled.mechanisms".to_owned(), MECHANISMS.join(","))];
        for (name, protocol) in LISTENERS {
            let store = if name == ELSEWHERE { "elsewhere.pem" } else { "here.pem" };
            let mut set = |key: &str, value: String| {
                settings.push((format!("listener.name.{}.{key}", name.to_lowercase()), value));
            };
            set("ssl.keystore.type", "PEM".to_owned());
            set("ssl.keystore.location", path(store));
            set("ssl.truststore.type", "PEM".to_owned());
            set("ssl.truststore.location", path("ca.pem"));
            if name == MUTUAL {
                set("ssl.client.auth", "required".to_owned());
            }
            if protocol == "SSL" {
                continue;
            }
            for mechanism in MECHANISMS {
                let key = mechanism.to_lowercase();
                set(&format!("{key}.sasl.jaas.config"), jaas(mechanism));
                if name == SESSIONS {
                    set(&format!("{key}.connections.max.reauth.ms"), SESSION.as_millis().to_string());
                }
            }
        }
        settings
    }

    /// Creates the user of SCRAM by a plain listener, and waits until the broker knows it.
    pub(super) fn create_user(&self, plain: &str) {
        let (plain, login) = (ClientConfig::new(plain).unwrap(), self.client(LOGIN));
        let create = || async {
            let admin = Admin::new(plain.clone());
            for mechanism in [ScramMechanism::Sha256, ScramMechanism::Sha512] {
                admin.set_scram_credential(USER.0, mechanism, USER.1, 4096).await.unwrap();
            }
            let began = Instant::now();
            for mechanism in MECHANISMS {
                let sasl = Sasl::new(mechanism, USER.0, USER.1).unwrap();
                while let Err(error) = Admin::connect(login.clone().sasl(sasl.clone())).await {
                    assert!(began.elapsed() < USERS_LIMIT, "{mechanism}: {error}");
                }
            }
        };
        // A runtime of its own: the test's one waits for this.
        let run =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(create());
        std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    }

    /// The configuration for a listener with a certificate that is trusted. A connection that will be refused is refused long
    /// before its time limit.
    pub(crate) fn client(&self, listener: &str) -> ClientConfig {
        let address = format!("127.0.0.1:{}", self.port(listener));
        let config = ClientConfig { operation_timeout: USERS_LIMIT, ..ClientConfig::new(&address).unwrap() };
        config.tls(self.authority.tls())
    }

    /// Passes connections on to [`SESSIONS`], and counts them.
    pub(crate) fn counted(&self) -> CountedConnections {
        let listener = self.proxy.lock().take().expect("one test wants it");
        listener.set_nonblocking(true).unwrap();
        let (listener, to) = (TcpListener::from_std(listener).unwrap(), self.port(SESSIONS));
        let count = Arc::<AtomicUsize>::default();
        let counted = count.clone();
        let proxy = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let Ok(mut broker) = TcpStream::connect(("127.0.0.1", to)).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut broker).await;
                });
            }
        });
        let address = format!("127.0.0.1:{}", self.proxy_port);
        let client = ClientConfig::new(&address).unwrap().tls(self.authority.tls());
        CountedConnections { client, count, proxy }
    }
}

fn jaas(mechanism: &str) -> String {
    let module = "org.apache.kafka.common.security";
    match mechanism {
        "PLAIN" => format!("{module}.plain.PlainLoginModule required user_{}=\"{}\";", USER.0, USER.1),
        _ => format!("{module}.scram.ScramLoginModule required;"),
    }
}

/// The connections to one listener.
pub(crate) struct CountedConnections {
    /// The configuration of clients.
    pub(crate) client: ClientConfig,
    count: Arc<AtomicUsize>,
    proxy: JoinHandle<()>,
}

impl CountedConnections {
    /// The number of connections so far.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for CountedConnections {
    fn drop(&mut self) {
        self.proxy.abort();
    }
}

/// A broker with the listeners, and names that no other test uses.
pub(crate) struct SecuredWorld {
    pub(crate) world: World,
    listeners: Arc<SecuredListeners>,
    /// The stores of our broker.
    _directory: Option<tempfile::TempDir>,
}

impl std::ops::Deref for SecuredWorld {
    type Target = SecuredListeners;

    fn deref(&self) -> &SecuredListeners {
        &self.listeners
    }
}

impl SecuredWorld {
    /// A world with a broker of its own in this process.
    pub(crate) fn mainstem() -> SecuredWorld {
        let directory = tempfile::tempdir().unwrap();
        let listeners = SecuredListeners::new(directory.path());
        let plain = format!("PLAINTEXT://127.0.0.1:{}", port());
        let mut settings = listeners.settings();
        settings.extend([
            ("listeners".to_owned(), plain.clone() + &listeners.listeners()),
            ("advertised.listeners".to_owned(), plain + &listeners.advertised()),
            (
                "listener.security.protocol.map".to_owned(),
                "PLAINTEXT:PLAINTEXT".to_owned() + &SecuredListeners::protocols(),
            ),
        ]);
        let settings: Vec<(&str, &str)> =
            settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let broker = EmbeddedBroker::start(&[super::SETTINGS, settings.as_slice()].concat());
        listeners.create_user(broker.address());
        let world = World::new(Broker::Mainstem(Box::new(broker)));
        SecuredWorld { world, listeners: Arc::new(listeners), _directory: Some(directory) }
    }

    /// A world with Apache Kafka's broker of a release, which all tests of this process share. None, with a message, if it cannot
    /// run.
    pub(crate) fn kafka(release: &'static Release, test: &str) -> Option<SecuredWorld> {
        let kafka = KafkaPeer::broker(release, test)?;
        let listeners = kafka.secured().clone();
        Some(SecuredWorld { world: World::new(Broker::Kafka(kafka)), listeners, _directory: None })
    }
}
