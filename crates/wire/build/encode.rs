//! The encoding function of a structure.

use std::fmt::Write as _;

use crate::decode::field_path;
use crate::structs::{Context, condition, is_not_default, rust_name};
use crate::table::{Field, FieldType, Struct};

/// Writes `fn write`: every field in the order of the schema, then the tagged ones in the order of their tags.
pub(crate) fn write_fn(code: &mut String, context: &Context<'_>, structure: &Struct) {
    code.push_str(
        "    pub(crate) fn write(&self, e: &mut Encoder<'_>, v: i16) -> Result<(), EncodeError> {\n",
    );
    let _ = writeln!(code, "        let flex = {};", condition(context.message.flexible, structure.versions));
    code.push_str("        let _ = (v, flex, &e);\n");
    for field in structure.fields.iter().filter(|field| field.tag.is_none()) {
        write_field(code, context, structure, field);
    }
    if context.message.has_flexible_versions() {
        write_tagged(code, context, structure);
    }
    code.push_str("        Ok(())\n    }\n");
}

fn write_field(code: &mut String, context: &Context<'_>, structure: &Struct, field: &Field) {
    let value = write_value(context, structure, field);
    match condition(field.versions, structure.versions).as_str() {
        "true" => {
            let _ = writeln!(code, "        {value}");
        }
        present => {
            let _ = writeln!(code, "        if {present} {{ {value} }}");
            refuse_absent(code, context, structure, field, present);
        }
    }
}

/// A value in a version that has no place for it is an error, unless the schema lets it be dropped.
fn refuse_absent(code: &mut String, context: &Context<'_>, structure: &Struct, field: &Field, present: &str) {
    if field.ignorable {
        return;
    }
    let place = format!("self.{}", rust_name(&field.name));
    let _ = writeln!(
        code,
        "        if !({present}) && {} {{ return Err(EncodeError::absent({:?}, v)); }}",
        is_not_default(field, &place),
        field_path(context, structure, &field.name)
    );
}

fn write_tagged(code: &mut String, context: &Context<'_>, structure: &Struct) {
    let mut tagged: Vec<&Field> = structure.fields.iter().filter(|field| field.tag.is_some()).collect();
    tagged.sort_by_key(|field| field.tag);
    let path = field_path(context, structure, "(tagged fields)");
    let mut count = String::from("0");
    for field in &tagged {
        let present = condition(field.versions, structure.versions);
        if present != "true" {
            refuse_absent(code, context, structure, field, &present);
        }
        let place = format!("self.{}", rust_name(&field.name));
        let tag = field.tag.expect("tagged fields have a tag");
        let _ = writeln!(code, "        let has_{tag} = ({present}) && {};", is_not_default(field, &place));
        let _ = write!(count, " + usize::from(has_{tag})");
    }
    if tagged.is_empty() {
        let _ = writeln!(
            code,
            "        e.unknown_tagged_fields(flex, &self.unknown_tagged_fields, v, {path:?})?;"
        );
        return;
    }
    let _ = writeln!(
        code,
        "        let mut tags = e.begin_tags(flex, {count}, &self.unknown_tagged_fields, v, {path:?})?;"
    );
    for field in tagged {
        let tag = field.tag.expect("tagged fields have a tag");
        assert!(
            !holds_records(context, &field.type_),
            "{path}: records in a tagged field have no fixed place"
        );
        let value = write_value(context, structure, field);
        let _ = writeln!(
            code,
            "        if has_{tag} {{ let at = e.begin_tagged(&mut tags, {tag}); {value} e.end_tagged(at); }}"
        );
    }
    code.push_str("        e.end_tags(flex, tags);\n");
}

fn holds_records(context: &Context<'_>, type_: &FieldType) -> bool {
    if *type_ == FieldType::Records {
        return true;
    }
    let Some(name) = type_.struct_name() else { return false };
    context.message.structure(name).fields.iter().any(|field| holds_records(context, &field.type_))
}

fn write_value(context: &Context<'_>, structure: &Struct, field: &Field) -> String {
    let path = format!("{:?}", field_path(context, structure, &field.name));
    let flex = if field.never_flexible { "false" } else { "flex" };
    let place = format!("self.{}", rust_name(&field.name));
    let null = condition(field.nullable, field.versions);
    match (&field.type_, field.is_nullable()) {
        (FieldType::String, true) if field.name.ends_with("ErrorMessage") => {
            format!("e.nullable_message({flex}, {null}, {place}.as_deref(), {path})?;")
        }
        (FieldType::String, true) => {
            format!("e.nullable_string({flex}, {null}, {place}.as_deref(), {path})?;")
        }
        (FieldType::Bytes, true) => format!("e.nullable_bytes({flex}, {null}, {place}.as_deref(), {path})?;"),
        (FieldType::Records, true) => {
            format!("e.nullable_records({flex}, {null}, {place}.as_ref(), {path})?;")
        }
        (FieldType::Array(element), true) => format!(
            "e.nullable_array({flex}, {null}, {place}.as_deref(), {path}, |e, item| {})?;",
            write_plain(element, flex, "item", &path, true)
        ),
        (FieldType::Struct(_), true) => {
            let method = if field.tag.is_some() { "tagged_presence" } else { "presence" };
            assert_eq!(
                null, "true",
                "{path}: no schema has a structure that is nullable in some versions only"
            );
            format!("e.{method}({place}.is_some()); if let Some(value) = &{place} {{ value.write(e, v)?; }}")
        }
        (FieldType::Array(element), false) => format!(
            "e.array({flex}, &{place}, {path}, |e, item| {})?;",
            write_plain(element, flex, "item", &path, true)
        ),
        (plain, _) => format!("{}?;", write_plain(plain, flex, &place, &path, false)),
    }
}

/// Writes a value that is neither null nor an array, as an expression of type `Result`.
fn write_plain(type_: &FieldType, flex: &str, place: &str, path: &str, is_reference: bool) -> String {
    let star = if is_reference { "*" } else { "" };
    let and = if is_reference { "" } else { "&" };
    match type_ {
        FieldType::Bool => format!("e.bool({star}{place})"),
        FieldType::Int8 => format!("e.i8({star}{place})"),
        FieldType::Int16 => format!("e.i16({star}{place})"),
        FieldType::Uint16 => format!("e.u16({star}{place})"),
        FieldType::Int32 => format!("e.i32({star}{place})"),
        FieldType::Uint32 => format!("e.u32({star}{place})"),
        FieldType::Int64 => format!("e.i64({star}{place})"),
        FieldType::Float64 => format!("e.f64({star}{place})"),
        FieldType::Uuid => format!("e.uuid({star}{place})"),
        FieldType::String => format!("e.string({flex}, {and}{place}, {path})"),
        FieldType::Bytes => format!("e.bytes({flex}, {and}{place}, {path})"),
        FieldType::Records => format!("e.records({flex}, {and}{place}, {path})"),
        FieldType::Struct(_) => format!("{place}.write(e, v)"),
        FieldType::Array(_) => panic!("arrays of arrays do not occur in Kafka's schemas"),
    }
}
