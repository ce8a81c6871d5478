// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Ledger`]: the application's rows in a database whose transactions a store joins. The cases
//! about joined completions use a ledger (CMP-7).

use std::future::Future;
use std::pin::Pin;

use retryproof_core::store::{Dialect, SharedStore, TxSource};
use retryproof_core::{
    Acquisition, CodecId, CompletionResult, IdempotencyContext, IdempotencyEngine, Identity,
    Payload,
};

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Writes rows in the transactions that a store joins, and counts the committed rows. `T` is the
/// transaction's type.
pub trait Ledger<T>: Send + Sync + 'static {
    /// Writes one row in the transaction.
    ///
    /// # Errors
    /// The driver's error. If a case continues after an error, it does so on purpose.
    fn write(&self, tx: &mut T) -> impl Future<Output = Result<(), String>> + Send;

    /// Makes the database end the transaction, or makes a commit impossible. On MySQL and SQLite, a
    /// plain `ROLLBACK` that bypasses the driver is enough. Errors such as a deadlock on MySQL or
    /// `INSERT OR ROLLBACK` on SQLite have the same effect. On PostgreSQL, the store would not
    /// detect such a `ROLLBACK`, so use a statement that fails, such as `SELECT 1/0`. The case can
    /// write another row afterwards, which must not be committed.
    fn lose(&self, tx: &mut T) -> impl Future<Output = ()> + Send;

    /// Returns the number of rows that another connection sees.
    fn rows(&self) -> impl Future<Output = u64> + Send;
}

/// What the action of a case does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Writes a row and returns a value.
    Write,
    /// Writes a row and fails.
    Fail,
    /// Writes a row, loses its transaction, ignores the loss, writes another row, and returns a
    /// value.
    GoOn,
}

/// A source of transactions and its ledger, in type-erased form.
pub(crate) trait JoinedLedger: Send + Sync {
    /// Makes one joined call. Returns whether the engine reported the call's record as committed.
    fn call(&self, store: SharedStore, id: Identity, deed: Deed) -> Boxed<'_, bool>;
    fn rows(&self) -> Boxed<'_, u64>;
}

pub(crate) struct Of<S, L, D> {
    pub(crate) source: S,
    pub(crate) ledger: L,
    pub(crate) dialect: std::marker::PhantomData<fn() -> D>,
}

impl<D, S, L> JoinedLedger for Of<S, L, D>
where
    D: Dialect,
    S: TxSource<D> + Clone,
    L: Ledger<S::Tx>,
{
    fn call(&self, store: SharedStore, id: Identity, deed: Deed) -> Boxed<'_, bool> {
        Box::pin(async move {
            let engine = IdempotencyEngine::new(store);
            let joined = engine
                .joined(self.source.clone())
                .expect("the store should join the source's transactions");
            let ctx = IdempotencyContext::builder(id.scope().clone(), id.key().expose());
            let Ok(Acquisition::Granted(held)) =
                engine.try_acquire(&ctx.build().expect("valid")).await
            else {
                panic!("the key should be free")
            };
            let mut tx = joined.begin().await.expect("the transaction should begin");
            self.ledger.write(&mut tx).await.expect("the row should be written");
            if deed == Deed::Fail {
                joined.roll_back(tx).await;
                held.release().await.expect("the key should be freed");
                return false;
            }
            if deed == Deed::GoOn {
                self.ledger.lose(&mut tx).await;
                let _ = self.ledger.write(&mut tx).await;
            }
            let value = Payload::new(CodecId::BYTES, 1, b"paid");
            matches!(
                joined.commit(tx, held, value).await,
                CompletionResult::Recorded | CompletionResult::Tombstoned(_)
            )
        })
    }

    fn rows(&self) -> Boxed<'_, u64> {
        Box::pin(self.ledger.rows())
    }
}
