// SPDX-License-Identifier: MIT OR Apache-2.0
//! A method whose writes are one commit with the record of its answer (CMP-7), on SQLite.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use grpc_payments::client::{Client, is_replay};
use grpc_payments::proto::{
    ChargeRequest, HISTORY, HistoryRequest, Payments, PaymentsServer, Receipt, Receipts,
};
use retryproof::http::grpc::FATE;
use retryproof::http::{GuardedTx, IdempotencyFilter};
use retryproof::sqlite::{SqliteConfig, SqliteStore, SqliteTx, SqliteTxSource};
use retryproof::store::{OwnedTx as _, TxSource as _};
use retryproof::{IdempotencyEngine, JoinedEngine};
use tokio::net::TcpListener;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataValue;
use tonic::service::LayerExt as _;
use tonic::transport::Server;
use tonic::{Code, Extensions, Request, Response, Status};

use crate::world::{NO_WAIT, charge, client, in_time};

/// A file that is removed with its test.
struct File(PathBuf);

impl File {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("retryproof-grpc-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("ledger.db")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A service that writes first, and then answers as the account's name says.
#[derive(Clone)]
struct Book {
    joined: JoinedEngine<SqliteTx>,
    runs: Arc<AtomicUsize>,
}

impl Book {
    async fn enter(&self, guarded: &Extensions, account: &str) -> Result<u64, Status> {
        let number = self.runs.fetch_add(1, Ordering::SeqCst) as u64 + 1;
        let tx = GuardedTx::of(guarded, &self.joined).expect("the method is guarded");
        let tx = tx.begin().await.map_err(|error| Status::unavailable(error.to_string()))?;
        tx.execute("INSERT INTO ledger VALUES (?1)", [account]).expect("written");
        Ok(number)
    }
}

impl Payments for Book {
    async fn charge(&self, request: Request<ChargeRequest>) -> Result<Response<Receipt>, Status> {
        let (_, guarded, ChargeRequest { account, cents }) = request.into_parts();
        let number = self.enter(&guarded, &account).await?;
        match account.as_str() {
            "fails" => Err(Status::internal(format!("half done in run {number}"))),
            "released" => {
                let mut status = Status::unavailable("nothing happened");
                status.metadata_mut().insert(FATE, MetadataValue::from_static("release"));
                Err(status)
            }
            _ => Ok(Response::new(Receipt { number, account, cents })),
        }
    }

    /// Sends as many receipts as the account's name has characters, and an error after them if the
    /// name ends in a `!`. The account "no" is refused at once.
    async fn history(
        &self,
        request: Request<HistoryRequest>,
    ) -> Result<Response<Receipts>, Status> {
        let (_, guarded, HistoryRequest { account }) = request.into_parts();
        let number = self.enter(&guarded, &account).await?;
        if account == "no" {
            return Err(Status::failed_precondition("refused at once"));
        }
        let receipts = account
            .clone()
            .chars()
            .map(move |letter| match letter {
                '!' => Err(Status::internal("refused at the end")),
                _ => Ok(Receipt { number, account: account.clone(), cents: 1 }),
            })
            .collect::<Vec<_>>();
        Ok(Response::new(Box::pin(tokio_stream::iter(receipts))))
    }
}

struct World {
    client: Client,
    runs: Arc<AtomicUsize>,
    source: SqliteTxSource,
    _file: File,
}

impl World {
    async fn new(streaming: bool) -> Self {
        let file = File::new();
        SqliteConfig::new(file.path()).migrate().expect("migrated");
        let source = SqliteTxSource::open(file.path()).expect("opened");
        let tx = source.begin().await.expect("a transaction");
        tx.execute_batch("CREATE TABLE ledger (what TEXT NOT NULL)").expect("a table");
        tx.commit_tx().await.expect("committed");
        let engine = IdempotencyEngine::new(SqliteStore::open(file.path()).expect("opened"));
        let joined = engine.joined(source.clone()).expect("it can join");
        let filter = IdempotencyFilter::builder(engine)
            .callers_share_keys()
            .build()
            .expect("valid settings");
        let runs = Arc::<AtomicUsize>::default();
        let mut guard = filter.grpc(NO_WAIT);
        if streaming {
            guard = guard.streaming(HISTORY);
        }
        let service =
            guard.named_layer(PaymentsServer::new(Book { joined, runs: Arc::clone(&runs) }));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(
            Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Self { client: client(address).await, runs, source, _file: file }
    }

    async fn rows(&self) -> Vec<String> {
        let tx = self.source.begin().await.expect("a transaction");
        let mut statement = tx.prepare("SELECT what FROM ledger ORDER BY rowid").expect("a table");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.map(|row| row.expect("a row")).collect()
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Returns how many receipts arrive, and the status that ends them.
    async fn history(&mut self, account: &str) -> (usize, Code) {
        let mut stream = match in_time(self.client.history(account, account)).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return (0, status.code()),
        };
        let mut receipts = 0;
        while let Some(receipt) = in_time(stream.next()).await {
            match receipt {
                Ok(_) => receipts += 1,
                Err(status) => return (receipts, status.code()),
            }
        }
        (receipts, Code::Ok)
    }
}

#[tokio::test]
async fn cmp_7_a_call_that_succeeds_commits_its_writes_with_its_record() {
    let mut world = World::new(false).await;
    for replayed in [false, true] {
        let answer = in_time(world.client.charge("k", &charge("alice", 7))).await.expect("OK");
        assert_eq!((answer.get_ref().number, is_replay(&answer)), (1, replayed));
        assert_eq!(world.rows().await, ["alice"]);
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn cmp_7_a_call_that_fails_takes_its_writes_back_and_its_status_is_recorded() {
    let mut world = World::new(false).await;
    for replayed in [false, true] {
        let status =
            in_time(world.client.charge("k", &charge("fails", 7))).await.expect_err("refused");
        assert_eq!((status.code(), status.message()), (Code::Internal, "half done in run 1"));
        assert_eq!(status.metadata().contains_key("idempotent-replayed"), replayed);
        assert!(
            world.rows().await.is_empty(),
            "the half-done writes were rolled back with the status"
        );
    }
    assert_eq!(world.runs(), 1);
    for run in [2, 3] {
        in_time(world.client.charge("l", &charge("released", 7))).await.expect_err("refused");
        assert_eq!((world.runs(), world.rows().await.len()), (run, 0));
    }
}

#[tokio::test]
async fn cmp_7_a_status_in_the_trailers_counts_and_a_stream_commits_before_it_has_one() {
    let mut world = World::new(false).await;
    for account in ["no", "!", "x!"] {
        let first = world.history(account).await;
        assert!(first.1 != Code::Ok, "{account}: {first:?}");
        assert_eq!(world.history(account).await, first, "{account} is replayed");
        assert!(world.rows().await.is_empty(), "{account}");
    }
    assert_eq!(world.history("x").await, (1, Code::Ok));
    assert_eq!(world.rows().await, ["x"]);
    // A second message turns the answer into a stream, and the guard commits without waiting for
    // the end of a stream.
    assert_eq!(world.history("xx!").await, (2, Code::Internal));
    assert_eq!(world.history("xx!").await, (0, Code::AlreadyExists));
    assert_eq!(world.rows().await, ["x", "xx!"]);
}

#[tokio::test]
async fn cmp_7_a_named_stream_commits_when_it_answers_unless_that_answer_is_an_error() {
    let mut world = World::new(true).await;
    for _ in 0..2 {
        assert_eq!(
            world.history("no").await,
            (0, Code::FailedPrecondition),
            "recorded and replayed"
        );
        assert!(world.rows().await.is_empty());
    }
    assert_eq!(world.runs(), 1);
    assert_eq!(world.history("x!").await, (1, Code::Internal));
    assert_eq!(world.history("x!").await, (0, Code::AlreadyExists));
    assert_eq!(world.rows().await, ["x!"]);
}
