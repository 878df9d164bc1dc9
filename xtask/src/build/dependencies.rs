//! The dependencies that tests do not share with the product, since only tests need them or need more features of them.
//!
//! They are compiled for tests alone, and not optimised: that takes longer than what tests do with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::workspace;

/// Packages that tests compute with: a test in virtual time takes twice as long where tokio is not optimised.
const COMPUTING: [&str; 1] = ["tokio"];

/// All dependencies: of the product, and of the workspace with its tests.
pub(super) struct Dependencies {
    product: Tree,
    tests: Tree,
    lock: Lock,
}

impl Dependencies {
    /// # Errors
    /// If cargo cannot read the workspace.
    pub(super) fn read() -> Result<Dependencies> {
        let product = Tree::read(&["--edges", "normal,no-proc-macro"])?;
        let tests = Tree::read(&["--workspace", "--edges", "normal,dev,no-proc-macro"])?;
        let path = workspace::root().join("Cargo.lock");
        let lock = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let lock = toml::from_str(&lock).with_context(|| format!("in {}", path.display()))?;
        Ok(Dependencies { product, tests, lock })
    }

    /// The package, as a profile of cargo calls it, of each dependency that only tests have, or have in another form.
    pub(super) fn of_tests_alone(&self) -> Result<Vec<String>> {
        self.names(self.tests.differing(&self.product).into_iter())
    }

    /// The same of each dependency that the product has in no form.
    pub(super) fn not_of_the_product(&self) -> Result<Vec<String>> {
        let has = |form: &Form| self.product.0.keys().any(|one| one.is_same_package(form));
        self.names(self.tests.0.keys().filter(|form| !has(form)))
    }

    /// Names of packages that are not optimised for tests. Each is there once, whatever number of forms it has.
    fn names<'f>(&self, forms: impl Iterator<Item = &'f Form>) -> Result<Vec<String>> {
        let own: BTreeSet<String> = workspace::packages()?.into_iter().collect();
        let is_optimised = |form: &Form| own.contains(&form.name) || COMPUTING.contains(&form.name.as_str());
        let names: BTreeSet<String> =
            forms.filter(|form| !is_optimised(form)).map(|form| self.lock.name_of(form)).collect();
        Ok(names.into_iter().collect())
    }
}

/// A package, and the features with which it is compiled.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Form {
    name: String,
    version: String,
    features: String,
}

impl Form {
    fn is_same_package(&self, other: &Form) -> bool {
        (&self.name, &self.version) == (&other.name, &other.version)
    }
}

/// All that is compiled with what each of it needs, as `cargo tree` says it.
#[derive(Debug, Default)]
struct Tree(BTreeMap<Form, BTreeSet<Form>>);

impl Tree {
    fn read(arguments: &[&str]) -> Result<Tree> {
        let form = ["tree", "--prefix", "depth", "--format", "|{p}|{f}"];
        let mut tree = super::cargo(&form);
        let output = tree.args(arguments).stderr(Stdio::inherit()).output().context("start cargo")?;
        ensure!(output.status.success(), "cargo tree ended with {}", output.status);
        Tree::parse(&String::from_utf8_lossy(&output.stdout))
    }

    /// Reads lines such as `2|rand v0.9.5|std`: the depth, the package, its features. What a package needs is below its first line
    /// alone; the others end in `(*)`.
    fn parse(text: &str) -> Result<Tree> {
        let mut tree = Tree::default();
        let mut above: Vec<Form> = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let (depth, form) = parse_line(line).with_context(|| format!("a line of cargo tree: {line}"))?;
            above.truncate(depth);
            if let Some(user) = above.last() {
                tree.0.entry(user.clone()).or_default().insert(form.clone());
            }
            tree.0.entry(form.clone()).or_default();
            above.push(form);
        }
        Ok(tree)
    }

    /// Forms that another tree does not have, and those that need such a form.
    fn differing(&self, other: &Tree) -> BTreeSet<&Form> {
        let mut differing: BTreeSet<&Form> =
            self.0.keys().filter(|form| !other.0.contains_key(*form)).collect();
        loop {
            let needs_one = |needs: &BTreeSet<Form>| needs.iter().any(|form| differing.contains(form));
            let more: Vec<&Form> =
                self.0.iter().filter(|(_, needs)| needs_one(needs)).map(|(form, _)| form).collect();
            let before = differing.len();
            differing.extend(more);
            if differing.len() == before {
                return differing;
            }
        }
    }
}

fn parse_line(line: &str) -> Option<(usize, Form)> {
    let mut parts = line.splitn(3, '|');
    let (depth, package, features) = (parts.next()?, parts.next()?, parts.next()?);
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let features = features.trim_end_matches("(*)").trim();
    let form = Form { name: name.to_owned(), version: version.to_owned(), features: features.to_owned() };
    Some((depth.parse().ok()?, form))
}

/// The part of Cargo.lock that is read.
#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

impl Lock {
    /// The name of a package in a profile: with the version, where there are several of a name.
    fn name_of(&self, form: &Form) -> String {
        match self.package.iter().filter(|package| package.name == form.name).count() {
            1 => form.name.clone(),
            _ => format!("\"{}@{}\"", form.name, form.version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_another_form_is_compiled_again() {
        let product = "0|own v0.1.0 (/a)|\n1|hyper v1.0.0|http1\n2|tokio v1.0.0|rt\n2|rand v0.10.0|\n";
        let tests = "\
0|own v0.1.0 (/a)|
1|hyper v1.0.0|http1
2|tokio v1.0.0|rt,test-util
2|rand v0.10.0|
1|rand v0.9.0|std
1|tokio v1.0.0|rt,test-util (*)

0|other v0.1.0 (/b)|
1|hyper v1.0.0|http1 (*)
";
        let (product, tests) = (Tree::parse(product).unwrap(), Tree::parse(tests).unwrap());
        let names = ["own", "other", "hyper", "tokio", "rand", "rand"];
        let lock = Lock { package: names.map(|name| Package { name: name.to_owned() }).into() };
        let names: Vec<String> =
            tests.differing(&product).into_iter().map(|form| lock.name_of(form)).collect();
        assert_eq!(names, ["hyper", "other", "own", "\"rand@0.9.0\"", "tokio"]);
        Tree::parse("no tree").unwrap_err();
    }

    #[test]
    fn criterion_is_for_tests_alone_and_the_bindings_to_zstd_are_not() {
        let dependencies = Dependencies::read().unwrap();
        let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
        let of_tests = dependencies.of_tests_alone().unwrap();
        assert!(has(&of_tests, "criterion") && !has(&of_tests, "zstd-sys"), "{of_tests:?}");
        // Tests have more features of tokio, and so another hyper.
        let others = dependencies.not_of_the_product().unwrap();
        assert!(has(&of_tests, "hyper") && !has(&others, "hyper"), "{others:?}");
        assert!(has(&others, "criterion"), "{others:?}");
    }
}
