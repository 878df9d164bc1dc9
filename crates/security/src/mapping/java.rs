//! Java's regular expressions, translated to ours: patterns and replacements.

use regex::{Captures, Regex};

/// A piece of a replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Text(String),
    Group(usize),
    Named(String),
}

/// Every match, as `Matcher.find` finds them: after a match of some length an empty one may follow at its end.
pub(super) fn find_all<'t>(regex: &Regex, text: &'t str) -> Vec<Captures<'t>> {
    let mut all = Vec::new();
    let mut from = 0;
    while let Some(found) = (from <= text.len()).then(|| regex.captures_at(text, from)).flatten() {
        let Some(whole) = found.get(0) else { break };
        from = match (whole.is_empty(), text[whole.end()..].chars().next()) {
            (false, _) => whole.end(),
            (true, Some(next)) => whole.end() + next.len_utf8(),
            (true, None) => text.len() + 1,
        };
        all.push(found);
    }
    all
}

/// Escapes each `$N` without a group. As in Kafka's mapper, places are those of the text before the first escape.
pub(super) fn escape_literal_back_references(replacement: &str, groups: usize) -> String {
    if groups == 0 {
        return replacement.to_owned();
    }
    let original: Vec<char> = replacement.chars().collect();
    let mut value = original.clone();
    let mut at = 0;
    while at < original.len() {
        let digits = original[at + 1..].iter().take_while(|c| c.is_ascii_digit()).count();
        if original[at] != '$' || digits == 0 {
            at += 1;
            continue;
        }
        let text: String = original[at + 1..at + 1 + digits].iter().collect();
        let mut index = text.parse::<usize>().unwrap_or(usize::MAX);
        if !text.starts_with('0') {
            while index > groups && index >= 10 {
                index /= 10;
            }
            if index > groups {
                value.insert(at, '\\');
            }
        }
        at += 1 + digits;
    }
    value.into_iter().collect()
}

/// Reads a replacement as `Matcher.appendReplacement` does.
pub(super) fn replacement(text: &str, groups: usize, names: &[&str]) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\\' => literal.push(rest.next().ok_or("a backslash ends the replacement")?),
            '$' => {
                parts.push(Part::Text(std::mem::take(&mut literal)));
                if rest.next_if_eq(&'{').is_some() {
                    let name: String =
                        std::iter::from_fn(|| rest.next_if(char::is_ascii_alphanumeric)).collect();
                    if rest.next() != Some('}') || !names.contains(&name.as_str()) {
                        return Err(format!(
                            "the replacement names the group {name:?}, which the pattern has not"
                        ));
                    }
                    parts.push(Part::Named(name));
                    continue;
                }
                let digit = rest.next_if(char::is_ascii_digit).and_then(|digit| digit.to_digit(10));
                let mut group = digit.ok_or("a $ in the replacement names no group")? as usize;
                if group > groups {
                    return Err(format!("the replacement names group {group} of {groups}"));
                }
                while let Some(digit) = rest.peek().and_then(|digit| digit.to_digit(10)) {
                    let longer = group * 10 + digit as usize;
                    if longer > groups {
                        break;
                    }
                    group = longer;
                    rest.next();
                }
                parts.push(Part::Group(group));
            }
            other => literal.push(other),
        }
    }
    parts.push(Part::Text(literal));
    Ok(parts)
}

/// Rewrites a pattern so that it means the same here as in Java. In a part that ignores case (`(?i)`), each letter of ASCII becomes a class
/// of both cases: Java leaves other letters alone, and ours would take the Kelvin sign for a `k`.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let characters: Vec<char> = pattern.chars().collect();
    let mut translated = String::with_capacity(pattern.len() + 16);
    let mut at = 0;
    let mut depth = 0; // of classes
    let mut after_quantifier = false;
    let mut is_insensitive = false;
    let mut outside = Vec::new(); // whether it was, around each group
    while let Some(&character) = characters.get(at) {
        let rest = &characters[at..];
        let was_quantifier = std::mem::take(&mut after_quantifier);
        match character {
            '\\' => {
                let (text, length) = escape(rest, depth > 0)?;
                if is_insensitive && depth > 0 && begins_range(&rest[length - 1..]) {
                    return Err("a range that begins with an escape, insensitive to case".to_owned());
                }
                translated.push_str(&text);
                at += length;
                continue;
            }
            '[' => {
                if rest.get(1) == Some(&':') {
                    return Err("[: means something else in Java".to_owned());
                }
                depth += 1;
                translated.push('[');
                // A bracket that comes first is a character of the class in ours, and an error or a class in Java.
                let first = if rest.get(1) == Some(&'^') { 2 } else { 1 };
                if matches!(rest.get(first), Some(']' | '&' | '-')) {
                    return Err("a class begins with a character that Java reads in another way".to_owned());
                }
            }
            ']' if depth > 0 => {
                depth -= 1;
                translated.push(']');
            }
            '-' | '~' | '&' if depth > 0 && rest.get(1) == Some(&character) => {
                return Err(format!("{character}{character} in a class is not the same in Java"));
            }
            other if depth > 0 && !is_insensitive => translated.push(other),
            _ if depth > 0 => {
                let (text, length) = in_both_cases(rest)?;
                translated.push_str(&text);
                at += length;
                continue;
            }
            '(' => {
                check_group(rest)?;
                if rest.starts_with(&['(', '?', 'i', ')']) {
                    if matches!(rest.get(4), Some('*' | '+' | '?' | '{')) {
                        return Err("a quantifier behind (?i)".to_owned());
                    }
                    is_insensitive = true;
                    at += 4;
                    continue;
                }
                outside.push(is_insensitive);
                if rest.starts_with(&['(', '?', 'i', ':']) {
                    is_insensitive = true;
                    translated.push_str("(?:");
                    at += 4;
                    continue;
                }
                if rest.starts_with(&['(', '?', '<']) {
                    let length = name_length(rest)?;
                    translated.extend(&rest[..length]);
                    at += length;
                    continue;
                }
                translated.push('(');
            }
            ')' => {
                is_insensitive = outside.pop().unwrap_or(is_insensitive);
                translated.push(')');
            }
            '.' => translated.push_str(r"[^\n\r\u{85}\u{2028}\u{2029}]"),
            '$' => translated.push_str(r"\z"),
            '^' => translated.push_str(r"\A"),
            '*' | '+' | '?' | '{' => {
                if was_quantifier {
                    return Err(format!("{character} after a quantifier is possessive or an error in Java"));
                }
                let length = quantifier_length(rest)?;
                translated.extend(&rest[..length]);
                at += length;
                if characters.get(at) == Some(&'?') {
                    translated.push('?');
                    at += 1;
                }
                after_quantifier = true;
                continue;
            }
            letter if is_insensitive && letter.is_ascii_alphabetic() => {
                translated.extend(['[', letter, other_case(letter), ']']);
            }
            other => translated.push(other),
        }
        at += 1;
    }
    Ok(translated)
}

