// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Consumer`]: from a queue through the engine to the broker's answer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_core::Stream;
use lapin::Channel;
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use tokio::sync::watch;

use retryproof_core::codec::{Codec, JsonCodec};
use retryproof_core::listener::{Lanes, Tally, Verdict, caught};
use retryproof_core::{
    Error, ErrorKind, IdempotencyContext, IdempotencyEngine, IntoScope, Lease, Result, Scope,
};

use crate::answer::wait_queue::Outbox;
use crate::answer::{Desk, Gone, Rest};
use crate::config::{ConsumerBuilder, Decode, Settings};
use crate::delivery::Message;
use crate::error::classify;
use crate::receive::connection::{Link, within};
use crate::receive::ramp_up::Window;
use crate::receive::url::Server;

/// Between two attempts to connect: from the first, doubled, to the second.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A consumer of one queue; made by [`Consumer::builder`]. Cheap to clone: clones share what they
/// counted and are stopped together.
///
/// It stays connected: a broker that goes away is connected to again, and the messages in work are
/// finished meanwhile. Their answers are lost with the connection; they come again, and the record
/// answers (LST-1).
pub struct Consumer<T>(Arc<Inner<T>>);

struct Inner<T> {
    server: Server,
    scope: Scope,
    settings: Settings,
    decode: Arc<Decode<T>>,
    tally: Arc<Tally>,
    stop: Arc<watch::Sender<bool>>,
}

/// A message that was read, with all that a call of the engine wants; see [`Consumer::run_with`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Incoming<T> {
    /// The call: scope, key, durations, the fingerprint of the body.
    pub ctx: IdempotencyContext,
    /// The body, decoded.
    pub body: T,
    /// The message itself.
    pub message: Arc<Message>,
}

/// Stops a consumer from elsewhere; see [`Consumer::stopper`].
#[derive(Debug, Clone)]
pub struct Stopper(Arc<watch::Sender<bool>>);

impl Stopper {
    /// Takes no more messages. [`Consumer::run`] returns when those in work are answered, or after
    /// the time for draining.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// How one connection ended.
enum Ended {
    Stopped,
    Lost(Error),
}

impl Consumer<()> {
    /// A consumer of `queue` at the broker `url`, whose messages' keys count within `scope`. Bodies
    /// are bytes until [`json`](ConsumerBuilder::json) or [`decode`](ConsumerBuilder::decode) says
    /// otherwise.
    pub fn builder(url: &str, queue: &str, scope: impl IntoScope) -> ConsumerBuilder<Vec<u8>> {
        ConsumerBuilder::new(url, queue, scope)
    }
}

impl<T: Send + 'static> Consumer<T> {
    pub(crate) fn new(
        server: Server,
        scope: Scope,
        settings: Settings,
        decode: Arc<Decode<T>>,
    ) -> Self {
        let stop = Arc::new(watch::Sender::new(false));
        Self(Arc::new(Inner { server, scope, settings, decode, tally: Arc::default(), stop }))
    }

    /// Runs `work` once for each message, guarded by `engine`, until it is
    /// [stopped](Self::stopper). A message is acknowledged when its work has returned and is
    /// recorded (LST-2).
    ///
    /// # Errors
    /// `Config` when the broker refuses us at the start (the login, or to consume from the queue),
    /// or cannot be known by its certificate, or the queue or the one for dead letters is missing:
    /// both are looked for before the first message. What it refuses later is warned about and
    /// tried again, for ever. A broker that is only away is waited for.
    ///
    /// # Cancel safety
    /// Dropped, the work in the middle is dropped and its leases run out (RUN-5); all unanswered
    /// messages come again.
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

