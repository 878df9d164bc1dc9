//! Workloads, peers and reports: measures any Kafka-compatible broker the same way.
//!
//! [`run`] starts brokers one at a time on empty directories, loads each with the same clients, and keeps every run as JSON. [`mod@report`]
//! makes the summary and the plots of a folder of runs. [`mod@profile`] looks at one load with strace or perf. [`Workload::all`] describes
//! each workload, `docs/benchmarks.md` what is measured and how.
//!
//! It shares no code with the broker: its few requests are encoded and decoded by its own modules, on blocking sockets.

mod batch;
mod bounds;
mod broker;
mod bytes;
mod cases;
mod clock;
mod connection;
mod disk;
mod embedded;
mod environment;
mod figures;
mod filler;
mod goals;
mod handlers;
mod latency;
mod load;
mod machine;
mod markdown;
mod payload;
mod plan;
mod plots;
mod probe;
mod process;
mod profile;
mod progress;
mod protocol;
mod report;
mod results;
mod runner;
mod sampler;
mod secure;
mod stats;
mod streams;
mod summary;
mod workload;

pub use bounds::{Bound, BoundsOrder, run_bounds};
pub use broker::System;
pub use cases::Extent;
pub use embedded::side::{SideOptions, run_side};
pub use environment::Settings;
pub use handlers::{HandlersOrder, run_handlers};
pub use plan::Selection;
pub use probe::{ProbeOptions, serve as serve_probe};
pub use profile::{Count, Profile, ProfileOrder, Tool, profile};
pub use report::report;
pub use results::{Curves, Results, Run, Samples};
pub use runner::{Order, default_out, run};
pub use stats::Spread;
pub use streams::{StreamsOrder, run_streams};
pub use summary::{Cell, GoalLine, Ratio, Row, Summary, summarize};
pub use workload::{Durability, Workload};
