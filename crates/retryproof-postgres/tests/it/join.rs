// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining the application's transaction on the same database (CMP-7).
//!
//! This file is over 400 lines long because every test needs the same ledger and its transactions.

#[cfg(feature = "sqlx-08")]
mod sqlx_08;

use std::io::{BufRead as _, BufReader};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake};
use std::time::Duration;

use retryproof_core::observe::{Counters, Counts};
use retryproof_core::store::{Acquired, LiveLease, OwnedTx, Param, Peeked, TxPort, TxSource};
use retryproof_core::{
    Acquisition, CodecId, Error, ExecuteError, HeldLease, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore, IdentitySecret, JoinError, JoinedEngine, Outcome, OwnerId, Payload, Result,
    SharedStore,
};
use retryproof_postgres::{
    PgPool, PostgresConfig, PostgresDialect, PostgresStore, PostgresTx as Tx,
};
use retryproof_testkit::TestKeys;
use sqlx_core::executor::Executor as _;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::PgConnection;
use tokio::time::Instant;

use crate::round_trips::proxied;
use crate::support::{Table, body, hex, postgres, request};

const MS: Duration = Duration::from_millis(1);

pub(crate) struct World {
    pub(crate) engine: IdempotencyEngine,
    pub(crate) counters: Arc<Counters>,
    pool: PgPool,
    joined: JoinedEngine<Tx>,
    pub(crate) table: Table,
}

pub(crate) async fn world() -> World {
    let table = Table::new().await;
    let store = table.store().await;
    world_of(table, store).await
}

/// Creates a world whose table has hashed identities.
pub(crate) async fn hashed_world() -> World {
    let table = Table::absent(postgres());
    let secret = IdentitySecret::new("s".repeat(32)).unwrap();
    let config = table.config().with_identity_secret(secret);
    config.migrate().await.unwrap();
    let store = PostgresStore::connect(config).await.unwrap();
    world_of(table, store).await
}

/// Creates a world whose results are sealed.
async fn sealed_world() -> World {
    let table = Table::absent(postgres());
    let secret = IdentitySecret::new("s".repeat(32)).unwrap();
    let config = table.config().with_identity_secret(secret);
    config.migrate().await.unwrap();
    let store = PostgresStore::connect(config).await.unwrap().into_shared();
    world_on(table, store.sealed_by(Arc::new(TestKeys::new())).unwrap()).await
}

async fn world_of(table: Table, store: PostgresStore) -> World {
    world_on(table, store.into_shared()).await
}

async fn world_on(table: Table, store: SharedStore) -> World {
    let counters = Counters::new();
    let engine = IdempotencyEngine::builder(store).observer(Arc::clone(&counters)).build().unwrap();
    let pool = pool(&table.url).await;
    let world =
        World { joined: engine.joined(pool.clone()).unwrap(), engine, counters, pool, table };
    let ledger = world.ledger();
    world.table.stranger().await.run(format!("CREATE TABLE {ledger} (what text NOT NULL)")).await;
    world
}

async fn pool(url: &str) -> PgPool {
    PgPool::connect(url).await.expect("a pool of the application")
}

async fn write(tx: &mut PgConnection, ledger: &str, what: &str) {
    let sql = format!("INSERT INTO {ledger} VALUES ('{what}')");
    tx.execute(raw_sql(AssertSqlSafe(sql))).await.expect("written");
}

impl World {
    pub(crate) fn ledger(&self) -> String {
        format!("{}_meta_ledger", self.table.name)
    }

    pub(crate) async fn rows(&self) -> i64 {
        self.table.stranger().await.number(format!("SELECT count(*) FROM {}", self.ledger())).await
    }

    /// Returns the number of records whose key is not a digest.
    pub(crate) async fn plain_keys(&self) -> i64 {
        let keys = "convert_from(key,'UTF8') !~ '^[0-9a-f]{64}$'";
        let sql = format!("SELECT count(*) FROM \"{}\" WHERE {keys}", self.table.name);
        self.table.stranger().await.number(sql).await
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
        self.table.stranger().await.run(format!("DROP TABLE {}", self.ledger())).await;
    }
}

