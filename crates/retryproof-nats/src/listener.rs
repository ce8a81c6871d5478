// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NatsListener`]: fetches the messages of a pull consumer and has each answered.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::PullConsumer;
use retryproof_core::listener::{Backoff, Poison, Tally, Verdict};
use retryproof_core::{IntoScope, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::config::NatsListenerBuilder;
use crate::delivery::Delivery;
use crate::handle::Desk;
use crate::receive::Pull;

/// Between two requests for messages while the store is away: what is fetched then is given back,
/// at the price of a delivery.
const STORE_AWAY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// Handles the messages of one JetStream pull consumer. Several listeners, in any number of
/// processes, may share a consumer.
pub struct NatsListener {
    pub(crate) desk: Arc<Desk>,
    pub(crate) consumer: PullConsumer,
    pub(crate) batch: usize,
    pub(crate) pull_for: Duration,
    pub(crate) drain: Duration,
}

impl fmt::Debug for NatsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsListener")
            .field("scope", &self.desk.scope)
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}

impl NatsListener {
    /// Starts with the consumer, and the scope under which its messages have their records. Name
    /// the scope for what is done, not for the consumer: two consumers with one scope do each
    /// message once between them.
    pub fn builder(
        jetstream: Context,
        consumer: PullConsumer,
        scope: impl IntoScope,
    ) -> NatsListenerBuilder {
        NatsListenerBuilder::new(jetstream, consumer, scope)
    }

    /// Counts what the server was told, by reason.
    #[must_use]
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.desk.tally)
    }

    /// Handles messages until `stop` is ready, over reconnects and outages. Then fetches no more,
    /// gives back what was not begun, to come again after
    /// [`pull_for`](NatsListenerBuilder::pull_for), waits for what was begun, and drops what takes
    /// longer than [`drain`](NatsListenerBuilder::drain): those leases run out, and their messages
    /// come again.
    ///
    /// The handler says what became of a message; a panic of it counts as a failure. It is called
    /// once for each delivery, and once more each time a message was parked.
    ///
    /// # Errors
    /// When the consumer was deleted.
    ///
    /// # Cancel safety
    /// Dropped, it drops the handlers in the middle: leases run out, and messages come again after
    /// the consumer's `ack_wait`.
    pub async fn run<H, Fut>(&self, handler: H, stop: impl Future<Output = ()>) -> Result<()>
    where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let places = Arc::new(Semaphore::new(self.batch));
        let (stopping, stopped) = watch::channel(false);
        let mut stop = pin!(stop);
        let mut at_work = JoinSet::new();
        let mut pull = Pull::new(&self.consumer, self.desk.broker.client.clone(), self.pull_for);
        let mut store_away = 0_u32;
        let ended = 'pulling: loop {
            while at_work.try_join_next().is_some() {}
            store_away = if self.desk.store_away.swap(false, Ordering::Relaxed) {
                store_away + 1
            } else {
                0
            };
            let asked = async {
                sleep(STORE_AWAY.after(store_away)).await;
                let room = room(&places).await;
                pull.ask(room.len()).await.map(|fetched| (fetched, room))
            };
            let (mut fetched, mut room) = tokio::select! {
                asked = asked => match asked {
                    Ok(asked) => asked,
                    Err(gone) => break Err(gone),
                },
                () = &mut stop => break Ok(()),
            };
            loop {
                let next = tokio::select! {
                    biased;
                    next = fetched.next() => next,
                    // What the server has sent already is given back, instead of left to its
                    // `ack_wait`.
                    () = &mut stop, if !*stopping.borrow() => {
                        stopping.send_replace(true);
                        continue;
                    }
                };
                match (next, room.pop()) {
                    (Some(Ok(message)), Some(place)) => {
                        pull.went_well();
                        let delivery =
                            Delivery::new(message, self.desk.scope.clone(), &*self.desk.key_of);
                        let (desk, handler) = (Arc::clone(&self.desk), Arc::clone(&handler));
                        at_work.spawn(desk.serve(delivery, handler, place, stopped.clone()));
                    }
                    (Some(Err(error)), _) => {
                        if let Err(gone) = pull.failed(&error).await {
                            break 'pulling Err(gone);
                        }
                    }
                    _ => break,
                }
            }
            pull.over(&fetched);
            if *stopping.borrow() {
                break Ok(());
            }
        };
        stopping.send_replace(true);
        let all = async { while at_work.join_next().await.is_some() {} };
        if timeout(self.drain, all).await.is_err() {
            tracing::warn!(
                messages = at_work.len(),
                "handlers dropped, they took longer than the drain time"
            );
        }
        at_work.shutdown().await;
        ended
    }
}

/// Places for messages: waits for one, and takes what else is free.
async fn room(places: &Arc<Semaphore>) -> Vec<OwnedSemaphorePermit> {
    // Never closed.
    let mut room: Vec<_> = Arc::clone(places).acquire_owned().await.into_iter().collect();
    while let Ok(place) = Arc::clone(places).try_acquire_owned() {
        room.push(place);
    }
    room
}
