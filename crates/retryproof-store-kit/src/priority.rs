// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`CallPriority`]: which connections of a pool a call may use.

/// Which connections of a pool a call may use. Some connections are reserved for holders, so a rush
/// of new callers does not cost the holders their leases (RUN-2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallPriority {
    /// A call without a lease: an acquire, a peek, a waiter's poll or a purge.
    Normal,
    /// A holder's heartbeat, completion or release. A holder's call may also use the connections
    /// for normal calls.
    Holder,
}
