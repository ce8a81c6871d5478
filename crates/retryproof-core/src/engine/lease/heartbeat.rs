// SPDX-License-Identifier: MIT OR Apache-2.0
//! The heartbeat: in each runtime, one task serves a queue of due times (RUN-1, RUN-2, RUN-6).
//!
//! A lease's heartbeat runs in the runtime in which the lease was granted, so that it can run for
//! as long as the action. A program can have several runtimes (actix-web has one for each worker),
//! and any of them can end before the others. A lease is queued at its next due time and removed
//! when it ends. The queue has one entry for each lease, and a lease that ends before its first
//! heartbeat costs two map operations. The task ends when it wakes up and finds the queue empty.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;

use super::LeaseState;
use crate::clock::Instant;
use crate::engine::store_client::StoreClient;
use crate::error::{ErrorKind, Result};
use crate::lock::Mutex;
use crate::observe::Loss;
use crate::store::{FencedWrite, StoreCall};

/// The maximum number of concurrent heartbeats. The number is large, so that a slow call delays no
/// other lease. It is limited, so that heartbeats do not flood a store.
const CONCURRENT_BEATS: usize = 256;

/// The maximum number of unanswered extend calls in one heartbeat.
const UNANSWERED: usize = 3;

/// The heartbeat queues of an engine.
#[derive(Debug)]
pub(in crate::engine) struct BeatQueues {
    queues: Mutex<Vec<(Id, Arc<BeatQueue>)>>,
    slots: Arc<Semaphore>,
}

/// The leases whose heartbeats run in one runtime.
#[derive(Debug)]
pub(in crate::engine) struct BeatQueue {
    runtime: Handle,
    due: Mutex<DueBeats>,
    /// Wakes the serving task early, for a heartbeat that is due before the task would wake.
    sooner: Notify,
    /// The slots for concurrent heartbeats, shared by all queues of the engine.
    slots: Arc<Semaphore>,
}

#[derive(Default)]
struct DueBeats {
    leases: BTreeMap<(Instant, u64), Arc<LeaseState>>,
    sequence: u64,
    /// When the serving task's sleep ends. Only a heartbeat that is due earlier has to wake the
    /// task.
    wakes: Option<Instant>,
    /// Whether a task serves the queue; `false` if the queue is empty or its runtime has ended.
    served: bool,
}

impl fmt::Debug for DueBeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DueBeats")
            .field("leases", &self.leases.len())
            .field("served", &self.served)
            .finish()
    }
}

impl BeatQueues {
    pub(in crate::engine) fn new() -> Self {
        Self { queues: Mutex::default(), slots: Arc::new(Semaphore::new(CONCURRENT_BEATS)) }
    }

    /// Returns how many leases are waiting for their next heartbeat.
    pub(in crate::engine) fn len(&self) -> usize {
        self.queues.lock().iter().map(|(_, queue)| queue.due.lock().leases.len()).sum()
    }

    /// Returns the queue of a runtime, and creates it if necessary.
    pub(in crate::engine) fn of(&self, runtime: Handle) -> Arc<BeatQueue> {
        let id = runtime.id();
        let mut queues = self.queues.lock();
        if let Some((_, queue)) = queues.iter().find(|(of, _)| *of == id) {
            return Arc::clone(queue);
        }
        // Remove the queues that no lease uses, including those of runtimes that have ended. A
        // runtime that still runs gets a new queue with its next lease.
        queues.retain(|(_, queue)| Arc::strong_count(queue) > 1);
        let queue = Arc::new(BeatQueue {
            runtime,
            due: Mutex::default(),
            sooner: Notify::new(),
            slots: Arc::clone(&self.slots),
        });
        queues.push((id, Arc::clone(&queue)));
        queue
    }
}

impl BeatQueue {
    pub(in crate::engine) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    fn remove(&self, place: (Instant, u64)) {
        self.due.lock().leases.remove(&place);
    }

    /// Queues the next heartbeat of a lease, unless the lease's heartbeats are stopped.
    pub(super) fn add(self: &Arc<Self>, lease: &Arc<LeaseState>, at: Instant) {
        let (start, sooner) = {
            let mut due = self.due.lock();
            let place = (at, due.sequence);
            {
                let mut beat = lease.beat.lock();
                if beat.stopped {
                    return;
                }
                beat.due = Some(place);
            }
            due.sequence += 1;
            let sooner = due.wakes.is_some_and(|wakes| at < wakes);
            due.leases.insert(place, Arc::clone(lease));
            (!std::mem::replace(&mut due.served, true), sooner)
        };
        if start {
            let mut server = BeatServer {
                store: Arc::clone(&lease.store),
                queue: Arc::clone(self),
                resigned: false,
            };
            drop(self.runtime.spawn(async move { server.serve().await }));
        } else if sooner {
            self.sooner.notify_one();
        }
    }
}

