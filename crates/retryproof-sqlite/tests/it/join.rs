// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining the application's transaction on the same file (CMP-7).
//!
//! This file is over 400 lines long because every way that a joined call can end is tested here.

mod bounded;

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use retryproof_core::observe::{Counters, Counts};
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, Join as _, OwnedTx, Param, Peeked, Purge as _, TxPort,
    TxSource,
};
use retryproof_core::{
    Acquisition, CodecId, Error, ErrorKind, ExecuteError, Fingerprint, HeldLease,
    IdempotencyContext, IdempotencyEngine, IdempotencyStore, IdentitySecret, JoinError,
    JoinedEngine, Outcome, OwnerId, Payload, Result, SharedStore, blocking,
};
use retryproof_sqlite::{SqliteConfig, SqliteDialect, SqliteStore, SqliteTx, SqliteTxSource};
use retryproof_testkit::TestKeys;
use rusqlite::{Connection, TransactionBehavior};
use tokio::time::Instant;

use crate::support::{DAY, Dir, LONG, Wall, body, id, request};
use crate::waiting::Other;

const MS: Duration = Duration::from_millis(1);

struct World {
    dir: Dir,
    engine: IdempotencyEngine,
    counters: Arc<Counters>,
    joined: JoinedEngine<SqliteTx>,
}

fn ledger(dir: &Dir) -> Connection {
    let conn = dir.stranger();
    conn.execute_batch("CREATE TABLE IF NOT EXISTS ledger (what TEXT NOT NULL)").unwrap();
    conn
}

fn world() -> World {
    let dir = Dir::new();
    world_on(dir, |config| config)
}

fn world_on(dir: Dir, with: impl FnOnce(SqliteConfig) -> SqliteConfig) -> World {
    world_of(dir, with, |store| store)
}

fn world_of(
    dir: Dir,
    with: impl FnOnce(SqliteConfig) -> SqliteConfig,
    seal: impl FnOnce(SharedStore) -> SharedStore,
) -> World {
    let config = with(dir.config());
    ledger(&dir);
    let counters = Counters::new();
    let source = SqliteTxSource::open_with(&config).unwrap();
    let store = seal(SqliteStore::open_with(config).unwrap().into_shared());
    let engine = IdempotencyEngine::builder(store).observer(Arc::clone(&counters)).build().unwrap();
    World { joined: engine.joined(source).unwrap(), engine, counters, dir }
}

/// A joined completion finds the record by the digest of its key, and wakes the waiters of that
/// record.
#[tokio::test]
async fn id_5_a_joined_record_is_kept_under_its_digest() {
    let world = world_on(Dir::new(), |config| {
        let secret = IdentitySecret::new("s".repeat(32)).unwrap();
        let config = config.with_table_name("hashed").with_identity_secret(secret);
        config.migrate().unwrap();
        config
    });
    assert_eq!(world.pay("canary").await.unwrap(), Outcome::Executed("paid canary".to_owned()));
    assert_eq!(world.pay("canary").await.unwrap(), Outcome::Replayed("paid canary".to_owned()));
    assert_eq!(world.rows(), ["canary"]);

    // Complete a record with `complete_in` while another caller waits for it.
    let held = world.held("by hand").await;
    let engine = world.engine.clone();
    let waiter = tokio::spawn(async move { engine.try_acquire(&ctx("by hand")).await });
    while world.engine.activity().waiting == 0 {
        tokio::task::yield_now().await;
    }
    let mut conn = world.dir.stranger();
    let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let pending = held.complete_in(&mut tx, value("by hand")).await.unwrap();
    tx.commit().unwrap();
    pending.committed();
    assert!(matches!(waiter.await.unwrap().unwrap(), Acquisition::Complete(_)));

    let mut keys = conn.prepare("SELECT key FROM hashed").unwrap();
    let keys = keys.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
    let keys: Vec<_> = keys.map(|key| String::from_utf8(key.unwrap()).unwrap()).collect();
    assert!(keys.len() == 2 && keys.iter().all(|key| IdentitySecret::is_digest(key)), "{keys:?}");
}

