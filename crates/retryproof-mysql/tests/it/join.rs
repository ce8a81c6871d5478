// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining the application's transaction on the same database (CMP-7).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake};
use std::time::Duration;

use retryproof_core::observe::{Counters, Counts};
use retryproof_core::store::{Acquired, LiveLease, Peeked};
use retryproof_core::{
    Acquisition, CodecId, ExecuteError, HeldLease, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore, JoinError, JoinedEngine, Outcome, OwnerId, Payload, Result,
};
use retryproof_mysql::{MySqlPool, MysqlTx as Tx};
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Executor as _, Row as _, raw_sql};
use tokio::time::Instant;

use crate::support::{Table, body, request, sql, stranger, url};

mod interrupted;
mod lost;
#[cfg(feature = "sqlx-08")]
mod sqlx_08;

const MS: Duration = Duration::from_millis(1);

pub(crate) struct World {
    pub(crate) engine: IdempotencyEngine,
    pub(crate) counters: Arc<Counters>,
    pool: MySqlPool,
    joined: JoinedEngine<Tx>,
    pub(crate) table: Table,
}

pub(crate) async fn world() -> World {
    let table = Table::new().await;
    let counters = Counters::new();
    let store = table.store().await.into_shared();
    let engine = IdempotencyEngine::builder(store).observer(Arc::clone(&counters)).build().unwrap();
    let pool = pool(&url()).await;
    let world =
        World { joined: engine.joined(pool.clone()).unwrap(), engine, counters, pool, table };
    let ledger = world.ledger();
    sql(&mut stranger().await, &format!("CREATE TABLE {ledger} (what text NOT NULL)")).await;
    world
}

async fn pool(url: &str) -> MySqlPool {
    MySqlPool::connect(url).await.expect("a pool of the application")
}

async fn write(tx: &mut MySqlConnection, ledger: &str, what: &str) {
    sql(tx, &format!("INSERT INTO {ledger} VALUES ('{what}')")).await;
}

impl World {
    pub(crate) fn ledger(&self) -> String {
        format!("{}_meta_ledger", self.table.name)
    }

    pub(crate) async fn rows(&self) -> i64 {
        let count = AssertSqlSafe(format!("SELECT count(*) FROM {}", self.ledger()));
        stranger().await.fetch_one(count).await.unwrap().get(0)
    }

    /// Returns how many leases were completed, failed and lost, and checks that each lease has
    /// ended exactly once.
    pub(crate) fn ends(&self) -> (u64, u64, u64) {
        let Counts { acquired, completed, failed, lost, .. } = self.counters.read();
        assert_eq!(acquired, completed + failed + lost);
        (completed, failed, lost)
    }

    pub(crate) async fn pay(
        &self,
        key: &str,
    ) -> Result<Outcome<String>, ExecuteError<&'static str>> {
        let ledger = self.ledger();
        self.joined
            .execute(ctx(key), async |tx: &mut Tx| {
                write(tx, &ledger, key).await;
                Ok(format!("paid {key}"))
            })
            .await
    }

    pub(crate) async fn held(&self, key: &str) -> HeldLease {
        match self.engine.try_acquire(&ctx(key)).await.unwrap() {
            Acquisition::Granted(held) => held,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn standing(&self, key: &str) -> Peeked {
        self.engine.store().peek(ctx(key).identity()).await.unwrap()
    }

    pub(crate) async fn replay(&self, key: &str) -> String {
        match self.standing(key).await {
            Peeked::Complete(stored) => body(&stored),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn end(self) {
        sql(&mut stranger().await, &format!("DROP TABLE {}", self.ledger())).await;
    }
}

pub(crate) fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("mysql.tests", key)
        .lease(3_000 * MS)
        .wait_timeout(20_000 * MS)
        .build()
        .unwrap()
}

pub(crate) fn value(text: &str) -> Payload {
    Payload::new(CodecId::BYTES, 1, text.as_bytes())
}

#[tokio::test]
async fn cmp_7_mysql_commits_record_and_writes_together_or_neither() {
    let world = world().await;
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Executed("paid k".to_owned()));
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Replayed("paid k".to_owned()));
    assert_eq!((world.rows().await, world.ends()), (1, (1, 0, 0)));
    let ledger = world.ledger();
    let failed = world
        .joined
        .execute(ctx("f"), async |tx: &mut Tx| {
            write(tx, &ledger, "never").await;
            Err::<String, _>("declined")
        })
        .await;
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))));
    assert!(matches!(world.standing("f").await, Peeked::Absent), "the key is free");
    assert!(world.pay("f").await.unwrap().is_executed());
    assert_eq!((world.rows().await, world.ends()), (2, (2, 1, 0)));
    world.end().await;
}

