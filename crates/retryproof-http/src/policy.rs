// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Policy`]: scope and durations of one guarded endpoint, and which requests a layer guards.

use std::ops::Deref;
use std::time::Duration;

use http::Method;
use retryproof_core::config::StoredStatuses;

use crate::switches::PolicySwitches;

/// The settings of one endpoint. A setting that you leave out takes the configured default (CTX-3).
/// In a `const`, a value that is out of range does not compile.
///
/// ```
/// # use std::time::Duration;
/// use retryproof_http::Policy;
///
/// const REFUNDS: Policy = Policy::new("refunds").with_ttl(Duration::from_secs(86_400));
/// const _: () = assert!(REFUNDS.lease().is_none());
/// ```
/// # When to use
/// | to | use |
/// |---|---|
/// | keep records valid when the route changes | [`Policy::new`] with a scope |
/// | guard many routes with one layer | [`Policy::unnamed`]: each route has its own scope |
/// | replay responses for longer or shorter than a day | [`with_ttl`](Self::with_ttl) |
/// | run the work again sooner after a crash | [`with_lease`](Self::with_lease) with a lease shorter than the default of 30 s, but longer than any pause of the process |
/// | answer duplicates immediately with 409 | [`with_wait_timeout`](Self::with_wait_timeout) of zero |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Policy {
    scope: Option<&'static str>,
    ttl: Option<Duration>,
    lease: Option<Duration>,
    wait_timeout: Option<Duration>,
    stored: Option<StoredStatuses>,
    mismatch_status: Option<u16>,
    methods: Methods,
    unmatched: bool,
}

/// Which methods a layer guards (HTTP-1). An annotated endpoint guards every method for which it is
/// mounted.
/// ```
/// use retryproof_http::{Methods, Policy};
///
/// // This API's DELETE can be repeated anyway, so it needs no key.
/// const PAYMENTS: Policy = Policy::new("payments").methods(Methods::Only(&["POST", "PATCH"]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Methods {
    /// Every method except GET, HEAD, OPTIONS and TRACE, which change nothing.
    #[default]
    Changing,
    /// Every method.
    All,
    /// Only these methods, in capitals and compared byte for byte: `Only(&["POST", "PATCH"])`.
    Only(&'static [&'static str]),
}

impl Policy {
    /// Creates a policy with a named scope, so that its records survive a change of the route.
    ///
    /// # Panics
    /// Panics if the scope is blank, over 255 bytes, or has an ASCII control character (ID-3).
    pub const fn new(scope: &'static str) -> Self {
        assert!(
            is_scope(scope.as_bytes()),
            "a scope must have 1 to 255 bytes, and must not be blank or contain control characters"
        );
        Self { scope: Some(scope), ..Self::unnamed() }
    }

    /// Creates a policy whose scope is the method and the matched route: `POST /orders/{}`
    /// (HTTP-16). Without a matched route, the scope of a gRPC call is its method, and any other
    /// request gets 500 `scope-invalid`.
    pub const fn unnamed() -> Self {
        Self {
            scope: None,
            ttl: None,
            lease: None,
            wait_timeout: None,
            stored: None,
            mismatch_status: None,
            methods: Methods::Changing,
            unmatched: false,
        }
    }

    /// Sets how long the response is kept after completion.
    ///
    /// # Panics
    /// Panics if the ttl is not between 1 ms and 3,650 days (CTX-2).
    pub const fn with_ttl(mut self, ttl: Duration) -> Self {
        assert!(within(ttl, 1, 3_650 * 86_400), "a ttl must be between 1 ms and 3,650 days");
        self.ttl = Some(ttl);
        self
    }

    /// Sets how long a holder that stopped extending its lease keeps the key.
    ///
    /// # Panics
    /// Panics if the lease is not between 10 ms and 24 h (CTX-2).
    pub const fn with_lease(mut self, lease: Duration) -> Self {
        assert!(within(lease, 10, 86_400), "a lease must be between 10 ms and 24 h");
        self.lease = Some(lease);
        self
    }

    /// Sets how long a duplicate waits for the holder. With zero, a duplicate does not wait.
    ///
    /// # Panics
    /// Panics if the wait timeout is over 24 h (CTX-2).
    pub const fn with_wait_timeout(mut self, wait: Duration) -> Self {
        assert!(within(wait, 0, 86_400), "a wait timeout must be at most 24 h");
        self.wait_timeout = Some(wait);
        self
    }

