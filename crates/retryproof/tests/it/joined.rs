// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joined completion through the attribute and over HTTP, on SQLite (CMP-7, ANN-1, ANN-6): the
//! writes and the record are one commit.
//!
//! This file is over 400 lines long because every way in which a joined endpoint can end is tested
//! here.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRef, FromRequestParts};
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use retryproof::http::axum::GuardedTxRejection;
use retryproof::http::{AnswerFate, GuardedTx, IdempotencyFilter, OpenTx, Policy, TxError};
use retryproof::observe::{Counters, Counts};
use retryproof::sqlite::{SqliteConfig, SqliteDialect, SqliteStore, SqliteTx, SqliteTxSource};
use retryproof::store::{OwnedTx, Param, TxPort, TxSource};
use retryproof::{
    CompletionFailurePolicy, Error, ErrorKind, IdempotencyConfig, IdempotencyEngine, JoinedEngine,
    MemoryStore, Rejected, blocking, idempotent,
};
use tower::ServiceExt as _;

/// A file that is removed with its test.
struct File(PathBuf);

impl File {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("retryproof-joined-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("shop.db")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A source whose transactions fail on demand.
#[derive(Clone)]
struct Source(SqliteTxSource, Arc<AtomicUsize>);

/// A transaction, and the fault that [`World::fail`] has set for it.
struct Tx(SqliteTx, usize);

const NO_BEGIN: usize = 1;
const NO_COMMIT: usize = 2;
const NO_REPLY: usize = 3;
const NO_STATEMENT: usize = 4;
/// A fault: the lease is lost, so the statement finds no row.
const NO_ROW: usize = 5;

impl TxSource<SqliteDialect> for Source {
    type Tx = Tx;

    async fn begin(&self) -> retryproof::Result<Tx> {
        match self.1.load(Ordering::SeqCst) {
            NO_BEGIN => Err(Error::unavailable("no transaction is available")),
            fault => Ok(Tx(self.0.begin().await?, fault)),
        }
    }
}

impl TxPort<SqliteDialect> for Tx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> retryproof::Result<u64> {
        match self.1 {
            NO_STATEMENT => Err(Error::new(ErrorKind::Unexpected, "refused")),
            NO_ROW => {
                self.0
                    .run_statement(
                        &sql.replace("owner=?3", "owner=?3 AND owner=zeroblob(16)"),
                        params,
                    )
                    .await
            }
            _ => self.0.run_statement(sql, params).await,
        }
    }
}

impl OwnedTx<SqliteDialect> for Tx {
    async fn commit_tx(self) -> retryproof::Result<()> {
        match self.1 {
            NO_COMMIT => Err(Error::unavailable("it was not committed")),
            NO_REPLY => {
                self.0.commit_tx().await?;
                Err(Error::unavailable("the answer was lost"))
            }
            _ => self.0.commit_tx().await,
        }
    }

    async fn roll_back_tx(self) -> retryproof::Result<()> {
        self.0.roll_back_tx().await
    }
}

impl Tx {
    fn write(&self, what: &str) {
        self.0.execute("INSERT INTO ledger VALUES (?1)", [what]).unwrap();
    }
}

#[derive(Clone, FromRef)]
struct App {
    filter: IdempotencyFilter,
    joined: JoinedEngine<Tx>,
    other: JoinedEngine<SqliteTx>,
    runs: Arc<AtomicUsize>,
}

struct World {
    app: App,
    counters: Arc<Counters>,
    faults: Arc<AtomicUsize>,
    source: SqliteTxSource,
    _file: File,
}

fn world() -> World {
    world_with(|_| {})
}

fn world_with(settings: impl FnOnce(&mut IdempotencyConfig)) -> World {
    let file = File::new();
    SqliteConfig::new(file.path()).migrate().unwrap();
    let source = SqliteTxSource::open_with(&SqliteConfig::new(file.path())).unwrap();
    let (counters, faults) = (Counters::new(), Arc::default());
    let mut config = IdempotencyConfig::default();
    settings(&mut config);
    let store = SqliteStore::open(file.path()).unwrap();
    let engine = IdempotencyEngine::builder(store)
        .config(config)
        .observer(Arc::clone(&counters))
        .build()
        .unwrap();
    let joined = engine.joined(Source(source.clone(), Arc::clone(&faults))).unwrap();
    let other = engine.joined(source.clone()).unwrap();
    let filter = IdempotencyFilter::builder(engine).callers_share_keys().build().unwrap();
    let app = App { filter, joined, other, runs: Arc::default() };
    World { app, counters, faults, source, _file: file }
}

impl World {
    async fn new() -> Self {
        Self::from(world()).await
    }

