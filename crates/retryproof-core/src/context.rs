// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdempotencyContext`]: the identity and the settings of one call (CTX-1 to CTX-3).

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::config::{IdempotencyConfig, LEASE_BOUNDS, TTL_BOUNDS, WAIT_BOUNDS};
use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, IntoScope, Key};

/// One call's identity, durations and fingerprint, checked once by
/// [`build`](ContextBuilder::build).
///
/// # When to use
/// Build a context for each call to [`execute`](crate::IdempotencyEngine::execute) or
/// [`try_acquire`](crate::IdempotencyEngine::try_acquire). The key must come from the caller and
/// stay the same across retries; a key made for each attempt protects nothing. Add a fingerprint if
/// a caller could reuse a key for a different request.
///
/// ```
/// use std::time::Duration;
/// use retryproof_core::{Fingerprint, IdempotencyContext};
///
/// let ctx = IdempotencyContext::builder("payments", "7f0c-4a")
///     .fingerprint(Fingerprint::of(&("order-17", 300, "EUR"))?)
///     .wait_timeout(Duration::from_secs(2))
///     .build()?;
/// assert_eq!(ctx.identity().scope().as_str(), "payments");
///
/// // Bounds are checked here, before any store is called.
/// assert!(IdempotencyContext::builder("payments", "").build().is_err());
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct IdempotencyContext {
    identity: Identity,
    ttl: Option<Duration>,
    lease: Option<Duration>,
    wait: Option<Duration>,
    fingerprint: Option<Fingerprint>,
    held_bytes: usize,
}

impl IdempotencyContext {
    /// Starts building the context of a call with this scope and key. The scope is a `&'static str`
    /// or a [`Scope`](crate::Scope) (ID-3). [`build`](ContextBuilder::build) checks the scope and
    /// the key.
    pub fn builder(scope: impl IntoScope, key: impl AsRef<str>) -> ContextBuilder {
        let identity =
            scope.into_scope().and_then(|scope| Ok(Identity::new(scope, Key::new(key)?)));
        ContextBuilder {
            identity,
            ttl: None,
            lease: None,
            wait: None,
            fingerprint: None,
            held_bytes: 0,
        }
    }

    /// The call's identity: its scope and its key.
    #[must_use]
    #[inline]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The call's fingerprint.
    #[must_use]
    #[inline]
    pub fn fingerprint(&self) -> Option<&Fingerprint> {
        self.fingerprint.as_ref()
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Resolves the call's durations: the scope's configuration overrides the call, and the call
    /// overrides the default (CTX-3).
    #[inline]
    pub(crate) fn resolve(&self, config: &IdempotencyConfig) -> Durations {
        let scope = if config.scopes.is_empty() {
            None
        } else {
            config.scopes.get(self.identity.scope().as_str())
        };
        let pick = |configured: Option<Duration>, own: Option<Duration>, default| {
            configured.or(own).unwrap_or(default)
        };
        let durations = Durations {
            ttl: pick(scope.and_then(|s| s.ttl), self.ttl, config.default_ttl),
            lease: pick(scope.and_then(|s| s.lease), self.lease, config.default_lease),
            wait: pick(scope.and_then(|s| s.wait_timeout), self.wait, config.default_wait_timeout),
            is_guarded: scope.and_then(|s| s.enabled).unwrap_or(true),
        };
        if durations.lease < Duration::from_secs(1) {
            static WARNED: AtomicBool = AtomicBool::new(false);
            if !WARNED.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    scope = %self.identity.scope(), lease = ?durations.lease,
                    "the lease is under 1 s: if the process pauses for longer than the lease, the \
                     lease is lost; use 1 s or more (logged once, CTX-2)"
                );
            }
        }
        durations
    }
}

/// The durations that apply to a call, once overrides and defaults are resolved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durations {
    pub(crate) ttl: Duration,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    /// Whether the call is guarded, which is not so in a scope that is switched off (CTX-5).
    pub(crate) is_guarded: bool,
}

