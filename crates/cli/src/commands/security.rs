//! `mainstem security`: certificates and settings of a broker that asks who its clients are.

mod certificates;
mod check;
mod renewal;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use mainstem_broker::bootstrap_file;
use mainstem_security::Secret;
use mainstem_security::scram::{ScramCredential, ScramMechanism};
use serde_json::json;

use self::certificates::{Authority, Issued};
use self::renewal::Present;
use crate::output::{print, print_json, print_line};
use crate::timestamp;

/// The letters of random passwords, without those that look alike.
const LETTERS: &[u8] = b"abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
/// Letters of a random password: 186 bits.
const PASSWORD_LETTERS: usize = 32;

/// Bytes of a salt, as many as the admin client uses for AlterUserScramCredentials.
const SALT_BYTES: usize = 32;
/// Iterations of SCRAM for the administrator's password.
const ITERATIONS: u32 = 8192;

/// The default validity of certificates, in days: two years.
const DAYS: u32 = 730;
const MS_PER_DAY: i64 = 86_400_000;

/// Arguments of `security`.
#[derive(Debug, Args)]
pub(crate) struct SecurityArguments {
    #[command(subcommand)]
    command: SecurityCommand,
}

#[derive(Debug, Subcommand)]
enum SecurityCommand {
    /// Make an authority, certificates, an administrator and the settings of a broker; nothing is overwritten.
    Init(Init),
    /// Make a certificate of a client or a server by the authority that `init` has made, or renew one.
    Cert(Cert),
    /// Make a secret by which the nodes of a cluster prove to each other that they are its nodes; nothing is overwritten.
    NodeSecret(NodeSecret),
    /// Say what a listener shows: its certificates, whether they are trusted, and how clients log in.
    Check(check::Check),
}

/// Arguments of `security init`.
#[derive(Debug, Args)]
struct Init {
    /// The directory to write to. It is created.
    #[arg(default_value = "mainstem-security", value_name = "DIR")]
    dir: PathBuf,
    /// The address to listen on. One of all interfaces, such as 0.0.0.0:9092, needs --host.
    #[arg(long, default_value = "localhost:9092", value_name = "HOST:PORT")]
    listen: String,
    /// A name or an address by which clients reach the broker; may be given several times. The broker advertises the first one.
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// The validity of the certificates of the broker and the administrator, in days.
    #[arg(long, default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=i64::from(certificates::AUTHORITY_DAYS)))]
    days: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `security cert`.
#[derive(Debug, Args)]
struct Cert {
    /// The name of the client or the host: key and certificate are in the file NAME.pem.
    name: String,
    /// The directory in which `init` has put the authority.
    #[arg(long, default_value = "mainstem-security", value_name = "DIR")]
    dir: PathBuf,
    /// A host name or an address of a server; may be given several times. A renewed certificate keeps its names without this option.
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// The validity in days. [default: 730; with --renew as many as before]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: Option<u32>,
    /// Replace the key and certificate in NAME.pem (`server` and `admin` for those of `init`). The new ones have the
    /// same subject, names and uses. A running broker takes them within ten seconds.
    #[arg(long)]
    renew: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `security node-secret`.
#[derive(Debug, Args)]
struct NodeSecret {
    /// The file to write, readable by its owner alone. Missing folders are created.
    #[arg(default_value = "node.secret", value_name = "FILE")]
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &SecurityArguments) -> Result<()> {
    match &arguments.command {
        SecurityCommand::Init(arguments) => init(arguments),
        SecurityCommand::Cert(arguments) => cert(arguments),
        SecurityCommand::NodeSecret(arguments) => node_secret(arguments),
        SecurityCommand::Check(arguments) => check::run(arguments),
    }
}

/// A random password.
pub(crate) fn random_password() -> Result<String> {
    let mut password = String::new();
    while password.len() < PASSWORD_LETTERS {
        let mut bytes = [0; 64];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .context("the system has no random bytes")?;
        // Bytes beyond the last whole multiple of the count of letters are skipped, so that all letters are equally likely.
        let fair = 256 / LETTERS.len() * LETTERS.len();
        let letters = bytes.iter().filter(|byte| usize::from(**byte) < fair);
        password.extend(letters.map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])));
    }
    password.truncate(PASSWORD_LETTERS);
    Ok(password)
}

