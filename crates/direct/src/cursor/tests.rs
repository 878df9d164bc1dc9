//! Transcripts of the frames that one instance is sent.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use mainstem_records::{BatchBuilder, BatchOptions};

use super::*;
use crate::filter::criteria;
use crate::handover::Part;
use crate::pipeline_cache::PipelineCache;
use crate::slices::SliceRange;

/// A journal whose events are in batches of one, with the offset modulo 4 as the key, and a cursor over it.
struct Script {
    cursor: Cursor,
    cache: PipelineCache,
    counters: Counters,
    now: Now,
    /// The version of the consumer's filter.
    version: u64,
    text: String,
}

fn only(keys: &[&str]) -> proto::Filter {
    criteria::only(keys.iter().map(|key| criteria::key(*key)))
}

fn credit(bytes: u64) -> from_consumer::Frame {
    from_consumer::Frame::Credit(proto::Credit { bytes })
}

fn done(assignment: u64, offset: i64) -> proto::Done {
    proto::Done { assignment, offset, finished: Vec::new() }
}

impl Script {
    fn new(credit_bytes: u64) -> Script {
        let cache = PipelineCache::default();
        let pipelines = pipelines(&cache, &[], None, 0);
        let opened = proto::Opened { end: 5, ..proto::Opened::default() };
        let cursor = Cursor::new(opened, credit_bytes, pipelines, false);
        let now = Now { time: Duration::ZERO, end: 5, is_stopping: false };
        Script { cursor, cache, counters: Counters::default(), now, version: 0, text: String::new() }
    }

    fn say(&mut self, what: &str) -> &mut Script {
        writeln!(self.text, "{what}").unwrap();
        self
    }

    fn at(&mut self, ms: u64) -> &mut Script {
        self.now.time = Duration::from_millis(ms);
        self.say(&format!("at {ms} ms"))
    }

    fn append(&mut self, count: i64) -> &mut Script {
        self.now.end += count;
        let end = self.now.end;
        self.say(&format!("events up to {end}"))
    }

    fn assign(&mut self, assignment: u64, offset: i64) -> &mut Script {
        let slices = SliceRange::ALL;
        let parts = vec![Part { slices, offset, finished: Vec::new(), assignment }];
        let assign = Control::Assign { assignment, slices, offset, is_resumed: false, parts };
        self.cursor.obey(assign).unwrap();
        self
    }

    fn receive(&mut self, frame: from_consumer::Frame) -> &mut Script {
        let text = format!("{frame:?}");
        let heard = self.cursor.take(Some(frame), self.now.time);
        let outcome = heard.map_or_else(|status| status.message().to_owned(), |change| format!("{change:?}"));
        self.say(&format!("{text}: {outcome}"))
    }

    fn follow(&mut self, keys: &[&str], from: i64, is_paused: bool) -> &mut Script {
        let filter = only(keys);
        let mut pipelines = pipelines(&self.cache, &[], Some(&filter).filter(|_| !keys.is_empty()), from);
        let before = self.cursor.pipelines.now.clone();
        pipelines.earlier = Vec::from_iter((from > 0).then_some((from, before)));
        pipelines.version = self.version;
        self.cursor.follow(pipelines, is_paused);
        self.say(&format!("follows {keys:?} from {from} on, paused: {is_paused}"))
    }

    /// Runs until there is nothing to do; returns the frames.
    fn run(&mut self) -> &mut Script {
        loop {
            let frame = match self.cursor.next(self.now) {
                Ok(Next::Frame(frame)) => Some(frame),
                Ok(Next::Read(offset)) => self.read(offset),
                Ok(Next::Wait { until, for_events }) => {
                    let events = if for_events { "events or " } else { "" };
                    return self.say(&format!("  waits for {events}{} ms", until.as_millis()));
                }
                Ok(Next::Left) => return self.say("  has left"),
                Err(status) => {
                    let words = status.message().to_owned();
                    return self.say(&format!("  ends: {words}"));
                }
            };
            match frame {
                Some(Frame::Records(records)) => {
                    let (from, next, bytes) = (records.from, records.next, records.batches.len());
                    self.say(&format!("  Records {from} to {next}, {bytes} bytes"));
                }
                Some(Frame::Opened(_)) => {
                    self.say("  Opened");
                }
                Some(frame) => {
                    self.say(&format!("  {frame:?}"));
                }
                None if self.cursor.is_outdated() => return self.say("  is outdated"),
                None => {}
            }
        }
    }