/// The statement in the caller's transaction contains neither the plain key nor the plain result.
#[tokio::test]
async fn seal_1_a_joined_record_is_sealed() {
    let secret = IdentitySecret::new("s".repeat(32)).unwrap();
    let world = world_of(
        Dir::new(),
        |config| {
            let config = config.with_table_name("sealed").with_identity_secret(secret);
            config.migrate().unwrap();
            config
        },
        |store| store.sealed_by(Arc::new(TestKeys::new())).unwrap(),
    );
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Executed("paid k".to_owned()));
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Replayed("paid k".to_owned()));
    // Complete a record with `complete_in`.
    let held = world.held("by hand").await;
    let mut conn = world.dir.stranger();
    let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let pending = held.complete_in(&mut tx, value("paid by hand")).await.unwrap();
    tx.commit().unwrap();
    pending.committed();
    let Acquisition::Complete(stored) = world.engine.try_acquire(&ctx("by hand")).await.unwrap()
    else {
        panic!("expected a result")
    };
    assert_eq!(body(&stored), "paid by hand");

    let sent = Fingerprint::tagged(1, &[7; 32]);
    let with = IdempotencyContext::builder("join", "with").fingerprint(sent).build().unwrap();
    let paid =
        world.joined.execute(with, async |_: &mut SqliteTx| Ok::<_, &str>("paid".to_owned())).await;
    assert!(paid.unwrap().is_executed());
    let shown = "SELECT count(*) FROM sealed WHERE substr(fp, 1, 1) = x'00' AND length(fp) = 34";
    assert_eq!(conn.query_row(shown, [], |row| row.get::<_, u32>(0)).unwrap(), 1, "hidden");

    let mut results = conn.prepare("SELECT result FROM sealed").unwrap();
    let results = results.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
    let results: Vec<_> = results.map(|result| result.unwrap()).collect();
    assert_eq!(results.len(), 3);
    assert!(!results.iter().any(|result| result.windows(4).any(|part| part == b"paid")));
}

impl World {
    fn rows(&self) -> Vec<String> {
        rows(&self.dir.file())
    }

    /// Returns how many leases were completed, failed and lost, and checks that each lease has
    /// ended exactly once.
    fn ends(&self) -> (u64, u64, u64) {
        let Counts { acquired, completed, failed, lost, .. } = self.counters.read();
        assert_eq!(acquired, completed + failed + lost);
        (completed, failed, lost)
    }

    async fn pay(&self, key: &str) -> Result<Outcome<String>, ExecuteError<rusqlite::Error>> {
        self.joined
            .execute(ctx(key), async |tx: &mut SqliteTx| {
                tx.execute("INSERT INTO ledger VALUES (?1)", [key])?;
                Ok(format!("paid {key}"))
            })
            .await
    }

    async fn held(&self, key: &str) -> HeldLease {
        match self.engine.try_acquire(&ctx(key)).await.unwrap() {
            Acquisition::Granted(held) => held,
            other => panic!("{other:?}"),
        }
    }

    async fn standing(&self, key: &str) -> Peeked {
        self.engine.store().peek(ctx(key).identity()).await.unwrap()
    }

    async fn replay(&self, key: &str) -> String {
        match self.standing(key).await {
            Peeked::Complete(stored) => body(&stored),
            other => panic!("{other:?}"),
        }
    }
}

fn rows(file: &Path) -> Vec<String> {
    let conn = Connection::open(file).unwrap();
    conn.busy_timeout(Duration::from_secs(5)).unwrap();
    let mut statement = conn.prepare("SELECT what FROM ledger ORDER BY rowid").unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(|row| row.unwrap()).collect()
}

fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("sqlite.tests", key)
        .lease(2_000 * MS)
        .wait_timeout(10_000 * MS)
        .build()
        .unwrap()
}

fn value(text: &str) -> Payload {
    Payload::new(CodecId::BYTES, 1, text.as_bytes())
}

#[tokio::test]
async fn cmp_7_sqlite_commits_record_and_writes_together() {
    let world = world();
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Executed("paid k".to_owned()));
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Replayed("paid k".to_owned()));
    assert_eq!((world.rows(), world.ends()), (vec!["k".to_owned()], (1, 0, 0)));
    // STO-4: completing the record also moved its entry in the purge index.
    assert_eq!(world.engine.purge().await.unwrap(), Some(0));
}