fn init(arguments: &Init) -> Result<()> {
    let Init { dir, listen, days, .. } = arguments;
    let place = Place::of(listen, &arguments.host)?;
    let is_new = !dir.exists();
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let dir = fs::canonicalize(dir).with_context(|| format!("cannot find {}", dir.display()))?;
    // The administrator is in the bootstrap file of the metadata.
    ensure!(
        !dir.join("data").exists(),
        "{} is there already, and nothing is overwritten: choose another directory",
        dir.join("data").display()
    );
    let names = [
        "ca.pem",
        "ca.key",
        "server.pem",
        "admin.pem",
        "node.secret",
        "server.properties",
        "admin.properties",
    ];
    if let Some(there) = names.iter().map(|name| dir.join(name)).find(|path| path.exists()) {
        anyhow::bail!(
            "{} is there already, and nothing is overwritten: choose another directory",
            there.display()
        );
    }
    if is_new {
        fs::set_permissions(&dir, Permissions::from_mode(0o700))
            .with_context(|| format!("cannot change the mode of {}", dir.display()))?;
    }
    let authority = Authority::new()?;
    let server = authority.issue("broker", &certificates::own_hosts(&place.names()), *days)?;
    let admin = authority.issue("admin", &[], *days)?;
    let password = random_password()?;
    write(&dir, "ca.pem", &authority.certificate, 0o644)?;
    write(&dir, "ca.key", &authority.key, 0o600)?;
    write(&dir, "server.pem", &server.pem(), 0o600)?;
    write(&dir, "admin.pem", &admin.pem(), 0o600)?;
    write(&dir, "node.secret", &format!("{}\n", random_password()?), 0o600)?;
    let data = dir.join("data");
    DirBuilder::new().mode(0o700).create(&data).with_context(|| format!("cannot make {}", data.display()))?;
    let (name, users) = first_users(&password)?;
    write_bytes(&data, name, &users, 0o600)?;
    write(&dir, "server.properties", &server_properties(&dir, &place), 0o600)?;
    write(&dir, "admin.properties", &admin_properties(&dir, &password), 0o600)?;
    if arguments.json {
        return print_json(
            &json!({ "dir": dir, "listen": listen, "bootstrap": place.bootstrap, "files": names }),
        );
    }
    print(&format!(
        "made {}: an authority, certificates, the administrator admin, and settings\n\n\
         mainstem start --config {}\n\
         mainstem topic list --bootstrap {} --command-config {}",
        dir.display(),
        dir.join("server.properties").display(),
        place.bootstrap,
        dir.join("admin.properties").display(),
    ))
}

/// The addresses of the broker: to listen on, and for clients.
struct Place<'a> {
    listen: &'a str,
    /// The host in `listen`, without brackets.
    host: &'a str,
    /// Further names of the host.
    hosts: &'a [String],
    /// The advertised address, which may differ from `listen`.
    bootstrap: String,
}

