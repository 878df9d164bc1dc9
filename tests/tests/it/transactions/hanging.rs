//! A transaction unknown to its coordinator, found and ended by `kafka-transactions` (KIP-664).

use mainstem_tests::broker::Setup;
use mainstem_tests::kafka::produce_request;
use mainstem_tests::kafka_node::kafka_says;
use mainstem_wire::messages::produce_request::ProduceRequest;

use crate::transactions::eventually;
use crate::transactions::producer::Producer;
use crate::transactions::reader::{ends, read_committed};

const TOPIC: &str = "hanging";
const TIMEOUT_MS: i32 = 600_000;
/// The last version of Produce before KIP-890: the client itself adds a partition to its transaction, and this one does not.
const OLDER_PRODUCE: i16 = 11;
const TOOL: &str = "org.apache.kafka.tools.TransactionsCommand";

/// The rows of a table with this first column, by columns.
fn rows(table: &str, first: &str) -> Vec<Vec<String>> {
    let words = table.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    words.filter(|row| row.first().is_some_and(|word| word == first)).collect()
}

/// The coordinator knows one of two open transactions. The other one is of the kind that clients could leave behind
/// before brokers verified transactions (KIP-890).
#[test]
fn kafkas_tool_finds_and_ends_what_hangs() {
    let setup = Setup::new("transactions-hanging");
    let broker = setup.set("transaction.partition.verification.enable", false).start();
    broker.connect().create_topic(TOPIC, 1, &[]).expect("a topic");
    let mut known = Producer::init(broker.connect(), "known", TIMEOUT_MS).expect("a producer");
    known.send(TOPIC, 0, &[b"a"]).expect("it is written");
    let mut lost = Producer::init(broker.connect(), "lost", TIMEOUT_MS).expect("a producer");
    let batch = lost.batch(0, &[b"b"]);
    let request =
        ProduceRequest { transactional_id: Some("lost".into()), ..produce_request(TOPIC, 0, -1, &batch) };
    let response = lost.client.call(&request, OLDER_PRODUCE);
    assert_eq!(response.responses[0].partition_responses[0].error_code, 0);

    let ask = |command: &str| kafka_says(TOOL, &broker.address(), command);
    let Some(listed) = ask("list --transactional-id-pattern lo.* --duration-filter 0") else { return };
    assert_eq!(rows(&listed, "lost")[0][3], "Empty", "its coordinator knows of no transaction\n{listed}");
    assert!(rows(&listed, "known").is_empty(), "another name\n{listed}");
    let find = format!("find-hanging --topic {TOPIC} --max-transaction-timeout 0");
    let found = ask(&find).expect("Kafka is there");
    let hanging = rows(&found, TOPIC);
    assert_eq!(hanging.len(), 1, "{found}");
    assert_eq!((&*hanging[0][2], &*hanging[0][5]), (&*lost.producer_id.to_string(), "1"), "{found}");
    ask(&format!("abort --topic {TOPIC} --partition 0 --start-offset 1")).expect("Kafka is there");
    let found = ask(&find).expect("Kafka is there");
    assert!(rows(&found, TOPIC).is_empty(), "{found}");

    let mut client = broker.connect();
    assert_eq!(ends(&mut client, TOPIC, 0), (0, 3), "the other transaction is still open");
    known.end(true).expect("it is committed");
    eventually("it is seen", || (read_committed(&mut client, TOPIC, 0) == ["a"]).then_some(()));
    assert_eq!(ends(&mut client, TOPIC, 0), (4, 4));
}
