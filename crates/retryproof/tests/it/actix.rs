// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attribute in actix-web: the recorded expansion, what it mounts, and a transaction that its
//! record joins (ANN-3, ANN-6, CMP-7).

mod prelude {
    use std::sync::Mutex;

    pub(super) use actix_web::{HttpRequest, web};
    use serde::{Deserialize, Serialize};

    #[derive(Deserialize)]
    pub(super) struct Order {
        pub(super) id: u64,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    pub(super) struct Receipt {
        pub(super) order: u64,
        pub(super) run: usize,
    }

    /// Counts the orders that were written.
    #[derive(Default)]
    pub(super) struct Ledger(Mutex<Vec<(u64, bool)>>);

    impl Ledger {
        pub(super) fn charge(&self, order: &Order, tenant: bool) -> Receipt {
            let mut lines = self.0.lock().expect("no panic while locked");
            lines.push((order.id, tenant));
            Receipt { order: order.id, run: lines.len() }
        }
    }
}

#[path = "../expand/actix_endpoint.out.rs"]
mod recorded;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::test::{self, TestRequest};
use actix_web::{App, HttpResponse, ResponseError};
use prelude::*;
use retryproof::actix::{GuardedTx, Idempotency, TxError, idempotent};
use retryproof::http::{IdempotencyFilter, Policy};
use retryproof::sqlite::{SqliteConfig, SqliteStore, SqliteTx, SqliteTxSource};
use retryproof::store::{OwnedTx as _, TxSource as _};
use retryproof::{IdempotencyEngine, JoinedEngine, MemoryStore};

fn filter(engine: &IdempotencyEngine) -> IdempotencyFilter {
    IdempotencyFilter::builder(engine.clone()).callers_share_keys().build().expect("valid settings")
}

fn post(path: &str, key: &str, body: &str) -> TestRequest {
    TestRequest::post()
        .uri(path)
        .insert_header(("idempotency-key", key))
        .insert_header(("content-type", "application/json"))
        .set_payload(body.to_owned())
}

/// Sends a request. Returns the answer's status, whether it is a replay, and its body.
async fn send<S, R, B>(app: &S, request: R) -> (StatusCode, bool, String)
where
    S: Service<R, Response = ServiceResponse<B>, Error = actix_web::Error>,
    B: MessageBody,
{
    let answer = test::call_service(app, request).await;
    let (status, replayed) =
        (answer.status(), answer.headers().contains_key("idempotent-replayed"));
    let body = test::read_body(answer).await;
    (status, replayed, String::from_utf8(body.to_vec()).expect("text"))
}

#[actix_web::test]
async fn ann_3_a_recorded_endpoint_of_actix_is_the_guarded_handler() {
    assert_eq!(recorded::pay::POLICY.scope(), Some("payments"));
    assert_eq!(recorded::pay::POLICY.wait_timeout(), Some(Duration::from_millis(2_500)));
    let ledger = web::Data::new(Ledger::default());
    let alone = recorded::pay::call(
        ledger.clone(),
        web::Json(Order { id: 1 }),
        TestRequest::default().to_http_request(),
    );
    assert_eq!(alone.await.expect("no error").0, Receipt { order: 1, run: 1 });

    let filter = filter(&IdempotencyEngine::new(MemoryStore::new()));
    let app = App::new()
        .app_data(ledger)
        .route("/payments", web::post().to(recorded::pay(filter.clone())))
        .route("/ping", web::post().to(recorded::ping(filter)));
    let app = test::init_service(app).await;
    for replayed in [false, true] {
        let answer = send(&app, post("/payments", "k", "{\"id\":7}").to_request()).await;
        assert_eq!(answer, (StatusCode::OK, replayed, "{\"order\":7,\"run\":2}".to_owned()));
        let answer = send(&app, post("/ping", "k", "").to_request()).await;
        assert_eq!(answer, (StatusCode::OK, replayed, "pong".to_owned()));
    }
    assert_eq!(
        send(&app, post("/payments", "", "{\"id\":7}").to_request()).await.0,
        StatusCode::BAD_REQUEST
    );
}

/// A file that is removed with its test.
struct File(PathBuf);

impl File {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("retryproof-actix-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a writable folder");
        Self(folder)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug)]
struct Broke;

impl std::fmt::Display for Broke {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("broke")
    }
}