#[tokio::test]
async fn cmp_7_sqlite_rolls_both_back_and_frees_the_key() {
    let world = world();
    let failed = world
        .joined
        .execute(ctx("k"), async |tx: &mut SqliteTx| {
            tx.execute("INSERT INTO ledger VALUES ('never')", []).unwrap();
            Err::<String, _>("declined")
        })
        .await;
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))));
    assert!(matches!(world.standing("k").await, Peeked::Absent));
    assert!(world.pay("k").await.unwrap().is_executed());
    assert_eq!((world.rows(), world.ends()), (vec!["k".to_owned()], (1, 1, 0)));
}

#[tokio::test]
async fn cmp_7_sqlite_a_dropped_call_leaves_nothing() {
    let world = world();
    let (written, is_written) = tokio::sync::oneshot::channel();
    let sleeping = world.joined.execute(ctx("k"), async |tx: &mut SqliteTx| {
        tx.execute("INSERT INTO ledger VALUES ('never')", []).unwrap();
        written.send(()).unwrap();
        std::future::pending::<()>().await;
        Ok::<_, &'static str>(String::new())
    });
    tokio::select! {
        ended = sleeping => panic!("it sleeps: {ended:?}"),
        written = is_written => written.unwrap(),
    }
    assert!(
        world.pay("k").await.unwrap().is_executed(),
        "within the wait: the key was freed, not left to its lease"
    );
    assert_eq!((world.rows(), world.ends()), (vec!["k".to_owned()], (1, 1, 0)));
}

/// Another holder takes over between the grant and the transaction. Once the transaction is open,
/// the file's lock prevents takeovers.
#[tokio::test]
async fn cmp_7_cmp_2_sqlite_a_refused_completion_fails_the_call_and_its_writes_are_gone() {
    let (dir, wall) = (Dir::new(), Wall::new());
    let world = world_on(dir, |config| wall.on(config));
    let other = SqliteStore::open_with(wall.on(SqliteConfig::new(world.dir.file()))).unwrap();

    /// A source that lets another holder take over before it opens the transaction.
    struct Late(SqliteTxSource, SqliteStore, Wall, OwnerId);

    impl TxSource<SqliteDialect> for Late {
        type Tx = SqliteTx;

        async fn begin(&self) -> Result<SqliteTx> {
            self.2.forward(Duration::from_secs(5));
            let taken = self.1.acquire(ctx("k").identity(), &request(self.3)).await?;
            assert!(matches!(taken, Acquired::Granted(grant) if grant.took_over), "{taken:?}");
            self.0.begin().await
        }
    }

    let owner = OwnerId::new();
    let source = Late(SqliteTxSource::open(world.dir.file()).unwrap(), other, wall.clone(), owner);
    let joined = world.engine.joined(source).unwrap();
    let refused = joined
        .execute(ctx("k"), async |tx: &mut SqliteTx| {
            tx.execute("INSERT INTO ledger VALUES ('overtaken')", []).unwrap();
            Ok::<_, &'static str>(String::new())
        })
        .await;
    assert!(matches!(refused, Err(ExecuteError::LeaseLost)), "{refused:?}");
    assert_eq!((world.rows(), world.ends()), (vec![], (0, 0, 1)));
    assert!(matches!(world.standing("k").await, Peeked::Busy(_)), "the taker's lease stands");
}

#[tokio::test]
async fn cmp_7_sqlite_waiters_are_woken_after_the_commit_and_never_before() {
    let world = Arc::new(world());
    let committed = Arc::new(AtomicBool::new(false));
    let (started, mut starting) = tokio::sync::mpsc::channel::<()>(1);
    let holder = {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            let action = async |tx: &mut SqliteTx| {
                tx.execute("INSERT INTO ledger VALUES ('k')", []).unwrap();
                started.send(()).await.unwrap();
                tokio::time::sleep(300 * MS).await;
                Ok::<_, &'static str>("held".to_owned())
            };
            world.joined.execute(ctx("k"), action).await.unwrap()
        })
    };
    starting.recv().await.unwrap();
    let waiter = {
        let (world, committed) = (Arc::clone(&world), Arc::clone(&committed));
        tokio::spawn(async move {
            let begun = Instant::now();
            let outcome = world.pay("k").await.unwrap();
            committed.store(true, Ordering::SeqCst);
            (outcome, begun.elapsed(), rows(&world.dir.file()))
        })
    };
    tokio::time::sleep(100 * MS).await;
    assert!(!committed.load(Ordering::SeqCst), "nothing is visible before the commit");
    assert!(holder.await.unwrap().is_executed());
    let (outcome, after, rows) = waiter.await.unwrap();
    assert_eq!(outcome, Outcome::Replayed("held".to_owned()));
    assert_eq!(rows, ["k"], "a caller that has the result sees the writes");
    assert!(after < 5_000 * MS, "woken, not timed out: {after:?}");
}

