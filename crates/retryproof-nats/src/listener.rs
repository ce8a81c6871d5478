// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NatsListener`]: handles the messages of a pull consumer.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use retryproof_core::listener::{Backoff, Poison, Verdict, VerdictCounters};
use retryproof_core::{IntoScope, Result};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::answer::ServerReplies;
use crate::config::{NatsListenerBuilder, count, limit, nonzero};
use crate::dead_letter::DeadLetterSubject;
use crate::delivery::Delivery;
use crate::error::invalid_setting;
use crate::handle::HandlerContext;
use crate::receive::{Fetcher, free_permits};

/// How long one request to the server waits for its response.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The server's `ack_wait` for a consumer that sets none.
const DEFAULT_ACK_WAIT: Duration = Duration::from_secs(30);
/// The pause between two fetch requests while the store is away: a message that is fetched then is
/// given back, which costs it a delivery.
const STORE_AWAY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// Handles the messages of one JetStream pull consumer. Several listeners, in any number of
/// processes, may share a consumer.
pub struct NatsListener {
    context: Arc<HandlerContext>,
    consumer: PullConsumer,
    prefetch: usize,
    drain_timeout: Duration,
}

impl fmt::Debug for NatsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsListener")
            .field("scope", &self.context.scope)
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}

impl NatsListenerBuilder {
    /// Checks the settings, also against the server.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](retryproof_core::ErrorKind::Config): no subject for dead letters; one
    /// that no stream takes, or that the consumer's own stream takes (it would deliver its own dead
    /// letters); a consumer without explicit acknowledgements, or without bodies.
    /// [`ErrorKind::Invalid`](retryproof_core::ErrorKind::Invalid) for the scope.
    /// [`ErrorKind::Unavailable`](retryproof_core::ErrorKind::Unavailable) when the server does not
    /// answer.
    pub async fn build(self) -> Result<NatsListener> {
        let scope = self.scope?;
        let info = self.consumer.cached_info();
        let config = &info.config;
        if config.ack_policy != AckPolicy::Explicit {
            return Err(invalid_setting(
                "the consumer does not acknowledge messages one by one; set its `ack_policy` to \
                 `explicit`",
            ));
        }
        if config.headers_only {
            return Err(invalid_setting(
                "the consumer delivers headers only; a listener needs the bodies",
            ));
        }
        let subject = self.dead_letters.ok_or_else(|| {
            invalid_setting(
                "no subject for dead letters is set: call `.dead_letters(\"dead.orders\")`",
            )
        })?;
        let client = self.jetstream.client();
        let dead_letters =
            DeadLetterSubject { jetstream: self.jetstream, subject, timeout: REPLY_TIMEOUT };
        dead_letters.check(&info.stream_name).await?;
        let ack_wait = nonzero(config.ack_wait).unwrap_or(DEFAULT_ACK_WAIT);
        let shortest = config.backoff.iter().copied().fold(ack_wait, Duration::min);
        let max_deliver = limit(config.max_deliver);
        let context = HandlerContext {
            replies: ServerReplies {
                client,
                timeout: REPLY_TIMEOUT,
                dead_letters,
                backoff: self.backoff,
                max_deliver,
                counters: Arc::new(VerdictCounters::default()),
            },
            scope,
            key_of: self.key_of,
            // Three reports within the shortest wait: two may get lost.
            progress_interval: (shortest / 3).max(Duration::from_millis(50)),
            running: Semaphore::new(self.concurrency),
            parked: Semaphore::new(self.max_parked.min(count(config.max_ack_pending) / 2)),
            backoff: self.backoff,
            fetch_timeout: nonzero(config.max_expires)
                .map_or(self.fetch_timeout, |most| most.min(self.fetch_timeout)),
            max_deliveries: [max_deliver, self.max_deliveries].into_iter().flatten().min(),
            store_away: AtomicBool::new(false),
        };
        let prefetch = self.prefetch.min(count(config.max_batch));
        Ok(NatsListener {
            context: Arc::new(context),
            prefetch,
            consumer: self.consumer,
            drain_timeout: self.drain_timeout,
        })
    }
}

