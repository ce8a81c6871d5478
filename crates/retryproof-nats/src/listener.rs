// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NatsListener`]: handles the messages of a pull consumer.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::PullConsumer;
use retryproof_core::listener::{
    Backoff, MessageSettings, Poison, Verdict, VerdictCounters, drain,
};
use retryproof_core::{IntoScope, Result};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::answer::ServerReplies;
use crate::config::NatsListenerBuilder;
use crate::dead_letter::DeadLetterSubject;
use crate::delivery::{Delivery, KeyOf};
use crate::handle::HandlerContext;
use crate::receive::{Fetcher, free_permits};

/// How long a request to the server waits for its response.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two fetch requests while the store is unavailable. A message that is fetched
/// during an outage is given back, which uses up one of its deliveries.
const STORE_AWAY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// Handles the messages of one JetStream pull consumer. Several listeners, in any number of
/// processes, can share a consumer.
pub struct NatsListener {
    context: Arc<HandlerContext>,
    consumer: PullConsumer,
    key_of: Arc<KeyOf>,
    subject_of: Option<Arc<KeyOf>>,
    messages: Arc<MessageSettings>,
    prefetch: usize,
}

impl fmt::Debug for NatsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsListener")
            .field("scope", self.messages.scope())
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}

impl NatsListenerBuilder {
    /// Checks the settings, and that they are compatible with the consumer's settings. Sends
    /// nothing to the server.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](retryproof_core::ErrorKind::Config) if no subject for dead letters is
    /// set, or if the consumer does not require explicit acknowledgements or delivers no bodies.
    /// [`ErrorKind::Invalid`](retryproof_core::ErrorKind::Invalid) for a scope or a duration out of
    /// range (ID-3, CTX-2).
    pub fn build(self) -> Result<NatsListener> {
        let settings = self.check()?;
        let context = HandlerContext {
            replies: ServerReplies {
                client: settings.jetstream.client(),
                timeout: REPLY_TIMEOUT,
                dead_letters: DeadLetterSubject {
                    jetstream: settings.jetstream,
                    subject: settings.dead_letters,
                    timeout: REPLY_TIMEOUT,
                },
                backoff: settings.backoff,
                max_deliver: settings.max_deliver,
                counters: Arc::new(VerdictCounters::default()),
            },
            rules: settings.rules,
            progress_interval: settings.progress_interval,
            running: Semaphore::new(settings.concurrency),
            parked: Semaphore::new(settings.max_parked),
            fetch_timeout: settings.fetch_timeout,
            drain_timeout: settings.drain_timeout,
            max_deliveries: settings.max_deliveries,
            store_away: AtomicBool::new(false),
        };
        Ok(NatsListener {
            context: Arc::new(context),
            consumer: settings.consumer,
            key_of: settings.key_of,
            subject_of: settings.subject_of,
            messages: settings.messages,
            prefetch: settings.prefetch,
        })
    }
}

impl NatsListener {
    /// Starts a builder with the consumer and the scope of the messages' records. Name the scope
    /// after the work, not after the consumer. If two consumers use the same scope, each message
    /// runs in only one of them.
    pub fn builder(
        jetstream: Context,
        consumer: PullConsumer,
        scope: impl IntoScope,
    ) -> NatsListenerBuilder {
        NatsListenerBuilder::new(jetstream, consumer, scope)
    }

    /// Returns the counters of the three kinds of verdict and of their reasons. A verdict is
    /// counted when its message is answered.
    #[must_use]
    pub fn counters(&self) -> Arc<VerdictCounters> {
        Arc::clone(&self.context.replies.counters)
    }

    /// Handles messages until `shutdown` resolves, and continues through reconnects and outages.
    /// When `shutdown` has resolved, the listener fetches no more messages, and waits for running
    /// handlers. It gives back the messages whose handler has not started, and the server
    /// redelivers them after [`fetch_timeout`](NatsListenerBuilder::fetch_timeout). Handlers that
    /// run longer than [`drain_timeout`](NatsListenerBuilder::drain_timeout) are dropped: their
    /// leases run out, and their messages are given back too. If the consumer's `max_deliver`
    /// allows no further delivery, a message can still start until the drain timeout, and is then
    /// published as a dead letter with the reason `in-flight`.
    ///
    /// The handler returns a verdict on its message;
    /// [`guarded`](retryproof_core::listener::guarded) returns the usual verdict. A panic counts as
    /// a failure. The handler runs once for each delivery, and again each time the message has been
    /// parked.
    ///
    /// # Errors
    /// Fails if the consumer or its stream is deleted. Fails with
    /// [`ErrorKind::Config`](retryproof_core::ErrorKind::Config), before the first message, if no
    /// stream captures the dead-letter subject. Fails in the same way if the consumer's own stream
    /// captures the subject, because the consumer would then deliver its own dead letters. While
    /// the server does not answer, the listener waits.
    ///
    /// # Cancel safety
    /// Dropping the future drops the running handlers: their leases run out, and their messages are
    /// redelivered after the consumer's `ack_wait`.
    pub async fn run<H, Fut>(&self, handler: H, shutdown: impl Future<Output = ()>) -> Result<()>
    where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let mut shutdown = pin!(shutdown);
        let stream = &self.consumer.cached_info().stream_name;
        tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            found = self.context.replies.dead_letters.find(stream) => found?,
        }
        let handler = Arc::new(handler);
        let permits = Arc::new(Semaphore::new(self.prefetch));
        let (stop, stopping) = watch::channel(false);
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
                    // Keep the request open, so that the messages that the server has already sent
                    // are given back now. Otherwise, the server would redeliver them only after
                    // their `ack_wait`.
                    () = &mut shutdown, if !*stop.borrow() => {
                        stop.send_replace(true);
                        continue;
                    }
                };
                match (next, free.pop()) {
                    (Some(Ok(message)), Some(permit)) => {
                        fetcher.message_arrived();
                        let context = Arc::clone(&self.context);
                        let settings = Arc::clone(&self.messages);
                        let subject_of = self.subject_of.as_deref();
                        let delivery = Delivery::new(message, settings, &*self.key_of, subject_of);
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
        // At the end of the drain timeout, the messages are answered.
        let limit = self.context.drain_timeout.saturating_add(REPLY_TIMEOUT);
        let left = drain(&mut handlers, limit).await;
        if left > 0 {
            tracing::warn!(messages = left, "messages not answered before the listener ended");
        }
        ended
    }
}