    async fn from(world: Self) -> Self {
        let tx = world.source.begin().await.unwrap();
        tx.execute_batch("CREATE TABLE ledger (what TEXT NOT NULL)").unwrap();
        tx.commit_tx().await.unwrap();
        world
    }

    fn fail(&self, how: usize) {
        self.faults.store(how, Ordering::SeqCst);
    }

    async fn rows(&self) -> Vec<String> {
        let tx = self.source.begin().await.unwrap();
        let mut statement = tx.prepare("SELECT what FROM ledger ORDER BY rowid").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    fn runs(&self) -> usize {
        self.app.runs.load(Ordering::SeqCst)
    }

    /// Returns how many leases were completed, failed and lost. Each lease ended once.
    fn ends(&self) -> (u64, u64, u64) {
        let Counts { acquired, completed, failed, lost, .. } = self.counters.read();
        assert_eq!(acquired, completed + failed + lost);
        (completed, failed, lost)
    }

    fn router(&self) -> Router {
        Router::new()
            .route("/pay", post(pay))
            .route("/reads", post(reads))
            .route("/early", post(early))
            .route("/two", post(two))
            .route("/another", post(another))
            .route("/layered", post(layered).layer(self.app.filter.guard(Policy::new("layered"))))
            .route("/unguarded", post(layered))
            .with_state(self.app.clone())
    }

    async fn send(&self, path: &str, body: &'static str) -> (StatusCode, String, bool) {
        self.send_under("k", path, body).await
    }

    async fn send_under(
        &self,
        key: &str,
        path: &str,
        body: &'static str,
    ) -> (StatusCode, String, bool) {
        let request =
            Request::post(path).header("idempotency-key", key).body(Body::from(body)).unwrap();
        let Ok(response) = self.router().oneshot(request).await;
        let replayed = response.headers().contains_key("idempotent-replayed");
        let (head, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
        (head.status, String::from_utf8_lossy(&body).into_owned(), replayed)
    }
}

/// Writes the body, and then answers as the body says.
#[idempotent(http, scope = "pay", lease = "PT2S", wait_timeout = "PT5S")]
async fn pay(
    tx: GuardedTx<Tx>,
    app: axum::extract::State<App>,
    order: String,
) -> Result<Response, TxError> {
    app.runs.fetch_add(1, Ordering::SeqCst);
    if order == "nothing" {
        return Ok("wrote nothing".into_response());
    }
    {
        let tx = tx.begin().await?;
        tx.write(&order);
    }
    // The second `begin` returns the transaction that the first one opened.
    tx.begin().await?.write("and more");
    Ok(match order.as_str() {
        "refused" => (StatusCode::PAYMENT_REQUIRED, "declined").into_response(),
        "moved" => (StatusCode::SEE_OTHER, [(header::LOCATION, "/elsewhere")]).into_response(),
        "release" => (StatusCode::CREATED, AnswerFate::Release, "released").into_response(),
        "hold" => (StatusCode::CREATED, AnswerFate::Hold, "held").into_response(),
        "panic" => panic!("on purpose"),
        "stream" => ([(header::CONTENT_TYPE, "text/event-stream")], "data: 1\n\n").into_response(),
        "kept" => {
            let open = tx.begin().await?;
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(200)).await;
                drop(open);
            });
            StatusCode::CREATED.into_response()
        }
        "large" => "x".repeat(100_000).into_response(),
        _ => (StatusCode::CREATED, format!("paid {order}")).into_response(),
    })
}