/// The runtime's clock stands still while the commit is made and reported.
#[tokio::test]
async fn cmp_7_acq_4_sqlite_a_commit_that_the_program_reports_wakes_the_waiters_at_once() {
    let world = world();
    let held = world.held("k").await;
    let Peeked::Busy(lease) = world.standing("k").await else { panic!("not held") };
    let mut conn = world.dir.stranger();
    let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let pending = held.complete_in(&mut tx, value("done")).await.unwrap();
    let (key, store) = (ctx("k"), world.engine.store());
    let mut waiting = pin!(store.wait_for_change(key.identity(), lease.token, LONG));
    assert!(tokio::time::timeout(10 * MS, &mut waiting).await.is_err());
    tokio::time::pause();
    let committed = Instant::now();
    tx.commit().unwrap();
    pending.committed();
    waiting.await.unwrap();
    assert!(committed.elapsed().is_zero(), "polled after {:?}", committed.elapsed());
}

/// A reader of an attached file that is not in WAL mode delays the commit.
#[tokio::test]
async fn cmp_7_sqlite_a_commit_waits_for_a_reader_of_an_attached_file() {
    let world = world();
    let shop = world.dir.path().join("shop.db");
    let reader = Connection::open(&shop).unwrap();
    reader.execute_batch("CREATE TABLE orders (what TEXT)").unwrap();
    let conn = world.dir.stranger();
    conn.execute("ATTACH ?1 AS shop", [shop.to_str()]).unwrap();
    let joined = world.engine.joined(SqliteTxSource::over(conn).unwrap()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM orders").unwrap();
    let mut call = pin!(joined.execute(ctx("k"), async |tx: &mut SqliteTx| {
        tx.execute("INSERT INTO orders VALUES ('k')", []).unwrap();
        Ok::<_, &'static str>("ordered".to_owned())
    }));
    assert!(tokio::time::timeout(200 * MS, &mut call).await.is_err(), "the file is being read");
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(call.await.unwrap(), Outcome::Executed("ordered".to_owned()));
    let orders: i64 =
        reader.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap();
    assert_eq!((orders, world.replay("k").await), (1, "\"ordered\"".to_owned()));
}

/// `complete_in` joins the driver's own transaction, which can be committed, rolled back, or lost
/// with its connection as in a crash.
#[tokio::test]
async fn cmp_7_sqlite_complete_in_joins_a_transaction_of_rusqlite() {
    let world = world();
    let mut conn = ledger(&world.dir);
    // The transaction is committed.
    let held = world.held("1").await;
    let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    tx.execute("INSERT INTO ledger VALUES ('1')", []).unwrap();
    let pending = held.complete_in(&mut tx, value("one")).await.unwrap();
    assert!(matches!(world.standing("1").await, Peeked::Busy(_)), "unseen before the commit");
    tx.commit().unwrap();
    pending.committed();
    assert_eq!(world.replay("1").await, "one");
    // The transaction is rolled back.
    let held = world.held("2").await;
    let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    tx.execute("INSERT INTO ledger VALUES ('2')", []).unwrap();
    let pending = held.complete_in(&mut tx, value("two")).await.unwrap();
    tx.rollback().unwrap();
    pending.rolled_back().await.unwrap();
    assert!(matches!(world.standing("2").await, Peeked::Absent));
    // If the answer to the COMMIT is lost, `in_doubt` finds out whether the commit happened.
    for commits in [false, true] {
        let held = world.held("3").await;
        let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let pending = held.complete_in(&mut tx, value("three")).await.unwrap();
        if commits {
            tx.commit().unwrap()
        } else {
            tx.rollback().unwrap()
        }
        assert_eq!(pending.in_doubt().await.unwrap(), commits);
    }
    assert_eq!(world.replay("3").await, "three");
    assert_eq!(world.rows(), ["1"]);
    assert_eq!(world.ends(), (2, 2, 0));
}

/// As with any completion, the result's own ttl decides when it is purged.
#[tokio::test]
async fn cmp_7_cmp_6_sto_4_sqlite_a_joined_result_is_purged_when_its_ttl_is_over() {
    const TICK: Duration = Duration::from_micros(1);
    // The ttl of the result is shorter than that of the acquire, then longer.
    for (acquired, ttl) in [(DAY, DAY / 2), (DAY / 2, DAY)] {
        let (dir, wall) = (Dir::new(), Wall::new());
        let store = SqliteStore::open_with(wall.on(dir.config())).unwrap();
        let (id, owner) = (id("k"), OwnerId::new());
        let granted = store.acquire(&id, &AcquireRequest::new(owner, LONG, acquired)).await;
        assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
        let mut conn = dir.stranger();
        let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let done = Completion::new(value("v").envelope().clone(), ttl, None);
        let statement = store.completion(&id, &owner, &done);
        assert_eq!(tx.run_statement(statement.sql, &statement.params).await.unwrap(), 1);
        tx.commit().unwrap();
        wall.forward(ttl - TICK);
        assert_eq!(store.purge(10).await.unwrap(), 0, "{ttl:?}");
        assert!(matches!(store.peek(&id).await, Ok(Peeked::Complete(_))), "{ttl:?}");
        wall.forward(TICK);
        assert_eq!(store.purge(10).await.unwrap(), 1, "{ttl:?}");
    }
}

/// The record may already be complete, if the completion was sent twice, or released, if an
/// operator released it.
#[tokio::test]
async fn cmp_7_cmp_6_sqlite_a_joined_completion_changes_no_record_that_has_ended() {
    let dir = Dir::new();
    let store = dir.store();
    let mut conn = dir.stranger();
    for (key, ends) in [
        ("complete", "UPDATE retryproof_records SET state=1,result=x'07'"),
        ("released", "UPDATE retryproof_records SET state=2,log=x'07'"),
    ] {
        let (id, owner) = (id(key), OwnerId::new());
        let granted = store.acquire(&id, &AcquireRequest::new(owner, LONG, DAY)).await;
        assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
        conn.execute_batch(ends).unwrap();
        let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let done = Completion::new(value("v").envelope().clone(), DAY, None);
        let statement = store.completion(&id, &owner, &done);
        let changed = tx.run_statement(statement.sql, &statement.params).await;
        assert_eq!(changed.unwrap(), 0, "{key}");
    }
}

#[tokio::test]
async fn cmp_7_sqlite_refuses_what_is_no_transaction_of_its_file() {
    let world = world();
    // Without a transaction, the record would be committed alone, so the call fails.
    let mut conn = ledger(&world.dir);
    let refused = world.held("1").await.complete_in(&mut conn, value("x")).await;
    let Err(JoinError::Failed(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), ErrorKind::Unexpected);
    // A transaction that `BEGIN` opened is accepted too.
    let held = world.held("2").await;
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let pending = held.complete_in(&mut conn, value("by hand")).await.unwrap();
    conn.execute_batch("COMMIT").unwrap();
    pending.committed();
    assert_eq!(world.replay("2").await, "by hand");
    // The source uses another file that has tables of the same names. The call fails, and its error
    // says that the database is a different one.
    let elsewhere = Dir::new();
    let source = SqliteTxSource::open_with(&elsewhere.config()).unwrap();
    let failed: Result<Outcome<u8>, ExecuteError<()>> = world
        .engine
        .joined(source)
        .unwrap()
        .execute(ctx("3"), async |_: &mut SqliteTx| Ok(1))
        .await;
    let Err(ExecuteError::Completion(failure)) = failed else { panic!("{failed:?}") };
    assert!(failure.to_string().contains("a different database"), "{failure}");
    // The source uses another file, which does not have the store's tables.
    let conn = Connection::open(elsewhere.path().join("empty.db")).unwrap();
    let source = SqliteTxSource::over(conn).unwrap();
    let failed: Result<Outcome<u8>, ExecuteError<()>> = world
        .engine
        .joined(source)
        .unwrap()
        .execute(ctx("3"), async |_: &mut SqliteTx| Ok(1))
        .await;
    let Err(ExecuteError::Completion(failure)) = failed else { panic!("{failed:?}") };
    assert_eq!(failure.error.kind(), ErrorKind::Schema);
    assert!(matches!(world.standing("3").await, Peeked::Absent), "the key is free");
    let memory = Connection::open_in_memory().unwrap();
    assert_eq!(SqliteTxSource::over(memory).unwrap_err().kind(), ErrorKind::Config);
    // The action tries to end the transaction itself.
    let ended: Result<Outcome<u8>, ExecuteError<()>> = world
        .joined
        .execute(ctx("4"), async |tx: &mut SqliteTx| {
            tx.execute_batch("COMMIT").unwrap_err();
            Ok(1)
        })
        .await;
    assert!(matches!(ended, Err(ExecuteError::Completion(_))), "{ended:?}");
}

#[tokio::test]
async fn cmp_7_sqlite_a_killed_process_leaves_neither_and_its_lease_runs_out() {
    let world = world();
    let mut other = Other::start(&world.dir.file());
    assert_eq!(other.ask("pay k 1000"), "written");
    assert!(matches!(world.standing("k").await, Peeked::Busy(_)));
    other.signal("-KILL");
    // This call waits until the lease of the killed process ends, and then takes over.
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Executed("paid k".to_owned()));
    assert_eq!(world.counters.read().taken_over, 1, "a crash leaves the key to its lease");
    assert_eq!(world.rows(), ["k"], "the write of the killed process is gone");
}

