// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`StoreClient`]: the store as the engine sees it. A circuit breaker counts the answers, every
//! error names its call (STO-5), and each call is reported to the observers (RUN-8). The `*_call`
//! methods set no time limit, count nothing and report nothing, because their callers do all three.
//!
//! This file is over 400 lines long because all calls of the store share the circuit breaker.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;

use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::{Identity, Scope};
use crate::lock::Mutex;
use crate::observe::{Observers, StoreCallEvent};
use crate::owner::{FencingToken, OwnerId};
use crate::store::{
    AcquireRequest, Acquired, Completion, DynStore, FencedWrite, Peeked, SharedStore, StoreCall,
    StoreProfile,
};

/// The number of failures in a row after which only one call at a time tries the store.
const FAILURES: u32 = 5;

/// The operation that is not reported to observers, because its duration depends only on the
/// holder.
const WAIT: &str = "wait_for_change";

/// The engine's store with its limits, the clock that times leases, and the observers of leases.
pub(super) struct StoreClient {
    shared: SharedStore,
    store: Arc<dyn DynStore>,
    profile: StoreProfile,
    immediate: bool,
    /// Whether the warning that the store rounds durations up has been logged.
    warned: AtomicBool,
    guards: bool,
    operation_timeout: Duration,
    breaker: CircuitBreaker,
    clock: Arc<dyn Clock>,
    /// When the last purge round without an error ended.
    last_purge: Mutex<Option<Instant>>,
    pub(super) observers: Observers,
}

impl StoreClient {
    pub(super) fn new(
        shared: SharedStore,
        operation_timeout: Duration,
        clock: Arc<dyn Clock>,
        observers: Observers,
    ) -> Self {
        let store = shared.as_dyn();
        let profile = store.dyn_profile();
        // A store with sealed results is never immediate, because each call first waits for the
        // key that seals them (SEAL-2).
        let immediate = profile.immediate && !shared.seals();
        Self {
            shared,
            store,
            profile,
            immediate,
            warned: AtomicBool::new(false),
            guards: true,
            operation_timeout,
            breaker: CircuitBreaker::default(),
            clock,
            last_purge: Mutex::default(),
            observers,
        }
    }

    /// Creates a second client, which sends its calls to `store`. That store grants every call
    /// (CTX-5, CTX-6). The second client has the same time limits, clock and observers as the
    /// first. It also has the same [`shared`](Self::shared) store, so that a transaction on the
    /// wrong database is still refused.
    pub(super) fn unguarded(&self, store: Arc<dyn DynStore>) -> Self {
        let mut profile = store.dyn_profile();
        profile.min_duration = self.profile.min_duration;
        profile.max_duration = self.profile.max_duration;
        profile.resolution = self.profile.resolution;
        Self {
            shared: self.shared.clone(),
            store,
            immediate: profile.immediate,
            profile,
            warned: AtomicBool::new(false),
            guards: false,
            operation_timeout: self.operation_timeout,
            breaker: CircuitBreaker::default(),
            clock: Arc::clone(&self.clock),
            last_purge: Mutex::default(),
            observers: self.observers.clone(),
        }
    }

    /// Accepts durations of any length, for a store that keeps no records itself.
    pub(super) fn for_any_duration(mut self) -> Self {
        (self.profile.min_duration, self.profile.max_duration) = (Duration::ZERO, Duration::MAX);
        self
    }

    /// Whether the store guards its calls. The result is `false` for a scope that is switched off
    /// (CTX-5) or in shadow mode (CTX-6).
    #[inline]
    pub(super) fn guards(&self) -> bool {
        self.guards
    }

    /// Returns the store with its capabilities.
    pub(super) fn shared(&self) -> &SharedStore {
        &self.shared
    }

    #[inline]
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn note_purge(&self, ended: Instant) {
        *self.last_purge.lock() = Some(ended);
    }

