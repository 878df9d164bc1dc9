//! Addresses of this machine for servers that tests start.

/// An address that is this process's own.
pub(crate) fn free_address() -> String {
    format!("127.0.0.1:{}", mainstem_testkit::port())
}
