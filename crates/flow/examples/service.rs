//! A whole service: the topics that it declares, how its routes treat messages, and its command line.
//!
//! ```sh
//! cargo run --release -p mainstem-flow --features command --example service -- topics apply
//! cargo run --release -p mainstem-flow --features command --example service
//! ```
#![allow(clippy::print_stdout, reason = "it shows what it does")]

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use mainstem_client::NewTopic;
use mainstem_flow::{App, Batch, Cx, Fault, Handler, Json, Msg, Raw, Retry, Route};
use serde::{Deserialize, Serialize};

const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Deserialize, Serialize)]
pub(crate) struct Order {
    pub(crate) currency: String,
    pub(crate) cents: u64,
}

#[derive(Deserialize, Serialize)]
struct Invoice {
    total: u64,
}

/// Makes invoices of orders.
struct Billing {
    rates: HashMap<&'static str, u64>,
}

impl Handler<Msg<Json<Order>>> for Billing {
    async fn handle(&self, order: Msg<Json<Order>>, cx: &mut Cx) -> Result<(), Fault> {
        // Rates may come later: any fault but poison is tried again.
        let rate =
            self.rates.get(order.currency.as_str()).ok_or_else(|| Fault::failed("there is no rate"))?;
        let total = order.cents.checked_mul(*rate).ok_or_else(|| Fault::poison("the total overflows"))?;
        // It leaves only if this returns Ok.
        cx.send("invoices", order.key(), &Json(Invoice { total }))
    }
}

/// Counts the bytes of lines, many at a time.
async fn archive(lines: Batch<Raw>) {
    let bytes: usize = lines.messages().iter().map(|line| line.len()).sum();
    println!("{} lines of {bytes} bytes", lines.messages().len());
}

/// The service at an address of messages.
pub(crate) fn app(url: &str) -> mainstem_flow::Result<App> {
    let billing = Billing { rates: HashMap::from([("EUR", 1), ("USD", 2)]) };
    let orders = Route::topic("orders", billing)
        .concurrency(256)
        .expire_after(DAY)
        .throttle(5_000)
        .time_limit(Duration::from_secs(60))
        .retry(Retry::exponential(200, 30_000).attempts(8));
    let app = App::new("billing", url)?
        .declare(NewTopic::new("orders").partitions(12).config("retention.ms", "604800000"))
        .declare(NewTopic::new("invoices").partitions(12))
        .add(orders)
        .add(Route::batches("audit", 500, Duration::from_millis(100), archive))
        .revoke_grace(Duration::from_secs(20))
        .http("127.0.0.1:8080");
    Ok(app)
}

/// `run` until SIGTERM, `topics plan`, `topics apply`, `routes`, `lag`.
fn main() -> ExitCode {
    // Without a subscriber no error is printed.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    mainstem_flow::main(|env| app(&env.url))
}