    /// Returns the time since the last purge round without an error.
    pub(super) fn purged_ago(&self) -> Option<Duration> {
        let ended = *self.last_purge.lock();
        ended.map(|ended| self.now().saturating_duration_since(ended))
    }

    /// Whether the store answers a call at its first poll.
    pub(super) fn is_immediate(&self) -> bool {
        self.immediate
    }

    /// Returns the size of the largest value that the store accepts, in bytes (CMP-9).
    pub(super) fn max_value(&self) -> usize {
        self.profile.max_value
    }

    /// Returns the time limit of one call.
    pub(super) fn operation_timeout(&self) -> Duration {
        self.operation_timeout
    }

    /// Creates an owner id that is unique among all owners of the store's records (ACQ-9).
    pub(super) fn owner(&self) -> OwnerId {
        if self.immediate { OwnerId::of_this_process() } else { OwnerId::new() }
    }

    /// Refuses a call whose lease or ttl is shorter or longer than the store supports (STO-1).
    #[inline]
    pub(super) fn check(&self, identity: &Identity, lease: Duration, ttl: Duration) -> Result<()> {
        let StoreProfile { min_duration: min, max_duration: max, .. } = self.profile;
        if lease.max(ttl) > max {
            let text = "the ttl or the lease is longer than the store supports";
            return Err(refused(text, max, identity));
        }
        if lease.min(ttl) < min {
            let text = "the ttl or the lease is shorter than the store supports";
            return Err(refused(text, min, identity));
        }
        Ok(())
    }

    /// Rounds a lease and a ttl up to the store's steps (STO-1). Logs one warning for all calls of
    /// the engine that are affected.
    #[inline]
    pub(super) fn round_up(&self, scope: &Scope, lease: &mut Duration, ttl: &mut Duration) {
        let kept = (self.profile.round_up(*lease), self.profile.round_up(*ttl));
        if kept != (*lease, *ttl) {
            self.warn_of_rounding(scope, (*lease, *ttl), kept);
            (*lease, *ttl) = kept;
        }
    }