/// The task that serves a queue. Dropping this value marks the queue as unserved, even if the
/// runtime drops the task.
struct BeatServer {
    store: Arc<StoreClient>,
    queue: Arc<BeatQueue>,
    /// Whether the queue is already marked as unserved.
    resigned: bool,
}

impl BeatServer {
    async fn serve(&mut self) {
        let Self { store, queue, resigned } = self;
        loop {
            let next = {
                let mut due = queue.due.lock();
                let next = due.leases.first_key_value().map(|(place, _)| *place);
                due.wakes = next.map(|(at, _)| at);
                // Set `served` while the queue is locked. If the queue is empty now, the next
                // heartbeat to be added starts another task.
                due.served = next.is_some();
                *resigned = next.is_none();
                next
            };
            let Some(place @ (at, _)) = next else { return };
            let now = store.now();
            if at > now {
                let (mut rest, mut sooner) = (pin!(sleep(at - now)), pin!(queue.sooner.notified()));
                poll_fn(|cx| {
                    if rest.as_mut().poll(cx).is_ready() || sooner.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(());
                    }
                    Poll::Pending
                })
                .await;
                continue;
            }
            let Ok(slot) = Arc::clone(&queue.slots).acquire_owned().await else { return };
            let Some(lease) = queue.due.lock().leases.remove(&place) else { continue };
            {
                let mut beat = lease.beat.lock();
                beat.due = None;
                if beat.stopped {
                    continue;
                }
                beat.in_flight = true;
            }
            let running = BeatInFlight(lease);
            drop(queue.runtime.spawn(async move {
                let next = running.0.extend_in_time().await;
                let lease = Arc::clone(&running.0);
                drop(running);
                if let Some(next) = next {
                    lease.queue.add(&lease, next);
                }
                drop(slot);
            }));
        }
    }
}

impl Drop for BeatServer {
    fn drop(&mut self) {
        if !self.resigned {
            self.queue.due.lock().served = false;
        }
    }
}

/// A running heartbeat. Dropping this value reports that the heartbeat has ended, even after a
/// panic.
struct BeatInFlight(Arc<LeaseState>);

impl Drop for BeatInFlight {
    fn drop(&mut self) {
        self.0.beat.lock().in_flight = false;
        self.0.changed.notify_waiters();
    }
}

impl LeaseState {
    /// Marks the lease as lost, once, and notifies [`Lease::lost`](super::Lease::lost) and the
    /// observers.
    pub(super) fn lose(&self, loss: Loss) {
        {
            let mut beat = self.beat.lock();
            if beat.loss.is_some() || beat.stopped {
                return;
            }
            beat.loss = Some(loss);
        }
        self.changed.notify_waiters();
        tracing::warn!(identity = %self.identity, token = %self.token, ?loss,
            "a call lost its lease while its action was running; another caller may run the same \
             work");
        self.store.observers.tell(|o| o.loss_noticed(self.event(), loss));
    }

    /// Prevents further heartbeats from starting.
    pub(in crate::engine) fn stop_beats(&self) {
        let (due, in_flight) = {
            let mut beat = self.beat.lock();
            beat.stopped = true;
            (beat.due.take(), beat.in_flight)
        };
        if in_flight {
            self.changed.notify_waiters();
        }
        if let Some(place) = due {
            self.queue.remove(place);
        }
    }

    /// Whether a heartbeat is running.
    pub(in crate::engine) fn is_beating(&self) -> bool {
        self.beat.lock().in_flight
    }

    /// Stops the heartbeats, and waits until a running heartbeat has ended. The wait takes less
    /// than a quarter of the lease (RUN-3).
    pub(in crate::engine) async fn end_beats(&self) {
        self.stop_beats();
        // No heartbeat starts after the stop. The loop waits only for the heartbeat that is already
        // running.
        while self.is_beating() {
            let changed = self.changed.notified();
            let mut changed = pin!(changed);
            changed.as_mut().enable();
            if self.is_beating() {
                changed.await;
            }
        }
    }