pub(crate) fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("postgres.tests", key)
        .lease(3_000 * MS)
        .wait_timeout(20_000 * MS)
        .build()
        .unwrap()
}

pub(crate) fn value(text: &str) -> Payload {
    Payload::new(CodecId::BYTES, 1, text.as_bytes())
}

/// A joined completion reaches the record by its digest, and wakes the waiters of that record.
#[tokio::test]
async fn id_5_a_joined_record_is_kept_under_its_digest() {
    let world = hashed_world().await;
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Executed("paid k".to_owned()));
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Replayed("paid k".to_owned()));
    // Complete a record with `complete_in` while another caller waits for it.
    let held = world.held("by hand").await;
    let engine = world.engine.clone();
    let waiter = tokio::spawn(async move { engine.try_acquire(&ctx("by hand")).await });
    while world.engine.activity().waiting == 0 {
        tokio::task::yield_now().await;
    }
    let mut tx = world.pool.begin().await.unwrap();
    let pending = held.complete_in(&mut tx, value("by hand")).await.unwrap();
    tx.commit().await.unwrap();
    pending.committed();
    assert!(matches!(waiter.await.unwrap().unwrap(), Acquisition::Complete(_)));
    assert_eq!((world.rows().await, world.plain_keys().await), (1, 0));
    world.end().await;
}

/// The statement in the caller's transaction contains the result only in sealed form.
#[tokio::test]
async fn seal_1_a_joined_record_is_sealed() {
    let world = sealed_world().await;
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Executed("paid k".to_owned()));
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Replayed("paid k".to_owned()));
    let mut stranger = world.table.stranger().await;
    let table = &world.table.name;
    let plain = "position('paid'::bytea in result) > 0";
    let sql = |only: &str| format!("SELECT count(*) FROM \"{table}\" WHERE {only}");
    assert_eq!(stranger.number(sql("result IS NOT NULL")).await, 1);
    assert_eq!(stranger.number(sql(plain)).await, 0);
    world.end().await;
}

#[tokio::test]
async fn cmp_7_postgres_commits_record_and_writes_together_or_neither() {
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

/// The server is so far away that the rollback takes half a second.
#[tokio::test]
async fn cmp_7_postgres_a_failed_call_has_rolled_back_when_it_returns() {
    let world = world().await;
    let (proxy, through) = proxied(&world.table.url).await;
    let joined = world.engine.joined(pool(&through).await).unwrap();
    let ledger = world.ledger();
    let failed = joined
        .execute(ctx("f"), async |tx: &mut Tx| {
            write(tx, &ledger, "never").await;
            proxy.delay(500 * MS);
            Err::<String, _>("declined")
        })
        .await;
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))), "{failed:?}");
    let locks = format!("SELECT count(*) FROM pg_locks WHERE relation='{ledger}'::regclass");
    assert_eq!(world.table.stranger().await.number(locks).await, 0, "the transaction is open");
    world.end().await;
}