    #[cold]
    fn warn_of_rounding(
        &self,
        scope: &Scope,
        (lease, ttl): (Duration, Duration),
        (kept_lease, kept_ttl): (Duration, Duration),
    ) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %scope, ?lease, ?ttl, ?kept_lease, ?kept_ttl, step = ?self.profile.resolution,
                "the store keeps durations in larger steps than the lease or the ttl of a call, so \
                 the engine rounds them up; later calls are rounded up without a warning (STO-1)"
            );
        }
    }

    /// Admits an acquire or a peek through the circuit breaker.
    ///
    /// # Errors
    /// `Unavailable` while the store keeps failing and another call is probing it.
    #[inline]
    pub(super) fn admit(&self) -> Result<Admission<'_>> {
        self.breaker.admit(self.operation_timeout, || self.now())
    }

    /// Sends an acquire that the store answers in place, without a future on the heap. Returns
    /// `None` if the store is not [immediate](crate::store::StoreProfile::immediate), or did not
    /// answer immediately. The caller [counts](Self::count) the answer.
    #[inline]
    pub(super) fn acquire_in_place(
        &self,
        id: &Identity,
        request: &AcquireRequest,
    ) -> Option<Result<Acquired>> {
        if self.immediate { self.store.dyn_acquire_in_place(id, request) } else { None }
    }

    /// Creates an acquire call without a time limit. The caller sets a limit, finishes or cleans up
    /// the call (ACQ-11), and [counts](Self::count) the answer.
    pub(super) fn acquire_call(
        &self,
        id: &Identity,
        request: AcquireRequest,
    ) -> StoreCall<Acquired> {
        Arc::clone(&self.store).dyn_acquire(id.clone(), request)
    }

    pub(super) async fn peek(&self, id: &Identity, limit: Duration) -> Result<Peeked> {
        let call = Arc::clone(&self.store).dyn_peek(id.clone());
        self.bounded(limit, "peek", id, call).await
    }

    /// Waits until the store reports that the record may no longer be held under the token `seen`,
    /// but at most for `limit`. The answer of the store can take up to `operation-timeout` longer.
    pub(super) async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        limit: Duration,
    ) -> Result<()> {
        let bound = limit.saturating_add(self.operation_timeout);
        let call = Arc::clone(&self.store).dyn_wait_for_change(id.clone(), seen, limit);
        self.bounded(bound, WAIT, id, call).await
    }

    pub(super) async fn extend(
        &self,
        id: &Identity,
        owner: OwnerId,
        lease: Duration,
    ) -> Result<FencedWrite> {
        let call = self.extend_call(id, owner, lease);
        self.bounded(self.operation_timeout, "extend", id, call).await
    }

    /// Creates an extend call without a time limit. The heartbeat sets a limit and
    /// [counts](Self::count) the answer.
    pub(super) fn extend_call(
        &self,
        id: &Identity,
        owner: OwnerId,
        lease: Duration,
    ) -> StoreCall<FencedWrite> {
        Arc::clone(&self.store).dyn_extend(id.clone(), owner, lease)
    }

    /// Creates a completion call, for [`complete`](Self::complete) to await.
    pub(super) fn complete_call(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: Completion,
    ) -> StoreCall<FencedWrite> {
        Arc::clone(&self.store).dyn_complete(id.clone(), owner, done)
    }

    /// Sends a completion that the store answers in place, without a future on the heap. Returns
    /// `None` if the store did not answer immediately. The caller [counts](Self::count) the answer.
    pub(super) fn complete_in_place(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Option<Result<FencedWrite>> {
        self.store.dyn_complete_in_place(id, owner, done)
    }

    pub(super) async fn complete(
        &self,
        id: &Identity,
        call: StoreCall<FencedWrite>,
    ) -> Result<FencedWrite> {
        self.bounded(self.operation_timeout, "complete", id, call).await
    }

    pub(super) async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let call = self.release_call(id, owner);
        self.bounded(self.operation_timeout, "release", id, call).await
    }

    /// Creates a release call without a time limit, for a caller that polls it once.
    pub(super) fn release_call(&self, id: &Identity, owner: OwnerId) -> StoreCall<FencedWrite> {
        Arc::clone(&self.store).dyn_release(id.clone(), owner)
    }

    /// Runs one call until it is answered. The first poll needs no timer; the later polls have a
    /// time limit.
    async fn bounded<T>(
        &self,
        limit: Duration,
        operation: &'static str,
        identity: &Identity,
        mut call: StoreCall<T>,
    ) -> Result<T> {
        let began = self.call_began();
        // If the store answers at the first poll, the call needs no timer.
        let first = poll_fn(|cx| match call.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => Poll::Ready(None),
        });
        let answer = match first.await {
            Some(answer) => answer,
            None => in_time(limit, call).await,
        };
        if began.is_some() && operation != WAIT {
            self.called(operation, began, &answer);
        }
        self.count(&answer);
        answer.map_err(|error| error.during(operation).for_identity(identity))
    }

    /// Counts an answer in the circuit breaker.
    #[inline]
    pub(super) fn count<T>(&self, answer: &Result<T>) {
        match answer {
            Err(error) if error.kind() == ErrorKind::Unavailable => self.count_failure(),
            // Any other error is an answer from the store, and shows that the store is available.
            _ => {
                if self.breaker.answered() {
                    self.observers.tell(|o| o.circuit_closed());
                }
            }
        }
    }

    #[cold]
    fn count_failure(&self) {
        if self.breaker.failed() {
            self.observers.tell(|o| o.circuit_opened());
        }
    }

    /// Counts a call that was sent at `sent` and cut off unanswered.
    #[cold]
    pub(super) fn count_unanswered(&self, operation: &'static str, sent: Instant) {
        if !self.observers.is_empty() {
            self.report_call(operation, sent, Some(ErrorKind::Unavailable));
        }
        self.count_failure();
    }

    /// Returns the current time, or `None` without observers, because the call then need not be
    /// timed.
    #[inline]
    pub(super) fn call_began(&self) -> Option<Instant> {
        if self.observers.is_empty() { None } else { Some(self.now()) }
    }

    /// Reports a call that has ended to the observers (RUN-8).
    #[inline]
    pub(super) fn called<T>(
        &self,
        operation: &'static str,
        began: impl Into<Option<Instant>>,
        answer: &Result<T>,
    ) {
        if !self.observers.is_empty()
            && let Some(began) = began.into()
        {
            self.report_call(operation, began, answer.as_ref().err().map(Error::kind));
        }
    }

    #[cold]
    fn report_call(&self, operation: &'static str, began: Instant, error: Option<ErrorKind>) {
        if !self.guards {
            return;
        }
        let took = self.now().saturating_duration_since(began);
        let event = StoreCallEvent { store: self.profile.name, operation, took, error };
        self.observers.tell(|o| o.store_called(event));
    }
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClient").field("store", &self.shared).finish_non_exhaustive()
    }
}

