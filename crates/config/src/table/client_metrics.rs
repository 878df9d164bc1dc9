//! Keys of subscriptions to client metrics (KIP-714).

use super::super::key::ConfigType::*;
use super::super::key::{ConfigKey, client_metrics};

/// Every key of a subscription.
#[rustfmt::skip] // a row is its facts, then what the key means
pub(super) const CLIENT_METRICS: &[ConfigKey] = &[
    client_metrics("interval.ms", Int).default("300000")
        .doc("Milliseconds between two pushes of a client, from 100 to 3600000."),
    client_metrics("match", List).default("").any_list()
        .doc("Which clients: `NAME=PATTERN`, all of which have to match, with the names `client_instance_id`, \
             `client_id`, `client_software_name`, `client_software_version`, `client_source_address` and \
             `client_source_port`. Empty is every client."),
    client_metrics("metrics", List).default("").any_list()
        .doc("Prefixes of the names of metrics; `*` is all, empty is none."),
];
