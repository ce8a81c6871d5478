// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many callers of one record whose row an open transaction has locked, and the callers of other
//! records beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, FencedWrite, LiveLease};
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::on;
use crate::support::{
    COLLIDING, DAY, LONG, Stranger, Table, completion, grant, hex, id, pgbouncer, postgres, request,
};

const CALLERS: usize = 50;

/// Creates a record whose lease has ended. Returns a transaction that has locked its row.
async fn locked(table: &Table, store: &PostgresStore, key: &str) -> Stranger {
    expired(store, key, OwnerId::new()).await;
    lock(table, key).await
}

/// Creates a record of `owner` whose lease has ended.
async fn expired(store: &PostgresStore, key: &str, owner: OwnerId) {
    let brief = AcquireRequest::new(owner, Duration::from_millis(10), DAY);
    assert!(matches!(store.acquire(&id(key), &brief).await, Ok(Acquired::Granted(_))));
    sleep(Duration::from_millis(20)).await;
}

/// Returns a transaction that has locked the record's row.
async fn lock(table: &Table, key: &str) -> Stranger {
    let mut joined = table.stranger().await;
    let lock = format!("BEGIN; SELECT 1 FROM \"{}\" WHERE key={} FOR UPDATE", table.name, hex(key));
    joined.run(lock).await;
    joined
}

/// Starts callers of the record. Each calls again half a second after its answer, while `on` is
/// set.
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
                        Acquired::Busy(_) => {}
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

/// Acquires `count` new records, one after the other, and returns how long each acquire took.
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
    // Take the two measurements in turn, so that other load on the machine slows both equally.
    // Repeat them if the load slowed only one of them.
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
        // Treat every time below 5 ms as 5 ms, because such short times are noise.
        ratios.push(beside.as_secs_f64() / alone.max(Duration::from_millis(5)).as_secs_f64());
        if ratios.iter().any(|ratio| *ratio <= 2.0) {
            break;
        }
    }
    let answers = answers.load(Ordering::SeqCst);
    assert!(answers >= 5 * CALLERS, "the callers were active: {answers}");
    assert!(
        ratios.iter().any(|ratio| *ratio <= 2.0),
        "times as long beside those callers: {ratios:?}"
    );
    assert!(tasks.try_join_next().is_none(), "a caller failed");
    tasks.shutdown().await;
    // The row is free as soon as the transaction ends.
    joined.run("ROLLBACK").await;
    assert!(grant(&store, &id("hot"), OwnerId::new()).await.took_over);
}

/// The store limits how many statements wait for a lock at the same time, even if many records are
/// locked.
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
        // During this sleep, the first callers for each record find the lock. From then on, the
        // store limits the callers for that record.
        sleep(Duration::from_millis(500)).await;
        let waiting = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type='Lock' AND query LIKE '%{}_grant_1%'",
            table.name
        );
        let mut stranger = table.stranger().await;
        let mut most = 0;
        for _ in 0..50 {
            most = most.max(stranger.number(waiting.clone()).await);
            sleep(Duration::from_millis(10)).await;
        }
        println!("{most} statements wait for a lock at most ({pooler:?})");
        // At most a quarter of the eight connections for calls wait for a lock, plus one statement
        // that was just sent.
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

#[tokio::test]
async fn cmp_7_a_row_held_by_an_open_transaction_is_in_flight() {
    for url in [postgres(), pgbouncer()] {
        let table = Table::new().await;
        let store = PostgresStore::connect(on(&url, &table)).await.expect("connected");
        let id = id("held");
        let brief = AcquireRequest::new(OwnerId::new(), Duration::from_millis(10), DAY);
        let Ok(Acquired::Granted(first)) = store.acquire(&id, &brief).await else {
            panic!("not granted")
        };
        sleep(Duration::from_millis(20)).await;
        let mut joined = table.stranger().await;
        joined.run(format!("BEGIN; SELECT * FROM \"{}\" FOR UPDATE", table.name)).await;
        let started = Instant::now();
        match store.acquire(&id, &request(OwnerId::new())).await.expect("answered") {
            Acquired::Busy(LiveLease { remaining, token, .. }) => {
                assert_eq!((remaining, token), (Duration::ZERO, first.token))
            }
            other => panic!("{other:?}"),
        }
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        // The acquire leaves no lock behind: the row is free as soon as the transaction ends.
        joined.run("ROLLBACK").await;
        assert!(grant(&store, &id, OwnerId::new()).await.took_over);
    }
}

/// The answer to the holder's first acquire was lost. The repeated acquire never says that the key
/// is in flight, whether the lease is live or has ended.
#[tokio::test]
async fn acq_9_a_repeated_acquire_of_a_locked_row_does_not_find_its_own_record_busy() {
    let table = Table::new().await;
    let config = table.config().with_call_timeout(Duration::from_secs(1));
    let store = Arc::new(PostgresStore::connect(config).await.expect("connected"));
    for (key, is_live) in [("live", true), ("ended", false)] {
        let owner = OwnerId::new();
        if is_live {
            grant(&store, &id(key), owner).await;
        } else {
            expired(&store, key, owner).await;
        }
        let mut joined = lock(&table, key).await;
        let error = store.acquire(&id(key), &request(owner)).await.expect_err("locked");
        assert!(error.is_retryable() && error.to_string().contains("transaction"), "{error}");
        // The transaction ends during the next acquire, after the time for which a caller waits
        // that does not own the record.
        let repeated = {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.acquire(&id(key), &request(owner)).await })
        };
        sleep(Duration::from_millis(500)).await;
        joined.run("ROLLBACK").await;
        let answer = repeated.await.expect("no panic");
        assert!(matches!(answer, Ok(Acquired::Granted(_))), "{key}: {answer:?}");
    }
}

