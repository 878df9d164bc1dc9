//! Every served API in every advertised version: a sensible request gets the right answer, a random one gets an
//! answer or closes its connection, and has no other effect.

mod acls;
mod admin;
mod groups;
mod quotas;
mod sensible;
mod transactions;

use std::io::ErrorKind;

use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_wire::catalogue::MessageInfo;
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::response_header::ResponseHeader;
use mainstem_wire::sample::{Rng, Sampler};
use mainstem_wire::{ApiKey, Decoder, Message};

/// Random requests of each version; `PROPTEST_CASES` sets another number.
const CASES: u64 = 256 / CASES_SHARE;
/// Each of about 150 versions gets this share of the cases.
const CASES_SHARE: u64 = 8;

/// The APIs that the broker says it serves, in the order of their keys.
fn served(broker: &Broker) -> Vec<ApiKey> {
    let listed = broker.connect().api_versions();
    let keys = listed.iter().map(|(key, versions)| {
        let api = ApiKey::try_from(*key).unwrap();
        assert_eq!(*versions, api.advertised_versions(), "{}", api.name());
        api
    });
    keys.collect()
}

#[test]
fn every_version_of_every_api_is_served() {
    let mut broker = Setup::new("parity").start();
    let mut client = broker.connect();
    let mut checked = sensible::check_all(&mut client);
    checked.extend(groups::check_all(&mut client));
    checked.extend(transactions::check_all(&mut client));
    checked.extend(quotas::check_all(&mut client));
    checked.extend(admin::check_all(&mut client));
    checked.extend(acls::check_all(&mut client));
    checked.sort_by_key(|api| api.key());
    assert_eq!(checked, served(&broker), "what is checked here is what is served");
    broker.assert_healthy();
}

#[test]
fn what_is_not_listed_is_not_served() {
    let mut broker = Setup::new("parity-unlisted").start();
    let served = served(&broker);
    for api in ApiKey::ALL.iter().filter(|api| !served.contains(api)) {
        let mut client = broker.connect();
        let version = *api.versions().end();
        let mut body = Vec::new();
        let request = MessageInfo::find(&format!("{}Request", api.name())).unwrap();
        (request.encode_default)(version, &mut body).unwrap();
        client.send_body(api.key(), version, api.request_header_version(version), &body).unwrap();
        client.wait_for_close().unwrap_or_else(|error| panic!("{}: {error}", api.name()));
    }
    broker.assert_healthy();
}

#[test]
fn random_requests_are_answered_or_cost_their_connection() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<u64>().ok());
    let cases = cases.map_or(CASES, |cases| (cases / CASES_SHARE).max(1));
    let mut rng = Rng(mainstem_testkit::seed());
    let mut broker = Setup::new("parity-random").start();
    let sampler = Sampler::new();
    for api in served(&broker) {
        let mut answered = 0;
        for version in api.versions() {
            let mut client = broker.connect();
            for _ in 0..cases {
                let body = sampler.message(&format!("{}Request", api.name()), version, &mut rng);
                match send_random(&mut client, api, version, &body) {
                    Fate::Answered => answered += 1,
                    Fate::Silent => {}
                    Fate::Closed => client = broker.connect(),
                }
            }
        }
        assert!(answered > 0, "no random {} was answered", api.name());
        broker.assert_healthy();
    }
}

enum Fate {
    Answered,
    /// No answer, as for a produce with acks=0.
    Silent,
    Closed,
}

/// Sends a request and, behind it, one whose answer shows that the first was handled.
fn send_random(client: &mut Client, api: ApiKey, version: i16, body: &[u8]) -> Fate {
    let what = || format!("{} v{version} {body:02x?}", api.name());
    let id = client.send_body(api.key(), version, api.request_header_version(version), body);
    let behind = client.send(&ApiVersionsRequest::default(), 0);
    let (Ok(id), Ok(behind)) = (id, behind) else { return Fate::Closed };
    let mut fate = Fate::Silent;
    loop {
        let frame = match client.receive_frame() {
            Ok(frame) => frame,
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return Fate::Closed;
            }
            Err(error) => panic!("{error} after {}", what()),
        };
        let got = i32::from_be_bytes(*frame.first_chunk().unwrap());
        if got == behind {
            let may_be_silent = api == ApiKey::Produce;
            assert!(may_be_silent || matches!(fate, Fate::Answered), "no answer to {}", what());
            return fate;
        }
        assert_eq!(got, id, "{}", what());
        let mut decoder = Decoder::new(frame);
        ResponseHeader::decode(&mut decoder, api.response_header_version(version)).unwrap();
        let response = MessageInfo::find(&format!("{}Response", api.name())).unwrap();
        let decoded = response.reencode(decoder.rest(), version);
        decoded.unwrap_or_else(|error| panic!("{error} in the answer to {}", what()));
        fate = Fate::Answered;
    }
}
