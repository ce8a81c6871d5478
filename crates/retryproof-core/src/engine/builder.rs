// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`EngineBuilder`]: builds an engine with settings, observers and a clock.

use std::fmt;
use std::sync::Arc;

use super::IdempotencyEngine;
use super::holder::CurrentTrace;
use super::state::EngineState;
use crate::clock::{Clock, SystemClock};
use crate::config::IdempotencyConfig;
use crate::error::Result;
use crate::observe::{Observer, Observers};
use crate::store::{SharedStore, TraceContext};

/// Builds an engine with settings, observers and a clock.
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use retryproof_core::observe::Counters;
/// use retryproof_core::{IdempotencyConfig, IdempotencyEngine};
/// use retryproof_memory::MemoryStore;
///
/// let mut config = IdempotencyConfig::default();
/// config.max_running = Some(200);
/// config.operation_timeout = Duration::from_secs(2);
/// let counters = Arc::new(Counters::default());
/// let engine = IdempotencyEngine::builder(MemoryStore::new())
///     .config(config)
///     .observer(Arc::clone(&counters))
///     .build()?;
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct EngineBuilder {
    store: SharedStore,
    config: IdempotencyConfig,
    observers: Vec<ObserverEntry>,
    clock: Arc<dyn Clock>,
    current_trace: Option<CurrentTrace>,
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
            current_trace: None,
        }
    }

    /// Uses these settings.
    pub fn config(mut self, config: IdempotencyConfig) -> Self {
        self.config = config;
        self
    }

    /// Adds an observer. To share an observer, pass an `Arc`.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(ObserverEntry(Arc::new(observer)));
        self
    }

    /// Measures leases and deadlines with this clock, for tests of clock skew. Sleeps still follow
    /// tokio's clock.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Adds the call's trace to the note that each grant writes beside its record, so that a replay
    /// can be linked to the execution (REC-2). By default, notes have no trace.
    ///
    /// `current` returns the trace of the calling task, or `None` outside of a trace. Every acquire
    /// calls `current`, so the function should be fast. If `current` panics, the panic is logged,
    /// and the call continues without a trace.
    pub fn current_trace(mut self, current: fn() -> Option<TraceContext>) -> Self {
        self.current_trace = Some(current);
        self
    }

    /// Checks the settings and builds the engine.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config). The message names the setting that is out
    /// of range and its value, or two settings that contradict each other.
    pub fn build(self) -> Result<IdempotencyEngine> {
        self.config.validate()?;
        Ok(self.assemble())
    }

    pub(super) fn assemble(self) -> IdempotencyEngine {
        let Self { store, config, observers, clock, current_trace } = self;
        let observers = Observers(observers.into_iter().map(|entry| entry.0).collect());
        let state = EngineState::new(store, config, clock, observers, current_trace);
        IdempotencyEngine(Arc::new(state))
    }
}
