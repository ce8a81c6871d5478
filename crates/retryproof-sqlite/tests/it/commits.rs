// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the write queue: commits that calls share, calls that are dropped while they are
//! queued, the closing of the store, and a purge during other calls.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::clock::wall_clock_micros;
use retryproof_core::store::{
    Acquired, FencedWrite, Inspect, Peeked, Purge, SharedStore, TxSource,
};
use retryproof_core::{
    ErrorKind, IdempotencyContext, IdempotencyEngine, IdempotencyStore, Outcome, OwnerId, blocking,
};
use retryproof_sqlite::{SqliteStore, SqliteTxSource};
use tokio::time::Instant;

use crate::support::{DAY, Dir, Wall, completion, execute, grant, id, replay, request};

/// Polls a call once, which puts it into the queue. While the file is locked, the call stays there.
fn start<F: Future + ?Sized>(call: Pin<&mut F>) {
    assert!(call.poll(&mut Context::from_waker(Waker::noop())).is_pending(), "the file is locked");
}

/// Returns the size of the write-ahead log, which grows by a frame for each page that a commit
/// changes.
fn log_size(dir: &Dir) -> u64 {
    std::fs::metadata(dir.path().join("records.db-wal")).expect("a log").len()
}

/// Takes the write lock, as another process might.
fn lock(dir: &Dir) -> rusqlite::Connection {
    let stranger = dir.stranger();
    stranger.execute_batch("BEGIN IMMEDIATE").expect("locked");
    stranger
}

#[tokio::test]
async fn acq_8_sixty_four_callers_share_commits() {
    let dir = Dir::new();
    let store = dir.store();
    let before = log_size(&dir);
    for at in 0..64 {
        grant(&store, &id(&format!("alone {at}")), OwnerId::new()).await;
    }
    let alone = log_size(&dir) - before;

    let ids: Vec<_> = (0..64).map(|at| id(&format!("together {at}"))).collect();
    let stranger = lock(&dir);
    let mut callers: Vec<_> =
        ids.iter().map(|id| Box::pin(grant(&store, id, OwnerId::new()))).collect();
    for caller in &mut callers {
        start(caller.as_mut());
    }
    let before = log_size(&dir);
    stranger.execute_batch("ROLLBACK").expect("unlocked");
    let mut tokens = HashSet::new();
    for caller in callers {
        tokens.insert(caller.await.token);
    }
    assert_eq!(tokens.len(), 64, "each grant of a commit has a separate token");
    let together = log_size(&dir) - before;
    assert!(together * 4 < alone, "{together} bytes of log together, {alone} one by one");
}

/// If a batch fails, its calls run again one by one. The batch as a whole is tried again only if
/// the file was locked.
#[tokio::test]
async fn sto_5_each_call_of_a_failed_batch_is_tried_once_more() {
    let dir = Dir::new();
    let store = dir.store();
    grant(&store, &id("damaged"), OwnerId::new()).await;
    let stranger = dir.stranger();
    stranger
        .execute_batch(
            "UPDATE retryproof_records SET state = 9;
             CREATE TRIGGER refuse BEFORE UPDATE ON retryproof_records_meta BEGIN
               SELECT RAISE(ABORT, 'no tokens'); END",
        )
        .expect("changed");
    let (damaged, fine) = (id("damaged"), id("fine"));
    let request = request(OwnerId::new());
    let stranger = lock(&dir);
    let mut release = pin!(store.release(&damaged, OwnerId::new()));
    let mut acquire = pin!(store.acquire(&fine, &request));
    start(release.as_mut());
    start(acquire.as_mut());
    let began = Instant::now();
    stranger.execute_batch("ROLLBACK").expect("unlocked");
    assert_eq!(release.await.expect_err("damaged").kind(), ErrorKind::Corrupt);
    assert!(format!("{:?}", acquire.await.expect_err("refused")).contains("no tokens"));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_10_tokens_of_concurrent_callers_are_distinct() {
    let dir = Dir::new();
    let store = Arc::new(dir.store());
    let callers: Vec<_> = (0..64)
        .map(|caller| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut tokens = Vec::new();
                for at in 0..8 {
                    let (id, owner) = (id(&format!("{caller} {at}")), OwnerId::new());
                    tokens.push(grant(&store, &id, owner).await.token);
                    let done =
                        store.complete(&id, owner, &completion(&format!("{caller} {at}"))).await;
                    assert_eq!(done.expect("completed"), FencedWrite::Applied);
                }
                assert!(tokens.is_sorted());
                tokens
            })
        })
        .collect();
    let mut tokens = HashSet::new();
    for caller in callers {
        tokens.extend(caller.await.expect("no panic"));
    }
    assert_eq!(tokens.len(), 512);
    assert_eq!(replay(&store, &id("63 7")).await, "63 7");
}

#[tokio::test]
async fn acq_11_an_acquire_dropped_in_the_queue_never_happens() {
    let dir = Dir::new();
    let store = dir.store();
    let (dropped, after) = (id("dropped"), id("after"));
    // A joined transaction in this process holds the write lock.
    let source = SqliteTxSource::open(dir.path().join("records.db")).expect("a source");
    let tx = source.begin().await.expect("begun");
    start(pin!(grant(&store, &dropped, OwnerId::new())));
    drop(tx);
    // This call is queued behind the dropped call. When it ends, the writing thread has therefore
    // handled the dropped call too.
    execute(&store, &after, "result").await;
    assert!(matches!(store.peek(&dropped).await, Ok(Peeked::Absent)));
}

