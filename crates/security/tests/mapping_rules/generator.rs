//! Random rules and subjects: most patterns are made from the subject, so that many match, and some are of any kind.

/// A question: rules and a subject. Neither has a tab or an end of line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) rules: String,
    pub(crate) subject: String,
}

/// The same pairs for the same seed.
pub(crate) struct Generator {
    state: u64,
}

const TYPES: &[&str] = &["CN", "OU", "O", "C", "DC", "L", "ST", "cn", "Cn", "1.2.3"];
const VALUES: &[&str] = &[
    "Duke",
    "duke",
    "a",
    "",
    "Mary Ann",
    r"a\,b",
    r"x\+y",
    "broker-1.example",
    "#0c00",
    "B2",
    "Ünal",
    "straße",
    // Without a sigma: where it ends a word, Java's lower case of it goes by Java's idea of words (docs/deviations.md).
    "ΑΒ",
    "\u{212a}elvin",
    "İz",
    "ſ",
    "a.b_c",
    "..",
    "$1",
    "a/b",
    "日本",
];
const PIECES: &[&str] = &[
    ".",
    ".*",
    ".*?",
    ".+",
    "[^,]*",
    "[a-z]+",
    "[A-Z]",
    "[A-Za-z0-9.]*",
    r"\w+",
    r"\d",
    r"\s*",
    r"\S",
    r"\W",
    r"\D?",
    r"\.",
    r"\/",
    r"\\",
    "=",
    ",",
    "a",
    "CN",
    "e{1,2}",
    "[^=]{2,}",
    "[.$]",
    r"[\w.]+?",
    "(?:,|$)",
    "^",
    "$",
    r"\A",
    r"\z",
    "x?",
];
/// Parts that only Java supports, that are no patterns, or that the two engines read differently.
const ODD: &[&str] = &[
    "a++", "(?=a)", r"\b", r"\p{L}", "[a&&b]", "[]a]", "(", ")", "[", "{", "a{,2}", r"\1", r"\Qa\E", "(?s).",
    "[:a]", r"\x41", "a|*", "[[a]b]", r"\R", "(?<!a)", "(?>a)",
];
const TEXTS: &[&str] = &["x", "user-", "@", ".", " ", "é", "", "A", r"\$", r"\\", r"\/", ":"];
const REFERENCES: &[&str] = &["$0", "$1", "$2", "$3", "$12", "$10", "${n}", "$01", "$1$2"];
const WRONG_REFERENCES: &[&str] = &["$", "${m}", "${", "$x", r"\"];
const BROKEN: &[&str] = &["/", r"\", ",", "RULE:", "DEFAULT", "(", "$", "L", " "];

impl Generator {
    pub(crate) fn new(seed: u64) -> Generator {
        Generator { state: seed }
    }

    pub(crate) fn pairs(&mut self, count: usize) -> Vec<Pair> {
        (0..count).map(|_| self.pair()).collect()
    }

    fn pair(&mut self) -> Pair {
        let parts: Vec<(&str, &str)> =
            (0..self.below(5)).map(|_| (self.pick(TYPES), self.pick(VALUES))).collect();
        let shown = |(kind, value): &(&str, &str)| format!("{kind}={value}");
        let subject =
            parts.iter().map(shown).collect::<Vec<_>>().join(if self.one_in(8) { "+" } else { "," });
        let mut rules = self.rules(&parts);
        if self.one_in(20) {
            let places: Vec<usize> = rules.char_indices().map(|(at, _)| at).collect();
            rules.insert_str(places[self.below(places.len())], self.pick(BROKEN));
        }
        Pair { rules, subject }
    }

    fn rules(&mut self, parts: &[(&str, &str)]) -> String {
        let count = 1 + self.below(3);
        let rules: Vec<String> = (0..count).map(|_| self.rule(parts)).collect();
        rules.join(self.pick(&[",", ", ", " ,", ",,"]))
    }

    fn rule(&mut self, parts: &[(&str, &str)]) -> String {
        if self.one_in(8) {
            return "DEFAULT".to_owned();
        }
        let pattern = if self.one_in(4) { self.any_pattern(0) } else { self.pattern_of(parts) };
        let replacement = self.replacement();
        let case = self.pick(&["", "", "L", "U"]);
        format!("RULE:{pattern}/{replacement}/{case}")
    }

    /// A pattern that the subject of these parts often matches.
    fn pattern_of(&mut self, parts: &[(&str, &str)]) -> String {
        let mut pattern = self.pick(&["", "", "^", "(?i)"]).to_owned();
        for (number, (kind, value)) in parts.iter().enumerate() {
            if number > 0 {
                pattern.push(',');
            }
            pattern += &escaped(kind);
            pattern += "=";
            pattern += &match self.below(8) {
                0 => escaped(value),
                1 => format!("({})", escaped(value)),
                2 => "(.*?)".to_owned(),
                3 => "([^,]*)".to_owned(),
                4 => "(?<n>.*)".to_owned(),
                5 => format!("({})", self.any_pattern(1)),
                6 => ".*".to_owned(),
                _ => "((?:.)*)".to_owned(),
            };
            if self.one_in(6) {
                return pattern + ".*";
            }
        }
        pattern + self.pick(&["", "", "$", ".*", r"(,.*|$)"])
    }

    /// Pieces in a row, in groups and behind quantifiers. An unbounded repetition has no other one within itself: Java would take
    /// exponential time.
    fn any_pattern(&mut self, depth: usize) -> String {
        let mut pattern = String::new();
        for _ in 0..1 + self.below(3) {
            let piece = match self.below(if depth < 2 { 10 } else { 6 }) {
                0..=5 => self.pick(PIECES).to_owned(),
                6 => format!("({})", self.any_pattern(depth + 1)),
                7 => format!("({}|{})", self.any_pattern(depth + 1), self.any_pattern(depth + 1)),
                8 => format!("(?:{}){}", self.any_pattern(depth + 1), self.pick(&["?", "{1,2}", "??"])),
                _ => format!(
                    "({}){}",
                    self.pick(&["a|D", "[a-z]", ".", "x|(e)", "(a)|b"]),
                    self.pick(&["*", "+", "*?", "{2}"])
                ),
            };
            pattern += &piece;
            if self.one_in(60) {
                pattern += self.pick(ODD);
            }
        }
        pattern
    }

    fn replacement(&mut self) -> String {
        let mut replacement = String::new();
        for _ in 0..self.below(4) {
            replacement += match self.below(40) {
                0 => self.pick(WRONG_REFERENCES),
                1..=20 => self.pick(TEXTS),
                _ => self.pick(REFERENCES),
            };
        }
        replacement
    }

    fn pick<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len())]
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The text as a pattern, as far as a rule can hold it.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for character in text.chars() {
        if r".\+*?()[]{}|^$/#".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}
