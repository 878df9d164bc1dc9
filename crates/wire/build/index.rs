//! Code that is generated over all messages: the API keys, the metadata records, the catalogue.

use std::fmt::Write as _;

use crate::structs::{Context, snake_case};
use crate::table::{Kind, Message};

fn of_kind(messages: &[Message], kind: Kind) -> Vec<&Message> {
    let mut chosen: Vec<&Message> = messages.iter().filter(|message| message.kind == kind).collect();
    chosen.sort_by_key(|message| message.key);
    chosen
}

/// `enum ApiKey` and its facts.
pub(crate) fn api_keys(messages: &[Message]) -> String {
    let requests = of_kind(messages, Kind::Request);
    let stem = |message: &Message| message.name.trim_end_matches("Request").to_string();
    let key = |message: &Message| message.key.expect("a request has a key");
    let mut code = String::from(
        "/// The key of an API, as the first two bytes of a request header give it.\n\
         #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]\n#[repr(i16)]\npub enum ApiKey {\n",
    );
    for request in &requests {
        let (stem, versions) = (stem(request), request.versions);
        let _ = writeln!(code, "    /// `{stem}`, versions {versions}.\n    {stem} = {},", key(request));
    }
    code.push_str("}\n\nimpl ApiKey {\n    /// Every API of the table, by rising key.\n");
    code.push_str("    pub const ALL: &'static [ApiKey] = &[\n");
    for request in &requests {
        let _ = writeln!(code, "        ApiKey::{},", stem(request));
    }
    code.push_str("    ];\n\n    const fn facts(self) -> &'static Facts {\n        match self {\n");
    for request in &requests {
        let flexible = if request.flexible.is_empty() { i16::MAX } else { request.flexible.low };
        let _ = writeln!(
            code,
            "            ApiKey::{0} => &Facts {{ name: \"{0}\", oldest: {1}, newest: {2}, flexible: {flexible} }},",
            stem(request),
            request.versions.low,
            request.versions.high,
        );
    }
    code.push_str(
        "        }\n    }\n}\n\nimpl TryFrom<i16> for ApiKey {\n    type Error = UnknownApiKey;\n\n",
    );
    code.push_str("    fn try_from(key: i16) -> Result<Self, UnknownApiKey> {\n        Ok(match key {\n");
    for request in &requests {
        let _ = writeln!(code, "            {} => ApiKey::{},", key(request), stem(request));
    }
    code.push_str("            unknown => return Err(UnknownApiKey(unknown)),\n        })\n    }\n}\n");
    code
}

/// `enum MetadataRecord`: one variant per record of the metadata log.
pub(crate) fn metadata_records(messages: &[Message]) -> String {
    let records = of_kind(messages, Kind::Metadata);
    let key = |message: &Message| message.key.expect("a metadata record has a key");
    let mut code = String::from(
        "/// A record of the metadata log, `__cluster_metadata`.\n\
         #[derive(Debug, Clone, PartialEq)]\npub enum MetadataRecord<'a> {\n",
    );
    for record in &records {
        let name = &record.name;
        let _ = writeln!(code, "    /// `{name}`, record type {}.", key(record));
        let _ =
            writeln!(code, "    {name}(Box<messages::{}::{}>),", snake_case(name), type_name(record, "'a"));
    }
    code.push_str("}\n\nimpl<'a> MetadataRecord<'a> {\n");
    let per_record = |code: &mut String, head: &str, arm: &dyn Fn(&Message) -> String| {
        let _ = write!(code, "    {head} {{\n        match self {{\n");
        for record in &records {
            let _ = writeln!(
                code,
                "            Self::{}(record) => {{ let _ = record; {} }}",
                record.name,
                arm(record)
            );
        }
        code.push_str("        }\n    }\n\n");
    };
    code.push_str("    /// The type of the record, called API key in Kafka.\n");
    per_record(&mut code, "pub fn record_type(&self) -> i16", &|record| key(record).to_string());
    code.push_str("    /// The name of the record's schema.\n");
    per_record(&mut code, "pub fn name(&self) -> &'static str", &|record| format!("{:?}", record.name));
    code.push_str("    /// The newest version of the record's schema.\n");
    per_record(&mut code, "pub fn newest_version(&self) -> i16", &|record| record.versions.high.to_string());
    code.push_str("    /// Writes the record's body in a version.\n");
    per_record(
        &mut code,
        "pub(crate) fn encode_body(&self, e: &mut Encoder<'_>, version: i16) -> Result<(), EncodeError>",
        &|_| "record.encode(e, version)".to_string(),
    );
    code.push_str(
        "    /// Reads the body of a record of a type, in a version; none if there is no such type.\n",
    );
    code.push_str(
        "    pub(crate) fn decode_body(d: &mut Decoder<'a>, record_type: u32, version: i16) \
         -> Option<Result<Self, DecodeError>> {\n        Some(match record_type {\n",
    );
    for record in &records {
        let _ = writeln!(
            code,
            "            {} => Message::decode(d, version).map(|record| Self::{}(Box::new(record))),",
            key(record),
            record.name
        );
    }
    code.push_str("            _ => return None,\n        })\n    }\n}\n\n");
    for record in &records {
        let (name, type_) = (&record.name, type_name(record, "'a"));
        let _ = writeln!(
            code,
            "impl<'a> From<messages::{module}::{type_}> for MetadataRecord<'a> {{
    fn from(record: messages::{module}::{type_}) -> Self {{
        Self::{name}(Box::new(record))
    }}
}}
",
            module = snake_case(name)
        );
    }
    code
}

fn type_name(message: &Message, lifetime: &str) -> String {
    Context::new(message).type_name(&message.name, lifetime)
}

/// `MESSAGES`: what tests iterate over.
pub(crate) fn catalogue(messages: &[Message]) -> String {
    let mut code = String::from("/// Every message of the table.\npub const MESSAGES: &[MessageInfo] = &[\n");
    for message in messages {
        let name = &message.name;
        let type_ = format!("messages::{}::{}", snake_case(name), type_name(message, "'_"));
        let _ = writeln!(
            code,
            "    MessageInfo {{ name: {name:?}, kind: MessageKind::{:?}, key: {:?}, oldest: {}, newest: {}, \
             recode: |bytes, from, to, out| recode::<{type_}>(bytes, from, to, out), \
             encode_default: |version, out| encode_default::<{type_}>(version, out) }},",
            message.kind, message.key, message.versions.low, message.versions.high
        );
    }
    code.push_str("];\n");
    code
}
