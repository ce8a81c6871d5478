// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`OwnerId`] for equality inside a store, [`FencingToken`] for order outside it.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

/// The random 128-bit id of one execution, made by the client before its acquire (ACQ-9), so that a lost answer can
/// be asked for again. It stays in the record after completion (CMP-3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId([u8; 16]);

thread_local! {
    /// An id that was made and not used.
    static SPARE: Cell<Option<[u8; 16]>> = const { Cell::new(None) };
}

impl OwnerId {
    /// A fresh id: 128 bits of SHA-256 over a process-wide random seed and a counter, so that making one costs no
    /// system call and no two of a process are alike. One hash makes two: the other half waits for this thread's next.
    ///
    /// # Panics
    /// When the operating system has no random bytes to give at the first call of the process.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a default that differs at each call would surprise")]
    pub fn new() -> Self {
        // A thread that is ending has no spare any more, and needs none.
        if let Ok(Some(spare)) = SPARE.try_with(Cell::take) {
            return Self(spare);
        }
        let (id, spare) = Self::two();
        let _ = SPARE.try_with(|kept| kept.set(Some(spare)));
        Self(id)
    }

    /// Gives back an id that no store has kept and nothing names any more: the next call of this thread may have it.
    pub(crate) fn unused(self) {
        let _ = SPARE.try_with(|kept| kept.set(Some(self.0)));
    }

    fn two() -> ([u8; 16], [u8; 16]) {
        static SEED: OnceLock<[u8; 32]> = OnceLock::new();
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let seed = SEED.get_or_init(|| {
            let mut seed = [0; 32];
            getrandom::fill(&mut seed).expect("the operating system gives random bytes");
            seed
        });
        // The seed and the counter fit one block of the hash.
        let mut block = [0; 40];
        block[..32].copy_from_slice(seed);
        block[32..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        let hash = Sha256::digest(block);
        let (mut one, mut two) = ([0; 16], [0; 16]);
        one.copy_from_slice(&hash[..16]);
        two.copy_from_slice(&hash[16..]);
        (one, two)
    }

    /// The id as a store wrote it.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The id as a store keeps it.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Prints only the first 8 hex digits: whoever has the whole id could complete in its name.
impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "OwnerId({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

/// A number that only grows from grant to grant of one identity (ACQ-10). Hand it to a resource that can refuse a
/// smaller one; do not send it as an idempotency key (see [`Lease::downstream_key`](crate::Lease::downstream_key)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token as a store drew it.
    #[must_use]
    pub const fn new(token: u64) -> Self {
        Self(token)
    }

    /// The number.
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
        let make = || (0..10_000).map(|_| OwnerId::new()).collect::<Vec<_>>();
        let other = std::thread::spawn(make);
        let ids: std::collections::HashSet<_> = make().into_iter().chain(other.join().unwrap()).collect();
        assert_eq!(ids.len(), 20_000);
        assert!(format!("{:?}", OwnerId::new()).len() < 24);
    }
}
