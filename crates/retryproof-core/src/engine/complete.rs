// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ways in which a lease ends: it is completed, released, left to run out, or dropped. A
//! completion or a release is repeated while its outcome is unknown (CMP-1 to CMP-4, CMP-9, RUN-3
//! to RUN-5).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;
use tracing::Instrument as _;

use super::lease::{HeldLease, Lease, LeaseState};
use super::outcome_event::{self, End};
use super::span;
use super::store_client::StoreClient;
use super::tasks::DetachOnDrop;
use crate::backoff::Backoff;
use crate::blob::Blob;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::observe::Phase;
use crate::owner::OwnerId;
use crate::payload::{Payload, Tombstone};
use crate::store::{FencedWrite, StoreCall};

mod record;

pub(super) use record::Record;

/// The pauses between repetitions of a completion or a release.
const REPEAT: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));

/// How a completion ended.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum CompletionResult {
    /// The store has the result.
    Recorded,
    /// The value, or the detail of a tombstone, is too large for the store. A tombstone without
    /// detail is recorded instead (CMP-9).
    Tombstoned(Error),
    /// The completion was refused, because another owner had taken over or the record was gone.
    /// Nothing was stored (CMP-2).
    NotOwner,
    /// The transaction of a joined completion was rolled back, with all writes in it. The key
    /// becomes free at the latest when the lease ends (CMP-7).
    RolledBack(Error),
    /// The store did not confirm the completion (CMP-4). If a repetition can help, the completion
    /// continues in the background until the lease is over (CMP-3).
    Unconfirmed(Error),
}

impl HeldLease {
    /// Records the result (CMP-1): ends the heartbeat, sends the completion, and repeats the
    /// completion if the store does not answer (CMP-3).
    ///
    /// The result is recorded whether the returned future is awaited or dropped (RUN-5). A memory
    /// store usually has the result when this method returns. Any other store gets the result when
    /// the future is first polled or dropped. Until then, the heartbeat continues.
    ///
    /// # Cancel safety
    /// If the future is dropped, polled or not, the completion is finished in the background
    /// (RUN-5).
    pub fn complete(
        self,
        value: Payload,
    ) -> impl Future<Output = CompletionResult> + Send + 'static {
        self.record(value.into_envelope(), false)
    }

    /// Records that the work is done and that its result cannot be replayed (CMP-9, HTTP-13).
    ///
    /// # Cancel safety
    /// Same as [`complete`](Self::complete).
    pub fn complete_tombstone(
        self,
        tombstone: Tombstone,
    ) -> impl Future<Output = CompletionResult> + Send + 'static {
        self.record(tombstone.into_envelope(), true)
    }

    /// Records a value or a tombstone. This is not an `async fn`, because an `async fn` would do
    /// nothing before its first poll.
    pub(super) fn record(
        mut self,
        envelope: Blob,
        is_tombstone: bool,
    ) -> impl Future<Output = CompletionResult> + Send + 'static {
        self.consumed = true;
        let record = Record::new(&self, envelope, is_tombstone);
        let rest = match complete_in_place(&self.lease, &record) {
            FirstTry::Recorded => None,
            FirstTry::Unfinished(answer) => {
                Some(self.detach(complete_until_over(self.lease.clone(), record, answer)))
            }
        };
        async move {
            let Some(rest) = rest else { return CompletionResult::Recorded };
            let state = &self.lease.0;
            // The rest of the completion is boxed. An unboxed future would enlarge the future of
            // every call, even to a memory store.
            let rest = rest.within(state.store.operation_timeout(), "complete", &state.identity);
            Box::pin(rest.instrument(span::of_completion()))
                .await
                .unwrap_or_else(CompletionResult::Unconfirmed)
        }
    }

    /// Frees the key (RUN-4), so that the next caller finds an unused key.
    ///
    /// # Errors
    /// An error means that the store did not confirm the release. The release then continues in the
    /// background until the lease is over.
    ///
    /// # Cancel safety
    /// If the future is dropped, polled or not, the release is finished in the background (RUN-5).
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.release_after(Phase::Released)
    }

    /// Like [`release`](Self::release), but also reports to observers why the work failed. Adapters
    /// that run the work themselves call this method, because only they can distinguish an error
    /// from a panic. If the work called [`hold_on_error`](Lease::hold_on_error), and `phase` is not
    /// `Released`, the lease runs out instead.
    ///
    /// # Errors
    /// Same as [`release`](Self::release).
    ///
    /// # Cancel safety
    /// Same as [`release`](Self::release).
    pub fn release_after(
        mut self,
        phase: Phase,
    ) -> impl Future<Output = Result<()>> + Send + 'static {
        // An explicit release frees the key even after `hold_on_error`.
        let releasing = if phase != Phase::Released && self.lease.holds_on_error() {
            self.let_run_out(Phase::Held);
            None
        } else {
            self.consumed = true;
            self.lease.0.end(End::Failed(phase));
            Some(self.detach(release_until_over(self.lease.clone())))
        };
        async move {
            let Some(releasing) = releasing else { return Ok(()) };
            let state = &self.lease.0;
            let limit = state.store.operation_timeout();
            releasing.within(limit, "release", &state.identity).await?.map(drop)
        }
    }

    /// Frees the key in the background, for a caller that cannot await.
    pub(super) fn release_soon(mut self, phase: Phase) {
        self.consumed = true;
        let state = &self.lease.0;
        state.stop_beats();
        state.end(End::Failed(phase));
        state.end_in_background(release_until_over(self.lease.clone()));
    }

    /// Stops the heartbeat and lets the lease run out, because the effect of the work is unknown
    /// (HTTP-7 `Hold`, RUN-4).
    pub fn hold(mut self) {
        self.let_run_out(Phase::Held);
    }

    fn let_run_out(&mut self, phase: Phase) {
        self.consumed = true;
        self.lease.0.stop_beats();
        self.lease.0.end(End::Failed(phase));
    }

    /// Wraps `ending`, a future that ends a lease. If the caller drops the wrapper, the future
    /// continues in the background.
    pub(super) fn detach<F: Future + Send + 'static>(&self, ending: F) -> DetachOnDrop<F> {
        self.lease.0.detach(ending)
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if !self.consumed {
            self.let_run_out(Phase::Dropped);
        }
    }
}

