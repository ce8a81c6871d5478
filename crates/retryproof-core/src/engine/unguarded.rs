// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scopes that `scope."NAME".enabled = false` switches off (CTX-5). Their calls take the same
//! path as all others, but their store is [`UnguardedStore`], which grants every call and keeps
//! nothing. So no call of such a scope depends on the store, waits for another call, or finds a
//! result.

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

/// How often the log repeats that calls run unguarded, in microseconds.
const REMINDER: u64 = 60_000_000;

/// Creates the stand-in for the store, with one warning for each scope that is switched off; `None`
/// if there is no such scope.
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
struct UnguardedStore {
    scopes: Box<[SwitchedOff]>,
    last_token: AtomicU64,
}

/// A scope that is switched off, and its calls since the last warning.
#[derive(Debug)]
struct SwitchedOff {
    scope: Box<str>,
    calls: AtomicU64,
    warned_at: AtomicU64,
}

impl UnguardedStore {
    fn new(scopes: &[&str], now: u64) -> Self {
        let scopes = scopes.iter().map(|&scope| SwitchedOff {
            scope: scope.into(),
            calls: AtomicU64::new(0),
            warned_at: AtomicU64::new(now),
        });
        Self { scopes: scopes.collect(), last_token: AtomicU64::new(0) }
    }

    /// A token that no earlier call of this process has. Like a token of the SQL stores it is the
    /// time, so if the scope is switched on again, its next tokens are larger, unless the clocks
    /// differ.
    fn token(&self, now: u64) -> FencingToken {
        let after = |last: u64| now.max(last.saturating_add(1));
        let last = self
            .last_token
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(after(last)));
        FencingToken::new(last.map_or(now, after))
    }

    /// Counts a call. Returns the calls since the last warning if the next warning is due.
    fn count(&self, scope: &str, now: u64) -> Option<u64> {
        let off = self.scopes.iter().find(|off| *off.scope == *scope)?;
        off.calls.fetch_add(1, Ordering::Relaxed);
        let before = off.warned_at.load(Ordering::Relaxed);
        // Compare the absolute difference, because the wall clock may go back.
        let is_due = now.abs_diff(before) >= REMINDER
            && off
                .warned_at
                .compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        is_due.then(|| off.calls.swap(0, Ordering::Relaxed))
    }
}

impl IdempotencyStore for UnguardedStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let now = wall_clock_micros();
        if let Some(calls) = self.count(id.scope().as_str(), now) {
            tracing::warn!(
                scope = %id.scope(), calls,
                "calls of this scope ran unguarded since the last warning, because it is switched \
                 off (`enabled = false`); their retries run the work again (CTX-5)"
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
    use super::*;

    #[test]
    fn ctx_5_a_warning_a_minute_counts_the_calls_of_each_scope() {
        let store = UnguardedStore::new(&["pay", "ship"], 0);
        assert_eq!(store.count("pay", 1), None);
        assert_eq!(store.count("pay", REMINDER - 1), None);
        assert_eq!(store.count("pay", REMINDER), Some(3));
        assert_eq!(store.count("pay", REMINDER + 1), None, "one warning a minute");
        assert_eq!(store.count("ship", REMINDER + 1), Some(1), "each scope has its own");
        assert_eq!(store.count("pay", 2 * REMINDER), Some(2));
        assert_eq!(store.count("pay", 0), Some(1), "the clock went back");
    }

    #[test]
    fn ctx_5_each_call_has_a_token_of_its_own() {
        let store = UnguardedStore::new(&["pay"], 0);
        let tokens = [7, 7, 3, 20].map(|now| store.token(now));
        assert_eq!(tokens, [7, 8, 9, 20].map(FencingToken::new));
    }
}
