//! What clients pushed: a value for each of a client's metrics and labels, until the client is gone.

use std::collections::{BTreeMap, HashMap};

use mainstem_wire::Uuid;

/// Points of one push that are kept; those beyond are dropped.
pub const POINTS_PER_CLIENT_MAX: usize = 1_000;

/// Values that are kept of all clients.
pub const SERIES_MAX: usize = 50_000;

/// Bytes of names and labels that are kept of all clients.
pub const SERIES_BYTES_MAX: usize = 16 << 20;

/// What a number of a metric means.
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
    /// What it means.
    pub temporality: Temporality,
}

impl Point {
    fn bytes(&self) -> usize {
        self.name.len() + self.labels.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }
}

/// What all clients pushed.
#[derive(Debug, Default)]
pub struct ClientSeries {
    clients: HashMap<Uuid, Client>,
    count: usize,
    bytes: usize,
    refused: u64,
}

#[derive(Debug)]
struct Client {
    client_id: String,
    until_ms: u64,
    values: BTreeMap<(String, Vec<(String, String)>), Value>,
    bytes: usize,
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
    /// Whether it is a value now; else a sum.
    pub is_gauge: bool,
}

impl ClientSeries {
    /// Takes over what a client pushed, to be kept until a time. What there is no room for is dropped and counted.
    pub fn push(&mut self, id: Uuid, client_id: &str, until_ms: u64, points: Vec<Point>) {
        let new = || Client {
            client_id: client_id.to_owned(),
            until_ms,
            values: BTreeMap::new(),
            bytes: client_id.len(),
        };
        let client = self.clients.entry(id).or_insert_with(|| {
            self.bytes += client_id.len();
            new()
        });
        client.until_ms = until_ms;
        for point in points {
            let bytes = point.bytes();
            let (value, is_gauge) = (point.value, point.temporality == Temporality::Gauge);
            let is_delta = point.temporality == Temporality::Delta;
            let key = (point.name, point.labels);
            if let Some(known) = client.values.get_mut(&key) {
                let before = if is_delta { known.value } else { 0.0 };
                *known = Value { value: before + value, is_gauge };
                continue;
            }
            let is_full = self.count >= SERIES_MAX
                || self.bytes + bytes > SERIES_BYTES_MAX
                || client.values.len() >= POINTS_PER_CLIENT_MAX;
            if is_full {
                self.refused += 1;
                continue;
            }
            self.count += 1;
            self.bytes += bytes;
            client.bytes += bytes;
            client.values.insert(key, Value { value, is_gauge });
        }
    }

    /// Forgets what clients pushed that have not pushed again in time.
    pub fn expire(&mut self, now_ms: u64) {
        let (count, bytes) = (&mut self.count, &mut self.bytes);
        self.clients.retain(|_, client| {
            let stays = client.until_ms > now_ms;
            if !stays {
                *count -= client.values.len();
                *bytes -= client.bytes;
            }
            stays
        });
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
        self.count
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of their names and labels.
    pub fn bytes_held(&self) -> usize {
        self.bytes
    }

    /// Values that were dropped for want of room.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}
