//! The consumer of docs/brokerless.md, which the test beside it runs.

use mainstem_flow::{App, Json, Msg, Route};

#[derive(serde::Deserialize)]
struct ItemAdded {
    sku: String,
}

#[tokio::main]
pub async fn main() -> mainstem_flow::Result {
    App::new("analytics", "grpc://127.0.0.1:8101")?
        .add(Route::topic("cart", |event: Msg<Json<ItemAdded>>| async move {
            println!("{} was added", event.sku)
        }))
        .run()
        .await
}
