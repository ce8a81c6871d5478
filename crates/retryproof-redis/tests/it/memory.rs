// SPDX-License-Identifier: MIT OR Apache-2.0
//! Redis that is out of memory: calls of an engine on a server that refuses writes (`noeviction`),
//! and on a server that evicts records instead. As the guide says, the work of the evicted keys
//! runs again, the work of all other keys does not, and the holder of an evicted key notices.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use retryproof_core::observe::Loss;
use retryproof_core::store::{Severity, SharedStore};
use retryproof_core::{
    Acquisition, Attempt, ErrorKind, ExecuteError, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore as _, IdentitySecret, Lease, Outcome, Recorded,
};
use retryproof_redis::{RedisConfig, RedisStore};
use tokio::sync::Notify;

use crate::support::server::Server;
use crate::support::{ask, config, id, is, key_of, own_prefix, refused};

const LEASE: Duration = Duration::from_secs(2);
/// The time limit of a wait. Every successful wait is shorter.
const PATIENCE: Duration = Duration::from_secs(30);

fn ctx(key: &str) -> IdempotencyContext {
    let ctx = IdempotencyContext::builder("redis.tests", key);
    ctx.lease(LEASE).wait_timeout(Duration::ZERO).build().expect("a context")
}

async fn engine(config: RedisConfig) -> IdempotencyEngine {
    IdempotencyEngine::new(SharedStore::from(RedisStore::connect(config).await.expect("connected")))
}

/// How a call ended: its outcome, whether the outcome is recorded, and whether the completion was
/// refused. If the completion failed, the `Err` says whether the result is recorded.
type Ended = Result<(Outcome<String>, Recorded, bool), Recorded>;

/// A call whose action has begun, and ends when `go` is notified.
struct Working {
    call: tokio::task::JoinHandle<Ended>,
    go: Arc<Notify>,
    /// Set to 1 when the action is notified that it has lost its lease.
    lost: Arc<AtomicU64>,
}

impl Working {
    async fn start(engine: &IdempotencyEngine, key: &'static str, value: &'static str) -> Self {
        let (go, begun) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let lost = Arc::new(AtomicU64::new(0));
        let (engine, end, began, told) =
            (engine.clone(), Arc::clone(&go), Arc::clone(&begun), Arc::clone(&lost));
        let call = tokio::spawn(async move {
            let action = |lease: Lease| async move {
                began.notify_one();
                tokio::select! {
                    () = end.notified() => {}
                    loss = lease.lost() => {
                        assert_eq!(loss, Loss::TakenOver);
                        assert!(!lease.believed_held());
                        told.store(1, Ordering::SeqCst);
                        end.notified().await;
                    }
                }
                Ok::<_, Infallible>(value.to_owned())
            };
            match engine.call(ctx(key)).report(action).await {
                Ok(report) => Ok((report.outcome, report.recorded, report.fenced)),
                Err(ExecuteError::Completion(failed)) => Err(failed.recorded),
                Err(other) => panic!("{other}"),
            }
        });
        begun.notified().await;
        Self { call, go, lost }
    }

