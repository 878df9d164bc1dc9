//! The command line: `--name value` and `--name` flags, in any order.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The arguments behind the subcommand, taken out one by one; what nobody takes is an error.
#[derive(Debug)]
pub(crate) struct Options {
    arguments: Vec<String>,
}

impl Options {
    pub(crate) fn new(arguments: Vec<String>) -> Self {
        Self { arguments }
    }

    /// Whether the flag is given.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let at = self.arguments.iter().position(|argument| argument == name);
        at.map(|at| self.arguments.remove(at)).is_some()
    }

    /// The value of an option, given as `--name value` or `--name=value`.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>> {
        if let Some(at) = self.arguments.iter().position(|argument| argument == name) {
            if at + 1 == self.arguments.len() {
                bail!("{name} wants a value");
            }
            self.arguments.remove(at);
            return Ok(Some(self.arguments.remove(at)));
        }
        let prefix = format!("{name}=");
        let at = self.arguments.iter().position(|argument| argument.starts_with(&prefix));
        Ok(at.map(|at| self.arguments.remove(at)[prefix.len()..].to_owned()))
    }

    /// The values of an option that may be given more than once.
    pub(crate) fn texts(&mut self, name: &str) -> Result<Vec<String>> {
        let mut values = Vec::new();
        while let Some(value) = self.text(name)? {
            values.push(value);
        }
        Ok(values)
    }

    pub(crate) fn path(&mut self, name: &str, default: impl Into<PathBuf>) -> Result<PathBuf> {
        Ok(self.text(name)?.map_or_else(|| default.into(), PathBuf::from))
    }

    pub(crate) fn number<T: std::str::FromStr>(&mut self, name: &str, default: T) -> Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        match self.text(name)? {
            None => Ok(default),
            Some(text) => text.parse().with_context(|| format!("{name} {text}")),
        }
    }

    /// Seconds, with a fraction if wanted.
    pub(crate) fn seconds(&mut self, name: &str, default: f64) -> Result<Duration> {
        let seconds = self.number(name, default)?;
        Duration::try_from_secs_f64(seconds).with_context(|| format!("{name} {seconds}"))
    }

    /// A list with commas, each item read by `parse`.
    pub(crate) fn list<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Result<T>,
        default: Vec<T>,
    ) -> Result<Vec<T>> {
        match self.text(name)? {
            None => Ok(default),
            Some(text) => text.split(',').map(|item| parse(item.trim())).collect(),
        }
    }

    /// Fails if an argument is left that nobody asked for.
    pub(crate) fn finish(self) -> Result<()> {
        match self.arguments.first() {
            None => Ok(()),
            Some(argument) => bail!("unknown argument {argument}; see --help"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_taken_and_the_rest_is_refused() {
        let arguments = ["--runs", "7", "--force", "--set=a=b", "--set", "c=d", "--systems", "x, y", "--huh"];
        let mut options = Options::new(arguments.map(str::to_owned).to_vec());
        assert_eq!(options.number("--runs", 5).unwrap(), 7);
        assert_eq!(options.number("--port", 9).unwrap(), 9);
        assert!(options.flag("--force"));
        assert!(!options.flag("--force"));
        let mut settings = options.texts("--set").unwrap();
        settings.sort();
        assert_eq!(settings, ["a=b", "c=d"]);
        assert_eq!(options.list("--systems", |item| Ok(item.to_owned()), vec![]).unwrap(), ["x", "y"]);
        assert!(options.finish().unwrap_err().to_string().contains("--huh"));
        assert!(Options::new(vec!["--runs".to_owned()]).text("--runs").is_err());
    }
}