/// Awaits a call. If there is no answer within `limit`, returns `Unavailable`.
pub(super) async fn in_time<T>(
    limit: Duration,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    timeout(limit, call).await.unwrap_or_else(|_| Err(no_answer(limit)))
}

#[cold]
fn refused(text: &'static str, limit: Duration, identity: &Identity) -> Error {
    Error::new(ErrorKind::Invalid, text)
        .with("limit", format_args!("{limit:?}"))
        .for_identity(identity)
}

#[cold]
pub(super) fn no_answer(limit: Duration) -> Error {
    Error::unavailable("the store did not answer in time").with("after", format_args!("{limit:?}"))
}

/// Counts failures in a row. After [`FAILURES`] failures, one call at a time tries the store, and
/// the others fail immediately.
#[derive(Debug, Default)]
struct CircuitBreaker {
    failures: AtomicU32,
    /// When the current probe of the store began.
    probing: Mutex<Option<Instant>>,
}

/// Permission for one store call, held until the store has answered.
#[derive(Debug)]
pub(super) struct Admission<'a> {
    /// The breaker and the start of the probe, if this call probes a failing store.
    probe: Option<(&'a CircuitBreaker, Instant)>,
}

impl CircuitBreaker {
    /// Admits a call. While the store keeps failing, admits only one call at a time, as a probe.
    /// After `limit`, a probe no longer counts, because its call may be in a future that is no
    /// longer polled.
    #[inline]
    fn admit(&self, limit: Duration, now: impl FnOnce() -> Instant) -> Result<Admission<'_>> {
        if self.failures.load(Ordering::Relaxed) < FAILURES {
            return Ok(Admission { probe: None });
        }
        self.probe(limit, now())
    }

    #[cold]
    fn probe(&self, limit: Duration, now: Instant) -> Result<Admission<'_>> {
        let mut probing = self.probing.lock();
        if probing.is_some_and(|since| now < since + limit) {
            return Err(Error::unavailable(
                "this call was not sent, because the store keeps failing; until the store \
                 recovers, only one call at a time is sent to it",
            ));
        }
        *probing = Some(now);
        Ok(Admission { probe: Some((self, now)) })
    }

    /// Notes an answer, and returns whether it closed the circuit.
    #[inline]
    fn answered(&self) -> bool {
        self.failures.load(Ordering::Relaxed) != 0 && self.recovered()
    }

    #[cold]
    fn recovered(&self) -> bool {
        self.failures.swap(0, Ordering::Relaxed) >= FAILURES
    }

    /// Notes a failure, and returns whether it opened the circuit.
    #[cold]
    fn failed(&self) -> bool {
        // The count saturates, because a count that wraps to 0 would close the circuit.
        let before = self
            .failures
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_add(1)));
        before == Ok(FAILURES - 1)
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if let Some((breaker, since)) = self.probe {
            // Clear only this admission's probe, because a later probe might be running.
            breaker.probing.lock().take_if(|probing| *probing == since);
        }
    }
}
