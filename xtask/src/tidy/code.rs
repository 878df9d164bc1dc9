//! Counts over the tokens of a source file: its length, functions, items and sleeps.
//!
//! Code inside of macros is read like any other, so that the tests of `proptest!` count. A macro that makes items from a name that it
//! is given (`fn $name`) is not looked into.

use super::Place;
use crate::tokens::{Kind, Token};

/// Lines of the longest file.
const FILE_LINES_MAX: usize = 900;
/// Lines of the longest function, from `fn` to the closing brace.
const FUNCTION_LINES_MAX: u32 = 70;

/// Words behind `pub` that begin an item. Fields and variants begin with others.
const ITEMS: [&str; 14] = [
    "fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod", "use", "unsafe", "async",
    "extern", "macro",
];

/// The tokens of a file without its comments.
pub(super) struct Code<'t> {
    path: &'t str,
    tokens: &'t [Token<'t>],
    /// For each token that opens braces, brackets or parentheses, the index of the one that closes them.
    closings: Vec<Option<usize>>,
    /// The ranges of tokens that only tests have.
    tests: Vec<(usize, usize)>,
}

/// Returns the name of the crate whose sources a file belongs to.
pub(super) fn crate_of(path: &str) -> Option<&str> {
    let (of_crate, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    rest.starts_with("src/").then_some(of_crate)
}

/// Returns the file if it is too long.
pub(super) fn long_file(path: &str, text: &str) -> Option<Place> {
    let lines = text.lines().count();
    let place = Place { last_line: lines as u32, note: format!("{lines} lines"), ..Place::line(path, 1) };
    (lines > FILE_LINES_MAX).then_some(place)
}

impl<'t> Code<'t> {
    /// `is_test`: the whole file is of tests.
    pub(super) fn new(path: &'t str, tokens: &'t [Token<'t>], is_test: bool) -> Code<'t> {
        let mut code = Code { path, closings: closings(tokens), tokens, tests: Vec::new() };
        code.tests = if is_test { vec![(0, code.tokens.len())] } else { code.test_modules() };
        code
    }

    /// Returns the functions that are too long, those of tests included. A function inside of another one counts in both.
    pub(super) fn long_functions(&self) -> impl Iterator<Item = Place> + '_ {
        let functions = (0..self.tokens.len()).filter(|at| self.tokens[*at].is_word("fn"));
        functions.filter_map(|at| {
            let name = self.tokens.get(at + 1).filter(|name| name.kind == Kind::Word)?;
            let (first_line, last_line) = (self.tokens[at].line, self.tokens[self.end_of_item(at)?].line);
            let lines = last_line - first_line + 1;
            let note = format!("{}, {lines} lines", name.text);
            let place = Place { last_line, note, ..Place::line(self.path, first_line) };
            (lines > FUNCTION_LINES_MAX).then_some(place)
        })
    }

    /// Returns the items that are written `pub`, those of tests excluded.
    pub(super) fn pub_items(&self) -> impl Iterator<Item = Place> + '_ {
        let items = self.tokens.windows(2).enumerate().filter(|(at, words)| {
            words[0].is_word("pub") && ITEMS.iter().any(|item| words[1].is_word(item)) && !self.is_test(*at)
        });
        items.map(|(_, words)| Place::line(self.path, words[0].line))
    }

    /// Returns the calls of functions and methods called `sleep` and `sleep_until` in tests.
    pub(super) fn sleeps_in_tests(&self) -> impl Iterator<Item = Place> + '_ {
        let calls = self.tokens.windows(3).enumerate().filter(|(at, words)| {
            let is_sleep = words[1].is_word("sleep") || words[1].is_word("sleep_until");
            is_sleep && words[2].is_sign("(") && !words[0].is_word("fn") && self.is_test(*at)
        });
        calls.map(|(_, words)| Place::line(self.path, words[1].line))
    }

    fn is_test(&self, at: usize) -> bool {
        self.tests.iter().any(|(begin, end)| (*begin..*end).contains(&at))
    }

    /// Returns the items behind `#[cfg(test)]` and `#[cfg(all(test, ..))]`.
    fn test_modules(&self) -> Vec<(usize, usize)> {
        let begins =
            (0..self.tokens.len()).filter(|at| self.tokens[*at].text == "#" && self.is_cfg_test(*at));
        begins.filter_map(|at| Some((at, self.end_of_item(self.closings[at + 1]? + 1)? + 1))).collect()
    }

    fn is_cfg_test(&self, at: usize) -> bool {
        let begins_with = |texts: &[&str]| {
            let tokens = self.tokens[at..].iter().map(|token| token.text);
            self.tokens.len() >= at + texts.len() && tokens.zip(texts).all(|(token, text)| token == *text)
        };
        begins_with(&["#", "[", "cfg", "(", "test", ")", "]"])
            || begins_with(&["#", "[", "cfg", "(", "all", "(", "test", ","])
            || begins_with(&["#", "[", "cfg", "(", "any", "(", "test", ",", "feature", "=", "\"testing\""])
    }

    /// Returns the closing brace, or the semicolon, with which the item at a place ends. Parentheses and brackets before it are skipped.
    fn end_of_item(&self, mut at: usize) -> Option<usize> {
        while let Some(token) = self.tokens.get(at) {
            match token.text {
                "{" if token.kind == Kind::Sign => return self.closings[at],
                ";" => return Some(at),
                _ => at = self.closings[at].unwrap_or(at) + 1,
            }
        }
        None
    }
}

