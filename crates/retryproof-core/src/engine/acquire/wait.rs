// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles a busy answer: waits for the holder, then tries again, until the deadline (ACQ-3 to
//! ACQ-6). [`watch`] waits after a refused completion.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::shared_wait::{Holder, WaitTicket};
use super::{AcquireLoop, Acquisition, Found};
use crate::backoff::Backoff;
use crate::clock::Instant;
use crate::engine::span;
use crate::engine::state::EngineState;
use crate::engine::tasks::BorrowedPermit;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::observe::WaitEnd;
use crate::outcome::InFlight;
use crate::payload::StoredResult;
use crate::store::{LiveLease, Peeked};

/// How long a leader pauses after a failed store call, or while the key is free but no permit is
/// available. The pauses grow, so that the waiters of many keys do not flood the store.
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// The shortest wait. A lock can still prevent a takeover after the lease is over. Without a pause,
/// the waiter would then call the store in a hot loop.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Reports the end of a wait to the observers, once, even if the wait is dropped (RUN-8).
struct WaitReport<'a> {
    acquiring: &'a AcquireLoop<'a>,
    began: Instant,
    end: WaitEnd,
}

impl Drop for WaitReport<'_> {
    fn drop(&mut self) {
        let store = self.acquiring.store;
        let waited = store.now().saturating_duration_since(self.began);
        store.observers.tell(|o| o.waited(self.acquiring.identity(), waited, self.end));
    }
}

