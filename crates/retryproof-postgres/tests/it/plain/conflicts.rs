// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serialization failures (SQLSTATE 40001), at the statement and at its commit: they are repeated
//! inside the call's time, and a storm of them ends as an error with nothing half done.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use retryproof_core::store::{FencedWrite, ForceRequest, Forced, Peeked, Purge as _};
use retryproof_core::store::{Force as _, Inspect as _};
use retryproof_core::{
    Error, ErrorKind, ExecuteError, IdempotencyConfig, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore, Outcome, OwnerId,
};
use retryproof_postgres::{PgPool, PostgresStore, PostgresTx};
use sqlx_core::executor::Executor as _;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::sql_str::AssertSqlSafe;
use tokio::time::Instant;

use super::place::Place;
use crate::support::{
    CANARY, LONG, Stranger, Table, assert_masked, completion, execute, grant, id, replay, request,
};

/// Makes each change of a row fail with 40001, at the statement or at the commit, if the condition
/// is true. A superuser's function raises the error, so the role needs no right to anything in it.
pub(crate) async fn inject(table: &Table, at_statement: &str, at_commit: &str) {
    let name = &table.name;
    let sql = format!(
        "CREATE OR REPLACE FUNCTION \"{name}_conflict\"() RETURNS trigger LANGUAGE plpgsql \
         SECURITY DEFINER AS $$ BEGIN IF (CASE TG_NAME WHEN 'late' THEN {at_commit} ELSE \
         {at_statement} END) THEN RAISE EXCEPTION 'injected' USING ERRCODE='40001'; END IF; \
         IF TG_OP='DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$; \
         DROP TRIGGER IF EXISTS late ON \"{name}\"; \
         CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE OR DELETE ON \"{name}\" DEFERRABLE \
         INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION \"{name}_conflict\"(); \
         CREATE OR REPLACE TRIGGER at_once BEFORE INSERT OR UPDATE OR DELETE ON \"{name}\" FOR \
         EACH ROW EXECUTE FUNCTION \"{name}_conflict\"()"
    );
    table.stranger().await.run(sql).await;
}

/// A sequence, which counts the statements that an injected condition has seen.
struct Counted {
    place: Place,
    admin: Stranger,
    sequence: String,
}

impl Counted {
    async fn new() -> Self {
        let place = Place::new("").await;
        let sequence = format!("\"{}_seen\"", place.table.name);
        let mut admin = place.table.stranger().await;
        admin.run(format!("CREATE SEQUENCE {sequence}")).await;
        Self { place, admin, sequence }
    }

    /// Lets statements and commits fail while their number fulfils the condition.
    async fn fail(&mut self, at_statement: &str, at_commit: &str) {
        self.admin.run(format!("ALTER SEQUENCE {} RESTART", self.sequence)).await;
        let number = format!("nextval('{}')", self.sequence);
        let of = |condition: &str| condition.replace('#', &number);
        inject(&self.place.table, &of(at_statement), &of(at_commit)).await;
    }

    async fn seen(&mut self) -> i64 {
        self.admin.number(format!("SELECT last_value FROM {}", self.sequence)).await
    }

    async fn rows(&mut self, condition: &str) -> i64 {
        let name = &self.place.table.name;
        self.admin.number(format!("SELECT count(*) FROM \"{name}\" WHERE {condition}")).await
    }

    async fn end(mut self) {
        self.admin.run(format!("DROP SEQUENCE {}", self.sequence)).await;
    }
}

/// The statement of a grant returns its row before the commit fails, so the row must not count.
#[tokio::test]
async fn sto_9_acq_2_a_conflict_at_the_commit_is_repeated() {
    let mut counted = Counted::new().await;
    let store = PostgresStore::connect(counted.place.config()).await.expect("connected");
    for (at_statement, at_commit) in [("# <= 9", "false"), ("false", "# <= 9")] {
        let (id, owner) = (id(at_commit), OwnerId::new());
        counted.fail(at_statement, at_commit).await;
        grant(&store, &id, owner).await;
        assert_eq!(counted.seen().await, 10, "nine conflicts, and the grant");
        counted.fail(at_statement, at_commit).await;
        let extended = store.extend(&id, owner, LONG).await.expect("extended");
        assert_eq!((extended, counted.seen().await), (FencedWrite::Applied, 10));
        counted.fail(at_statement, at_commit).await;
        let completed = store.complete(&id, owner, &completion("result")).await;
        assert_eq!(completed.expect("completed"), FencedWrite::Applied);
        assert_eq!(counted.seen().await, 10);
        assert_eq!(replay(&store, &id).await, "result");
    }
    counted.end().await;
}

