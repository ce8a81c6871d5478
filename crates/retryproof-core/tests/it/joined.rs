// SPDX-License-Identifier: MIT OR Apache-2.0
//! CMP-7 in the engine, on a toy database: the order of steps, every way to end, and one terminal
//! event for each lease.
//!
//! This file is over 400 lines long because the toy database belongs beside the tests that read its
//! log.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use retryproof_core::config::ScopeConfig;
use retryproof_core::observe::{Counters, Counts, LeaseEvent, Observer, Phase};
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, Dialect, FencedWrite, Join, JoinStatement, OwnedTx,
    Param, Peeked, Purge, StoreProfile, TxPort, TxSource,
};
use retryproof_core::{
    Acquisition, Attempt, CodecId, CompletionFailurePolicy, CompletionResult, Error, ErrorKind,
    ExecuteError, FencingToken, IdempotencyConfig, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore, Identity, JoinError, JoinedEngine, Lease, Opened, Outcome, OwnerId, Payload,
    Recorded, Result, SharedStore, Tombstone, blocking,
};
use retryproof_memory::MemoryStore;
use tokio::time::Instant;
use tracing::level_filters::LevelFilter;

use crate::spans::Spans;

const MS: Duration = Duration::from_millis(1);

/// The toy database's dialect.
enum Toy {}

impl Dialect for Toy {
    const NAME: &'static str = "toy";
}

/// The dialect of another database.
enum Other {}

impl Dialect for Other {
    const NAME: &'static str = "other";
}

/// The toy database: records in a memory store, rows in a list, and a log of what happened in which
/// order. A joined completion is kept aside until the commit.
#[derive(Debug, Clone, Default)]
struct Db(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    records: MemoryStore,
    rows: Mutex<Vec<String>>,
    log: Mutex<Vec<&'static str>>,
    /// The completions for which statements were made. A statement finds its completion by the
    /// owner in its first parameter, because calls come from many threads.
    offered: Mutex<Vec<(Identity, OwnerId, Completion)>>,
    fault: Mutex<Fault>,
    /// The phases in which leases ended without a completion.
    phases: Mutex<Vec<Phase>>,
    /// A key that another owner takes over just before a transaction begins.
    between: Mutex<Option<Identity>>,
    limit: AtomicUsize,
    stuck: AtomicBool,
    /// How long an action may keep a transaction open.
    open_at_most: Mutex<Option<Duration>>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    Begin,
    Statement,
    /// From the record's statement on, the database is unavailable, and so is the store.
    Away,
    /// The commit fails, and nothing is committed.
    Commit,
    /// The commit happens, but its answer is lost.
    Reply,
    /// The same, and then the store is unavailable.
    ReplyAndAway,
    /// The transaction is on another database.
    Elsewhere,
    /// The driver panics at the step with this name in the log.
    Panics(&'static str),
}

impl Db {
    fn say(&self, what: &'static str) {
        self.0.log.lock().unwrap().push(what);
        assert_ne!(self.fault(), Fault::Panics(what), "on purpose");
    }

    fn log(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.0.log.lock().unwrap())
    }

    fn rows(&self) -> Vec<String> {
        self.0.rows.lock().unwrap().clone()
    }

    fn fault(&self) -> Fault {
        *self.0.fault.lock().unwrap()
    }

    fn set(&self, fault: Fault) {
        *self.0.fault.lock().unwrap() = fault;
    }

    fn shared(&self) -> SharedStore {
        SharedStore::builder(self.clone()).with_join().build()
    }
}

fn down() -> Error {
    Error::unavailable("the toy is down")
}

impl IdempotencyStore for Db {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.say("acquire");
        self.0.records.acquire(id, req).await
    }
    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        self.0.records.peek(id).await
    }
    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.0.records.wait_for_change(id, seen, at_most).await
    }
    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.say("extend");
        if self.fault() == Fault::ReplyAndAway {
            return Err(down());
        }
        if self.0.stuck.load(Ordering::SeqCst) {
            tokio::time::sleep(60 * MS).await;
            self.say("extended late");
        }
        self.0.records.extend(id, owner, lease).await
    }
    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.say("complete");
        self.0.records.complete(id, owner, done).await
    }
    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.say("release");
        if matches!(self.fault(), Fault::Away | Fault::ReplyAndAway) {
            return Err(down());
        }
        self.0.records.release(id, owner).await
    }
    fn profile(&self) -> StoreProfile {
        let limit = self.0.limit.load(Ordering::SeqCst);
        StoreProfile::new("toy").with_max_value(if limit == 0 { usize::MAX } else { limit })
    }
}

impl Join for Db {
    type Dialect = Toy;

    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a> {
        self.0.offered.lock().unwrap().push((id.clone(), *owner, done.clone()));
        let fp = done.fingerprint.as_ref().map(|fp| fp.as_bytes());
        JoinStatement::new(
            "UPDATE toy",
            vec![Param::Bytes(owner.as_bytes()), fp.into(), Param::Int(1), Param::Bool(true)],
        )
    }

    fn committed(&self, _: &Identity) {
        self.say("wake");
    }
}

struct Tx {
    db: Db,
    rows: Vec<String>,
    record: Option<(Identity, OwnerId, Completion)>,
    ended: bool,
}

impl Tx {
    fn write(&mut self, row: &str) {
        self.db.say("write");
        self.rows.push(row.to_owned());
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if !self.ended {
            self.db.say("dropped");
        }
    }
}

impl TxPort<Toy> for Tx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        self.db.say("statement");
        assert_eq!((sql, params.len()), ("UPDATE toy", 4));
        assert_eq!(format!("{params:?}"), "[Bytes(16), NoBytes, Int, Bool]", "ID-4");
        match self.db.fault() {
            Fault::Statement => return Err(Error::new(ErrorKind::Unexpected, "the toy refused")),
            Fault::Away => return Err(down()),
            Fault::Elsewhere => return Ok(0),
            _ => {}
        }
        let Param::Bytes(owner) = params[0] else { panic!("the owner comes first") };
        let offered = {
            let mut all = self.db.0.offered.lock().unwrap();
            let at = all.iter().rposition(|one| one.1.as_bytes() == owner).unwrap();
            all.swap_remove(at)
        };
        // `extend` is fenced by owner, as the statement has to be. It also makes the lease longer,
        // which no test here checks.
        let ours = self.db.0.records.extend(&offered.0, offered.1, 1_000 * MS).await?;
        self.record = Some(offered);
        Ok(u64::from(ours == FencedWrite::Applied))
    }
}

