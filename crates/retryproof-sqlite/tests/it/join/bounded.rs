// SPDX-License-Identifier: MIT OR Apache-2.0
//! A joined transaction holds the file's only write lock (CMP-7). Even so, it costs no other key
//! its lease, and no write of its action is committed separately.

use std::time::Duration;

use retryproof_core::store::{OwnedTx as _, Peeked, TxSource as _};
use retryproof_core::{
    Acquisition, ErrorKind, ExecuteError, HeldLease, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore as _, JoinedEngine, Outcome, blocking,
};
use retryproof_sqlite::{SqliteStore, SqliteTx, SqliteTxSource};
use rusqlite::Connection;
use tokio::time::{Instant, sleep};

use crate::support::Dir;

const MS: Duration = Duration::from_millis(1);

struct World {
    dir: Dir,
    engine: IdempotencyEngine,
    joined: JoinedEngine<SqliteTx>,
}

fn world() -> World {
    let dir = Dir::new();
    dir.stranger().execute_batch("CREATE TABLE ledger (what TEXT NOT NULL UNIQUE)").unwrap();
    let engine = IdempotencyEngine::new(SqliteStore::open_with(dir.config()).unwrap());
    let joined = engine.joined(SqliteTxSource::open_with(&dir.config()).unwrap()).unwrap();
    World { dir, engine, joined }
}

impl World {
    fn rows(&self) -> Vec<String> {
        let conn: Connection = self.dir.stranger();
        let mut all = conn.prepare("SELECT what FROM ledger ORDER BY what").unwrap();
        all.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    async fn held(&self, key: &str, lease: Duration) -> HeldLease {
        match self.engine.try_acquire(&ctx(key, lease)).await.unwrap() {
            Acquisition::Granted(held) => held,
            other => panic!("{other:?}"),
        }
    }

    async fn is_free(&self, key: &str) -> bool {
        let standing = self.engine.store().peek(ctx(key, 30_000 * MS).identity()).await.unwrap();
        matches!(standing, Peeked::Absent)
    }
}

fn ctx(key: &str, lease: Duration) -> IdempotencyContext {
    IdempotencyContext::builder("sqlite.tests", key)
        .lease(lease)
        .wait_timeout(Duration::ZERO)
        .build()
        .unwrap()
}

/// RUN-1: the heartbeats of a live holder continue, whatever a joined transaction of another key
/// does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cmp_7_run_1_a_long_joined_transaction_costs_no_other_key_its_lease() {
    let world = world();
    let live = world.held("live", 1_500 * MS).await;
    let begun = Instant::now();
    let long = world
        .joined
        .execute(ctx("long", 30_000 * MS), async |tx: &mut SqliteTx| {
            tx.execute("INSERT INTO ledger VALUES ('long')", [])?;
            sleep(10_000 * MS).await;
            Ok::<_, rusqlite::Error>(1_u8)
        })
        .await;
    assert!(begun.elapsed() < 5_000 * MS, "dropped: {:?}", begun.elapsed());
    let Err(ExecuteError::Completion(failed)) = long else { panic!("{long:?}") };
    assert_eq!(failed.error.kind(), ErrorKind::Unavailable, "{failed}");
    assert!(failed.to_string().contains("longer leases"), "{failed}");
    assert_eq!(world.rows(), [""; 0], "its writes are gone");
    assert!(world.is_free("long").await);
    // Even after the duration of a whole lease, the holder still has its lease.
    sleep(2_000 * MS).await;
    assert!(live.lease().believed_held());
    let refused = world.engine.try_acquire(&ctx("live", 1_500 * MS)).await.unwrap();
    assert!(matches!(refused, Acquisition::InFlight(_)), "{refused:?}");
    drop(live);
}

/// A transaction may stay open for a third of this process's shortest lease. For the leases of
/// other processes, the application sets a limit.
#[tokio::test]
async fn cmp_7_a_transactions_time_follows_the_shortest_lease_in_the_file() {
    let world = world();
    let source = SqliteTxSource::open_with(&world.dir.config()).unwrap();
    let most = async |source: &SqliteTxSource, limit: Duration| {
        // A part of the time has passed already, and more of it on a busy machine.
        for _ in 0..20 {
            let left = source.begin().await.unwrap().open_at_most().unwrap();
            assert!(left <= limit, "{left:?} of {limit:?}");
            if left > limit / 2 {
                return;
            }
        }
        panic!("less than half of {limit:?} is left each time");
    };
    most(&source, 10_000 * MS).await;
    most(&source.clone().with_longest(70 * MS), 70 * MS).await;
    let long = world.held("long", 60_000 * MS).await;
    most(&source, 10_000 * MS).await;
    let short = world.held("short", 3_000 * MS).await;
    most(&source, 1_000 * MS).await;
    short.release().await.unwrap();
    long.release().await.unwrap();
    let brief = world.held("brief", 90 * MS).await;
    most(&source, 30 * MS).await;
    brief.release().await.unwrap();
    sleep(100 * MS).await;
    // An expired lease no longer counts.
    most(&source, 1_000 * MS).await;
}