    async fn end(self) -> Ended {
        self.go.notify_one();
        self.call.await.expect("no panic")
    }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    tokio::time::timeout(PATIENCE, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}

#[tokio::test]
async fn sto_1_run_1_cmp_1_holders_finish_while_the_memory_is_full() {
    let server = Server::start("maxmemory-policy noeviction").await;
    let prefix = own_prefix();
    let engine = engine(config(&server.url()).with_prefix(prefix.clone())).await;
    let working = Working::start(&engine, "working", "result").await;
    server.tell("CONFIG SET maxmemory 1").await;

    let refused = engine.execute(ctx("new"), async || -> Result<String, Infallible> {
        panic!("nothing runs without a lease")
    });
    match refused.await {
        Err(ExecuteError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
        other => panic!("a new key without memory: {other:?}"),
    }
    let mut stranger = server.stranger().await;
    let left: i64 = ask(&mut stranger, &format!("EXISTS {}", key_of(&prefix, &id("new")))).await;
    assert_eq!(left, 0, "nothing half done");
    // The action takes longer than its lease. The heartbeats that extend the lease need no memory.
    tokio::time::sleep(LEASE + LEASE / 4).await;
    assert_eq!(working.lost.load(Ordering::SeqCst), 0);
    let ended = working.end().await;
    assert_eq!(ended, Ok((Outcome::Executed("result".to_owned()), Recorded::Yes, false)));
    let again = engine.execute(ctx("working"), async || Ok::<_, Infallible>(String::new())).await;
    assert!(matches!(again, Ok(Outcome::Replayed(value)) if value == "result"));

    server.tell("CONFIG SET maxmemory 0").await;
    let new = engine.execute(ctx("new"), async || Ok::<_, Infallible>("new".to_owned())).await;
    assert!(matches!(new, Ok(Outcome::Executed(_))), "{new:?}");
}

/// Writes until the server has evicted `gone`. The server picks keys of the same age at random, so
/// the number of writes varies.
async fn evict(conn: &mut MultiplexedConnection, policy: &str, gone: &str) {
    let used: String = ask(conn, "INFO memory").await;
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a line");
    let limit = used.trim().parse::<u64>().expect("a number") + 300_000;
    let _: redis::Value = ask(conn, &format!("CONFIG SET maxmemory-policy {policy}")).await;
    let _: redis::Value = ask(conn, &format!("CONFIG SET maxmemory {limit}")).await;
    let filler = "x".repeat(20_000);
    for number in 0..5_000 {
        // Set a ttl, which records have too, because `volatile-lru` evicts only keys with a ttl.
        let _: redis::Value = ask(conn, &format!("SET filler{number} {filler} EX 3600")).await;
        if ask::<i64>(conn, &format!("EXISTS {gone}")).await == 0 {
            return;
        }
    }
    panic!("{gone} was not evicted");
}

#[tokio::test]
async fn sto_3_run_2_cmp_2_a_holder_notices_that_its_lease_was_evicted() {
    for policy in ["allkeys-lru", "volatile-lru"] {
        let server = Server::start("").await;
        let prefix = own_prefix();
        let engine = engine(config(&server.url()).with_prefix(prefix.clone())).await;
        let mut stranger = server.stranger().await;
        let (overtaken, alone) = (
            Working::start(&engine, "overtaken", "first").await,
            Working::start(&engine, "alone", "lonely").await,
        );
        for key in ["overtaken", "alone"] {
            evict(&mut stranger, policy, &key_of(&prefix, &id(key))).await;
        }
        server.tell("CONFIG SET maxmemory 0").await;
        until("the action is told", async || {
            overtaken.lost.load(Ordering::SeqCst) + alone.lost.load(Ordering::SeqCst) == 2
        })
        .await;

        // The evicted key looks as if it had never been used, so this grant is not a takeover.
        let Ok(Acquisition::Granted(second)) = engine.try_acquire(&ctx("overtaken")).await else {
            panic!("an evicted key is free")
        };
        assert_eq!(second.lease().attempt(), Attempt::First);
        drop(second.release().await);
        let again =
            engine.execute(ctx("overtaken"), async || Ok::<_, Infallible>("second".to_owned()));
        assert_eq!(again.await.expect("executed"), Outcome::Executed("second".to_owned()));
        // The first holder's completion is refused, and its call returns the stored result.
        let ended = overtaken.end().await;
        assert!(
            matches!(&ended, Ok((Outcome::Replayed(value), _, true)) if value == "second"),
            "{policy}: {ended:?}"
        );
        // If no record is left, the completion fails. Under the default policy, the call then gets
        // its own value (CMP-4), and a retry runs the work again.
        let own = Ok((Outcome::Executed("lonely".to_owned()), Recorded::No, true));
        assert_eq!(alone.end().await, own, "{policy}");
        let again = engine.execute(ctx("alone"), async || Ok::<_, Infallible>("again".to_owned()));
        assert_eq!(
            again.await.expect("executed"),
            Outcome::Executed("again".to_owned()),
            "{policy}"
        );
    }
}

#[tokio::test]
async fn sto_3_cmp_6_the_work_of_evicted_keys_runs_again_and_no_other() {
    const KEYS: u64 = 200;
    for policy in ["allkeys-lru", "volatile-lru"] {
        let server = Server::start("").await;
        let prefix = own_prefix();
        let config = config(&server.url()).with_prefix(prefix.clone());
        let engine = engine(config.clone()).await;
        let (mut stranger, runs) = (server.stranger().await, AtomicU64::new(0));
        let call = async |number: u64| {
            let action = async || {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Infallible>(number)
            };
            engine.execute(ctx(&format!("k{number}")), action).await.expect("an outcome")
        };
        for number in 0..KEYS {
            assert_eq!(call(number).await, Outcome::Executed(number));
        }
        let key = |number| key_of(&prefix, &id(&format!("k{number}")));
        evict(&mut stranger, policy, &key(KEYS / 2)).await;
        // With such a policy, the diagnosis reports that evicted keys lose their results (OPS-5).
        let found = config.diagnose().await.expect("a diagnosis");
        let eviction = found.iter().find(|finding| finding.id == "eviction").expect("a finding");
        assert_eq!(eviction.severity, Severity::Error, "{eviction:?}");
        assert!(eviction.problem.contains("work runs again"), "{eviction:?}");
        server.tell("CONFIG SET maxmemory 0").await;

        let mut evicted = 0;
        for number in 0..KEYS {
            let there: i64 = ask(&mut stranger, &format!("EXISTS {}", key(number))).await;
            let outcome = call(number).await;
            match there {
                0 => assert_eq!(outcome, Outcome::Executed(number), "{policy}"),
                _ => assert_eq!(outcome, Outcome::Replayed(number), "{policy}"),
            }
            evicted += u64::from(there == 0);
        }
        assert!(evicted > 0);
        assert_eq!(runs.load(Ordering::SeqCst), KEYS + evicted, "{policy}");
    }
}

/// Without the mark, a program without the secret is not refused. So a store that is in use writes
/// the mark again.
#[tokio::test]
async fn id_5_a_mark_that_the_server_evicted_is_written_again() {
    let secret = |letter: &str| IdentitySecret::new(letter.repeat(32)).expect("32 bytes");
    let server = Server::start("").await;
    let plain = config(&server.url()).with_prefix("p");
    let hashed = plain.clone().with_identity_secret(secret("a"));
    hashed.migrate().await.expect("migrated");
    let store = SharedStore::from(RedisStore::connect(hashed.clone()).await.expect("connected"));
    let mut stranger = server.stranger().await;
    evict(&mut stranger, "allkeys-lru", "p:identity").await;
    server.tell("CONFIG SET maxmemory 0").await;

    // The server cannot show whether the store was ever set up, so a connect does not write.
    is(&refused(hashed.clone()).await, ErrorKind::Config, "evicted");
    assert_eq!(ask::<i64>(&mut stranger, "EXISTS p:identity").await, 0);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    drop(store.peek(&id("k")).await.expect("answered"));
    let mut stranger = server.stranger().await;
    let written = async {
        while ask::<i64>(&mut stranger, "EXISTS p:identity").await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, written).await.expect("the store writes the mark");
    is(&refused(plain.clone()).await, ErrorKind::Config, "no identity secret");
    let other = plain.with_identity_secret(secret("b"));
    is(&refused(other).await, ErrorKind::Config, "another identity secret");
    RedisStore::connect(hashed).await.expect("connected");
}
