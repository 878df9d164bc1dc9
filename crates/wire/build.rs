//! Generates the protocol's structures from the checked-in table: one module per message.

#[path = "build/decode.rs"]
mod decode;
#[path = "build/encode.rs"]
mod encode;
#[path = "build/index.rs"]
mod index;
#[path = "build/structs.rs"]
mod structs;
#[path = "build/table.rs"]
#[allow(dead_code, reason = "shared with the library, which uses the rest")]
mod table;

use std::path::PathBuf;

const TABLE: &str = "schema/kafka-4.3.0.txt";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed={TABLE}");
    let text = std::fs::read_to_string(TABLE).expect("the table is checked in");
    let messages = table::parse(&text).unwrap_or_else(|error| panic!("{TABLE}: {error}"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let write = |name: &str, code: String| {
        std::fs::write(out.join(name), code).expect("the output folder can be written");
    };
    write("messages.rs", structs::generate(&messages));
    write("api_key.rs", index::api_keys(&messages));
    write("metadata_record.rs", index::metadata_records(&messages));
    write("catalogue.rs", index::catalogue(&messages));
}
