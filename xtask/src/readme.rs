//! `cargo xtask readme`: runs the examples of README.md and of the pages behind it, against a broker on port 9092.
//!
//! A fenced block of shell, Python or Rust has a comment on the line before it:
//!
//! - `<!-- test: NAME -->` runs it and wants exit code 0;
//! - `<!-- test: NAME needs=kcat -->` (or `python`, `kafka`) skips it where that client is not installed;
//! - `<!-- test: NAME background -->` starts it, waits until port 9092 answers, and ends it after all examples;
//! - `<!-- test: NAME file=PATH -->` before Rust: it is the text of that file, without what is for the compiler alone.
//!   An example of a crate, which is built with the tests, is run; a test of a crate is run by `cargo test`;
//! - `<!-- output: NAME -->` before any block: its lines are found, in this order, in what NAME printed;
//! - `<!-- not run: REASON -->` leaves it out. A block of these languages without a comment is an error.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::interop::install::{self, Toolchain};
use crate::interop::protocol;
use crate::interop::report::{Counts, Report};
use crate::process::{Process, wait_until};
use crate::{build, workspace};

/// The pages whose examples are run, one page after the other.
const PAGES: [&str; 7] = [
    "README.md",
    "docs/getting-started.md",
    "docs/cluster.md",
    "docs/security.md",
    "docs/queue.md",
    "docs/handlers.md",
    "docs/brokerless.md",
];
const RUST: &str = "rust";
/// The port that the examples name.
const PORT: u16 = 9092;
const PORT_DEADLINE: Duration = Duration::from_secs(30);
const EXAMPLE_DEADLINE: Duration = Duration::from_secs(120);
/// The first example may build the broker.
const BUILD_DEADLINE: Duration = Duration::from_secs(900);

/// The subcommand: `[FILE]`, or all pages without one.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let file = match arguments {
        [] => None,
        [file] if !file.starts_with('-') => Some(Path::new(file)),
        _ => bail!("usage: cargo xtask readme [FILE]"),
    };
    build::product()?;
    build::examples()?;
    let counts = file.map_or_else(run_pages, run_examples)?;
    println!("{counts}");
    ensure!(counts.failed == 0, "examples of {} fail", file.map_or("a page".into(), Path::to_string_lossy));
    Ok(())
}

/// Runs the examples of all pages.
pub(crate) fn run_pages() -> Result<Counts> {
    let mut counts = Counts::default();
    for page in PAGES {
        counts += run_examples(&workspace::root().join(page))?;
    }
    Ok(counts)
}

/// Returns true if the port can be bound. Children of an example that was ended hold it until they have ended as well.
fn is_free() -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)).is_ok()
}

/// Runs all examples of a page.
fn run_examples(file: &Path) -> Result<Counts> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let examples = parse(&text).with_context(|| format!("{}", file.display()))?;
    let report = Report::default();
    if wait_until(|| format!("port {PORT} is free"), PORT_DEADLINE, || Ok(is_free())).is_err() {
        let why = format!("port {PORT}, which the examples use, is taken by another program");
        match workspace::is_ci() {
            true => drop(report.check("README", "examples", || bail!("{why}"))),
            false => report.skip("README", &why),
        }
        return Ok(report.counts());
    }
    let mut session = Session::start(file)?;
    for example in &examples {
        session.run(&report, example);
    }
    Ok(report.counts())
}

/// A block of the page that is to be run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Example {
    name: String,
    language: String,
    code: String,
    is_background: bool,
    needs: Option<String>,
    /// The file below the root with the same text, for Rust alone.
    file: Option<String>,
    /// Lines that its output has.
    output: Vec<String>,
}

/// The meaning of the comment before a block.
enum Mark {
    Test { name: String, options: Vec<String> },
    Output { name: String },
    NotRun,
}

/// Finds the examples, and refuses blocks without a comment.
fn parse(text: &str) -> Result<Vec<Example>> {
    let mut examples: Vec<Example> = Vec::new();
    let mut mark = None;
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            if !line.trim().is_empty() {
                mark = parse_mark(line).with_context(|| format!("line {number}"))?;
            }
            continue;
        };
        let block: Vec<&str> =
            lines.by_ref().map(|(line, _)| line).take_while(|line| line.trim() != "```").collect();
        add_block(&mut examples, mark.take(), language, &block)
            .with_context(|| format!("the block in line {number}"))?;
    }
    Ok(examples)
}

fn parse_mark(line: &str) -> Result<Option<Mark>> {
    let comment = line.trim().strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->"));
    let Some((kind, rest)) = comment.and_then(|comment| comment.split_once(':')) else { return Ok(None) };
    let mut words = rest.split_whitespace().map(str::to_string);
    let mut name = || words.next().with_context(|| format!("no name in {line}"));
    Ok(match kind.trim() {
        "test" => Some(Mark::Test { name: name()?, options: words.collect() }),
        "output" => Some(Mark::Output { name: name()? }),
        "not run" => Some(Mark::NotRun),
        _ => None,
    })
}

