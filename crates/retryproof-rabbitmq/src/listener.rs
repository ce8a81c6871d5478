// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RabbitmqListener`]: receives the messages of a queue and handles them.

use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::listener::{Backoff, Poison, Verdict, VerdictCounters, WorkerPool};
use retryproof_core::{Error, ErrorKind, IntoScope, Result};
use tokio::sync::watch;

use crate::answer::BrokerReplies;
use crate::answer::wait_queue::RequeuePublisher;
use crate::config::{RabbitmqListenerBuilder, Settings};
use crate::delivery::Delivery;
use crate::error::connection_lost;
use crate::handle::{HandlerContext, StorePause};
use crate::receive::connection::{BrokerConnection, ConnectionLost};
use crate::receive::ramp_up::PrefetchRamp;
use crate::receive::{cancel, consume, next_delivery};

/// The pause between two attempts to connect.
const RECONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Handles the messages of one queue. Several listeners, in any number of processes, can share a
/// queue.
///
/// The listener reconnects when it loses the connection to the broker. Work that is running at that
/// moment finishes, but its answers are lost with the old connection. The broker redelivers the
/// messages, and the listener answers them from their records (LST-1).
pub struct RabbitmqListener {
    settings: Settings,
    counters: Arc<VerdictCounters>,
}

/// The state of one run, kept across its connections.
struct RunState {
    workers: WorkerPool,
    ramp: PrefetchRamp,
    /// Whether the listener has ever begun to consume.
    connected: bool,
    stopping: watch::Receiver<bool>,
}

/// How a connection ended.
enum SessionEnd {
    Stopped,
    Lost(Error),
}

impl RabbitmqListenerBuilder {
    /// Checks the settings. Does not connect yet.
    ///
    /// # Errors
    /// [`ErrorKind::Config`]: an invalid URL; root certificates that cannot be read; a queue for
    /// dead letters that is not set, or that is the work queue or one of its wait queues; a queue
    /// name of more than 230 bytes; a prefetch or a number of attempts of zero.
    /// [`ErrorKind::Unsupported`]: `amqps://` without the feature `tls`. [`ErrorKind::Invalid`]: a
    /// scope or a duration out of range (ID-3, CTX-2).
    pub fn build(self) -> Result<RabbitmqListener> {
        Ok(RabbitmqListener { settings: self.check()?, counters: Arc::default() })
    }
}

impl RabbitmqListener {
    /// Starts a builder with the broker's URL, the queue, and the scope of the messages' records.
    /// Name the scope after the work, not after the queue.
    pub fn builder(url: &str, queue: &str, scope: impl IntoScope) -> RabbitmqListenerBuilder {
        RabbitmqListenerBuilder::new(url, queue, scope)
    }

    /// Returns the counters of the three kinds of verdict and of their reasons. A verdict is
    /// counted just before its message is answered, so it counts even if the answer is lost.
    #[must_use]
    pub fn counters(&self) -> Arc<VerdictCounters> {
        Arc::clone(&self.counters)
    }

