// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles the scopes in shadow mode, `scope."NAME".shadow = true` (CTX-6). Calls of such a scope
//! use [`ShadowStore`], which grants every call. Before each grant, `ShadowStore` calls the
//! engine's store and notes what the guard would have done. Work that the guard would have run is
//! recorded, so that its duplicates are noticed.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use super::complete::release_until;
use super::store_client::{StoreClient, no_answer};
use super::tasks::Tasks;
use super::unguarded::UnguardedStore;
use crate::clock::wall_clock_micros;
use crate::config::IdempotencyConfig;
use crate::error::{ErrorKind, Result};
use crate::identity::Identity;
use crate::observe::ShadowVerdict;
use crate::owner::{FencingToken, OwnerId};
use crate::payload::{Opened, StoredResult, Tombstone};
use crate::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, IdempotencyStore, Peeked, StoreCall,
    StoreProfile,
};

/// The clients that replace the store in scopes in shadow mode.
pub(super) struct ShadowClients {
    /// Grants every call, and calls the engine's store to find out what the guard would have done.
    pub(super) watching: Arc<StoreClient>,
    /// Keeps nothing. Leases that the guard would not have granted use this client.
    pub(super) passing: Arc<StoreClient>,
}

/// Creates the two clients that serve the scopes in shadow mode, and logs one warning for each such
/// scope. Returns `None` if no scope is in shadow mode.
pub(super) fn stand_in(
    store: &Arc<StoreClient>,
    tasks: &Arc<Tasks>,
    config: &IdempotencyConfig,
) -> Option<ShadowClients> {
    let mut scopes: Vec<_> = config.shadowed_scopes().collect();
    if scopes.is_empty() {
        return None;
    }
    scopes.sort_unstable();
    for scope in &scopes {
        tracing::warn!(
            scope,
            "this scope is in shadow mode (`shadow = true`): every call runs, even a retry, and \
             the library only counts what the guard would have done (CTX-6)"
        );
    }
    let watching = ShadowStore {
        real: Arc::clone(store),
        tasks: Arc::clone(tasks),
        limit: store.operation_timeout() / 2,
        calls: UnguardedStore::new(&scopes, wall_clock_micros()),
    };
    let passing = UnguardedStore::new(&[], 0);
    Some(ShadowClients {
        watching: Arc::new(store.unguarded(Arc::new(watching)).for_any_duration()),
        passing: Arc::new(store.unguarded(Arc::new(passing)).for_any_duration()),
    })
}

/// A store that grants every acquire, and passes acquires and writes on to the engine's store.
/// Whatever the engine's store answers, the caller continues.
struct ShadowStore {
    real: Arc<StoreClient>,
    tasks: Arc<Tasks>,
    /// How long a caller waits for the engine's store. The limit is below `operation-timeout`, so
    /// that no call fails because the engine's store is slow.
    limit: Duration,
    calls: UnguardedStore,
}

impl ShadowStore {
    /// Sends an acquire to the engine's store.
    async fn ask(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let real = &self.real;
        real.check(id, req.lease, req.ttl)?;
        let admission = real.admit()?;
        let sent = real.now();
        let mut call = real.acquire_call(id, req.clone());
        let answer = match timeout(self.limit, call.as_mut()).await {
            Ok(answer) => {
                real.called("acquire", sent, &answer);
                real.count(&answer);
                if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
                    self.release_if_granted(id, req, None);
                }
                answer
            }
            Err(_) => {
                real.count_unanswered("acquire", sent);
                self.release_if_granted(id, req, Some(call));
                Err(no_answer(self.limit))
            }
        };
        drop(admission);
        answer
    }

    /// Cleans up in the background after an acquire whose outcome is unknown, because the guard
    /// would not have run a call without an answer (CTX-6, ACQ-11). If the acquire is `unanswered`,
    /// the store may have granted the lease already or grant it later. The lease is therefore
    /// released after `operation-timeout`, and again when the acquire has ended.
    fn release_if_granted(
        &self,
        id: &Identity,
        req: &AcquireRequest,
        unanswered: Option<StoreCall<Acquired>>,
    ) {
        let Ok(runtime) = Handle::try_current() else { return };
        let (real, id, owner) = (Arc::clone(&self.real), id.clone(), req.owner);
        let (limit, until) = (self.limit, real.now() + req.lease);
        self.tasks.end_in_background(&runtime, async move {
            if let Some(mut call) = unanswered {
                match timeout(limit, call.as_mut()).await {
                    Ok(Ok(Acquired::Complete(_) | Acquired::Busy(_))) => return,
                    Ok(_) => {}
                    Err(_) => {
                        let _ = release_until(&real, &id, owner, until).await;
                        let left = until.saturating_duration_since(real.now());
                        let _ = timeout(left, call).await;
                    }
                }
            }
            // Ignore a failure: at worst, the key stays taken until the lease runs out.
            let _ = release_until(&real, &id, owner, until).await;
        });
    }

    /// Returns what the guard would have done with a call that found this result. Waits until the
    /// result is opened, but no longer than `until`.
    async fn verdict_on(
        &self,
        id: &Identity,
        stored: StoredResult,
        req: &AcquireRequest,
        until: Instant,
    ) -> ShadowVerdict {
        let opening = self.real.shared().open_sealed(id, stored);
        match timeout_at(until, opening).await {
            Ok(Ok(stored)) => of_record(&stored, req),
            Ok(Err(error)) => ShadowVerdict::Refused(error.kind()),
            Err(_) => ShadowVerdict::Refused(ErrorKind::Unavailable),
        }
    }

    /// Awaits a call to the engine's store for at most the limit, and ignores the answer.
    async fn pass_on(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<FencedWrite>>,
    ) -> Result<FencedWrite> {
        let sent = self.real.now();
        if timeout(self.limit, call).await.is_err() {
            self.real.count_unanswered(operation, sent);
        }
        Ok(FencedWrite::Applied)
    }
}

