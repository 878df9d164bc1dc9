//! Generates messages and services of `mainstem.direct.v1`, without a `protoc`.

fn main() {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["direct.proto"], ["proto"]).expect("the protocol's file is sound");
    let builder = tonic_prost_build::configure().bytes(".").emit_rerun_if_changed(false);
    builder.compile_fds(files).expect("its code can be written to OUT_DIR");
}
