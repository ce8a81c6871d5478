// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GuardedTx`]: the handler's transaction. The handler opens the transaction after the grant. The
//! guard commits it or rolls it back, depending on how the handler ends (CMP-7).

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Extensions, Response};
use retryproof_core::{CompletionResult, Error, HeldLease, JoinedEngine};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};

use crate::call::{
    CallMark, CallTransaction, CompletionValue, OpenTransaction, PreGrant, TakenTransaction,
};
use crate::fate::{AnswerFate, Fate};
use crate::protocol::decide::{NoTx, no_tx};
use crate::response::problem_response;

/// The transaction of a guarded handler. The transaction's writes commit together with the record
/// of the handler's response, or not at all.
///
/// A `GuardedTx` is only a handle, so extracting it opens no transaction (ANN-6). After the grant,
/// the first call to [`begin`](Self::begin) opens the transaction. The transaction ends when the
/// handler returns:
///
/// | the handler | its writes | its record |
/// |---|---|---|
/// | returns a status below 400 | committed together with the record | the response |
/// | returns a status below 400 with a body that is too large, or an event stream | committed together with the record | "done, not replayable" |
/// | returns a status of 400 or above, or over gRPC a status other than `OK` | rolled back | only the response; with [`release_on_rollback`](crate::FilterBuilder::release_on_rollback), the key is free again |
/// | returns a response marked `Release` or `Hold` | rolled back | as without a transaction |
/// | panics, or its service fails | rolled back | deleted; the next request runs |
/// | never began its transaction | – | as without a transaction |
///
/// If the commit fails, or the lease is lost before the commit, the response is not sent. Instead,
/// the client gets 500 `completion-failed`. A retry gets the recorded response, or runs the work if
/// nothing was recorded.
///
/// In axum, a `GuardedTx` is an extractor; the router's state must provide a [`JoinedEngine<T>`]
/// through `FromRef`:
///
/// ```ignore
/// async fn pay(tx: GuardedTx<SqliteTx>, Json(order): Json<Order>) -> Result<Json<Receipt>, PayError> {
///     let mut tx = tx.begin().await?;
///     tx.execute("INSERT INTO ledger VALUES (?1, ?2)", (&order.account, order.cents))?;
///     Ok(Json(Receipt::of(&order)))
/// }
/// ```
/// In any other tower service, [`GuardedTx::of`] takes the handle from the request's extensions.
pub struct GuardedTx<T>(Arc<TransactionCell<T>>);

struct TransactionCell<T> {
    joined: JoinedEngine<T>,
    granted: AtomicBool,
    state: Arc<Mutex<TransactionState<T>>>,
}

enum TransactionState<T> {
    Unopened,
    Open(T),
    Ended,
}

/// The open transaction, for the handler's writes.
pub struct OpenTx<T>(OwnedMappedMutexGuard<TransactionState<T>, T>);

/// Why a handler cannot get its transaction. If the handler returns this error as its response, the
/// filter sends a problem response of its own, in the format that
/// [`FilterBuilder::rejections`](crate::FilterBuilder::rejections) sets. Header fields that the
/// handler added are not sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum TxError {
    /// The database refused to open a transaction, or did not open it in time. If the handler
    /// returns this error, the client gets a 503, which is not stored, and the key becomes free.
    Unavailable(Error),
    /// A custom extractor called `begin` before the lease was granted. This is a bug in the
    /// application.
    NotGranted,
    /// `begin` was called after the handler had returned. This is a bug in the application.
    Ended,
}

impl<T: Send + 'static> GuardedTx<T> {
    /// Returns the transaction of the request that has these extensions; `None` if the request is
    /// not guarded, or already has a transaction of a different type.
    #[must_use]
    pub fn of(request: &Extensions, joined: &JoinedEngine<T>) -> Option<Self> {
        Self::of_call(request.get()?, joined)
    }

    fn of_call(mark: &CallMark, joined: &JoinedEngine<T>) -> Option<Self> {
        let tx = mark.tx_or(|| {
            let cell = TransactionCell::new(joined.clone());
            cell.grant();
            Arc::new(cell)
        });
        Self::from_erased(tx)
    }

    /// Converts a handle to its concrete type; `None` if the transaction has a different type.
    fn from_erased(tx: Arc<dyn CallTransaction>) -> Option<Self> {
        tx.into_any().downcast().ok().map(Self)
    }

    /// Returns the transaction, which the first call opens. While a returned value is alive,
    /// further calls wait.
    ///
    /// # Errors
    /// [`TxError`], which is also a response: use `tx.begin().await?` in a handler whose error type
    /// implements `From<TxError>`.
    ///
    /// # Cancel safety
    /// If the future is dropped while it opens the transaction, no transaction stays open. A
    /// transaction that an earlier call opened stays open until the handler returns.
    pub async fn begin(&self) -> Result<OpenTx<T>, TxError> {
        if !self.0.granted.load(Ordering::Acquire) {
            return Err(TxError::NotGranted);
        }
        let mut state = Arc::clone(&self.0.state).lock_owned().await;
        if matches!(*state, TransactionState::Unopened) {
            *state =
                TransactionState::Open(self.0.joined.begin().await.map_err(TxError::Unavailable)?);
        }
        let open = OwnedMutexGuard::try_map(state, |state| match state {
            TransactionState::Open(tx) => Some(tx),
            TransactionState::Unopened | TransactionState::Ended => None,
        });
        open.map(OpenTx).map_err(|_| TxError::Ended)
    }
}