/// SQLite refuses the commit, because it checks a deferred constraint only at the COMMIT, after the
/// record was written.
#[tokio::test]
async fn cmp_7_sqlite_a_commit_that_is_refused_takes_the_record_with_it() {
    let world = world();
    let conn = ledger(&world.dir);
    conn.execute_batch(
        "CREATE TABLE parent (id INTEGER PRIMARY KEY); CREATE TABLE child (parent \
         INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)",
    )
    .unwrap();
    conn.execute_batch("PRAGMA foreign_keys=ON").unwrap();
    let joined = world.engine.joined(SqliteTxSource::over(conn).unwrap()).unwrap();
    let run = async |parent: i64| {
        joined
            .execute(ctx("k"), async |tx: &mut SqliteTx| {
                tx.execute("INSERT INTO parent VALUES (1)", [])?;
                tx.execute("INSERT INTO child VALUES (?1)", [parent])?;
                Ok::<_, rusqlite::Error>(parent)
            })
            .await
    };
    let failed = run(7).await;
    let Err(ExecuteError::Completion(failure)) = failed else { panic!("{failed:?}") };
    assert_eq!(failure.error.operation(), Some("commit"));
    // A commit that SQLite refuses fails with this kind. If the store had repeated the commit until
    // the transaction's time was over, the kind would be `Unavailable`.
    assert_eq!(failure.error.kind(), ErrorKind::Unexpected, "{}", failure.error);
    assert!(matches!(world.standing("k").await, Peeked::Absent), "the key is free");
    // The connection still works afterwards.
    assert_eq!(run(1).await.unwrap(), Outcome::Executed(1));
    assert_eq!(world.ends(), (1, 1, 0));
}

