//! Values that clients pushed: one for each of a client's metrics and labels, until the client is gone.

use std::collections::{BTreeMap, HashMap};

use mainstem_wire::Uuid;

/// The most points of one push that are kept; further ones are dropped.
pub const POINTS_PER_CLIENT_MAX: usize = 1_000;

/// The most values that are kept of all clients.
pub const SERIES_MAX: usize = 50_000;

/// The most bytes of all values as text: names, labels, and for each value the ids of its client.
pub const SERIES_BYTES_MAX: usize = 16 << 20;

/// One address may have this part of the values and bytes: a quarter.
const ADDRESS_SHARE: usize = 4;

/// Bytes of a value as text beside names, labels and the client's id: the instance's id, quotation marks and the number.
const VALUE_BYTES: usize = 128;

/// The meaning of a metric's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Temporality {
    /// The value now.
    Gauge,
    /// A sum since the client began.
    Cumulative,
    /// A sum since the last push.
    Delta,
}

/// A number that a client pushed.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The metric's name, such as `org.apache.kafka.producer.connection.creation.total`.
    pub name: String,
    /// Names and values, sorted by name.
    pub labels: Vec<(String, String)>,
    /// The number.
    pub value: f64,
    /// The meaning of the number.
    pub temporality: Temporality,
}

impl Point {
    /// Its bytes as text of a client.
    fn bytes(&self, client_id: &str) -> usize {
        let labels = self.labels.iter().map(|(name, value)| name.len() + value.len() + 4);
        VALUE_BYTES + client_id.len() + self.name.len() + labels.sum::<usize>()
    }
}

/// The pushed values of all clients.
#[derive(Debug, Default)]
pub struct ClientSeries {
    clients: HashMap<Uuid, Client>,
    held: Held,
    /// The same of each address with values.
    by_address: HashMap<String, Held>,
    refused: u64,
}

/// Values, and their bytes as text.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    values: usize,
    bytes: usize,
}

impl Held {
    /// Returns true if one more value fits into one of so many shares of all values and bytes.
    fn fits(self, bytes: usize, shares: usize) -> bool {
        self.values < SERIES_MAX / shares && self.bytes + bytes <= SERIES_BYTES_MAX / shares
    }

    fn add(&mut self, bytes: usize) {
        self.values += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, other: Held) {
        self.values -= other.values;
        self.bytes -= other.bytes;
    }
}

/// A client that pushes.
#[derive(Debug, Clone, Copy)]
pub struct Pusher<'a> {
    /// The client instance.
    pub id: Uuid,
    /// Its client id.
    pub client_id: &'a str,
    /// The address that it came from.
    pub address: &'a str,
}

#[derive(Debug)]
struct Client {
    client_id: String,
    /// The address that it came from first.
    address: String,
    until_ms: u64,
    values: BTreeMap<(String, Vec<(String, String)>), Value>,
    held: Held,
}

#[derive(Debug, Clone, Copy)]
struct Value {
    value: f64,
    is_gauge: bool,
}

/// One value, to be shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample<'a> {
    /// The client instance.
    pub id: Uuid,
    /// Its client id.
    pub client_id: &'a str,
    /// The labels that it gave.
    pub labels: &'a [(String, String)],
    /// The number.
    pub value: f64,
    /// True for a present value, false for a sum.
    pub is_gauge: bool,
}

impl ClientSeries {
    /// Takes the points that a client pushed, to be kept until a time. Points that do not fit are dropped and counted. The clients of
    /// one address have a quarter of the whole, so that they keep no others out.
    pub fn push(&mut self, from: Pusher<'_>, until_ms: u64, points: Vec<Point>) {
        let client = self.clients.entry(from.id).or_insert_with(|| Client {
            client_id: from.client_id.to_owned(),
            address: from.address.to_owned(),
            until_ms,
            values: BTreeMap::new(),
            held: Held::default(),
        });
        client.until_ms = until_ms;
        let of_address = self.by_address.entry(client.address.clone()).or_default();
        for point in points {
            let bytes = point.bytes(&client.client_id);
            let (value, is_gauge) = (point.value, point.temporality == Temporality::Gauge);
            let is_delta = point.temporality == Temporality::Delta;
            let key = (point.name, point.labels);
            if let Some(known) = client.values.get_mut(&key) {
                let before = if is_delta { known.value } else { 0.0 };
                *known = Value { value: before + value, is_gauge };
                continue;
            }
            let is_kept = self.held.fits(bytes, 1)
                && of_address.fits(bytes, ADDRESS_SHARE)
                && client.values.len() < POINTS_PER_CLIENT_MAX;
            if !is_kept {
                self.refused += 1;
                continue;
            }
            [&mut self.held, of_address, &mut client.held].into_iter().for_each(|held| held.add(bytes));
            client.values.insert(key, Value { value, is_gauge });
        }
    }

    /// Forgets the values of clients that have not pushed again in time.
    pub fn expire(&mut self, now_ms: u64) {
        let (all, by_address) = (&mut self.held, &mut self.by_address);
        self.clients.retain(|_, client| {
            let stays = client.until_ms > now_ms;
            if !stays {
                all.remove(client.held);
                if let Some(of_address) = by_address.get_mut(&client.address) {
                    of_address.remove(client.held);
                }
            }
            stays
        });
        self.by_address.retain(|_, held| held.values > 0);
    }

    /// All values by metric.
    pub fn by_metric(&self) -> BTreeMap<&str, Vec<Sample<'_>>> {
        let mut metrics: BTreeMap<&str, Vec<Sample<'_>>> = BTreeMap::new();
        for (id, client) in &self.clients {
            for ((name, labels), value) in &client.values {
                metrics.entry(name).or_default().push(Sample {
                    id: *id,
                    client_id: &client.client_id,
                    labels,
                    value: value.value,
                    is_gauge: value.is_gauge,
                });
            }
        }
        metrics
    }

    /// Values that are kept.
    pub fn len(&self) -> usize {
        self.held.values
    }

    /// Returns true if no value is kept.
    pub fn is_empty(&self) -> bool {
        self.held.values == 0
    }

    /// Their bytes as text, about.
    pub fn bytes_held(&self) -> usize {
        self.held.bytes
    }

    /// The number of points that were dropped because they did not fit.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}
