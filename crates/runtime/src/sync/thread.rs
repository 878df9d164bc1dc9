//! A thread that was started, of the system or of a schedule.

use std::any::Any;
use std::io;

/// A thread that was started.
pub struct Thread<T = ()>(Kind<T>);

enum Kind<T> {
    System(std::thread::JoinHandle<T>),
    #[cfg(feature = "sim")]
    Scheduled(crate::schedule::Handle<T>),
}

impl<T: Send + 'static> Thread<T> {
    /// Starts a thread.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub(crate) fn start(name: &str, run: impl FnOnce() -> T + Send + 'static) -> io::Result<Thread<T>> {
        #[cfg(feature = "sim")]
        if let Some(group) = crate::schedule::group() {
            return Ok(Thread(Kind::Scheduled(group.spawn(name, run)?)));
        }
        #[cfg(feature = "sim")]
        assert!(
            !crate::schedule::is_owner(),
            "the thread {name} would run beside a schedule: act for its group"
        );
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Thread(Kind::System(thread)))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Its panic.
    pub fn join(self) -> Result<T, Box<dyn Any + Send>> {
        match self.0 {
            Kind::System(thread) => thread.join(),
            #[cfg(feature = "sim")]
            Kind::Scheduled(thread) => {
                thread.join().ok_or_else(|| Box::new("it has unwound") as Box<dyn Any + Send>)
            }
        }
    }

    /// Returns true if it has ended.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Kind::System(thread) => thread.is_finished(),
            #[cfg(feature = "sim")]
            Kind::Scheduled(thread) => thread.is_finished(),
        }
    }
}
