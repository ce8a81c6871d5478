// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Link`]: the network between a process and the store.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof::clock::{Clock as _, Instant, SystemClock};
use retryproof::store::{AcquireRequest, Acquired, Completion, FencedWrite, Peeked, StoreProfile};
use retryproof::{FencingToken, IdempotencyStore, Identity, OwnerId, Result, SharedStore};
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until};

use crate::log::Log;
use crate::random::Random;

/// What the network does to the calls of all processes.
#[derive(Debug, Default)]
pub(crate) struct Weather(Mutex<Option<Instant>>);

impl Weather {
    /// Lets no call arrive until this time.
    pub(crate) fn stall(&self, until: Instant) {
        *self.0.lock() = Some(until);
    }

    async fn pass(&self) {
        loop {
            let until = *self.0.lock();
            match until.filter(|until| *until > SystemClock.now()) {
                Some(until) => sleep_until(until).await,
                None => return,
            }
        }
    }
}

/// How long a call takes in one direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delays {
    /// The longest delay of most calls, in ms.
    pub(crate) usual: u64,
    /// The longest delay of a few calls, in ms: longer than a caller waits for its answer.
    pub(crate) late: u64,
    /// How many of a thousand calls are late.
    pub(crate) per_mille: u64,
}

/// A process's connection to the store. If a caller gives up, its call stays on its way: it may
/// still reach the store, but its answer reaches no caller.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) store: SharedStore,
    /// `None` if there is no network, because the store runs in-process and answers at once.
    pub(crate) delays: Option<Delays>,
    pub(crate) random: Mutex<Random>,
    pub(crate) weather: Arc<Weather>,
    pub(crate) log: Arc<Log>,
}

struct Trip {
    there: Duration,
    back: Duration,
    /// Whether the call arrives even if its caller gives up.
    arrives: bool,
}

/// A call on its way.
struct Packet<T> {
    task: JoinHandle<T>,
    arrives: bool,
}

impl<T> Drop for Packet<T> {
    fn drop(&mut self) {
        if !self.arrives {
            self.task.abort();
        }
    }
}

async fn travel(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

impl Link {
    fn trip(&self) -> Option<Trip> {
        let Delays { usual, late, per_mille } = self.delays?;
        let mut random = self.random.lock();
        let mut way = || {
            let most = if random.within(0..1_000) < per_mille { late } else { usual };
            Duration::from_millis(random.within(0..most + 1))
        };
        let (there, back) = (way(), way());
        Some(Trip { there, back, arrives: random.percent(50) })
    }

    /// Never returns if the process is dead, because a dead process sends and receives nothing.
    async fn unless_dead(&self) {
        if self.log.is_dead() {
            pending::<()>().await;
        }
    }

    async fn send<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.unless_dead().await;
        let Some(Trip { there, back, arrives }) = self.trip() else { return call.await };
        let weather = Arc::clone(&self.weather);
        let task = tokio::spawn(async move {
            travel(there).await;
            weather.pass().await;
            let answer = call.await;
            travel(back).await;
            answer
        });
        let mut packet = Packet { task, arrives };
        let answer = (&mut packet.task).await;
        self.unless_dead().await;
        answer.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Link {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let (store, id, req) = (self.store.clone(), id.clone(), req.clone());
        self.send(async move { store.acquire(&id, &req).await }).await
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        let (store, id) = (self.store.clone(), id.clone());
        self.send(async move { store.peek(&id).await }).await
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.unless_dead().await;
        let Some(Trip { there, back, .. }) = self.trip() else {
            return self.store.wait_for_change(id, seen, at_most).await;
        };
        travel(there).await;
        self.weather.pass().await;
        let rest = at_most.saturating_sub(there + back);
        let answer = self.store.wait_for_change(id, seen, rest).await;
        travel(back).await;
        self.unless_dead().await;
        answer
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        let (store, id) = (self.store.clone(), id.clone());
        self.send(async move { store.extend(&id, owner, lease).await }).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        let (store, id, done) = (self.store.clone(), id.clone(), done.clone());
        self.send(async move { store.complete(&id, owner, &done).await }).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let (store, id) = (self.store.clone(), id.clone());
        self.send(async move { store.release(&id, owner).await }).await
    }

    fn profile(&self) -> StoreProfile {
        let profile = self.store.profile();
        if self.delays.is_some() { profile.without_immediate() } else { profile }
    }
}