/// The COMMIT happens, but its answer is lost.
#[tokio::test]
async fn cmp_7_sqlite_a_commit_whose_answer_was_lost_is_read_by_owner() {
    struct Deaf(SqliteTxSource);
    struct DeafTx(SqliteTx);

    impl TxSource<SqliteDialect> for Deaf {
        type Tx = DeafTx;

        async fn begin(&self) -> Result<DeafTx> {
            self.0.begin().await.map(DeafTx)
        }
    }

    impl TxPort<SqliteDialect> for DeafTx {
        async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
            self.0.run_statement(sql, params).await
        }
    }

    impl OwnedTx<SqliteDialect> for DeafTx {
        async fn commit_tx(self) -> Result<()> {
            self.0.commit_tx().await?;
            Err(Error::unavailable("the answer was lost"))
        }

        async fn roll_back_tx(self) -> Result<()> {
            self.0.roll_back_tx().await
        }
    }

    let world = world();
    let joined =
        world.engine.joined(Deaf(SqliteTxSource::open(world.dir.file()).unwrap())).unwrap();
    let outcome = joined
        .execute(ctx("k"), async |tx: &mut DeafTx| {
            tx.0.execute("INSERT INTO ledger VALUES ('k')", []).map(|_| "done".to_owned())
        })
        .await;
    assert_eq!(outcome.unwrap(), Outcome::Executed("done".to_owned()));
    assert_eq!((world.rows(), world.ends()), (vec!["k".to_owned()], (1, 0, 0)));
}