/// The characters of `(?<name>`.
fn name_length(rest: &[char]) -> Result<usize, String> {
    let length = rest.iter().skip(3).take_while(|letter| letter.is_ascii_alphanumeric()).count() + 3;
    if rest.get(length) == Some(&'>') {
        Ok(length + 1)
    } else {
        Err("a group's name does not end".to_owned())
    }
}

fn other_case(letter: char) -> char {
    if letter.is_ascii_lowercase() { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() }
}

/// Returns true if the first character, of a class, is followed by the rest of a range.
fn begins_range(rest: &[char]) -> bool {
    matches!(rest, [_, '-', last, ..] if *last != ']')
}

/// Returns an item of a class, a character or a range, with the other case of each ASCII letter in it, and the number of characters that
/// were read.
fn in_both_cases(rest: &[char]) -> Result<(String, usize), String> {
    let (first, last, length) = match rest {
        [first, '-', last, ..] if begins_range(rest) => (*first, *last, 3),
        _ => (rest[0], rest[0], 1),
    };
    if length == 3 && matches!(last, '[' | '\\' | '-' | '&' | '~') {
        return Err(format!("a range that ends with {last}, insensitive to case"));
    }
    let mut text: String = rest[..length].iter().collect();
    let letters = ('a'..='z').chain('A'..='Z').filter(|letter| (first..=last).contains(letter));
    text.extend(letters.map(other_case));
    Ok((text, length))
}

/// One character, or `{n}`, `{n,}`, `{n,m}`.
fn quantifier_length(rest: &[char]) -> Result<usize, String> {
    if rest[0] != '{' {
        return Ok(1);
    }
    let length = rest.iter().position(|c| *c == '}').ok_or("a { without its }")?;
    let inner = &rest[1..length];
    let is_bounds = inner.first().is_some_and(char::is_ascii_digit)
        && inner.iter().all(|c| c.is_ascii_digit() || *c == ',')
        && inner.iter().filter(|c| **c == ',').count() <= 1;
    if is_bounds { Ok(length + 1) } else { Err("a { that bounds nothing".to_owned()) }
}

/// Groups that both know: plain, `(?:`, `(?<name>`, `(?i)` and `(?i:`.
fn check_group(rest: &[char]) -> Result<(), String> {
    let head: String = rest.iter().take(4).collect();
    let is_known = match head.get(1..) {
        Some(tail) if !tail.starts_with('?') => true,
        Some(tail) if tail.starts_with("?:") => true,
        Some(tail) if tail.starts_with("?i)") || tail.starts_with("?i:") => true,
        Some(tail) if tail.starts_with("?<") => rest.get(3).is_some_and(char::is_ascii_alphabetic),
        _ => false,
    };
    if is_known { Ok(()) } else { Err(format!("{head} is a group that only Java has")) }
}

/// Returns an escape, and the number of characters that were read. Java's classes are of ASCII.
fn escape(rest: &[char], in_class: bool) -> Result<(String, usize), String> {
    let Some(&character) = rest.get(1) else { return Err("a backslash ends the pattern".to_owned()) };
    let text = match character {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        'w' => "[a-zA-Z0-9_]",
        'W' => "[^a-zA-Z0-9_]",
        's' => r"[ \t\n\x0B\f\r]",
        'S' => r"[^ \t\n\x0B\f\r]",
        't' => r"\t",
        'n' => r"\n",
        'r' => r"\r",
        'f' => r"\f",
        'A' if !in_class => r"\A",
        'z' if !in_class => r"\z",
        other if other.is_ascii_alphanumeric() || !other.is_ascii() => {
            return Err(format!("\\{other} is an escape that only Java has"));
        }
        // Any other character means itself.
        other => return Ok((regex::escape(&other.to_string()), 2)),
    };
    Ok((text.to_owned(), 2))
}
