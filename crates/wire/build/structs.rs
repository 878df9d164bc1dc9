//! Structures, their defaults and their trait implementations.

use std::fmt::Write as _;

use crate::table::{Field, FieldType, Kind, Message, Struct, Versions};
use crate::{decode, encode};

/// All modules of `messages`.
pub(crate) fn generate(messages: &[Message]) -> String {
    let mut code = String::new();
    for message in messages {
        let _ = writeln!(code, "/// `{}`, versions {}.", message.name, message.versions);
        let _ = writeln!(code, "pub mod {} {{\nuse super::prelude::*;\n", snake_case(&message.name));
        let context = Context::new(message);
        for structure in &message.structs {
            context.structure(&mut code, structure);
        }
        context.message_impl(&mut code, messages);
        code.push_str("}\n\n");
    }
    code
}

/// A message with what has been found out about its structures.
pub(crate) struct Context<'m> {
    pub(crate) message: &'m Message,
    /// Structures that borrow from the bytes they were decoded from.
    borrowing: Vec<&'m str>,
}

impl<'m> Context<'m> {
    pub(crate) fn new(message: &'m Message) -> Self {
        let mut context = Context { message, borrowing: Vec::new() };
        loop {
            let before = context.borrowing.len();
            for structure in &message.structs {
                let name = structure.name.as_str();
                if !context.borrows(name) && context.must_borrow(structure) {
                    context.borrowing.push(name);
                }
            }
            if context.borrowing.len() == before {
                return context;
            }
        }
    }

    fn must_borrow(&self, structure: &Struct) -> bool {
        self.message.has_flexible_versions()
            || structure.fields.iter().any(|field| self.type_borrows(&field.type_))
    }

    fn type_borrows(&self, type_: &FieldType) -> bool {
        match type_ {
            FieldType::String | FieldType::Bytes | FieldType::Records => true,
            FieldType::Struct(name) => self.borrows(name),
            FieldType::Array(element) => self.type_borrows(element),
            _ => false,
        }
    }

    pub(crate) fn borrows(&self, name: &str) -> bool {
        self.borrowing.contains(&name)
    }

    /// The name of a structure with its lifetime, if it has one.
    pub(crate) fn type_name(&self, name: &str, lifetime: &str) -> String {
        if self.borrows(name) { format!("{name}<{lifetime}>") } else { name.to_string() }
    }

    fn rust_type(&self, type_: &FieldType) -> String {
        match type_ {
            FieldType::Bool => "bool".into(),
            FieldType::Int8 => "i8".into(),
            FieldType::Int16 => "i16".into(),
            FieldType::Uint16 => "u16".into(),
            FieldType::Int32 => "i32".into(),
            FieldType::Uint32 => "u32".into(),
            FieldType::Int64 => "i64".into(),
            FieldType::Float64 => "f64".into(),
            FieldType::Uuid => "Uuid".into(),
            FieldType::String => "Cow<'a, str>".into(),
            FieldType::Bytes => "Cow<'a, [u8]>".into(),
            FieldType::Records => "Records<'a>".into(),
            FieldType::Struct(name) => self.type_name(name, "'a"),
            FieldType::Array(element) => format!("Vec<{}>", self.rust_type(element)),
        }
    }

    fn field_type(&self, field: &Field) -> String {
        let plain = self.rust_type(&field.type_);
        match (&field.type_, field.is_nullable()) {
            (FieldType::Struct(_), true) => format!("Option<Box<{plain}>>"),
            (_, true) => format!("Option<{plain}>"),
            (_, false) => plain,
        }
    }

