// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two listeners, written as in a real program.
//!
//! The ledger's bookings are in the database that contains the records. A booking and its record
//! therefore commit together, and each order is booked exactly once, even if the process is killed.
//! Receipts go to another system: a receipt is not sent again after its record is stored.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use retryproof::listener::Verdict;
use retryproof::observe::{LeaseEvent, Observer};
use retryproof::rabbitmq::{Delivery, RabbitmqListener};
use retryproof::sqlite::{SqliteConfig, SqliteStore, SqliteTx, SqliteTxSource};
use retryproof::{IdempotencyEngine, JoinedEngine, Recorded, idempotent};
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::ledger::{self, OrderPaid};
use crate::{BoxError, broker};

/// The settings of the listeners.
#[derive(Debug, Clone)]
pub(crate) struct Shop {
    pub(crate) db: PathBuf,
    pub(crate) prefix: String,
    pub(crate) lease: Duration,
    pub(crate) receipts: bool,
    pub(crate) die_after: Option<u64>,
}

impl Default for Shop {
    fn default() -> Self {
        Self {
            db: "orders.db".into(),
            prefix: "shop".into(),
            lease: Duration::from_secs(30),
            receipts: true,
            die_after: None,
        }
    }
}

impl Shop {
    pub(crate) fn ledger_queue(&self) -> String {
        format!("{}.ledger", self.prefix)
    }

    pub(crate) fn receipts_queue(&self) -> String {
        format!("{}.receipts", self.prefix)
    }

    /// Creates the tables and queues that the listeners need, then listens until SIGTERM or Ctrl-C.
    pub(crate) async fn listen(self) -> Result<(), BoxError> {
        // Install the signal handlers first, so that a stop during start-up is orderly too.
        let mut terminate = signal(SignalKind::terminate())?;
        let (ledger, receipts) = self.listeners().await?;
        let (stop, stopping) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            stop.send_replace(true);
        });
        let send_receipts = async {
            match self.receipts {
                true => receipts.run(stopped(stopping.clone())).await,
                false => Ok(()),
            }
        };
        tokio::try_join!(ledger.run(stopped(stopping.clone())), send_receipts)?;
        ledger.books.engine().shutdown(Duration::from_secs(10)).await;
        Ok(())
    }

    pub(crate) async fn listeners(&self) -> Result<(Ledger, Receipts), BoxError> {
        let url = broker::url()?;
        broker::declare(&url, self).await?;
        SqliteConfig::new(&self.db).migrate()?;
        ledger::migrate(&self.db)?;
        let mut builder = IdempotencyEngine::builder(SqliteStore::open(&self.db)?);
        if let Some(after) = self.die_after {
            builder = builder.observer(Mortal { left: AtomicU64::new(after) });
        }
        let engine = builder.build()?;
        let books = engine.joined(SqliteTxSource::open(&self.db)?)?;
        // Within this time, an operator may move a dead letter back to its queue, and the listener
        // still recognises its key.
        let keep = Duration::from_secs(30 * 24 * 3600);
        let of = |queue: &str, scope| {
            RabbitmqListener::builder(&url, queue, scope)
                .dead_letters(format!("{queue}.dead"))
                .lease(self.lease)
                .ttl(keep)
                .concurrency(8)
        };
        let ledger = of(&self.ledger_queue(), "ledger").build()?;
        let receipts = of(&self.receipts_queue(), "receipts").build()?;
        Ok((Ledger { listener: ledger, books }, Receipts { listener: receipts, engine }))
    }
}

/// Resolves when the program has to stop.
pub(crate) async fn stopped(mut stopping: watch::Receiver<bool>) {
    drop(stopping.wait_for(|stopping| *stopping).await);
}

/// Books paid orders.
pub(crate) struct Ledger {
    pub(crate) listener: RabbitmqListener,
    books: JoinedEngine<SqliteTx>,
}

impl Ledger {
    pub(crate) async fn run(&self, shutdown: impl Future<Output = ()>) -> Result<(), BoxError> {
        let books = self.books.clone();
        let handle = move |delivery: Delivery| {
            let books = books.clone();
            async move {
                let order: OrderPaid = delivery.json()?;
                let booked = books.execute(delivery.context()?, async |tx: &mut SqliteTx| {
                    say("ledger", "begun", &order);
                    ledger::book(tx, &order)
                });
                let verdict = Verdict::of(&booked.await);
                say("ledger", verdict.reason().as_str(), &order);
                Ok(verdict)
            }
        };
        Ok(self.listener.run(handle, shutdown).await?)
    }
}

/// Sends receipts. The attribute sets the key, which is the order's number here too.
pub(crate) struct Receipts {
    pub(crate) listener: RabbitmqListener,
    engine: IdempotencyEngine,
}

struct Sender {
    engine: IdempotencyEngine,
}

impl AsRef<IdempotencyEngine> for Sender {
    fn as_ref(&self) -> &IdempotencyEngine {
        &self.engine
    }
}

impl Sender {
    #[idempotent(key = order.id, scope = "receipts.sent", ttl = "P30D", lease = "PT2S", wait_timeout = "PT0S")]
    async fn send(&self, order: &OrderPaid) -> Result<(), BoxError> {
        // A real program would call a mail server here.
        say("receipts", "sent", order);
        Ok(())
    }
}

impl Receipts {
    pub(crate) async fn run(&self, shutdown: impl Future<Output = ()>) -> Result<(), BoxError> {
        let sender = std::sync::Arc::new(Sender { engine: self.engine.clone() });
        let handle = move |delivery: Delivery| {
            let sender = std::sync::Arc::clone(&sender);
            async move { Ok(Verdict::of_function(&sender.send(&delivery.json()?).await)) }
        };
        Ok(self.listener.run(handle, shutdown).await?)
    }
}

/// Prints one line for each event. The storm reads these lines from the journal, so each line is
/// written immediately and in one piece.
fn say(listener: &str, what: &str, order: &OrderPaid) {
    println!("{} {listener} {what} {}", std::process::id(), order.id);
}

/// Kills the process at the worst moment: after an order is booked, and before its message is
/// acknowledged.
struct Mortal {
    left: AtomicU64,
}

impl Observer for Mortal {
    fn completed(&self, _: LeaseEvent<'_>, _: Recorded) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}