/// Takes a transaction as an argument and does not use it.
#[idempotent(http, scope = "reads")]
async fn reads(_tx: GuardedTx<Tx>) -> &'static str {
    "read"
}

/// The program's own extractor, which tries to write.
struct Eager(Result<(), TxError>);

impl FromRequestParts<App> for Eager {
    type Rejection = GuardedTxRejection;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        state: &App,
    ) -> Result<Self, GuardedTxRejection> {
        let tx = <GuardedTx<Tx> as FromRequestParts<App>>::from_request_parts(parts, state).await?;
        Ok(Self(tx.begin().await.map(|_: OpenTx<Tx>| ())))
    }
}

#[idempotent(http, scope = "early")]
async fn early(eager: Eager) -> String {
    format!("{:?}", eager.0)
}

/// The second extractor is refused, because one answer cannot end two transactions.
#[idempotent(http, scope = "another")]
async fn another(
    _tx: GuardedTx<Tx>,
    other: Result<GuardedTx<SqliteTx>, GuardedTxRejection>,
) -> String {
    format!("{:?}", other.map(drop))
}

/// Both arguments stand for the same transaction.
#[idempotent(http, scope = "two")]
async fn two(one: GuardedTx<Tx>, other: GuardedTx<Tx>) -> Result<StatusCode, TxError> {
    one.begin().await?.write("one");
    other.begin().await?.write("other");
    Ok(StatusCode::CREATED)
}

async fn layered(tx: Result<GuardedTx<Tx>, GuardedTxRejection>, order: String) -> Response {
    let tx = match tx {
        Ok(tx) => tx,
        Err(rejection) => return rejection.into_response(),
    };
    match tx.begin().await {
        Ok(tx) => tx.write(&order),
        Err(error) => return error.into_response(),
    }
    let status = if order == "refused" { StatusCode::CONFLICT } else { StatusCode::CREATED };
    (status, order).into_response()
}

#[tokio::test]
async fn cmp_7_http_an_answer_below_400_commits_writes_and_record_together() {
    let world = World::new().await;
    assert_eq!(world.send("/pay", "1").await, (StatusCode::CREATED, "paid 1".to_owned(), false));
    assert_eq!(world.send("/pay", "1").await, (StatusCode::CREATED, "paid 1".to_owned(), true));
    let (status, _, _) = world.send_under("m", "/pay", "moved").await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    assert_eq!(world.rows().await, ["1", "and more", "moved", "and more"]);
    assert_eq!((world.runs(), world.ends()), (2, (2, 0, 0)));
}

#[tokio::test]
async fn cmp_7_http_any_other_answer_is_recorded_alone() {
    let world = World::new().await;
    assert_eq!(
        world.send("/pay", "refused").await,
        (StatusCode::PAYMENT_REQUIRED, "declined".to_owned(), false)
    );
    assert_eq!(
        world.send("/pay", "refused").await,
        (StatusCode::PAYMENT_REQUIRED, "declined".to_owned(), true)
    );
    assert_eq!((world.rows().await, world.runs(), world.ends()), (vec![], 1, (1, 0, 0)));
}