    /// Sets the error statuses whose unmarked responses are stored; by default, all of them
    /// (HTTP-19). A response with any other error status frees its key, and **the next request runs
    /// the work again**. A mark or the filter's [`fate`](crate::FilterBuilder::fate) hook takes
    /// precedence.
    /// ```
    /// use retryproof_core::config::StoredStatuses;
    /// use retryproof_http::Policy;
    ///
    /// // These handlers answer with a 5xx only if they have done nothing.
    /// const QUOTES: Policy =
    ///     Policy::new("quotes").with_stored(StoredStatuses::SUCCESSES.with_client_errors());
    /// ```
    pub const fn with_stored(mut self, stored: StoredStatuses) -> Self {
        self.stored = Some(stored);
        self
    }

    /// Sets the status of the response if the key was used with a different request; 422 by default
    /// (HTTP-20). Over gRPC the status is always `INVALID_ARGUMENT`.
    ///
    /// # Panics
    /// Panics if the status is neither 409 nor 422.
    pub const fn with_mismatch_status(mut self, status: u16) -> Self {
        assert!(matches!(status, 409 | 422), "the status of a mismatch must be 409 or 422");
        self.mismatch_status = Some(status);
        self
    }

    /// Sets the methods that a layer guards; [`Methods::Changing`] by default (HTTP-1). A layer
    /// passes on all other requests. An annotated handler inside the layer still guards them.
    ///
    /// # Panics
    /// Panics if [`Methods::Only`] names no method, or has a name that is empty or not in capitals.
    pub const fn methods(mut self, methods: Methods) -> Self {
        if let Methods::Only(names) = methods {
            assert!(
                are_methods(names),
                "`Methods::Only` needs at least one method, and each name must be in capital \
                 letters"
            );
        }
        self.methods = methods;
        self
    }

    /// Makes a layer also guard requests for which the router found no route. By default, such a
    /// request passes unguarded (HTTP-1). Use this setting for a fallback that performs work, such
    /// as a proxy. The policy then needs a named scope, because there is no route to serve as the
    /// scope.
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// # use retryproof_core::IdempotencyEngine;
    /// # use retryproof_memory::MemoryStore;
    /// use axum::Router;
    /// use retryproof_http::{IdempotencyFilter, Policy};
    ///
    /// async fn forward() -> &'static str {
    ///     "from the service behind this proxy"
    /// }
    ///
    /// # let engine = IdempotencyEngine::new(MemoryStore::new());
    /// let filter = IdempotencyFilter::builder(engine).callers_share_keys().build()?;
    /// let policy = Policy::new("proxy").with_unmatched();
    /// let proxy: Router = Router::new().fallback(forward).layer(filter.guard(policy));
    /// # }
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
    pub const fn with_unmatched(mut self) -> Self {
        self.unmatched = true;
        self
    }

    /// Returns the named scope; `None` means that method and route are the scope.
    #[must_use]
    pub const fn scope(&self) -> Option<&'static str> {
        self.scope
    }

    /// Returns the ttl; `None` means the configured default.
    #[must_use]
    pub const fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// Returns the lease; `None` means the configured default.
    #[must_use]
    pub const fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// Returns the wait timeout; `None` means the configured default.
    #[must_use]
    pub const fn wait_timeout(&self) -> Option<Duration> {
        self.wait_timeout
    }
}

/// Like [`Policy::unnamed`].
impl Default for Policy {
    fn default() -> Self {
        Self::unnamed()
    }
}

/// The policy of a guard. A layer holds the policy by value: axum clones the layer's service for
/// each request, and a shared policy would cost two more atomic operations.
#[derive(Debug, Clone, Copy)]
pub enum GuardPolicy {
    /// The policy of an annotated handler.
    Endpoint(&'static Policy),
    /// The policy of a layer.
    Layer(Policy),
}

/// The part of a policy that applies to an admitted request. This type is smaller than the policy,
/// because a request's futures hold it, and allocations of 1,032 bytes or more are slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTerms {
    pub(crate) scope: Option<&'static str>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) wait_timeout: Option<Duration>,
    pub(crate) switches: PolicySwitches,
    /// Whether a layer guards the call. If so, a router can respond in place of the handler
    /// (HTTP-1).
    pub(crate) is_layered: bool,
}

impl GuardPolicy {
    pub(crate) fn terms(&self) -> CallTerms {
        let Policy { scope, ttl, lease, wait_timeout, stored, mismatch_status, .. } = **self;
        let switches = PolicySwitches { stored, mismatch_status };
        let is_layered = matches!(self, Self::Layer(_));
        CallTerms { scope, ttl, lease, wait_timeout, switches, is_layered }
    }