/// The callers of a locked record share what one of them has read, but the holder does not take
/// that for the lease of another caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_9_among_the_callers_of_a_locked_row_its_holder_does_not_find_it_busy() {
    let table = Table::new().await;
    let config = table.config().with_call_timeout(Duration::from_secs(1));
    let store = Arc::new(PostgresStore::connect(config).await.expect("connected"));
    let owner = OwnerId::new();
    expired(&store, "hot", owner).await;
    let mut joined = lock(&table, "hot").await;
    let on = Arc::new(AtomicBool::new(true));
    let (mut tasks, _) = callers(&store, "hot", &on);
    sleep(Duration::from_millis(500)).await;
    for round in 0..3 {
        let answer = store.acquire(&id("hot"), &request(owner)).await;
        assert!(answer.is_err(), "round {round}: {answer:?}");
    }
    tasks.shutdown().await;
    joined.run("ROLLBACK").await;
    let answer = store.acquire(&id("hot"), &request(owner)).await.expect("answered");
    assert!(matches!(&answer, Acquired::Granted(grant) if !grant.took_over), "{answer:?}");
}

#[tokio::test]
async fn run_2_a_beat_on_a_locked_row_gives_way_to_others() {
    let table = Table::new().await;
    let store =
        PostgresStore::connect(table.config().with_max_connections(2)).await.expect("connected");
    let (locked, free, owner) = (id("locked"), id("free"), OwnerId::new());
    grant(&store, &locked, owner).await;
    grant(&store, &free, owner).await;
    let mut joined = table.stranger().await;
    joined
        .run(format!(
            "BEGIN; SELECT * FROM \"{}\" WHERE key={} FOR UPDATE",
            table.name,
            hex("locked")
        ))
        .await;
    let started = Instant::now();
    let (one, other, through) = tokio::join!(
        store.extend(&locked, owner, LONG),
        store.release(&locked, owner),
        store.extend(&free, owner, LONG)
    );
    for error in [one.expect_err("locked"), other.expect_err("locked")] {
        assert!(error.is_retryable() && error.to_string().contains("transactions"), "{error}");
    }
    assert_eq!(through.expect("a beat gets through"), FencedWrite::Applied);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    joined.run("ROLLBACK").await;
    assert_eq!(store.extend(&locked, owner, LONG).await.expect("extended"), FencedWrite::Applied);
}

#[tokio::test]
async fn run_2_beats_have_connections_of_their_own() {
    let table = Table::new().await;
    let store = Arc::new(
        PostgresStore::connect(table.config().with_max_connections(4)).await.expect("connected"),
    );
    let (held, owner) = (id("held"), OwnerId::new());
    grant(&store, &held, owner).await;
    let brief = AcquireRequest::new(OwnerId::new(), Duration::from_millis(10), DAY);
    assert!(matches!(store.acquire(&id("locked"), &brief).await, Ok(Acquired::Granted(_))));
    sleep(Duration::from_millis(20)).await;
    let mut joined = table.stranger().await;
    joined
        .run(format!(
            "BEGIN; SELECT * FROM \"{}\" WHERE key={} FOR UPDATE",
            table.name,
            hex("locked")
        ))
        .await;
    // Each of these acquires occupies a connection for a quarter of a second, and only two
    // connections are available for them.
    let acquires: Vec<_> = (0..40)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                store.acquire(&id("locked"), &request(OwnerId::new())).await.map(drop)
            })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        sleep(Duration::from_millis(20)).await;
        let started = Instant::now();
        assert_eq!(
            store.extend(&held, owner, LONG).await.expect("a beat gets through"),
            FencedWrite::Applied
        );
        slowest = slowest.max(started.elapsed());
    }
    assert_eq!(
        store.complete(&held, owner, &completion("done")).await.expect("completed"),
        FencedWrite::Applied
    );
    assert!(slowest < Duration::from_secs(1), "a beat took {slowest:?}");
    let mut starved = 0;
    for acquire in acquires {
        if let Err(error) = acquire.await.expect("no panic") {
            assert!(error.is_retryable(), "{error}");
            starved += 1;
        }
    }
    println!("slowest beat {slowest:?}; {starved} of 40 acquires were not answered in time");
    joined.run("ROLLBACK").await;
}

#[tokio::test]
async fn cmp_7_a_locked_record_holds_up_no_key_whose_hash_collides() {
    let table = Table::new().await;
    let store = Arc::new(table.store().await);
    let [hot, other] = COLLIDING;
    let mut joined = locked(&table, &store, hot).await;
    let mut tasks = JoinSet::new();
    for _ in 0..CALLERS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            while let Ok(Acquired::Busy(_)) =
                store.acquire(&id(hot), &request(OwnerId::new())).await
            {}
        });
    }
    sleep(Duration::from_millis(500)).await;
    for round in 0..5 {
        let owner = OwnerId::new();
        let answer = store.acquire(&id(other), &request(owner)).await.expect("answered");
        assert!(matches!(answer, Acquired::Granted(_)), "round {round}: {answer:?}");
        let released = store.release(&id(other), owner).await.expect("released");
        assert_eq!(released, FencedWrite::Applied);
        sleep(Duration::from_millis(100)).await;
    }
    assert!(tasks.try_join_next().is_none(), "a caller of the locked record ended");
    tasks.shutdown().await;
    joined.run("ROLLBACK").await;
}