/// The store's writer and the transactions share one queue, so neither starves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cmp_7_sqlite_transactions_and_the_writer_take_turns() {
    let world = Arc::new(world());
    let begun = Instant::now();
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                for round in 0..8 {
                    assert!(world.pay(&format!("{task} {round}")).await.unwrap().is_executed());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!((world.rows().len(), world.ends()), (128, (128, 0, 0)));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Two connections write in turn, each for longer than the writer pauses between two attempts.
/// While it waits, the writer keeps its place in the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_1_sto_5_sqlite_two_sources_of_transactions_do_not_starve_the_writer() {
    let dir = Dir::new();
    let world = world_on(dir, |config| config.with_busy_timeout(1_000 * MS));
    let over = Arc::new(AtomicBool::new(false));
    let sources: Vec<_> = (0..2)
        .map(|_| {
            let (source, over) =
                (SqliteTxSource::open(world.dir.file()).unwrap(), Arc::clone(&over));
            tokio::spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let tx = source.begin().await.unwrap();
                    tokio::time::sleep(25 * MS).await;
                    drop(tx);
                }
            })
        })
        .collect();
    tokio::time::sleep(60 * MS).await;
    for key in ["a", "b", "c", "d", "e"] {
        let outcome = world.engine.execute(ctx(key), async || Ok::<_, String>(1_u8)).await;
        assert_eq!(outcome.unwrap(), Outcome::Executed(1));
    }
    over.store(true, Ordering::SeqCst);
    for source in sources {
        source.await.unwrap();
    }
}

/// STO-5: an open transaction of this process delays the store's calls, but they end in time.
#[tokio::test]
async fn cmp_7_sto_5_sqlite_calls_beside_an_open_transaction_end_in_time() {
    let dir = Dir::new();
    let world = world_on(dir, |config| config.with_busy_timeout(200 * MS));
    let source = SqliteTxSource::open(world.dir.file()).unwrap();
    let tx = source.begin().await.unwrap();
    let begun = Instant::now();
    let failed = world.engine.try_acquire(&ctx("k")).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Unavailable);
    assert!(begun.elapsed() < 3_000 * MS, "{:?}", begun.elapsed());
    // The store can be closed while the transaction is open.
    drop(world);
    drop(tx);
}

#[test]
fn cmp_7_sqlite_a_transaction_commits_outside_of_a_runtime() {
    let dir = Dir::new();
    ledger(&dir);
    let source = SqliteTxSource::open_with(&dir.config()).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(mut tx)) = pin!(source.begin()).poll(&mut cx) else {
        panic!("no lock is held")
    };
    tx.execute("INSERT INTO ledger VALUES ('paid')", []).unwrap();
    let insert = tx.run_statement("INSERT INTO ledger VALUES (?1)", &[Param::Bool(true)]);
    assert!(matches!(pin!(insert).poll(&mut cx), Poll::Ready(Ok(1))));
    assert!(matches!(pin!(tx.commit_tx()).poll(&mut cx), Poll::Ready(Ok(()))));
    assert_eq!(rows(&dir.file()), ["paid", "1"]);
}

#[test]
fn cmp_7_sqlite_the_blocking_form_joins_too() {
    let dir = Dir::new();
    let config = dir.config();
    let mut conn = ledger(&dir);
    let engine = blocking::Engine::new(SqliteStore::open_with(config).unwrap()).unwrap();
    let joined = engine.joined(SqliteTxSource::open(dir.file()).unwrap()).unwrap();
    let pay = |key: &str| {
        joined.execute(ctx(key), |tx| {
            tx.execute("INSERT INTO ledger VALUES (?1)", [key])?;
            Ok::<_, rusqlite::Error>(key.to_owned())
        })
    };
    assert_eq!(pay("a").unwrap(), Outcome::Executed("a".to_owned()));
    assert_eq!(pay("a").unwrap(), Outcome::Replayed("a".to_owned()));
    let blocking::Acquisition::Granted(held) = engine.try_acquire(&ctx("b")).unwrap() else {
        panic!()
    };
    let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    tx.execute("INSERT INTO ledger VALUES ('b')", []).unwrap();
    let pending =
        held.complete_in(&mut tx, Payload::new(CodecId::JSON, 1, b"\"by hand\"")).unwrap();
    tx.commit().unwrap();
    pending.committed();
    assert_eq!(pay("b").unwrap(), Outcome::Replayed("by hand".to_owned()));
    assert_eq!(rows(&dir.file()), ["a", "b"]);
}
