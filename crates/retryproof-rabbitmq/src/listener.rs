// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Consumer`]: receives the messages of a queue and handles them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use retryproof_core::codec::{Codec, JsonCodec};
use retryproof_core::listener::{Backoff, Verdict, VerdictCounters, WorkerPool};
use retryproof_core::{Error, ErrorKind, IdempotencyEngine, IntoScope, Lease, Result, Scope};

use crate::answer::BrokerReplies;
use crate::answer::wait_queue::RequeuePublisher;
use crate::config::ConsumerBuilder;
use crate::config::settings::{Decode, Settings};
use crate::delivery::Incoming;
use crate::error::{connection_lost, invalid_setting};
use crate::handle::{HandlerContext, StorePause};
use crate::receive::connection::{BrokerConnection, ConnectionLost};
use crate::receive::ramp_up::PrefetchRamp;
use crate::receive::url::BrokerUrl;
use crate::receive::{cancel, consume, next_delivery};

/// The broker allows names of up to 255 bytes, and the name of a wait queue is that of the work queue
/// and a suffix.
const MAX_QUEUE_NAME_BYTES: usize = 230;

/// The pause between two attempts to connect.
const RECONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// A consumer of one queue; made by [`Consumer::builder`]. Cheap to clone: clones share their
/// counters and are stopped together.
///
/// It reconnects when the broker goes away. Running work finishes meanwhile; its answers are lost
/// with the connection, and the redelivered messages are answered from their records (LST-1).
pub struct Consumer<T>(Arc<Inner<T>>);

struct Inner<T> {
    url: BrokerUrl,
    scope: Scope,
    settings: Arc<Settings>,
    decode: Arc<Decode<T>>,
    counters: Arc<VerdictCounters>,
    stop: Arc<watch::Sender<bool>>,
}

/// Stops a consumer from elsewhere; see [`Consumer::stopper`].
#[derive(Debug, Clone)]
pub struct Stopper(Arc<watch::Sender<bool>>);

impl Stopper {
    /// Stops the consumer: it takes no more messages, and [`Consumer::run`] returns when the
    /// running handlers have ended or the drain timeout is over.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// How a connection ended.
enum SessionEnd {
    Stopped,
    Lost(Error),
}

impl<T: Send + 'static> ConsumerBuilder<T> {
    /// Checks the settings. Connects to nothing yet.
    ///
    /// # Errors
    /// `Config` for an invalid URL, for root certificates that cannot be read, for a queue name of
    /// more than 230 bytes, and for a prefetch or a number of attempts of zero; `Unsupported` for
    /// `amqps://` without the feature `tls`; `Invalid` for a scope or a duration out of bounds
    /// (ID-3, CTX-2).
    pub fn build(self) -> Result<Consumer<T>> {
        let Self { url, roots, scope, settings, decode } = self;
        let (url, scope) = (BrokerUrl::parse(&url, &roots)?, scope?);
        for queue in [&settings.queue, &settings.dead_letters] {
            if queue.is_empty() || queue.len() > MAX_QUEUE_NAME_BYTES {
                return Err(invalid_setting("a queue name has to be 1 to 230 bytes long"));
            }
        }
        if settings.prefetch == Some(0) || settings.max_attempts == 0 {
            return Err(invalid_setting("prefetch and number of attempts have to be at least 1"));
        }
        // Checks the durations.
        settings.context(&scope, "any", b"")?;
        Ok(Consumer::new(url, scope, settings, decode))
    }
}

impl Consumer<()> {
    /// Starts with the broker's URL, the queue, and the scope of the messages' records. Bodies are
    /// bytes unless [`json`](ConsumerBuilder::json) or [`decode`](ConsumerBuilder::decode) is set.
    pub fn builder(url: &str, queue: &str, scope: impl IntoScope) -> ConsumerBuilder<Vec<u8>> {
        ConsumerBuilder::new(url, queue, scope)
    }
}