impl AcquireLoop<'_> {
    /// Waits with the other callers of the identity, and reports the wait.
    pub(super) async fn wait(&self, ticket: &WaitTicket<'_>) -> Result<Acquisition> {
        let store = self.store;
        // Do not enter this span: a lease that is granted during the wait belongs to the span of
        // the call.
        let _span = span::of_wait();
        store.observers.tell(|o| o.waiting(self.identity()));
        let mut report = WaitReport { acquiring: self, began: store.now(), end: WaitEnd::Dropped };
        let end = self.share_wait(ticket).await;
        report.end = match &end {
            Ok(Acquisition::Granted(_)) => WaitEnd::Granted,
            Ok(Acquisition::Complete(_)) => WaitEnd::Complete,
            Ok(Acquisition::InFlight(_)) => WaitEnd::InFlight,
            Ok(Acquisition::Mismatch) | Err(_) => WaitEnd::Refused,
        };
        end
    }

    /// Waits first for leadership, then as the leader.
    async fn share_wait(&self, ticket: &WaitTicket<'_>) -> Result<Acquisition> {
        let lead = timeout(self.left(), ticket.shared.lead.lock()).await;
        if let Some(result) = ticket.result() {
            return Ok(Acquisition::Complete(result));
        }
        let Ok(_lead) = lead else {
            // The wait timeout has passed, and the leader has published no result. The leader's
            // future might no longer be polled, so this caller makes one attempt itself (ACQ-5).
            return Ok(match self.pass(ticket, self.permit()).await? {
                Some(Found::End(end)) => end,
                _ => self.in_flight(ticket.shared.holder()),
            });
        };
        let mut pauses = 0;
        // This flag says whether the key was free at the last check. If the key was free, the loop
        // waits for a permit and not for a holder.
        let mut is_free = false;
        loop {
            let permit = if is_free {
                pauses += 1;
                let pause = RETRY.after(pauses).min(self.left());
                let permit = timeout(pause, self.engine.tasks.permit()).await;
                permit.unwrap_or(Err(ErrorKind::TooBusy)).map(Some)
            } else {
                match self.wait_for_change(ticket.shared.holder()).await {
                    Ok(()) => pauses = 0,
                    // The store is unavailable. Wait again, because only a failed acquire ends the
                    // call (ACQ-9).
                    Err(error)
                        if error.kind() == ErrorKind::Unavailable && !self.left().is_zero() =>
                    {
                        pauses += 1;
                        sleep(RETRY.after(pauses).min(self.left())).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                self.permit()
            };
            if self.store.now() >= self.last() {
                return Ok(self.in_flight(ticket.shared.holder()));
            }
            match self.pass(ticket, permit).await? {
                Some(Found::End(end)) => return Ok(end),
                Some(Found::Busy(_)) => is_free = false,
                None => is_free = true,
            }
        }
    }

    /// Waits until the holder may have changed, its lease is over, or the deadline is reached.
    async fn wait_for_change(&self, holder: Holder) -> Result<()> {
        let store = self.store;
        let left = holder.until.min(self.deadline).saturating_duration_since(store.now());
        store.wait_for_change(self.identity(), holder.token, left.max(SHORTEST_WAIT)).await
    }

    /// Makes one pass of a waiter: acquires, or only peeks if `permit` is an error. Returns `None`
    /// if the key is free but the waiter has no permit.
    async fn pass(
        &self,
        ticket: &WaitTicket<'_>,
        permit: Result<Option<BorrowedPermit<'_>>, ErrorKind>,
    ) -> Result<Option<Found>> {
        // A result that this pass finds is valid for every waiter that saw this holder or an
        // earlier one.
        let before = ticket.shared.holder();
        let store = self.store;
        let found = match permit {
            Ok(permit) => self.acquire(permit, store.now(), store.owner()).await?,
            // Without a permit, the call cannot run the action, but it can find a stored result
            // (RUN-5).
            Err(kind) => match self.peek().await? {
                Peeked::Complete(result) => Found::End(Acquisition::Complete(result)),
                Peeked::Busy(lease) => self.busy(&lease),
                Peeked::Absent if self.left().is_zero() || kind == ErrorKind::ShuttingDown => {
                    return Err(self.refuse(kind));
                }
                Peeked::Absent => return Ok(None),
            },
        };
        match &found {
            Found::End(Acquisition::Complete(result)) => ticket.publish(result, before),
            // From now on, the other waiters wait for this caller, which is the new holder.
            Found::End(Acquisition::Granted(held)) => {
                let state = &held.lease().0;
                ticket.shared.found(Holder { token: state.token, until: state.until() });
            }
            // Publish nothing here, because the next leader looks up the holder itself.
            Found::End(Acquisition::InFlight(_) | Acquisition::Mismatch) => {}
            Found::Busy(holder) => {
                ticket.shared.found(*holder);
                if self.left().is_zero() {
                    return Ok(Some(Found::End(self.in_flight(*holder))));
                }
            }
        }
        Ok(Some(found))
    }

    /// Returns the stored result if there is one, and otherwise the error for `kind`.
    pub(super) async fn replay_or(&self, kind: ErrorKind) -> Result<Acquisition> {
        match self.peek().await? {
            Peeked::Complete(result) => Ok(Acquisition::Complete(result)),
            Peeked::Busy(_) | Peeked::Absent => Err(self.refuse(kind)),
        }
    }

    pub(super) fn refuse(&self, kind: ErrorKind) -> Error {
        let message = match kind {
            ErrorKind::ShuttingDown => {
                "this instance is shutting down and starts no new work; retry on another instance"
            }
            _ => "as many actions are running as the `max-running` setting allows; retry later",
        };
        self.named(Error::new(kind, message))
    }

    async fn peek(&self) -> Result<Peeked> {
        let store = self.store;
        let admission =
            store.admit().map_err(|error| error.during("peek").for_identity(self.identity()))?;
        let left = self.last().saturating_duration_since(store.now());
        let answer = store.peek(self.identity(), left.min(store.operation_timeout())).await;
        drop(admission);
        answer
    }
}

/// Waits once more, on behalf of a caller whose completion was refused (CMP-2). Returns the result
/// of the owner that took over, `InFlight` if that owner does not finish in time, or `None` if the
/// record is gone. This function never acquires, because the action has already run.
///
/// A peek does not show a lease that is over. If the first peek finds none, the record counts as
/// gone, although the owner that took over may still complete.
pub(in crate::engine) async fn watch(
    engine: &EngineState,
    identity: &Identity,
    wait: Duration,
) -> Result<Option<Result<StoredResult, InFlight>>> {
    let store = &engine.store;
    let operation = store.operation_timeout();
    let deadline = store.now() + wait;
    // When the lease that was seen last ends. Counted from before the peek, so never too late.
    let mut until = None;
    let mut pauses = 0;
    loop {
        // Each store call ends at most one operation timeout after the deadline, even if earlier
        // calls were slow (ACQ-6).
        let sent = store.now();
        let limit = (deadline + operation).saturating_duration_since(sent).min(operation);
        let peeked = store.peek(identity, limit).await;
        let now = store.now();
        let left = deadline.saturating_duration_since(now);
        match peeked {
            Ok(Peeked::Complete(result)) => return Ok(Some(Ok(result))),
            Ok(Peeked::Busy(lease)) if left.is_zero() => {
                return Ok(Some(Err(InFlight::new(lease.remaining))));
            }
            Ok(Peeked::Busy(LiveLease { remaining, token, .. })) => {
                until = Some(sent + remaining);
                let limit = left.min(remaining).max(SHORTEST_WAIT);
                match store.wait_for_change(identity, token, limit).await {
                    Ok(()) => {
                        pauses = 0;
                        continue;
                    }
                    Err(error) if error.kind() == ErrorKind::Unavailable => {}
                    Err(error) => return Err(error),
                }
            }
            // The lease of the owner that took over is over. That owner may still complete, and so
            // may another one that takes over from it.
            Ok(Peeked::Absent) if until.is_some_and(|until| until <= now) => {
                if left.is_zero() {
                    return Ok(Some(Err(InFlight::new(Duration::ZERO))));
                }
            }
            Ok(Peeked::Absent) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Unavailable => match until {
                _ if !left.is_zero() => {}
                Some(until) => {
                    let left = until.saturating_duration_since(now);
                    return Ok(Some(Err(InFlight::new(left))));
                }
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
        pauses += 1;
        sleep(RETRY.after(pauses).min(deadline.saturating_duration_since(store.now()))).await;
    }
}
