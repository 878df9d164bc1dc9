//! Profiles: clusters that the tool knows by a name, in a file of the user's.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

/// The environment variable with the name of a profile.
pub(crate) const VARIABLE: &str = "MAINSTEM_PROFILE";

/// A cluster, and how to connect to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    /// Brokers to connect to first, separated by commas.
    pub(crate) bootstrap: String,
    /// A file of Kafka's properties of clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) command_config: Option<PathBuf>,
}

/// All profiles of a user.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profiles {
    /// The name of the profile that is used where no other is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) used: Option<String>,
    /// Each by its name.
    #[serde(default)]
    pub(crate) profiles: BTreeMap<String, Profile>,
}

/// The path of the file: `$XDG_CONFIG_HOME/mainstem/profiles`, or below `~/.config` without that variable; none for a user without a
/// home.
pub(crate) fn path() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = of("XDG_CONFIG_HOME").or_else(|| Some(of("HOME")?.join(".config")))?;
    Some(config.join("mainstem/profiles"))
}

/// The path, for commands that need it.
///
/// # Errors
/// When the user has no home.
pub(crate) fn path_or_error() -> Result<PathBuf> {
    path().context(
        "profiles have no place, as neither XDG_CONFIG_HOME nor HOME names a directory; set one of them",
    )
}

impl Profiles {
    /// The profiles of this user; none where there is no file yet.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn load() -> Result<Profiles> {
        path().map_or_else(|| Ok(Profiles::default()), |path| Profiles::read(&path))
    }

    /// The profiles in a file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Profiles> {
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Profiles::default()),
            read => read.with_context(|| format!("the profiles in {} cannot be read", path.display()))?,
        };
        serde_json::from_slice(&bytes).with_context(|| {
            format!(
                "the profiles in {} are not as `mainstem profile` writes them; repair or remove it",
                path.display()
            )
        })
    }

    /// The profile of a name.
    ///
    /// # Errors
    /// If it does not exist.
    pub(crate) fn get(&self, name: &str) -> Result<&Profile> {
        self.profiles.get(name).ok_or_else(|| {
            anyhow!("there is no profile {name}; `mainstem profile list` shows those that are, `mainstem profile add` makes one")
        })
    }

    /// Writes the file atomically, readable by its owner alone.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let dir = path.parent().context("the file of profiles has a directory")?;
        let written = || format!("the profiles cannot be written to {}", path.display());
        DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(written)?;
        let beside = path.with_extension(format!("new-{}", std::process::id()));
        let replaced = write_new(&beside, &serde_json::to_vec_pretty(self)?)
            .and_then(|()| fs::rename(&beside, path))
            .and_then(|()| fs::File::open(dir)?.sync_all());
        if replaced.is_err() {
            // An incomplete file has no use.
            let _ = fs::remove_file(&beside);
        }
        replaced.with_context(written)
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.write_all(b"\n")?;
    file.sync_all()
}

/// Refuses a name that could be taken for something else.
///
/// # Errors
/// Says which characters a name may have.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    ensure!(
        !name.is_empty() && name.chars().all(is_plain) && !name.starts_with('-'),
        "the name of a profile has letters, digits, -, _ and ., such as production-eu"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_is_its_owners() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("mainstem/profiles");
        assert_eq!(Profiles::read(&path).unwrap(), Profiles::default());
        let profile = Profile { bootstrap: "a:1".into(), command_config: Some("/c".into()) };
        let mut profiles =
            Profiles { used: Some("a".into()), profiles: BTreeMap::from([("a".to_owned(), profile)]) };
        profiles.write(&path).unwrap();
        profiles.used = None;
        profiles.write(&path).unwrap();
        assert_eq!(Profiles::read(&path).unwrap(), profiles);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 1, "nothing is left beside it");
        fs::write(&path, "x").unwrap();
        let error = Profiles::read(&path).unwrap_err().to_string();
        assert!(error.contains("are not as `mainstem profile` writes them"), "{error}");
    }

    #[test]
    fn names_are_plain() {
        for name in ["a", "production-eu_2.x"] {
            check_name(name).unwrap();
        }
        for name in ["", "-a", "a b", "a/b", "a\u{1b}[2J"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
