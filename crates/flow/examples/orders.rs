//! A service that handles three orders, one of which is none. docs/handlers.md shows it, and `cargo xtask readme` runs it.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use mainstem_client::{ClientConfig, Producer, ProducerConfig, Record};
use mainstem_flow::{App, Cx, Fault, Handler, Json, Msg, Retry, Route};
use serde::{Deserialize, Serialize};

#[derive(Deserialize, Serialize)]
struct Order {
    id: u64,
    cents: u64,
}

struct Billing {
    done: tokio::sync::mpsc::Sender<u64>,
}

impl Handler<Msg<Json<Order>>> for Billing {
    async fn handle(&self, order: Msg<Json<Order>>, cx: &mut Cx) -> Result<(), Fault> {
        let total = order.cents.checked_mul(119).ok_or_else(|| Fault::poison("the total overflows"))?;
        let invoice = Order { id: order.id, cents: total / 100 };
        cx.send("invoices", order.key(), &Json(invoice))?; // leaves only if this returns Ok
        println!("order {} is {} cents with tax", order.id, total / 100);
        self.done.send(order.id).await?; // any error: tried again; its slice of keys waits
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let producer = Producer::new(ProducerConfig::new(ClientConfig::new("127.0.0.1:9092")?))?;
    for order in [r#"{"id":1,"cents":1000}"#, "no order", r#"{"id":2,"cents":250}"#] {
        producer.send(Record::new("sales", order).key("customer-7")).await?.await?;
    }

    let (done, mut orders) = tokio::sync::mpsc::channel(1);
    let route = Route::topic("sales", Billing { done }).retry(Retry::exponential(200, 30_000).attempts(8));
    let running = App::new("billing", "kafka://127.0.0.1:9092")?.add(route).start()?;
    while orders.recv().await != Some(2) {}
    running.stop().await?; // what runs is finished and committed; "no order" is in dlq.billing.sales
    Ok(())
}
