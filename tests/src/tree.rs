//! Messages as trees of named fields, written and read by the table of schemas alone: requests of any API in any
//! version, and answers field by field, without code for each API.

use std::fmt::{self, Write as _};

use mainstem_wire::{Uuid, varint};

#[path = "../../crates/wire/build/table.rs"]
#[allow(dead_code, unreachable_pub, reason = "the build script of the codec uses the rest")]
mod table;

use table::{Field, FieldType, Message, Struct};

const TABLE: &str = include_str!("../../crates/wire/schema/kafka-4.3.0.txt");

/// A value of a field.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Value {
    Null,
    Number(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Uuid(Uuid),
    List(Vec<Value>),
    Fields(Vec<(String, Value)>),
}

/// The value of a field in a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Say {
    /// The default of the schema, or the empty value.
    Default,
    /// Null, where the version has it.
    Null,
    /// A number or truth value.
    Number(i64),
    /// A floating point number.
    Float(f64),
    /// A text.
    Text(String),
    /// Bytes, or records.
    Bytes(Vec<u8>),
    /// An id.
    Uuid(Uuid),
    /// The number of elements of a list, whose fields are asked for one by one.
    Count(usize),
}

/// The schemas.
#[derive(Debug)]
pub struct Schemas {
    messages: Vec<Message>,
}

impl Default for Schemas {
    fn default() -> Self {
        Schemas::new()
    }
}

impl Schemas {
    /// Reads the table.
    pub fn new() -> Self {
        Schemas { messages: table::parse(TABLE).expect("the codec's build script has read the same table") }
    }

    fn message(&self, name: &str) -> &Message {
        let message = self.messages.iter().find(|message| message.name == name);
        message.unwrap_or_else(|| panic!("there is no message {name}"))
    }

    /// Encodes a message in a version. `say` gives the value of each field that the version has, by its path, such as
    /// `Topics/Partitions/PartitionIndex`.
    ///
    /// # Panics
    /// When a field cannot have its value: a mistake of the test.
    pub fn write(&self, name: &str, version: i16, say: &dyn Fn(&str) -> Say) -> Vec<u8> {
        let message = self.message(name);
        let mut writer = Writer { message, version, say, out: Vec::new() };
        writer.structure(&message.structs[0], "");
        writer.out
    }

    /// Decodes a message of a version.
    ///
    /// # Errors
    /// When the bytes are no such message, or bytes are left.
    pub fn read(&self, name: &str, version: i16, bytes: &[u8]) -> Result<Value, String> {
        let message = self.message(name);
        let mut reader = Reader { message, version, rest: bytes };
        let value = reader.structure(&message.structs[0])?;
        if reader.rest.is_empty() { Ok(value) } else { Err(format!("{} bytes too many", reader.rest.len())) }
    }
}

struct Writer<'s> {
    message: &'s Message,
    version: i16,
    say: &'s dyn Fn(&str) -> Say,
    out: Vec<u8>,
}