fn closings(tokens: &[Token<'_>]) -> Vec<Option<usize>> {
    let (mut closings, mut open) = (vec![None; tokens.len()], Vec::new());
    for (at, token) in tokens.iter().enumerate().filter(|(_, token)| token.kind == Kind::Sign) {
        match token.text {
            "{" | "(" | "[" => open.push(at),
            "}" | ")" | "]" => {
                if let Some(opening) = open.pop() {
                    closings[opening] = Some(at);
                }
            }
            _ => {}
        }
    }
    closings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::tokens;

    /// A function of so many lines, from `fn` to its brace.
    fn function(name: &str, lines: u32) -> String {
        format!(
            "/// A comment.\nfn {name}<T>(a: [u8; 4]) -> T where T: A {{\n{}}}\n",
            "    a();\n".repeat(lines as usize - 2)
        )
    }

    fn long(text: &str) -> Vec<String> {
        Code::new("a.rs", &tokens(text).code, false).long_functions().map(|place| place.to_string()).collect()
    }

    #[test]
    fn a_function_is_long_by_its_lines() {
        let text = function("short", FUNCTION_LINES_MAX) + &function("long", FUNCTION_LINES_MAX + 1);
        assert_eq!(long(&text), [format!("a.rs:{} long, 71 lines", FUNCTION_LINES_MAX + 3)]);
    }

    #[test]
    fn a_function_of_a_trait_a_pointer_and_a_macro_are_read_as_what_they_are() {
        let blank = "\n".repeat(FUNCTION_LINES_MAX as usize);
        assert_eq!(long(&format!("trait A {{ fn a();{blank} }}")), [""; 0]);
        assert_eq!(long(&format!("type A = fn(u8); struct B {{ {blank} }}")), [""; 0]);
        assert_eq!(
            long(&format!("proptest! {{ #[test] fn a(b in 0..1) {{ {blank} }} }}")),
            ["a.rs:1 a, 71 lines"]
        );
        assert_eq!(long(&format!("impl A {{ {} }}", function("b", 80))), ["a.rs:2 b, 80 lines"]);
    }

    #[test]
    fn a_file_is_long_by_its_lines() {
        assert_eq!(long_file("a.rs", &"\n".repeat(FILE_LINES_MAX)), None);
        let place = long_file("a.rs", &"\n".repeat(FILE_LINES_MAX + 1)).unwrap();
        assert_eq!(place.to_string(), "a.rs:1 901 lines");
    }

    fn pub_items(text: &str, is_test: bool) -> Vec<u32> {
        Code::new("a.rs", &tokens(text).code, is_test).pub_items().map(|place| place.first_line).collect()
    }

    #[test]
    fn pub_items_are_no_fields_and_none_of_the_crate_alone() {
        let items = "pub fn a() {}\npub const fn b() {}\npub struct C {\n pub d: E,\n}\npub(crate) fn f() {}\npub use g::{h, i};";
        assert_eq!(pub_items(items, false), [1, 2, 3, 7]);
        assert_eq!(
            pub_items(
                "pub unsafe fn a() {}\npub async fn b() {}\nfn c() {}\n// pub fn d() {}\npub struct E(pub u8);",
                false
            ),
            [1, 2, 5]
        );
        for item in ITEMS {
            assert_eq!(pub_items(&format!("pub {item} a"), false), [1], "{item}");
        }
    }

    #[test]
    fn pub_items_of_tests_do_not_count() {
        let text = "#[cfg(test)]\nmod tests {\n pub fn a() {}\n}\npub fn b() {}\n#[cfg(all(test, a))]\npub fn c() {}\n#[cfg(test)]\nmod d;\npub mod e;";
        assert_eq!(pub_items(text, false), [5, 10]);
        assert_eq!(pub_items(text, true), [0; 0]);
        assert_eq!(pub_items("#[cfg(any(test, a))]\npub fn a() {}", false), [2]);
    }

    fn sleeps(text: &str, is_test: bool) -> Vec<u32> {
        Code::new("a.rs", &tokens(text).code, is_test)
            .sleeps_in_tests()
            .map(|place| place.first_line)
            .collect()
    }

    #[test]
    fn sleeps_count_in_tests_alone() {
        let text = "fn a() { thread::sleep(A); }\n#[cfg(test)]\n#[allow(b)]\nmod tests {\n fn c() {\n thread::sleep(A);\n\
                    tokio::time::sleep_until(A);\n clock.sleep(A);\n }\n}\nfn d() { thread::sleep(A); }";
        assert_eq!(sleeps(text, false), [6, 7, 8]);
        assert_eq!(sleeps(text, true).len(), 5);
        assert_eq!(sleeps("fn sleep(a: A) {}\n// thread::sleep(A);\nsleep;\nasleep(b);", true), [0; 0]);
    }

    #[test]
    fn crates_are_known_by_the_paths_of_their_sources() {
        assert_eq!(crate_of("crates/log/src/log/a.rs"), Some("log"));
        assert_eq!(crate_of("crates/log/tests/it/a.rs"), None);
        assert_eq!(crate_of("xtask/src/main.rs"), None);
    }
}
