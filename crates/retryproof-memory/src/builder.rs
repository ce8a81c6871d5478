// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MemoryStoreBuilder`] sets the bounds and the clock of a memory store.

use std::sync::Arc;

use retryproof_core::IdentitySecret;
use retryproof_core::clock::{Clock, wall_clock_micros};

use crate::budget::Budget;
use crate::shard::Shard;
use crate::store::{MemoryStore, PaddedShard};
use crate::sync::Mutex;
use crate::time::StoreTime;

impl MemoryStore {
    /// Starts a builder with the default bounds.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder {
            max_records: DEFAULT_RECORDS,
            max_bytes: DEFAULT_BYTES,
            capacity: 0,
            clock: None,
            identity_secret: None,
        }
    }
}

const DEFAULT_RECORDS: usize = 1_000_000;
const DEFAULT_BYTES: u64 = 1 << 30;

/// Builds a [`MemoryStore`].
#[derive(Debug, Clone)]
#[must_use]
pub struct MemoryStoreBuilder {
    max_records: usize,
    max_bytes: u64,
    capacity: usize,
    clock: Option<Arc<dyn Clock>>,
    identity_secret: Option<IdentitySecret>,
}

impl MemoryStoreBuilder {
    /// Sets the maximum number of records, including expired records that have not been reclaimed.
    /// Default: 1,000,000.
    pub fn max_records(mut self, records: usize) -> Self {
        self.max_records = records;
        self
    }

    /// Sets the maximum total size of all records in bytes. The size counts keys, values and index
    /// entries, but not the allocator's overhead. Default: 1 GiB.
    /// [`MemoryStore`](MemoryStore#bounds) documents when the size can exceed this bound.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Allocates the index for this many records in advance. For more records, the index grows on
    /// demand, without stalls. Default: 0.
    pub fn capacity(mut self, records: usize) -> Self {
        self.capacity = records;
        self
    }

    /// Uses this clock for expiry, instead of the host's monotonic clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Stores a digest of each key, computed with this secret, in place of the key (ID-5). Default:
    /// no secret, so the store keeps the keys themselves.
    pub fn identity_secret(mut self, secret: IdentitySecret) -> Self {
        self.identity_secret = Some(secret);
        self
    }

    /// Builds an empty store.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        let shards = shards();
        let capacity = self.capacity.min(self.max_records).div_ceil(shards);
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX / 2);
        let time = StoreTime::new(self.clock);
        let first_token = wall_clock_micros();
        let shard = |_| PaddedShard(Mutex::new(Shard::new(first_token, capacity, time.ahead())));
        MemoryStore {
            shards: (0..shards).map(shard).collect(),
            mask: shards - 1,
            budget: Budget::new(self.max_records, self.max_bytes, shards),
            max_records: self.max_records,
            max_bytes: self.max_bytes,
            time,
            identity_secret: self.identity_secret,
        }
    }
}

/// Returns the number of shards. The number is high enough that two cores rarely contend for the
/// same shard. Under loom there is a single shard, because loom tries every order of locking.
fn shards() -> usize {
    if cfg!(loom) {
        return 1;
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (4 * cores).next_power_of_two().max(64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sto_1_the_default_bounds_are_a_million_records_and_a_gibibyte() {
        let store = MemoryStore::new();
        assert_eq!((store.max_records, store.max_bytes), (1_000_000, 1_024 * 1_024 * 1_024));
    }
}