impl Writer<'_> {
    fn structure(&mut self, structure: &Struct, path: &str) {
        let has = |field: &&Field| field.versions.contains(self.version);
        let fields: Vec<&Field> = structure.fields.iter().filter(has).collect();
        for field in fields.iter().filter(|field| field.tag.is_none()) {
            self.field(field, path);
        }
        if self.message.flexible.contains(self.version) {
            let mut tagged = Vec::new();
            for field in fields {
                if let Some(tag) = field.tag
                    && (self.say)(&join(path, &field.name)) != Say::Default
                {
                    let before = std::mem::take(&mut self.out);
                    self.field(field, path);
                    tagged.push((tag, std::mem::replace(&mut self.out, before)));
                }
            }
            tagged.sort();
            varint::write_u64(&mut self.out, tagged.len() as u64);
            for (tag, bytes) in tagged {
                varint::write_u64(&mut self.out, tag.into());
                varint::write_u64(&mut self.out, bytes.len() as u64);
                self.out.extend(bytes);
            }
        }
    }

    fn field(&mut self, field: &Field, path: &str) {
        let path = join(path, &field.name);
        let said = (self.say)(&path);
        let default = field.default.as_deref();
        let said = match (said, default) {
            (Say::Null, _) if !field.nullable.contains(self.version) => Say::Default,
            (said, _) if said != Say::Default => said,
            (_, Some("null")) if field.nullable.contains(self.version) => Say::Null,
            (_, Some(text)) => constant(text),
            (said, None) => said,
        };
        let flexible = self.message.flexible.contains(self.version) && !field.never_flexible;
        let is_nullable_struct =
            matches!(field.type_, FieldType::Struct(_)) && field.nullable.contains(self.version);
        match (&field.type_, said) {
            (FieldType::Struct(_), Say::Null) => self.out.push(if field.tag.is_some() { 0 } else { 0xff }),
            (FieldType::String, Say::Null) if !flexible => self.out.extend([0xff; 2]),
            (_, Say::Null) if !flexible => self.out.extend([0xff; 4]),
            (_, Say::Null) => self.out.push(0),
            (type_, said) => {
                if is_nullable_struct {
                    self.out.push(1);
                }
                self.value(type_, flexible, &path, said);
            }
        }
    }

    fn length(&mut self, flexible: bool, width: usize, length: usize) {
        match flexible {
            true => varint::write_u64(&mut self.out, length as u64 + 1),
            false => self.out.extend_from_slice(&(length as u64).to_be_bytes()[8 - width..]),
        }
    }

    fn value(&mut self, type_: &FieldType, flexible: bool, path: &str, said: Say) {
        match (type_, said) {
            (FieldType::Struct(name), _) => self.structure(self.message.structure(name), path),
            (FieldType::Array(element), said) => {
                let count = if let Say::Count(count) = said { count } else { 0 };
                self.length(flexible, 4, count);
                for _ in 0..count {
                    let said = match **element {
                        FieldType::Struct(_) => Say::Default,
                        _ => (self.say)(&join(path, "#")),
                    };
                    self.value(element, flexible, path, said);
                }
            }
            (FieldType::String, said) => {
                let text = if let Say::Text(text) = said { text } else { String::new() };
                self.length(flexible, 2, text.len());
                self.out.extend(text.as_bytes());
            }
            (FieldType::Bytes | FieldType::Records, said) => {
                let bytes = if let Say::Bytes(bytes) = said { bytes } else { Vec::new() };
                self.length(flexible, 4, bytes.len());
                self.out.extend(bytes);
            }
            (FieldType::Uuid, said) => self.out.extend(if let Say::Uuid(id) = said { id.0 } else { [0; 16] }),
            (FieldType::Float64, said) => {
                let number = if let Say::Float(number) = said { number } else { 0.0 };
                self.out.extend(number.to_be_bytes());
            }
            (fixed, Say::Number(number)) => {
                self.out.extend_from_slice(&number.to_be_bytes()[8 - width(fixed)..]);
            }
            (fixed, Say::Default) => self.out.extend(vec![0; width(fixed)]),
            (other, said) => panic!("{path} is {other:?} and cannot say {said:?}"),
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

fn constant(text: &str) -> Say {
    match text {
        "true" => Say::Number(1),
        "false" => Say::Number(0),
        text => {
            let number =
                text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| i64::from_str_radix(hex, 16));
            number.map_or(Say::Default, Say::Number)
        }
    }
}

fn width(type_: &FieldType) -> usize {
    match type_ {
        FieldType::Bool | FieldType::Int8 => 1,
        FieldType::Int16 | FieldType::Uint16 => 2,
        FieldType::Int32 | FieldType::Uint32 => 4,
        _ => 8,
    }
}

struct Reader<'s, 'b> {
    message: &'s Message,
    version: i16,
    rest: &'b [u8],
}

impl<'s, 'b> Reader<'s, 'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], String> {
        let taken = self.rest.get(..count).ok_or_else(|| format!("{count} bytes are missing"))?;
        self.rest = &self.rest[count..];
        Ok(taken)
    }

    fn number(&mut self, width: usize) -> Result<i64, String> {
        let bytes = self.take(width)?;
        let sign = if bytes[0] & 0x80 == 0 { 0 } else { 0xff };
        let mut all = [sign; 8];
        all[8 - width..].copy_from_slice(bytes);
        Ok(i64::from_be_bytes(all))
    }

    fn unsigned(&mut self) -> Result<u64, String> {
        let (number, width) = varint::read_u64(self.rest).map_err(|error| format!("{error:?}"))?;
        self.rest = &self.rest[width..];
        Ok(number)
    }

    /// Reads a length; none for null.
    fn length(&mut self, flexible: bool, width: usize) -> Result<Option<usize>, String> {
        let length = match flexible {
            true => i64::try_from(self.unsigned()?).map_err(|error| error.to_string())? - 1,
            false => self.number(width)?,
        };
        Ok(usize::try_from(length).ok())
    }

    fn structure(&mut self, structure: &'s Struct) -> Result<Value, String> {
        let mut fields = Vec::new();
        let version = self.version;
        for field in structure.fields.iter().filter(|field| field.versions.contains(version)) {
            if field.tag.is_none() {
                fields.push((field.name.clone(), self.field(field)?));
            }
        }
        if self.message.flexible.contains(version) {
            for _ in 0..self.unsigned()? {
                let (tag, length) = (self.unsigned()?, self.unsigned()?);
                let bytes = self.take(usize::try_from(length).map_err(|error| error.to_string())?)?;
                let known = structure.fields.iter().find(|field| field.tag.map(u64::from) == Some(tag));
                let known = known.ok_or_else(|| format!("tag {tag} is in no schema"))?;
                let mut reader = Reader { message: self.message, version, rest: bytes };
                fields.push((known.name.clone(), reader.field(known)?));
            }
        }
        Ok(Value::Fields(fields))
    }

    fn field(&mut self, field: &'s Field) -> Result<Value, String> {
        let flexible = self.message.flexible.contains(self.version) && !field.never_flexible;
        if let FieldType::Struct(_) = field.type_
            && field.nullable.contains(self.version)
            && self.number(1)? <= 0
        {
            return Ok(Value::Null);
        }
        self.value(&field.type_, flexible)
    }

    fn value(&mut self, type_: &'s FieldType, flexible: bool) -> Result<Value, String> {
        Ok(match type_ {
            FieldType::Struct(name) => self.structure(self.message.structure(name))?,
            FieldType::Array(element) => match self.length(flexible, 4)? {
                Some(count) => {
                    let elements = (0..count).map(|_| self.value(element, flexible));
                    Value::List(elements.collect::<Result<_, _>>()?)
                }
                None => Value::Null,
            },
            FieldType::String => match self.length(flexible, 2)? {
                Some(length) => Value::Text(String::from_utf8_lossy(self.take(length)?).into_owned()),
                None => Value::Null,
            },
            FieldType::Bytes | FieldType::Records => match self.length(flexible, 4)? {
                Some(length) => Value::Bytes(self.take(length)?.to_vec()),
                None => Value::Null,
            },
            FieldType::Uuid => Value::Uuid(Uuid(self.take(16)?.try_into().expect("16 bytes are 16 bytes"))),
            FieldType::Float64 => {
                Value::Float(f64::from_be_bytes(self.take(8)?.try_into().expect("8 bytes are 8 bytes")))
            }
            fixed => Value::Number(self.number(width(fixed))?),
        })
    }
}

