// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Books`]: a toy database whose transactions the [`Flawed`] store joins.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use retryproof_core::store::{
    Completion, Dialect, FencedWrite, Join, JoinStatement, OwnedTx, Param, TxPort, TxSource,
};
use retryproof_core::{Blob, Error, ErrorKind, IdempotencyStore as _, Identity, OwnerId, Result};
use retryproof_testkit::Ledger;

use crate::flawed::{Defect, Flawed};

/// The toy database's dialect.
pub(crate) enum Toy {}

impl Dialect for Toy {
    const NAME: &'static str = "toy";
}

impl Join for Flawed {
    type Dialect = Toy;

    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a> {
        let params = vec![
            Param::Bytes(id.scope().as_str().as_bytes()),
            Param::Bytes(id.key().expose().as_bytes()),
            Param::Bytes(owner.as_bytes()),
            Param::Int(i64::try_from(done.ttl.as_micros()).expect("it fits")),
            Param::Bytes(&done.value),
        ];
        JoinStatement::new("complete", params)
    }

    fn committed(&self, _id: &Identity) {}
}

/// The database: committed rows, and a handle on the records.
#[derive(Clone)]
pub(crate) struct Books {
    store: Arc<Flawed>,
    rows: Arc<AtomicU64>,
}

pub(crate) struct Tx {
    books: Books,
    rows: u64,
    record: Option<(Identity, OwnerId, Completion)>,
    lost: bool,
}

impl Books {
    pub(crate) fn of(store: Flawed) -> Self {
        Self { store: Arc::new(store), rows: Arc::default() }
    }
}

impl TxSource<Toy> for Books {
    type Tx = Tx;

    async fn begin(&self) -> Result<Tx> {
        Ok(Tx { books: self.clone(), rows: 0, record: None, lost: false })
    }
}

impl Ledger<Tx> for Books {
    async fn write(&self, tx: &mut Tx) -> Result<(), String> {
        tx.rows += 1;
        tx.autocommit().await;
        Ok(())
    }

    async fn lose(&self, tx: &mut Tx) {
        (tx.rows, tx.lost) = (0, true);
    }

    async fn rows(&self) -> u64 {
        self.rows.load(Ordering::SeqCst)
    }
}

impl Tx {
    /// With `JoinOutlivesItsTransaction`, each statement after the transaction's loss is committed
    /// separately.
    async fn autocommit(&mut self) {
        if self.lost && self.books.store.has(Defect::JoinOutlivesItsTransaction) {
            self.apply().await;
        }
    }

    async fn apply(&mut self) {
        self.books.rows.fetch_add(std::mem::take(&mut self.rows), Ordering::SeqCst);
        if let Some((id, owner, done)) = self.record.take()
            && !self.books.store.has(Defect::JoinForgetsTheRecord)
        {
            let done = self.books.store.complete(&id, owner, &done).await;
            assert!(matches!(
                done,
                Ok(FencedWrite::Applied | FencedWrite::AlreadyApplied | FencedWrite::NotOwner)
            ));
        }
    }
}

impl TxPort<Toy> for Tx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        assert_eq!(sql, "complete");
        let [
            Param::Bytes(scope),
            Param::Bytes(key),
            Param::Bytes(owner),
            Param::Int(ttl),
            Param::Bytes(value),
        ] = *params
        else {
            panic!("{params:?}")
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let scope = retryproof_core::Scope::new(text(scope)).expect("a scope");
        let id = Identity::new(scope, retryproof_core::Key::new(text(key)).expect("a key"));
        let Some(holder) = self.books.store.holder(&id).filter(|holder| holder.as_bytes() == owner)
        else {
            return Ok(0);
        };
        let ttl = Duration::from_micros(ttl.unsigned_abs());
        self.record = Some((id, holder, Completion::new(Blob::from(value.to_vec()), ttl, None)));
        self.autocommit().await;
        Ok(1)
    }
}

impl OwnedTx<Toy> for Tx {
    async fn commit_tx(mut self) -> Result<()> {
        if self.lost && !self.books.store.has(Defect::JoinOutlivesItsTransaction) {
            return Err(Error::new(ErrorKind::Unexpected, "the transaction is gone"));
        }
        self.apply().await;
        Ok(())
    }

    async fn roll_back_tx(mut self) -> Result<()> {
        if self.books.store.has(Defect::JoinKeepsTheWrites) {
            self.record = None;
            self.apply().await;
        }
        Ok(())
    }
}
