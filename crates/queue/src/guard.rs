//! Mapped files that were cut, for a process that is to outlive that.
//!
//! A load or a store behind the end of a file that is mapped ends the process by SIGBUS, and whoever may write the directory of a queue
//! can cut its files at any time. A process that serves queues of others ([`Queue::serve`](crate::Queue::serve)) is guarded: the handler
//! of the signal puts memory of the process's own, zeros, in the place of the whole mapping, notes that it is lost, and the instruction
//! goes on. Who works with a mapping asks for that note behind what he has done ([`Map::is_lost`](crate::map::Map::is_lost)), and
//! believes none of it then. A fault elsewhere is that of the handler of before, or ends the process as it would have.

#![allow(unsafe_code, reason = "a signal handler")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings that are guarded at one time; further ones are not.
const MAPPINGS_MAX: usize = 1024;
static MAPPINGS: [Guarded; MAPPINGS_MAX] = [const { Guarded::new() }; MAPPINGS_MAX];
/// The handler of before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Mappings that were lost since the process began.
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

/// The guard of a mapping. It is given up before that is unmapped.
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

    /// Returns true once its file was found to be cut: what is mapped is not the file any more.
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

/// Returns true if any mapping was ever lost: so long as none was, nobody need ask further.
#[inline]
pub(crate) fn any_lost() -> bool {
    LOST.load(Ordering::Relaxed) != 0
}

/// Has this process outlive faults in mappings that are guarded.
pub(crate) fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: the structures are whole, and the handler does what is allowed in one.
        unsafe {
            let mut before = MaybeUninit::<libc::sigaction>::zeroed();
            let mut own: libc::sigaction = std::mem::zeroed();
            own.sa_sigaction = on_fault as *const () as usize;
            own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut own.sa_mask);
            // Read before it is replaced: a fault may come at once.
            libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr());
            libc::sigaction(libc::SIGBUS, &raw const own, ptr::null_mut());
            before.assume_init()
        }
    });
}

/// Runs on the thread that has met the end of a file, in the midst of any instruction.
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

/// Puts zeros in the place of the mapping that has an address; false if none has, or there is no memory for it.
fn replace(address: usize) -> bool {
    for place in &MAPPINGS {
        let start = place.start.load(Ordering::Acquire);
        let len = place.len.load(Ordering::Acquire);
        // The length of another mapping is not of this one.
        let is_one = start != 0 && start == place.start.load(Ordering::Acquire);
        if !is_one || !(start..start + len).contains(&address) {
            continue;
        }
        // Before the zeros can be read.
        place.is_lost.store(true, Ordering::SeqCst);
        LOST.fetch_add(1, Ordering::SeqCst);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the thread that has met the end works with this mapping, which lives as long as that. A system call is allowed in a
        // handler, and `errno` is what it was behind it.
        unsafe {
            let errno = *libc::__errno_location();
            let replaced = libc::mmap(ptr::without_provenance_mut(start), len, protection, flags, -1, 0);
            *libc::__errno_location() = errno;
            return replaced != libc::MAP_FAILED;
        }
    }
    false
}

/// Does what would have been done without a guard.
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