impl ResponseError for Broke {
    fn status_code(&self) -> StatusCode {
        StatusCode::PAYMENT_REQUIRED
    }
}

/// Writes a line, and then fails if the line is `broke`.
#[idempotent(http, scope = "joined")]
async fn write(tx: GuardedTx<SqliteTx>, line: String) -> actix_web::Result<HttpResponse> {
    let tx = tx.begin().await?;
    tx.execute("INSERT INTO lines VALUES (?1)", [&line])
        .map_err(actix_web::error::ErrorInternalServerError)?;
    if line == "broke" { Err(Broke.into()) } else { Ok(HttpResponse::Created().body(line)) }
}

async fn wrapped(tx: GuardedTx<SqliteTx>, line: String) -> actix_web::Result<HttpResponse> {
    write::call(tx, line).await
}

#[actix_web::test]
async fn cmp_7_a_handler_of_actix_joins_by_taking_the_transaction() {
    let file = File::new();
    let path = file.0.join("lines.db");
    SqliteConfig::new(&path).migrate().expect("a file");
    let source = SqliteTxSource::open(&path).expect("a connection");
    let setup = source.begin().await.expect("a transaction");
    setup.execute_batch("CREATE TABLE lines (line TEXT)").expect("a table");
    setup.commit_tx().await.expect("a commit");
    let engine = IdempotencyEngine::new(SqliteStore::open(&path).expect("a store"));
    let joined: JoinedEngine<SqliteTx> =
        engine.joined(source.clone()).expect("a store that can join");

    let filter = filter(&engine);
    let app = App::new()
        .app_data(web::Data::new(joined.clone()))
        .route("/write", web::post().to(write(filter.clone())))
        .service(
            web::resource("/wrapped")
                .wrap(Idempotency::new(&filter, Policy::new("wrapped")))
                .to(wrapped),
        );
    let app = test::init_service(app).await;
    for path in ["/write", "/wrapped"] {
        for replayed in [false, true] {
            let paid = send(&app, post(path, "k1", "paid").to_request()).await;
            assert_eq!(paid, (StatusCode::CREATED, replayed, "paid".to_owned()), "{path}");
            let broke = send(&app, post(path, "k2", "broke").to_request()).await;
            assert_eq!(
                broke,
                (StatusCode::PAYMENT_REQUIRED, replayed, "broke".to_owned()),
                "{path}"
            );
        }
    }
    let look = source.begin().await.expect("a transaction");
    let lines = look.query_row("SELECT count(*), min(line) = max(line) FROM lines", [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?))
    });
    assert_eq!(lines.expect("a row"), (2, true), "each paid line once, and no other");
    drop(look);

    let unset = test::init_service(App::new().route("/write", web::post().to(write(filter)))).await;
    let refused = send(&unset, post("/write", "k3", "paid").to_request()).await;
    assert_eq!(
        refused.0,
        StatusCode::INTERNAL_SERVER_ERROR,
        "no source of transactions in the app's data"
    );
}

#[idempotent(http, scope = "stuck")]
async fn stuck() -> Result<HttpResponse, TxError> {
    Err(TxError(retryproof::http::TxError::Unavailable(retryproof::Error::unavailable("away"))))
}

#[actix_web::test]
async fn cmp_7_no_transaction_is_an_answer_that_leaves_the_key_free() {
    use retryproof::actix::WithFate as _;
    use retryproof::http::AnswerFate;

    let error =
        TxError(retryproof::http::TxError::Unavailable(retryproof::Error::unavailable("away")));
    let answer = HttpResponse::from_error(error);
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.extensions().get::<AnswerFate>(), Some(&AnswerFate::Release));
    assert!(answer.headers().contains_key("retry-after"));
    let filter = filter(&IdempotencyEngine::new(MemoryStore::new())).with_rejections(|problem| {
        axum::http::Response::builder()
            .status(529)
            .body(problem.code.to_string().into())
            .expect("valid")
    });
    let app = test::init_service(App::new().route("/stuck", web::post().to(stuck(filter)))).await;
    let own = send(&app, post("/stuck", "k", "").to_request()).await;
    assert_eq!(
        (own.0.as_u16(), &*own.2),
        (529, "store-unavailable"),
        "HTTP-11: in the filter's own form"
    );
    let held = HttpResponse::Ok().finish().with_fate(AnswerFate::Hold);
    assert_eq!(held.extensions().get::<AnswerFate>(), Some(&AnswerFate::Hold));
}
