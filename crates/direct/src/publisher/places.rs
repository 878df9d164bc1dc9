//! How much clients may have under way at one time, beside their connections: instances, and other calls.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};

/// So many instances are served at one time where the publisher does not say otherwise. One costs up to 128 KiB of a frame that has not
/// come whole, and the frame that it is sent.
pub(super) const SESSIONS_MAX: usize = 4_096;
/// So many other calls are served at one time. One costs up to 128 KiB of its request.
pub(super) const CALLS_MAX: usize = 256;
/// Such a call has so long to be answered, its request included.
pub(super) const CALL_WITHIN: Duration = Duration::from_secs(10);

/// Places, each of which one has at a time.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    max: usize,
    /// What is said when all are taken.
    reason: String,
    /// One was refused since a place was free.
    is_full: AtomicBool,
}

impl Places {
    /// `what`: who has the places, and what for.
    pub(super) fn new(max: usize, what: &str) -> Places {
        let free = Arc::new(Semaphore::new(max));
        let reason = format!("{max} {what}, which is the most");
        Places { free, max, reason, is_full: AtomicBool::new(false) }
    }

    /// Takes one until the permit is dropped.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, if there is none. The log says so once, until one was free again.
    pub(super) fn take(&self) -> Result<OwnedSemaphorePermit, Status> {
        if let Ok(place) = self.free.clone().try_acquire_owned() {
            self.is_full.store(false, Ordering::Relaxed);
            return Ok(place);
        }
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!("{}; others are refused", self.reason);
        }
        Err(Status::resource_exhausted(self.reason.clone()))
    }

    /// Waits until none is taken.
    pub(super) async fn all_free(&self) {
        let all = u32::try_from(self.max).unwrap_or(u32::MAX);
        // It is never closed.
        let _ = self.free.acquire_many(all).await;
    }
}

/// A service whose calls are bounded in number and time, but for subscriptions: those take places of their own before anything of them is
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
        let place = match self.calls.take() {
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