/// Returns the error of a call that only meets conflicts, and checks that the call ended in time.
async fn stormed<T: std::fmt::Debug>(call: impl AsyncFn() -> Result<T, Error>) -> Error {
    loop {
        let began = Instant::now();
        let error = call().await.expect_err("every statement fails");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "the call took {took:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable(), "{error}");
        assert_masked(&error);
        // On a busy machine, the last statement may get no answer in time. Call again then.
        if error.to_string().contains("in time") {
            continue;
        }
        assert!(took > Duration::from_millis(500), "the call gave up after {took:?}");
        assert!(error.to_string().contains("conflicted"), "{error}");
        assert!(crate::support::whole(&error).contains("40001"), "{error:?}");
        return error;
    }
}

#[tokio::test]
async fn sto_9_sto_5_a_storm_of_conflicts_ends_as_unavailable_with_nothing_half_done() {
    let mut counted = Counted::new().await;
    let patient = PostgresStore::connect(counted.place.config()).await.expect("connected");
    let config = counted.place.config().with_call_timeout(Duration::from_millis(1_000));
    let store = PostgresStore::connect(config).await.expect("connected");
    for (at_statement, at_commit) in [("# > 0", "false"), ("false", "# > 0")] {
        let (free, held) = (id(CANARY), id(&format!("held {at_commit}")));
        let owner = OwnerId::new();
        counted.fail("false", "false").await;
        let token = grant(&patient, &held, owner).await.token;

        counted.fail(at_statement, at_commit).await;
        stormed(async || store.acquire(&free, &request(owner)).await).await;
        let sent = counted.seen().await;
        assert!(sent > 6, "the statement was sent only {sent} times");
        stormed(async || store.extend(&held, owner, LONG).await).await;
        stormed(async || store.complete(&held, owner, &completion(CANARY)).await).await;
        stormed(async || store.release(&held, owner).await).await;
        let forced = ForceRequest::release(token).even_if_live();
        stormed(async || store.force(&held, &forced).await).await;
        assert_eq!(counted.rows("true").await, 1, "only the held record exists");
        assert_eq!(counted.rows("state=0 AND result IS NULL").await, 1);
        let found = patient.get(&held).await.expect("read").expect("a record");
        assert_eq!(found.token, token);

        counted.fail("false", "false").await;
        let completed = patient.complete(&held, owner, &completion("result")).await;
        assert_eq!(completed.expect("completed"), FencedWrite::Applied);
        assert_eq!(replay(&patient, &held).await, "result");
        let found = patient.get(&held).await.expect("read").expect("a record");
        let forget = ForceRequest::forget(found.token);
        assert!(matches!(patient.force(&held, &forget).await, Ok(Forced::Applied)));
        let gone = format!("UPDATE \"{}\" SET purge_bucket=0", counted.place.table.name);
        counted.admin.run(gone).await;
        assert_eq!(patient.purge(10).await.expect("purged"), 1);
    }
    counted.end().await;
}

