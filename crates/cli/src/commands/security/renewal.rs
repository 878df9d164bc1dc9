//! `mainstem security cert NAME --renew`: replaces the key and certificate of a file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use mainstem_security::store::{KeyStore, StorePasswords};
use mainstem_security::x509::CertificateInfo;

use super::certificates::Authority;
use crate::output::shown;
use mainstem_broker::config::files;

/// The parts of a certificate that its renewal keeps.
pub(super) struct Present {
    info: CertificateInfo,
    /// The name in its subject.
    pub(super) name: String,
    /// The hosts of a server; empty for a client.
    pub(super) hosts: Vec<String>,
    /// Its validity in days when it was made.
    pub(super) days: u32,
}

impl Present {
    /// Reads the key and the certificate of a file that `security init` or `security cert` has made.
    ///
    /// # Errors
    /// When it is missing, has another form, or is not of this authority.
    pub(super) fn read(path: &Path, authority: &Authority) -> Result<Present> {
        let shown_path = path.display().to_string();
        let bytes = files::read(path).with_context(|| {
            format!("cannot read {shown_path}, which is to be renewed; without --renew a new one is made")
        })?;
        let store = KeyStore::open(&shown_path, &bytes, StorePasswords { store: None, key: None })?;
        let [entry] = store.keys.as_slice() else {
            bail!(
                "{shown_path} has {} keys; a file with one key and its certificate is renewed",
                store.keys.len()
            );
        };
        let certificate = entry.chain.first().with_context(|| format!("{shown_path} has no certificate"))?;
        let info = CertificateInfo::parse(certificate).with_context(|| shown_path.clone())?;
        ensure!(
            authority.has_issued(&info),
            "{shown_path} is not of the authority that is here, but of {}: who issued it renews it, or a new one is made without \
             --renew, by another name",
            shown(&info.issuer)
        );
        let name = info.subject.strip_prefix("CN=").filter(|name| !name.contains(['=', ',', '\\']));
        let name = name.with_context(|| {
            format!(
                "{shown_path} is of {}, which is no name alone: it was not made here",
                shown(&info.subject)
            )
        })?;
        let (name, hosts) = (name.to_owned(), info.hosts());
        ensure!(
            hosts.len() == info.alternative_names.len(),
            "{shown_path} has other names than those of hosts: it was not made here"
        );
        ensure!(
            info.is_for_clients() && info.is_for_servers() != hosts.is_empty(),
            "{shown_path} is for other uses than those that this command gives: it was not made here"
        );
        // It is valid from the day before, and for the whole of its last day.
        let days = u32::try_from((info.not_after - info.not_before) / 86_400 - 2).unwrap_or(1).max(1);
        Ok(Present { info, name, hosts, days })
    }

    /// The end of its validity, in milliseconds since 1970.
    pub(super) fn ends_ms(&self) -> i64 {
        self.info.not_after.saturating_mul(1_000)
    }
}

/// Replaces a file atomically: writes a file beside it, syncs it and renames it. Owner and group stay those of the
/// file, and so does its mode, but for the permissions of others.
///
/// The system's; the file is unchanged then.
pub(super) fn replace(path: &Path, text: &str) -> Result<()> {
    // The target of a symbolic link is replaced, not the link.
    let path = &fs::canonicalize(path).with_context(|| format!("cannot find {}", path.display()))?;
    let mut beside = path.clone().into_os_string();
    beside.push(".new");
    let beside = Path::new(&beside);
    // An earlier, interrupted call may have left it.
    let _ = fs::remove_file(beside);
    let written = write_beside(path, beside, text).and_then(|()| Ok(fs::rename(beside, path)?));
    if written.is_err() {
        let _ = fs::remove_file(beside);
    }
    written.with_context(|| format!("cannot replace {}, which is as it was", path.display()))?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.with_context(|| format!("{} is renewed, and a power cut may take that back", path.display()))
}

fn write_beside(path: &Path, beside: &Path, text: &str) -> Result<()> {
    let before = fs::metadata(path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(beside)?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (before.uid(), before.gid()) {
        fchown(&file, Some(before.uid()), Some(before.gid()))
            .context("who owns it could not read the new one: renew it as that user, or as root")?;
    }
    file.set_permissions(Permissions::from_mode(before.mode() & 0o660 | 0o600))?;
    file.write_all(text.as_bytes())?;
    Ok(file.sync_all()?)
}
