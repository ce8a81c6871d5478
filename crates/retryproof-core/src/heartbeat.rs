// SPDX-License-Identifier: MIT OR Apache-2.0
//! The heartbeat: one lazy task for each runtime over a queue of due times (RUN-1, RUN-2, RUN-6).
//!
//! A lease beats in the runtime in which it was granted, so that it beats for as long as its action
//! can run: a program may have several runtimes, as actix-web has one for each worker, and any of
//! them may end before the others.
//!
//! Leases are queued at their next due time and taken out when they end, so the queue is as long as
//! the leases that are held, and a lease shorter than its first beat costs two map operations. The
//! task starts with the first lease and goes when it wakes to an empty queue.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::lock::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;

use crate::clock::Instant;
use crate::engine::Inner;
use crate::error::{Error, Result};
use crate::lease::LeaseState;
use crate::observe::Loss;
use crate::store::FencedWrite;

/// How many beats may be on their way at once, so that one slow call holds back nobody and a store
/// is not flooded.
const CONCURRENT_BEATS: usize = 256;

/// How many extends of one beat may be unanswered at once.
const UNANSWERED: usize = 3;

/// The beats of an engine.
#[derive(Debug)]
pub(crate) struct Beats {
    lanes: Mutex<Vec<(Id, Arc<Lane>)>>,
    slots: Arc<Semaphore>,
}

/// The beats that one runtime serves.
#[derive(Debug)]
pub(crate) struct Lane {
    runtime: Handle,
    queue: Mutex<Queue>,
    sooner: Notify,
}

#[derive(Default)]
struct Queue {
    due: BTreeMap<(Instant, u64), Arc<LeaseState>>,
    sequence: u64,
    /// Until when the serving task sleeps: only an earlier beat has to wake it.
    wakes: Option<Instant>,
    /// Whether a task serves the queue; false again when its runtime is gone.
    served: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("leases", &self.due.len())
            .field("served", &self.served)
            .finish()
    }
}

impl Beats {
    pub(crate) fn new() -> Self {
        Self { lanes: Mutex::default(), slots: Arc::new(Semaphore::new(CONCURRENT_BEATS)) }
    }

    /// How many leases wait for their next beat.
    pub(crate) fn len(&self) -> usize {
        self.lanes.lock().iter().map(|(_, lane)| lane.queue.lock().due.len()).sum()
    }

    /// The lane of a runtime.
    pub(crate) fn lane(&self, runtime: Handle) -> Arc<Lane> {
        let id = runtime.id();
        let mut lanes = self.lanes.lock();
        if let Some((_, lane)) = lanes.iter().find(|(of, _)| *of == id) {
            return Arc::clone(lane);
        }
        // Of a runtime that has ended there is nothing left to serve; any other gets its lane
        // again.
        lanes.retain(|(_, lane)| Arc::strong_count(lane) > 1);
        let lane = Arc::new(Lane { runtime, queue: Mutex::default(), sooner: Notify::new() });
        lanes.push((id, Arc::clone(&lane)));
        lane
    }
}

impl Lane {
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn remove(&self, due: (Instant, u64)) {
        self.queue.lock().due.remove(&due);
    }

    /// Queues the next beat of a lease of this lane, unless it has ended.
    pub(crate) fn add(self: &Arc<Self>, lease: &Arc<LeaseState>, at: Instant) {
        let (start, sooner) = {
            let mut queue = self.queue.lock();
            let place = (at, queue.sequence);
            {
                let mut beating = lease.beating.lock();
                if beating.stopped {
                    return;
                }
                beating.due = Some(place);
            }
            queue.sequence += 1;
            let sooner = queue.wakes.is_some_and(|wakes| at < wakes);
            queue.due.insert(place, Arc::clone(lease));
            (!std::mem::replace(&mut queue.served, true), sooner)
        };
        if start {
            let mut served = Served {
                engine: Arc::clone(&lease.engine),
                lane: Arc::clone(self),
                resigned: false,
            };
            drop(self.runtime.spawn(async move { served.serve().await }));
        } else if sooner {
            self.sooner.notify_one();
        }
    }
}

/// Serves the queue. Says that nobody does any more also when the task is dropped with its runtime.
struct Served {
    engine: Arc<Inner>,
    lane: Arc<Lane>,
    /// It has said so.
    resigned: bool,
}

