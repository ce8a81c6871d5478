// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transaction of a handler (CMP-7), on a toy database: records in a memory store, rows in a
//! list. The tests of the crate `retryproof` do the same on SQLite, with every way to end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::post as on_post;
use http::StatusCode;
use parking_lot::Mutex;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, Dialect, FencedWrite, Join, JoinStatement, OwnedTx,
    Param, Peeked, StoreProfile, TxPort, TxSource,
};
use retryproof_core::{
    FencingToken, IdempotencyEngine, IdempotencyStore, Identity, OwnerId, Result, SharedStore,
};
use retryproof_http::{GuardedTx, IdempotencyFilter};
use retryproof_memory::MemoryStore;

use crate::world::{STD, post, send};

enum Toy {}

impl Dialect for Toy {
    const NAME: &'static str = "toy";
}

#[derive(Debug, Clone, Default)]
struct Db(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    records: MemoryStore,
    rows: Mutex<Vec<String>>,
    /// The completion whose statement is about to run.
    next: Mutex<Option<(Identity, OwnerId, Completion)>>,
}

impl IdempotencyStore for Db {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
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
        self.0.records.extend(id, owner, lease).await
    }
    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.0.records.complete(id, owner, done).await
    }
    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.0.records.release(id, owner).await
    }
    fn profile(&self) -> StoreProfile {
        StoreProfile::new("toy")
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
        *self.0.next.lock() = Some((id.clone(), *owner, done.clone()));
        JoinStatement::new("UPDATE toy", Vec::new())
    }

    fn committed(&self, _: &Identity) {}
}

/// A transaction. Its rows and its completion take effect at the commit.
struct Tx {
    db: Db,
    rows: Vec<String>,
    completion: Option<(Identity, OwnerId, Completion)>,
}

impl TxSource<Toy> for Db {
    type Tx = Tx;

    async fn begin(&self) -> Result<Tx> {
        Ok(Tx { db: self.clone(), rows: Vec::new(), completion: None })
    }
}

impl TxPort<Toy> for Tx {
    async fn run_statement(&mut self, _: &str, _: &[Param<'_>]) -> Result<u64> {
        self.completion = self.db.0.next.lock().take();
        Ok(1)
    }
}

impl OwnedTx<Toy> for Tx {
    async fn commit_tx(self) -> Result<()> {
        if let Some((id, owner, done)) = &self.completion {
            let written = self.db.complete(id, *owner, done).await?;
            assert_eq!(written, FencedWrite::Applied);
        }
        self.db.0.rows.lock().extend(self.rows);
        Ok(())
    }

    async fn roll_back_tx(self) -> Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_7_the_writes_of_a_handler_are_committed_unless_its_response_is_an_error() {
    let db = Db::default();
    let engine = IdempotencyEngine::new(SharedStore::builder(db.clone()).with_join().build());
    let joined = engine.joined(db.clone()).expect("the store joins transactions");
    let filter = IdempotencyFilter::builder(engine).callers_share_keys().build().expect("valid");
    let order = async |tx: GuardedTx<Tx>, status: String| {
        tx.begin().await.expect("a transaction").rows.push(status.clone());
        status.parse::<StatusCode>().expect("a status")
    };
    let app =
        Router::new().route("/order", on_post(order).layer(filter.guard(STD))).with_state(joined);
    for status in ["201", "402"] {
        for replayed in [false, true] {
            let answer = send(&app, post("/order", status, status)).await;
            assert_eq!((answer.status.as_str(), answer.is_replay()), (status, replayed));
        }
    }
    assert_eq!(*db.0.rows.lock(), ["201"]);
}
