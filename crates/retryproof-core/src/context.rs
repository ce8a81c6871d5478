// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdempotencyContext`]: the identity and the settings of one call (CTX-1 to CTX-3).

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::config::{IdempotencyConfig, LEASE_BOUNDS, TTL_BOUNDS, WAIT_BOUNDS};
use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint::{Comparable, Fingerprint, have_one_algorithm};
use crate::identity::{Identity, IntoScope, Key};

/// One call's identity, durations and fingerprint, checked once by
/// [`build`](ContextBuilder::build).
///
/// # When to use
/// Build a context for each call to [`execute`](crate::IdempotencyEngine::execute) or
/// [`try_acquire`](crate::IdempotencyEngine::try_acquire). The key must come from the caller and
/// stay the same across retries. With a new key for each attempt, a retry would run the work again.
/// Add a fingerprint if a caller could reuse a key for a different request.
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
    comparable: Comparable,
    subject: Option<SubjectName>,
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
            comparable: have_one_algorithm,
            subject: None,
        }
    }

    /// Returns the call's identity: its scope and its key.
    #[must_use]
    #[inline]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn map_identity(&mut self, map: impl FnOnce(Identity) -> Identity) {
        self.identity = map(self.identity.clone());
    }

    /// Returns the call's fingerprint.
    #[must_use]
    #[inline]
    pub fn fingerprint(&self) -> Option<&Fingerprint> {
        self.fingerprint.as_ref()
    }

    /// Returns the person or tenant whom the call's result is about (SEAL-3).
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_ref().map(|subject| &*subject.0)
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub(crate) fn comparable(&self) -> Comparable {
        self.comparable
    }

    /// Resolves the call's durations (CTX-3). The scope's configuration overrides the call, and the
    /// call overrides the default.
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
            guarding: scope.map_or(Guarding::On, |s| match (s.enabled, s.shadow) {
                (Some(false), _) => Guarding::Off,
                (_, Some(true)) => Guarding::Shadow,
                _ => Guarding::On,
            }),
            judges_in_flight: scope.and_then(|s| s.fingerprint_while_in_flight).unwrap_or(false),
        };
        if durations.lease < Duration::from_secs(1) {
            static WARNED: AtomicBool = AtomicBool::new(false);
            if !WARNED.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    scope = %self.identity.scope(), lease = ?durations.lease,
                    "the lease of a call is shorter than 1 s, so a short pause of the process is \
                     enough to lose the lease; use a lease of 1 s or more (logged once, CTX-2)"
                );
            }
        }
        durations
    }
}

/// The durations that apply to a call after overrides and defaults are resolved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durations {
    pub(crate) ttl: Duration,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    /// How the scope is guarded.
    pub(crate) guarding: Guarding,
    /// Whether fingerprints are compared while the first call still runs (FP-6).
    pub(crate) judges_in_flight: bool,
}

impl Durations {
    /// Whether the store compares fingerprints while the first call still runs. If the fingerprints
    /// differ, the duplicate is refused (FP-6) or, in shadow mode, counted as one that the guard
    /// would have refused (CTX-6).
    #[inline]
    pub(crate) fn compares_in_flight(&self) -> bool {
        self.judges_in_flight || self.guarding == Guarding::Shadow
    }
}

/// How the calls of a scope are guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guarding {
    On,
    /// The scope is switched off (CTX-5).
    Off,
    /// The scope is in shadow mode (CTX-6).
    Shadow,
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
    comparable: Comparable,
    subject: Option<SubjectName>,
}

