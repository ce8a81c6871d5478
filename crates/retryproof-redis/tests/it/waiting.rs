// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two processes on one server: waiting and takeovers. This binary starts itself again, and sends
//! commands to the other process's standard input.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, FencedWrite, LiveLease, Peeked};
use retryproof_core::{FencingToken, IdempotencyStore, Identity, OwnerId};
use retryproof_redis::{RedisConfig, RedisStore};
use tokio::time::Instant;

use crate::support::{
    DAY, LONG, ask, completion, grant, id, key_of, own_prefix, replay, service, stranger,
};

/// The environment variables that pass the server's URL and the prefix to the other process.
const SERVER: &str = "RETRYPROOF_REDIS_TEST_SERVER";
const PREFIX: &str = "RETRYPROOF_REDIS_TEST_PREFIX";

async fn connect(url: &str, prefix: &str) -> RedisStore {
    RedisStore::connect(RedisConfig::from_url(url).expect("a URL").with_prefix(prefix))
        .await
        .expect("it connects")
}

/// The other process: holds one owner, and runs a command for each line of its input. Without the
/// variables, this test does nothing.
#[test]
fn the_other_process() {
    let (Ok(url), Ok(prefix)) = (std::env::var(SERVER), std::env::var(PREFIX)) else { return };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let store = runtime.block_on(connect(&url, &prefix));
    let owner = OwnerId::new();
    println!("\n@ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let words: Vec<_> = line.split(' ').collect();
        let answer = runtime.block_on(async {
            match words[..] {
                ["acquire", key, lease] => {
                    let lease = Duration::from_millis(lease.parse().expect("milliseconds"));
                    match store.acquire(&id(key), &AcquireRequest::new(owner, lease, DAY)).await {
                        Ok(Acquired::Granted(grant)) => grant.token.to_string(),
                        other => format!("{other:?}"),
                    }
                }
                ["complete", key, body] => {
                    format!("{:?}", store.complete(&id(key), owner, &completion(body)).await)
                }
                ["release", key] => format!("{:?}", store.release(&id(key), owner).await),
                _ => panic!("not a line of ours: {line}"),
            }
        });
        println!("@{answer}");
    }
}

