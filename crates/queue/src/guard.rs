//! The guard of a process that has to survive cuts of its mapped files.
//!
//! A load or a store behind the end of a mapped file ends the process by SIGBUS. Any process that may write the directory of a queue can
//! cut its files at any time. A process that serves queues of others ([`Queue::serve`](crate::Queue::serve)) is guarded: the handler of
//! the signal replaces the whole mapping by private memory with zeros, notes that it is lost, and the instruction continues. Code that
//! uses a mapping checks that note after its accesses ([`Map::is_lost`](crate::map::Map::is_lost)), and discards their results if it is
//! set. Other faults go to the earlier handler, or end the process as they would have.

#![allow(unsafe_code, reason = "a signal handler")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The most mappings that are guarded at one time; further ones are not.
const MAPPINGS_MAX: usize = 1024;
static MAPPINGS: [Guarded; MAPPINGS_MAX] = [const { Guarded::new() }; MAPPINGS_MAX];
/// The handler that was installed before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// The number of mappings that were lost since the process began.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// A place for a mapping.
#[derive(Debug)]
struct Guarded {
    is_taken: AtomicBool,
    /// 0 while the place is free, or is being taken.
    start: AtomicUsize,
    len: AtomicUsize,
    is_lost: AtomicBool,
}

impl Guarded {
    const fn new() -> Guarded {
        Guarded {
            is_taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        }
    }
}

/// The guard of a mapping. It is dropped before the mapping is unmapped.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Guards a mapping; `None` if too many are.
    pub(crate) fn new(start: usize, len: usize) -> Option<Guard> {
        let free = |place: &Guarded| {
            !place.is_taken.load(Ordering::Relaxed) && !place.is_taken.swap(true, Ordering::AcqRel)
        };
        let at = MAPPINGS.iter().position(free)?;
        let place = &MAPPINGS[at];
        place.is_lost.store(false, Ordering::Relaxed);
        place.len.store(len, Ordering::Release);
        place.start.store(start, Ordering::Release);
        Some(Guard(at))
    }

    /// Returns true once the file was found to be cut: the mapping has zeros, not the file.
    pub(crate) fn is_lost(&self) -> bool {
        MAPPINGS[self.0].is_lost.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let place = &MAPPINGS[self.0];
        place.start.store(0, Ordering::Release);
        place.is_taken.store(false, Ordering::Release);
    }
}

/// Returns true if any mapping was ever lost. Until then no further check is needed.
#[inline]
pub(crate) fn any_lost() -> bool {
    LOST.load(Ordering::Relaxed) != 0
}

/// Makes this process survive faults in guarded mappings.
pub(crate) fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: the structures are whole, and the handler does what is allowed in one.
        unsafe {
            let mut before = MaybeUninit::<libc::sigaction>::zeroed();
            let mut own: libc::sigaction = std::mem::zeroed();
            own.sa_sigaction = on_fault as *const () as usize;
            own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut own.sa_mask);
            // Read before it is replaced: a fault may come right after that.
            libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr());
            libc::sigaction(libc::SIGBUS, &raw const own, ptr::null_mut());
            before.assume_init()
        }
    });
}

/// Runs on the thread of the faulting access, in the middle of any instruction.
extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a whole structure. One that another process has sent has no address.
    let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr() as usize) };
    match address {
        Some(address) if replace(address) => {}
        Some(_) => hand_on(signal, info, context),
        None => end_by(signal),
    }
}

/// Ends the process by a signal, as soon as its handler has returned.
fn end_by(signal: libc::c_int) {
    // SAFETY: both are allowed in a handler.
    unsafe {
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const default, ptr::null_mut());
        libc::raise(signal);
    }
}

/// Replaces the mapping with an address by zeros; false if no mapping has it, or if there is no memory.
fn replace(address: usize) -> bool {
    for place in &MAPPINGS {
        let start = place.start.load(Ordering::Acquire);
        let len = place.len.load(Ordering::Acquire);
        // The entry may have got another mapping between the loads.
        let is_one = start != 0 && start == place.start.load(Ordering::Acquire);
        if !is_one || !(start..start + len).contains(&address) {
            continue;
        }
        // Before the zeros can be read.
        place.is_lost.store(true, Ordering::SeqCst);
        LOST.fetch_add(1, Ordering::SeqCst);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // The faulting thread uses this mapping, which lives at least until the access ends. A system call is allowed in a handler,
        // and `errno` is restored.
        unsafe {
            let errno = *libc::__errno_location();
            let replaced = libc::mmap(ptr::without_provenance_mut(start), len, protection, flags, -1, 0);
            *libc::__errno_location() = errno;
            return replaced != libc::MAP_FAILED;
        }
    }
    false
}

/// Does what would happen without a guard.
fn hand_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get().filter(|one| ![libc::SIG_DFL, libc::SIG_IGN].contains(&one.sa_sigaction));
    // SAFETY: a handler that was installed is called as the kernel would. Without one the instruction is met once more, and ends the
    // process.
    unsafe {
        match before {
            Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 => {
                type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                std::mem::transmute::<usize, Handler>(before.sa_sigaction)(signal, info, context);
            }
            Some(before) => {
                type Handler = extern "C" fn(libc::c_int);
                std::mem::transmute::<usize, Handler>(before.sa_sigaction)(signal);
            }
            None => end_by(signal),
        }
    }
}
