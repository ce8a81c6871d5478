// SPDX-License-Identifier: MIT OR Apache-2.0
//! Erases the dialect of a transaction source, so that [`JoinedEngine`](super::JoinedEngine) has
//! only one type parameter: the transaction.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::time::Duration;

use crate::error::Result;
use crate::panics::caught;
use crate::store::{Dialect, OwnedTx, Param, TxPort, TxSource};

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The object-safe form of [`TxSource`] and [`OwnedTx`], without the dialect.
pub(super) trait DynTxSource<T>: Send + Sync {
    fn begin(&self) -> Boxed<'_, T>;
    fn run<'a>(&'a self, tx: &'a mut T, sql: &'a str, params: &'a [Param<'a>]) -> Boxed<'a, u64>;
    fn commit(&self, tx: T) -> Boxed<'static, ()>;
    fn roll_back(&self, tx: T) -> Boxed<'static, ()>;
    fn open_at_most(&self, tx: &T) -> Option<Duration>;
}

/// A source whose dialect is erased.
pub(super) struct ErasedSource<S, D>(S, PhantomData<fn() -> D>);

impl<S, D> ErasedSource<S, D> {
    pub(super) fn new(source: S) -> Self {
        Self(source, PhantomData)
    }
}

impl<D: Dialect, S: TxSource<D>> DynTxSource<S::Tx> for ErasedSource<S, D> {
    fn begin(&self) -> Boxed<'_, S::Tx> {
        Box::pin(async { caught(pin!(async { self.0.begin().await })).await })
    }

    fn run<'a>(
        &'a self,
        tx: &'a mut S::Tx,
        sql: &'a str,
        params: &'a [Param<'a>],
    ) -> Boxed<'a, u64> {
        Box::pin(tx.run_statement(sql, params))
    }

    fn commit(&self, tx: S::Tx) -> Boxed<'static, ()> {
        Box::pin(async { caught(pin!(async { tx.commit_tx().await })).await })
    }

    fn roll_back(&self, tx: S::Tx) -> Boxed<'static, ()> {
        Box::pin(async { caught(pin!(async { tx.roll_back_tx().await })).await })
    }

    fn open_at_most(&self, tx: &S::Tx) -> Option<Duration> {
        tx.open_at_most()
    }
}

/// Makes a transaction usable as a [`TxPort`] through its source.
/// [`JoinedEngine::new`](super::JoinedEngine) has checked that the transaction and the store have
/// the same dialect.
pub(super) struct TxThrough<'a, T> {
    pub(super) source: &'a dyn DynTxSource<T>,
    pub(super) tx: &'a mut T,
}

/// A placeholder for a dialect that `JoinedEngine::new` has already checked.
pub(super) enum CheckedDialect {}

impl Dialect for CheckedDialect {
    const NAME: &'static str = "the store's";
}

impl<T: Send> TxPort<CheckedDialect> for TxThrough<'_, T> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        self.source.run(self.tx, sql, params).await
    }
}
