//! Limits on what clients may have under way at one time, beside their connections: instances, and other calls.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::peer_lines::PeerLines;
use mainstem_peers::{Peer, Shares, half};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};

use super::connections::PeerInfo;

/// The default limit of instances that are served at one time. One costs up to 128 KiB of a frame that has not arrived whole, and the
/// frame that it is sent.
pub(super) const SESSIONS_MAX: usize = 4_096;
/// The most other calls that are served at one time. One costs up to 128 KiB of its request.
pub(super) const CALLS_MAX: usize = 256;
/// The time limit of such a call, its request included.
pub(super) const CALL_WITHIN: Duration = Duration::from_secs(10);

/// The least share of one peer. A publisher with few places in all serves instances that its owner knows.
const SHARE_MIN: usize = 8;

/// Places for calls of one kind; one peer may have half of them.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    max: usize,
    shares: Arc<Mutex<Shares>>,
    /// The message when all are taken.
    reason: String,
    /// A call was refused since a place was free.
    is_full: AtomicBool,
    /// A peer was refused, for it had its share, since a place was free.
    is_share_full: AtomicBool,
    /// The log lines of refusals, bounded since peers may cause any number of them.
    lines: PeerLines,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _place: OwnedSemaphorePermit,
    share: Option<(Peer, Arc<Mutex<Shares>>)>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((peer, shares)) = &self.share {
            shares.lock().leave(*peer);
        }
    }
}

impl Places {
    /// Makes places. `what` names their use in messages.
    pub(super) fn new(max: usize, what: &str) -> Places {
        let free = Arc::new(Semaphore::new(max));
        let reason = format!("{max} {what}, which is the most");
        let shares = Arc::new(Mutex::new(Shares::new(half(max).max(SHARE_MIN.min(max)))));
        Places {
            free,
            max,
            shares,
            reason,
            is_full: AtomicBool::new(false),
            is_share_full: AtomicBool::new(false),
            lines: PeerLines::new(),
        }
    }

    /// Takes a place for a client at an address until it is dropped.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, if there is none, or if the peer has its share. The log says so once, until one was free again.
    pub(super) fn take(&self, address: Option<IpAddr>) -> Result<Place, Status> {
        let Ok(place) = self.free.clone().try_acquire_owned() else {
            if !self.is_full.swap(true, Ordering::Relaxed) {
                self.lines.warn(format_args!("{}; others are refused", self.reason));
            }
            return Err(Status::resource_exhausted(self.reason.clone()));
        };
        // A loopback client, which may be a proxy, may have all.
        let counted = address.filter(|address| !address.is_loopback());
        let share = counted.map(|address| (Peer::of(address), self.shares.clone()));
        let refused = share.as_ref().filter(|(peer, shares)| !shares.lock().take(*peer));
        if let Some((peer, shares)) = refused {
            let most = shares.lock().most_of_one();
            if !self.is_share_full.swap(true, Ordering::Relaxed) {
                self.lines.warn(format_args!(
                    "{peer} has {most} places of \"{}\", which is the most for one peer",
                    self.reason
                ));
            }
            let reason =
                format!("your address has {most} of the places that all peers share; end one, or wait");
            return Err(Status::resource_exhausted(reason));
        }
        self.is_full.store(false, Ordering::Relaxed);
        self.is_share_full.store(false, Ordering::Relaxed);
        Ok(Place { _place: place, share })
    }

    /// Waits until all are free.
    pub(super) async fn all_free(&self) {
        let all = u32::try_from(self.max).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.free.acquire_many(all).await;
    }
}

/// A service whose calls are bounded in number and time. Subscriptions are not: they take places of their own before anything of them is
/// read.
#[derive(Debug, Clone)]
pub(super) struct Bounded<S> {
    service: S,
    calls: Arc<Places>,
    within: Duration,
}

impl<S> Bounded<S> {
    pub(super) fn new(service: S, calls_max: usize, within: Duration) -> Bounded<S> {
        Bounded { service, calls: Arc::new(Places::new(calls_max, "calls are under way")), within }
    }
}

impl<S> Service<http::Request<Body>> for Bounded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path().ends_with("/Subscribe") {
            return Box::pin(self.service.call(request));
        }
        let peer = request.extensions().get::<PeerInfo>().map(|peer| peer.address().ip());
        let place = match self.calls.take(peer) {
            Ok(place) => place,
            Err(status) => return Box::pin(std::future::ready(Ok(status.into_http()))),
        };
        let (answer, within) = (self.service.call(request), self.within);
        Box::pin(async move {
            let _place = place;
            let answered = tokio::time::timeout(within, answer).await;
            answered.unwrap_or_else(|_| {
                let reason =
                    format!("the call's request did not come, or was not answered, within {within:?}");
                Ok(Status::deadline_exceeded(reason).into_http())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tonic::Code;

    use super::*;

    /// Answers nothing.
    #[derive(Clone)]
    struct Silent;

    impl Service<http::Request<Body>> for Silent {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = std::future::Pending<Result<http::Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: http::Request<Body>) -> Self::Future {
            std::future::pending()
        }
    }

    fn request(name: &str) -> http::Request<Body> {
        http::Request::builder().uri(format!("/Publisher/{name}")).body(Body::empty()).unwrap()
    }

    fn code(answer: &http::Response<Body>) -> Code {
        Status::from_header_map(answer.headers()).map_or(Code::Ok, |status| status.code())
    }

    #[tokio::test]
    async fn one_peer_has_half_of_the_places_and_another_one_is_served() {
        let places = Places::new(32, "instances are connected");
        let of = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        // A host has as many addresses as it likes.
        let own: Vec<_> = (0..16).map(|n| places.take(of(&format!("2001:db8::{n}"))).unwrap()).collect();
        let refused = places.take(of("2001:db8::ffff")).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("your address has 16 of the places"), "{refused:?}");
        let others: Vec<_> = (0..16).map(|_| places.take(of("192.0.2.1")).unwrap()).collect();
        assert!(places.take(of("192.0.2.2")).unwrap_err().message().contains("32 instances are connected"));
        drop(own);
        assert!(places.take(of("2001:db8::ffff")).is_ok());
        drop(others);
        assert!(places.shares.lock().is_empty());
        places.all_free().await;
    }

    #[test]
    fn few_places_are_one_peers_if_no_other_one_comes() {
        let places = Places::new(2, "instances are connected");
        let local = Some([127, 0, 0, 1].into());
        let _all = [places.take(local).unwrap(), places.take(local).unwrap()];
    }

    #[tokio::test]
    async fn calls_that_are_not_answered_are_few_and_end() {
        let hour = Duration::from_secs(3_600);
        let mut service = Bounded::new(Silent, 3, hour);
        let mut calls: Vec<_> = (0..3).map(|_| service.call(request("Describe"))).collect();
        assert!(calls.iter_mut().all(|call| call.now_or_never().is_none()));
        let refused = service.call(request("Manage")).now_or_never().unwrap().unwrap();
        assert_eq!(code(&refused), Code::ResourceExhausted);
        assert!(service.call(request("Subscribe")).now_or_never().is_none(), "it has places of its own");
        calls.pop();
        assert!(service.call(request("Describe")).now_or_never().is_none(), "one place was free");
        let mut service = Bounded::new(Silent, 1, Duration::ZERO);
        let ended = service.call(request("Describe")).await.unwrap();
        assert_eq!(code(&ended), Code::DeadlineExceeded);
    }
}
