// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`OwnerId`] identifies an owner to the store. [`FencingToken`] lets a resource outside the store
//! distinguish a newer grant from an older one.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The unique 128-bit id of one execution. The caller creates the id before it acquires. The caller
/// can therefore repeat an acquire with the same id if the answer is lost (ACQ-9). The id stays in
/// the record after completion (CMP-3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId([u8; 16]);

impl OwnerId {
    /// Creates an id from 128 random bits that the operating system provides.
    ///
    /// This function keeps no generator, counter or spare id in the process. A `fork` or a snapshot
    /// of a virtual machine would copy such state. Two processes could then create the same id and
    /// hold the same lease.
    ///
    /// # Panics
    /// Panics if the operating system cannot provide random bytes.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a default that differs on each call would be surprising"
    )]
    pub fn new() -> Self {
        let mut id = [0; 16];
        getrandom::fill(&mut id).expect("the operating system should provide random bytes");
        Self(id)
    }

    /// Creates an id for a store whose records no other process shares
    /// ([`StoreProfile::immediate`](crate::store::StoreProfile::immediate)). The id consists of a
    /// random seed and a counter, which this process keeps. Unlike [`new`](Self::new), this
    /// function therefore needs a system call only the first time. A forked process can create the
    /// same ids, but it has its own copy of the records.
    ///
    /// # Panics
    /// Panics if the operating system cannot provide random bytes at the first call in the process.
    pub(crate) fn of_this_process() -> Self {
        static SEED: OnceLock<u64> = OnceLock::new();
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // The random seed gives each process different ids, even if two processes open the same
        // records one after the other.
        let seed = SEED.get_or_init(|| {
            getrandom::u64().expect("the operating system should provide random bytes")
        });
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self((u128::from(*seed) << 64 | u128::from(count)).to_be_bytes())
    }

    /// Restores an id from the bytes that a store kept.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes that a store keeps.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Prints only the first 8 hex digits, because anyone who knows the whole id can complete the
/// record.
impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "OwnerId({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

/// A number that grows with each grant for the same identity (ACQ-10).
///
/// Pass the token to a resource that can reject writes with a smaller token. Do not send the token
/// as an idempotency key: use [`Lease::downstream_key`](crate::Lease::downstream_key) for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Creates a token from the number that a store has assigned to a grant.
    #[must_use]
    pub const fn new(token: u64) -> Self {
        Self(token)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acq_9_owner_ids_do_not_repeat_and_print_shortened() {
        for draw in [OwnerId::new, OwnerId::of_this_process] {
            let make = move || (0..10_000).map(|_| draw()).collect::<Vec<_>>();
            let other = std::thread::spawn(make);
            let ids: std::collections::HashSet<_> =
                make().into_iter().chain(other.join().unwrap()).collect();
            assert_eq!(ids.len(), 20_000);
        }
        assert_ne!(OwnerId::of_this_process().as_bytes()[..8], [0; 8], "the process's random part");
        assert!(format!("{:?}", OwnerId::new()).len() < 24);
    }
}
