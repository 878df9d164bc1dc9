//! The wall clock.

/// Returns the wall clock, in ms since 1970, as of the kernel's last tick: at most 10 ms ago. The exact one takes a fifth of the time
/// of an append.
pub(crate) fn wall_ms() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    now.tv_sec.saturating_mul(1_000).saturating_add(now.tv_nsec / 1_000_000).max(0)
}
