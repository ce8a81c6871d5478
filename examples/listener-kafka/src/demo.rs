// SPDX-License-Identifier: MIT OR Apache-2.0
//! `listener-kafka demo`: publishes orders twice while members of the group die. The demo runs on
//! librdkafka's own mock cluster or on a real cluster.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use retryproof::kafka::Delivery;
use retryproof::kafka::rdkafka::mocking::MockCluster;
use retryproof::listener::{Reason, VerdictCounters};
use retryproof::sqlite::SqliteTx;
use retryproof::{JoinedEngine, OwnerId};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::{BoxError, app, receipts};

const PATIENCE: Duration = Duration::from_secs(120);
const PARTITIONS: i32 = 4;

/// The counts of all members together.
#[derive(Debug, Default)]
struct Seen {
    /// How often each message was handled, by partition and offset.
    handled: Mutex<HashMap<(i32, i64), usize>>,
    completed: AtomicUsize,
    /// Messages that a killed member has booked and will never answer.
    unanswered: AtomicUsize,
}

/// A member of the group in this process.
struct Member {
    task: JoinHandle<retryproof::Result<()>>,
    counters: Arc<VerdictCounters>,
    dies: Arc<AtomicBool>,
}

impl Member {
    /// Kills the member, which then answers no more messages. Waits until the member's clients are
    /// closed, because a client that is closed while the mock cluster ends would never finish
    /// closing.
    async fn die(self) -> Arc<VerdictCounters> {
        self.task.abort();
        drop(self.task.await);
        let closed = within(|| Arc::strong_count(&self.counters) == 1).await;
        debug_assert!(closed.is_ok(), "a client was not closed");
        self.counters
    }
}

/// Runs the demo. Returns `false` if a promise was broken.
pub(crate) async fn run(
    orders: usize,
    deaths: usize,
    brokers: Option<String>,
    topic: &str,
) -> Result<bool, BoxError> {
    let run: String =
        OwnerId::new().as_bytes().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let folder = std::env::temp_dir().join(format!("retryproof-listener-kafka-{run}"));
    std::fs::create_dir_all(&folder)?;
    let (mock, brokers, place) = match brokers {
        Some(brokers) => (None, brokers, "the brokers of the command line"),
        None => {
            let mock = MockCluster::new(3)?;
            mock.create_topic(topic, PARTITIONS, 3)?;
            mock.create_topic(&format!("{topic}.dead"), 1, 3)?;
            let brokers = mock.bootstrap_servers();
            (
                Some(mock),
                brokers,
                "librdkafka's mock cluster: with real clients, and brokers inside of this process",
            )
        }
    };
    println!("On {place}.");
    let played = play(orders, deaths, &brokers, topic, &folder.join("receipts.db")).await;
    drop(mock);
    std::fs::remove_dir_all(&folder)?;
    played
}

async fn play(
    orders: usize,
    deaths: usize,
    brokers: &str,
    topic: &str,
    db: &Path,
) -> Result<bool, BoxError> {
    let engine = app::engine(db)?;
    let seen = Arc::new(Seen::default());
    let began = Instant::now();
    app::publish(brokers, topic, orders).await?;
    let mut members = Vec::new();
    for death in 0..deaths {
        let member = join(brokers, topic, &engine, &seen)?;
        // Once the members have completed enough messages, this member dies at a moment when a
        // message is complete but its offset is not yet committed.
        let share = orders * 2 * (death + 1) / (deaths + 2);
        within(|| seen.completed.load(Ordering::SeqCst) >= share).await?;
        let before = seen.unanswered.load(Ordering::SeqCst);
        member.dies.store(true, Ordering::SeqCst);
        within(|| seen.unanswered.load(Ordering::SeqCst) > before).await?;
        members.push(member.die().await);
    }
    let last = join(brokers, topic, &engine, &seen)?;
    within(|| lock(&seen).len() >= orders * 2).await?;
    // Let the listener answer all open messages before the end.
    sleep(Duration::from_secs(2)).await;
    members.push(last.die().await);

    let count_of = |why| members.iter().map(|counters| counters.count_of(why)).sum::<u64>();
    let dead: u64 = members.iter().map(|counters| counters.read().dead_letters).sum();
    let (receipts, of) = receipts::count(&receipts::open(db)?)?;
    let handled: usize = lock(&seen).values().sum();
    let most = lock(&seen).values().max().copied().unwrap_or(0);
    println!("What happened");
    row("messages published", (orders * 2) as u64);
    row("members that died", deaths as u64);
    row("booked", count_of(Reason::Executed));
    row("skipped: booked before", count_of(Reason::Replayed));
    row("times that a message was in flight", count_of(Reason::InFlight));
    row("messages handled again by another member", handled.saturating_sub(orders * 2) as u64);
    row("most times that one message was handled", most as u64);
    println!("What the database holds");
    row("receipts", receipts as u64);
    println!("What must be zero");
    row("orders without a receipt", orders.saturating_sub(of) as u64);
    row("orders with more than one receipt", (receipts - of) as u64);
    row("dead letters", dead);
    let holds = of == orders && receipts == of && dead == 0;
    println!("\nIt took {:.1} s.", began.elapsed().as_secs_f64());
    println!("{}", if holds { "every promise held" } else { "A PROMISE DID NOT HOLD" });
    Ok(holds)
}

fn join(
    brokers: &str,
    topic: &str,
    engine: &JoinedEngine<SqliteTx>,
    seen: &Arc<Seen>,
) -> Result<Member, BoxError> {
    let listener = app::listener(brokers, topic)?;
    let counters = listener.counters();
    let (book, seen) = (app::book(engine.clone()), Arc::clone(seen));
    let dies = Arc::new(AtomicBool::new(false));
    let dooms = Arc::clone(&dies);
    let handler = move |delivery: Delivery| {
        let dying = Arc::clone(&dooms);
        let (seen, at, booked) =
            (Arc::clone(&seen), (delivery.partition(), delivery.offset()), book(delivery));
        async move {
            let verdict = booked.await;
            *lock(&seen).entry(at).or_default() += 1;
            seen.completed.fetch_add(1, Ordering::SeqCst);
            if dying.load(Ordering::SeqCst) {
                seen.unanswered.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            verdict
        }
    };
    let task = tokio::spawn(async move { listener.run(handler, std::future::pending()).await });
    Ok(Member { task, counters, dies })
}

async fn within(holds: impl Fn() -> bool) -> Result<(), BoxError> {
    let met = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, met).await.map_err(|_| "the group did not handle its messages in time".into())
}

fn lock(seen: &Seen) -> std::sync::MutexGuard<'_, HashMap<(i32, i64), usize>> {
    seen.handled.lock().unwrap_or_else(PoisonError::into_inner)
}

fn row(name: &str, count: u64) {
    println!("  {name:<42}{count:>8}");
}