    /// Performs one heartbeat: extends the lease, and retries while the lease can be saved. Returns
    /// the time of the next heartbeat, or `None` if none follows.
    ///
    /// An extend that fails is repeated after lease / 20. Until then, the lease is back in the
    /// queue and occupies no slot that another lease needs (RUN-2). If an extend hangs, another
    /// extend is sent in parallel after lease / 10. The lease therefore survives an outage of 0.4 ×
    /// lease, whether the store fails calls or leaves them unanswered. Each extend is cut off just
    /// below lease / 4 (RUN-1), or at `operation-timeout` if that is shorter (STO-5).
    ///
    /// The end of the execution waits for this heartbeat (RUN-3), and has only `operation-timeout`
    /// in total. After a stop, this method therefore returns as soon as all its extends are
    /// answered. It returns at the latest after lease / 10 or `operation-timeout` / 4, whichever is
    /// shorter.
    async fn extend_in_time(&self) -> Option<Instant> {
        let store = &*self.store;
        if store.now() >= self.hold_until {
            self.lose(Loss::MaxHold);
            return None;
        }
        let retried = std::mem::take(&mut self.beat.lock().retrying);
        if retried && store.now() >= self.until() {
            self.lose(Loss::Expired);
            return None;
        }
        let operation = store.operation_timeout();
        let cut_off = self.duration.mul_f64(0.24).min(operation);
        let (beside, again) = (self.duration / 10, self.duration / 20);
        let moment = beside.min(operation / 4);
        let mut leave_by = None::<Instant>;
        let mut unanswered: Vec<(Instant, StoreCall<FencedWrite>)> = Vec::with_capacity(1);
        let mut next_try = store.now();
        loop {
            let now = store.now();
            let stopped = self.changed.notified();
            let mut stopped = pin!(stopped);
            // Register before the check, so that a stop between the two steps is not missed.
            stopped.as_mut().enable();
            if self.beat.lock().stopped {
                let by = *leave_by.get_or_insert(now + moment);
                if unanswered.is_empty() || now >= by {
                    return None;
                }
            } else if now >= next_try && unanswered.len() < UNANSWERED {
                let call = store.extend_call(&self.identity, self.owner, self.duration);
                unanswered.push((now, call));
                next_try = now + beside;
            }
            let until = self.until();
            let cut = unanswered.first().map(|(sent, _)| *sent + cut_off);
            let mut wake = next_try.max(now + Duration::from_millis(1));
            if let Some(cut) = cut {
                wake = wake.min(cut);
            }
            if until > now {
                wake = wake.min(until);
            }
            if let Some(by) = leave_by {
                wake = wake.min(by);
            }
            let limit = wake.saturating_duration_since(now);
            if let Some((sent, answer)) = first_answer(&mut unanswered, limit, stopped).await {
                store.called("extend", sent, &answer);
                store.count(&answer);
                match answer {
                    Ok(FencedWrite::Applied | FencedWrite::AlreadyApplied) => {
                        self.beat.lock().until = sent + self.duration;
                        return Some((sent + self.duration / 2).min(self.hold_until));
                    }
                    Ok(FencedWrite::NotOwner) => {
                        self.lose(Loss::TakenOver);
                        return None;
                    }
                    Err(error) => {
                        tracing::debug!(identity = %self.identity, %error,
                            "a heartbeat failed and will be repeated until the lease ends");
                        self.beat_failed(error.kind());
                        next_try = store.now() + again;
                    }
                }
            }
            let now = store.now();
            while unanswered.first().is_some_and(|(sent, _)| now >= *sent + cut_off) {
                let (sent, _) = unanswered.remove(0);
                store.count_unanswered("extend", sent);
                self.beat_failed(ErrorKind::Unavailable);
                next_try = next_try.min(now + again);
            }
            let until = self.until();
            if now >= until {
                self.lose(Loss::Expired);
                return None;
            }
            if unanswered.is_empty() && next_try > now {
                self.beat.lock().retrying = true;
                return Some(next_try.min(until).min(self.hold_until));
            }
        }
    }
}

/// Returns the first answer to any of the calls, and the instant at which that call was sent.
/// Returns `None` after `limit`, or when `stopped` resolves.
async fn first_answer(
    calls: &mut Vec<(Instant, StoreCall<FencedWrite>)>,
    limit: Duration,
    mut stopped: Pin<&mut Notified<'_>>,
) -> Option<(Instant, Result<FencedWrite>)> {
    let mut rest = pin!(sleep(limit));
    poll_fn(|cx| {
        for at in 0..calls.len() {
            if let Poll::Ready(answer) = calls[at].1.as_mut().poll(cx) {
                let (sent, _) = calls.remove(at);
                return Poll::Ready(Some((sent, answer)));
            }
        }
        if stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        rest.as_mut().poll(cx).map(|()| None)
    })
    .await
}
