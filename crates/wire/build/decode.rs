//! The decoding function of a structure.

use std::fmt::Write as _;

use crate::structs::{Context, condition, default_value, rust_name};
use crate::table::{Field, FieldType, Struct, Versions};

/// Writes `fn read`: every field in the order of the schema, then the tagged ones.
pub(crate) fn read_fn(code: &mut String, context: &Context<'_>, structure: &Struct) {
    let lifetime = if context.borrows(&structure.name) { "'a" } else { "'_" };
    let _ = writeln!(
        code,
        "    pub(crate) fn read(d: &mut Decoder<{lifetime}>, v: i16) -> Result<Self, DecodeError> {{"
    );
    assert_has_bytes(context, structure);
    let _ = writeln!(code, "        let flex = {};", condition(context.message.flexible, structure.versions));
    code.push_str("        let _ = (v, flex);\n");
    for field in structure.fields.iter().filter(|field| field.tag.is_none()) {
        let value = read_value(context, structure, field);
        let _ = match condition(field.versions, structure.versions).as_str() {
            "true" => writeln!(code, "        let {} = {value};", rust_name(&field.name)),
            present => writeln!(
                code,
                "        let {} = if {present} {{ {value} }} else {{ {} }};",
                rust_name(&field.name),
                default_value(field)
            ),
        };
    }
    if context.message.has_flexible_versions() {
        read_tagged(code, context, structure);
    }
    code.push_str("        Ok(Self {");
    for field in &structure.fields {
        let _ = write!(code, " {},", rust_name(&field.name));
    }
    if context.message.has_flexible_versions() {
        code.push_str(" unknown_tagged_fields");
    }
    code.push_str(" })\n    }\n\n");
}

/// The decoder counts on at least one byte per element of an array.
fn assert_has_bytes(context: &Context<'_>, structure: &Struct) {
    for version in structure.versions.low..=structure.versions.high {
        let present = |field: &Field| field.tag.is_none() && field.versions.contains(version);
        let has_bytes = context.message.flexible.contains(version) || structure.fields.iter().any(present);
        let is_element = structure.name != context.message.name;
        assert!(has_bytes || !is_element, "{} has no bytes in version {version}", structure.name);
    }
}

fn read_tagged(code: &mut String, context: &Context<'_>, structure: &Struct) {
    let tagged: Vec<&Field> = structure.fields.iter().filter(|field| field.tag.is_some()).collect();
    let place = format!("{:?}", field_path(context, structure, "(tagged fields)"));
    if tagged.is_empty() {
        let _ =
            writeln!(code, "        let unknown_tagged_fields = d.unknown_tagged_fields(flex, {place})?;");
        return;
    }
    for field in &tagged {
        let _ = writeln!(code, "        let mut {} = {};", rust_name(&field.name), default_value(field));
    }
    code.push_str("        let mut unknown_tagged_fields = Vec::new();\n");
    let _ = writeln!(code, "        for _ in 0..d.tagged_count(flex, {place})? {{");
    let _ = writeln!(code, "            let field = d.tagged_field({place})?;");
    code.push_str("            match field.tag {\n");
    for field in &tagged {
        let tag = field.tag.expect("tagged fields have a tag");
        let guard = match condition(field.versions, structure.versions).as_str() {
            "true" => String::new(),
            present => format!(" if {present}"),
        };
        let _ = writeln!(code, "                {tag}{guard} => {{");
        let _ = writeln!(
            code,
            "                    {} = {};",
            rust_name(&field.name),
            read_value(context, structure, field)
        );
        let _ = writeln!(
            code,
            "                    d.end_tagged(&field, {:?})?;",
            field_path(context, structure, &field.name)
        );
        code.push_str("                }\n");
    }
    let _ = writeln!(
        code,
        "                _ => unknown_tagged_fields.push(d.unknown_tagged_field(&field, {place})?),"
    );
    code.push_str("            }\n        }\n");
}

/// `Message.Struct.Field`: what an error names.
pub(crate) fn field_path(context: &Context<'_>, structure: &Struct, field: &str) -> String {
    let message = &context.message.name;
    match structure.name == *message {
        true => format!("{message}.{field}"),
        false => format!("{message}.{}.{field}", structure.name),
    }
}

fn read_value(context: &Context<'_>, structure: &Struct, field: &Field) -> String {
    let path = format!("{:?}", field_path(context, structure, &field.name));
    let flex = if field.never_flexible { "false" } else { "flex" };
    // In a version of the field that cannot be null the nullable type is always there.
    let within: Versions = field.versions;
    let null = condition(field.nullable, within);
    match (&field.type_, field.is_nullable()) {
        (FieldType::String, true) => format!("d.nullable_string({flex}, {null}, {path})?"),
        (FieldType::Bytes, true) => format!("d.nullable_bytes({flex}, {null}, {path})?"),
        (FieldType::Records, true) => format!("d.nullable_records({flex}, {null}, {path})?"),
        (FieldType::Array(element), true) => {
            format!("d.nullable_array({flex}, {null}, {path}, |d| {})?", read_plain(element, flex, &path))
        }
        (FieldType::Struct(name), true) => {
            let method = if field.tag.is_some() { "tagged_presence" } else { "presence" };
            let presence = format!("d.{method}(size_of::<{name}>(), {path})?");
            format!("if {presence} {{ Some(Box::new({name}::read(d, v)?)) }} else {{ None }}")
        }
        (FieldType::Array(element), false) => {
            format!("d.array({flex}, {path}, |d| {})?", read_plain(element, flex, &path))
        }
        (plain, _) => format!("{}?", read_plain(plain, flex, &path)),
    }
}

/// Reads a value that is neither null nor an array, as an expression of type `Result`.
fn read_plain(type_: &FieldType, flex: &str, path: &str) -> String {
    match type_ {
        FieldType::Bool => format!("d.bool({path})"),
        FieldType::Int8 => format!("d.i8({path})"),
        FieldType::Int16 => format!("d.i16({path})"),
        FieldType::Uint16 => format!("d.u16({path})"),
        FieldType::Int32 => format!("d.i32({path})"),
        FieldType::Uint32 => format!("d.u32({path})"),
        FieldType::Int64 => format!("d.i64({path})"),
        FieldType::Float64 => format!("d.f64({path})"),
        FieldType::Uuid => format!("d.uuid({path})"),
        FieldType::String => format!("d.string({flex}, {path})"),
        FieldType::Bytes => format!("d.bytes({flex}, {path})"),
        FieldType::Records => format!("d.records({flex}, {path})"),
        FieldType::Struct(name) => format!("{name}::read(d, v)"),
        FieldType::Array(_) => panic!("arrays of arrays do not occur in Kafka's schemas"),
    }
}
