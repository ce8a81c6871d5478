// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a lease: complete or release, repeated while the answer is unknown (CMP-1 to CMP-4,
//! CMP-9).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::sleep;

use super::Inner;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::lease::Lease;
use crate::observe::Phase;
use crate::outcome::Recorded;
use crate::owner::OwnerId;
use crate::payload::Tombstone;
use crate::store::{Completion, FencedWrite};
use crate::told::End;

/// The first and the longest rest before a call is repeated.
const REST: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// How a completion ended.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum CompletionResult {
    /// What was asked for stands in the store.
    Recorded,
    /// The store refused the value, or the detail of a tombstone, for its size, so a tombstone
    /// without any stands in its place (CMP-9).
    Tombstoned(Error),
    /// Refused: another owner has taken over, or the record is gone. Nothing was stored (CMP-2).
    NotOwner,
    /// Joined to a transaction that was rolled back, with everything written in it; the key is free
    /// again (CMP-7).
    RolledBack(Error),
    /// Not confirmed (CMP-4). Where repeating can help it goes on in the background until the lease
    /// is over (CMP-3).
    Unconfirmed(Error),
}

/// A completion on its way to the store.
type Sent = Pin<Box<dyn Future<Output = Result<FencedWrite>> + Send>>;

/// How a completion began.
pub(crate) enum First {
    /// It is recorded.
    Recorded,
    /// To be gone on with by [`complete`]; without a call, none was sent yet.
    Open(Option<Sent>),
}

/// Of a store that answers at once: ends the heartbeat and polls the completion once. It is
/// recorded then, and needs neither a timer nor a future that outlives its caller.
pub(crate) fn complete_at_once(lease: &Lease, done: &Completion, tombstone: bool) -> First {
    let state = &lease.0;
    let engine = &state.engine;
    if !engine.immediate {
        return First::Open(None);
    }
    state.stop_beats();
    if state.is_beating() || is_too_large(done, tombstone, engine.max_value) {
        return First::Open(None);
    }
    let mut sent =
        engine.dyn_store().dyn_complete(state.identity.clone(), state.owner, done.clone());
    match sent.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(FencedWrite::Applied | FencedWrite::AlreadyApplied)) => {
            engine.gate.answered();
            state.end(End::Completed(recorded_as(tombstone)));
            First::Recorded
        }
        Poll::Ready(answer) => First::Open(Some(Box::pin(std::future::ready(answer)))),
        Poll::Pending => First::Open(Some(sent)),
    }
}

/// Whether a tombstone, without the detail that one may have, goes to the store instead (CMP-9).
pub(super) fn is_too_large(done: &Completion, tombstone: bool, most: usize) -> bool {
    done.value.len() > most && can_be_cut(done, tombstone)
}

/// Whether there is something smaller that says that the work is done.
fn can_be_cut(done: &Completion, tombstone: bool) -> bool {
    !tombstone || done.value.len() > Tombstone::new().envelope().len()
}

fn recorded_as(tombstone: bool) -> Recorded {
    if tombstone { Recorded::Tombstone } else { Recorded::Yes }
}

/// Ends the heartbeat and completes; runs until the answer is known or the lease, as counted here,
/// is over. `sent` is a completion that is on its way already.
pub(crate) async fn complete(
    lease: Lease,
    mut done: Completion,
    mut tombstone: bool,
    mut sent: Option<Sent>,
) -> CompletionResult {
    let state = &lease.0;
    state.end_beats().await;
    let engine = &state.engine;
    let max_value = engine.max_value;
    let mut refused = None;
    let mut rest = REST.0;
    loop {
        let answer = if is_too_large(&done, tombstone, max_value) {
            Err(Error::new(ErrorKind::TooLarge, "the value is larger than the store accepts")
                .with("bytes", done.value.len())
                .with("limit", max_value)
                .during("complete")
                .for_identity(&state.identity))
        } else {
            let call = sent.take().unwrap_or_else(|| {
                engine.dyn_store().dyn_complete(state.identity.clone(), state.owner, done.clone())
            });
            engine.gate.always("complete", &state.identity, call).await
        };
        let error = match answer {
            Ok(FencedWrite::Applied | FencedWrite::AlreadyApplied) => {
                state.end(End::Completed(recorded_as(tombstone)));
                return refused.map_or(CompletionResult::Recorded, CompletionResult::Tombstoned);
            }
            Ok(FencedWrite::NotOwner) => {
                tracing::warn!(identity = %state.identity, token = %state.token,
                    "completion refused: the lease was lost");
                state.end(End::Lost);
                return CompletionResult::NotOwner;
            }
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::TooLarge if can_be_cut(&done, tombstone) => {
                tracing::warn!(identity = %state.identity, %error, "the result is recorded as a \
                     tombstone (CMP-9)");
                done.value = Tombstone::new().into_envelope();
                tombstone = true;
                refused = Some(error);
            }
            ErrorKind::Unavailable if engine.now() < state.until() => {
                tracing::debug!(identity = %state.identity, %error, "repeating a completion");
                sleep(rest).await;
                rest = (rest * 2).min(REST.1);
            }
            _ => {
                // No feature is needed to see this line (CMP-4).
                tracing::error!(
                    identity = %state.identity, token = %state.token, %error,
                    "the action ran, but its result was not recorded; a retry after the lease \
                     may run it again"
                );
                state.end(End::Failed(Phase::Completion));
                return CompletionResult::Unconfirmed(error);
            }
        }
    }
}

/// Ends the heartbeat and releases; runs until the answer is known or the lease is over.
pub(crate) async fn release(lease: Lease) -> Result<()> {
    let state = &lease.0;
    state.end_beats().await;
    release_until(&state.engine, &state.identity, state.owner, state.until())
        .await
        .map(drop)
        .inspect_err(|error| {
            tracing::warn!(identity = %state.identity, %error, "the release failed; the lease \
                 runs out instead");
        })
}

/// Releases, repeating while the store is away and `until` has not come. A lease that is not ours
/// needs no release.
pub(crate) async fn release_until(
    engine: &Arc<Inner>,
    identity: &Identity,
    owner: OwnerId,
    until: Instant,
) -> Result<FencedWrite> {
    repeated(engine, until, || {
        let call = engine.dyn_store().dyn_release(identity.clone(), owner);
        engine.gate.always("release", identity, call)
    })
    .await
}

/// A call that may be sent again, until it is answered; while the store is away and `until` has not
/// come.
pub(crate) async fn repeated<F>(
    engine: &Arc<Inner>,
    until: Instant,
    mut call: impl FnMut() -> F,
) -> Result<FencedWrite>
where
    F: Future<Output = Result<FencedWrite>>,
{
    let mut rest = REST.0;
    loop {
        match call().await {
            Err(error) if error.kind() == ErrorKind::Unavailable && engine.now() < until => {
                sleep(rest).await;
                rest = (rest * 2).min(REST.1);
            }
            answer => return answer,
        }
    }
}
