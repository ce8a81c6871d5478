// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Recording`]: a store that records every call, before it is sent and when it is answered.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use history::{AT_ONCE, Event, Fun, IN_PLACE, Phase, Said, hash};
use retryproof::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, LiveLease, Peeked, Purge, StoreProfile,
};
use retryproof::{
    Error, ErrorKind, FencingToken, Fingerprint, IdempotencyStore, Identity, Opened, OwnerId,
    Result, SharedStore, StoredResult,
};

use crate::log::Log;
use crate::world;

tokio::task_local! {
    /// The engine's call in whose task a store call is made.
    pub(crate) static CALL: u64;
}

/// A store that records the calls of the store inside of it.
pub(crate) struct Recording<S> {
    inner: S,
    purger: SharedStore,
    log: Arc<Log>,
    /// Whether the engine may send an acquire without a future.
    answers_at_once: bool,
}

impl<S> Recording<S> {
    pub(crate) fn new(inner: S, purger: SharedStore, log: Arc<Log>, answers_at_once: bool) -> Self {
        Self { inner, purger, log, answers_at_once }
    }
}

impl<S> fmt::Debug for Recording<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recording")
    }
}

pub(crate) fn hex(owner: OwnerId) -> String {
    owner.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn print(fingerprint: Option<&Fingerprint>) -> Option<u64> {
    fingerprint.map(|fingerprint| hash(fingerprint.as_bytes()))
}

pub(crate) fn us(duration: Duration) -> Option<u64> {
    u64::try_from(duration.as_micros()).ok()
}

/// Adds a stored value to an event: the hash of its bytes and the identity that they name, or a
/// tombstone.
pub(crate) fn opened(event: &mut Event, stored: &StoredResult) {
    event.fp_hash = print(stored.fingerprint());
    match stored.open(None) {
        Ok(Opened::Value(payload)) => {
            event.value_hash = Some(hash(payload.body()));
            event.bears = world::bears(payload.body());
            event.said = Some(Said::Complete);
        }
        Ok(Opened::Tombstone(_)) => event.said = Some(Said::Tombstone),
        Ok(Opened::Mismatch) | Err(_) => event.said = Some(Said::Corrupt),
    }
}

/// A call that was sent. If it is dropped without an answer, its outcome is unknown.
struct Sent<'a> {
    log: &'a Log,
    end: Option<Event>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if let Some(mut event) = self.end.take() {
            event.phase = Phase::Info;
            event.mono_ns = crate::mono::now();
            self.log.write(&event);
        }
    }
}

impl<S> Recording<S> {
    async fn record<T>(
        &self,
        (fun, id): (Fun, &Identity),
        ask: impl FnOnce(&mut Event),
        call: impl Future<Output = Result<T>>,
        tell: impl FnOnce(&mut Event, &T),
    ) -> Result<T> {
        let op = self.log.number();
        let mut event = self.log.of(op, fun, Phase::Invoke, id);
        event.call = CALL.try_with(|call| *call).ok();
        ask(&mut event);
        self.log.write(&event);
        let mut sent = Sent { log: &self.log, end: Some(self.log.of(op, fun, Phase::Info, id)) };
        let answer = call.await;
        let Some(mut end) = sent.end.take() else { return answer };
        end.mono_ns = crate::mono::now();
        match &answer {
            Ok(answer) => {
                end.phase = Phase::Ok;
                tell(&mut end, answer);
            }
            Err(error) => failed(&mut end, error),
        }
        self.log.write(&end);
        answer
    }
}

/// Notes whether a failed call may have taken effect: this is unknown only if the store is
/// unavailable.
pub(crate) fn failed(event: &mut Event, error: &Error) {
    event.phase = if error.kind() == ErrorKind::Unavailable { Phase::Info } else { Phase::Fail };
    event.said = (error.kind() == ErrorKind::Corrupt).then_some(Said::Corrupt);
    event.note = Some(error.to_string());
}

