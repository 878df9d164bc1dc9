//! Parts of documents that tests write from what they observe.

use std::fs;
use std::path::Path;

/// Compares a part of a document with what a test has seen. The part is between the lines `<!-- NAME: ... -->` and `<!-- end of NAME -->`.
/// With `UPDATE_DOCS` in the environment the document is written instead.
///
/// # Panics
/// If the document has no such part, or says something else.
pub fn document_part(document: &Path, name: &str, seen: &str) {
    let text = fs::read_to_string(document).unwrap_or_else(|error| panic!("{}: {error}", document.display()));
    let end = format!("<!-- end of {name} -->");
    let begin = text.find(&format!("<!-- {name}:")).and_then(|at| Some(at + text[at..].find("-->\n")? + 4));
    let Some((begin, end)) = begin.zip(text.find(&end)).filter(|(begin, end)| begin <= end) else {
        panic!("{} has no part {name:?}", document.display());
    };
    let said = text[begin..end].trim();
    if said == seen.trim() {
        return;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let written = format!("{}\n{}\n\n{}", &text[..begin], seen.trim(), &text[end..]);
        fs::write(document, written).unwrap_or_else(|error| panic!("{}: {error}", document.display()));
        return;
    }
    let differs = seen.trim().lines().filter(|line| !said.lines().any(|other| other == *line));
    let differs: Vec<_> = differs.take(20).collect();
    panic!(
        "{}, part {name:?}, says something else; look at it, and run the test with UPDATE_DOCS=1 if that is meant:\n{}",
        document.display(),
        differs.join("\n")
    );
}
