//! Connections of an instance in virtual time: attempts, keep-alives, and when it stops trying.

use std::cell::{Cell, RefCell};

use futures_util::{Stream, StreamExt as _};

use super::*;
use crate::proto::from_consumer::Frame;

/// A publisher on another machine.
const FAR: &str = "publisher.example:8101";
/// The resolution of the clock, the tolerance of measured times.
const RESOLUTION: Duration = Duration::from_millis(10);

fn config(at: &str) -> ConsumerConfig {
    ConsumerConfig::new(Address::new(at).unwrap(), "cart", "analytics")
}

fn lost(was_opened: bool) -> Fault {
    Fault::Lost { was_opened, reason: "it is away".to_owned() }
}

/// An instance that has done 5 events, which its publisher does not know.
fn with_done() -> Inbox {
    let inbox = Inbox::new(1_000, 7);
    inbox.open(&config(FAR));
    let epochs = vec![proto::Epoch { epoch: 0, start: 0, run: 7 }];
    let journal_id = vec![1; 16].into();
    let slices = Some(SliceRange::ALL.to_proto());
    for frame in [
        from_publisher::Frame::Opened(proto::Opened { journal_id, epochs, ..proto::Opened::default() }),
        from_publisher::Frame::Assign(proto::Assign { assignment: 1, slices, offset: 0, resumed: false }),
        from_publisher::Frame::Skip(proto::Skip { from: 0, next: 5 }),
    ] {
        inbox.take(frame).unwrap();
    }
    inbox.done(Done { assignment: 1, offset: 5, finished: Vec::new() });
    inbox
}

#[tokio::test(start_paused = true)]
async fn attempts_come_apart_up_to_a_bound_and_at_once_after_a_connection() {
    // The eighth attempt has had a connection, the tenth has taken long.
    for (at, waits_ms) in [
        (FAR, [100, 200, 400, 800, 1_600, 3_000, 3_000, 100, 200, 100]),
        ("127.0.0.1:8101", [100, 200, 250, 250, 250, 250, 250, 100, 200, 100]),
    ] {
        let inbox = Inbox::new(1_000, 7);
        let attempts = RefCell::new(Vec::new());
        let connect = || {
            let attempts = &attempts;
            async move {
                let (number, began) = (attempts.borrow().len(), Instant::now());
                if number == 9 {
                    tokio::time::sleep(Duration::from_secs(4)).await;
                }
                attempts.borrow_mut().push((began, Instant::now()));
                Err(if number == waits_ms.len() {
                    Fault::Fatal(DirectError::Closed)
                } else {
                    lost(number == 7)
                })
            }
        };
        keep_connected(&config(at), &inbox, connect).await;
        let attempts = attempts.into_inner();
        assert_eq!(attempts.len(), waits_ms.len() + 1);
        for (pair, wait_ms) in attempts.windows(2).zip(waits_ms) {
            let (waited, wait) = (pair[1].0 - pair[0].1, Duration::from_millis(wait_ms));
            let is_jittered = wait.mul_f64(0.75) <= waited && waited <= wait.mul_f64(1.25) + RESOLUTION;
            assert!(is_jittered, "{at}: {waited:?} in place of {wait:?}");
        }
        assert!(matches!(inbox.next().await, Err(DirectError::Closed)));
    }
}

#[test]
fn not_all_that_have_lost_a_publisher_come_back_at_one_time() {
    let waits: Vec<Duration> = (0..100).map(|_| jittered(Duration::from_secs(1))).collect();
    let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
    assert!(Duration::from_millis(750) <= *least && least < most && *most <= Duration::from_millis(1_250));
}

/// Returns the next frame of an instance, and the time until it comes.
async fn said(outbound: &mut (impl Stream<Item = proto::FromConsumer> + Unpin)) -> (Frame, Duration) {
    let began = Instant::now();
    let frame = outbound.next().await.unwrap().frame.unwrap();
    (frame, began.elapsed())
}