impl IdempotencyStore for ShadowStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let until = Instant::now() + self.limit;
        let (mut grant, mut took_over) = (None, false);
        let verdict = match self.ask(id, req).await {
            Ok(Acquired::Granted(granted)) => {
                took_over = granted.took_over;
                grant = Some(granted.token);
                ShadowVerdict::Executed
            }
            Ok(Acquired::Complete(stored)) => self.verdict_on(id, stored, req, until).await,
            // If the fingerprints differ, the guard would have refused the call, immediately (FP-6)
            // or after a wait (FP-1).
            Ok(Acquired::Busy(lease)) if lease.mismatch => ShadowVerdict::Mismatch,
            Ok(Acquired::Busy(_)) => ShadowVerdict::InFlight,
            Err(error) => ShadowVerdict::Refused(error.kind()),
        };
        let now = wall_clock_micros();
        let stopped = verdict != ShadowVerdict::Executed;
        if let Some((calls, stopped)) = self.calls.count(id.scope().as_str(), now, stopped) {
            tracing::warn!(
                scope = %id.scope(), calls, stopped,
                "calls in this scope have run in shadow mode (`shadow = true`): `calls` counts \
                 them since the last warning, and `stopped` counts those that the guard would have \
                 stopped (CTX-6)"
            );
        }
        let token = grant.unwrap_or_else(|| self.calls.token(now));
        Ok(Acquired::Granted(Grant::new(token, req.lease, took_over).in_shadow(verdict)))
    }

    async fn peek(&self, _: &Identity) -> Result<Peeked> {
        Ok(Peeked::Absent)
    }

    async fn wait_for_change(&self, _: &Identity, _: FencingToken, _: Duration) -> Result<()> {
        Ok(())
    }

    /// Does not wait for the engine's store, because a heartbeat that took too long would end the
    /// caller's lease.
    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        if let Ok(runtime) = Handle::try_current() {
            let (real, id) = (Arc::clone(&self.real), id.clone());
            drop(runtime.spawn(async move { real.extend(&id, owner, lease).await }));
        }
        Ok(FencedWrite::Applied)
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        let real = &self.real;
        let mut done = done.clone();
        if done.value.len() > real.max_value() {
            done.value = Tombstone::new().into_envelope();
        }
        let call = real.complete_call(id, owner, done);
        self.pass_on("complete", real.complete(id, call)).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.pass_on("release", self.real.release(id, owner)).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("shadow")
    }
}

impl std::fmt::Debug for ShadowStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShadowStore").field("real", &self.real).finish_non_exhaustive()
    }
}

/// Returns what the guard would have done with a duplicate of a finished call. Fingerprints that
/// only the filter can compare count as equal (FP-3, FP-5).
fn of_record(stored: &StoredResult, req: &AcquireRequest) -> ShadowVerdict {
    let own = req.revealed_fingerprint();
    let comparable = match (own, stored.fingerprint()) {
        (Some(own), Some(theirs)) if !req.comparable.is_none_or(|can| can(&own, theirs)) => None,
        _ => own,
    };
    match stored.open(comparable.as_ref()) {
        Ok(Opened::Value(_)) => ShadowVerdict::Replayed,
        Ok(Opened::Tombstone(_)) => ShadowVerdict::NotReplayable,
        Ok(Opened::Mismatch) => ShadowVerdict::Mismatch,
        Err(error) => ShadowVerdict::Refused(error.kind()),
    }
}
