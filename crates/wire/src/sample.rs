//! Random messages as bytes, made from the table at run time and not by the generated code, so that each checks the
//! other. What comes out is canonical: decoded and encoded again it is the same bytes.

use crate::table::{self, Field, FieldType, Message, Struct};
use crate::varint;

const TABLE: &str = include_str!("../schema/kafka-4.3.0.txt");

/// Tags from here on are in no schema.
const UNKNOWN_TAG_MIN: u64 = 100;

/// A small random number generator (splitmix64): the same seed gives the same messages everywhere.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`, which is above zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Makes messages of all schemas.
#[derive(Debug)]
pub struct Sampler {
    messages: Vec<Message>,
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler::new()
    }
}

impl Sampler {
    /// Reads the table.
    pub fn new() -> Self {
        Sampler { messages: table::parse(TABLE).expect("the build script has read the same table") }
    }

    /// A random message of a schema in a version, as bytes.
    pub fn message(&self, name: &str, version: i16, rng: &mut Rng) -> Vec<u8> {
        let message = self.messages.iter().find(|message| message.name == name);
        let message = message.unwrap_or_else(|| panic!("there is no message {name}"));
        let mut writer = Writer { message, version, out: Vec::new(), rng: Some(rng), in_tagged: false };
        writer.structure(&message.structs[0]);
        writer.out
    }
}

/// Writes one message; without random numbers, the one in which nothing is set.
struct Writer<'s> {
    message: &'s Message,
    version: i16,
    out: Vec<u8>,
    rng: Option<&'s mut Rng>,
    /// Within a tagged field. Kafka forgets a structure that holds nothing but unknown tagged fields, so there are none.
    in_tagged: bool,
}

