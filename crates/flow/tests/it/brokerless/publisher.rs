//! The publisher of docs/brokerless.md, which the test beside it runs.

use mainstem_direct::{Journal, Publisher};
use mainstem_flow::Json;

#[derive(serde::Serialize)]
struct ItemAdded {
    sku: String,
}

#[tokio::main]
pub async fn main() -> mainstem_direct::Result<()> {
    let cart = Journal::open("cart")?;
    // It is on the disk when this returns; appends at the same time share a sync.
    cart.append("cart-7", &Json(ItemAdded { sku: "tea".to_owned() })).await?;
    Publisher::new().stream(&cart).serve("127.0.0.1:8101").await
}