impl PreGrant {
    /// Returns the call's transaction, which cannot begin before the grant (CMP-7); `None` if
    /// another argument has a transaction of a different type.
    #[must_use]
    pub fn guarded_tx<T: Send + 'static>(
        &self,
        joined: impl FnOnce() -> JoinedEngine<T>,
    ) -> Option<GuardedTx<T>> {
        GuardedTx::from_erased(self.tx(|| Arc::new(TransactionCell::new(joined()))))
    }
}

impl CallMark {
    /// Returns the call's transaction (CMP-7); `None` if the call has a transaction of a different
    /// type.
    #[must_use]
    pub fn tx<T: Send + 'static>(&self, joined: &JoinedEngine<T>) -> Option<GuardedTx<T>> {
        GuardedTx::of_call(self, joined)
    }
}

impl<T> TransactionCell<T> {
    fn new(joined: JoinedEngine<T>) -> Self {
        let state = Arc::new(Mutex::new(TransactionState::Unopened));
        Self { joined, granted: AtomicBool::new(false), state }
    }
}

impl<T> Clone for GuardedTx<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for GuardedTx<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedTx").finish_non_exhaustive()
    }
}

impl<T> Deref for OpenTx<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for OpenTx<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> fmt::Debug for OpenTx<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenTx").finish_non_exhaustive()
    }
}

impl fmt::Display for TxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(error) => {
                write!(f, "the database could not open a transaction: {error}")
            }
            Self::NotGranted => f.write_str(
                "a guarded transaction cannot begin in an extractor; begin the transaction in the \
                 handler",
            ),
            Self::Ended => f.write_str(
                "a guarded transaction was used after its handler had returned; the transaction \
                 had already ended",
            ),
        }
    }
}

impl std::error::Error for TxError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unavailable(error) => Some(error),
            Self::NotGranted | Self::Ended => None,
        }
    }
}

/// A `TxError` frees the key, because the handler could not write in its transaction.
impl Fate for TxError {
    fn fate(&self) -> AnswerFate {
        AnswerFate::Release
    }
}

impl<T: Send + 'static> CallTransaction for TransactionCell<T> {
    fn grant(&self) {
        self.granted.store(true, Ordering::Release);
    }

    fn take(&self) -> TakenTransaction {
        let Ok(mut state) = self.state.try_lock() else { return TakenTransaction::Kept };
        match std::mem::replace(&mut *state, TransactionState::Ended) {
            TransactionState::Open(tx) => {
                TakenTransaction::Open(Box::new((self.joined.clone(), tx)))
            }
            TransactionState::Unopened | TransactionState::Ended => TakenTransaction::None,
        }
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl<T: Send + 'static> OpenTransaction for (JoinedEngine<T>, T) {
    fn commit(
        self: Box<Self>,
        lease: HeldLease,
        value: CompletionValue,
    ) -> Pin<Box<dyn Future<Output = CompletionResult> + Send>> {
        let (joined, tx) = *self;
        match value {
            CompletionValue::Response(payload) => Box::pin(joined.commit(tx, lease, payload)),
            CompletionValue::Tombstone(tombstone) => {
                Box::pin(joined.commit_tombstone(tx, lease, tombstone))
            }
        }
    }

    fn roll_back(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (joined, tx) = *self;
        Box::pin(async move { joined.roll_back(tx).await })
    }
}

impl TxError {
    /// Logs the error, and returns its kind, which determines the guard's response.
    fn log(&self) -> NoTx {
        match self {
            Self::Unavailable(error) => {
                tracing::warn!(%error, "the database could not open a transaction for a request, \
                                        so nothing was written");
                NoTx::Unavailable
            }
            Self::NotGranted | Self::Ended => {
                tracing::error!("{self}");
                NoTx::Misused
            }
        }
    }

    /// Creates a response whose extensions carry the kind of the error to the guard. The guard
    /// replaces this response with the filter's own.
    pub(crate) fn to_response(&self) -> Response<Bytes> {
        let what = self.log();
        let mut response = problem_response(&no_tx(what, 0));
        response.extensions_mut().insert(what);
        self.fate().mark(response)
    }
}
