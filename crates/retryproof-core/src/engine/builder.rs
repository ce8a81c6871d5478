// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`EngineBuilder`]: an engine with settings, observers and a clock of its own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::flight::Flights;
use super::gate::Gate;
use super::running::Running;
use super::{IdempotencyEngine, Inner};
use crate::clock::{Clock, SystemClock};
use crate::config::IdempotencyConfig;
use crate::error::Result;
use crate::heartbeat::Beats;
use crate::observe::{Observer, Observers};
use crate::store::{IdempotencyStore, SharedStore};

/// Builds an engine with settings of its own.
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct EngineBuilder {
    store: SharedStore,
    config: IdempotencyConfig,
    observers: Vec<ObserverEntry>,
    clock: Arc<dyn Clock>,
}

struct ObserverEntry(Arc<dyn Observer>);

impl fmt::Debug for ObserverEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

impl EngineBuilder {
    pub(super) fn new(store: SharedStore) -> Self {
        Self {
            store,
            config: IdempotencyConfig::default(),
            observers: Vec::new(),
            clock: Arc::new(SystemClock),
        }
    }

    /// Takes these settings.
    pub fn config(mut self, config: IdempotencyConfig) -> Self {
        self.config = config;
        self
    }

    /// Adds an observer; share one as an `Arc`.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(ObserverEntry(Arc::new(observer)));
        self
    }

    /// Counts leases and deadlines by another clock: for tests of skew. Sleeps are tokio's all the
    /// same.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) naming the key and the value.
    pub fn build(self) -> Result<IdempotencyEngine> {
        self.config.validate()?;
        Ok(self.assemble())
    }

    pub(super) fn assemble(self) -> IdempotencyEngine {
        let Self { store, config, observers, clock } = self;
        let profile = store.profile();
        let observers = Observers(observers.into_iter().map(|entry| entry.0).collect());
        IdempotencyEngine(Arc::new(Inner {
            erased: store.as_dyn(),
            store,
            max_value: profile.max_value,
            max_duration: profile.max_duration,
            immediate: profile.immediate,
            observers,
            clock,
            gate: Gate::new(config.operation_timeout),
            beats: Beats::new(),
            flights: Flights::new(config.max_waiting, config.max_waiting_bytes),
            running: Running::new(config.max_running),
            purging: AtomicBool::new(false),
            config,
        }))
    }
}
