// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several processes on one file: waiting, takeovers and crashes. This binary starts itself again,
//! and sends commands to the other process's standard input.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use retryproof_core::clock::wall_clock_micros;
use retryproof_core::store::{AcquireRequest, Acquired, Grant, LiveLease, Peeked, TxSource};
use retryproof_core::{
    Acquisition, CodecId, FencingToken, IdempotencyContext, IdempotencyEngine, IdempotencyStore,
    Identity, OwnerId, Payload,
};
use retryproof_sqlite::{SqliteStore, SqliteTxSource};

use crate::support::{DAY, Dir, LONG, body, completion, execute, grant, id, replay, request};

/// The environment variable that passes the path of the file to the other process.
const FILE: &str = "RETRYPROOF_SQLITE_TEST_FILE";

/// Acts as the other process, which has one owner ID and runs a command for each line of its input.
/// If the environment variable that `FILE` names is not set, this test does nothing.
#[test]
fn the_other_process() {
    let Some(file) = std::env::var_os(FILE) else { return };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let store = SqliteStore::open(&file).expect("the store opens");
    let owner = OwnerId::new();
    println!("\n@ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let words: Vec<_> = line.split(' ').collect();
        let answer = runtime.block_on(async {
            match words[..] {
                ["acquire", key, lease] => {
                    let lease = Duration::from_millis(lease.parse().expect("milliseconds"));
                    let answer =
                        store.acquire(&id(key), &AcquireRequest::new(owner, lease, DAY)).await;
                    match answer.expect("answered") {
                        Acquired::Granted(grant) => grant.token.to_string(),
                        other => format!("{other:?}"),
                    }
                }
                ["complete", key, body] => {
                    format!(
                        "{:?}",
                        store.complete(&id(key), owner, &completion(body)).await.expect("answered")
                    )
                }
                ["extend", key] => {
                    format!("{:?}", store.extend(&id(key), owner, LONG).await.expect("answered"))
                }
                ["release", key] => {
                    format!("{:?}", store.release(&id(key), owner).await.expect("answered"))
                }
                ["pay", key, lease] => {
                    let lease = Duration::from_millis(lease.parse().expect("milliseconds"));
                    write_and_hang(Path::new(&file), key, lease).await
                }
                ["race", name, keys] => race(&store, name, keys.parse().expect("a number")).await,
                _ => panic!("what is {line:?}?"),
            }
        });
        println!("@{answer}");
    }
}

/// CMP-7: writes a row and completes the record in one transaction that is never committed, so that
/// a test can kill the process during the transaction.
async fn write_and_hang(file: &Path, key: &str, lease: Duration) -> String {
    let engine = IdempotencyEngine::new(SqliteStore::open(file).expect("the store opens"));
    let ctx = IdempotencyContext::builder(id(key).scope().clone(), key)
        .lease(lease)
        .build()
        .expect("a context");
    let source = SqliteTxSource::open(file).expect("a connection");
    let Ok(Acquisition::Granted(held)) = engine.try_acquire(&ctx).await else {
        panic!("not granted")
    };
    let mut tx = source.begin().await.expect("a transaction");
    tx.execute("INSERT INTO ledger VALUES (?1)", [key]).expect("written");
    let done = Payload::new(CodecId::BYTES, 1, b"never");
    let pending = held.complete_in(&mut tx, done).await.expect("joined");
    println!("@written");
    std::future::pending::<()>().await;
    format!("{pending:?}")
}

/// Executes the keys that begin with `name`, except those that another process executes. Returns
/// the numbers of the executed keys with their tokens.
async fn race(store: &SqliteStore, name: &str, keys: usize) -> String {
    let mut won = Vec::new();
    for key in 0..keys {
        let (id, owner) = (id(&format!("{name} {key}")), OwnerId::new());
        if let Acquired::Granted(Grant { token, .. }) =
            store.acquire(&id, &request(owner)).await.expect("answered")
        {
            let _ = store.complete(&id, owner, &completion("done")).await.expect("answered");
            won.push(format!("{key}:{token}"));
        }
    }
    won.join(" ")
}

pub(crate) struct Other {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    pub(crate) fn start(file: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("a path"))
            .args(["waiting::the_other_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(FILE, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the other process starts");
        let to = process.stdin.take().expect("its input");
        let from = BufReader::new(process.stdout.take().expect("its output"));
        let mut other = Self { process, to, from };
        assert_eq!(other.hear(), "ready");
        other
    }