#[tokio::test]
async fn cmp_7_http_an_answer_whose_writes_were_rolled_back_is_released_where_that_is_asked_for() {
    let mut world = World::new().await;
    let engine = world.app.filter.engine().clone();
    let filter =
        || IdempotencyFilter::builder(engine.clone()).callers_share_keys().release_on_rollback();
    world.app.filter = filter().build().unwrap();
    let refused = (StatusCode::PAYMENT_REQUIRED, "declined".to_owned(), false);
    for run in 1..=2 {
        assert_eq!(world.send("/pay", "refused").await, refused);
        assert_eq!(world.runs(), run, "the key is free");
    }
    // If the handler never begins the transaction, nothing is rolled back, so its answer is stored.
    // The answer of a handler whose transaction commits is stored too.
    assert_eq!(world.send_under("n", "/pay", "nothing").await.0, StatusCode::OK);
    assert!(world.send_under("n", "/pay", "nothing").await.2);
    assert_eq!(world.send_under("c", "/pay", "1").await.0, StatusCode::CREATED);
    assert!(world.send_under("c", "/pay", "1").await.2);
    assert_eq!(world.rows().await, ["1", "and more"]);
    // A fate that the filter's `fate` hook returns takes precedence over `release_on_rollback`.
    world.app.filter = filter().fate(|_| AnswerFate::Stream).build().unwrap();
    assert_eq!(world.send_under("s", "/pay", "refused").await, refused);
    assert_eq!(world.send_under("s", "/pay", "refused").await.0, StatusCode::CONFLICT);
}

#[tokio::test]
async fn cmp_7_http_7_release_hold_and_panic_roll_back() {
    let world = World::new().await;
    for (at, fate) in ["release", "panic"].into_iter().enumerate() {
        if fate == "panic" {
            let request = Request::post("/pay")
                .header("idempotency-key", fate)
                .body(Body::from(fate))
                .unwrap();
            assert!(tokio::spawn(world.router().oneshot(request)).await.unwrap_err().is_panic());
        } else {
            assert_eq!(world.send_under(fate, "/pay", fate).await.0, StatusCode::CREATED);
        }
        assert_eq!(world.rows().await, [""; 0], "{fate}");
        // The key is free, so even a request with a different body runs.
        assert!(!world.send_under(fate, "/reads", "").await.2);
        assert_eq!(world.runs(), at + 1);
    }
    assert_eq!(
        world.send_under("hold", "/pay", "hold").await,
        (StatusCode::CREATED, "held".to_owned(), false)
    );
    assert_eq!(world.rows().await, [""; 0], "hold");
    // The lease ends, and the next request takes the key over.
    assert!(!world.send_under("hold", "/pay", "hold").await.2);
    assert_eq!(world.counters.read().taken_over, 1);
}

#[tokio::test]
async fn cmp_7_http_13_a_tombstone_commits_with_the_writes() {
    let world = world_with(|config| config.web.max_response_bytes = 1_000);
    let world = World::from(world).await;
    for (at, order) in ["stream", "large"].into_iter().enumerate() {
        assert_eq!(world.send_under(order, "/pay", order).await.0, StatusCode::OK, "{order}");
        let (status, body, _) = world.send_under(order, "/pay", order).await;
        assert_eq!(status, StatusCode::CONFLICT, "{body}");
        assert!(body.contains("result-not-replayable"), "{body}");
        assert_eq!(world.rows().await.len(), 2 * (at + 1), "the work is done: {order}");
    }
    assert_eq!((world.runs(), world.ends()), (2, (2, 0, 0)));
}