impl LeaseState {
    /// Reports the terminal event. A lease has only one terminal event, so later ones are ignored.
    pub(super) fn end(&self, end: End) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        outcome_event::ended(self, end);
    }

    /// Reports the terminal event of a refused completion (CMP-2).
    pub(super) fn end_as_lost(&self) {
        tracing::warn!(identity = %self.identity, token = %self.token,
            "the result of an action was not recorded, because the call had lost its lease; \
             another caller may have run the same work");
        self.end(End::Lost);
    }

    pub(super) fn detach<F: Future + Send + 'static>(&self, ending: F) -> DetachOnDrop<F> {
        DetachOnDrop::new(self.queue.runtime().clone(), Arc::clone(&self.tasks), ending)
    }

    pub(super) fn end_in_background<F: Future + Send + 'static>(&self, ending: F) {
        self.tasks.end_in_background(self.queue.runtime(), ending);
    }
}

/// The result of the first attempt at a completion.
enum FirstTry {
    Recorded,
    /// [`complete_until_over`] has to finish the completion. Contains the store's answer, if any.
    Unfinished(Option<Result<FencedWrite>>),
}

/// Tries to complete immediately, if the store is immediate: stops the heartbeat and polls the
/// completion once, in place. If the store answers that poll, the completion needs no timer and no
/// future on the heap.
fn complete_in_place(lease: &Lease, record: &Record) -> FirstTry {
    let state = &lease.0;
    let store = &*state.store;
    if !store.is_immediate() {
        return FirstTry::Unfinished(None);
    }
    state.stop_beats();
    if state.is_beating() || record.exceeds(store.max_value()) {
        return FirstTry::Unfinished(None);
    }
    let began = store.call_began();
    match store.complete_in_place(&state.identity, state.owner, &record.done) {
        Some(answer @ Ok(FencedWrite::Applied | FencedWrite::AlreadyApplied)) => {
            store.called("complete", began, &answer);
            store.count(&answer);
            state.end(record.end());
            FirstTry::Recorded
        }
        answer => FirstTry::Unfinished(answer),
    }
}

/// Ends the heartbeat and completes. Returns when the outcome is known or the lease is over by the
/// engine's clock. `answer` is the answer to a completion that was already sent, if any.
async fn complete_until_over(
    lease: Lease,
    mut record: Record,
    mut answer: Option<Result<FencedWrite>>,
) -> CompletionResult {
    let state = &*lease.0;
    state.end_beats().await;
    let store = &*state.store;
    record.fit(store.max_value(), &state.identity);
    loop {
        let repeated = repeat_until(
            store,
            || state.until(),
            || {
                let call: StoreCall<_> = match answer.take() {
                    Some(answer) => Box::pin(std::future::ready(answer)),
                    None => store.complete_call(&state.identity, state.owner, record.done.clone()),
                };
                store.complete(&state.identity, call)
            },
        );
        let error = match repeated.await {
            Ok(FencedWrite::Applied | FencedWrite::AlreadyApplied) => {
                state.end(record.end());
                return record.written();
            }
            Ok(FencedWrite::NotOwner) => {
                state.end_as_lost();
                return CompletionResult::NotOwner;
            }
            Err(error) => error,
        };
        if error.kind() == ErrorKind::TooLarge && record.can_shrink() {
            record.shrink(error, &state.identity);
            continue;
        }
        // This error is logged regardless of the enabled cargo features (CMP-4).
        tracing::error!(
            identity = %state.identity, token = %state.token, %error,
            "the action ran, but its result was not recorded; a retry after the lease ends may run \
             the action again"
        );
        state.end(End::Failed(Phase::Completion));
        return CompletionResult::Unconfirmed(error);
    }
}

/// Ends the heartbeat and releases the key. Returns when the outcome is known or the lease is over.
pub(super) async fn release_until_over(lease: Lease) -> Result<FencedWrite> {
    let state = &*lease.0;
    state.end_beats().await;
    release_until(&state.store, &state.identity, state.owner, state.until()).await.inspect_err(
        |error| {
            tracing::warn!(identity = %state.identity, %error,
                "the store did not confirm the release of a key, so the key may stay taken until \
                 its lease ends");
        },
    )
}

/// Releases the key if `owner` holds it. If the store is unavailable, the release is repeated until
/// the time `until`.
pub(super) async fn release_until(
    store: &StoreClient,
    identity: &Identity,
    owner: OwnerId,
    until: Instant,
) -> Result<FencedWrite> {
    repeat_until(store, || until, || store.release(identity, owner)).await
}

/// Sends a call. While the store is unavailable or full, repeats the call until the time `until`. The
/// call must be safe to send twice.
pub(super) async fn repeat_until<F>(
    store: &StoreClient,
    until: impl Fn() -> Instant,
    mut call: impl FnMut() -> F,
) -> Result<FencedWrite>
where
    F: Future<Output = Result<FencedWrite>>,
{
    let mut failures = 0;
    loop {
        match call().await {
            Err(error)
                if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Full)
                    && store.now() < until() =>
            {
                failures += 1;
                tracing::debug!(%error, failures,
                    "a store call that ends a lease failed and will be repeated");
                sleep(REPEAT.after(failures)).await;
            }
            answer => return answer,
        }
    }
}
