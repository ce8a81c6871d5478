// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `sqlite`: compares durable executions with two bare durable writes of the same driver, and
//! replays with a bare SELECT.
//!
//! The floor has the same table, the same index and the same durability (WAL, `synchronous =
//! FULL`): one prepared INSERT and one prepared UPDATE of 200 bytes, each in a separate commit.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use retryproof::sqlite::{SqliteConfig, SqliteStore};
use retryproof::store::{AcquireRequest, Acquired, Completion, FencedWrite, Peeked};
use retryproof::{
    Blob, IdempotencyContext, IdempotencyEngine, IdempotencyStore, Identity, OwnerId, blocking,
};
use rusqlite::{Connection, params};
use tokio::runtime::Runtime;

use crate::compare::{Contender, interleave, median, nanos, now};
use crate::heap::HeapCounter;
use crate::report::{Plot, Report, Row};

const TTL: Duration = Duration::from_secs(86_400);
const LEASE: Duration = Duration::from_secs(30);
/// The number of executions in one batch.
const BATCH: u64 = 25;
const ROUNDS: usize = 41;
/// The number of executions before the measurement.
const WARM_UP: u64 = 400;

/// A folder on the disk of the build, because the system's temporary folder may be in memory.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, String> {
        let path =
            crate::root().join("target").join(format!("bench-sqlite-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(Self(path))
    }

    fn store(&self, name: &str, in_place: bool) -> Result<SqliteStore, String> {
        let config = SqliteConfig::new(self.0.join(name)).with_in_place(in_place);
        config
            .migrate()
            .and_then(|()| SqliteStore::open_with(config))
            .map_err(|error| error.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The floor: the same writes without the store.
struct Floor(Connection);

impl Floor {
    fn open(file: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(file)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute_batch(
            "CREATE TABLE floor (scope BLOB NOT NULL, key BLOB NOT NULL, state INTEGER NOT NULL, owner BLOB NOT NULL,
             token INTEGER NOT NULL, expires_at INTEGER NOT NULL, purge_after INTEGER NOT NULL, fp BLOB, result BLOB,
             PRIMARY KEY (scope, key));
             CREATE INDEX floor_purge ON floor (purge_after);",
        )?;
        Ok(Self(connection))
    }

    fn two_writes(&self, number: u64, value: &[u8]) -> rusqlite::Result<()> {
        let key = key(number);
        let owner = OwnerId::new();
        let stamp = i64::try_from(number).unwrap_or(i64::MAX);
        self.0
            .prepare_cached("INSERT INTO floor VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6, NULL, NULL)")?
            .execute(params![
                SCOPE.as_bytes(),
                key.as_bytes(),
                owner.as_bytes(),
                stamp,
                stamp,
                stamp
            ])?;
        self.0
            .prepare_cached(
                "UPDATE floor SET state = 1, result = ?3, expires_at = ?4 WHERE scope = ?1 AND key = ?2",
            )?
            .execute(params![SCOPE.as_bytes(), key.as_bytes(), value, stamp])?;
        Ok(())
    }

    fn select(&self, number: u64) -> rusqlite::Result<usize> {
        let key = key(number);
        self.0
            .prepare_cached(
                "SELECT state, owner, token, expires_at, fp, result FROM floor WHERE scope = ?1 AND key = ?2",
            )?
            .query_row(params![SCOPE.as_bytes(), key.as_bytes()], |row| {
                Ok(row.get_ref(1)?.as_blob()?.len() + row.get::<_, Vec<u8>>(5)?.len())
            })
    }
}

const SCOPE: &str = "payments.created";

fn key(number: u64) -> String {
    format!("{number:036}")
}

fn identity(number: u64) -> Identity {
    Identity::of(SCOPE, key(number)).expect("a valid identity")
}

/// Acquires and completes, as an execution does.
async fn execution(store: &SqliteStore, number: u64) -> Result<(), String> {
    let id = identity(number);
    let request = AcquireRequest::new(OwnerId::new(), LEASE, TTL);
    let acquired = store.acquire(&id, &request).await.map_err(|error| error.to_string())?;
    let done = Completion::new(Blob::from(vec![7; 200]), TTL, None);
    let completed =
        store.complete(&id, request.owner, &done).await.map_err(|error| error.to_string())?;
    match (acquired, completed) {
        (Acquired::Granted(_), FencedWrite::Applied) => Ok(()),
        other => Err(format!("expected a first execution, got {other:?}")),
    }
}

pub(crate) fn run() -> Result<Report, String> {
    let folder = Folder::new()?;
    let floor = Floor::open(&folder.0.join("floor.db")).map_err(|error| error.to_string())?;
    let store = folder.store("thread.db", false)?;
    let in_place = folder.store("place.db", true)?;
    let engine = blocking::Engine::over(IdempotencyEngine::new(folder.store("engine.db", false)?))
        .map_err(|error| error.to_string())?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let mut report = Report::new("sqlite", "The SQLite store, durable (WAL, synchronous = FULL)");
    executions(&mut report, &floor, &store, &in_place, &engine, &runtime)?;
    callers(&mut report, &folder, &runtime)?;
    replays(&mut report, &floor, &store, &runtime)?;
    report.note(
        "Values have 200 bytes, keys 36. Each store has its own file; all are on one disk."
            .to_owned(),
    );
    Ok(report)
}

fn executions(
    report: &mut Report,
    floor: &Floor,
    store: &SqliteStore,
    in_place: &SqliteStore,
    engine: &blocking::Engine,
    runtime: &Runtime,
) -> Result<(), String> {
    let failure = std::cell::RefCell::new(None::<String>);
    let note = |result: Result<(), String>| {
        if let Err(problem) = result {
            failure.borrow_mut().get_or_insert(problem);
        }
    };
    let (mut a, mut b, mut c, mut d) = (0, 0, 0, 0);
    let value = [7; 200];
    let next = |counter: &mut u64| {
        *counter += 1;
        *counter
    };
    // A commit costs about twice as much while the log file still grows, so these writes grow it
    // first.
    for number in 0..WARM_UP {
        let far = WARM_UP * 1_000 + number;
        floor.two_writes(far, &value).map_err(|error| error.to_string())?;
        runtime.block_on(execution(in_place, far))?;
        runtime.block_on(execution(store, far))?;
        let ctx = IdempotencyContext::builder(SCOPE, key(far))
            .build()
            .map_err(|error| error.to_string())?;
        let outcome = engine.execute(ctx, || Ok::<_, std::io::Error>("x".repeat(200)));
        drop(outcome.map_err(|error| error.to_string())?);
    }
    let medians = interleave(
        ROUNDS,
        vec![
            Contender::new("two bare durable writes", || {
                micros(|_| {
                    note(floor.two_writes(next(&mut a), &value).map_err(|error| error.to_string()))
                })
            }),
            Contender::new("execution, in place", || {
                micros(|_| {
                    note(runtime.block_on(execution(in_place, {
                        b += 1;
                        b
                    })))
                })
            }),
            Contender::new("execution, one async caller", || {
                micros(|_| {
                    note(runtime.block_on(execution(store, {
                        c += 1;
                        c
                    })))
                })
            }),
            Contender::new("execution by the blocking engine", || {
                micros(|_| {
                    d += 1;
                    let ctx = IdempotencyContext::builder(SCOPE, key(d))
                        .build()
                        .map_err(|error| error.to_string());
                    note(ctx.and_then(|ctx| {
                        let outcome =
                            engine.execute(ctx, || Ok::<_, std::io::Error>("x".repeat(200)));
                        outcome.map(drop).map_err(|error| error.to_string())
                    }));
                })
            }),
        ],
    );
    if let Some(problem) = failure.into_inner() {
        return Err(problem);
    }
    let mut plot = Plot::new("Durable execution", "x two bare durable writes");
    for median in &medians {
        let row = Row::new(median.name, median.cost, "us")
            .beside("two bare durable writes", median.ratio);
        report.row(match median.name {
            "execution, in place" | "execution by the blocking engine" => row.ratio_at_most(1.15),
            "execution, one async caller" => row.ratio_at_most(1.30),
            _ => row,
        });
    }
    for median in medians.iter().skip(1).chain(medians.first()) {
        plot = plot.bar(median.name, median.ratio);
    }
    report.plot(plot);
    Ok(())
}

/// Measures the executions per second of 64 callers and of one, in turn.
fn callers(report: &mut Report, folder: &Folder, runtime: &Runtime) -> Result<(), String> {
    let store = Arc::new(folder.store("callers.db", false)?);
    let mut number = 0;
    let mut ratios = Vec::new();
    let mut rates = (0.0, 0.0);
    for _ in 0..9 {
        let one = rate(runtime, &store, 1, 100, &mut number)?;
        let many = rate(runtime, &store, 64, 50, &mut number)?;
        rates = (one, many);
        ratios.push(many / one);
    }
    report.row(Row::new("executions, one caller", rates.0, "/s"));
    let row = Row::new("executions, 64 callers", rates.1, "/s");
    report.row(row.beside("one caller", median(ratios)).ratio_at_least(10.0));
    Ok(())
}

fn rate(
    runtime: &Runtime,
    store: &Arc<SqliteStore>,
    callers: u64,
    each: u64,
    number: &mut u64,
) -> Result<f64, String> {
    let begin = now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (store, from) = (Arc::clone(store), *number);
            *number += each;
            runtime.spawn(async move {
                for number in from..from + each {
                    execution(&store, number).await?;
                }
                Ok::<_, String>(())
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).map_err(|error| error.to_string())??;
    }
    Ok((callers * each) as f64 / begin.elapsed().as_secs_f64())
}

fn replays(
    report: &mut Report,
    floor: &Floor,
    store: &SqliteStore,
    runtime: &Runtime,
) -> Result<(), String> {
    let ids: Vec<_> = (1..=500).map(identity).collect();
    let request = AcquireRequest::new(OwnerId::new(), LEASE, TTL);
    let medians = runtime.block_on(async {
        // These calls run on this thread and never wait, so `ready` needs no runtime.
        interleave(
            ROUNDS,
            vec![
                Contender::new("bare SELECT", || {
                    nanos(2_000, |n| {
                        assert!(floor.select(n % 500 + 1).is_ok_and(|bytes| bytes > 200))
                    })
                }),
                Contender::new("replay (acquire)", || {
                    nanos(2_000, |n| {
                        let answer = ready(store.acquire(&ids[index(n)], &request));
                        assert!(matches!(answer, Some(Ok(Acquired::Complete(_)))));
                    })
                }),
                Contender::new("replay (look)", || {
                    nanos(2_000, |n| {
                        let answer = ready(store.peek(&ids[index(n)]));
                        assert!(matches!(answer, Some(Ok(Peeked::Complete(_)))));
                    })
                }),
            ],
        )
    });
    for median in &medians {
        let row =
            Row::new(median.name, median.cost / 1_000.0, "us").beside("bare SELECT", median.ratio);
        report.row(if median.name == "bare SELECT" { row } else { row.ratio_at_most(1.3) });
    }
    report.plot(
        Plot::new("Replay", "us")
            .bar("replay (acquire)", medians[1].cost / 1_000.0)
            .bar("bare SELECT", medians[0].cost / 1_000.0),
    );
    Ok(())
}

fn index(number: u64) -> usize {
    usize::try_from(number % 500).unwrap_or(0)
}

/// Returns the result of a call that completes at its first poll, otherwise `None`.
fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

/// Measures the microseconds of each operation of a batch.
fn micros(work: impl FnMut(u64)) -> f64 {
    nanos(BATCH, work) / 1_000.0
}

pub(crate) fn child(_: &[String], _: HeapCounter) -> Result<(), String> {
    Err("the suite sqlite measures nothing in a child".into())
}