#[tokio::test]
async fn cmp_7_http_a_commit_that_fails_is_told_whatever_the_policy() {
    for policy in [CompletionFailurePolicy::LogAndReturn, CompletionFailurePolicy::Propagate] {
        let world =
            World::from(world_with(|config| config.completion_failure_policy = policy)).await;
        for fault in [NO_COMMIT, NO_STATEMENT, NO_ROW] {
            world.fail(fault);
            let (status, body, replayed) = world.send("/pay", "1").await;
            assert_eq!((status, replayed), (StatusCode::INTERNAL_SERVER_ERROR, false));
            assert!(body.contains(r#""code":"completion-failed","retryable":true"#), "{body}");
            assert!(!body.contains("paid"), "the answer is not sent: {body}");
            assert_eq!(world.rows().await, [""; 0]);
        }
        world.fail(NO_REPLY);
        assert_eq!(
            world.send("/pay", "1").await,
            (StatusCode::CREATED, "paid 1".to_owned(), false)
        );
        world.fail(0);
        assert_eq!(world.send("/pay", "1").await, (StatusCode::CREATED, "paid 1".to_owned(), true));
        assert_eq!((world.rows().await.len(), world.ends().0), (2, 1));
    }
}

#[tokio::test]
async fn cmp_7_ann_6_no_transaction_is_an_answer_and_the_key_stays_free() {
    let world = World::new().await;
    world.fail(NO_BEGIN);
    let (status, body, _) = world.send("/pay", "1").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains("store-unavailable"), "{body}");
    // A handler that extracts a `GuardedTx` but never calls `begin` opens no transaction.
    assert_eq!(world.send_under("r", "/reads", "").await.0, StatusCode::OK);
    assert_eq!(world.send_under("n", "/pay", "nothing").await.0, StatusCode::OK);
    assert!(world.send_under("n", "/pay", "nothing").await.2, "recorded as without one");
    world.fail(0);
    assert_eq!(world.send("/pay", "1").await.0, StatusCode::CREATED);
    // No transaction can be opened before the grant, not even by an extractor.
    let (_, said, _) = world.send_under("e", "/early", "").await;
    assert_eq!(said, "Err(NotGranted)");
}

#[tokio::test]
async fn http_14_http_11_no_transaction_is_a_problem_of_the_filter_like_any_other() {
    let mut world = World::new().await;
    world.fail(NO_BEGIN);
    let mut seconds = std::collections::BTreeSet::new();
    for _ in 0..40 {
        let request =
            Request::post("/pay").header("idempotency-key", "k").body(Body::from("1")).unwrap();
        let Ok(response) = world.router().oneshot(request).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let after = response.headers()["retry-after"].to_str().unwrap().parse::<u32>().unwrap();
        seconds.insert(after);
    }
    assert_eq!(seconds.into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5], "spread");
    world.app.filter = world.app.filter.with_rejections(|problem| {
        let told = format!("own {} {}", problem.code, problem.retry_after.is_some());
        axum::http::Response::builder().status(529).body(told.into()).unwrap()
    });
    for path in ["/pay", "/layered"] {
        let own = world.send(path, "1").await;
        assert_eq!((own.0.as_u16(), &*own.1), (529, "own store-unavailable true"), "{path}");
    }
}