impl<'a> Place<'a> {
    fn of(listen: &'a str, hosts: &'a [String]) -> Result<Place<'a>> {
        let parts = listen.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
        let (host, port) = parts
            .with_context(|| format!("--listen takes HOST:PORT, such as localhost:9092, not {listen:?}"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        ensure!(
            !hosts.is_empty() || !["", "0.0.0.0", "::"].contains(&host),
            "{listen} is every address of this host, and none that a client can connect to: say by --host NAME how \
             clients reach the broker"
        );
        let bootstrap = match hosts.first() {
            Some(first) if first.contains(':') => format!("[{first}]:{port}"),
            Some(first) => format!("{first}:{port}"),
            None => listen.to_owned(),
        };
        Ok(Place { listen, host, hosts, bootstrap })
    }

    /// The hosts in the broker's certificate.
    fn names(&self) -> Vec<&str> {
        let listened = Some(self.host).filter(|host| !["", "0.0.0.0", "::"].contains(host));
        listened.into_iter().chain(self.hosts.iter().map(String::as_str)).collect()
    }
}

fn cert(arguments: &Cert) -> Result<()> {
    let Cert { name, dir, host, days, renew, .. } = arguments;
    ensure!(
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)),
        "a name has letters, digits, -, _ and . alone, as it becomes that of a file"
    );
    let read = |file: &str| {
        let path = dir.join(file);
        fs::read_to_string(&path).with_context(|| {
            format!(
                "cannot read {}: certificate and key of the authority are in ca.pem and ca.key, so run this where they are kept (--dir); \
                 where there is none yet `mainstem security init {}` makes one",
                path.display(),
                dir.display()
            )
        })
    };
    let authority = Authority::from_pem(&read("ca.pem")?, &read("ca.key")?)?;
    let file = format!("{name}.pem");
    let path = dir.join(&file);
    if *renew {
        return renew_cert(arguments, &authority, &path);
    }
    ensure!(
        path.symlink_metadata().is_err(),
        "{} is there already, and nothing is overwritten: --renew puts a new key and certificate in its place",
        path.display()
    );
    let issued: Issued = authority.issue(name, host, days.unwrap_or(DAYS))?;
    write(dir, &file, &issued.pem(), 0o600)?;
    match arguments.json {
        true => print_json(&json!({ "file": path })),
        false => print_line(&format!("made {}: a key and its certificate", path.display())),
    }
}

/// Advice for a certificate with the same names: a broker takes the file by itself, a client does not.
const TAKEN: &str = "a broker whose key store this file is shows it to new connections within ten seconds, without a restart; a client reads \
                     its own when it starts: start it again";
/// The same for a certificate with other names.
const TAKEN_WITH_OTHER_NAMES: &str = "its names have changed: a broker that runs takes it with ssl.allow.san.changes=true alone, or start it \
                                      again";

/// Returns true if two lists name the same hosts, in any order and spelling.
fn is_same_set(one: &[String], other: &[String]) -> bool {
    let plain = |host: &String| match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => host.to_ascii_lowercase(),
    };
    let set = |hosts: &[String]| hosts.iter().map(plain).collect::<BTreeSet<_>>();
    set(one) == set(other)
}

fn renew_cert(arguments: &Cert, authority: &Authority, path: &Path) -> Result<()> {
    let present = Present::read(path, authority)?;
    let hosts = if arguments.host.is_empty() { &present.hosts } else { &arguments.host };
    let issued = authority.issue(&present.name, hosts, arguments.days.unwrap_or(present.days))?;
    renewal::replace(path, &issued.pem())?;
    let now_ms = timestamp::now_ms();
    let (before, ends_ms) = (present.ends_ms(), issued.ends_ms);
    if arguments.json {
        return print_json(&json!({
            "file": path,
            "name": present.name,
            "hosts": hosts,
            "expires": timestamp::format(ends_ms),
            "expired": timestamp::format(before),
        }));
    }
    let left = |ms: i64| match (ms - now_ms) / MS_PER_DAY {
        days @ 1.. => format!("{days} days"),
        _ if ms > now_ms => "less than a day".to_owned(),
        _ => "it has ended".to_owned(),
    };
    let said = |ms: i64| format!("{} ({})", timestamp::format(ms), left(ms));
    let taken = if is_same_set(hosts, &present.hosts) { TAKEN } else { TAKEN_WITH_OTHER_NAMES };
    let names = if hosts.is_empty() { String::new() } else { format!(", for {}", hosts.join(", ")) };
    print(&format!(
        "renewed {}: a new key and certificate of CN={}{names}\nends    {}\nbefore  {}\n\n{taken}",
        path.display(),
        present.name,
        said(ends_ms),
        said(before)
    ))
}

