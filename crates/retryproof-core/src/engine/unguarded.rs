// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles the scopes that `scope."NAME".enabled = false` switches off (CTX-5). Calls of such a
//! scope take the same path as all other calls, but their store is [`UnguardedStore`], which grants
//! every call and keeps nothing. These calls neither depend on the configured store, nor wait for
//! another call, nor find a result.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::store_client::StoreClient;
use crate::clock::wall_clock_micros;
use crate::config::IdempotencyConfig;
use crate::error::Result;
use crate::identity::Identity;
use crate::owner::{FencingToken, OwnerId};
use crate::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, IdempotencyStore, Peeked,
    StoreProfile,
};

/// The shortest time between two warnings that calls run unguarded, in microseconds.
const REMINDER: u64 = 60_000_000;

/// Creates the client that replaces the store in the scopes that are switched off, and logs one
/// warning for each of them. Returns `None` if there is no such scope.
pub(super) fn stand_in(
    store: &StoreClient,
    config: &IdempotencyConfig,
) -> Option<Arc<StoreClient>> {
    let mut scopes: Vec<_> = config.disabled_scopes().collect();
    if scopes.is_empty() {
        return None;
    }
    scopes.sort_unstable();
    for scope in &scopes {
        tracing::warn!(
            scope,
            "this scope is switched off (`enabled = false`): its calls run unguarded, every retry \
             runs the work again, and nothing is recorded (CTX-5)"
        );
    }
    let unguarded = UnguardedStore::new(&scopes, wall_clock_micros());
    Some(Arc::new(store.unguarded(Arc::new(unguarded))))
}

/// A store that grants every acquire and keeps nothing.
#[derive(Debug)]
pub(super) struct UnguardedStore {
    scopes: Box<[SwitchedOff]>,
    last_token: AtomicU64,
}

/// A scope that is switched off, and its calls since the last warning.
#[derive(Debug)]
struct SwitchedOff {
    scope: Box<str>,
    calls: AtomicU64,
    /// The calls that the guard would have stopped. Only shadow mode counts these calls.
    stopped: AtomicU64,
    warned_at: AtomicU64,
}

impl UnguardedStore {
    pub(super) fn new(scopes: &[&str], now: u64) -> Self {
        let scopes = scopes.iter().map(|&scope| SwitchedOff {
            scope: scope.into(),
            calls: AtomicU64::new(0),
            stopped: AtomicU64::new(0),
            warned_at: AtomicU64::new(now),
        });
        Self { scopes: scopes.collect(), last_token: AtomicU64::new(0) }
    }

    /// Returns a token that no earlier call of this process got. Like a token of the SQL stores,
    /// this token is a time. If the scope is switched on again, its next tokens are therefore
    /// larger, unless the clocks differ.
    pub(super) fn token(&self, now: u64) -> FencingToken {
        let after = |last: u64| now.max(last.saturating_add(1));
        let last = self
            .last_token
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(after(last)));
        FencingToken::new(last.map_or(now, after))
    }

    /// Counts a call. If the next warning is due, returns the number of calls since the last
    /// warning, and how many of these calls the guard would have stopped.
    pub(super) fn count(&self, scope: &str, now: u64, stopped: bool) -> Option<(u64, u64)> {
        let off = self.scopes.iter().find(|off| *off.scope == *scope)?;
        off.calls.fetch_add(1, Ordering::Relaxed);
        off.stopped.fetch_add(u64::from(stopped), Ordering::Relaxed);
        let before = off.warned_at.load(Ordering::Relaxed);
        // Compare the absolute difference, because the wall clock can be set back.
        let is_due = now.abs_diff(before) >= REMINDER
            && off
                .warned_at
                .compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        is_due.then(|| (take(&off.calls), take(&off.stopped)))
    }
}

impl IdempotencyStore for UnguardedStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let now = wall_clock_micros();
        if let Some((calls, _)) = self.count(id.scope().as_str(), now, false) {
            tracing::warn!(
                scope = %id.scope(), calls,
                "calls in this scope have run unguarded since the last warning, because the scope \
                 is switched off (`enabled = false`); their retries run the work again (CTX-5)"
            );
        }
        Ok(Acquired::Granted(Grant::new(self.token(now), req.lease, false)))
    }

    async fn peek(&self, _: &Identity) -> Result<Peeked> {
        Ok(Peeked::Absent)
    }

    async fn wait_for_change(&self, _: &Identity, _: FencingToken, _: Duration) -> Result<()> {
        Ok(())
    }

    async fn extend(&self, _: &Identity, _: OwnerId, _: Duration) -> Result<FencedWrite> {
        Ok(FencedWrite::Applied)
    }

    async fn complete(&self, _: &Identity, _: OwnerId, _: &Completion) -> Result<FencedWrite> {
        Ok(FencedWrite::Applied)
    }

    async fn release(&self, _: &Identity, _: OwnerId) -> Result<FencedWrite> {
        Ok(FencedWrite::Applied)
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("none").with_immediate()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Waker};

    use super::*;

    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn ctx_5_ctx_6_a_warning_a_minute_counts_the_calls_of_each_scope() {
        let store = UnguardedStore::new(&["pay", "ship"], 0);
        assert_eq!(store.count("pay", 1, false), None);
        assert_eq!(store.count("pay", REMINDER - 1, true), None);
        assert_eq!(store.count("pay", REMINDER, false), Some((3, 1)));
        assert_eq!(store.count("pay", REMINDER + 1, true), None, "one warning a minute");
        assert_eq!(store.count("ship", REMINDER + 1, false), Some((1, 0)), "each has its own");
        assert_eq!(store.count("pay", 2 * REMINDER, false), Some((2, 1)));
        assert_eq!(store.count("pay", 0, false), Some((1, 0)), "the clock went back");
    }

    #[test]
    fn ctx_5_the_warning_of_a_minute_is_logged() {
        let (text, mut context) =
            (Arc::<Mutex<Vec<u8>>>::default(), Context::from_waker(Waker::noop()));
        let writer = Arc::clone(&text);
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || Shared(Arc::clone(&writer)))
            .finish();
        let store = UnguardedStore::new(&["pay"], 0);
        let id = Identity::of("pay", "canary").unwrap();
        let minute = Duration::from_secs(60);
        let request = AcquireRequest::new(OwnerId::new(), minute, minute);
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..3 {
                let granted = pin!(store.acquire(&id, &request)).poll(&mut context);
                assert!(matches!(granted, Poll::Ready(Ok(Acquired::Granted(_)))));
            }
        });
        // The store was created with time 0, so its last warning seems to be from 1970. The first
        // call therefore logs a warning.
        let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("have run unguarded since the last warning").count(), 1, "{text}");
        assert!(text.contains("WARN") && text.contains("scope=pay calls=1"), "{text}");
        assert!(!text.contains("canary"), "ID-4: {text}");
    }

    #[test]
    fn ctx_5_each_call_has_a_token_of_its_own() {
        let store = UnguardedStore::new(&["pay"], 0);
        let tokens = [7, 7, 3, 20].map(|now| store.token(now));
        assert_eq!(tokens, [7, 8, 9, 20].map(FencingToken::new));
    }
}