    /// As [`run`](Self::run), for work that guards itself: it makes the call of [`Incoming::ctx`]
    /// on an engine of its choice, say one whose transaction the record joins (CMP-7), or calls a
    /// function under `#[idempotent(key = ..)]`; and says what came of it.
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
        let Inner { server, settings, stop, .. } = &*self.0;
        let work = Arc::new(work);
        let desk = Arc::new(Desk {
            outbox: Outbox::new(server.clone(), &settings.queue),
            dead_letters: settings.dead_letters.clone(),
            most_failures: settings.most_failures,
            backoff: settings.backoff,
            answered: watch::Sender::new(0),
            rest: Rest::default(),
        });
        let mut lanes = Lanes::new(settings.at_once.min(settings.prefetch().into()));
        let mut stopped = stop.subscribe();
        let (mut pause, mut connected) = (AGAIN.0, false);
        let mut window = Window::new(settings.prefetch());
        let ended = loop {
            let link = tokio::select! {
                link = self.connect() => link,
                _ = stopped.wait_for(|stop| *stop) => break Ok(()),
            };
            let lost = match link {
                Ok(link) => {
                    let before = desk.answered();
                    let ended = self
                        .session(link, &mut lanes, &mut window, &mut connected, &desk, &work)
                        .await;
                    window.lost();
                    // Connected alone is no success: a message that the driver cannot read breaks
                    // each connection at once.
                    if desk.answered() > before {
                        pause = AGAIN.0;
                    }
                    match ended {
                        Ended::Stopped => break Ok(()),
                        Ended::Lost(error) => error,
                    }
                }
                Err(error) => error,
            };
            // At the start a matter of configuration; later perhaps a queue whose leader is away.
            if !connected && lost.kind() != ErrorKind::Unavailable {
                break Err(lost);
            }
            tracing::warn!(queue = settings.queue, error = %lost, again = ?pause,
                "connection to RabbitMQ lost; connecting again");
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(AGAIN.1),
                _ = stopped.wait_for(|stop| *stop) => break Ok(()),
            }
        };
        // With a connection that is gone there is nobody to answer, but the work may still end
        // well.
        self.drain(&mut lanes).await;
        desk.outbox.close().await;
        ended
    }

    /// Stops this consumer and its clones, also one that runs later.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.0.stop))
    }

    /// What was answered so far.
    #[must_use]
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.0.tally)
    }

    /// Connects, and sees that both queues are there: a dead letter with nowhere to go would be
    /// noticed too late.
    async fn connect(&self) -> Result<Link> {
        let Inner { server, settings, .. } = &*self.0;
        let link = Link::open(server, &format!("retryproof: {}", settings.queue)).await?;
        link.find(&settings.queue).await?;
        link.find(&settings.dead_letters).await?;
        Ok(link)
    }

    /// Takes messages until the connection is lost or the consumer stopped.
    async fn session<F, Fut>(
        &self,
        link: Link,
        lanes: &mut Lanes,
        window: &mut Window,
        connected: &mut bool,
        desk: &Arc<Desk>,
        work: &Arc<F>,
    ) -> Ended
    where
        F: Fn(Incoming<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Verdict> + Send + 'static,
    {
        let mut stopped = self.0.stop.subscribe();
        let consuming = async {
            let channel = link.channel().await?;
            Ok((self.consume(&channel, window.begin(desk.answered())).await?, channel))
        };
        let (consumer, channel) = match consuming.await {
            Ok(consuming) => consuming,
            Err(error) => return Ended::Lost(error),
        };
        *connected = true;
        let mut consumers = vec![consumer];
        // Dropped when this connection is given up: whoever still waits to answer by it stops
        // waiting.
        let (_here, gone) = Gone::new();
        loop {
            let next = async {
                let lane = lanes.free().await;
                desk.rest.over().await;
                (lane, next(&mut consumers).await)
            };
            let (lane, delivery) = tokio::select! {
                biased;
                () = async { drop(stopped.wait_for(|stop| *stop).await) } => break,
                () = window.due(&desk.answered) => {
                    // One more, beside the others: one that is cancelled may be sent a message that
                    // nobody sees any more.
                    match self.consume(&channel, window.widen(desk.answered())).await {
                        Ok(consumer) => consumers.push(consumer),
                        Err(error) => return Ended::Lost(error),
                    }
                    continue;
                }
                next = next => next,
                // All lanes may be full while it is lost.
                () = link.lost(&channel) => return Ended::Lost(Error::unavailable("the connection is gone")),
            };
            match delivery {
                Some(Ok(delivery)) => {
                    lanes.run(lane, self.handle(delivery, desk, work, gone.clone()))
                }
                Some(Err(error)) => return Ended::Lost(classify(error)),
                None => {
                    return Ended::Lost(Error::unavailable("the broker cancelled the consumer"));
                }
            }
        }
        // Otherwise each answer would bring another message. What was handed to us and not begun
        // goes back when the connection ends.
        for consumer in &consumers {
            let cancelled = channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
            drop(within(cancelled).await);
        }
        self.drain(lanes).await;
        link.close().await;
        Ended::Stopped
    }

    /// Asks for messages, so many ahead of their answers.
    async fn consume(&self, channel: &Channel, prefetch: u16) -> Result<lapin::Consumer> {
        let asked = async {
            within(channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
            let (queue, options) =
                (self.0.settings.queue.as_str().into(), BasicConsumeOptions::default());
            within(channel.basic_consume(queue, "".into(), options, FieldTable::default())).await
        };
        asked.await.map_err(|error: Error| error.during("consume"))
    }

    async fn drain(&self, lanes: &mut Lanes) {
        let left = lanes.finish(self.0.settings.drain).await;
        if left > 0 {
            tracing::warn!(
                queue = self.0.settings.queue,
                left,
                "a stopped consumer dropped messages in work; they come again"
            );
        }
    }

    /// One message: read, work, answer.
    fn handle<F, Fut>(
        &self,
        delivery: Delivery,
        desk: &Arc<Desk>,
        work: &Arc<F>,
        gone: Gone,
    ) -> impl Future<Output = ()> + Send + 'static
    where
        F: Fn(Incoming<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Verdict> + Send + 'static,
    {
        let (inner, desk, work) = (Arc::clone(&self.0), Arc::clone(desk), Arc::clone(work));
        async move {
            let acker = delivery.acker.clone();
            let message = Arc::new(Message::of(delivery));
            let mut identity = None;
            // A decoder that panics is caught as well: a message without any answer would take its
            // place of the prefetch for good.
            let handled = caught(async {
                match inner.settings.read(&inner.scope, &*inner.decode, &message) {
                    Ok((ctx, body)) => {
                        identity = Some(ctx.identity().clone());
                        work(Incoming { ctx, body, message: Arc::clone(&message) }).await
                    }
                    Err(poison) => Verdict::poison(poison),
                }
            });
            let verdict = handled.await;
            let verdict = desk.judge(verdict, &message);
            inner.tally.count(&verdict);
            verdict.log("rabbitmq", identity.as_ref());
            desk.answer(verdict, &message, &acker, gone).await;
        }
    }
}

/// The next message that comes by any of them; `None` when one of them has ended.
async fn next(consumers: &mut [lapin::Consumer]) -> Option<lapin::Result<Delivery>> {
    std::future::poll_fn(|cx| {
        let next = consumers
            .iter_mut()
            .map(|consumer| Pin::new(consumer).poll_next(cx))
            .find(Poll::is_ready);
        next.unwrap_or(Poll::Pending)
    })
    .await
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
            .field("tally", &self.0.tally.read())
            .finish_non_exhaustive()
    }
}
