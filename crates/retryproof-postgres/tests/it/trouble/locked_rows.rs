// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many callers of one record whose row an open transaction has locked, and the callers of other
//! records beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired};
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::{DAY, Stranger, Table, grant, hex, id, pgbouncer, postgres, request};

const CALLERS: usize = 50;

/// A record whose lease is over, and a transaction that has locked its row.
async fn locked(table: &Table, store: &PostgresStore, key: &str) -> Stranger {
    let brief = AcquireRequest::new(OwnerId::new(), Duration::from_millis(10), DAY);
    assert!(matches!(store.acquire(&id(key), &brief).await, Ok(Acquired::Granted(_))));
    sleep(Duration::from_millis(20)).await;
    let mut joined = table.stranger().await;
    let lock = format!("BEGIN; SELECT 1 FROM \"{}\" WHERE key={} FOR UPDATE", table.name, hex(key));
    joined.run(lock).await;
    joined
}

/// Callers of the record, each again half a second after its answer. They take part while `on`.
fn callers(
    store: &Arc<PostgresStore>,
    key: &'static str,
    on: &Arc<AtomicBool>,
) -> (JoinSet<()>, Arc<AtomicUsize>) {
    let (mut tasks, answers) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for _ in 0..CALLERS {
        let (store, on, answers) = (Arc::clone(store), Arc::clone(on), Arc::clone(&answers));
        tasks.spawn(async move {
            loop {
                if on.load(Ordering::SeqCst) {
                    let began = Instant::now();
                    match store.acquire(&id(key), &request(OwnerId::new())).await.expect("answered")
                    {
                        Acquired::Busy { .. } => {}
                        other => panic!("{other:?}"),
                    }
                    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
                    answers.fetch_add(1, Ordering::SeqCst);
                    sleep(Duration::from_millis(500)).await;
                } else {
                    sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }
    (tasks, answers)
}

/// How long acquires of fresh records took, one after the other.
async fn others(store: &PostgresStore, name: &str, count: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for at in 0..count {
        let began = Instant::now();
        grant(store, &id(&format!("{name} {at}")), OwnerId::new()).await;
        took.push(began.elapsed());
        sleep(Duration::from_millis(2)).await;
    }
    took
}

fn p99(took: &mut [Duration]) -> Duration {
    took.sort();
    took[took.len() * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cmp_7_a_locked_record_does_not_slow_the_callers_of_others() {
    let table = Table::new().await;
    let store = Arc::new(table.store().await);
    let mut joined = locked(&table, &store, "hot").await;
    others(&store, "warm", 50).await;
    let on = Arc::new(AtomicBool::new(false));
    let (mut tasks, answers) = callers(&store, "hot", &on);
    let mut ratios = Vec::new();
    // By turns, so that what else the machine does meets both alike; and again, where it met one of
    // them alone.
    for attempt in 0..3 {
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for round in 0..8 {
            alone.extend(others(&store, &format!("alone {attempt} {round}"), 100).await);
            on.store(true, Ordering::SeqCst);
            beside.extend(others(&store, &format!("beside {attempt} {round}"), 100).await);
            on.store(false, Ordering::SeqCst);
            sleep(Duration::from_millis(600)).await;
        }
        let (alone, beside) = (p99(&mut alone), p99(&mut beside));
        println!("p99 alone {alone:?}, beside callers of a locked record {beside:?}");
        // Below some milliseconds both are noise.
        ratios.push(beside.as_secs_f64() / alone.max(Duration::from_millis(5)).as_secs_f64());
        if ratios.iter().any(|ratio| *ratio <= 2.0) {
            break;
        }
    }
    let answers = answers.load(Ordering::SeqCst);
    assert!(answers >= 5 * CALLERS, "the callers were there: {answers}");
    assert!(ratios.iter().any(|ratio| *ratio <= 2.0), "times as long beside them: {ratios:?}");
    assert!(tasks.try_join_next().is_none(), "a caller failed");
    tasks.shutdown().await;
    // The row is free as soon as it is let go.
    joined.run("ROLLBACK").await;
    assert!(grant(&store, &id("hot"), OwnerId::new()).await.took_over);
}

/// Counts the statements that wait for the lock at once, and where many records are locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cmp_7_locked_records_have_a_part_of_the_connections() {
    for (url, pooler) in [(postgres(), Pooler::Session), (pgbouncer(), Pooler::Transaction)] {
        let table = Table::new().await;
        let config = PostgresConfig::from_url(&url).expect("a URL").with_table_name(&table.name);
        let store = PostgresStore::connect(config.with_pooler(pooler)).await.expect("connected");
        let store = Arc::new(store);
        let keys = ["a", "b", "c", "d", "e", "f"];
        let mut locks = Vec::new();
        for key in keys {
            locks.push(locked(&table, &store, key).await);
        }
        let on = Arc::new(AtomicBool::new(true));
        let mut tasks: Vec<_> = keys.into_iter().map(|key| callers(&store, key, &on).0).collect();
        // The first of each record have found out, and are counted from then on.
        sleep(Duration::from_millis(500)).await;
        let waiting = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type='Lock' AND query LIKE '%{}_grant%'",
            table.name
        );
        let mut stranger = table.stranger().await;
        let mut most = 0;
        for _ in 0..50 {
            most = most.max(stranger.number(waiting.clone()).await);
            sleep(Duration::from_millis(10)).await;
        }
        println!("{most} statements wait for a lock at most ({pooler:?})");
        // Of eight connections for calls a quarter, and one that is on its way.
        assert!(most <= 3, "{most} connections wait for locks ({pooler:?})");
        for tasks in &mut tasks {
            assert!(tasks.try_join_next().is_none(), "a caller failed");
            tasks.shutdown().await;
        }
        for lock in &mut locks {
            lock.run("ROLLBACK").await;
        }
    }
}
