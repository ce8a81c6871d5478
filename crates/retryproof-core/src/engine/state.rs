// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`EngineState`]: the state that the clones of an engine share.

use std::fmt;
use std::sync::Arc;

use super::acquire::SharedWaits;
use super::holder::{CurrentTrace, HolderNotes};
use super::lease::{BeatQueues, Lease};
use super::purge::PurgeTask;
use super::store_client::StoreClient;
use super::tasks::Tasks;
use super::unguarded;
use crate::clock::Clock;
use crate::config::IdempotencyConfig;
use crate::context::Durations;
use crate::observe::Observers;
use crate::store::SharedStore;

pub(crate) struct EngineState {
    pub(super) config: IdempotencyConfig,
    pub(super) store: Arc<StoreClient>,
    /// Stands in for the store in the scopes that are switched off; `None` if there is no such
    /// scope (CTX-5).
    unguarded: Option<Arc<StoreClient>>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) beats: BeatQueues,
    pub(super) waits: SharedWaits,
    pub(super) purge: Arc<PurgeTask>,
    pub(super) holder_notes: HolderNotes,
}

impl EngineState {
    pub(super) fn new(
        store: SharedStore,
        config: IdempotencyConfig,
        clock: Arc<dyn Clock>,
        observers: Observers,
        current_trace: Option<CurrentTrace>,
    ) -> Self {
        let store = Arc::new(StoreClient::new(store, config.operation_timeout, clock, observers));
        let unguarded = unguarded::stand_in(&store, &config);
        Self {
            tasks: Tasks::new(config.max_running),
            beats: BeatQueues::new(),
            waits: SharedWaits::new(config.max_waiting, config.max_waiting_bytes),
            purge: PurgeTask::new(&store, &config.purge),
            holder_notes: HolderNotes::new(&config, current_trace, store.is_immediate()),
            store,
            unguarded,
            config,
        }
    }

    /// The store for a call with these settings.
    #[inline]
    pub(super) fn store_of(&self, durations: &Durations) -> &Arc<StoreClient> {
        match &self.unguarded {
            Some(unguarded) if !durations.is_guarded => unguarded,
            _ => &self.store,
        }
    }

    /// Whether a lease was granted by this engine.
    pub(super) fn has_granted(&self, lease: &Lease) -> bool {
        let store = &lease.0.store;
        Arc::ptr_eq(store, &self.store)
            || self.unguarded.as_ref().is_some_and(|unguarded| Arc::ptr_eq(store, unguarded))
    }
}

impl fmt::Debug for EngineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineState").field("store", &self.store).finish_non_exhaustive()
    }
}
