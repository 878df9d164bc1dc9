//! A test of an application without a broker, as docs/handlers.md shows it.

use mainstem_flow::{App, Fault, Msg, Route, TestApp, Text};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn an_outage_is_waited_for() -> mainstem_flow::Result {
    let route = Route::topic("orders", |_: Msg<Text>| async {
        Err::<(), _>(Fault::transient("the database is away"))
    });
    let mut test = TestApp::new(App::new("billing", "mem:")?.add(route))?;
    test.send("orders", Some("customer-7"), &Text("two pounds of tea".to_owned()));
    test.advance(Duration::from_secs(60)).await; // takes no time
    assert!(test.letters("orders").is_empty());
    assert_eq!(test.position("orders"), 0);
    test.stop().await
}