    /// Handles messages until `shutdown` resolves, across reconnects and outages. When `shutdown`
    /// has resolved, the listener receives no more messages, returns the messages whose handler has
    /// not started, and waits for the running handlers. Handlers that run longer than
    /// [`drain_timeout`](RabbitmqListenerBuilder::drain_timeout) are dropped: their leases run out,
    /// and their messages are redelivered.
    ///
    /// The handler returns a verdict on its message;
    /// [`guarded`](retryproof_core::listener::guarded) returns the usual verdict. A panic counts as
    /// a failed attempt.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] before the first message: the broker rejects the login or the attempt
    /// to consume, its certificate is not trusted, or one of the two queues is missing. If the
    /// broker cannot be reached, or rejects the listener later, the listener logs the error and
    /// retries forever.
    ///
    /// # Cancel safety
    /// Dropping the future drops the running handlers: their leases run out (RUN-5), and all
    /// unanswered messages are redelivered.
    pub async fn run<H, Fut>(&self, handler: H, shutdown: impl Future<Output = ()>) -> Result<()>
    where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let (stop, stopping) = watch::channel(false);
        let signal = async {
            shutdown.await;
            stop.send_replace(true);
            pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            never = signal => match never {},
            ended = self.serve(Arc::new(handler), stopping) => ended,
        }
    }

    /// Connects and handles messages until the listener stops. Reconnects after each lost
    /// connection.
    async fn serve<H, Fut>(&self, handler: Arc<H>, stopping: watch::Receiver<bool>) -> Result<()>
    where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let settings = &self.settings;
        let context = Arc::new(self.context());
        let mut state = RunState {
            workers: WorkerPool::new(settings.concurrency),
            ramp: PrefetchRamp::new(settings.prefetch),
            connected: false,
            stopping,
        };
        let mut failures = 0_u32;
        let ended = loop {
            let connection = tokio::select! {
                connection = self.connect() => connection,
                _ = state.stopping.wait_for(|stopping| *stopping) => break Ok(()),
            };
            let lost = match connection {
                Ok(connection) => {
                    let before = context.replies.answered();
                    let ended = self.session(connection, &mut state, &context, &handler).await;
                    state.ramp.connection_lost();
                    // Reset the count of failures only if a message was answered over this
                    // connection. A message that the driver cannot decode breaks each new
                    // connection immediately, and must not reset the count each time.
                    if context.replies.answered() > before {
                        failures = 0;
                    }
                    match ended {
                        SessionEnd::Stopped => break Ok(()),
                        SessionEnd::Lost(error) => error,
                    }
                }
                Err(error) => error,
            };
            // Before the first connection, a rejection is a configuration error. Later, a rejection
            // can be transient, for example if the queue's leader is unavailable.
            if !state.connected && lost.kind() != ErrorKind::Unavailable {
                break Err(lost);
            }
            failures = failures.saturating_add(1);
            let pause = RECONNECT_BACKOFF.after(failures);
            tracing::warn!(queue = settings.queue, error = %lost, again = ?pause,
                "connection to RabbitMQ lost; reconnecting");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = state.stopping.wait_for(|stopping| *stopping) => break Ok(()),
            }
        };
        // Without a connection, no message can be answered, but running work can still finish.
        self.drain(&mut state.workers).await;
        context.replies.publisher.close().await;
        ended
    }

    fn context(&self) -> HandlerContext {
        let settings = &self.settings;
        HandlerContext {
            replies: BrokerReplies {
                publisher: RequeuePublisher::new(settings.url.clone(), &settings.queue),
                dead_letters: settings.dead_letters.clone(),
                backoff: settings.rules.backoff(),
                answered: watch::Sender::new(0),
            },
            messages: Arc::clone(&settings.messages),
            key_of: Arc::clone(&settings.key_of),
            subject_of: settings.subject_of.clone(),
            rules: settings.rules,
            store_pause: StorePause::default(),
            counters: self.counters(),
        }
    }

    /// Connects, and checks that both queues exist. Without this check, the listener would notice a
    /// missing dead-letter queue only when it needs that queue.
    async fn connect(&self) -> Result<BrokerConnection> {
        let settings = &self.settings;
        let name = format!("retryproof: {}", settings.queue);
        let connection = BrokerConnection::open(&settings.url, &name).await?;
        connection.find_queue(&settings.queue).await?;
        connection.find_queue(&settings.dead_letters).await?;
        Ok(connection)
    }

    /// Handles messages until the connection is lost or the listener is stopped.
    async fn session<H, Fut>(
        &self,
        connection: BrokerConnection,
        state: &mut RunState,
        context: &Arc<HandlerContext>,
        handler: &Arc<H>,
    ) -> SessionEnd
    where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let RunState { workers, ramp, connected, stopping } = state;
        let queue = &self.settings.queue;
        let consuming = async {
            let channel = connection.channel().await?;
            let prefetch = ramp.begin(context.replies.answered());
            Ok((consume(&channel, queue, prefetch).await?, channel))
        };
        let (consumer, channel) = match consuming.await {
            Ok(consuming) => consuming,
            Err(error) => return SessionEnd::Lost(error),
        };
        *connected = true;
        let mut consumers = vec![consumer];
        // When this connection ends, `_alive` is dropped, and handlers stop waiting to answer over
        // the connection.
        let (_alive, lost) = ConnectionLost::new();
        loop {
            let next = async {
                let worker = workers.slot().await;
                context.store_pause.over().await;
                (worker, next_delivery(&mut consumers).await)
            };
            let (worker, delivery) = tokio::select! {
                biased;
                () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => break,
                () = ramp.due(&context.replies.answered) => {
                    // To raise the prefetch, add a consumer. Cancelling the first consumer instead
                    // could lose a message that the broker is sending to it.
                    let prefetch = ramp.raise(context.replies.answered());
                    match consume(&channel, queue, prefetch).await {
                        Ok(consumer) => consumers.push(consumer),
                        Err(error) => return SessionEnd::Lost(error),
                    }
                    continue;
                }
                next = next => next,
                // This branch notices a lost connection even while all workers are busy.
                () = connection.lost(&channel) => return SessionEnd::Lost(connection_lost()),
            };
            match delivery {
                Ok(delivery) => {
                    let (context, handler) = (Arc::clone(context), Arc::clone(handler));
                    workers.spawn(worker, context.handle(delivery, handler, lost.clone()));
                }
                Err(error) => return SessionEnd::Lost(error),
            }
        }
        // When the connection ends, the broker requeues the messages whose handler has not started.
        cancel(&channel, &consumers).await;
        self.drain(workers).await;
        connection.close().await;
        SessionEnd::Stopped
    }

    async fn drain(&self, workers: &mut WorkerPool) {
        let left = workers.drain(self.settings.drain_timeout).await;
        if left > 0 {
            tracing::warn!(
                queue = self.settings.queue,
                left,
                "handlers dropped: they were still running after the drain timeout"
            );
        }
    }
}

impl fmt::Debug for RabbitmqListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitmqListener")
            .field("scope", self.settings.messages.scope())
            .field("queue", &self.settings.queue)
            .finish_non_exhaustive()
    }
}