/// The engine's action does not run, and the call ends within `operation-timeout`.
#[tokio::test]
async fn sto_9_sto_5_no_action_runs_in_a_storm() {
    let mut counted = Counted::new().await;
    let config = counted.place.config().with_call_timeout(Duration::from_millis(800));
    let store = PostgresStore::connect(config).await.expect("connected");
    let mut settings = IdempotencyConfig::default();
    settings.operation_timeout = Duration::from_secs(1);
    let engine = IdempotencyEngine::builder(store).config(settings).build().expect("an engine");
    let patient = PostgresStore::connect(counted.place.config()).await.expect("connected");
    let patient = IdempotencyEngine::new(patient);
    let runs = AtomicU32::new(0);
    let call = async |engine: &IdempotencyEngine| {
        let ctx = IdempotencyContext::builder("storm", "k").build().expect("valid");
        engine
            .execute(ctx, || async {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, &str>(7)
            })
            .await
    };
    counted.fail("false", "# > 0").await;
    let began = Instant::now();
    match call(&engine).await {
        Err(ExecuteError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Unavailable),
        other => panic!("{other:?}"),
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!((runs.load(Ordering::SeqCst), counted.rows("true").await), (0, 0));
    counted.fail("false", "false").await;
    let outcome = call(&patient).await.expect("it runs");
    assert_eq!((outcome, runs.load(Ordering::SeqCst)), (Outcome::Executed(7), 1));
    counted.end().await;
}

/// The engine cannot repeat the application's transaction, so the call fails, and nothing is
/// written.
#[tokio::test]
async fn sto_9_cmp_7_a_conflict_in_a_joined_transaction_leaves_neither() {
    let mut counted = Counted::new().await;
    let store = PostgresStore::connect(counted.place.config()).await.expect("connected");
    let ledger = format!("\"{}_ledger\"", counted.place.table.name);
    let made = format!("CREATE TABLE {ledger} (what text); GRANT INSERT ON {ledger} TO PUBLIC");
    counted.admin.run(made).await;
    let pool = PgPool::connect(&counted.place.url).await.expect("the application's pool");
    let joined = IdempotencyEngine::new(store).joined(pool).expect("the store joins");
    for (at_statement, at_commit) in
        [("state_is(NEW) AND # = 1", "false"), ("false", "state_is(NEW) AND # = 1")]
    {
        // Only the completion fails, and not the grant.
        let of = |condition: &str| condition.replace("state_is(NEW)", "NEW.state=1");
        counted.fail(&of(at_statement), &of(at_commit)).await;
        let key = format!("joined {at_commit}");
        let pay = async || {
            let ctx = IdempotencyContext::builder("ledger", key.as_str()).build().expect("valid");
            joined
                .execute(ctx, async |tx: &mut PostgresTx| {
                    let sql = format!("INSERT INTO {ledger} VALUES ('paid')");
                    tx.execute(raw_sql(AssertSqlSafe(sql))).await.map(|done| done.rows_affected())
                })
                .await
        };
        let before = counted.admin.number(format!("SELECT count(*) FROM {ledger}")).await;
        match pay().await {
            Err(ExecuteError::Completion(failed)) => {
                assert_eq!(failed.error.kind(), ErrorKind::Unavailable, "{failed}");
            }
            other => panic!("{other:?}"),
        }
        let after = counted.admin.number(format!("SELECT count(*) FROM {ledger}")).await;
        assert_eq!((after, counted.rows("state=1").await), (before, before));
        assert_eq!(pay().await.expect("the key is free"), Outcome::Executed(1));
        let after = counted.admin.number(format!("SELECT count(*) FROM {ledger}")).await;
        assert_eq!((after, counted.rows("state=1").await), (before + 1, before + 1));
    }
    counted.end().await;
}

/// A completion waits for a locked row for as long as its call may take; a heartbeat does not.
#[tokio::test]
async fn sto_9_run_2_a_locked_row_delays_a_heartbeat_briefly_and_no_completion_is_lost() {
    let place = Place::new("").await;
    let store = PostgresStore::connect(place.config()).await.expect("connected");
    let (locked, owner) = (id("locked"), OwnerId::new());
    grant(&store, &locked, owner).await;
    let mut other = place.table.stranger().await;
    other.run(format!("BEGIN; SELECT 1 FROM \"{}\" FOR UPDATE", place.table.name)).await;
    let began = Instant::now();
    let error = store.extend(&locked, owner, LONG).await.expect_err("the row is locked");
    assert!(error.is_retryable() && began.elapsed() < Duration::from_secs(10), "{error}");
    // A reader and another key are not delayed.
    assert!(matches!(store.peek(&locked).await, Ok(Peeked::Busy(_))));
    execute(&store, &id("another"), "result").await;
    let unlocked = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        other.run("COMMIT").await;
    };
    let done = completion("result");
    let (completed, ()) = tokio::join!(store.complete(&locked, owner, &done), unlocked);
    assert_eq!(completed.expect("completed"), FencedWrite::Applied);
    assert_eq!(replay(&store, &locked).await, "result");
}
