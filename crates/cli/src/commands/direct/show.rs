//! Streams and consumers as text and JSON.

use anyhow::Result;
use mainstem_direct::JournalId;
use mainstem_direct::proto::{ConsumerInfo, Criterion, Filter, StreamInfo, criterion::Matches};
use serde_json::{Value, json};

use crate::output::{print, print_json, table};

fn journal_id(stream: &StreamInfo) -> String {
    <[u8; 16]>::try_from(&stream.journal_id[..])
        .map_or_else(|_| "?".to_owned(), |id| JournalId(id).to_string())
}

/// Prints streams and their consumers.
pub(super) fn list(streams: &[StreamInfo], is_json: bool) -> Result<()> {
    if is_json {
        return print_json(&streams.iter().map(stream_json).collect());
    }
    let rows = streams.iter().map(|one| {
        let consumers = one.consumers.len().to_string();
        let offsets = [one.start.to_string(), one.end.to_string()];
        let [start, end] = offsets;
        vec![one.name.clone(), start, end, one.epoch.to_string(), consumers, journal_id(one)]
    });
    print(&table(&["STREAM", ">START", ">END", ">EPOCH", ">CONSUMERS", "JOURNAL"], rows.collect()))?;
    let rows = of_consumers(streams, |stream, one| {
        let instances: Vec<String> = one
            .instances
            .iter()
            .map(|instance| match &instance.slices {
                Some(slices) => format!("{} ({} to {})", instance.name, slices.from, slices.to),
                None => format!("{} (waits)", instance.name),
            })
            .collect();
        let state = if one.paused {
            "paused"
        } else if instances.is_empty() {
            "away"
        } else {
            "reads"
        };
        let filter = one.filter.as_ref().map_or_else(String::new, filter_text);
        vec![
            stream.to_owned(),
            one.name.clone(),
            one.offset.to_string(),
            state.to_owned(),
            instances.join(", "),
            filter,
        ]
    });
    match rows.is_empty() {
        true => Ok(()),
        false => {
            print(&table(&["STREAM", "CONSUMER", ">OFFSET", "STATE", "INSTANCES (SLICES)", "FILTER"], rows))
        }
    }
}

/// Prints how far consumers are behind.
pub(super) fn lag(streams: &[StreamInfo], is_json: bool) -> Result<()> {
    if is_json {
        let consumers = |stream: &StreamInfo| {
            let name = stream.name.clone();
            let of = move |one: &ConsumerInfo| json!({"stream": name, "consumer": one.name, "offset": one.offset, "lag": one.lag, "lag_ms": one.lag_ms});
            stream.consumers.iter().map(of).collect::<Vec<_>>()
        };
        return print_json(&streams.iter().flat_map(consumers).collect());
    }
    let rows = of_consumers(streams, |stream, one| {
        let numbers = [one.offset, one.lag, one.lag_ms].map(|number| number.to_string());
        let [offset, lag, lag_ms] = numbers;
        vec![stream.to_owned(), one.name.clone(), offset, lag, lag_ms]
    });
    print(&table(&["STREAM", "CONSUMER", ">OFFSET", ">LAG", ">LAG MS"], rows))
}

fn of_consumers(
    streams: &[StreamInfo],
    row: impl Fn(&str, &ConsumerInfo) -> Vec<String>,
) -> Vec<Vec<String>> {
    let rows = streams.iter().flat_map(|stream| stream.consumers.iter().map(|one| row(&stream.name, one)));
    rows.collect()
}

fn stream_json(stream: &StreamInfo) -> Value {
    let consumers: Vec<Value> = stream.consumers.iter().map(consumer_json).collect();
    json!({"stream": stream.name, "journal_id": journal_id(stream), "epoch": stream.epoch, "start": stream.start,
        "end": stream.end, "events_read": stream.events_read, "events_evaluated": stream.events_evaluated,
        "consumers": consumers})
}

/// A consumer for programs.
pub(super) fn consumer_json(one: &ConsumerInfo) -> Value {
    let instances: Vec<Value> = one
        .instances
        .iter()
        .map(|instance| {
            let slices = instance.slices.as_ref().map(|slices| json!({"from": slices.from, "to": slices.to}));
            json!({"name": instance.name, "slices": slices})
        })
        .collect();
    json!({"consumer": one.name, "offset": one.offset, "lag": one.lag, "lag_ms": one.lag_ms, "paused": one.paused,
        "generation": one.generation, "filter": one.filter.as_ref().map(filter_text),
        "filtered_from": one.filtered_from, "instances": instances})
}

/// A filter as the command line has it.
fn filter_text(filter: &Filter) -> String {
    let exclude = filter.exclude.iter().map(|one| format!("--exclude {}", criterion_text(one)));
    let include = filter.include.iter().map(|one| format!("--include {}", criterion_text(one)));
    exclude.chain(include).collect::<Vec<_>>().join(" ")
}

fn criterion_text(criterion: &Criterion) -> String {
    let keys = |keys: &[bytes::Bytes]| {
        keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>().join(",")
    };
    match &criterion.matches {
        None => "?".to_owned(),
        Some(Matches::Everything(_)) => "all".to_owned(),
        Some(Matches::Tags(texts)) => format!("tag={}", texts.any.join(",")),
        Some(Matches::Header(header)) if header.any.is_empty() => format!("header={}", header.name),
        Some(Matches::Header(header)) => format!("header={}:{}", header.name, keys(&header.any)),
        Some(Matches::Keys(any)) => format!("key={}", keys(&any.any)),
        Some(Matches::KeyPrefixes(any)) => format!("prefix={}", keys(&any.any)),
        Some(Matches::KeyPatterns(texts)) => format!("pattern={}", texts.any.join("|")),
        Some(Matches::Topics(texts)) => format!("topic={}", texts.any.join(",")),
        Some(Matches::Slices(slices)) => format!("slices={}..{}", slices.from, slices.to),
    }
}