    /// Whether requests with this method are guarded.
    pub(crate) fn guards<'a>(&self, method: impl FnOnce() -> &'a Method) -> bool {
        match self {
            Self::Endpoint(_) => true,
            Self::Layer(policy) => match policy.methods {
                Methods::Changing => !matches!(
                    *method(),
                    Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE
                ),
                Methods::All => true,
                Methods::Only(names) => names.contains(&method().as_str()),
            },
        }
    }

    /// Whether a request passes unguarded if the router found no route for it.
    pub(crate) fn passes_unmatched(&self) -> bool {
        matches!(self, Self::Layer(policy) if !policy.unmatched)
    }
}

impl Deref for GuardPolicy {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        match self {
            Self::Endpoint(policy) => policy,
            Self::Layer(policy) => policy,
        }
    }
}

const fn are_methods(names: &[&str]) -> bool {
    let mut at = 0;
    while at < names.len() {
        let name = names[at].as_bytes();
        let mut byte = 0;
        while byte < name.len() {
            if !name[byte].is_ascii_graphic() || name[byte].is_ascii_lowercase() {
                return false;
            }
            byte += 1;
        }
        if name.is_empty() {
            return false;
        }
        at += 1;
    }
    !names.is_empty()
}

const fn within(duration: Duration, least_millis: u128, most_secs: u64) -> bool {
    duration.as_millis() >= least_millis
        && (duration.as_secs() < most_secs
            || (duration.as_secs() == most_secs && duration.subsec_nanos() == 0))
}

/// Checks the part of ID-3 that a `const fn` can check. The engine checks the whole rule later.
const fn is_scope(scope: &[u8]) -> bool {
    let mut blank = true;
    let mut at = 0;
    while at < scope.len() {
        if scope[at].is_ascii_control() {
            return false;
        }
        blank = blank && scope[at] == b' ';
        at += 1;
    }
    !blank && scope.len() <= 255
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    const MS: Duration = Duration::from_millis(1);
    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn ctx_2_bounds_are_exact() {
        let policy =
            Policy::new("s").with_ttl(MS).with_lease(10 * MS).with_wait_timeout(Duration::ZERO);
        assert_eq!(
            (policy.ttl(), policy.lease(), policy.wait_timeout()),
            (Some(MS), Some(10 * MS), Some(Duration::ZERO))
        );
        let _ = Policy::new("s").with_ttl(3_650 * DAY).with_lease(DAY).with_wait_timeout(DAY);
        for refused in [
            (|| Policy::unnamed().with_ttl(Duration::from_micros(999))) as fn() -> Policy,
            || Policy::unnamed().with_ttl(3_650 * DAY + Duration::from_nanos(1)),
            || Policy::unnamed().with_lease(Duration::from_micros(9_999)),
            || Policy::unnamed().with_lease(DAY + Duration::from_nanos(1)),
            || Policy::unnamed().with_wait_timeout(DAY + Duration::from_nanos(1)),
        ] {
            assert!(catch_unwind(refused).is_err());
        }
    }

    #[test]
    fn http_1_methods_are_named_in_capitals() {
        const SOME: Policy = Policy::new("s").methods(Methods::Only(&["POST", "M-SEARCH"]));
        assert_eq!(SOME.methods, Methods::Only(&["POST", "M-SEARCH"]));
        for names in [&[] as &'static [&'static str], &["post"], &["POST", ""], &["PO ST"]] {
            assert!(
                catch_unwind(|| Policy::new("s").methods(Methods::Only(names))).is_err(),
                "{names:?}"
            );
        }
    }

    #[test]
    fn http_20_a_mismatch_is_a_conflict_or_unprocessable() {
        for status in [409, 422] {
            let policy = Policy::new("s").with_mismatch_status(status);
            assert_eq!(policy.mismatch_status, Some(status));
        }
        for status in [0, 200, 400, 410, 423, 500] {
            assert!(
                catch_unwind(|| Policy::new("s").with_mismatch_status(status)).is_err(),
                "{status}"
            );
        }
    }

    #[test]
    fn id_3_a_scope_out_of_bounds_is_refused() {
        for scope in ["", "  ", "a\n"] {
            assert!(catch_unwind(|| Policy::new(scope)).is_err(), "{scope:?}");
        }
        let long: &'static str = "s".repeat(256).leak();
        assert!(catch_unwind(|| Policy::new(long)).is_err());
        assert_eq!(Policy::new(&long[..255]).scope(), Some(&long[..255]));
        assert_eq!(Policy::default().scope(), None);
    }
}