struct Other {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    fn start(url: &str, prefix: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("a path"))
            .args(["waiting::the_other_process", "--exact", "--nocapture"])
            .env(SERVER, url)
            .env(PREFIX, prefix)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let to = process.stdin.take().expect("its input");
        let from = BufReader::new(process.stdout.take().expect("its output"));
        let mut other = Self { process, to, from };
        assert_eq!(other.hear(), "ready");
        other
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.to, "{line}").expect("it listens");
        self.hear()
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.from.read_line(&mut line).expect("it answers") > 0, "it ended");
            if let Some(answer) = line.trim_end().strip_prefix('@') {
                return answer.to_owned();
            }
        }
    }

    fn acquire(&mut self, key: &str, lease: Duration) -> FencingToken {
        let token = self.ask(&format!("acquire {key} {}", lease.as_millis()));
        FencingToken::new(token.parse().expect("a token"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_4_a_duplicate_in_another_process_has_the_result_within_5_ms() {
    let (url, prefix) = (service("RETRYPROOF_TEST_REDIS", "redis"), own_prefix());
    let store = connect(&url, &prefix).await;
    let mut other = Other::start(&url, &prefix);
    let mut delays = Vec::new();
    for round in 0..101 {
        let key = format!("k{round}");
        let (id, token) = (id(&key), other.acquire(&key, LONG));
        let mut waiting = Box::pin(store.wait_for_change(&id, token, LONG));
        let woken = tokio::time::timeout(Duration::from_millis(5), &mut waiting).await;
        assert!(woken.is_err(), "nothing has changed yet");
        // The measured time includes a command to the other process and that process's round trip.
        let since = Instant::now();
        let answer =
            tokio::task::block_in_place(|| other.ask(&format!("complete {key} result-{round}")));
        assert_eq!(answer, "Ok(Applied)");
        waiting.await.expect("waited");
        assert_eq!(replay(&store, &id).await, format!("result-{round}"));
        delays.push(since.elapsed());
    }
    delays.sort();
    eprintln!(
        "from the command to complete in another process until its result has arrived: p50 {:?}, p99 {:?}",
        delays[50], delays[99]
    );
    assert!(
        delays[50] < Duration::from_millis(250),
        "a poll found it, not a push: {:?}",
        delays[50]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_3_a_release_in_another_process_wakes_a_waiter() {
    let (url, prefix) = (service("RETRYPROOF_TEST_REDIS", "redis"), own_prefix());
    let store = connect(&url, &prefix).await;
    let mut other = Other::start(&url, &prefix);
    let (id, token) = (id("k"), other.acquire("k", LONG));
    let mut waiting = Box::pin(store.wait_for_change(&id, token, LONG));
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut waiting).await.is_err());
    assert_eq!(other.ask("release k"), "Ok(Applied)");
    waiting.await.expect("waited");
    let grant = grant(&store, &id, OwnerId::new()).await;
    assert!(!grant.took_over && grant.token > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_2_a_killed_process_is_taken_over_after_its_lease_and_never_before() {
    let (url, prefix) = (service("RETRYPROOF_TEST_REDIS", "redis"), own_prefix());
    let store = connect(&url, &prefix).await;
    let mut other = Other::start(&url, &prefix);
    let lease = Duration::from_millis(500);
    let before = Instant::now();
    let token = other.acquire("k", lease);
    drop(other);
    let id = id("k");
    let grant = loop {
        match store
            .acquire(&id, &AcquireRequest::new(OwnerId::new(), LONG, DAY))
            .await
            .expect("answered")
        {
            Acquired::Granted(grant) => break grant,
            Acquired::Busy(LiveLease { remaining, token, .. }) => {
                store.wait_for_change(&id, token, remaining).await.expect("waited")
            }
            Acquired::Complete(stored) => panic!("it was not completed: {stored:?}"),
        }
    };
    assert!(before.elapsed() >= lease, "taken over {:?} after the acquire began", before.elapsed());
    assert!(grant.took_over && grant.token > token);
    assert!(matches!(store.peek(&id).await, Ok(Peeked::Busy(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_5_waiters_of_a_key_share_a_subscription_and_give_it_back() {
    let (url, prefix) = (service("RETRYPROOF_TEST_REDIS", "redis"), own_prefix());
    let store = std::sync::Arc::new(connect(&url, &prefix).await);
    let mut conn = stranger(&url).await;
    let subscribers = async |conn: &mut redis::aio::MultiplexedConnection, key: &str| -> i64 {
        let counted: (String, i64) = redis::cmd("PUBSUB")
            .arg("SHARDNUMSUB")
            .arg(key)
            .query_async(conn)
            .await
            .expect("counted");
        counted.1
    };
    let owner = OwnerId::new();
    let ids: Vec<_> = (0..10).map(|at| id(&format!("k{at}"))).collect();
    let mut waiters = Vec::new();
    for id in &ids {
        let token = grant(&*store, id, owner).await.token;
        for _ in 0..30 {
            let (store, id) = (std::sync::Arc::clone(&store), id.clone());
            waiters
                .push(tokio::spawn(async move { store.wait_for_change(&id, token, LONG).await }));
        }
    }
    for id in &ids {
        let key = key_of(&prefix, id);
        while subscribers(&mut conn, &key).await == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(subscribers(&mut conn, &key).await, 1);
    }
    // Dropping half of the waiters wakes no other waiter and ends no subscription.
    for waiter in waiters.iter().step_by(2) {
        waiter.abort();
    }
    // Wait until the pauses of the fallback poll have grown to a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(subscribers(&mut conn, &key_of(&prefix, &ids[3])).await, 1);
    let since = Instant::now();
    for id in &ids {
        assert_eq!(
            store.complete(id, owner, &completion("x")).await.expect("completed"),
            FencedWrite::Applied
        );
    }
    for waiter in waiters.into_iter().skip(1).step_by(2) {
        waiter.await.expect("the waiter ends").expect("waited");
    }
    assert!(
        since.elapsed() < Duration::from_millis(700),
        "pushed, not polled: {:?}",
        since.elapsed()
    );
    for id in &ids {
        let key = key_of(&prefix, id);
        while subscribers(&mut conn, &key).await > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// The next waiter of a key comes while the subscription of the last one ends.
#[tokio::test]
async fn acq_4_acq_5_a_waiter_that_follows_the_last_one_at_once_gets_a_subscription() {
    let (url, prefix) = (service("RETRYPROOF_TEST_REDIS", "redis"), own_prefix());
    let store = std::sync::Arc::new(connect(&url, &prefix).await);
    let mut conn = stranger(&url).await;
    let channels = format!("PUBSUB SHARDCHANNELS {prefix}:*");
    let wait = |id: &Identity, token| {
        let (store, id) = (std::sync::Arc::clone(&store), id.clone());
        tokio::spawn(async move { store.wait_for_change(&id, token, LONG).await })
    };
    let mut waiters = Vec::new();
    for at in 0..200 {
        let id = id(&format!("k{at}"));
        let token = grant(&*store, &id, OwnerId::new()).await.token;
        let first = wait(&id, token);
        while !ask::<Vec<String>>(&mut conn, &channels).await.contains(&key_of(&prefix, &id)) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        first.abort();
        // The store sends SUNSUBSCRIBE, and the next waiter comes before the answer.
        tokio::task::yield_now().await;
        waiters.push(wait(&id, token));
    }
    for waiter in waiters {
        waiter.abort();
    }
    // If the store has taken a subscription for ended, it does not end it any more.
    let all_ended = async {
        while !ask::<Vec<String>>(&mut conn, &channels).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all_ended)
        .await
        .expect("each subscription ends with its last waiter");
}