#[tokio::test]
async fn cmp_7_cmp_2_mysql_a_refused_completion_fails_the_call_and_its_writes_are_gone() {
    let world = world().await;
    let (ledger, table) = (world.ledger(), world.table.name.clone());
    let taker = OwnerId::new();
    let digits: String = taker.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let refused = world
        .joined
        .execute(ctx("k"), async |tx: &mut Tx| {
            write(tx, &ledger, "overtaken").await;
            let taken = format!("UPDATE `{table}` SET owner=X'{digits}',token=token+1 WHERE k='k'");
            assert_eq!(sql(&mut stranger().await, &taken).await, 1);
            Ok::<_, &'static str>(String::new())
        })
        .await;
    assert!(matches!(refused, Err(ExecuteError::LeaseLost)), "{refused:?}");
    assert_eq!((world.rows().await, world.ends()), (0, (0, 0, 1)));
    assert!(!matches!(world.standing("k").await, Peeked::Complete(_)));
    world.end().await;
}

/// RUN-1, RUN-3: the heartbeat keeps the lease during a long transaction, and ends before the
/// transaction locks the record's row.
#[tokio::test]
async fn cmp_7_run_3_mysql_a_long_transaction_keeps_its_lease() {
    let world = world().await;
    let ledger = world.ledger();
    let short = IdempotencyContext::builder("mysql.tests", "k").lease(2_000 * MS).build().unwrap();
    let outcome = world
        .joined
        .execute(short, async |tx: &mut Tx| {
            write(tx, &ledger, "k").await;
            tokio::time::sleep(5_000 * MS).await;
            Ok::<_, &'static str>(String::new())
        })
        .await;
    assert!(outcome.unwrap().is_executed());
    assert!(matches!(world.standing("k").await, Peeked::Complete(_)));
    assert_eq!(
        (world.rows().await, world.counters.read().loss_noticed, world.ends()),
        (1, 0, (1, 0, 0))
    );
    world.end().await;
}

#[tokio::test]
async fn cmp_7_mysql_others_that_meet_the_locked_row_end_in_time_and_are_woken_by_the_commit() {
    let world = Arc::new(world().await);
    let held = world.held("k").await;
    let mut tx = world.pool.begin().await.unwrap();
    write(&mut tx, &world.ledger(), "k").await;
    let joined = Payload::new(CodecId::JSON, 1, b"\"joined\"");
    let pending = held.complete_in(&mut tx, joined).await.unwrap();
    // The lease ends while the row is locked. No other caller gets the key, and no caller hangs.
    tokio::time::sleep(3_100 * MS).await;
    let begun = Instant::now();
    let busy =
        world.engine.store().acquire(ctx("k").identity(), &request(OwnerId::new())).await.unwrap();
    assert!(
        matches!(busy, Acquired::Busy(LiveLease { remaining: Duration::ZERO, .. })),
        "{busy:?}"
    );
    assert!(begun.elapsed() < 5_000 * MS, "{:?}", begun.elapsed());
    let waiter = {
        let world = Arc::clone(&world);
        tokio::spawn(async move { (world.pay("k").await.unwrap(), Instant::now()) })
    };
    tokio::time::sleep(500 * MS).await;
    assert!(!waiter.is_finished(), "nothing is visible before the commit");
    let committed = Instant::now();
    tx.commit().await.unwrap();
    pending.committed();
    let (outcome, heard) = waiter.await.unwrap();
    assert_eq!(outcome, Outcome::Replayed("joined".to_owned()));
    assert!(heard - committed < 5_000 * MS, "{:?}", heard - committed);
    assert_eq!(world.rows().await, 1, "a caller that has the result sees the writes");
    Arc::try_unwrap(world).ok().expect("the last").end().await;
}