fn node_secret(arguments: &NodeSecret) -> Result<()> {
    let file = &arguments.file;
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = file.file_name().with_context(|| format!("{} is no name of a file", file.display()))?;
    ensure!(
        file.symlink_metadata().is_err(),
        "{} is there already, and nothing is overwritten: choose another name",
        file.display()
    );
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    write_bytes(dir, name, format!("{}\n", random_password()?).as_bytes(), 0o600)?;
    match arguments.json {
        true => print_json(&json!({ "file": file })),
        false => print(&format!(
            "made {}: a secret. Copy it to each node of the cluster, and name it there:\n\n\
             mainstem.node.secret.location={}",
            file.display(),
            file.display()
        )),
    }
}

/// The bootstrap file of the metadata, with its name. It holds the administrator's credential, not the password.
fn first_users(password: &str) -> Result<(&'static str, Vec<u8>)> {
    let mut salt = [0; SALT_BYTES];
    rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())
        .context("the system has no random bytes")?;
    let mechanism = ScramMechanism::Sha512;
    let credential = ScramCredential::new(mechanism, &Secret::from(password), salt, ITERATIONS)?;
    Ok(bootstrap_file(&[("admin", mechanism, &credential)], timestamp::now_ms()))
}

/// Writes a new file; an existing one is an error.
fn write(dir: &Path, name: &str, text: &str, mode: u32) -> Result<()> {
    write_bytes(dir, name, text.as_bytes(), mode)
}

fn write_bytes(dir: &Path, name: impl AsRef<Path>, bytes: &[u8], mode: u32) -> Result<()> {
    let path = dir.join(name);
    let what = || format!("cannot write {}", path.display());
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).with_context(what)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).with_context(what)
}

fn server_properties(dir: &Path, place: &Place<'_>) -> String {
    let (dir, listen) = (dir.display(), place.listen);
    let advertised = match place.hosts.is_empty() {
        true => String::new(),
        false => format!("advertised.listeners=SASL_SSL://{}\n", place.bootstrap),
    };
    format!(
        "# A broker whose clients prove who they are and may do what rules allow.\n\
         process.roles=broker,controller\n\
         node.id=1\n\
         log.dirs={dir}/data\n\
         listeners=SASL_SSL://{listen}\n\
         {advertised}\
         mainstem.require.authentication=true\n\
         \n\
         ssl.keystore.type=PEM\n\
         ssl.keystore.location={dir}/server.pem\n\
         ssl.truststore.type=PEM\n\
         ssl.truststore.location={dir}/ca.pem\n\
         \n\
         # Where controller.quorum.voters names more nodes, each of them has this file, which is what they prove themselves by.\n\
         mainstem.node.secret.location={dir}/node.secret\n\
         \n\
         # The administrator is in the metadata from the first start on; other users are made by `mainstem user create`.\n\
         sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256\n\
         \n\
         authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
         super.users=User:admin\n"
    )
}

fn admin_properties(dir: &Path, password: &str) -> String {
    let dir = dir.display();
    format!(
        "# How the administrator connects, for this tool and Kafka's own.\n\
         security.protocol=SASL_SSL\n\
         ssl.truststore.type=PEM\n\
         ssl.truststore.location={dir}/ca.pem\n\
         sasl.mechanism=SCRAM-SHA-512\n\
         sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
         username=\"admin\" password=\"{password}\";\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_differ_and_have_their_length() {
        let (one, other) = (random_password().expect("random"), random_password().expect("random"));
        assert_ne!(one, other);
        assert!(one.len() == PASSWORD_LETTERS && one.bytes().all(|byte| LETTERS.contains(&byte)));
    }
}
