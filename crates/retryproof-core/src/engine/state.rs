// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`EngineState`]: the state that the clones of an engine share.

use std::fmt;
use std::sync::Arc;

use super::acquire::SharedWaits;
use super::holder::{CurrentTrace, HolderNotes};
use super::lease::BeatQueues;
use super::purge::PurgeTask;
use super::store_client::StoreClient;
use super::tasks::Tasks;
use crate::clock::Clock;
use crate::config::IdempotencyConfig;
use crate::observe::Observers;
use crate::store::SharedStore;

pub(crate) struct EngineState {
    pub(super) config: IdempotencyConfig,
    pub(super) store: Arc<StoreClient>,
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
        Self {
            tasks: Tasks::new(config.max_running),
            beats: BeatQueues::new(),
            waits: SharedWaits::new(config.max_waiting, config.max_waiting_bytes),
            purge: PurgeTask::new(&store, &config.purge),
            holder_notes: HolderNotes::new(&config, current_trace, store.is_immediate()),
            store,
            config,
        }
    }
}

impl fmt::Debug for EngineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineState").field("store", &self.store).finish_non_exhaustive()
    }
}