#[tokio::test]
async fn cmp_7_http_a_transaction_that_outlives_its_handler_is_rolled_back() {
    let world = World::new().await;
    let (status, body, _) = world.send("/pay", "kept").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(body.contains("completion-failed"), "{body}");
    assert_eq!(world.rows().await, [""; 0]);
    assert_eq!(world.send_under("next", "/pay", "1").await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn cmp_7_http_two_arguments_share_one_transaction_and_the_layer_has_it_too() {
    let world = World::new().await;
    assert_eq!(world.send_under("two", "/two", "").await.0, StatusCode::CREATED);
    assert_eq!(world.rows().await, ["one", "other"]);
    assert_eq!(world.send_under("another", "/another", "").await.1, "Err(Another)");
    assert_eq!(world.send_under("l", "/layered", "layered").await.0, StatusCode::CREATED);
    assert!(world.send_under("l", "/layered", "layered").await.2);
    assert_eq!(world.send_under("r", "/layered", "refused").await.0, StatusCode::CONFLICT);
    assert_eq!(world.rows().await, ["one", "other", "layered"]);
    let (status, body, _) = world.send_under("u", "/unguarded", "x").await;
    assert_eq!(
        (status, body.as_str()),
        (StatusCode::INTERNAL_SERVER_ERROR, "the request is not guarded")
    );
}

/// HTTP-12: the client disconnects, and the writes and the record are committed nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cmp_7_http_12_a_client_that_goes_away_loses_nothing() {
    let world = World::new().await;
    for key in 0..20 {
        let request = Request::post("/pay")
            .header("idempotency-key", key.to_string())
            .body(Body::from("1"))
            .unwrap();
        let cut =
            tokio::time::timeout(Duration::from_micros(200 * key), world.router().oneshot(request))
                .await;
        drop(cut);
    }
    world.app.filter.shutdown(Duration::from_secs(5)).await;
    let (completed, failed, lost) = world.ends();
    assert_eq!(world.rows().await.len() as u64, 2 * completed, "{failed} failed");
    assert_eq!(lost, 0);
}

struct Shop {
    joined: JoinedEngine<Tx>,
    till: u32,
}

impl AsRef<JoinedEngine<Tx>> for Shop {
    fn as_ref(&self) -> &JoinedEngine<Tx> {
        &self.joined
    }
}

impl Shop {
    /// The method that callers see does not have the transaction as an argument.
    #[idempotent(key = order, scope = "shop.sell", completion = "joined")]
    async fn sell(&self, order: &str, #[tx] tx: &mut Tx) -> Result<String, Rejected> {
        tokio::task::yield_now().await;
        tx.write(order);
        if order == "unknown" {
            return Err(Rejected::Mismatch);
        }
        Ok(format!("{order} at till {}", self.till))
    }
}

#[idempotent(key = order, scope = "sell", completion = "joined", engine = joined, codec = retryproof::NoCodec)]
async fn sell(
    joined: &JoinedEngine<Tx>,
    #[tx] till: &mut Tx,
    order: String,
) -> Result<(), Rejected> {
    till.write(&order);
    Ok(())
}

#[tokio::test]
async fn ann_1_cmp_7_a_joined_method_writes_in_the_transaction_of_its_record() {
    let world = World::new().await;
    let shop = Arc::new(Shop { joined: world.app.joined.clone(), till: 7 });
    let sold = tokio::spawn({
        let shop = Arc::clone(&shop);
        async move { shop.sell("tea").await }
    });
    assert_eq!(sold.await.unwrap().unwrap(), "tea at till 7");
    assert_eq!(shop.sell("tea").await.unwrap(), "tea at till 7");
    assert!(matches!(shop.sell("unknown").await, Err(Rejected::Mismatch)));
    sell(&world.app.joined, "coffee".to_owned()).await.unwrap();
    sell(&world.app.joined, "coffee".to_owned()).await.unwrap();
    assert_eq!(
        (world.rows().await, world.ends()),
        (vec!["tea".to_owned(), "coffee".to_owned()], (2, 1, 0))
    );
    for (fault, key) in [(NO_ROW, "lost"), (NO_COMMIT, "down")] {
        world.fail(fault);
        let failed = shop.sell(key).await.unwrap_err();
        assert!(matches!(failed, Rejected::LeaseLost | Rejected::Completion(_)), "{failed:?}");
    }
    assert_eq!(world.rows().await.len(), 2);
}

#[idempotent(key = order, scope = "sell", completion = "joined", engine = joined)]
fn sell_blocking(
    joined: &blocking::JoinedEngine<SqliteTx>,
    order: &str,
    #[tx] tx: &mut SqliteTx,
) -> Result<String, Rejected> {
    tx.execute("INSERT INTO ledger VALUES (?1)", [order]).unwrap();
    Ok(order.to_owned())
}

#[test]
fn ann_1_cmp_7_a_joined_blocking_function_does_the_same() {
    let file = File::new();
    SqliteConfig::new(file.path()).migrate().unwrap();
    let engine = blocking::Engine::new(SqliteStore::open(file.path()).unwrap()).unwrap();
    let source = SqliteTxSource::open(file.path()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tx = source.begin().await.unwrap();
        tx.execute_batch("CREATE TABLE ledger (what TEXT NOT NULL)").unwrap();
        tx.commit_tx().await.unwrap();
    });
    let joined = engine.joined(source).unwrap();
    assert_eq!(sell_blocking(&joined, "tea").unwrap(), "tea");
    assert_eq!(sell_blocking(&joined, "tea").unwrap(), "tea");
}

#[test]
fn cmp_7_a_store_that_cannot_join_is_refused_at_start_up() {
    let file = File::new();
    SqliteConfig::new(file.path()).migrate().unwrap();
    let source = SqliteTxSource::open(file.path()).unwrap();
    let refused = IdempotencyEngine::new(MemoryStore::new()).joined(source).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}