/// Returns whether a waiter for the key is woken when the program reports that its commit happened.
/// Nothing else runs between the report and the check, so neither a timer nor a read wakes it.
async fn wakes_at_once(world: &World, key: &str) -> bool {
    struct Heard(AtomicBool);
    impl Wake for Heard {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let held = world.held(key).await;
    let Peeked::Busy(lease) = world.standing(key).await else { panic!("not held") };
    let (key, engine) = (ctx(key), world.engine.clone());
    let mut waiting =
        pin!(engine.store().wait_for_change(key.identity(), lease.token, 20_000 * MS));
    // The waiter subscribes, and reads the record.
    assert!(tokio::time::timeout(200 * MS, &mut waiting).await.is_err());
    let heard = Arc::new(Heard(AtomicBool::new(false)));
    let waker = Arc::clone(&heard).into();
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let mut tx = world.pool.begin().await.unwrap();
    let pending = held.complete_in(&mut tx, value("done")).await.unwrap();
    tx.commit().await.unwrap();
    heard.0.store(false, Ordering::Relaxed);
    pending.committed();
    let woken = heard.0.load(Ordering::Relaxed);
    waiting.await.unwrap();
    woken
}

/// The report wakes a waiter that sleeps until its next read. A waiter whose read is under way hears
/// of the commit only when the read has ended, so one woken waiter of ten is enough.
#[tokio::test]
async fn cmp_7_acq_4_mysql_a_commit_that_the_program_reports_wakes_the_waiters_at_once() {
    let world = world().await;
    let mut woken = false;
    for number in 0..10 {
        woken = woken || wakes_at_once(&world, &number.to_string()).await;
    }
    assert!(woken, "none of 10 waiters was woken before its next read");
    world.end().await;
}

#[tokio::test]
async fn cmp_7_mysql_complete_in_joins_a_transaction_of_sqlx() {
    let world = world().await;
    let ledger = world.ledger();
    // Dropping the call rolls the transaction back, and the lease is released in the background.
    let held = world.held("1").await;
    let mut tx = world.pool.begin().await.unwrap();
    write(&mut tx, &ledger, "1").await;
    let pending = held.complete_in(&mut tx, value("one")).await.unwrap();
    drop((tx, pending));
    assert!(world.pay("1").await.unwrap().is_executed(), "freed, not left to its lease");
    assert_eq!(world.counters.read().taken_over, 0);
    // If the answer to the COMMIT is lost, the store finds out whether the commit happened.
    for commits in [false, true] {
        let held = world.held("2").await;
        let mut tx = world.pool.begin().await.unwrap();
        let pending = held.complete_in(&mut tx, value("two")).await.unwrap();
        if commits {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        assert_eq!(pending.in_doubt().await.unwrap(), commits);
    }
    assert_eq!(world.replay("2").await, "two");
    // The record cannot be written over a lost connection.
    let held = world.held("3").await;
    let mut tx = world.pool.begin().await.unwrap();
    let row = tx.fetch_one(raw_sql("SELECT CAST(CONNECTION_ID() AS SIGNED)")).await.unwrap();
    let process: i64 = row.get(0);
    sql(&mut stranger().await, &format!("KILL {process}")).await;
    let refused = held.complete_in(&mut tx, value("three")).await;
    assert!(matches!(refused, Err(JoinError::Failed(_))), "{refused:?}");
    drop(tx);
    assert!(world.pay("3").await.unwrap().is_executed());
    world.end().await;
}

/// From 11.6.2 on, MariaDB does not let a transaction at REPEATABLE READ update a row that has
/// changed since its snapshot. Each heartbeat changes the record's row.
#[tokio::test]
async fn cmp_7_mysql_a_long_transaction_that_reads_first_is_joined_under_snapshot_isolation() {
    let known = raw_sql("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'");
    if stranger().await.fetch_optional(known).await.unwrap().is_none() {
        eprintln!("SKIPPED: this server has no innodb_snapshot_isolation");
        return;
    }
    let world = world().await;
    let ledger = world.ledger();
    let short = |key: &str| {
        IdempotencyContext::builder("mysql.tests", key).lease(2_000 * MS).build().unwrap()
    };
    let strict = "SET SESSION innodb_snapshot_isolation=ON, SESSION tx_isolation='REPEATABLE-READ'";
    // The transaction reads, lasts for several heartbeats, and then writes.
    let act = async |tx: &mut MySqlConnection| {
        tx.execute(AssertSqlSafe(format!("SELECT count(*) FROM {ledger}"))).await.unwrap();
        tokio::time::sleep(5_000 * MS).await;
        write(tx, &ledger, "k").await;
    };
    let options = sqlx::mysql::MySqlPoolOptions::new().after_connect(move |conn, _| {
        Box::pin(async move { conn.execute(strict).await.map(drop) })
    });
    let pool = options.connect(&url()).await.unwrap();
    let joined = world.engine.joined(pool.clone()).unwrap();
    let outcome = joined.execute(short("joined"), async |tx: &mut Tx| {
        act(tx).await;
        Ok::<_, &'static str>(String::new())
    });
    let outcome = outcome.await;
    assert!(matches!(outcome, Ok(Outcome::Executed(_))), "{outcome:?}");

    // A transaction that the program began is joined too. Its other statements keep their snapshot.
    let Ok(Acquisition::Granted(held)) = world.engine.try_acquire(&short("held")).await else {
        panic!("not granted")
    };
    let mut tx = pool.begin().await.unwrap();
    act(&mut tx).await;
    let pending = held.complete_in(&mut tx, value("held")).await.unwrap();
    let row =
        tx.fetch_one(raw_sql("SELECT CAST(@@innodb_snapshot_isolation AS SIGNED)")).await.unwrap();
    assert_eq!(row.get::<i64, _>(0), 1);
    tx.commit().await.unwrap();
    pending.committed();
    assert_eq!(world.replay("held").await, "held");
    assert_eq!((world.rows().await, world.ends()), (2, (2, 0, 0)));
    world.end().await;
}
