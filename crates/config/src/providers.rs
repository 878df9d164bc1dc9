//! Values outside of the file (KIP-297): `${env:NAME}`, `${file:PATH:KEY}`, `${directory:PATH:FILE}`, for the providers that
//! `config.providers` names.
//!
//! Other than in Kafka, a value that a provider does not have keeps the broker from starting: a missing password must not become
//! the text of its variable. A variable of a provider that is not in the list stays as it is, as in Kafka.

use std::collections::BTreeMap;

use super::properties::{Properties, Property};

const LIST: &str = "config.providers";
const PACKAGE: &str = "org.apache.kafka.common.config.provider.";

/// The reason why values of a file are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ProviderError {
    /// The line of the file, from 1.
    pub line: usize,
    /// The mistake, without any value.
    pub problem: String,
}

/// The sources of values outside of the file.
pub struct Surroundings<'a> {
    /// The variables of the process.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// Reads a file; the error is for people.
    pub read: &'a dyn Fn(&str) -> Result<Vec<u8>, String>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Environment,
    File,
    Directory,
}

impl Properties {
    /// The same with the values from providers, and without the keys of providers.
    ///
    /// # Errors
    /// When a provider is none of Kafka's three, has an unsupported parameter, or does not have a value.
    pub fn resolved(&self, surroundings: &Surroundings<'_>) -> Result<Properties, ProviderError> {
        let Some(list) = self.get(LIST).filter(|list| !list.trim().is_empty()) else {
            return Ok(self.clone());
        };
        let line = self.line_of(LIST);
        let mut providers = BTreeMap::new();
        for name in list.split(',').map(str::trim) {
            let kind = self.provider(name).map_err(|problem| ProviderError { line, problem })?;
            providers.insert(name, kind);
        }
        let is_own = |key: &str| key == LIST || key.starts_with("config.providers.");
        let mut entries = Vec::new();
        for entry in self.iter().filter(|entry| !is_own(&entry.key)) {
            let value = substitute(&entry.value, &providers, surroundings).map_err(|problem| {
                ProviderError { line: entry.line, problem: format!("{}: {problem}", entry.key) }
            })?;
            entries.push(Property { value, ..entry.clone() });
        }
        Ok(Properties::of(entries))
    }

    fn provider(&self, name: &str) -> Result<Kind, String> {
        let class_key = format!("{LIST}.{name}.class");
        let class = self.get(&class_key).map(str::trim).ok_or_else(|| format!("{class_key} is missing"))?;
        let parameters = format!("{LIST}.{name}.param.");
        if let Some(entry) = self.iter().find(|entry| entry.key.starts_with(&parameters)) {
            return Err(format!("{} cannot be obeyed: leave it out", entry.key));
        }
        match class.strip_prefix(PACKAGE) {
            Some("EnvVarConfigProvider") => Ok(Kind::Environment),
            Some("FileConfigProvider") => Ok(Kind::File),
            Some("DirectoryConfigProvider") => Ok(Kind::Directory),
            _ => Err(format!(
                "{class_key}={class} is not there; EnvVarConfigProvider, FileConfigProvider and \
                 DirectoryConfigProvider of {PACKAGE} are"
            )),
        }
    }

    fn line_of(&self, key: &str) -> usize {
        self.iter().filter(|entry| entry.key == key).last().map_or(0, |entry| entry.line)
    }
}

