//! The commands that the documentation names exist, with the options that it gives them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Command, CommandFactory};

use crate::Arguments;

const PROGRAM: &str = "mainstem";

/// A command in a page.
#[derive(Debug)]
struct Named {
    /// The page and the line, from 1.
    place: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All pages: those of the folder docs and below, and those beside it.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("docs"), root().join("examples")];
    let beside = fs::read_dir(root()).expect("the project").map(|entry| entry.expect("an entry").path());
    found.extend(beside.filter(|path| path.extension().is_some_and(|kind| kind == "md")));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(kind) if kind == "md" => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// The text of blocks of shell, a command of several lines as one, and the text between backticks.
fn commands(page: &Path) -> (Vec<Named>, Vec<Named>) {
    let text = fs::read_to_string(page).expect("a page");
    let name = page.strip_prefix(root()).expect("it is in the project").display().to_string();
    let (mut in_blocks, mut in_text) = (Vec::new(), Vec::new());
    let mut block: Option<bool> = None;
    let mut begun = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let place = format!("{name}:{number}");
        match (line.strip_prefix("```"), block) {
            (Some(_), Some(_)) => block = None,
            (Some(kind), None) => block = Some(kind.trim() == "sh"),
            (None, Some(true)) => match line.strip_suffix('\\') {
                Some(beginning) => begun.push_str(beginning),
                None => in_blocks.push(Named { place, text: std::mem::take(&mut begun) + line }),
            },
            (None, Some(false)) => {}
            (None, None) => {
                let spans = line.split('`').skip(1).step_by(2).filter(|span| span.starts_with(PROGRAM));
                in_text.extend(spans.map(|span| Named { place: place.clone(), text: span.to_owned() }));
            }
        }
    }
    (in_blocks, in_text)
}

/// Words of each run of the program in a line of shell. A pipe, a redirection or a comment ends it.
fn runs(line: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut run: Option<Vec<String>> = None;
    let mut is_command = true;
    for word in shlex::split(line).unwrap_or_default() {
        let ends = matches!(word.as_str(), "|" | "&" | "&&" | "||" | ";")
            || word.trim_start_matches(|letter: char| letter.is_ascii_digit()).starts_with(['<', '>']);
        if ends {
            found.extend(run.take());
            is_command = true;
        } else if let Some(words) = &mut run {
            let (bare, is_last) = word.strip_suffix(';').map_or((word.as_str(), false), |bare| (bare, true));
            words.push(bare.to_owned());
            if is_last {
                found.extend(run.take());
                is_command = true;
            }
        } else if is_command && word == PROGRAM {
            run = Some(vec![word]);
        } else {
            // Variables, `!` and `until` come before a command.
            is_command &=
                matches!(word.as_str(), "until" | "while" | "if" | "!" | "do" | "then") || word.contains('=');
        }
    }
    found.extend(run);
    found
}

/// The fault of a mention of a command, which has its name and perhaps options: `...` and words in capitals are
/// placeholders, `list|show` means each of the two.
fn fault_of_mention(text: &str) -> Option<String> {
    let mut at = vec![Arguments::command()];
    at[0].build();
    for word in text.split_whitespace().skip(1) {
        let mut next = Vec::new();
        for command in &at {
            for one in word.split('|') {
                match follow(command, one) {
                    Ok(followed) => next.push(followed),
                    Err(fault) => return Some(fault),
                }
            }
        }
        at = next;
    }
    None
}

fn follow(command: &Command, word: &str) -> Result<Command, String> {
    let name = command.get_name();
    if let Some(option) = word.strip_prefix("--") {
        let long = option.split('=').next().unwrap_or_default();
        let is_there = command.get_arguments().any(|argument| argument.get_long() == Some(long));
        return if is_there { Ok(command.clone()) } else { Err(format!("{name} has no option --{long}")) };
    }
    let below = command.get_subcommands().find(|below| below.get_name() == word);
    let takes_words = !command.has_subcommands();
    match below {
        Some(below) => Ok(below.clone()),
        None if takes_words || word == "..." => Ok(command.clone()),
        None => Err(format!("{name} has no command {word}")),
    }
}

#[test]
fn each_command_in_the_documentation_is_there() {
    let (mut faults, mut parsed, mut mentioned) = (Vec::new(), 0, 0);
    for page in pages() {
        let (in_blocks, in_text) = commands(&page);
        for Named { place, text } in in_blocks {
            for words in runs(&text) {
                parsed += 1;
                match Arguments::command().try_get_matches_from(&words) {
                    Err(error)
                        if !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
                    {
                        faults.push(format!("{place}: {}\n{error}", words.join(" ")));
                    }
                    _ => {}
                }
            }
        }
        for Named { place, text } in in_text.into_iter().filter(|named| named.text.starts_with("mainstem ")) {
            mentioned += 1;
            faults.extend(fault_of_mention(&text).map(|fault| format!("{place}: `{text}`: {fault}")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(parsed > 20 && mentioned > 20, "{parsed} commands in blocks and {mentioned} in texts were found");
}

#[test]
fn what_is_not_there_is_found() {
    let fault = |text| fault_of_mention(text).unwrap_or_default();
    assert_eq!(fault("mainstem config set topic NAME ..."), "");
    assert_eq!(fault("mainstem topic list|describe NAME --json"), "");
    assert_eq!(fault("mainstem topics list"), "mainstem has no command topics");
    assert_eq!(fault("mainstem topic list|shew"), "topic has no command shew");
    assert_eq!(fault("mainstem topic list --jsun"), "list has no option --jsun");
    let words = runs("until X=1 mainstem topic create a; do sleep 1; done # mainstem nothing");
    assert_eq!(words, [["mainstem", "topic", "create", "a"]]);
    let words = runs("echo '{\"a\": 1}' | mainstem produce t --json > file & mainstem topic list");
    assert_eq!(words, [vec!["mainstem", "produce", "t", "--json"], vec!["mainstem", "topic", "list"]]);
}