    fn structure(&self, code: &mut String, structure: &Struct) {
        let plain = structure.fields.iter().all(default_is_rusts);
        let _ = writeln!(code, "/// `{}`, versions {}.", structure.name, structure.versions);
        let _ = writeln!(code, "#[derive(Debug, Clone, PartialEq{})]", if plain { ", Default" } else { "" });
        let _ = writeln!(code, "pub struct {} {{", self.type_name(&structure.name, "'a"));
        for field in &structure.fields {
            let _ = writeln!(code, "    /// {}.", describe(field));
            let _ = writeln!(code, "    pub {}: {},", rust_name(&field.name), self.field_type(field));
        }
        if self.message.has_flexible_versions() {
            code.push_str("    /// Tagged fields that the schema does not know, in the order of arrival.\n");
            code.push_str("    pub unknown_tagged_fields: Vec<UnknownTaggedField<'a>>,\n");
        }
        code.push_str("}\n\n");
        if !plain {
            self.default_impl(code, structure);
        }
        let name = &structure.name;
        match self.borrows(name) {
            true => writeln!(code, "impl<'a> {name}<'a> {{"),
            false => writeln!(code, "impl {name} {{"),
        }
        .expect("writing to a string cannot fail");
        decode::read_fn(code, self, structure);
        encode::write_fn(code, self, structure);
        code.push_str("}\n\n");
        if self.message.kind == Kind::Response && structure.name != self.message.name {
            self.element_impl(code, structure);
        }
    }

    /// A structure of a response may be written alone.
    fn element_impl(&self, code: &mut String, structure: &Struct) {
        let type_ = self.type_name(&structure.name, "'_");
        let _ = writeln!(
            code,
            "impl Element for {type_} {{
    fn encode_element(&self, e: &mut Encoder<'_>, version: i16) -> Result<(), EncodeError> {{
        self.write(e, version)
    }}
}}
"
        );
    }

    fn default_impl(&self, code: &mut String, structure: &Struct) {
        let _ = writeln!(code, "impl Default for {} {{", self.type_name(&structure.name, "'_"));
        code.push_str("    fn default() -> Self {\n        Self {\n");
        for field in &structure.fields {
            let _ = writeln!(code, "            {}: {},", rust_name(&field.name), default_value(field));
        }
        if self.message.has_flexible_versions() {
            code.push_str("            unknown_tagged_fields: Vec::new(),\n");
        }
        code.push_str("        }\n    }\n}\n\n");
    }

    fn message_impl(&self, code: &mut String, messages: &[Message]) {
        let message = self.message;
        let name = &message.name;
        let type_ = self.type_name(name, "'a");
        let Versions { low, high } = message.versions;
        let _ = writeln!(
            code,
            "impl<'a> Message<'a> for {type_} {{
    const NAME: &'static str = \"{name}\";
    const VERSIONS: RangeInclusive<i16> = {low}..={high};

    fn is_flexible(version: i16) -> bool {{
        {}
    }}

    fn decode_body(d: &mut Decoder<'a>, version: i16) -> Result<Self, DecodeError> {{
        Self::read(d, version)
    }}

    fn encode_body(&self, e: &mut Encoder<'_>, version: i16) -> Result<(), EncodeError> {{
        self.write(e, version)
    }}
}}
",
            match message.flexible {
                flexible if flexible.is_empty() => "let _ = version;\n        false".to_string(),
                flexible => format!("version >= {}", flexible.low),
            }
        );
        self.family_impl(code, &type_, messages);
    }

    /// Generates the trait that a request or a coordinator's key has beside `Message`.
    fn family_impl(&self, code: &mut String, type_: &str, messages: &[Message]) {
        let name = &self.message.name;
        let (Some(key), kind) = (self.message.key, self.message.kind) else { return };
        let stem = |end: &str| name.strip_suffix(end).expect("the kind is part of the name").to_string();
        if kind == Kind::Request {
            let stem = stem("Request");
            let response = path_of(messages, &format!("{stem}Response"), "'r");
            let _ = writeln!(code, "impl<'a> Request<'a> for {type_} {{");
            let _ = writeln!(code, "    const KEY: ApiKey = ApiKey::{stem};");
            let _ = writeln!(code, "    type Response<'r> = {response};\n}}\n");
        } else if kind == Kind::CoordinatorKey {
            let value = path_of(messages, &format!("{}Value", stem("Key")), "'v");
            let _ = writeln!(code, "impl<'a> CoordinatorKey<'a> for {type_} {{");
            let _ = writeln!(code, "    const RECORD_TYPE: i16 = {key};");
            let _ = writeln!(code, "    type Value<'v> = {value};\n}}\n");
        }
    }
}

/// The path of a message's structure from within the module of another message.
fn path_of(messages: &[Message], name: &str, lifetime: &str) -> String {
    let message = messages.iter().find(|message| message.name == name);
    let message = message.unwrap_or_else(|| panic!("the table has no {name}"));
    format!("super::{}::{}", snake_case(name), Context::new(message).type_name(name, lifetime))
}