/// An action that blocks cannot be dropped, so its result is refused when the action ends.
#[test]
fn cmp_7_a_blocking_action_that_took_too_long_leaves_neither() {
    let dir = Dir::new();
    dir.stranger().execute_batch("CREATE TABLE ledger (what TEXT NOT NULL UNIQUE)").unwrap();
    let engine = blocking::Engine::new(SqliteStore::open_with(dir.config()).unwrap()).unwrap();
    let source = SqliteTxSource::open_with(&dir.config()).unwrap().with_longest(50 * MS);
    let joined = engine.joined(source).unwrap();
    let pay = |time: Duration| {
        joined.execute(ctx("k", 30_000 * MS), |tx| {
            let began = Instant::now();
            while began.elapsed() < time {
                std::thread::yield_now();
            }
            tx.execute("INSERT INTO ledger VALUES ('k')", [])
        })
    };
    let slow = pay(100 * MS);
    assert!(matches!(slow, Err(ExecuteError::Completion(_))), "{slow:?}");
    assert_eq!(
        pay(Duration::ZERO).unwrap(),
        Outcome::Executed(1),
        "neither writes nor record are left"
    );
}

/// SQLite rolls a whole transaction back on some errors. The later writes of an action must not be
/// committed separately.
#[tokio::test]
async fn cmp_7_sqlite_an_action_that_goes_on_after_its_transaction_is_gone_leaves_neither() {
    let world = world();
    world.dir.stranger().execute_batch("INSERT INTO ledger VALUES ('taken')").unwrap();
    let rolls_back = "INSERT OR ROLLBACK INTO ledger VALUES ('taken')";
    for goes_on in [
        &[rolls_back][..],
        &[rolls_back, "BEGIN"],
        &["ROLLBACK"],
        &["COMMIT"],
        &["COMMIT", "BEGIN"],
    ] {
        let gone: Result<Outcome<u8>, ExecuteError<()>> = world
            .joined
            .execute(ctx("k", 30_000 * MS), async |tx: &mut SqliteTx| {
                tx.execute("INSERT INTO ledger VALUES ('before')", []).unwrap();
                for sql in goes_on {
                    let _ = tx.execute_batch(sql);
                }
                let _ = tx.execute("INSERT INTO ledger VALUES ('after')", []);
                Ok(1)
            })
            .await;
        let Err(ExecuteError::Completion(failed)) = gone else { panic!("{goes_on:?}: {gone:?}") };
        assert!(failed.to_string().contains("no longer open"), "{failed}");
        assert_eq!(world.rows(), ["taken"], "{goes_on:?}");
        assert!(world.is_free("k").await, "{goes_on:?}");
    }
    // The connection still works, and the action can use savepoints.
    let paid = world.joined.execute(ctx("k", 30_000 * MS), async |tx: &mut SqliteTx| {
        tx.execute_batch("SAVEPOINT a; INSERT INTO ledger VALUES ('x'); ROLLBACK TO a; RELEASE a")?;
        tx.execute("INSERT INTO ledger VALUES ('paid')", [])
    });
    assert_eq!(paid.await.unwrap(), Outcome::Executed(1));
    assert_eq!(world.rows(), ["paid", "taken"]);
}

/// Another process can hold the file's lock when a transaction begins.
#[tokio::test]
async fn cmp_7_sto_5_a_transaction_begins_when_the_file_is_free_or_fails_in_time() {
    let dir = Dir::new();
    let (config, stranger) = (dir.config(), dir.stranger());
    let source =
        |timeout| SqliteTxSource::open_with(&config.clone().with_busy_timeout(timeout)).unwrap();
    let (brief, patient) = (source(50 * MS), source(5_000 * MS));
    stranger.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = Instant::now();
    let refused = tokio::time::timeout(10_000 * MS, brief.begin()).await.expect("it ends");
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(began.elapsed() >= 50 * MS, "{:?}", began.elapsed());
    let mut begins = std::pin::pin!(patient.begin());
    assert!(tokio::time::timeout(20 * MS, &mut begins).await.is_err(), "the file is locked");
    stranger.execute_batch("COMMIT").unwrap();
    begins.await.unwrap().commit_tx().await.unwrap();
}

/// Each transaction keeps its limit. One after the other, they would delay a beat for longer than a
/// lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_1_cmp_7_transactions_of_many_sources_cost_no_lease() {
    let world = world();
    let held = world.held("k", 3_000 * MS).await;
    let file = world.dir.file();
    let transactions: Vec<_> = (0..8)
        .map(|_| {
            let source = SqliteTxSource::open(&file).unwrap();
            tokio::spawn(async move {
                loop {
                    let tx = source.begin().await.unwrap();
                    sleep(600 * MS).await;
                    drop(tx);
                }
            })
        })
        .collect();
    for _ in 0..60 {
        sleep(100 * MS).await;
        assert!(held.lease().believed_held(), "the beats wait for all transactions");
    }
    transactions.iter().for_each(tokio::task::JoinHandle::abort);
}