#[tokio::test]
async fn cmp_3_a_completion_dropped_in_the_queue_still_happens() {
    let dir = Dir::new();
    let store = dir.store();
    let (id, owner) = (id("k"), OwnerId::new());
    grant(&store, &id, owner).await;
    let stranger = lock(&dir);
    start(pin!(store.complete(&id, owner, &completion("late"))));
    stranger.execute_batch("ROLLBACK").expect("unlocked");
    assert_eq!(
        store.complete(&id, owner, &completion("later")).await.expect("asked"),
        FencedWrite::AlreadyApplied
    );
    assert_eq!(replay(&store, &id).await, "late");
}

#[tokio::test]
async fn cmp_3_dropping_the_store_finishes_what_is_queued() {
    let dir = Dir::new();
    let store = dir.store();
    let (id, owner) = (id("k"), OwnerId::new());
    grant(&store, &id, owner).await;
    let stranger = lock(&dir);
    start(pin!(store.complete(&id, owner, &completion("queued"))));
    stranger.execute_batch("ROLLBACK").expect("unlocked");
    drop(store);
    assert_eq!(replay(&dir.store(), &id).await, "queued");
}

#[tokio::test]
async fn sto_5_dropping_the_store_beside_a_locked_file_ends() {
    let dir = Dir::new();
    let store = dir.store();
    let (id, owner) = (id("k"), OwnerId::new());
    grant(&store, &id, owner).await;
    let stranger = lock(&dir);
    start(pin!(store.release(&id, owner)));
    // `drop` stops retrying after its time limit, although the file is still locked.
    drop(store);
    drop(stranger);
    match dir.store().acquire(&id, &request(OwnerId::new())).await {
        Ok(Acquired::Busy(_)) => {}
        other => panic!("nothing could be released: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_4_purge_goes_in_bounded_batches_beside_live_traffic() {
    let dir = Dir::new();
    let wall = Wall::new();
    let store = Arc::new(SqliteStore::open_with(wall.on(dir.config())).expect("opened"));
    let old: Vec<_> = (0..1_000)
        .map(|at| {
            let store = Arc::clone(&store);
            tokio::spawn(
                async move { grant(&store, &id(&format!("old {at}")), OwnerId::new()).await },
            )
        })
        .collect();
    for grant in old {
        grant.await.expect("granted");
    }
    wall.forward(2 * DAY);
    execute(&store, &id("live"), "result").await;
    assert_eq!(store.purge(7).await.expect("purged"), 7);

    let purge = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.purge(100_000).await.expect("purged") }
    });
    let mut beside = 0_u32;
    while !purge.is_finished() {
        execute(&store, &id(&format!("beside {beside}")), "result").await;
        beside += 1;
    }
    assert_eq!(purge.await.expect("no panic"), 993);
    assert!(beside > 1, "others write between its batches");
    let stats = store.stats().await.expect("counted");
    assert_eq!((stats.records, stats.in_progress), (u64::from(beside) + 1, 0));
    assert_eq!(replay(&store, &id("live")).await, "result");
    assert_eq!(store.purge(100_000).await.expect("purged"), 0);
}

#[tokio::test]
async fn sto_4_inspect_describes_records_without_their_values() {
    let dir = Dir::new();
    let wall = Wall::new();
    let store = SqliteStore::open_with(wall.on(dir.config())).expect("opened");
    let (id, owner) = (id("k"), OwnerId::new());
    assert!(store.get(&id).await.expect("asked").is_none());
    let token = grant(&store, &id, owner).await.token;
    let summary = store.get(&id).await.expect("asked").expect("there");
    assert_eq!((summary.token, summary.value_bytes, summary.has_fingerprint), (token, 0, false));
    wall.forward(Duration::from_secs(61));
    assert_eq!(store.get(&id).await.expect("asked").expect("still there").remaining, None);
    let done = completion("12 bytes body");
    assert_eq!(store.complete(&id, owner, &done).await.expect("completed"), FencedWrite::Applied);
    let summary = store.get(&id).await.expect("asked").expect("there");
    assert_eq!((summary.remaining, summary.value_bytes), (Some(DAY), done.value.len()));
    let stats = store.stats().await.expect("counted");
    assert!(stats.records == 1 && stats.in_progress == 0 && stats.bytes > 100, "{stats:?}");
}

/// The thread that reads or writes also reads the wall clock, so the test's clock can record which
/// thread it is.
#[test]
fn acq_8_a_blocking_caller_writes_on_its_own_thread() {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let dir = Dir::new();
    let config = dir.config().with_wall_clock({
        let threads = Arc::clone(&threads);
        move || {
            threads.lock().push(std::thread::current().name().unwrap_or_default().to_owned());
            wall_clock_micros()
        }
    });
    let writes = || std::mem::take(&mut *threads.lock()).contains(&"retryproof-sqlite".to_owned());
    let store = SharedStore::from(SqliteStore::open_with(config).expect("opened"));

    let engine = IdempotencyEngine::new(store.clone());
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ctx = IdempotencyContext::builder("sqlite.tests", "async").build().expect("a context");
    let done = runtime.block_on(engine.execute(ctx, async || Ok::<_, Infallible>(1)));
    assert!(matches!(done, Ok(Outcome::Executed(1))), "{done:?}");
    assert!(writes(), "an async caller's thread does not wait for the disk");

    let engine = blocking::Engine::new(store).expect("an engine");
    let ctx = IdempotencyContext::builder("sqlite.tests", "blocking").build().expect("a context");
    let done = engine.execute(ctx.clone(), || Ok::<_, Infallible>(2));
    assert!(matches!(done, Ok(Outcome::Executed(2))), "{done:?}");
    assert!(!writes(), "a blocking caller's thread waits anyway");
    let again = engine.execute(ctx, || Ok::<i32, Infallible>(3));
    assert!(matches!(again, Ok(Outcome::Replayed(2))), "{again:?}");
}