impl Writer<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        self.rng.as_mut().map_or(0, |rng| rng.below(bound))
    }

    fn is_flexible(&self) -> bool {
        self.message.flexible.contains(self.version)
    }

    fn structure(&mut self, structure: &Struct) {
        for field in &structure.fields {
            if field.tag.is_none() && field.versions.contains(self.version) {
                self.field(field);
            }
        }
        if self.is_flexible() {
            self.tagged_section(structure);
        }
    }

    fn tagged_section(&mut self, structure: &Struct) {
        let mut entries: Vec<(u64, Vec<u8>)> = Vec::new();
        for field in &structure.fields {
            if let Some(tag) = field.tag
                && field.versions.contains(self.version)
                && self.below(2) == 1
                && let Some(value) = self.tagged_value(field)
            {
                entries.push((tag.into(), value));
            }
        }
        if !self.in_tagged && self.below(8) == 7 {
            for _ in 0..=self.below(2) {
                let tag = UNKNOWN_TAG_MIN + self.below(1000);
                if entries.iter().all(|(other, _)| *other != tag) {
                    let data = self.random_bytes();
                    entries.push((tag, data));
                }
            }
        }
        entries.sort();
        varint::write_u64(&mut self.out, entries.len() as u64);
        for (tag, value) in entries {
            varint::write_u64(&mut self.out, tag);
            varint::write_u64(&mut self.out, value.len() as u64);
            self.out.extend_from_slice(&value);
        }
    }

    /// A value other than the default, because a tagged field with its default is not written; none after some tries.
    fn tagged_value(&mut self, field: &Field) -> Option<Vec<u8>> {
        let (message, version) = (self.message, self.version);
        let mut default = Writer { message, version, out: Vec::new(), rng: None, in_tagged: true };
        default.field(field);
        let outer = std::mem::replace(&mut self.in_tagged, true);
        let before = std::mem::take(&mut self.out);
        let mut value = None;
        for _ in 0..8 {
            self.field(field);
            let candidate = std::mem::take(&mut self.out);
            if candidate != default.out {
                value = Some(candidate);
                break;
            }
        }
        self.out = before;
        self.in_tagged = outer;
        value
    }

    fn field(&mut self, field: &Field) {
        let flexible = self.is_flexible() && !field.never_flexible;
        let nullable = field.nullable.contains(self.version);
        let null = match self.rng {
            None => field.default.as_deref() == Some("null") || field.type_ == FieldType::Records,
            Some(_) => self.below(4) == 0,
        };
        match &field.type_ {
            FieldType::Struct(_) if nullable => self.out.push(match (null, field.tag) {
                (false, _) => 1,
                (true, None) => 0xff,
                (true, Some(_)) => 0,
            }),
            type_ if nullable && null => return self.null(type_, flexible),
            _ => {}
        }
        match (&field.type_, &field.default) {
            (FieldType::Struct(_), _) if nullable && null => {}
            (type_, Some(default)) if self.rng.is_none() && default != "null" => {
                self.constant(type_, default)
            }
            (type_, _) => self.value(type_, flexible),
        }
    }

    fn null(&mut self, type_: &FieldType, flexible: bool) {
        match (flexible, type_) {
            (true, _) => self.out.push(0),
            (false, FieldType::String) => self.out.extend_from_slice(&[0xff; 2]),
            (false, _) => self.out.extend_from_slice(&[0xff; 4]),
        }
    }

    fn length(&mut self, flexible: bool, width: usize, length: usize) {
        match flexible {
            true => varint::write_u64(&mut self.out, length as u64 + 1),
            false => self.out.extend_from_slice(&(length as u64).to_be_bytes()[8 - width..]),
        }
    }

    /// The default of a number or a truth value.
    fn constant(&mut self, type_: &FieldType, default: &str) {
        let number = match default {
            "true" => 1,
            "false" => 0,
            text => text
                .strip_prefix("0x")
                .map_or_else(|| text.parse(), |hex| i64::from_str_radix(hex, 16))
                .expect("defaults are numbers or truth values"),
        };
        let width = fixed_width(type_).expect("only numbers have such defaults");
        self.out.extend_from_slice(&number.to_be_bytes()[8 - width..]);
    }

    fn value(&mut self, type_: &FieldType, flexible: bool) {
        match type_ {
            FieldType::Bool => {
                let bit = self.below(2) as u8;
                self.out.push(bit);
            }
            FieldType::Float64 => {
                let number = self.below(1 << 52) as f64 / 1000.0;
                self.out.extend_from_slice(&number.to_be_bytes());
            }
            FieldType::String => {
                let text = self.random_text();
                self.length(flexible, 2, text.len());
                self.out.extend_from_slice(text.as_bytes());
            }
            FieldType::Bytes | FieldType::Records => {
                let bytes = self.random_bytes();
                self.length(flexible, 4, bytes.len());
                self.out.extend_from_slice(&bytes);
            }
            FieldType::Struct(name) => self.structure(self.message.structure(name)),
            FieldType::Array(element) => {
                let count = self.below(4) as usize;
                self.length(flexible, 4, count);
                for _ in 0..count {
                    self.value(element, flexible);
                }
            }
            fixed => {
                let width = fixed_width(fixed).expect("all others have a fixed width");
                for _ in 0..width {
                    let byte = self.random_byte();
                    self.out.push(byte);
                }
            }
        }
    }

    /// The ends of the range are likelier than the rest.
    fn random_byte(&mut self) -> u8 {
        match self.below(4) {
            0 => 0,
            1 => 0xff,
            _ => self.below(256) as u8,
        }
    }

    /// Mostly short; sometimes so long that a compact length takes two bytes.
    fn random_length(&mut self) -> u64 {
        if self.below(16) == 15 { 100 + self.below(200) } else { self.below(9) }
    }

    fn random_bytes(&mut self) -> Vec<u8> {
        (0..self.random_length()).map(|_| self.random_byte()).collect()
    }

    fn random_text(&mut self) -> String {
        const LETTERS: [char; 12] = ['a', 'b', 'z', 'Q', '0', '-', '.', ' ', 'ä', 'λ', '中', '🦀'];
        (0..self.random_length()).map(|_| LETTERS[self.below(LETTERS.len() as u64) as usize]).collect()
    }
}

fn fixed_width(type_: &FieldType) -> Option<usize> {
    Some(match type_ {
        FieldType::Bool | FieldType::Int8 => 1,
        FieldType::Int16 | FieldType::Uint16 => 2,
        FieldType::Int32 | FieldType::Uint32 => 4,
        FieldType::Int64 | FieldType::Float64 => 8,
        FieldType::Uuid => 16,
        _ => return None,
    })
}