/// Without keep-alives the publisher takes the instance for lost after 15 s.
#[tokio::test(start_paused = true)]
async fn an_instance_that_says_nothing_else_says_that_it_is_there() {
    let inbox = Arc::new(Inbox::new(1_000, 7));
    let open = inbox.open(&config(FAR));
    let mut outbound = std::pin::pin!(inbox.clone().outbound(open));
    let is_due = |after: Duration| ALIVE_EVERY <= after && after < ALIVE_EVERY + RESOLUTION;
    assert!(matches!(said(&mut outbound).await, (Frame::Open(_), _)));
    for _ in 0..3 {
        let alive = said(&mut outbound).await;
        assert!(matches!(alive, (Frame::Alive(_), after) if is_due(after)), "{alive:?}");
    }
    // Any other frame is sent at once, and takes the place of a keep-alive.
    assert!(tokio::time::timeout(Duration::from_secs(4), outbound.next()).await.is_err());
    inbox.keep_filter(proto::Filter::default());
    let filter = said(&mut outbound).await;
    assert!(matches!(filter, (Frame::Filter(_), after) if after < RESOLUTION), "{filter:?}");
    let alive = said(&mut outbound).await;
    assert!(matches!(alive, (Frame::Alive(_), after) if is_due(after)), "{alive:?}");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_leaves_while_its_publisher_is_away_says_first_what_it_has_done() {
    let (config, inbox) = (config(FAR), with_done());
    let began = Instant::now();
    let (attempts, done) = (Cell::new(0), Cell::new(None));
    let connect = || {
        attempts.set(attempts.get() + 1);
        let open = inbox.open(&config);
        let is_there = attempts.get() == 4;
        if is_there {
            done.set(open.held.and_then(|held| held.done).map(|done| done.offset));
        }
        async move { if is_there { Ok(()) } else { Err(lost(false)) } }
    };
    let leaves = async {
        tokio::time::sleep(RESOLUTION).await;
        inbox.leave();
    };
    tokio::join!(keep_connected(&config, &inbox, connect), leaves);
    assert_eq!((attempts.get(), done.get()), (4, Some(5)));
    assert!(began.elapsed() < LEAVE_WITHIN);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_leaves_waits_for_a_publisher_only_where_it_has_something_to_say() {
    for has_done in [false, true] {
        let inbox = Arc::new(if has_done { with_done() } else { Inbox::new(1_000, 7) });
        let (config, of_task) = (config(FAR), inbox.clone());
        let task = tokio::spawn(async move {
            keep_connected(&self::config(FAR), &of_task, || async { Err(lost(false)) }).await;
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        Consumer { config, position: None, inbox, task }.leave().await;
        let waited = began.elapsed();
        let wanted = if has_done { LEAVE_WITHIN } else { Duration::ZERO };
        assert!(wanted <= waited && waited < wanted + RESOLUTION, "{waited:?} in place of {wanted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_only_other_certificates_can_change_ends_it_before_its_first_connection_alone() {
    for was_opened in [false, true] {
        let inbox = if was_opened { with_done() } else { Inbox::new(1_000, 7) };
        let attempts = Cell::new(0);
        let connect = || {
            attempts.set(attempts.get() + 1);
            let (address, reason) = (FAR.to_owned(), "invalid peer certificate".to_owned());
            let fault = match attempts.get() {
                1 => lost(false),
                2 => Fault::Tls(DirectError::Tls { address, reason }),
                _ => Fault::Fatal(DirectError::Closed),
            };
            async move { Err(fault) }
        };
        keep_connected(&config(FAR), &inbox, connect).await;
        let error = loop {
            if let Err(error) = inbox.next().await {
                break error;
            }
        };
        let wanted = if was_opened { (3, false) } else { (2, true) };
        assert_eq!((attempts.get(), matches!(error, DirectError::Tls { .. })), wanted);
    }
}