impl OwnedTx<Toy> for Tx {
    fn open_at_most(&self) -> Option<Duration> {
        *self.db.0.open_at_most.lock().unwrap()
    }

    async fn commit_tx(mut self) -> Result<()> {
        self.ended = true;
        if self.db.fault() == Fault::Commit {
            return Err(down());
        }
        if let Some((id, owner, done)) = self.record.take() {
            assert_eq!(self.db.0.records.complete(&id, owner, &done).await?, FencedWrite::Applied);
        }
        self.db.0.rows.lock().unwrap().append(&mut self.rows);
        self.db.say("commit");
        match self.db.fault() {
            Fault::Reply | Fault::ReplyAndAway => Err(down()),
            _ => Ok(()),
        }
    }

    async fn roll_back_tx(mut self) -> Result<()> {
        self.ended = true;
        self.db.say("rollback");
        if self.db.0.stuck.load(Ordering::SeqCst) {
            tokio::time::sleep(60 * MS).await;
        }
        Ok(())
    }
}

impl TxPort<Other> for Vec<u8> {
    async fn run_statement(&mut self, _: &str, _: &[Param<'_>]) -> Result<u64> {
        panic!("it is never asked")
    }
}

impl OwnedTx<Other> for Vec<u8> {
    async fn commit_tx(self) -> Result<()> {
        Ok(())
    }
    async fn roll_back_tx(self) -> Result<()> {
        Ok(())
    }
}

impl TxSource<Toy> for Db {
    type Tx = Tx;

    async fn begin(&self) -> Result<Tx> {
        self.say("begin");
        if self.fault() == Fault::Begin {
            return Err(down());
        }
        // Another owner takes over between the grant and the transaction.
        let between = self.0.between.lock().unwrap().take();
        if let Some(id) = between {
            tokio::time::sleep(200 * MS).await;
            let taken = self
                .0
                .records
                .acquire(&id, &AcquireRequest::new(OwnerId::new(), 5_000 * MS, 5_000 * MS))
                .await?;
            assert!(matches!(taken, Acquired::Granted(grant) if grant.took_over), "{taken:?}");
        }
        Ok(Tx { db: self.clone(), rows: Vec::new(), record: None, ended: false })
    }
}

struct Foreign;

impl TxSource<Other> for Foreign {
    type Tx = Vec<u8>;

    async fn begin(&self) -> Result<Vec<u8>> {
        panic!("it is never asked")
    }
}

struct World {
    db: Db,
    counters: Arc<Counters>,
    joined: JoinedEngine<Tx>,
}

impl Observer for Db {
    fn failed(&self, _: LeaseEvent<'_>, phase: Phase) {
        self.0.phases.lock().unwrap().push(phase);
    }
}

fn world() -> World {
    let (db, counters) = (Db::default(), Counters::new());
    let engine = IdempotencyEngine::builder(db.shared())
        .observer(Arc::clone(&counters))
        .observer(db.clone())
        .build()
        .unwrap();
    World { joined: engine.joined(db.clone()).unwrap(), counters, db }
}

impl World {
    /// Returns how many leases were completed, failed and lost, and checks that each lease ended
    /// once.
    fn ends(&self) -> (u64, u64, u64) {
        let Counts { acquired, completed, failed, lost, .. } = self.counters.read();
        assert_eq!(acquired, completed + failed + lost, "each lease ends once");
        (completed, failed, lost)
    }

    async fn pay(&self, row: &'static str) -> Result<Outcome<String>, ExecuteError<&'static str>> {
        self.joined
            .execute(ctx("k"), async move |tx: &mut Tx| {
                tx.write(row);
                Ok(row.to_owned())
            })
            .await
    }

    /// Returns the phases reported since the last call.
    fn phases(&self) -> Vec<Phase> {
        std::mem::take(&mut *self.db.0.phases.lock().unwrap())
    }

    async fn background(&self) {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
}

fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("joined", key)
        .lease(100 * MS)
        .wait_timeout(Duration::ZERO)
        .build()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn cmp_7_record_and_writes_are_one_commit_and_waiters_are_woken_after_it() {
    let world = world();
    assert_eq!(world.pay("a").await.unwrap(), Outcome::Executed("a".to_owned()));
    assert_eq!(world.db.log(), ["acquire", "begin", "write", "statement", "commit", "wake"]);
    assert_eq!(world.pay("b").await.unwrap(), Outcome::Replayed("a".to_owned()));
    assert_eq!(world.db.log(), ["acquire"], "a duplicate opens nothing");
    assert_eq!((world.db.rows(), world.ends()), (vec!["a".to_owned()], (1, 0, 0)));
    assert_eq!(world.joined.engine().activity().beating, 0);
}

#[tokio::test(start_paused = true)]
async fn run_7_each_joined_call_tells_its_outcome_once() {
    let (told, _listening) = crate::outcomes::Told::listen();
    let world = world();
    let told_of =
        IdempotencyContext::builder("told", "k").wait_timeout(Duration::ZERO).build().unwrap();
    let call = async |fails: bool| {
        let action = async |_: &mut Tx| if fails { Err("declined") } else { Ok(1_u32) };
        drop(world.joined.execute(told_of.clone(), action).await);
        told.outcomes()
    };
    assert_eq!(call(true).await, ["failed attempt=first phase=Action"]);
    world.db.set(Fault::Begin);
    assert_eq!(call(false).await, ["failed attempt=first phase=RolledBack"]);
    world.db.set(Fault::None);
    assert_eq!(call(false).await, ["executed attempt=first recorded=yes"]);
    assert_eq!(call(false).await, ["replayed"]);
}

#[tokio::test(start_paused = true)]
async fn cmp_7_a_failing_action_is_rolled_back_and_the_key_is_free() {
    let world = world();
    let failing = async |tx: &mut Tx| {
        tx.write("a");
        Err::<String, _>("declined")
    };
    let failed = world.joined.execute(ctx("k"), failing).await;
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))));
    assert_eq!(world.db.log(), ["acquire", "begin", "write", "rollback", "release"]);
    assert_eq!(world.pay("b").await.unwrap(), Outcome::Executed("b".to_owned()));
    assert_eq!((world.db.rows(), world.ends()), (vec!["b".to_owned()], (1, 1, 0)));
}

