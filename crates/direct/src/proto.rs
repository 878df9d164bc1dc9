//! Messages and services of `mainstem.direct.v1`, generated from `proto/direct.proto`, which says what each field means.
#![expect(missing_docs, clippy::all, reason = "generated")]

tonic::include_proto!("mainstem.direct.v1");