impl NatsListener {
    /// Starts with the consumer and the scope of the messages' records. Name the scope after the
    /// work, not after the consumer: two consumers with one scope run each message once between
    /// them.
    pub fn builder(
        jetstream: Context,
        consumer: PullConsumer,
        scope: impl IntoScope,
    ) -> NatsListenerBuilder {
        NatsListenerBuilder::new(jetstream, consumer, scope)
    }

    /// Counts verdicts by reason, each when its message is answered.
    #[must_use]
    pub fn counters(&self) -> Arc<VerdictCounters> {
        Arc::clone(&self.context.replies.counters)
    }

    /// Handles messages until `shutdown` resolves, over reconnects and outages. Then fetches no
    /// more, gives back the messages that were not begun, to be redelivered after
    /// [`fetch_timeout`](NatsListenerBuilder::fetch_timeout), waits for the running handlers, and
    /// drops those that run longer than [`drain_timeout`](NatsListenerBuilder::drain_timeout):
    /// their leases run out, and their messages are redelivered.
    ///
    /// The handler returns a verdict on its message; a panic counts as a failure. It runs once for
    /// each delivery, and once more each time the message was parked.
    ///
    /// # Errors
    /// When the consumer was deleted.
    ///
    /// # Cancel safety
    /// Dropping the future drops the running handlers: their leases run out, and their messages are
    /// redelivered after the consumer's `ack_wait`.
    pub async fn run<H, Fut>(&self, handler: H, shutdown: impl Future<Output = ()>) -> Result<()>
    where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let permits = Arc::new(Semaphore::new(self.prefetch));
        let (stop, stopping) = watch::channel(false);
        let mut shutdown = pin!(shutdown);
        let mut handlers = JoinSet::new();
        let client = self.context.replies.client.clone();
        let mut fetcher = Fetcher::new(&self.consumer, client, self.context.fetch_timeout);
        let mut outages = 0_u32;
        let ended = 'fetching: loop {
            while handlers.try_join_next().is_some() {}
            outages = if self.context.take_store_away() { outages + 1 } else { 0 };
            let fetched = async {
                sleep(STORE_AWAY_BACKOFF.after(outages)).await;
                let free = free_permits(&permits).await;
                fetcher.fetch(free.len()).await.map(|request| (request, free))
            };
            let (mut request, mut free) = tokio::select! {
                fetched = fetched => match fetched {
                    Ok(fetched) => fetched,
                    Err(error) => break Err(error),
                },
                () = &mut shutdown => break Ok(()),
            };
            loop {
                let next = tokio::select! {
                    biased;
                    next = request.next() => next,
                    // The request stays open: messages that the server has sent already are given
                    // back, instead of waiting for the end of their `ack_wait`.
                    () = &mut shutdown, if !*stop.borrow() => {
                        stop.send_replace(true);
                        continue;
                    }
                };
                match (next, free.pop()) {
                    (Some(Ok(message)), Some(permit)) => {
                        fetcher.message_arrived();
                        let context = Arc::clone(&self.context);
                        let delivery =
                            Delivery::new(message, context.scope.clone(), &*context.key_of);
                        let (handler, stopping) = (Arc::clone(&handler), stopping.clone());
                        handlers.spawn(context.handle(delivery, handler, permit, stopping));
                    }
                    (Some(Err(error)), _) => {
                        if let Err(error) = fetcher.failed(&error).await {
                            break 'fetching Err(error);
                        }
                    }
                    _ => break,
                }
            }
            fetcher.ended(&request);
            if *stop.borrow() {
                break Ok(());
            }
        };
        stop.send_replace(true);
        self.drain(handlers).await;
        ended
    }

    async fn drain(&self, mut handlers: JoinSet<()>) {
        let finished = async { while handlers.join_next().await.is_some() {} };
        if timeout(self.drain_timeout, finished).await.is_err() {
            tracing::warn!(
                messages = handlers.len(),
                "handlers dropped: they ran longer than the drain timeout"
            );
        }
        handlers.shutdown().await;
    }
}