fn fenced(event: &mut Event, answer: &FencedWrite) {
    event.said = Some(match answer {
        FencedWrite::Applied => Said::Done,
        FencedWrite::AlreadyApplied => Said::AlreadyDone,
        FencedWrite::NotOwner => Said::Lost,
    });
}

fn busy(event: &mut Event, remaining: Duration, token: FencingToken) {
    event.said = Some(Said::Busy);
    (event.token, event.remaining_us) = (Some(token.get()), us(remaining));
}

#[deny(clippy::missing_trait_methods)]
impl<S: IdempotencyStore> IdempotencyStore for Recording<S> {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        // Without a future, there is no task to wake, and the waker of no task has no data.
        // `will_wake` also compares the tables of functions, of which an optimized build has
        // several.
        let in_place = poll_fn(|cx| Poll::Ready(cx.waker().data().is_null())).await;
        let ask = |event: &mut Event| {
            event.note = in_place.then(|| IN_PLACE.to_owned());
            event.owner = Some(hex(req.owner));
            (event.lease_us, event.ttl_us) = (us(req.lease), us(req.ttl));
            event.fp_hash = print(req.fingerprint.as_ref());
        };
        let tell = |event: &mut Event, (answer, at_once): &(Acquired, bool)| {
            event.note = at_once.then(|| AT_ONCE.to_owned());
            match answer {
                Acquired::Granted(grant) => {
                    event.said = Some(if grant.took_over { Said::TookOver } else { Said::Granted });
                    (event.token, event.remaining_us) =
                        (Some(grant.token.get()), us(grant.remaining));
                }
                Acquired::Complete(stored) => opened(event, stored),
                Acquired::Busy(LiveLease { remaining, token, .. }) => {
                    busy(event, *remaining, *token);
                }
            }
        };
        let call = async {
            let mut polls = 0;
            let mut call = pin!(self.inner.acquire(id, req));
            let answer = poll_fn(|cx| {
                polls += 1;
                call.as_mut().poll(cx)
            });
            answer.await.map(|answer| (answer, polls == 1))
        };
        self.record((Fun::Acquire, id), ask, call, tell).await.map(|(answer, _)| answer)
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        let tell = |event: &mut Event, answer: &Peeked| match answer {
            Peeked::Absent => event.said = Some(Said::Absent),
            Peeked::Complete(stored) => opened(event, stored),
            Peeked::Busy(LiveLease { remaining, token, .. }) => busy(event, *remaining, *token),
        };
        self.record((Fun::Look, id), |_| (), self.inner.peek(id), tell).await
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        let ask =
            |event: &mut Event| (event.token, event.wait_us) = (Some(seen.get()), us(at_most));
        let tell = |event: &mut Event, (): &()| event.said = Some(Said::Woken);
        self.record((Fun::Wait, id), ask, self.inner.wait_for_change(id, seen, at_most), tell).await
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        let ask = |event: &mut Event| (event.owner, event.lease_us) = (Some(hex(owner)), us(lease));
        self.record((Fun::Extend, id), ask, self.inner.extend(id, owner, lease), fenced).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        let ask = |event: &mut Event| {
            opened(event, &StoredResult::new(done.value.clone(), done.fingerprint));
            event.said = event.said.filter(|said| *said == Said::Tombstone);
            (event.owner, event.ttl_us) = (Some(hex(owner)), us(done.ttl));
        };
        self.record((Fun::Complete, id), ask, self.inner.complete(id, owner, done), fenced).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let ask = |event: &mut Event| event.owner = Some(hex(owner));
        self.record((Fun::Release, id), ask, self.inner.release(id, owner), fenced).await
    }

    fn profile(&self) -> StoreProfile {
        let profile = self.inner.profile();
        if self.answers_at_once { profile.with_immediate() } else { profile }
    }
}

/// Purges are not judged, because an expired record counts as absent, purged or not.
impl<S: IdempotencyStore> Purge for Recording<S> {
    async fn purge(&self, limit: usize) -> Result<usize> {
        Ok(self.purger.purge(limit).await?.unwrap_or(0))
    }
}
