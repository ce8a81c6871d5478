// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`EngineLayer`]: an engine, an extractor and call settings, as a `tower` layer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::{CompletionFailurePolicy, IdempotencyEngine, JsonCodec, OnDrop};

/// Runs the wrapped service once per (scope, key). The first request runs the service, and every
/// other request gets the stored response. See the [crate's page](crate).
///
/// The layer is cheap to clone. A duration that is set here applies to every call. Any other
/// duration comes from the extractor, or else from the configured default (CTX-3).
pub struct EngineLayer<I, C = JsonCodec> {
    pub(crate) engine: IdempotencyEngine,
    pub(crate) identify: Arc<I>,
    pub(crate) codec: C,
    pub(crate) terms: Terms,
}

/// Settings that apply to every call through a layer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    pub(crate) ttl: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) on_drop: OnDrop,
    pub(crate) completion: Option<CompletionFailurePolicy>,
    pub(crate) own_task: bool,
}

impl<I> EngineLayer<I> {
    /// Creates a layer on `engine`. The extractor `identify` determines the unit of work of each
    /// request (see [`Identify`](crate::Identify)).
    pub fn new(engine: IdempotencyEngine, identify: I) -> Self {
        Self { engine, identify: Arc::new(identify), codec: JsonCodec, terms: Terms::default() }
    }
}

impl<I, C> EngineLayer<I, C> {
    /// Stores responses with a different codec. Use [`NoCodec`](retryproof_core::NoCodec) for
    /// services that return `()`.
    #[must_use]
    pub fn codec<D>(self, codec: D) -> EngineLayer<I, D> {
        let Self { engine, identify, codec: _, terms } = self;
        EngineLayer { engine, identify, codec, terms }
    }

    /// Sets how long a response is kept after completion: 1 ms to 3,650 days. A value out of range
    /// makes every call fail (CTX-2).
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.terms.ttl = Some(ttl);
        self
    }

    /// Sets how long a holder that stopped extending its lease keeps the key: 10 ms to 24 h. A
    /// value out of range makes every call fail (CTX-2).
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.terms.lease = Some(lease);
        self
    }

    /// Sets how long a duplicate waits for the holder: up to 24 h. With zero, a duplicate checks
    /// once and does not wait; use zero if the sender retries anyway. A value out of range makes
    /// every call fail (CTX-2).
    #[must_use]
    pub fn wait_timeout(mut self, wait: Duration) -> Self {
        self.terms.wait = Some(wait);
        self
    }

    /// Chooses what happens when the running future is dropped (RUN-5).
    #[must_use]
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.terms.on_drop = on_drop;
        self
    }

    /// Chooses what happens when a completion fails. This choice overrides the configured policy
    /// (CMP-4).
    #[must_use]
    pub fn completion(mut self, policy: CompletionFailurePolicy) -> Self {
        self.terms.completion = Some(policy);
        self
    }

    /// Runs the inner service in a separate, tracked task after the grant. If the caller goes away,
    /// for example because of a timeout outside this layer, the work continues, and a retry gets
    /// the response. The engine's `shutdown` waits for these tasks, and `max-running` limits them
    /// (RUN-5). The caller's task-locals are not available in that task.
    #[must_use]
    pub fn on_own_task(mut self) -> Self {
        self.terms.own_task = true;
        self
    }
}

impl<I, C: Clone> Clone for EngineLayer<I, C> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            identify: Arc::clone(&self.identify),
            codec: self.codec.clone(),
            terms: self.terms,
        }
    }
}

impl<I, C: fmt::Debug> fmt::Debug for EngineLayer<I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineLayer")
            .field("engine", &self.engine)
            .field("codec", &self.codec)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