impl ContextBuilder {
    /// Sets how long the store keeps the result after completion: 1 ms to 3,650 days. The default
    /// is `default-ttl` (24 h unless configured).
    #[inline]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets how long a holder keeps the key after its last heartbeat: 10 ms to 24 h. The default is
    /// `default-lease` (30 s unless configured).
    #[inline]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets how long a duplicate waits for the holder: up to 24 h. The default is `default-wait`
    /// (10 s unless configured). With a timeout of zero, the call checks once and never waits.
    #[inline]
    pub fn wait_timeout(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets the fingerprint, a digest of what the caller sent. A different request with the same
    /// key is then refused (FP-1). Its first byte must not be 0 (SEAL-6).
    #[inline]
    pub fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Sets how many bytes the caller keeps in memory while the call waits, for example the body of
    /// its request. The default is 0.
    ///
    /// If the call would raise the engine's total above `max-waiting-bytes`, it does not wait and
    /// returns `InFlight` immediately (ACQ-13). The limit does not apply to calls that need not
    /// wait.
    #[inline]
    pub fn held_bytes(mut self, bytes: usize) -> Self {
        self.held_bytes = bytes;
        self
    }

    /// Names the person or tenant whom the result is about. If the store has sealed results, the
    /// result is sealed with the key of this subject, and can no longer be read once that key is
    /// destroyed (SEAL-3, SEAL-4). Without a subject, the calls of a scope share a key. Other stores
    /// ignore the subject.
    #[inline]
    pub fn subject(mut self, subject: impl Into<Arc<str>>) -> Self {
        self.subject = Some(SubjectName(subject.into()));
        self
    }

    /// Sets a function that decides whether two fingerprints can be compared while the first call
    /// still runs (FP-6). By default, two fingerprints can be compared if they have the same
    /// algorithm.
    #[doc(hidden)]
    #[inline]
    pub fn comparable(mut self, comparable: fn(&Fingerprint, &Fingerprint) -> bool) -> Self {
        self.comparable = comparable;
        self
    }

    /// Checks all values and builds the context.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a scope or key that breaks ID-3, a duration outside the bounds of
    /// CTX-2, or a fingerprint that begins with the byte 0 (SEAL-6). No value is silently wrapped or
    /// clamped.
    #[inline]
    pub fn build(self) -> Result<IdempotencyContext> {
        let identity = self.identity?;
        within("ttl", self.ttl, &TTL_BOUNDS)?;
        within("lease", self.lease, &LEASE_BOUNDS)?;
        within("wait_timeout", self.wait, &WAIT_BOUNDS)?;
        if self.fingerprint.is_some_and(|fingerprint| fingerprint.is_hidden()) {
            return Err(reserved_fingerprint());
        }
        Ok(IdempotencyContext {
            identity,
            ttl: self.ttl,
            lease: self.lease,
            wait: self.wait,
            fingerprint: self.fingerprint,
            held_bytes: self.held_bytes,
            comparable: self.comparable,
            subject: self.subject,
        })
    }
}

/// The name of a data subject, which `Debug` does not show (SEAL-3).
#[derive(Clone)]
pub(crate) struct SubjectName(pub(crate) Arc<str>);

impl fmt::Debug for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[cold]
fn reserved_fingerprint() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "the fingerprint begins with the byte 0, which is reserved for fingerprints that the \
         engine has hidden; use another first byte, such as 128, or use `Fingerprint::of`",
    )
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
    fn seal_3_debug_shows_no_subject() {
        let builder = IdempotencyContext::builder("s", "k").subject("canary");
        assert!(!format!("{builder:?}").contains("canary"), "{builder:?}");
        let ctx = builder.build().unwrap();
        assert!(!format!("{ctx:?}").contains("canary"), "{ctx:?}");
        assert_eq!(ctx.subject(), Some("canary"));
    }

    /// The byte 0 marks a hidden fingerprint, so no other fingerprint may begin with it.
    #[test]
    fn seal_6_a_fingerprint_that_begins_with_zero_is_refused() {
        for bytes in [&[0][..], &7_u64.to_be_bytes(), &[0; 64]] {
            let fingerprint = Fingerprint::new(bytes).expect("stores read hidden fingerprints");
            let builder = IdempotencyContext::builder("s", "k").fingerprint(fingerprint);
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("begins with the byte 0"), "{error}");
        }
        let own = Fingerprint::new(&[1, 0]).unwrap();
        assert!(IdempotencyContext::builder("s", "k").fingerprint(own).build().is_ok());
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
