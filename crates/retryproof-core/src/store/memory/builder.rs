// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MemoryStoreBuilder`]: bounds and clock of a memory store.

use std::sync::Arc;

use super::budget::Budget;
use super::shard::Shard;
use super::sync::Mutex;
use super::time::Time;
use super::{MemoryStore, Padded};
use crate::clock::{Clock, wall_clock_micros};

const DEFAULT_RECORDS: usize = 1_000_000;
const DEFAULT_BYTES: u64 = 1 << 30;

/// Makes a [`MemoryStore`].
#[derive(Debug, Clone)]
#[must_use]
pub struct MemoryStoreBuilder {
    max_records: usize,
    max_bytes: u64,
    capacity: usize,
    clock: Option<Arc<dyn Clock>>,
}

impl MemoryStoreBuilder {
    pub(super) fn new() -> Self {
        Self { max_records: DEFAULT_RECORDS, max_bytes: DEFAULT_BYTES, capacity: 0, clock: None }
    }

    /// Most records, expired ones that are not reclaimed yet included. Default 1,000,000.
    pub fn max_records(mut self, records: usize) -> Self {
        self.max_records = records;
        self
    }

    /// Most bytes of all records with their keys, values and index entries, without the allocator's
    /// own overhead. Default 1 GiB. See the [store](MemoryStore#bounds) for what may exceed it.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Makes the index for so many records at once. It grows without stalls anyway; default 0.
    pub fn capacity(mut self, records: usize) -> Self {
        self.capacity = records;
        self
    }

    /// Judges expiry by this clock instead of the host's monotonic one.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// An empty store.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        let shards = shards();
        let capacity = self.capacity.min(self.max_records).div_ceil(shards);
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX / 2);
        let time = Time::new(self.clock);
        let first_token = wall_clock_micros();
        let shard = |_| Padded(Mutex::new(Shard::new(first_token, capacity, time.ahead())));
        MemoryStore {
            shards: (0..shards).map(shard).collect(),
            mask: shards - 1,
            budget: Budget::new(self.max_records, self.max_bytes, shards),
            max_records: self.max_records,
            max_bytes: self.max_bytes,
            time,
        }
    }
}

/// Enough that two cores seldom want the same one. The model of the interleaving tests has to try
/// all orders of locks, so it gets one.
fn shards() -> usize {
    if cfg!(loom) {
        return 1;
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (4 * cores).next_power_of_two().max(64)
}