/// Builds an [`IdempotencyContext`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ContextBuilder {
    identity: Result<Identity>,
    ttl: Option<Duration>,
    lease: Option<Duration>,
    wait: Option<Duration>,
    fingerprint: Option<Fingerprint>,
    held_bytes: usize,
}

impl ContextBuilder {
    /// How long the store keeps the result after completion: 1 ms to 3,650 days. The default is
    /// 24 h.
    #[inline]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long a holder that stopped sending heartbeats keeps the key: 10 ms to 24 h. The default
    /// is 30 s.
    #[inline]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long a duplicate waits for the holder: up to 24 h. The default is 10 s. With a timeout
    /// of zero, the call checks once and never waits.
    #[inline]
    pub fn wait_timeout(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets a digest of what the caller sent, so that a different request with the same key is
    /// refused (FP-1).
    #[inline]
    pub fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// How many bytes the caller keeps in memory while the call waits, such as the body of its
    /// request. The default is 0.
    ///
    /// If a duplicate would raise the total of all waiters in the process above
    /// `max-waiting-bytes`, it does not wait, and the call returns `InFlight` immediately (ACQ-13).
    /// Calls that do not have to wait are not limited.
    #[inline]
    pub fn held_bytes(mut self, bytes: usize) -> Self {
        self.held_bytes = bytes;
        self
    }

    /// Checks all values and builds the context.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a scope or key that breaks ID-3, or a duration outside the bounds
    /// of CTX-2. No value is silently wrapped or clamped.
    #[inline]
    pub fn build(self) -> Result<IdempotencyContext> {
        let identity = self.identity?;
        within("ttl", self.ttl, &TTL_BOUNDS)?;
        within("lease", self.lease, &LEASE_BOUNDS)?;
        within("wait_timeout", self.wait, &WAIT_BOUNDS)?;
        Ok(IdempotencyContext {
            identity,
            ttl: self.ttl,
            lease: self.lease,
            wait: self.wait,
            fingerprint: self.fingerprint,
            held_bytes: self.held_bytes,
        })
    }
}

fn within(name: &str, value: Option<Duration>, bounds: &RangeInclusive<Duration>) -> Result<()> {
    match value {
        Some(value) if !bounds.contains(&value) => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{name} {value:?} is out of range; expected {:?} to {:?}",
                bounds.start(),
                bounds.end()
            ),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ScopeConfig;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn ctx_1_ctx_2_builder_checks_bounds_at_build() {
        let build = |f: fn(ContextBuilder) -> ContextBuilder| {
            f(IdempotencyContext::builder("s", "k")).build()
        };
        assert!(build(|b| b.ttl(MS).lease(10 * MS).wait_timeout(Duration::ZERO)).is_ok());
        assert!(
            build(|b| b.lease(Duration::from_secs(86_400)).ttl(MS)).is_ok(),
            "a lease longer than the ttl is legal"
        );
        assert!(build(|b| b.ttl(Duration::ZERO)).is_err());
        assert!(build(|b| b.ttl(TTL_BOUNDS.end().saturating_add(MS))).is_err());
        assert!(build(|b| b.lease(9 * MS)).is_err());
        assert!(build(|b| b.lease(Duration::from_secs(86_401))).is_err());
        let error = build(|b| b.wait_timeout(Duration::MAX)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("wait_timeout"), "{error}");
        assert!(IdempotencyContext::builder("", "k").build().is_err());
        assert!(IdempotencyContext::builder("s", "a\tb").build().is_err());
    }

    #[test]
    fn ctx_3_scope_configuration_wins_over_the_call_and_the_default() {
        let mut config = IdempotencyConfig::default();
        let ctx = IdempotencyContext::builder("payments", "k").lease(1_000 * MS).build().unwrap();
        assert_eq!(ctx.resolve(&config).lease, 1_000 * MS);
        assert_eq!(ctx.resolve(&config).ttl, config.default_ttl);
        let own = ScopeConfig { lease: Some(5_000 * MS), ..Default::default() };
        config.scopes.insert("payments".into(), own);
        assert_eq!(ctx.resolve(&config).lease, 5_000 * MS);
        assert_eq!(ctx.resolve(&config).wait, config.default_wait_timeout);
    }
}