impl<T: Send + 'static> Consumer<T> {
    fn new(url: BrokerUrl, scope: Scope, settings: Settings, decode: Arc<Decode<T>>) -> Self {
        let (settings, stop) = (Arc::new(settings), Arc::new(watch::Sender::new(false)));
        Self(Arc::new(Inner { url, scope, settings, decode, counters: Arc::default(), stop }))
    }

    /// Runs `work` once for each message, guarded by `engine`, until the consumer is
    /// [stopped](Self::stopper). A message is acknowledged after its work has returned and was
    /// recorded (LST-2).
    ///
    /// # Errors
    /// `Config` if the broker rejects the listener at the start (the login, or to consume), if its
    /// certificate is not trusted, or if one of the two queues is missing, which is checked before
    /// the first message. Later rejections are logged and tried again for ever, and so is a broker
    /// that cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future drops the running work: its leases run out (RUN-5), and all unanswered
    /// messages are redelivered.
    pub async fn run<F, Fut, V, E>(&self, engine: &IdempotencyEngine, work: F) -> Result<()>
    where
        F: Fn(T, Lease) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        V: Send + 'static,
        E: Send + 'static,
        JsonCodec: Codec<V>,
    {
        let (engine, work) = (engine.clone(), Arc::new(work));
        self.run_with(move |incoming: Incoming<T>| {
            let (call, work) = (engine.call(incoming.ctx), Arc::clone(&work));
            async move { Verdict::of(&call.execute_with(|lease| work(incoming.body, lease)).await) }
        })
        .await
    }

    /// As [`run`](Self::run), for work that makes the call itself: it passes [`Incoming::ctx`] to an
    /// engine, say one whose transaction the record joins (CMP-7), or calls a function under
    /// `#[idempotent(key = ..)]`, and returns the verdict.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub async fn run_with<F, Fut>(&self, work: F) -> Result<()>
    where
        F: Fn(Incoming<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Verdict> + Send + 'static,
    {
        let Inner { settings, stop, .. } = &*self.0;
        let work = Arc::new(work);
        let context = Arc::new(self.context());
        let mut workers = WorkerPool::new(settings.concurrency.min(settings.prefetch().into()));
        let mut stopped = stop.subscribe();
        let (mut failures, mut connected) = (0_u32, false);
        let mut ramp = PrefetchRamp::new(settings.prefetch());
        let ended = loop {
            let connection = tokio::select! {
                connection = self.connect() => connection,
                _ = stopped.wait_for(|stop| *stop) => break Ok(()),
            };
            let lost = match connection {
                Ok(connection) => {
                    let before = context.replies.answered();
                    let session = self.session(
                        connection,
                        &mut workers,
                        &mut ramp,
                        &mut connected,
                        &context,
                        &work,
                    );
                    let ended = session.await;
                    ramp.connection_lost();
                    // A connection without an answer is a failure as well: a message that the
                    // driver cannot decode breaks each connection at once.
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
            // Before the first connection, a rejection is a matter of configuration. Later it may be
            // transient, such as a queue whose leader is away.
            if !connected && lost.kind() != ErrorKind::Unavailable {
                break Err(lost);
            }
            failures = failures.saturating_add(1);
            let pause = RECONNECT_BACKOFF.after(failures);
            tracing::warn!(queue = settings.queue, error = %lost, again = ?pause,
                "connection to RabbitMQ lost; connecting again");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stopped.wait_for(|stop| *stop) => break Ok(()),
            }
        };
        // Without a connection no message can be answered, but running work may still finish.
        self.drain(&mut workers).await;
        context.replies.publisher.close().await;
        ended
    }

    /// A handle that stops this consumer and its clones, now or as soon as they run.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.0.stop))
    }

    /// Counts verdicts by reason.
    #[must_use]
    pub fn counters(&self) -> Arc<VerdictCounters> {
        Arc::clone(&self.0.counters)
    }

    fn context(&self) -> HandlerContext<T> {
        let Inner { url, scope, settings, decode, counters, .. } = &*self.0;
        HandlerContext {
            replies: BrokerReplies {
                publisher: RequeuePublisher::new(url.clone(), &settings.queue),
                dead_letters: settings.dead_letters.clone(),
                backoff: settings.backoff,
                answered: watch::Sender::new(0),
            },
            scope: scope.clone(),
            settings: Arc::clone(settings),
            decode: Arc::clone(decode),
            store_pause: StorePause::default(),
            counters: Arc::clone(counters),
        }
    }

    /// Connects, and checks that both queues exist: a missing dead-letter queue would be noticed too
    /// late.
    async fn connect(&self) -> Result<BrokerConnection> {
        let Inner { url, settings, .. } = &*self.0;
        let name = format!("retryproof: {}", settings.queue);
        let connection = BrokerConnection::open(url, &name).await?;
        connection.find_queue(&settings.queue).await?;
        connection.find_queue(&settings.dead_letters).await?;
        Ok(connection)
    }

    /// Handles messages until the connection is lost or the consumer is stopped.
    async fn session<F, Fut>(
        &self,
        connection: BrokerConnection,
        workers: &mut WorkerPool,
        ramp: &mut PrefetchRamp,
        connected: &mut bool,
        context: &Arc<HandlerContext<T>>,
        work: &Arc<F>,
    ) -> SessionEnd
    where
        F: Fn(Incoming<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Verdict> + Send + 'static,
    {
        let queue = &self.0.settings.queue;
        let mut stopped = self.0.stop.subscribe();
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
        // Dropped when this connection is given up: handlers then no longer wait to answer over it.
        let (_alive, lost) = ConnectionLost::new();
        loop {
            let next = async {
                let worker = workers.slot().await;
                context.store_pause.over().await;
                (worker, next_delivery(&mut consumers).await)
            };
            let (worker, delivery) = tokio::select! {
                biased;
                () = async { drop(stopped.wait_for(|stop| *stop).await) } => break,
                () = ramp.due(&context.replies.answered) => {
                    // A further consumer is added. Cancelling the first one could lose a message
                    // that the broker is sending to it.
                    let prefetch = ramp.raise(context.replies.answered());
                    match consume(&channel, queue, prefetch).await {
                        Ok(consumer) => consumers.push(consumer),
                        Err(error) => return SessionEnd::Lost(error),
                    }
                    continue;
                }
                next = next => next,
                // All workers may be busy when the connection is lost.
                () = connection.lost(&channel) => return SessionEnd::Lost(connection_lost()),
            };
            match delivery {
                Ok(delivery) => {
                    let (context, work) = (Arc::clone(context), Arc::clone(work));
                    workers.spawn(worker, context.handle(delivery, work, lost.clone()));
                }
                Err(error) => return SessionEnd::Lost(error),
            }
        }
        // Messages that were received and not begun are returned when the connection ends.
        cancel(&channel, &consumers).await;
        self.drain(workers).await;
        connection.close().await;
        SessionEnd::Stopped
    }

    async fn drain(&self, workers: &mut WorkerPool) {
        let left = workers.drain(self.0.settings.drain_timeout).await;
        if left > 0 {
            tracing::warn!(
                queue = self.0.settings.queue,
                left,
                "handlers dropped: they ran longer than the drain timeout"
            );
        }
    }
}

impl<T> Clone for Consumer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("scope", &self.0.scope)
            .field("settings", &self.0.settings)
            .field("counters", &self.0.counters.read())
            .finish_non_exhaustive()
    }
}