fn add_block(examples: &mut Vec<Example>, mark: Option<Mark>, language: &str, block: &[&str]) -> Result<()> {
    match mark {
        Some(Mark::Test { name, options }) => {
            let (language, code) = (language.to_string(), block.join("\n") + "\n");
            let mut example = Example { name, language, code, ..Example::default() };
            for option in options {
                match option.split_once('=') {
                    Some(("needs", client)) => example.needs = Some(client.to_string()),
                    Some(("file", path)) => example.file = Some(path.to_string()),
                    None if option == "background" => example.is_background = true,
                    _ => bail!("unknown option {option}"),
                }
            }
            let is_rust = example.language.trim() == RUST;
            ensure!(is_rust == example.file.is_some(), "a block of Rust, and no other, has file=PATH");
            examples.push(example);
        }
        Some(Mark::Output { name }) => {
            let example = examples.iter_mut().find(|example| example.name == name);
            let example = example.with_context(|| format!("output of {name}, which is not above it"))?;
            example.output = block.iter().map(ToString::to_string).collect();
        }
        Some(Mark::NotRun) => {}
        None => {
            let can_be_run = language.trim() == RUST || interpreter(language).is_some();
            ensure!(!can_be_run, "nothing says whether it is run (<!-- test: NAME -->)")
        }
    }
    Ok(())
}

/// Returns the part of a file of Rust that a page shows: all behind its own documentation and its attributes.
fn shown(text: &str) -> String {
    let is_head = |line: &&str| line.is_empty() || line.starts_with("//!") || line.starts_with("#![");
    text.lines().skip_while(is_head).map(|line| format!("{line}\n")).collect()
}

fn ensure_is_shown(example: &Example, file: &str) -> Result<()> {
    let text = fs::read_to_string(workspace::root().join(file)).with_context(|| format!("read {file}"))?;
    ensure!(shown(&text) == example.code, "it is not the text of {file}: put it there, or here");
    Ok(())
}

/// The name of the example of a crate that a file is.
fn name_of_example(file: &str) -> Option<&str> {
    let file = Path::new(file);
    let is_example = file.parent()?.file_name()? == "examples";
    file.file_stem()?.to_str().filter(|_| is_example)
}

/// The command that runs a file in this language, and the file's extension.
fn interpreter(language: &str) -> Option<(&'static [&'static str], &'static str)> {
    match language.trim() {
        "sh" | "bash" | "shell" | "console" => Some((&["bash", "-euo", "pipefail"], "sh")),
        "python" => Some((&["python3"], "py")),
        _ => None,
    }
}

/// The folder and the processes that the examples share.
struct Session {
    dir: PathBuf,
    path: String,
    background: HashMap<String, Process>,
}

impl Session {
    /// Makes the folder of a page. Each has its own: what an example has started may write for a moment after its end.
    fn start(page: &Path) -> Result<Session> {
        let name = page.file_stem().context("a page has a name")?;
        let dir = workspace::interop_dir().join("readme").join(name);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        // As in a checkout.
        std::os::unix::fs::symlink(workspace::root().join("examples"), dir.join("examples"))?;
        let binary = workspace::product();
        let mut folders = vec![install::kafka_bin()];
        folders.extend(
            [install::python(), binary].iter().filter_map(|path| path.parent().map(Path::to_path_buf)),
        );
        folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let path = std::env::join_paths(folders)?.into_string().ok().context("PATH is not text")?;
        Ok(Session { dir, path, background: HashMap::new() })
    }

    fn run(&mut self, report: &Report, example: &Example) {
        match example.needs.as_deref().and_then(missing) {
            Some(what) if !workspace::is_ci() => {
                report.skip("README", &format!("{}: {what} is missing", example.name))
            }
            _ => drop(report.check("README", &example.name, || self.run_example(example))),
        }
    }

    fn run_example(&mut self, example: &Example) -> Result<()> {
        if let Some(file) = &example.file {
            return self.run_file(example, file);
        }
        let (command, extension) = interpreter(&example.language).context("neither shell nor Python")?;
        let script = self.dir.join(format!("{}.{extension}", example.name));
        fs::write(&script, &example.code)?;
        let mut process = Command::new(command[0]);
        process.args(&command[1..]).arg(&script).current_dir(&self.dir).env("PATH", &self.path);
        if example.is_background {
            return self.start_background(example, &mut process);
        }
        self.run_to_end(example, &mut process)
    }

    /// An example of a crate, if the file is one.
    fn run_file(&self, example: &Example, file: &str) -> Result<()> {
        ensure_is_shown(example, file)?;
        let Some(name) = name_of_example(file) else { return Ok(()) };
        let mut program = Command::new(workspace::example(name));
        self.run_to_end(example, program.current_dir(&self.dir))
    }

    fn run_to_end(&self, example: &Example, command: &mut Command) -> Result<()> {
        let output = self.dir.join(format!("{}.out", example.name));
        let mut process = Process::start_to_file(&example.name, command, &self.dir, &output)?;
        process.wait(EXAMPLE_DEADLINE)?;
        check_output(example, &fs::read_to_string(output)?)
    }