    fn read(&mut self, offset: i64) -> Option<Frame> {
        let options = BatchOptions { base_offset: offset, ..BatchOptions::default() };
        let mut builder = BatchBuilder::new(options);
        builder.append(1, Some((offset % 4).to_string().as_bytes()), Some(b"x"), &[]).unwrap();
        let chunk = Chunk::new(offset, offset + 1, builder.build().unwrap().into(), &self.counters);
        let present = self.version;
        self.cursor.read(&chunk, &self.counters, self.now.time, |_, version| version == present).unwrap()
    }

    fn check(&self, expect: Expect) {
        expect.assert_eq(&self.text);
    }
}

fn pipelines(
    cache: &PipelineCache,
    own: &[proto::Filter],
    kept: Option<&proto::Filter>,
    from: i64,
) -> Pipelines {
    let now = cache.pipeline(own, kept, None).unwrap();
    Pipelines { earlier: Vec::new(), now, from, version: 0 }
}

#[test]
fn events_follow_the_assignment_and_silence_is_filled() {
    let mut script = Script::new(1_000);
    script.run().assign(1, 3).run().append(1).run();
    script.at(4_999).run().at(5_000).run().at(9_000).receive(credit(1)).at(10_000).run();
    script.at(24_000).run().at(24_000).run();
    script.check(expect![[r#"
          Opened
          waits for 5000 ms
          Assign(Assign { assignment: 1, slices: Some(Slices { from: 0, to: 1024 }), offset: 3, resumed: false })
          Records 3 to 4, 70 bytes
          Records 4 to 5, 70 bytes
          waits for events or 5000 ms
        events up to 6
          Records 5 to 6, 70 bytes
          waits for events or 5000 ms
        at 4999 ms
          waits for events or 5000 ms
        at 5000 ms
          Alive(Alive)
          waits for events or 10000 ms
        at 9000 ms
        Credit(Credit { bytes: 1 }): None
        at 10000 ms
          Alive(Alive)
          waits for events or 15000 ms
        at 24000 ms
          Alive(Alive)
          ends: the instance was not heard of for 15 s
        at 24000 ms
          ends: the instance was not heard of for 15 s
    "#]]);
}

#[test]
fn without_credit_or_while_paused_nothing_is_read() {
    let mut script = Script::new(1);
    script.assign(1, 0).run().receive(credit(69)).run().receive(credit(1)).run();
    script.receive(credit(500)).follow(&[], 0, true).run().follow(&[], 0, false).run();
    script.check(expect![[r#"
          Opened
          Assign(Assign { assignment: 1, slices: Some(Slices { from: 0, to: 1024 }), offset: 0, resumed: false })
          Records 0 to 1, 70 bytes
          waits for 5000 ms
        Credit(Credit { bytes: 69 }): None
          waits for 5000 ms
        Credit(Credit { bytes: 1 }): None
          Records 1 to 2, 70 bytes
          waits for 5000 ms
        Credit(Credit { bytes: 500 }): None
        follows [] from 0 on, paused: true
          waits for 5000 ms
        follows [] from 0 on, paused: false
          Records 2 to 3, 70 bytes
          Records 3 to 4, 70 bytes
          Records 4 to 5, 70 bytes
          waits for events or 5000 ms
    "#]]);
}

#[test]
fn what_is_left_out_is_said_now_and_then() {
    let mut script = Script::new(1_000);
    script.version = 1;
    script.follow(&["3"], 0, false).assign(1, 0).run();
    script.append(1).run().at(99).run().at(100).run();
    script.append(4).at(150).run().at(200).run();
    // A long stretch without an event is skipped in several frames.
    script.append(200).follow(&["none"], 0, false).run();
    script.check(expect![[r#"
        follows ["3"] from 0 on, paused: false
          Opened
          FilteredFrom(FilteredFrom { offset: 0 })
          Assign(Assign { assignment: 1, slices: Some(Slices { from: 0, to: 1024 }), offset: 0, resumed: false })
          Records 0 to 4, 70 bytes
          Skip(Skip { from: 4, next: 5 })
          waits for events or 5000 ms
        events up to 6
          waits for events or 100 ms
        at 99 ms
          waits for events or 100 ms
        at 100 ms
          Skip(Skip { from: 5, next: 6 })
          waits for events or 5100 ms
        events up to 10
        at 150 ms
          Records 6 to 8, 70 bytes
          waits for events or 200 ms
        at 200 ms
          Skip(Skip { from: 8, next: 10 })
          waits for events or 5200 ms
        events up to 210
        follows ["none"] from 0 on, paused: false
          Skip(Skip { from: 10, next: 74 })
          Skip(Skip { from: 74, next: 138 })
          Skip(Skip { from: 138, next: 202 })
          waits for events or 300 ms
    "#]]);
}

#[test]
fn a_filter_is_said_before_the_events_that_it_holds_for() {
    let mut script = Script::new(1_000);
    script.assign(1, 0);
    script.version = 1;
    script.say("another filter holds").run();
    script.follow(&["1", "2"], 3, false).run();
    script.receive(from_consumer::Frame::Filter(only(&["1", "2"]))).follow(&["1", "2"], 3, false).run();
    script.check(expect![[r#"
        another filter holds
          Opened
          Assign(Assign { assignment: 1, slices: Some(Slices { from: 0, to: 1024 }), offset: 0, resumed: false })
          is outdated
        follows ["1", "2"] from 3 on, paused: false
          FilteredFrom(FilteredFrom { offset: 3 })
          Records 0 to 1, 70 bytes
          Records 1 to 2, 70 bytes
          Records 2 to 3, 70 bytes
          Skip(Skip { from: 3, next: 5 })
          waits for events or 5000 ms
        Filter(Filter { exclude: [Criterion { matches: Some(Everything(Everything)) }], include: [Criterion { matches: Some(Keys(Keys { any: [b"1"] })) }, Criterion { matches: Some(Keys(Keys { any: [b"2"] })) }] }): Some(Filter(Filter { exclude: [Criterion { matches: Some(Everything(Everything)) }], include: [Criterion { matches: Some(Keys(Keys { any: [b"1"] })) }, Criterion { matches: Some(Keys(Keys { any: [b"2"] })) }] }))
        follows ["1", "2"] from 3 on, paused: false
          FilteredFrom(FilteredFrom { offset: 3 })
          waits for events or 5000 ms
    "#]]);
}

#[test]
fn of_what_is_revoked_nothing_more_is_sent() {
    let mut script = Script::new(1_000);
    script.assign(7, 2).run().receive(from_consumer::Frame::Done(done(7, 6)));
    script.receive(from_consumer::Frame::Done(done(6, 3))).receive(from_consumer::Frame::Done(done(7, 3)));
    script.cursor.obey(Control::Revoke { assignment: 7, is_lost: false }).unwrap();
    script.append(1).run().at(100).run();
    script.receive(from_consumer::Frame::Released(proto::Released { done: Some(done(7, 4)) }));
    script.receive(from_consumer::Frame::Done(done(7, 5))).run();
    script.assign(8, 4).run();
    script.cursor.obey(Control::Revoke { assignment: 8, is_lost: true }).unwrap();
    script.receive(from_consumer::Frame::Done(done(8, 5))).run();
    assert!(script.cursor.obey(Control::Fence).unwrap_err().message().contains("another connection"));
    script.now.is_stopping = true;
    script.run();
    script.cursor.take(None, script.now.time).unwrap();
    script.run();
    script.check(expect![[r#"
          Opened
          Assign(Assign { assignment: 7, slices: Some(Slices { from: 0, to: 1024 }), offset: 2, resumed: false })
          Records 2 to 3, 70 bytes
          Records 3 to 4, 70 bytes
          Records 4 to 5, 70 bytes
          waits for events or 5000 ms
        Done(Done { assignment: 7, offset: 6, finished: [] }): offset 6 cannot be done: events before 5 were sent
        Done(Done { assignment: 6, offset: 3, finished: [] }): None
        Done(Done { assignment: 7, offset: 3, finished: [] }): Some(Done(Done { assignment: 7, offset: 3, finished: [] }))
        events up to 6
          Revoke(Revoke { assignment: 7, lost: false })
          waits for 5000 ms
        at 100 ms
          waits for 5000 ms
        Released(Released { done: Some(Done { assignment: 7, offset: 4, finished: [] }) }): Some(Released(Done { assignment: 7, offset: 4, finished: [] }))
        Done(Done { assignment: 7, offset: 5, finished: [] }): None
          waits for 5000 ms
          Assign(Assign { assignment: 8, slices: Some(Slices { from: 0, to: 1024 }), offset: 4, resumed: false })
          Records 4 to 5, 70 bytes
          Records 5 to 6, 70 bytes
          waits for events or 5100 ms
        Done(Done { assignment: 8, offset: 5, finished: [] }): None
          Revoke(Revoke { assignment: 8, lost: true })
          waits for 5100 ms
          ends: the publisher stops
          has left
    "#]]);
}