#[tokio::test(start_paused = true)]
async fn cmp_7_run_4_an_action_of_unknown_effect_is_rolled_back_and_leaves_its_key_to_the_lease() {
    let world = world();
    let failing = async |lease: Lease, tx: &mut Tx| {
        tx.write("a");
        lease.hold_on_error();
        Err::<String, _>("timed out")
    };
    let failed = world.joined.call(ctx("k")).execute_with(failing).await;
    assert!(matches!(failed, Err(ExecuteError::Held { error: "timed out", .. })));
    assert_eq!(world.db.log(), ["acquire", "begin", "write", "rollback"]);
    assert_eq!((world.phases(), world.db.rows()), (vec![Phase::Held], vec![]));
}

/// The action declares that its effect is unknown and returns a value, but its transaction then
/// fails.
#[tokio::test(start_paused = true)]
async fn cmp_7_run_4_an_action_of_unknown_effect_keeps_its_key_if_its_transaction_fails() {
    for fault in [Fault::Statement, Fault::Commit, Fault::Elsewhere] {
        let world = world();
        world.db.set(fault);
        let (sink, _guard) = crate::redaction::Sink::start();
        let failed = charge(&world).await;
        let Err(ExecuteError::Completion(failure)) = failed else {
            panic!("{fault:?}: {failed:?}")
        };
        assert_eq!(failure.recorded, Recorded::No);
        world.background().await;
        let log = world.db.log();
        assert!(!log.contains(&"release"), "{fault:?}: {log:?}");
        assert_eq!((world.phases(), world.db.rows()), (vec![Phase::Held], vec![]), "{fault:?}");
        let said = sink.take();
        assert!(said.contains("its key stays taken until its lease ends"), "{fault:?}: {said}");
        world.db.set(Fault::None);
        assert!(matches!(world.pay("b").await, Ok(Outcome::InFlight(_))), "{fault:?}");
        tokio::time::sleep(2_000 * MS).await;
        assert_eq!(attempt(&world, "k").await, Attempt::Takeover, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_7_run_4_a_commit_of_unknown_effect_whose_answer_was_lost_is_read_by_owner() {
    let world = world();
    world.db.set(Fault::Reply);
    assert_eq!(charge(&world).await.unwrap(), Outcome::Executed("a".to_owned()));
    assert_eq!(
        world.db.log(),
        ["acquire", "begin", "write", "statement", "commit", "extend", "complete", "wake"]
    );
    assert_eq!(world.pay("b").await.unwrap(), Outcome::Replayed("a".to_owned()));
}

/// If the caller opens the transaction, a key whose action declared an unknown effect is kept too.
#[tokio::test(start_paused = true)]
async fn cmp_7_run_4_complete_in_keeps_the_key_of_an_action_of_unknown_effect() {
    for end in ["refused", "lost", "rolled back", "in doubt", "dropped", "unpolled"] {
        let world = world();
        let held = held(&world, end).await;
        held.lease().hold_on_error();
        let mut tx = world.db.begin().await.unwrap();
        if end == "refused" {
            held.complete_in(&mut Vec::new(), value()).await.unwrap_err();
        } else if end == "unpolled" {
            drop(held.complete_in(&mut tx, value()));
        } else {
            world.db.set(if end == "lost" { Fault::Elsewhere } else { Fault::Commit });
            let pending = held.complete_in(&mut tx, value()).await;
            match end {
                "rolled back" => pending.unwrap().rolled_back().await.unwrap(),
                "in doubt" => assert!(!pending.unwrap().in_doubt().await.unwrap()),
                _ => drop(pending),
            }
            world.db.set(Fault::None);
        }
        world.background().await;
        let log = world.db.log();
        assert!(!log.contains(&"release"), "{end}: {log:?}");
        let phases = if end == "lost" { vec![] } else { vec![Phase::Held] };
        assert_eq!(world.phases(), phases, "{end}");
        tokio::time::sleep(2_000 * MS).await;
        assert_eq!(attempt(&world, end).await, Attempt::Takeover, "{end}");
    }
}

/// Runs an action that declares its effect as unknown, and then succeeds.
async fn charge(world: &World) -> Result<Outcome<String>, ExecuteError<&'static str>> {
    let action = async |lease: Lease, tx: &mut Tx| {
        tx.write("a");
        lease.hold_on_error();
        Ok("a".to_owned())
    };
    world.joined.call(ctx("k")).execute_with(action).await
}

/// Takes the key, and returns whether this is a takeover.
async fn attempt(world: &World, key: &str) -> Attempt {
    held(world, key).await.lease().attempt()
}

#[tokio::test(start_paused = true)]
async fn cmp_7_a_panic_rolls_back_and_resumes() {
    let world = Arc::new(world());
    let task = tokio::spawn({
        let world = Arc::clone(&world);
        async move {
            let panicking = async |tx: &mut Tx| {
                tx.write("a");
                if tx.rows.len() == 1 {
                    panic!("on purpose");
                }
                Ok::<_, &'static str>(String::new())
            };
            world.joined.execute(ctx("k"), panicking).await.map(drop)
        }
    });
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(world.db.log(), ["acquire", "begin", "write", "rollback", "release"]);
    assert_eq!((world.db.rows(), world.ends()), (vec![], (0, 1, 0)));
}

#[tokio::test(start_paused = true)]
async fn cmp_7_a_dropped_call_is_rolled_back_and_the_key_is_free_at_once() {
    let world = world();
    let sleeping = world.joined.execute(ctx("k"), async |tx: &mut Tx| {
        tx.write("a");
        tokio::time::sleep(10_000 * MS).await;
        Ok::<_, &'static str>(String::new())
    });
    assert!(tokio::time::timeout(30 * MS, sleeping).await.is_err());
    world.background().await;
    assert_eq!(world.db.log(), ["acquire", "begin", "write", "dropped", "release"]);
    assert_eq!(world.phases(), [Phase::RolledBack], "the key is free");
    assert_eq!(world.pay("b").await.unwrap(), Outcome::Executed("b".to_owned()));
    assert_eq!(world.ends(), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn cmp_7_a_call_dropped_while_it_rolls_back_frees_its_key_at_once() {
    for panics in [false, true] {
        let world = world();
        world.db.0.stuck.store(true, Ordering::SeqCst);
        let failing = world.joined.execute(ctx("k"), async |tx: &mut Tx| {
            tx.write("a");
            assert!(!panics, "on purpose");
            Err::<String, _>("declined")
        });
        assert!(tokio::time::timeout(30 * MS, failing).await.is_err());
        world.background().await;
        let log = world.db.log();
        assert!(
            log.starts_with(&["acquire", "begin", "write", "rollback"]) && log.contains(&"release"),
            "{log:?}"
        );
        assert_eq!(world.phases(), [if panics { Phase::Panic } else { Phase::Action }]);
        world.db.0.stuck.store(false, Ordering::SeqCst);
        assert_eq!(world.pay("b").await.unwrap(), Outcome::Executed("b".to_owned()));
        assert_eq!((world.db.rows(), world.ends()), (vec!["b".to_owned()], (1, 1, 0)));
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_7_run_3_the_heartbeat_has_ended_before_the_record_is_written() {
    let world = world();
    world.db.0.stuck.store(true, Ordering::SeqCst);
    let outcome = world
        .joined
        .execute(ctx("k"), async |tx: &mut Tx| {
            tx.write("a");
            // After this sleep, a beat is in flight when the action returns.
            tokio::time::sleep(60 * MS).await;
            Ok::<_, &'static str>(String::new())
        })
        .await;
    assert!(outcome.unwrap().is_executed());
    let log = world.db.log();
    let at = |what| log.iter().position(|said| *said == what);
    assert!(at("extend") < at("statement"), "a beat was in flight: {log:?}");
    tokio::time::sleep(500 * MS).await;
    assert_eq!(
        world.db.log(),
        [""; 0],
        "no beat follows, and the one in flight was not left running"
    );
}

#[tokio::test(start_paused = true)]
async fn cmp_7_run_3_the_record_is_written_after_the_beat_under_way() {
    let world = world();
    world.db.0.stuck.store(true, Ordering::SeqCst);
    let lease = 1_000 * MS;
    let ctx = IdempotencyContext::builder("joined", "k").lease(lease).build().unwrap();
    let action = async |_: &mut Tx| {
        tokio::time::sleep(lease / 2 + 20 * MS).await;
        Ok::<_, &'static str>(String::new())
    };
    assert!(world.joined.execute(ctx, action).await.unwrap().is_executed());
    let order = ["acquire", "begin", "extend", "extended late", "statement", "commit", "wake"];
    assert_eq!(world.db.log(), order);
}

#[tokio::test(start_paused = true)]
async fn cmp_7_cmp_2_a_refused_completion_fails_the_call_whatever_the_policy() {
    for policy in [CompletionFailurePolicy::LogAndReturn, CompletionFailurePolicy::Propagate] {
        let (db, counters) = (Db::default(), Counters::new());
        let mut config = IdempotencyConfig::default();
        config.completion_failure_policy = policy;
        let engine = IdempotencyEngine::builder(db.shared())
            .observer(Arc::clone(&counters))
            .config(config)
            .build()
            .unwrap();
        // No beat gets through, so that the other owner finds an expired lease.
        db.0.stuck.store(true, Ordering::SeqCst);
        let world = World { joined: engine.joined(db.clone()).unwrap(), counters, db };
        *world.db.0.between.lock().unwrap() = Some(ctx("k").identity().clone());
        let hooked = Mutex::new(None);
        let refused = world
            .joined
            .call(ctx("k"))
            .on_fenced(|value: String| *hooked.lock().unwrap() = Some(value))
            .execute(async |tx: &mut Tx| {
                tx.write("a");
                Ok::<_, &'static str>("a".to_owned())
            })
            .await;
        assert!(matches!(refused, Err(ExecuteError::LeaseLost)), "{refused:?}");
        assert_eq!(hooked.into_inner().unwrap().as_deref(), Some("a"));
        assert!(world.db.log().ends_with(&["statement", "rollback", "release"]));
        assert_eq!((world.db.rows(), world.ends()), (vec![], (0, 0, 1)));
        let standing = world.db.0.records.peek(ctx("k").identity()).await.unwrap();
        assert!(
            matches!(standing, Peeked::Busy(_)),
            "the other owner keeps its lease: {standing:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_7_a_commit_whose_answer_was_lost_is_read_by_owner() {
    let world = world();
    world.db.set(Fault::Reply);
    assert_eq!(world.pay("a").await.unwrap(), Outcome::Executed("a".to_owned()));
    assert_eq!(
        world.db.log(),
        ["acquire", "begin", "write", "statement", "commit", "release", "complete", "wake"]
    );
    assert_eq!(world.pay("b").await.unwrap(), Outcome::Replayed("a".to_owned()));
    assert_eq!((world.db.rows(), world.ends()), (vec!["a".to_owned()], (1, 0, 0)));
}

#[tokio::test(start_paused = true)]
async fn cmp_7_a_commit_that_failed_fails_the_call_and_frees_the_key() {
    let world = world();
    for fault in [Fault::Commit, Fault::Statement] {
        world.db.set(fault);
        let failed = world.pay("a").await;
        let Err(ExecuteError::Completion(failure)) = failed else { panic!("{failed:?}") };
        assert_eq!(failure.recorded, Recorded::No);
        assert_eq!(world.db.rows(), [""; 0]);
    }
    world.db.set(Fault::None);
    assert_eq!(world.pay("b").await.unwrap(), Outcome::Executed("b".to_owned()));
    assert_eq!(world.ends(), (1, 2, 0));
}

/// If the store did not confirm a release, the log must not say that the key is free.
#[tokio::test(start_paused = true)]
async fn cmp_7_the_log_calls_a_key_free_only_when_it_is() {
    let world = world();
    for (fault, is_free) in [(Fault::Statement, true), (Fault::Commit, true), (Fault::Away, false)]
    {
        world.db.set(fault);
        let (sink, _guard) = crate::redaction::Sink::start();
        world.pay("a").await.map(drop).expect_err("it is not recorded");
        let said = sink.take();
        assert!(said.contains("a joined call failed"), "{fault:?}: {said}");
        assert_eq!(said.contains("its key is free"), is_free, "{fault:?}: {said}");
        let standing = world.db.0.records.peek(ctx("k").identity()).await.unwrap();
        assert!(!is_free || matches!(standing, Peeked::Absent), "{fault:?}: {standing:?}");
    }
}

/// A panic of the driver counts as an error, and the engine finds out from the store whether the
/// step took effect.
#[tokio::test(start_paused = true)]
async fn cmp_7_sto_5_a_driver_that_panics_has_failed_at_that_step() {
    let world = world();
    for (step, stands) in [("begin", false), ("statement", false), ("commit", true), ("wake", true)]
    {
        world.db.set(Fault::Panics(step));
        let paid = world
            .joined
            .execute(ctx(step), async move |tx: &mut Tx| {
                tx.rows.push(step.to_owned());
                Ok::<_, &'static str>(step.to_owned())
            })
            .await;
        match (step, &paid) {
            ("begin", Err(ExecuteError::Store(error))) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable)
            }
            ("statement", Err(ExecuteError::Completion(failed))) => {
                assert_eq!(failed.recorded, Recorded::No)
            }
            ("commit" | "wake", Ok(Outcome::Executed(_))) => {}
            _ => panic!("{step}: {paid:?}"),
        }
        world.db.set(Fault::None);
        assert_eq!(world.db.rows().iter().any(|row| row == step), stands, "{step}");
        let standing = world.db.0.records.peek(ctx(step).identity()).await.unwrap();
        assert_eq!(matches!(standing, Peeked::Complete(_)), stands, "{step}: {standing:?}");
        assert!(stands || matches!(standing, Peeked::Absent), "{step}: {standing:?}");
    }
    world.db.set(Fault::Panics("rollback"));
    let failed =
        world.joined.execute(ctx("r"), async |_: &mut Tx| Err::<String, _>("declined")).await;
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))), "{failed:?}");
    let standing = world.db.0.records.peek(ctx("r").identity()).await.unwrap();
    assert!(matches!(standing, Peeked::Absent), "{standing:?}");
    assert_eq!(world.ends(), (2, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn cmp_7_no_transaction_means_that_nothing_ran_and_the_key_is_free() {
    let world = world();
    world.db.set(Fault::Begin);
    let failed = world.pay("a").await;
    assert!(
        matches!(&failed, Err(ExecuteError::Store(error)) if error.kind() == ErrorKind::Unavailable),
        "{failed:?}"
    );
    assert_eq!(world.db.log(), ["acquire", "begin", "release"]);
    world.db.set(Fault::None);
    assert_eq!(world.pay("b").await.unwrap(), Outcome::Executed("b".to_owned()));
    assert_eq!(world.ends(), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn cmp_7_a_transaction_on_another_database_is_told_and_not_taken_for_a_lost_lease() {
    let world = world();
    world.db.set(Fault::Elsewhere);
    let failed = world.pay("a").await;
    let Err(ExecuteError::Completion(failure)) = failed else { panic!("{failed:?}") };
    assert_eq!(failure.error.kind(), ErrorKind::Unsupported);
    assert!(failure.to_string().contains("a different database"), "{failure}");
    assert_eq!((world.db.rows(), world.ends()), (vec![], (0, 1, 0)));
    world.db.set(Fault::None);
    assert_eq!(world.pay("b").await.unwrap(), Outcome::Executed("b".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn cmp_7_cmp_9_a_value_over_the_limit_commits_as_a_tombstone() {
    let (db, counters) = (Db::default(), Counters::new());
    db.0.limit.store(20, Ordering::SeqCst);
    let engine =
        IdempotencyEngine::builder(db.shared()).observer(Arc::clone(&counters)).build().unwrap();
    let world = World { joined: engine.joined(db.clone()).unwrap(), counters, db };
    let long = async |tx: &mut Tx| {
        tx.write("a");
        Ok::<_, &'static str>("a".repeat(100))
    };
    let report = world.joined.call(ctx("k")).report(long).await.unwrap();
    assert_eq!((report.outcome.is_executed(), report.recorded), (true, Recorded::Tombstone));
    assert_eq!((world.db.rows(), world.ends()), (vec!["a".to_owned()], (1, 0, 0)));
    assert!(matches!(world.pay("b").await, Err(ExecuteError::NotReplayable(_))));
}

#[tokio::test(start_paused = true)]
async fn cmp_7_a_store_that_cannot_join_is_refused_at_start_up() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let refused = engine.joined(Db::default()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("store = memory"), "{refused}");
    assert!(!engine.store().can_join());
    // The store was built without `with_join`.
    let engine = IdempotencyEngine::new(SharedStore::new(Db::default()));
    assert_eq!(engine.joined(Db::default()).map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
    let action = async |_: &mut Tx| -> Result<u8, &'static str> { panic!("it does not run") };
    let refused = engine.execute_joined(ctx("k"), Db::default(), action).await;
    assert!(
        matches!(&refused, Err(ExecuteError::Store(error)) if error.kind() == ErrorKind::Unsupported)
    );
    // The transaction belongs to another database.
    let db = Db::default();
    let engine = IdempotencyEngine::new(db.shared());
    let refused = engine.joined(Foreign).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(
        refused.to_string().contains("store_dialect = toy, transaction_dialect = other"),
        "{refused}"
    );
    assert_eq!(db.log(), [""; 0], "nothing ran");
}

#[tokio::test(start_paused = true)]
async fn cmp_7_execute_joined_opens_the_transaction_for_the_action() {
    let db = Db::default();
    let engine = IdempotencyEngine::new(db.shared());
    let name = "borrowed".to_owned();
    let outcome = engine
        .execute_joined(ctx("k"), db.clone(), async |tx: &mut Tx| {
            tx.write(&name);
            Ok::<_, &'static str>(name.len())
        })
        .await;
    assert_eq!(outcome.unwrap(), Outcome::Executed(8));
    assert_eq!(db.rows(), [name]);
}

async fn held(world: &World, key: &str) -> retryproof_core::HeldLease {
    match world.joined.engine().try_acquire(&ctx(key)).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    }
}

fn value() -> Payload {
    Payload::new(CodecId::JSON, 1, b"\"by hand\"")
}

#[tokio::test(start_paused = true)]
async fn cmp_7_complete_in_is_told_how_the_transaction_ended() {
    let world = world();
    // The transaction is committed.
    let (held_1, mut tx) = (held(&world, "1").await, world.db.begin().await.unwrap());
    tx.write("1");
    let pending = held_1.complete_in(&mut tx, value()).await.unwrap();
    assert_eq!(pending.recorded(), Recorded::Yes);
    assert_eq!(world.counters.read().completed, 0, "nothing is reported before the commit");
    tx.commit_tx().await.unwrap();
    assert!(!world.db.log().contains(&"wake"));
    pending.committed();
    assert_eq!((world.db.log(), world.ends()), (vec!["wake"], (1, 0, 0)));
    // The transaction is rolled back.
    let (held_2, mut tx) = (held(&world, "2").await, world.db.begin().await.unwrap());
    let pending = held_2.complete_in(&mut tx, value()).await.unwrap();
    tx.roll_back_tx().await.unwrap();
    pending.rolled_back().await.unwrap();
    assert_eq!(world.ends(), (1, 1, 0));
    drop(held(&world, "2").await);
    assert_eq!(world.ends(), (1, 2, 0));
    // The commit is in doubt. With `Fault::Reply`, it took effect; with `Fault::Commit`, it did
    // not.
    for fault in [Fault::Reply, Fault::Commit] {
        world.db.set(fault);
        let (held, mut tx) =
            (held(&world, &format!("{fault:?}")).await, world.db.begin().await.unwrap());
        let pending = held.complete_in(&mut tx, value()).await.unwrap();
        tx.commit_tx().await.unwrap_err();
        assert_eq!(pending.in_doubt().await.unwrap(), fault == Fault::Reply);
    }
    assert_eq!(world.ends(), (2, 3, 0));
}

/// The store is away until a committed record's ttl is over. After that, the record is gone or the
/// key has a new owner, so the store cannot show that the transaction was committed.
#[tokio::test(start_paused = true)]
async fn cmp_7_cmp_6_a_commit_in_doubt_stays_in_doubt_if_its_record_may_have_expired() {
    let ctx = |key| {
        IdempotencyContext::builder("joined", key)
            .lease(10_000 * MS)
            .ttl(1_000 * MS)
            .wait_timeout(Duration::ZERO)
            .build()
            .unwrap()
    };
    for (away, is_granted_again, is_held) in
        [(2_000, false, false), (2_000, true, false), (2_000, true, true), (500, false, false)]
    {
        let world = world();
        let come_back = async |key| {
            tokio::time::sleep(away * MS).await;
            world.db.0.records.purge(100).await.unwrap();
            if is_granted_again {
                let request = AcquireRequest::new(OwnerId::new(), 5_000 * MS, 5_000 * MS);
                let granted = world.db.0.records.acquire(ctx(key).identity(), &request).await;
                assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
            }
            world.db.set(Fault::None);
        };
        let action = async |lease: Lease, tx: &mut Tx| {
            tx.write("a");
            if is_held {
                lease.hold_on_error();
            }
            Ok::<_, &str>("a".to_owned())
        };
        world.db.set(Fault::ReplyAndAway);
        let call = world.joined.call(ctx("1")).execute_with(action);
        let (ended, ()) = tokio::join!(call, come_back("1"));
        assert_eq!(world.db.rows(), ["a"], "the transaction was committed");
        let known = away < 1_000;
        match ended {
            Ok(Outcome::Executed(_)) => assert!(known),
            Err(ExecuteError::Completion(failed)) => {
                assert_eq!((known, failed.recorded), (false, Recorded::No));
                assert_eq!(world.phases(), [Phase::Completion]);
            }
            other => panic!("{other:?}"),
        }
        let Acquisition::Granted(held) =
            world.joined.engine().try_acquire(&ctx("2")).await.unwrap()
        else {
            panic!()
        };
        if is_held {
            held.lease().hold_on_error();
        }
        let mut tx = world.db.begin().await.unwrap();
        let pending = held.complete_in(&mut tx, value()).await.unwrap();
        world.db.set(Fault::ReplyAndAway);
        tx.commit_tx().await.unwrap_err();
        let (committed, ()) = tokio::join!(pending.in_doubt(), come_back("2"));
        match committed {
            Ok(committed) => assert!(known && committed, "{away}: {committed}"),
            Err(error) => {
                assert!(!known && error.to_string().contains("it is unknown whether"), "{error}");
            }
        }
    }
}

/// A transaction that was rolled back is known as such, even after its ttl.
#[tokio::test(start_paused = true)]
async fn cmp_7_cmp_6_a_rollback_in_doubt_is_known_if_the_store_still_has_the_lease() {
    let world = world();
    let ctx = IdempotencyContext::builder("joined", "k").ttl(50 * MS).build().unwrap();
    let Acquisition::Granted(held) = world.joined.engine().try_acquire(&ctx).await.unwrap() else {
        panic!()
    };
    let mut tx = world.db.begin().await.unwrap();
    let pending = held.complete_in(&mut tx, value()).await.unwrap();
    world.db.set(Fault::Commit);
    tx.commit_tx().await.unwrap_err();
    tokio::time::sleep(100 * MS).await;
    assert!(!pending.in_doubt().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn cmp_7_a_pending_commit_that_is_dropped_finds_out_by_itself() {
    let world = world();
    let (held_1, mut tx) = (held(&world, "1").await, world.db.begin().await.unwrap());
    let pending = held_1.complete_in(&mut tx, value()).await.unwrap();
    tx.commit_tx().await.unwrap();
    drop(pending);
    let (held_2, mut tx) = (held(&world, "2").await, world.db.begin().await.unwrap());
    let pending = held_2.complete_in(&mut tx, value()).await.unwrap();
    drop((tx, pending));
    world.background().await;
    assert_eq!(world.ends(), (1, 1, 0));
    assert_eq!(world.phases(), [Phase::RolledBack], "its key is free");
    // The key of a completion whose future was created but never polled is free too.
    let (held_3, mut tx) = (held(&world, "3").await, world.db.begin().await.unwrap());
    drop(held_3.complete_in(&mut tx, value()));
    let (held_4, mut other) = (held(&world, "4").await, world.db.begin().await.unwrap());
    drop(held_4.complete_tombstone_in(&mut other, Tombstone::new()));
    drop((tx, other));
    world.background().await;
    assert_eq!(world.phases(), [Phase::RolledBack; 2]);
    let standing = async |key| world.db.0.records.peek(ctx(key).identity()).await.unwrap();
    assert!(matches!(standing("1").await, Peeked::Complete(_)));
    for key in ["2", "3", "4"] {
        assert!(matches!(standing(key).await, Peeked::Absent), "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_7_complete_in_refuses_what_it_cannot_join() {
    let world = world();
    let refused = held(&world, "1").await.complete_in(&mut Vec::new(), value()).await;
    let Err(JoinError::Failed(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    // Another owner takes over just before the transaction begins.
    let held_2 = held(&world, "2").await;
    world.db.0.stuck.store(true, Ordering::SeqCst);
    *world.db.0.between.lock().unwrap() = Some(ctx("2").identity().clone());
    let mut tx = world.db.begin().await.unwrap();
    let refused = held_2.complete_in(&mut tx, value()).await;
    assert!(matches!(refused, Err(JoinError::LeaseLost)), "{refused:?}");
    world.background().await;
    assert_eq!(world.ends(), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn run_5_cmp_7_a_shutdown_waits_for_releases_in_the_background() {
    const LONG: Duration = Duration::from_secs(30);
    let world = world();
    let engine = world.joined.engine();
    let sleeping = world.joined.execute(ctx("k"), async |_: &mut Tx| {
        tokio::time::sleep(LONG).await;
        Ok::<_, &'static str>(String::new())
    });
    assert!(tokio::time::timeout(30 * MS, sleeping).await.is_err());
    assert_eq!(engine.shutdown(LONG).await, 0);
    assert!(world.db.log().contains(&"release"), "of the dropped call");
    // A shutdown also waits for the release that follows a completion refused within its
    // transaction.
    let world = self::world();
    let (refused, mut tx) = (held(&world, "k").await, world.db.begin().await.unwrap());
    world.db.set(Fault::Elsewhere);
    let refused = refused.complete_in(&mut tx, value()).await;
    assert!(matches!(refused, Err(JoinError::LeaseLost)), "{refused:?}");
    assert_eq!(world.joined.engine().shutdown(LONG).await, 0);
    assert!(world.db.log().contains(&"release"), "of the refused completion");
}

#[tokio::test(start_paused = true)]
async fn cmp_7_cmp_9_a_tombstone_whose_detail_is_over_the_limit_commits_without_it() {
    let db = Db::default();
    db.0.limit.store(20, Ordering::SeqCst);
    let engine = IdempotencyEngine::new(db.shared());
    let world = World { joined: engine.joined(db.clone()).unwrap(), counters: Counters::new(), db };
    let (held, mut tx) = (held(&world, "k").await, world.db.begin().await.unwrap());
    let detail = Tombstone::with_detail(CodecId::BYTES, 0, &[7; 100]);
    let pending = held.complete_tombstone_in(&mut tx, detail).await.unwrap();
    tx.commit_tx().await.unwrap();
    pending.committed();
    let Peeked::Complete(stored) = world.db.0.records.peek(ctx("k").identity()).await.unwrap()
    else {
        panic!("complete")
    };
    let Opened::Tombstone(left) = stored.open(None).unwrap() else { panic!("a tombstone") };
    assert_eq!(left, Tombstone::new());
}

/// A joined call can move between threads, whatever it borrows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cmp_7_joined_calls_run_on_any_thread() {
    let world = Arc::new(world());
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                let key = format!("k{number}");
                let action = async |tx: &mut Tx| {
                    tokio::task::yield_now().await;
                    tx.write(&key);
                    Ok::<_, &'static str>(key.clone())
                };
                world.joined.execute(ctx(&key), action).await.unwrap()
            })
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), Outcome::Executed(format!("k{number}")));
    }
    assert_eq!((world.db.rows().len(), world.ends()), (8, (8, 0, 0)));
}

#[cfg(feature = "blocking")]
#[test]
fn cmp_7_the_blocking_form_does_the_same() {
    use retryproof_core::blocking;

    let db = Db::default();
    let engine = blocking::Engine::new(db.shared()).unwrap();
    let joined = engine.joined(db.clone()).unwrap();
    let pay = |row: &str, fails: bool| {
        joined.execute(ctx(row), |tx| {
            tx.write(row);
            if fails { Err("declined") } else { Ok(row.to_owned()) }
        })
    };
    assert_eq!(pay("a", false).unwrap(), Outcome::Executed("a".to_owned()));
    assert_eq!(pay("a", false).unwrap(), Outcome::Replayed("a".to_owned()));
    assert!(matches!(pay("b", true), Err(ExecuteError::Action("declined"))));
    assert_eq!(pay("b", false).unwrap(), Outcome::Executed("b".to_owned()));
    assert_eq!(db.rows(), ["a", "b"]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let by_hand = |row: &str, commits: bool| {
        let blocking::Acquisition::Granted(held) = engine.try_acquire(&ctx(row)).unwrap() else {
            panic!()
        };
        let mut tx = Tx { db: db.clone(), rows: vec![row.to_owned()], record: None, ended: false };
        let pending = held.complete_in(&mut tx, value()).unwrap();
        if commits {
            runtime.block_on(tx.commit_tx()).unwrap();
        }
        drop(db.log());
        pending
    };
    by_hand("c", true).committed();
    assert!(db.log().contains(&"wake"), "ACQ-4");
    assert_eq!(pay("c", true).unwrap(), Outcome::Replayed("by hand".to_owned()));
    assert!(by_hand("d", true).in_doubt().unwrap(), "the record is there");
    assert!(!by_hand("e", false).in_doubt().unwrap(), "the record is not there");
}

/// Creates a joined engine whose scope is switched off.
fn world_off() -> World {
    world_of(ScopeConfig { enabled: Some(false), ..ScopeConfig::default() })
}

/// Creates a joined engine whose scope has these settings.
fn world_of(scope: ScopeConfig) -> World {
    let (db, counters) = (Db::default(), Counters::new());
    let mut config = IdempotencyConfig::default();
    config.scopes.insert("joined".to_owned(), scope);
    let engine = IdempotencyEngine::builder(db.shared())
        .config(config)
        .observer(Arc::clone(&counters))
        .build()
        .unwrap();
    World { joined: engine.joined(db.clone()).unwrap(), counters, db }
}

#[tokio::test(start_paused = true)]
async fn ctx_5_cmp_7_a_scope_that_is_off_commits_without_a_record() {
    let world = world_off();
    for row in ["a", "b"] {
        assert_eq!(world.pay(row).await.unwrap(), Outcome::Executed(row.to_owned()));
        assert_eq!(world.db.log(), ["begin", "write", "commit"]);
    }
    assert_eq!(world.db.rows(), ["a", "b"]);
    let failing = async |tx: &mut Tx| {
        tx.write("c");
        Err::<String, _>("declined")
    };
    let failed = world.joined.execute(ctx("k"), failing).await;
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))));
    assert_eq!(world.db.log(), ["begin", "write", "rollback"]);
    assert_eq!((world.db.rows().len(), world.counters.read().unguarded), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn ctx_5_cmp_7_an_unanswered_commit_stays_in_doubt_without_a_record() {
    for fault in [Fault::Commit, Fault::Reply] {
        let world = world_off();
        world.db.set(fault);
        match world.pay("a").await {
            Err(ExecuteError::Completion(failure)) => assert_eq!(failure.recorded, Recorded::No),
            other => panic!("{fault:?}: {other:?}"),
        }
        assert_eq!(world.db.rows().len(), usize::from(fault == Fault::Reply));
        assert_eq!(world.counters.read().unguarded, 1);
        // If the caller calls `commit` itself, the result does not count as recorded either.
        let (held, mut tx) = (held(&world, "b").await, world.joined.begin().await.unwrap());
        tx.write("b");
        world.db.set(fault);
        let ended = world.joined.commit(tx, held, value()).await;
        assert!(matches!(ended, CompletionResult::Unconfirmed(_)), "{fault:?}: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_10_a_joined_call_has_the_spans_of_any_other() {
    let (spans, _guard) = Spans::listen(LevelFilter::DEBUG);
    let world = world();
    assert!(world.pay("a").await.unwrap().is_executed());
    let (call, action) = ("idempotency.call", "idempotency.action");
    assert!(spans.parents().contains(&(action, Some(call))), "{:?}", spans.parents());
    let of_calls = spans.parents().into_iter().filter(|(name, _)| *name == call);
    assert_eq!(of_calls.collect::<Vec<_>>(), [(call, None)]);
}

#[tokio::test(start_paused = true)]
async fn acq_14_a_call_inside_a_joined_action_of_its_own_key_is_in_flight_at_once() {
    let world = world();
    let engine: &IdempotencyEngine = world.joined.as_ref();
    let ctx = || IdempotencyContext::builder("joined", "k").build().unwrap();
    let began = Instant::now();
    let outer = world.joined.execute(ctx(), async |_: &mut Tx| {
        let inner = engine.execute(ctx(), || async { Ok::<_, &str>(7) }).await.unwrap();
        Ok::<_, &str>(matches!(inner, Outcome::InFlight(_)))
    });
    assert_eq!(outer.await.unwrap(), Outcome::Executed(true));
    assert!(began.elapsed().is_zero(), "it does not wait: {:?}", began.elapsed());
}

#[cfg(feature = "blocking")]
#[test]
fn run_10_acq_14_a_blocking_joined_call_has_its_spans_and_knows_its_key() {
    let (spans, _guard) = Spans::listen(LevelFilter::DEBUG);
    let db = Db::default();
    let engine = retryproof_core::blocking::Engine::new(db.shared()).unwrap();
    let ctx = || IdempotencyContext::builder("joined", "k").build().unwrap();
    let began = Instant::now();
    let outer = engine.joined(db.clone()).unwrap().execute(ctx(), |_: &mut Tx| {
        let inner = engine.execute(ctx(), || Ok::<_, &str>(7)).unwrap();
        Ok::<_, &str>(matches!(inner, Outcome::InFlight(_)))
    });
    assert_eq!(outer.unwrap(), Outcome::Executed(true));
    assert!(began.elapsed() < Duration::from_secs(5), "it does not wait: {:?}", began.elapsed());
    let (call, action) = ("idempotency.call", "idempotency.action");
    let below = [(call, None), (action, Some(call)), (call, Some(action))];
    let seen = spans.parents();
    assert!(below.iter().all(|span| seen.contains(span)), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn ctx_6_cmp_7_a_scope_in_shadow_mode_commits_and_then_records() {
    let world = world_of(ScopeConfig { shadow: Some(true), ..ScopeConfig::default() });
    assert_eq!(world.pay("a").await.unwrap(), Outcome::Executed("a".to_owned()));
    tokio::time::sleep(MS).await;
    assert_eq!(world.db.log(), ["acquire", "begin", "write", "commit", "complete"]);
    assert_eq!(world.pay("b").await.unwrap(), Outcome::Executed("b".to_owned()));
    tokio::time::sleep(MS).await;
    assert_eq!(world.db.log(), ["acquire", "begin", "write", "commit"], "a duplicate only asks");
    assert_eq!(world.db.rows(), ["a", "b"], "both ran");
    let peeked = world.db.0.records.peek(ctx("k").identity()).await.unwrap();
    assert!(matches!(peeked, Peeked::Complete(_)), "{peeked:?}");
    assert_eq!((world.counters.read().shadowed, world.counters.read().completed), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn ctx_6_cmp_7_a_rollback_in_shadow_mode_frees_the_key() {
    let world = world_of(ScopeConfig { shadow: Some(true), ..ScopeConfig::default() });
    let failing = async |tx: &mut Tx| {
        tx.write("c");
        Err::<String, _>("declined")
    };
    let failed = world.joined.execute(ctx("k"), failing).await;
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))));
    assert_eq!(world.db.log(), ["acquire", "begin", "write", "rollback", "release"]);
    assert!(world.db.rows().is_empty());
}

#[tokio::test(start_paused = true)]
async fn cmp_7_an_action_that_keeps_its_transaction_open_too_long_is_dropped() {
    let world = world();
    *world.db.0.open_at_most.lock().unwrap() = Some(300 * MS);
    let began = Instant::now();
    let failed = world
        .joined
        .execute(ctx("k"), async move |tx: &mut Tx| {
            tx.write("a");
            tokio::time::sleep(60_000 * MS).await;
            Ok::<u8, &str>(1)
        })
        .await;
    assert!(matches!(failed, Err(ExecuteError::Completion(_))), "{failed:?}");
    assert!(began.elapsed() < 1_000 * MS, "{:?}", began.elapsed());
    assert_eq!((world.db.rows().len(), world.phases()), (0, vec![Phase::RolledBack]));
    assert!(world.pay("b").await.unwrap().is_executed(), "the key is free");
}

#[test]
fn cmp_7_a_blocking_rollback_frees_the_key_before_it_returns() {
    let db = Db::default();
    let engine = IdempotencyEngine::builder(db.shared()).observer(db.clone()).build().unwrap();
    let engine = blocking::Engine::over(engine).unwrap();
    let held = match engine.try_acquire(&ctx("k")).unwrap() {
        blocking::Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    };
    let mut tx = Tx { db: db.clone(), rows: Vec::new(), record: None, ended: true };
    let pending = held.complete_in(&mut tx, value()).unwrap();
    pending.rolled_back().unwrap();
    assert_eq!(*db.0.phases.lock().unwrap(), [Phase::RolledBack]);
    assert!(matches!(engine.try_acquire(&ctx("k")), Ok(blocking::Acquisition::Granted(_))));
}