#[tokio::test]
async fn cmp_7_cmp_2_postgres_a_refused_completion_fails_the_call_and_its_writes_are_gone() {
    let world = world().await;
    let (ledger, table) = (world.ledger(), world.table.name.clone());
    let taker = OwnerId::new();
    let digits: String = taker.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let refused = world
        .joined
        .execute(ctx("k"), async |tx: &mut Tx| {
            write(tx, &ledger, "overtaken").await;
            let sql = format!(
                "UPDATE \"{table}\" SET owner=decode('{digits}','hex'),token=token+1 WHERE key={}",
                hex("k")
            );
            assert_eq!(world.table.stranger().await.run(sql).await, 1);
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
async fn cmp_7_run_3_postgres_a_long_transaction_keeps_its_lease() {
    let world = world().await;
    let ledger = world.ledger();
    let short =
        IdempotencyContext::builder("postgres.tests", "k").lease(2_000 * MS).build().unwrap();
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
async fn cmp_7_postgres_others_that_meet_the_locked_row_end_in_time_and_are_woken_by_the_commit() {
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
async fn cmp_7_acq_4_postgres_a_commit_that_the_program_reports_wakes_the_waiters_at_once() {
    let world = world().await;
    let mut woken = false;
    for number in 0..10 {
        woken = woken || wakes_at_once(&world, &number.to_string()).await;
    }
    assert!(woken, "none of 10 waiters was woken before its next read");
    world.end().await;
}

#[tokio::test]
async fn cmp_7_postgres_complete_in_joins_a_transaction_of_sqlx() {
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
    // The record cannot be written in a transaction that has already failed.
    let held = world.held("3").await;
    let mut tx = world.pool.begin().await.unwrap();
    tx.execute(raw_sql("SELECT 1/0")).await.unwrap_err();
    let refused = held.complete_in(&mut tx, value("three")).await;
    assert!(matches!(refused, Err(JoinError::Failed(_))), "{refused:?}");
    tx.rollback().await.unwrap();
    assert!(world.pay("3").await.unwrap().is_executed());
    world.end().await;
}

/// If the server ends the connection before the COMMIT, nothing is committed. If only the answer to
/// the COMMIT is lost, everything is.
#[tokio::test]
async fn cmp_7_postgres_a_connection_that_dies_at_the_commit_leaves_neither() {
    /// A pool whose transactions lose their connection just before the COMMIT or, if the flag is
    /// set, lose the answer to the COMMIT.
    struct Cut(PgPool, String, bool);
    struct CutTx(Tx, String, bool);

    impl TxSource<PostgresDialect> for Cut {
        type Tx = CutTx;
        async fn begin(&self) -> Result<CutTx> {
            Ok(CutTx(TxSource::<PostgresDialect>::begin(&self.0).await?, self.1.clone(), self.2))
        }
    }
    impl TxPort<PostgresDialect> for CutTx {
        async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
            self.0.run_statement(sql, params).await
        }
    }
    impl OwnedTx<PostgresDialect> for CutTx {
        async fn commit_tx(mut self) -> Result<()> {
            if self.2 {
                self.0.commit_tx().await?;
                return Err(Error::unavailable("the answer was lost"));
            }
            let row = self.0.fetch_one(raw_sql("SELECT pg_backend_pid()::bigint")).await.unwrap();
            let process: i64 = sqlx_core::row::Row::get(&row, 0);
            let mut stranger = crate::support::Stranger::to(&self.1).await;
            stranger.run(format!("SELECT pg_terminate_backend({process}::int)")).await;
            self.0.commit_tx().await
        }
        async fn roll_back_tx(self) -> Result<()> {
            self.0.roll_back_tx().await
        }
    }

    let world = world().await;
    let ledger = world.ledger();
    for lost_answer in [false, true] {
        let source = Cut(world.pool.clone(), world.table.url.clone(), lost_answer);
        let paid = world
            .engine
            .joined(source)
            .unwrap()
            .execute(ctx("k"), async |tx: &mut CutTx| {
                write(&mut tx.0, &ledger, "k").await;
                Ok::<_, &'static str>("paid".to_owned())
            })
            .await;
        match lost_answer {
            false => {
                assert!(matches!(paid, Err(ExecuteError::Completion(_))), "{paid:?}");
                assert_eq!((world.rows().await, world.ends()), (0, (0, 1, 0)));
                assert!(matches!(world.standing("k").await, Peeked::Absent), "the key is free");
            }
            true => {
                assert_eq!(paid.unwrap(), Outcome::Executed("paid".to_owned()));
                assert_eq!((world.rows().await, world.ends()), (1, (1, 1, 0)));
            }
        }
    }
    world.end().await;
}

/// The environment variable that passes the table's name and the server's URL to the other process.
const OTHER: &str = "RETRYPROOF_POSTGRES_TEST_JOINED";

/// Runs as the other process: writes, joins the transaction, and waits to be killed. Without the
/// variable, this test does nothing.
#[tokio::test]
async fn the_other_process() {
    let Ok(line) = std::env::var(OTHER) else { return };
    let (table, url) = line.split_once(' ').unwrap();
    let config = PostgresConfig::from_url(url).unwrap().with_table_name(table);
    let engine = IdempotencyEngine::new(PostgresStore::connect(config).await.unwrap());
    let Ok(Acquisition::Granted(held)) = engine.try_acquire(&ctx("k")).await else {
        panic!("not granted")
    };
    let mut tx = pool(url).await.begin().await.unwrap();
    write(&mut tx, &format!("{table}_meta_ledger"), "killed").await;
    let _pending = held.complete_in(&mut tx, value("never")).await.unwrap();
    println!("\n@written");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn cmp_7_postgres_a_killed_process_leaves_neither_and_its_lease_runs_out() {
    let world = world().await;
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["join::the_other_process", "--exact", "--nocapture", "--test-threads=1"])
        .env(OTHER, format!("{} {}", world.table.name, world.table.url))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "@written"));
    other.kill().unwrap();
    other.wait().unwrap();
    // This call waits until the lease of the killed process ends, and then takes over.
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Executed("paid k".to_owned()));
    assert_eq!((world.counters.read().taken_over, world.rows().await), (1, 1));
    world.end().await;
}

/// A statement that returns one row if it gets the values of all types as they are.
#[cfg(any(feature = "sqlx-08", feature = "tokio-postgres"))]
pub(crate) const OF_EACH_TYPE: (&str, [Param<'_>; 4]) = (
    "SELECT 1 WHERE $1::boolean AND $2::bytea IS NULL AND octet_length($3::bytea)=$4::bigint",
    [Param::Bool(true), Param::NoBytes, Param::Bytes(b"abc"), Param::Int(3)],
);

/// A second driver: the store's interface for transactions does not depend on sqlx.
#[cfg(feature = "tokio-postgres")]
#[tokio::test]
async fn cmp_7_postgres_complete_in_joins_a_transaction_of_tokio_postgres() {
    let world = world().await;
    let ledger = world.ledger();
    let (mut client, connection) =
        tokio_postgres::connect(&world.table.url, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    for (key, commits) in [("1", true), ("2", false)] {
        let held = world.held(key).await;
        let mut tx = client.transaction().await.unwrap();
        tx.execute(&format!("INSERT INTO {ledger} VALUES ($1)"), &[&key]).await.unwrap();
        let pending = held.complete_in(&mut tx, value("by tokio-postgres")).await.unwrap();
        if commits {
            tx.commit().await.unwrap();
            pending.committed();
        } else {
            tx.rollback().await.unwrap();
            pending.rolled_back().await.unwrap();
        }
    }
    assert_eq!(world.replay("1").await, "by tokio-postgres");
    assert!(matches!(world.standing("2").await, Peeked::Absent));
    assert_eq!((world.rows().await, world.ends()), (1, (1, 1, 0)));
    // The next call loses its lease. After that, a statement in another call's transaction fails.
    let held = world.held("3").await;
    world
        .table
        .stranger()
        .await
        .run(format!("DELETE FROM \"{}\" WHERE key={}", world.table.name, hex("3")))
        .await;
    let mut tx = client.transaction().await.unwrap();
    assert!(matches!(held.complete_in(&mut tx, value("x")).await, Err(JoinError::LeaseLost)));
    drop(tx);
    let held = world.held("4").await;
    let mut tx = client.transaction().await.unwrap();
    tx.batch_execute("SELECT 1/0").await.unwrap_err();
    let refused = held.complete_in(&mut tx, value("x")).await;
    assert!(matches!(refused, Err(JoinError::Failed(_))), "{refused:?}");
    drop(tx);
    // The program began this transaction with a statement.
    let held = world.held("5").await;
    client.batch_execute("BEGIN").await.unwrap();
    let pending = held.complete_in(&mut client, value("by a client")).await.unwrap();
    let (sql, params) = OF_EACH_TYPE;
    assert_eq!(client.run_statement(sql, &params).await.unwrap(), 1);
    client.batch_execute("COMMIT").await.unwrap();
    pending.committed();
    assert_eq!(world.replay("5").await, "by a client");
    drop(client);
    let _ = connection.await;
    world.end().await;
}