fn describe(field: &Field) -> String {
    let mut text = format!(
        "`{}`: {}, versions {}",
        field.name,
        field.type_text.replace("[]", "array of "),
        field.versions
    );
    if field.is_nullable() {
        let _ = write!(text, ", nullable in {}", field.nullable);
    }
    if let Some(tag) = field.tag {
        let _ = write!(text, ", tag {tag}");
    }
    if let Some(default) = &field.default {
        let _ = write!(text, ", default {default}");
    }
    if field.ignorable {
        text.push_str(", ignorable");
    }
    text
}

/// Returns true if `Default::default()` of the Rust type is the schema's default.
fn default_is_rusts(field: &Field) -> bool {
    let null = field.default.as_deref() == Some("null") || field.type_ == FieldType::Records;
    if field.is_nullable() {
        return null;
    }
    matches!(field.default.as_deref(), None | Some("0" | "false"))
}

/// The schema's default as an expression. A nullable field without a default is empty, not null, as in Kafka;
/// only records are null then.
pub(crate) fn default_value(field: &Field) -> String {
    if default_is_rusts(field) {
        return "Default::default()".into();
    }
    if field.is_nullable() {
        return "Some(Default::default())".into();
    }
    let default = field.default.as_deref().expect("a default that is not Rust's is given");
    match field.type_ {
        FieldType::String => format!("Cow::Borrowed({default:?})"),
        _ => default.to_string(),
    }
}

/// An expression that tells whether the field's value `place` is other than the schema's default.
pub(crate) fn is_not_default(field: &Field, place: &str) -> String {
    let null = field.default.as_deref() == Some("null") || field.type_ == FieldType::Records;
    if field.is_nullable() {
        return match (&field.type_, null) {
            (_, true) => format!("{place}.is_some()"),
            (FieldType::Struct(_), false) => format!("{place} != Some(Default::default())"),
            (_, false) => format!("!{place}.as_ref().is_some_and(|value| value.is_empty())"),
        };
    }
    match (&field.type_, field.default.as_deref()) {
        (FieldType::Bool, Some("true")) => format!("!{place}"),
        (FieldType::Bool, _) => place.to_string(),
        (FieldType::Uuid, _) => format!("{place} != Uuid::ZERO"),
        (FieldType::Struct(_), _) => format!("{place} != Default::default()"),
        (FieldType::String, Some(default)) => format!("{place} != {default:?}"),
        (FieldType::String | FieldType::Bytes | FieldType::Array(_) | FieldType::Records, _) => {
            format!("!{place}.is_empty()")
        }
        (FieldType::Float64, default) => format!("{place} != {}", default.unwrap_or("0.0")),
        (_, default) => format!("{place} != {}", default.unwrap_or("0")),
    }
}

/// Returns an expression that is true if `v` is within `versions`. Only the versions `within` occur there.
pub(crate) fn condition(versions: Versions, within: Versions) -> String {
    let versions = versions.intersect(within);
    match (versions.low <= within.low, versions.high >= within.high) {
        _ if versions.is_empty() => "false".into(),
        (true, true) => "true".into(),
        (false, true) => format!("v >= {}", versions.low),
        (true, false) => format!("v <= {}", versions.high),
        (false, false) => format!("({}..={}).contains(&v)", versions.low, versions.high),
    }
}

/// The name of a field in Rust.
pub(crate) fn rust_name(name: &str) -> String {
    let snake = snake_case(name);
    if matches!(snake.as_str(), "type" | "match" | "move" | "ref" | "self" | "in" | "use" | "where") {
        return format!("{snake}_");
    }
    snake
}

/// `TimeoutMs` to `timeout_ms`, `ZKData` to `zk_data`.
pub(crate) fn snake_case(name: &str) -> String {
    let characters: Vec<char> = name.chars().collect();
    let mut snake = String::new();
    for (at, &character) in characters.iter().enumerate() {
        let after_lower = at > 0 && !characters[at - 1].is_uppercase();
        let before_lower = characters.get(at + 1).is_some_and(|next| next.is_lowercase());
        if character.is_uppercase() && at > 0 && (after_lower || before_lower) {
            snake.push('_');
        }
        snake.extend(character.to_lowercase());
    }
    snake
}
