// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`EngineState`]: the state that the clones of an engine share.

use std::fmt;
use std::sync::Arc;

use super::acquire::SharedWaits;
use super::holder::{CurrentTrace, HolderNotes};
use super::lease::{BeatQueues, Lease};
use super::purge::PurgeTask;
use super::shadow::{self, ShadowClients};
use super::store_client::StoreClient;
use super::tasks::Tasks;
use super::unguarded;
use crate::clock::Clock;
use crate::config::IdempotencyConfig;
use crate::context::{Durations, Guarding};
use crate::observe::{Observers, ShadowVerdict};
use crate::store::{Grant, SharedStore};

pub(crate) struct EngineState {
    pub(super) config: IdempotencyConfig,
    pub(super) store: Arc<StoreClient>,
    /// The client that replaces the store in scopes that are switched off (CTX-5). `None` if there
    /// is no such scope.
    unguarded: Option<Arc<StoreClient>>,
    /// The clients that replace the store in scopes in shadow mode (CTX-6). `None` if there is no
    /// such scope.
    shadow: Option<ShadowClients>,
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
        let tasks = Tasks::new(config.max_running);
        let shadow = shadow::stand_in(&store, &tasks, &config);
        Self {
            tasks,
            beats: BeatQueues::new(),
            waits: SharedWaits::new(config.max_waiting, config.max_waiting_bytes),
            purge: PurgeTask::new(&store, &config.purge),
            holder_notes: HolderNotes::new(&config, current_trace, store.is_immediate()),
            store,
            unguarded,
            shadow,
            config,
        }
    }

    /// Returns the store for a call with these settings.
    #[inline]
    pub(super) fn store_of(&self, durations: &Durations) -> &Arc<StoreClient> {
        let stand_in = match durations.guarding {
            Guarding::On => None,
            Guarding::Off => self.unguarded.as_ref(),
            Guarding::Shadow => self.shadow.as_ref().map(|shadow| &shadow.watching),
        };
        stand_in.unwrap_or(&self.store)
    }

    /// Returns the store for a lease that `store` has granted. In shadow mode, the engine's store
    /// has only the leases that the guard would have granted too. All other leases use the
    /// `passing` client.
    #[inline]
    pub(super) fn keeper_of<'a>(
        &'a self,
        store: &'a Arc<StoreClient>,
        grant: &Grant,
    ) -> &'a Arc<StoreClient> {
        match (&self.shadow, grant.shadow) {
            (Some(shadow), Some(verdict)) if verdict != ShadowVerdict::Executed => &shadow.passing,
            _ => store,
        }
    }

    /// Whether this engine granted `lease`.
    pub(super) fn has_granted(&self, lease: &Lease) -> bool {
        let store = &lease.0.store;
        Arc::ptr_eq(store, &self.store)
            || self.unguarded.as_ref().is_some_and(|unguarded| Arc::ptr_eq(store, unguarded))
            || self.shadow.as_ref().is_some_and(|shadow| {
                Arc::ptr_eq(store, &shadow.watching) || Arc::ptr_eq(store, &shadow.passing)
            })
    }
}

impl fmt::Debug for EngineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineState").field("store", &self.store).finish_non_exhaustive()
    }
}
