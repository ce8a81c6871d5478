// SPDX-License-Identifier: MIT OR Apache-2.0
//! The middleware's settings. `build` refuses invalid values.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderName;

use super::IdempotencyMiddleware;
use crate::error::{CallError, ErrorKind};

/// The longest duration that a setting accepts.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) type Bits = Arc<dyn Fn() -> u64 + Send + Sync>;
pub(crate) type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Settings of an [`IdempotencyMiddleware`]; start with [`IdempotencyMiddleware::builder`].
#[derive(Clone)]
#[must_use]
pub struct Builder {
    pub(crate) attempts: u32,
    pub(crate) deadline: Duration,
    pub(crate) attempt_timeout: Duration,
    pub(crate) backoff_base: Duration,
    pub(crate) backoff_cap: Duration,
    pub(crate) header: HeaderName,
    pub(crate) quoted_keys: bool,
    pub(crate) given_keys_only: bool,
    pub(crate) held_bytes: usize,
    pub(crate) bits: Bits,
    pub(crate) wall_clock: WallClock,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            attempts: 8,
            deadline: Duration::from_secs(60),
            attempt_timeout: Duration::from_secs(20),
            backoff_base: Duration::from_millis(200),
            backoff_cap: Duration::from_secs(5),
            header: HeaderName::from_static("idempotency-key"),
            quoted_keys: false,
            given_keys_only: false,
            held_bytes: 8 << 20,
            bits: Arc::new(random_bits),
            wall_clock: Arc::new(wall_clock),
        }
    }

    /// Sets the maximum number of attempts, including the first. With 1, the middleware never
    /// retries. Default: 8.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Sets the time limit for a call with all its attempts and pauses, at most a day. Default: 60
    /// s. The default exceeds the lease of a server that died (30 s by default) plus the wait of
    /// the server that takes over (10 s by default).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the time limit for one attempt, from connecting until the middleware returns the
    /// answer. The limit covers the part of the body that the middleware collects, but not the part
    /// that the caller reads as a stream. Set this limit above the server's wait timeout for
    /// duplicates (10 s by default). Otherwise the attempt ends before the server's 409 arrives.
    /// Default: 20 s.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = timeout;
        self
    }

    /// Sets the random pause before a retry: between zero and a ceiling that starts at `base` and
    /// doubles up to `cap`. The pause is added to `Retry-After`. Defaults: 200 ms, 5 s.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        (self.backoff_base, self.backoff_cap) = (base, cap);
        self
    }

    /// Sets the header that carries the key. It must match the server's `web.key-header`. Default:
    /// `Idempotency-Key`.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// Sends every key in quotation marks, as an RFC 9651 String. The draft of the
    /// `Idempotency-Key` header requires this form, and some servers accept no other. Servers
    /// guarded by `retryproof` accept both forms of a key. By default, a key is quoted only if it
    /// contains a space or a comma, or begins with a quotation mark.
    pub fn quoted_keys(mut self) -> Self {
        self.quoted_keys = true;
        self
    }

    /// Never generates a key: a call that needs a key but has none is refused. Use this setting for
    /// clients inside guarded actions. There, a generated key would differ in every run, and would
    /// not protect the call.
    pub fn given_keys_only(mut self) -> Self {
        self.given_keys_only = true;
        self
    }

    /// Sets the maximum number of bytes of an answer's body that the middleware collects before it
    /// returns the answer. The rest arrives as a stream. If the connection breaks during the rest,
    /// the caller gets the error. Default: 8 MiB, the largest answer that a server stores by
    /// default.
    pub fn held_bytes(mut self, bytes: usize) -> Self {
        self.held_bytes = bytes;
        self
    }

    /// Sets the source of random bits for the pauses, for tests. Default: the operating system.
    /// Keys always use the random bits of the operating system.
    pub fn jitter_source(mut self, bits: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.bits = Arc::new(bits);
        self
    }

    /// Sets the wall clock, for tests. The wall clock is used only for a `Retry-After` date in an
    /// answer without a `Date`. Everything else uses tokio's clock, which tests can pause.
    pub fn wall_clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.wall_clock = Arc::new(now);
        self
    }

    /// Builds the middleware.
    /// # Errors
    /// [`ErrorKind::Config`] if `attempts` is 0, `deadline` or `attempt_timeout` is zero, a
    /// duration exceeds one day, or the backoff's base exceeds its cap.
    pub fn build(self) -> Result<IdempotencyMiddleware, CallError> {
        let refuse = |detail: String| Err(CallError::new(ErrorKind::Config, detail));
        if self.attempts == 0 {
            return refuse("`attempts` cannot be 0; to turn off retries, use 1".to_owned());
        }
        for (name, time) in [("deadline", self.deadline), ("attempt_timeout", self.attempt_timeout)]
        {
            if time.is_zero() || time > LONGEST {
                return refuse(format!(
                    "`{name}` is {time:?}, but must be above 0 and at most one day"
                ));
            }
        }
        if self.backoff_base > self.backoff_cap || self.backoff_cap > LONGEST {
            let (base, cap) = (self.backoff_base, self.backoff_cap);
            return refuse(format!(
                "the base of the backoff is {base:?} and its cap is {cap:?}; the base must not \
                 exceed the cap, and the cap must not exceed one day"
            ));
        }
        Ok(IdempotencyMiddleware::with(self))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("attempts", &self.attempts)
            .field("deadline", &self.deadline)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("backoff", &(self.backoff_base..=self.backoff_cap))
            .field("header", &self.header)
            .field("quoted_keys", &self.quoted_keys)
            .field("given_keys_only", &self.given_keys_only)
            .field("held_bytes", &self.held_bytes)
            .finish_non_exhaustive()
    }
}

/// Returns 64 random bits. If the operating system provides none, all bits are ones: the pause then
/// has its full length, so the retry does not come too early.
fn random_bits() -> u64 {
    let mut bits = [0; 8];
    getrandom::fill(&mut bits).map_or(u64::MAX, |()| u64::from_le_bytes(bits))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the only place where this crate reads the wall clock"
)]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