impl fmt::Display for Value {
    /// Formats it in one line. Lists are sorted by their elements, as Kafka walks hash tables.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Float(number) => write!(f, "{number}"),
            Value::Text(text) => write!(f, "{text:?}"),
            Value::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Value::Uuid(id) => write!(f, "{id}"),
            Value::List(values) => {
                let mut texts: Vec<_> = values.iter().map(ToString::to_string).collect();
                texts.sort();
                write!(f, "[{}]", texts.join(", "))
            }
            Value::Fields(fields) => {
                f.write_char('{')?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}{name}={value}", if index == 0 { "" } else { " " })?;
                }
                f.write_char('}')
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstem_wire::catalogue::{MESSAGES, MessageKind};

    use super::*;

    /// The generated codec reads what is written here, and writes the same bytes.
    #[test]
    fn what_says_nothing_is_what_the_codec_writes() {
        let schemas = Schemas::new();
        for message in MESSAGES.iter().filter(|message| message.kind == MessageKind::Request) {
            for version in message.oldest..=message.newest {
                let ours = schemas.write(message.name, version, &|_| Say::Default);
                let again = message.reencode(&ours, version);
                let again = again.unwrap_or_else(|error| panic!("{} v{version}: {error}", message.name));
                assert_eq!(ours, again, "{} v{version}", message.name);
                schemas.read(message.name, version, &ours).unwrap();
            }
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let say = |path: &str| match path {
            "Topics" | "Topics/Partitions" => Say::Count(2),
            "Topics/Topic" => Say::Text("t".into()),
            "MaxWaitMs" => Say::Number(-3),
            _ => Say::Default,
        };
        let schemas = Schemas::new();
        let bytes = schemas.write("FetchRequest", 12, &say);
        let text = schemas.read("FetchRequest", 12, &bytes).unwrap().to_string();
        assert!(text.contains("MaxWaitMs=-3") && text.matches(r#"Topic="t""#).count() == 2, "{text}");
        assert!(text.matches("CurrentLeaderEpoch=-1").count() == 4, "{text}");
        assert!(schemas.read("FetchRequest", 12, &bytes[..bytes.len() - 1]).is_err());
    }
}
