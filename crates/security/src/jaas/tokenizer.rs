//! `java.io.StreamTokenizer` as Kafka sets it up: words, quoted strings, numbers, comments in two styles.

use std::iter::Peekable;
use std::str::Chars;

/// A part of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A word, or a string in quotes.
    Word(String),
    /// A number outside of quotes, which Kafka takes for no value.
    Number,
    /// Any other character.
    Character(char),
}

/// Yields the tokens of a text.
pub(super) struct Tokenizer<'a> {
    rest: Peekable<Chars<'a>>,
}

impl<'a> Tokenizer<'a> {
    pub(super) fn new(text: &'a str) -> Tokenizer<'a> {
        Tokenizer { rest: text.chars().peekable() }
    }

    /// Skips spaces and comments; returns the character after them. A single slash begins a comment to the end of the line, as in Java's
    /// tokenizer by default.
    fn first(&mut self) -> Option<char> {
        loop {
            let character = self.rest.next()?;
            match character {
                '\0'..=' ' => {}
                '/' if self.rest.peek() == Some(&'*') => {
                    self.rest.next();
                    self.skip_block();
                }
                '/' => while self.rest.next_if(|c| !matches!(c, '\n' | '\r')).is_some() {},
                other => return Some(other),
            }
        }
    }

    fn skip_block(&mut self) {
        while let Some(character) = self.rest.next() {
            if character == '*' && self.rest.next_if_eq(&'/').is_some() {
                return;
            }
        }
    }

    fn word(&mut self, first: char) -> Token {
        let mut word = String::from(first);
        while let Some(character) = self.rest.next_if(|c| is_letter(*c) || is_digit(*c)) {
            word.push(character);
        }
        Token::Word(word)
    }

    /// A number, or the minus that could have begun one. A dot by itself counts as 0.
    fn number(&mut self, first: char) -> Token {
        if first == '-' && !self.rest.peek().is_some_and(|c| *c == '.' || c.is_ascii_digit()) {
            return Token::Character('-');
        }
        let mut has_dot = first == '.';
        while let Some(character) = self.rest.next_if(|c| c.is_ascii_digit() || *c == '.' && !has_dot) {
            has_dot |= character == '.';
        }
        Token::Number
    }

    /// Reads the text in quotes; a line's end closes it as well.
    fn quoted(&mut self, quote: char) -> Token {
        let mut text = String::new();
        while let Some(character) = self.rest.next_if(|c| !matches!(c, '\n' | '\r')) {
            match character {
                '\\' => text.extend(self.escaped()),
                end if end == quote => break,
                other => text.push(other),
            }
        }
        Token::Word(text)
    }

    fn escaped(&mut self) -> Option<char> {
        let first = self.rest.next()?;
        Some(match first {
            '0'..='7' => return char::from_u32(self.octal(first)),
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            other => other,
        })
    }

    /// Up to three digits, the first of three at most 3.
    fn octal(&mut self, first: char) -> u32 {
        let digit = |c: char| c.to_digit(8).unwrap_or_default();
        let mut value = digit(first);
        let further = if first <= '3' { 2 } else { 1 };
        for _ in 0..further {
            match self.rest.next_if(|c| c.is_digit(8)) {
                Some(next) => value = value * 8 + digit(next),
                None => break,
            }
        }
        value
    }
}

impl Iterator for Tokenizer<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        Some(match self.first()? {
            quote @ ('"' | '\'') => self.quoted(quote),
            first if is_digit(first) => self.number(first),
            first if is_letter(first) => self.word(first),
            other => Token::Character(other),
        })
    }
}

/// Returns true for a character that begins a number. It may also continue a word.
fn is_digit(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '.' | '-')
}

/// Returns true for a character that begins a word: letters, everything from a non-breaking space on, and Kafka's additions.
fn is_letter(c: char) -> bool {
    c.is_ascii_alphabetic() || c >= '\u{a0}' || matches!(c, '_' | '$')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> String {
        let shown = Tokenizer::new(text).map(|token| match token {
            Token::Word(word) => format!("<{word}>"),
            Token::Number => "#".to_owned(),
            Token::Character(character) => character.to_string(),
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    /// Checked against `java.io.StreamTokenizer` of Java 17.
    #[test]
    fn as_java_does_it() {
        assert_eq!(tokens("a.b-c_d$e1 = x;"), "<a.b-c_d$e1> = <x> ;");
        assert_eq!(tokens("1.2.3 -4 -x - .5 . -. --1 1a"), "# # # - <x> - # # # - # # <a>");
        assert_eq!(tokens("'a\\'b' \"open\nnext\" "), "<a'b> <open> <next> < >");
        assert_eq!(tokens(r#""\477\08\9\q\t|""#), "<\u{27}7\08\u{39}q\t|>");
        assert_eq!(tokens("a/**/b//c\nd/e\nf/*"), "<a> <b> <d> <f>");
        assert_eq!(tokens("\u{7f}é中😀\u{80}"), "\u{7f} <é中😀> \u{80}");
        assert_eq!(tokens("\"\\"), "<>");
    }
}
