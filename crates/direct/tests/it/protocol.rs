//! The protocol is frozen: numbers, names and types of `proto/direct.proto` are those of `tests/protocol.txt`.
//!
//! What is added is added there too (`UPDATE_EXPECT=1`); no line of it goes, and none changes.

use std::fmt::Write as _;

use expect_test::expect_file;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};

#[test]
fn the_protocol_is_as_it_was() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let set = protox::compile(["direct.proto"], [root]).unwrap();
    let mut text = String::new();
    set.file.iter().for_each(|file| write_file(file, &mut text));
    expect_file!["protocol.txt"].assert_eq(&text);
}

/// Each call, message, field and value says what it is.
#[test]
fn the_protocol_is_documented_whole() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let set = protox::compile(["direct.proto"], [root]).unwrap();
    let file = set.file.iter().find(|file| file.name() == "direct.proto").unwrap();
    let info = file.source_code_info.as_ref().unwrap();
    let documented: Vec<&[i32]> = info
        .location
        .iter()
        .filter(|location| !location.leading_comments().trim().is_empty())
        .map(|location| location.path.as_slice())
        .collect();
    // Numbers of the fields of descriptor.proto.
    let (message, an_enum, service, inner) = (4, 5, 6, 2);
    let mut wanted: Vec<(Vec<i32>, String)> = Vec::new();
    for (at, one) in (0..).zip(&file.message_type) {
        wanted.push((vec![message, at], one.name().to_owned()));
        let fields = (0..).zip(&one.field);
        wanted.extend(fields.map(|(field, what)| {
            (vec![message, at, inner, field], format!("{}.{}", one.name(), what.name()))
        }));
    }
    for (at, one) in (0..).zip(&file.enum_type) {
        let values = (0..).zip(&one.value);
        wanted.extend(values.map(|(value, what)| (vec![an_enum, at, inner, value], what.name().to_owned())));
    }
    for (at, one) in (0..).zip(&file.service) {
        let methods = (0..).zip(&one.method);
        wanted
            .extend(methods.map(|(method, what)| (vec![service, at, inner, method], what.name().to_owned())));
    }
    assert!(wanted.len() > 100, "{}", wanted.len());
    let missing: Vec<_> = wanted.iter().filter(|(path, _)| !documented.contains(&path.as_slice())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

fn write_file(file: &FileDescriptorProto, text: &mut String) {
    writeln!(text, "package {} ({})", file.package(), file.syntax()).unwrap();
    for service in &file.service {
        for method in &service.method {
            let stream = |is_stream: bool| if is_stream { "stream " } else { "" };
            let (from, to) = (stream(method.client_streaming()), stream(method.server_streaming()));
            let (input, output) = (method.input_type(), method.output_type());
            writeln!(text, "rpc {}/{} {from}{input} -> {to}{output}", service.name(), method.name()).unwrap();
        }
    }
    for one in &file.enum_type {
        for value in &one.value {
            writeln!(text, "{}.{} = {}", one.name(), value.name(), value.number()).unwrap();
        }
    }
    file.message_type.iter().for_each(|message| write_message(message, text));
}

fn write_message(message: &DescriptorProto, text: &mut String) {
    if message.field.is_empty() {
        writeln!(text, "{} {{}}", message.name()).unwrap();
    }
    for field in &message.field {
        let oneof = field.oneof_index.map(|index| &message.oneof_decl[usize::try_from(index).unwrap()]);
        let oneof = oneof.map_or(String::new(), |oneof| format!(" oneof {}", oneof.name()));
        writeln!(text, "{}.{} = {} {}{oneof}", message.name(), field.name(), field.number(), kind(field))
            .unwrap();
    }
    for reserved in &message.reserved_range {
        writeln!(text, "{} reserves {}..{}", message.name(), reserved.start(), reserved.end()).unwrap();
    }
}

fn kind(field: &FieldDescriptorProto) -> String {
    let repeated = if field.label() == Label::Repeated { "repeated " } else { "" };
    let name = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().trim_start_matches(".mainstem.direct.v1.").to_owned(),
        plain => plain.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    format!("{repeated}{name}")
}
