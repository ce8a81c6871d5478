// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that need access to the connections: a full disk, the commits of other connections, a file
//! that becomes read-only, the query plans of the statements, the thread of a scan, and the changes
//! of an operator.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Force, ForceRequest, Forced, Inspect, Peeked,
};
use retryproof_core::{Blob, ErrorKind, IdempotencyStore, Identity, OwnerId};
use rusqlite::StatementStatus;
use tokio::time::timeout;

use super::*;

const LONG: Duration = Duration::from_secs(600);

struct Dir(PathBuf);

impl Dir {
    fn store(&self) -> SqliteStore {
        let config = SqliteConfig::new(self.0.join("records.db"));
        config.migrate().expect("migrated");
        SqliteStore::open_with(config).expect("opened")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn dir() -> Dir {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name =
        format!("retryproof-unit-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    // A killed process may have had the same process ID, and left its files.
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a directory");
    Dir(path)
}

fn id(key: &str) -> Identity {
    Identity::of("sqlite.unit", key).expect("a valid identity")
}

fn done(bytes: usize) -> Completion {
    Completion::new(Blob::from(vec![7; bytes]), LONG, None)
}

async fn acquire(store: &SqliteStore, id: &Identity, owner: OwnerId) -> Result<Acquired> {
    store.acquire(id, &AcquireRequest::new(owner, LONG, LONG)).await
}

async fn granted(store: &SqliteStore, id: &Identity) -> OwnerId {
    let owner = OwnerId::new();
    assert!(matches!(acquire(store, id, owner).await, Ok(Acquired::Granted(_))));
    owner
}

#[tokio::test]
async fn sto_1_a_full_disk_refuses_new_keys_and_keeps_the_rest() {
    let dir = dir();
    let store = dir.store();
    let (old, held) = (id("old"), id("held"));
    let owner = granted(&store, &old).await;
    assert_eq!(
        store.complete(&old, owner, &done(100)).await.expect("completed"),
        FencedWrite::Applied
    );
    let holder = granted(&store, &held).await;
    store.writer.pragma("PRAGMA max_page_count = 1");

    let mut full = None;
    for at in 0..500 {
        let id = id(&format!("canary {at}"));
        if let Err(error) = acquire(&store, &id, OwnerId::new()).await {
            full = Some((id, error));
            break;
        }
    }
    let (refused, error) = full.expect("the disk should be full by now");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(
        error.to_string().contains("free space") && !format!("{error:?}").contains("canary"),
        "{error:?}"
    );
    let error = store.complete(&held, holder, &done(100_000)).await.expect_err("no room for it");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");

    assert!(matches!(store.peek(&refused).await, Ok(Peeked::Absent)), "nothing half-written");
    assert!(matches!(store.peek(&held).await, Ok(Peeked::Busy(_))));
    assert!(matches!(store.peek(&old).await, Ok(Peeked::Complete(_))));
    assert_eq!(
        store.extend(&held, holder, LONG).await.expect("a heartbeat should need no free space"),
        FencedWrite::Applied
    );
    assert_eq!(
        store.release(&held, holder).await.expect("a release makes room"),
        FencedWrite::Applied
    );

    store.writer.pragma("PRAGMA max_page_count = 1000000");
    granted(&store, &refused).await;
}

#[tokio::test]
async fn sto_1_one_that_finds_no_room_does_not_sink_its_batch() {
    let dir = dir();
    let store = dir.store();
    let (small, large) = (id("small"), id("large"));
    let (a, b) = (granted(&store, &small).await, granted(&store, &large).await);
    store.writer.pragma("PRAGMA max_page_count = 1");
    // Another connection holds SQLite's lock, so both calls wait and end up in one batch.
    let lock = rusqlite::Connection::open(&store.config.path).expect("opened");
    lock.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let (huge, tiny) = (done(100_000), done(10));
    let mut large_call = pin!(store.complete(&large, b, &huge));
    let mut small_call = pin!(store.complete(&small, a, &tiny));
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(large_call.as_mut().poll(&mut context), Poll::Pending));
    assert!(matches!(small_call.as_mut().poll(&mut context), Poll::Pending));
    lock.execute_batch("ROLLBACK").expect("unlocked");
    assert_eq!(large_call.await.expect_err("no room for it").kind(), ErrorKind::Full);
    assert_eq!(small_call.await.expect("room for it"), FencedWrite::Applied);
    assert!(matches!(store.peek(&large).await, Ok(Peeked::Busy(_))));
}

/// The trigger makes the transaction run out of space when it writes the token counter, after all
/// its transitions. On a real disk, the commit runs out of space.
#[tokio::test]
async fn sto_1_a_batch_that_finds_no_room_at_its_end_is_run_one_by_one() {
    let dir = dir();
    let store = dir.store();
    let (held, fresh) = (id("held"), id("fresh"));
    let owner = granted(&store, &held).await;
    store.writer.pragma(
        "CREATE TABLE filler (bytes BLOB); \
         CREATE TRIGGER fill AFTER UPDATE ON retryproof_records_meta \
         BEGIN INSERT INTO filler VALUES (zeroblob(100000)); END; \
         PRAGMA max_page_count = 1",
    );
    // Another connection holds SQLite's lock, so both calls wait and end up in one batch.
    let lock = rusqlite::Connection::open(&store.config.path).expect("opened");
    lock.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let tiny = done(10);
    let mut completion = pin!(store.complete(&held, owner, &tiny));
    let mut acquire = pin!(acquire(&store, &fresh, OwnerId::new()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(completion.as_mut().poll(&mut context), Poll::Pending));
    assert!(matches!(acquire.as_mut().poll(&mut context), Poll::Pending));
    lock.execute_batch("ROLLBACK").expect("unlocked");
    assert_eq!(acquire.await.expect_err("no room for a token").kind(), ErrorKind::Full);
    assert_eq!(completion.await.expect("needs no token"), FencedWrite::Applied);
    assert!(matches!(store.peek(&fresh).await, Ok(Peeked::Absent)));
}

/// A waiter's own check is left out while a thread writes, so each write has to check too.
#[tokio::test]
async fn acq_4_a_write_notices_the_commits_of_other_connections_for_the_waiters() {
    let dir = dir();
    let store = dir.store();
    let (key, other) = (id("k"), rusqlite::Connection::open(dir.0.join("records.db")));
    let owner = granted(&store, &key).await;
    let _waiter = store.waiters.registry.subscribe(id("waited for"));
    let beat = async || {
        assert_eq!(store.extend(&key, owner, LONG).await.expect("extended"), FencedWrite::Applied);
        store.waiters.foreign_commits()
    };
    // The first check has no earlier one to compare with.
    let before = beat().await;
    assert_eq!(beat().await, before, "its own commits do not count");
    other.expect("opened").execute_batch("CREATE TABLE other (n)").expect("committed");
    assert_eq!(beat().await, before + 1);
    assert_eq!(beat().await, before + 1);
}

#[tokio::test]
async fn sto_5_a_file_that_turns_read_only_refuses_writes_and_replays_on() {
    let dir = dir();
    let store = dir.store();
    let (old, fresh) = (id("old"), id("canary"));
    let owner = granted(&store, &old).await;
    assert_eq!(
        store.complete(&old, owner, &done(100)).await.expect("completed"),
        FencedWrite::Applied
    );
    store.writer.pragma("PRAGMA query_only = ON");
    let error = acquire(&store, &fresh, OwnerId::new()).await.expect_err("read-only");
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    assert!(
        error.to_string().contains("read-only") && !format!("{error:?}").contains("canary"),
        "{error:?}"
    );
    assert!(matches!(store.peek(&fresh).await, Ok(Peeked::Absent)));
    assert!(matches!(acquire(&store, &old, OwnerId::new()).await, Ok(Acquired::Complete(_))));
    store.writer.pragma("PRAGMA query_only = OFF");
    granted(&store, &fresh).await;
    assert_eq!(store.stats().await.expect("counted").records, 2);
}

/// Returns SQLite's explanation of a statement, with one instruction or step per line.
fn explain(store: &SqliteStore, how: &str, statement: Statement) -> Vec<String> {
    store.readers.with(|conn| {
        let mut prepared =
            conn.prepare(&format!("{how} {}", store.statements.get(statement))).expect("explained");
        let columns = prepared.column_count();
        let mut rows = prepared.raw_query();
        let mut lines = Vec::new();
        while let Some(row) = rows.next().expect("a line") {
            let texts = (0..columns).filter_map(|at| row.get_ref(at).ok()?.as_str().ok());
            lines.push(texts.collect::<Vec<_>>().join(" "));
        }
        lines
    })
}

#[test]
fn sto_4_beats_and_completions_touch_no_index() {
    let dir = dir();
    let store = dir.store();
    let runs = |statement, opcode: &str| {
        explain(&store, "EXPLAIN", statement)
            .iter()
            .any(|line| line.split(' ').any(|word| word == opcode))
    };
    assert!(runs(Statement::Grant, "IdxInsert"), "the test should be able to detect index writes");
    for statement in [Statement::Extend, Statement::Complete] {
        assert!(
            runs(statement, "Insert")
                && !runs(statement, "IdxInsert")
                && !runs(statement, "IdxDelete")
        );
    }
}

#[test]
fn acq_8_statements_find_their_rows_by_an_index() {
    let dir = dir();
    let store = dir.store();
    for statement in Statement::ALL {
        let plan = explain(&store, "EXPLAIN QUERY PLAN", statement);
        let scans = plan.iter().any(|line| line.contains("SCAN"));
        assert_eq!(scans, statement == Statement::Stats, "{statement:?}: {plan:?}");
    }
}

#[tokio::test]
async fn ops_1_a_page_reads_no_more_rows_than_its_limit() {
    let dir = dir();
    let store = dir.store();
    store.writer.pragma(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<300) \
         INSERT INTO retryproof_records SELECT x'73',CAST(i AS BLOB),2,zeroblob(16),1,0,0,0,NULL,\
         NULL,NULL,NULL FROM n",
    );
    let steps = |limit: i64| {
        store.readers.with(|conn| {
            let sql = store.statements.get(Statement::Scan);
            let mut statement = conn.prepare(sql).expect("prepared");
            let mut rows = statement.query((&b""[..], &b""[..], limit)).expect("started");
            let mut read = 0;
            while rows.next().expect("a row").is_some() {
                read += 1;
            }
            drop(rows);
            assert!(read <= limit, "{read} rows");
            statement.get_status(StatementStatus::VmStep)
        })
    };
    let (ten, all) = (steps(10), steps(1_000));
    assert!(ten * 10 < all, "a page of 10 rows takes {ten} steps, one of 300 rows {all}");
    let page = store.scan(None, 10).await.expect("scanned");
    assert!(page.records.is_empty() && page.next.is_some(), "{page:?}");
}

#[tokio::test]
async fn ops_1_a_scan_holds_up_neither_its_thread_nor_other_calls() {
    let dir = dir();
    dir.store();
    // The clock blocks the scan between two rows, unless the scan runs on the test's own thread.
    let (resume, stopped) = std::sync::mpsc::channel::<()>();
    let (here, stopped) = (std::thread::current().id(), Mutex::new(stopped));
    let is_writer = || std::thread::current().name() == Some("retryproof-sqlite");
    let config =
        SqliteConfig::new(dir.0.join("records.db")).with_readers(1).with_wall_clock(move || {
            if std::thread::current().id() != here && !is_writer() {
                // `recv` blocks the scan until the test drops `resume`.
                let _ = stopped.lock().recv();
            }
            retryproof_core::clock::wall_clock_micros()
        });
    let store = SqliteStore::open_with(config).expect("opened");
    let owner = granted(&store, &id("held")).await;
    let mut scan = pin!(store.scan(None, 10));
    let mut context = Context::from_waker(Waker::noop());
    assert!(scan.as_mut().poll(&mut context).is_pending(), "the scan ran on this thread");
    let done = store.complete(&id("held"), owner, &done(10)).await.expect("completed");
    assert_eq!(done, FencedWrite::Applied);
    assert!(matches!(store.peek(&id("held")).await, Ok(Peeked::Complete(_))));
    assert!(scan.as_mut().poll(&mut context).is_pending(), "the scan did not wait for the clock");
    drop(resume);
    assert_eq!(scan.await.expect("scanned").records.len(), 1);
}

/// Completes a record, and returns the request that erases its result.
async fn erase_of(store: &SqliteStore, id: &Identity) -> ForceRequest {
    let owner = granted(store, id).await;
    let completed = store.complete(id, owner, &done(100)).await.expect("completed");
    assert_eq!(completed, FencedWrite::Applied);
    ForceRequest::erase(store.get(id).await.expect("read").expect("a record").token)
}

#[tokio::test]
async fn ops_4_an_erase_that_fails_leaves_the_usual_way_of_deleting() {
    let dir = dir();
    let store = dir.store();
    let erase = erase_of(&store, &id("k")).await;
    let usual = store.writer.read_number("PRAGMA secure_delete");
    store.writer.pragma(
        "CREATE TRIGGER refuse BEFORE UPDATE ON retryproof_records \
         BEGIN SELECT RAISE(ABORT,'planted'); END",
    );
    let error = store.force(&id("k"), &erase).await.expect_err("the trigger refuses the change");
    assert!(format!("{error:?}").contains("planted"), "{error:?}");
    assert_eq!(store.writer.read_number("PRAGMA secure_delete"), usual);
    store.writer.pragma("DROP TRIGGER refuse");
    assert!(matches!(store.force(&id("k"), &erase).await, Ok(Forced::Applied)));
    assert_eq!(store.writer.read_number("PRAGMA secure_delete"), usual);
}

#[tokio::test]
async fn ops_4_the_log_is_emptied_or_given_up_within_the_busy_timeout() {
    const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
    let dir = dir();
    dir.store();
    let config = SqliteConfig::new(dir.0.join("records.db")).with_busy_timeout(BUSY_TIMEOUT);
    let store = SqliteStore::open_with(config).expect("opened");
    let erase = erase_of(&store, &id("k")).await;
    // This reader still sees the state before the erase, so SQLite cannot empty the write-ahead
    // log.
    let reader = rusqlite::Connection::open(&store.config.path).expect("opened");
    reader.execute_batch("BEGIN; SELECT count(*) FROM retryproof_records").expect("read");
    let erasing = id("k");
    let mut erasing = pin!(store.force(&erasing, &erase));
    assert!(timeout(BUSY_TIMEOUT * 7 / 10, &mut erasing).await.is_err(), "the log is in use");
    // While the erase waits, another writer of this process takes the write lock, as a joined
    // transaction would.
    let _lock = FileWriteLock::of(&store.config.path).lock().await;
    let ended = timeout(BUSY_TIMEOUT * 7 / 10, erasing).await.expect("the deadline has passed");
    assert_eq!(ended.expect_err("not emptied").kind(), ErrorKind::Unavailable);
}