    fn say(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("it listens");
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

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    fn acquire(&mut self, key: &str, lease: Duration) -> FencingToken {
        let token = self.ask(&format!("acquire {key} {}", lease.as_millis()));
        FencingToken::new(token.parse().expect("a token"))
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([name, &self.process.id().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "another process uses the host's clock")]
fn now() -> Instant {
    Instant::now()
}

/// Acquires as soon as the holder's lease has ended in any way, as the engine does: acquire, wait,
/// acquire.
async fn take_over(store: &SqliteStore, id: &Identity, owner: OwnerId) -> Grant {
    loop {
        match store.acquire(id, &request(owner)).await.expect("answered") {
            Acquired::Granted(grant) => return grant,
            Acquired::Busy(LiveLease { remaining, token, .. }) => {
                store.wait_for_change(id, token, remaining).await.expect("waited")
            }
            Acquired::Complete(stored) => panic!("it was not completed: {stored:?}"),
        }
    }
}

#[tokio::test]
async fn acq_4_a_duplicate_gets_the_result_of_another_process() {
    let dir = Dir::new();
    let store = dir.store();
    let mut other = Other::start(&dir.file());
    let mut delays = Vec::new();
    for round in 0..9 {
        let key = format!("k{round}");
        let (id, token) = (id(&key), other.acquire(&key, LONG));
        let mut waiting = Box::pin(store.wait_for_change(&id, token, LONG));
        // Let the first polls pass; they find that the other process still holds the key.
        let woken = tokio::time::timeout(Duration::from_millis(40), &mut waiting).await;
        assert!(woken.is_err(), "nothing has changed yet");
        assert_eq!(other.ask(&format!("complete {key} result-{round}")), "Applied");
        let since = now();
        waiting.await.expect("waited");
        delays.push(since.elapsed());
        assert_eq!(replay(&store, &id).await, format!("result-{round}"));
    }
    delays.sort();
    eprintln!(
        "from completion to waking in another process: median {:?}, at most {:?}",
        delays[4], delays[8]
    );
    assert!(
        delays[4] < Duration::from_secs(1),
        "a poll found it, not the end of the wait: {delays:?}"
    );
}

/// A read of a record that is in progress reads the clock once.
#[tokio::test]
async fn acq_4_a_waiter_reads_its_record_once_for_each_commit_of_another_connection() {
    let (dir, reads) = (Dir::new(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&reads);
    let config = dir.config().with_wall_clock(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        wall_clock_micros()
    });
    let store = SqliteStore::open_with(config).expect("the store opens");
    let (id, stranger) = (id("k"), dir.stranger());
    let token = grant(&store, &id, OwnerId::new()).await.token;
    reads.store(0, Ordering::SeqCst);
    let mut waiting = Box::pin(store.wait_for_change(&id, token, LONG));
    let polls = Duration::from_millis(200);
    for commit in ["", "CREATE TABLE one (n)", "CREATE TABLE other (n)"] {
        stranger.execute_batch(commit).expect("committed");
        assert!(tokio::time::timeout(polls, &mut waiting).await.is_err());
        // The first check counts as a commit, because there is no earlier one to compare with.
        let most = if commit.is_empty() { 2 } else { 1 };
        let reads = reads.swap(0, Ordering::SeqCst);
        assert!((1..=most).contains(&reads), "{reads} reads after {commit:?}");
    }
}

#[tokio::test]
async fn acq_3_a_release_in_another_process_wakes_a_waiter() {
    let dir = Dir::new();
    let store = dir.store();
    let mut other = Other::start(&dir.file());
    let token = other.acquire("k", LONG);
    let id = id("k");
    let mut waiting = Box::pin(store.wait_for_change(&id, token, LONG));
    assert!(tokio::time::timeout(Duration::from_millis(10), &mut waiting).await.is_err());
    // Neither a heartbeat nor a commit to another record ends the wait.
    assert_eq!(other.ask("extend k"), "Applied");
    assert!(other.acquire("unrelated", LONG) > token);
    assert!(tokio::time::timeout(Duration::from_millis(60), &mut waiting).await.is_err());
    assert_eq!(other.ask("release k"), "Applied");
    waiting.await.expect("waited");
    let grant = take_over(&store, &id, OwnerId::new()).await;
    assert!(!grant.took_over && grant.token > token);
}

#[tokio::test]
async fn acq_2_a_killed_process_is_taken_over_after_its_lease_and_never_before() {
    let dir = Dir::new();
    let store = dir.store();
    let mut other = Other::start(&dir.file());
    let lease = Duration::from_millis(700);
    let before = now();
    let token = other.acquire("k", lease);
    other.signal("-KILL");
    other.process.wait().expect("it died");
    let grant = take_over(&store, &id("k"), OwnerId::new()).await;
    assert!(before.elapsed() >= lease, "taken over {:?} after the acquire began", before.elapsed());
    assert!(grant.took_over && grant.token > token);
}

#[tokio::test]
async fn cmp_2_a_stopped_process_is_fenced_off() {
    let dir = Dir::new();
    let store = dir.store();
    let mut other = Other::start(&dir.file());
    let token = other.acquire("k", Duration::from_millis(200));
    other.signal("-STOP");
    let (id, owner) = (id("k"), OwnerId::new());
    let grant = take_over(&store, &id, owner).await;
    assert!(grant.took_over && grant.token > token);
    // Send this command while the process is stopped, so that the process runs it first when it
    // continues.
    other.say("complete k zombie");
    other.signal("-CONT");
    assert_eq!(other.hear(), "NotOwner", "while the new owner is running");
    assert!(
        matches!(store.peek(&id).await, Ok(Peeked::Busy(LiveLease { token, .. })) if token == grant.token)
    );
    assert_eq!(other.ask("extend k"), "NotOwner");
    assert_eq!(other.ask("release k"), "NotOwner");
    let _ = store.complete(&id, owner, &completion("takers")).await.expect("completed");
    assert_eq!(other.ask("complete k zombie"), "NotOwner", "and after it");
    assert_eq!(replay(&store, &id).await, "takers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_1_processes_that_race_execute_each_key_once() {
    const KEYS: usize = 200;
    let dir = Dir::new();
    let store = Arc::new(dir.store());
    let mut others: Vec<_> = (0..3).map(|_| Other::start(&dir.file())).collect();
    for other in &mut others {
        other.say(&format!("race all {KEYS}"));
    }
    let mut won = vec![race(&store, "all", KEYS).await];
    won.extend(others.iter_mut().map(Other::hear));
    let (mut keys, mut tokens) = (HashSet::new(), HashSet::new());
    for pair in won.iter().flat_map(|line| line.split_whitespace()) {
        let (key, token) = pair.split_once(':').expect("a pair");
        assert!(keys.insert(key.to_owned()), "key {key} was executed twice");
        assert!(tokens.insert(token.to_owned()), "token {token} was given twice");
    }
    assert_eq!(keys.len(), KEYS);
}

#[tokio::test]
async fn cmp_1_a_killed_process_leaves_its_results() {
    let dir = Dir::new();
    let store = dir.store();
    let mut other = Other::start(&dir.file());
    for key in 0..20 {
        other.acquire(&format!("k{key}"), LONG);
        assert_eq!(other.ask(&format!("complete k{key} result-{key}")), "Applied");
    }
    other.signal("-KILL");
    other.process.wait().expect("it died");
    for key in 0..20 {
        assert_eq!(replay(&store, &id(&format!("k{key}"))).await, format!("result-{key}"));
    }
    execute(&store, &id("next"), "goes on").await;
}

#[tokio::test]
async fn cmp_1_a_process_killed_while_it_writes_damages_nothing() {
    let dir = Dir::new();
    let store = dir.store();
    for round in 0..5 {
        let name = format!("round{round}");
        let of = |key: usize| id(&format!("{name} {key}"));
        let mut other = Other::start(&dir.file());
        other.say(&format!("race {name} 1000000"));
        let mut own = 0;
        // Both processes write until this one has completed a key, and the other has completed its
        // key 20.
        while own == 0 || !matches!(store.peek(&of(20)).await, Ok(Peeked::Complete(_))) {
            execute(&store, &id(&format!("own {round} {own}")), "result").await;
            own += 1;
        }
        other.signal("-KILL");
        other.process.wait().expect("it died");
        let mut unfinished = 0;
        for key in 0.. {
            match store.peek(&of(key)).await.expect("answered") {
                Peeked::Complete(stored) => assert_eq!(body(&stored), "done"),
                // The process died between the acquire and the completion of this key.
                Peeked::Busy(_) => unfinished += 1,
                Peeked::Absent if key > 20 => break,
                Peeked::Absent => panic!("key {key} was executed, and is forgotten"),
            }
        }
        assert!(unfinished <= 1, "{unfinished}");
        for key in 0..own {
            assert_eq!(replay(&store, &id(&format!("own {round} {key}"))).await, "result");
        }
    }
    let check: String =
        dir.stranger().query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("checked");
    assert_eq!(check, "ok");
}