/// A text with each variable of a known provider replaced, once: variables in the replacement stay.
fn substitute(
    text: &str,
    providers: &BTreeMap<&str, Kind>,
    surroundings: &Surroundings<'_>,
) -> Result<String, String> {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("${") {
        let (before, variable) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = variable.find('}') else {
            rest = variable;
            break;
        };
        let (whole, behind) = variable.split_at(end + 1);
        let inner = &whole[2..whole.len() - 1];
        match inner.split_once(':').and_then(|(name, what)| Some((*providers.get(name)?, what))) {
            Some((kind, what)) => out.push_str(&value(kind, what, surroundings)?),
            None => out.push_str(whole),
        }
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

fn value(kind: Kind, what: &str, surroundings: &Surroundings<'_>) -> Result<String, String> {
    let place = |form: &str| {
        let parts = what.rsplit_once(':').filter(|(path, key)| !path.is_empty() && !key.is_empty());
        parts.ok_or_else(|| format!("a variable has the form {form}"))
    };
    match kind {
        Kind::Environment => {
            (surroundings.environment)(what).ok_or_else(|| format!("there is no environment variable {what}"))
        }
        Kind::File => {
            let (path, key) = place("${file:PATH:KEY}")?;
            let bytes = (surroundings.read)(path).map_err(|error| format!("cannot read {path}: {error}"))?;
            let properties = Properties::parse(&bytes).map_err(|error| format!("{path}: {error}"))?;
            properties.get(key).map(str::to_owned).ok_or_else(|| format!("{path} has no {key}"))
        }
        Kind::Directory => {
            let (path, name) = place("${directory:PATH:FILE}")?;
            if name.contains('/') || name == ".." {
                return Err(format!("{name} is not the name of a file in {path}"));
            }
            let path = format!("{}/{name}", path.trim_end_matches('/'));
            let bytes = (surroundings.read)(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
            String::from_utf8(bytes).map_err(|_| format!("{path} is not UTF-8"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROVIDERS: &str = "config.providers=env,file,dir\n\
        config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n\
        config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider\n\
        config.providers.dir.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider\n";

    fn resolved(text: &str) -> Result<Properties, String> {
        let environment = |name: &str| (name == "SECRET").then(|| "${env:SECRET}".to_owned());
        let read = |path: &str| match path {
            "/etc/secrets.properties" => Ok(b"a.key=a:value\n".to_vec()),
            "/run/secrets/tls" => Ok(b"of a file".to_vec()),
            _ => Err("no such file".to_owned()),
        };
        let properties = Properties::parse(text.as_bytes()).map_err(|error| error.to_string())?;
        let surroundings = Surroundings { environment: &environment, read: &read };
        properties.resolved(&surroundings).map_err(|error| error.to_string())
    }

    #[test]
    fn values_come_from_where_they_stand() {
        let lines = "a=<${env:SECRET}>\nb=${file:/etc/secrets.properties:a.key}\nc=${dir:/run/secrets:tls}${dir:/run/secrets/:tls}\n\
                     d=${vault:x:y} ${env\ne=$1${}\n";
        let found = resolved(&format!("{PROVIDERS}{lines}")).unwrap();
        let value = |key| found.get(key).unwrap();
        assert_eq!(value("a"), "<${env:SECRET}>", "what was put in is not looked at again");
        assert_eq!((value("b"), value("c")), ("a:value", "of a fileof a file"));
        assert_eq!((value("d"), value("e")), ("${vault:x:y} ${env", "$1${}"), "as they are");
        assert_eq!(found.iter().count(), 5, "the providers are no settings");
        assert_eq!(resolved("a=${env:SECRET}").unwrap().get("a"), Some("${env:SECRET}"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let lines = [
            ("a=${env:OTHER}", "line 5: a: there is no environment variable OTHER"),
            ("a=${file:/etc/secrets.properties:b}", "line 5: a: /etc/secrets.properties has no b"),
            ("a=${file:/etc/none:b}", "line 5: a: cannot read /etc/none: no such file"),
            ("a=${file:b}", "line 5: a: a variable has the form ${file:PATH:KEY}"),
            ("a=${dir:/run/secrets:..}", "line 5: a: .. is not the name of a file in /run/secrets"),
            (
                "config.providers.env.param.allowlist.pattern=.*",
                "line 1: config.providers.env.param.allowlist.pattern cannot be obeyed: leave it out",
            ),
        ];
        for (line, expected) in lines {
            assert_eq!(resolved(&format!("{PROVIDERS}{line}")).unwrap_err(), expected);
        }
        let foreign = "config.providers=vault\nconfig.providers.vault.class=com.example.Vault";
        assert!(resolved(foreign).unwrap_err().contains("com.example.Vault is not there"));
        assert!(resolved("config.providers=vault").unwrap_err().contains("class is missing"));
    }
}