    fn start_background(&mut self, example: &Example, command: &mut Command) -> Result<()> {
        let process = Process::start_group(&example.name, command, &self.dir)?;
        let process = self.background.entry(example.name.clone()).insert_entry(process).into_mut();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        wait_until(
            || format!("port {PORT} answers"),
            BUILD_DEADLINE,
            || {
                process.check_alive()?;
                Ok(protocol::is_ready(address))
            },
        )?;
        check_output(example, &fs::read_to_string(self.dir.join(format!("{}.log", example.name)))?)
    }
}

/// Returns a description of the client that an example needs and that is missing.
fn missing(client: &str) -> Option<&'static str> {
    let (toolchain, installed) = match client {
        "kcat" => (Toolchain::Kcat, None),
        "python" => (Toolchain::Python, Some(install::python())),
        "kafka" => (Toolchain::Java, Some(install::kafka_lib())),
        _ => return Some("a client of that name"),
    };
    let is_missing = installed.is_some_and(|path| !path.exists());
    toolchain.missing_program().or(is_missing.then_some("its installation in target/interop"))
}

fn check_output(example: &Example, output: &str) -> Result<()> {
    let mut lines = output.lines();
    for wanted in example.output.iter().filter(|line| !line.trim().is_empty()) {
        let is_found = lines.any(|line| line.contains(wanted.trim()));
        ensure!(is_found, "its output has no {wanted:?}, or not in this place:\n{output}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_block_is_run_with_its_options_and_its_output_is_known() {
        let text = "Text.\n<!-- test: one needs=kcat -->\n```sh\necho 1\necho 2\n```\nprints\n\n<!-- output: one -->\n\n\
                    ```\n1\n2\n```\n<!-- test: two background -->\n```python\nx\n```\n";
        let examples = parse(text).unwrap();
        let one = Example {
            name: "one".into(),
            language: "sh".into(),
            code: "echo 1\necho 2\n".into(),
            is_background: false,
            needs: Some("kcat".into()),
            file: None,
            output: vec!["1".into(), "2".into()],
        };
        assert_eq!(examples[0], one);
        assert!(examples[1].is_background);
        check_output(&examples[0], "0\n1\n2\n").unwrap();
        check_output(&examples[0], "2\n1\n").unwrap_err();
    }

    #[test]
    fn rust_of_the_pages_is_the_text_of_files_that_are_compiled() {
        let mut examples = Vec::new();
        for page in PAGES {
            examples.extend(parse(&fs::read_to_string(workspace::root().join(page)).unwrap()).unwrap());
        }
        let files: Vec<(&Example, &String)> =
            examples.iter().filter_map(|example| Some((example, example.file.as_ref()?))).collect();
        files.iter().for_each(|(example, file)| ensure_is_shown(example, file).unwrap());
        assert_eq!(files.iter().filter(|(_, file)| name_of_example(file).is_some()).count(), 3);
        assert_eq!(files.len(), 7);
        let other = Example { code: files[0].0.code.replace("letters", "words"), ..Example::default() };
        ensure_is_shown(&other, files[0].1).unwrap_err();
    }

    #[test]
    fn an_example_has_a_name_of_its_own() {
        let pages = PAGES.map(|page| fs::read_to_string(workspace::root().join(page)).unwrap());
        let examples: Vec<Example> = pages.iter().flat_map(|page| parse(page).unwrap()).collect();
        let names: HashSet<&String> = examples.iter().map(|example| &example.name).collect();
        assert_eq!(names.len(), examples.len());
    }

    #[test]
    fn of_a_file_its_head_is_not_shown() {
        assert_eq!(
            shown("//! What it is.\n#![allow(x)]\n\nuse a;\n\n//! Not here.\n"),
            "use a;\n\n//! Not here.\n"
        );
        assert_eq!(name_of_example("crates/a/examples/b.rs"), Some("b"));
        assert_eq!(name_of_example("crates/a/tests/b.rs"), None);
        let page = "<!-- test: one file=a/examples/b.rs -->\n```rust\nuse a;\n```\n";
        assert_eq!(parse(page).unwrap()[0].file.as_deref(), Some("a/examples/b.rs"));
        parse("<!-- test: one -->\n```rust\nuse a;\n```\n").unwrap_err();
        parse("<!-- test: one file=a.sh -->\n```sh\nls\n```\n").unwrap_err();
    }

    #[test]
    fn a_block_about_which_nothing_is_said_is_an_error() {
        parse("```sh\nls\n```\n").unwrap_err();
        parse("```rust\nuse a;\n```\n").unwrap_err();
        parse("<!-- output: none -->\n```\n```\n").unwrap_err();
        parse("<!-- test: a wrong -->\n```sh\n```\n").unwrap_err();
        assert!(
            parse("<!-- not run: a reason -->\n```sh\nls\n```\n```toml\nx = 1\n```\n").unwrap().is_empty()
        );
    }
}
