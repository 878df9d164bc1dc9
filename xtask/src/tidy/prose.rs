//! Lines of pages that are too long to read side by side.

use super::Place;

/// Characters of the longest line.
const CHARS_MAX: usize = 120;

/// Returns true if the lines of a page count.
pub(super) fn is_prose(path: &str) -> bool {
    path.starts_with("docs/") || ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"].contains(&path)
}

/// Returns the lines of prose that are too long: no rows of tables, no lines of code between fences, and without the targets of links.
pub(super) fn long_lines<'t>(path: &'t str, text: &'t str) -> impl Iterator<Item = Place> + 't {
    let mut fence = None;
    let lines = (1..).zip(text.lines()).filter(move |(_, line)| is_outside(&mut fence, line.trim_start()));
    lines.filter_map(|(number, line)| {
        let chars = without_links(line).chars().count();
        let is_long = chars > CHARS_MAX && !line.trim_start().starts_with('|');
        is_long.then(|| Place { note: format!("{chars} characters"), ..Place::line(path, number) })
    })
}

/// Returns true if a line is no code, and notes the fence around code.
fn is_outside(fence: &mut Option<&'static str>, line: &str) -> bool {
    match fence {
        Some(open) if line.starts_with(*open) => *fence = None,
        Some(_) => {}
        None => {
            *fence = ["```", "~~~"].into_iter().find(|mark| line.starts_with(mark));
            return fence.is_none();
        }
    }
    false
}

/// Returns a line without the targets of its links: `(..)` behind `]`, `[name]: ..`, and what begins with `http://` or `https://`.
fn without_links(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(at) =
        ["](", "]: ", "http://", "https://"].iter().filter_map(|begin| rest.find(begin)).min()
    {
        let (before, link) = rest.split_at(at);
        let end = match link.starts_with("](") {
            true => link.find(')').map(|end| end + 1),
            false if link.starts_with("]: ") => Some("]: ".len()),
            false => link.find(|one: char| one.is_whitespace() || one == ')' || one == '>'),
        };
        text.push_str(before);
        rest = &link[end.unwrap_or(link.len())..];
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<u32> {
        long_lines("a.md", text).map(|place| place.first_line).collect()
    }

    #[test]
    fn a_line_above_the_limit_counts() {
        let (long, short) = ("ä".repeat(CHARS_MAX + 1), "ä".repeat(CHARS_MAX));
        assert_eq!(lines(&format!("{short}\n{long}\n\n- {short}")), [2, 4]);
    }

    #[test]
    fn tables_and_code_do_not_count() {
        let long = "a ".repeat(CHARS_MAX);
        assert_eq!(lines(&format!("| {long} |\n```sh\n{long}\n```\n  ~~~\n{long}\n```\n  ~~~\n{long}")), [9]);
    }

    #[test]
    fn the_targets_of_links_do_not_count() {
        let long = format!("a.com/{}", "a".repeat(CHARS_MAX));
        assert_eq!(lines(&format!("[a]({long}) b\nhttps://{long} b\n<http://{long}>\n[a]: {long}")), [4]);
        assert_eq!(lines(&format!("[a]: https://{long}")), [0; 0]);
        assert_eq!(without_links("a [b](c) d [e](https://f) g https://h i"), "a [b d [e g  i");
    }

    #[test]
    fn pages_are_chosen_by_their_path() {
        assert!(is_prose("docs/cluster.md") && is_prose("README.md"));
        assert!(!is_prose("CHANGELOG.md") && !is_prose("bench/results/README.md"));
    }
}