impl Served {
    async fn serve(&mut self) {
        let Self { engine, lane, resigned } = self;
        loop {
            let next = {
                let mut queue = lane.queue.lock();
                let next = queue.due.first_key_value().map(|(place, _)| *place);
                queue.wakes = next.map(|(at, _)| at);
                // Under the lock, so that a beat added from now on starts another task.
                queue.served = next.is_some();
                *resigned = next.is_none();
                next
            };
            let Some(place @ (at, _)) = next else { return };
            let now = engine.now();
            if at > now {
                let rest = sleep(at - now);
                let sooner = lane.sooner.notified();
                let (mut rest, mut sooner) = (std::pin::pin!(rest), std::pin::pin!(sooner));
                poll_fn(|cx| {
                    if rest.as_mut().poll(cx).is_ready() || sooner.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(());
                    }
                    Poll::Pending
                })
                .await;
                continue;
            }
            let Ok(slot) = Arc::clone(&engine.beats.slots).acquire_owned().await else { return };
            let Some(lease) = lane.queue.lock().due.remove(&place) else { continue };
            {
                let mut beating = lease.beating.lock();
                beating.due = None;
                if beating.stopped {
                    continue;
                }
                beating.in_flight = true;
            }
            let beat = InFlight(lease);
            engine.spawn(async move {
                let next = beat_once(&beat.0).await;
                let lease = Arc::clone(&beat.0);
                drop(beat);
                if let Some(next) = next {
                    lease.lane.add(&lease, next);
                }
                drop(slot);
            });
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !self.resigned {
            self.lane.queue.lock().served = false;
        }
    }
}

/// A beat on its way; its end is told, however it ends.
struct InFlight(Arc<LeaseState>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.beating.lock().in_flight = false;
        self.0.changed.notify_waiters();
    }
}

type Extend = Pin<Box<dyn Future<Output = Result<FencedWrite>> + Send>>;

/// One beat: extends the lease, with further tries while it can be saved. Says when the next one is
/// due.
///
/// A failed try is repeated after lease / 20; until then the lease is back in the queue, for a beat
/// that rests must not keep a slot that another lease needs by then (RUN-2). One that hangs is not
/// waited for: another goes out beside it after lease / 10, so that an outage of 0.4 lease that
/// swallows calls is survived as one that refuses them. Each is cut off just below lease / 4
/// (RUN-1), and at `operation-timeout` (STO-5).
///
/// The end of the execution awaits this beat (RUN-3), and may wait for itself no longer than
/// `operation-timeout`: once it is told to stop, a beat whose calls are all answered is over, and
/// one that hangs gets a moment.
async fn beat_once(lease: &Arc<LeaseState>) -> Option<Instant> {
    let engine = &lease.engine;
    let hold_until = lease.granted_at + engine.config.max_hold;
    if engine.now() >= hold_until {
        lease.lose(Loss::MaxHold);
        return None;
    }
    let rested = std::mem::take(&mut lease.beating.lock().resting);
    if rested && engine.now() >= lease.until() {
        lease.lose(Loss::Expired);
        return None;
    }
    let operation = engine.gate.operation_timeout();
    let (cut_off, beside, again) =
        (lease.lease.mul_f64(0.24).min(operation), lease.lease / 10, lease.lease / 20);
    let moment = beside.min(operation / 4);
    let mut leave_by = None::<Instant>;
    let mut unanswered: Vec<(Instant, Extend)> = Vec::with_capacity(1);
    let mut next_try = engine.now();
    loop {
        let now = engine.now();
        let stopped = lease.changed.notified();
        let mut stopped = std::pin::pin!(stopped);
        // Registered before the look, so that a stop between the two is not missed.
        stopped.as_mut().enable();
        if lease.beating.lock().stopped {
            let by = *leave_by.get_or_insert(now + moment);
            if unanswered.is_empty() || now >= by {
                return None;
            }
        } else if now >= next_try && unanswered.len() < UNANSWERED {
            let call =
                engine.dyn_store().dyn_extend(lease.identity.clone(), lease.owner, lease.lease);
            unanswered.push((now, call));
            next_try = now + beside;
        }
        let until = lease.until();
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
        match first_answer(&mut unanswered, wake.saturating_duration_since(now), stopped).await {
            Some((sent, Ok(FencedWrite::Applied | FencedWrite::AlreadyApplied))) => {
                engine.gate.answered();
                lease.beating.lock().until = sent + lease.lease;
                return Some((sent + lease.lease / 2).min(hold_until));
            }
            Some((_, Ok(FencedWrite::NotOwner))) => {
                engine.gate.answered();
                lease.lose(Loss::TakenOver);
                return None;
            }
            Some((_, Err(error))) => {
                tracing::debug!(identity = %lease.identity, %error, "a beat failed");
                engine.gate.failed(&error);
                next_try = engine.now() + again;
            }
            None => {}
        }
        let now = engine.now();
        while unanswered.first().is_some_and(|(sent, _)| now >= *sent + cut_off) {
            drop(unanswered.remove(0));
            engine.gate.failed(&Error::unavailable("no answer"));
            next_try = next_try.min(now + again);
        }
        let until = lease.until();
        if now >= until {
            lease.lose(Loss::Expired);
            return None;
        }
        if unanswered.is_empty() && next_try > now {
            lease.beating.lock().resting = true;
            return Some(next_try.min(until).min(hold_until));
        }
    }
}

/// The first of the calls to answer, with when it was sent; `None` after `at_most`, or when
/// `stopped` resolves.
async fn first_answer(
    calls: &mut Vec<(Instant, Extend)>,
    at_most: Duration,
    mut stopped: Pin<&mut Notified<'_>>,
) -> Option<(Instant, Result<FencedWrite>)> {
    let mut rest = std::pin::pin!(sleep(at_most));
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
