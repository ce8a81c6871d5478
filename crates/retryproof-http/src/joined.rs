// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GuardedTx`]: the handler's transaction, opened after the grant and ended by the guard, by the
//! status of the answer (CMP-7).

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Extensions, Response};
use retryproof_core::{CompletionResult, Error, HeldLease, JoinedEngine, Payload, Tombstone};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};

use crate::fate::{AnswerFate, Fate};
use crate::guard::Guarded;
use crate::protocol::decide::{NoTx, no_tx};
use crate::response::problem_response;

/// The transaction of a guarded handler. What is written in it commits with the record of the
/// handler's answer, or not at all.
///
/// It is a handle: extracting it opens nothing (ANN-6). [`begin`](Self::begin) opens the
/// transaction at its first call, after the lease was granted. It ends when the handler has
/// answered:
///
/// | the handler | its writes | its record |
/// |---|---|---|
/// | answers with a status below 400 | committed together with the record | the answer |
/// | … too large, or an event stream | committed together with the record | "done, not replayable" |
/// | answers with 400 or above, or over gRPC with a status other than `OK` | rolled back | the answer alone; or gone, where the filter [says so](crate::FilterBuilder::release_on_rollback) |
/// | answers with a response marked `Release` or `Hold` | rolled back | as without a transaction |
/// | panics, or fails | rolled back | gone; the next request runs |
/// | never began it | – | as without a transaction |
///
/// When the commit fails, or the lease was lost meanwhile, the answer is not sent: 500
/// `completion-failed`, and a retry finds out.
///
/// In axum it is an extractor, for any state from which a [`JoinedEngine<T>`] can be taken by
/// `FromRef`:
///
/// ```ignore
/// async fn pay(tx: GuardedTx<SqliteTx>, Json(order): Json<Order>) -> Result<Json<Receipt>, PayError> {
///     let mut tx = tx.begin().await?;
///     tx.execute("INSERT INTO ledger VALUES (?1, ?2)", (&order.account, order.cents))?;
///     Ok(Json(Receipt::of(&order)))
/// }
/// ```
/// In another tower service it comes from the request's extensions: [`GuardedTx::of`].
pub struct GuardedTx<T>(Arc<Shared<T>>);

struct Shared<T> {
    joined: JoinedEngine<T>,
    granted: AtomicBool,
    slot: Arc<Mutex<Slot<T>>>,
}

enum Slot<T> {
    Unopened,
    Open(T),
    Ended,
}

/// The open transaction, to write with.
pub struct OpenTx<T>(OwnedMappedMutexGuard<Slot<T>, T>);

/// Why there is no transaction. As an answer it is a problem of the filter's own, in the form that
/// [`FilterBuilder::rejections`](crate::FilterBuilder::rejections) gives it; fields that the
/// handler adds to it are not sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum TxError {
    /// The database gave none in time, or refused. As an answer: 503, unstored, and the key is
    /// free.
    Unavailable(Error),
    /// Asked for before the lease was granted: an extractor of one's own runs that early. A mistake
    /// of the program.
    NotGranted,
    /// Asked for after the handler had answered. A mistake of the program.
    Ended,
}

impl<T: Send + 'static> GuardedTx<T> {
    /// The transaction of a running request behind the layer; `None` when the request is not
    /// guarded, or has a transaction of another type.
    #[must_use]
    pub fn of(request: &Extensions, joined: &JoinedEngine<T>) -> Option<Self> {
        Self::of_guarded(request.get()?, joined)
    }

    pub(crate) fn of_guarded(running: &Guarded, joined: &JoinedEngine<T>) -> Option<Self> {
        let shared = running.tx(|| {
            let shared = Shared::new(joined);
            shared.granted();
            Arc::new(shared)
        });
        Self::from_shared(shared)
    }

    pub(crate) fn unopened(joined: &JoinedEngine<T>) -> Arc<dyn HandlerTx> {
        Arc::new(Shared::new(joined))
    }

    /// The handle behind the erased one; `None` for a transaction of another type.
    pub(crate) fn from_shared(shared: Arc<dyn HandlerTx>) -> Option<Self> {
        shared.into_any().downcast().ok().map(Self)
    }

    /// The transaction, opened by the first call. While the result is alive, others wait.
    ///
    /// # Errors
    /// [`TxError`], which is an answer too: `tx.begin().await?` in a handler whose error type takes
    /// it.
    ///
    /// # Cancel safety
    /// A drop leaves none open.
    pub async fn begin(&self) -> Result<OpenTx<T>, TxError> {
        if !self.0.granted.load(Ordering::Acquire) {
            return Err(TxError::NotGranted);
        }
        let mut slot = Arc::clone(&self.0.slot).lock_owned().await;
        if matches!(*slot, Slot::Unopened) {
            *slot = Slot::Open(self.0.joined.begin().await.map_err(TxError::Unavailable)?);
        }
        let open = OwnedMutexGuard::try_map(slot, |slot| match slot {
            Slot::Open(tx) => Some(tx),
            Slot::Unopened | Slot::Ended => None,
        });
        open.map(OpenTx).map_err(|_| TxError::Ended)
    }
}

impl<T> Shared<T> {
    fn new(joined: &JoinedEngine<T>) -> Self {
        let slot = Arc::new(Mutex::new(Slot::Unopened));
        Self { joined: joined.clone(), granted: AtomicBool::new(false), slot }
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
            Self::Unavailable(error) => write!(f, "no transaction could be opened: {error}"),
            Self::NotGranted => {
                f.write_str("a guarded transaction begins in the handler, not in an extractor")
            }
            Self::Ended => f.write_str("the guarded transaction ended with the handler's answer"),
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

/// Nothing was written, so the key is free again.
impl Fate for TxError {
    fn fate(&self) -> AnswerFate {
        AnswerFate::Release
    }
}

/// A handler's transaction as the guard sees it, of whatever type.
pub(crate) trait HandlerTx: Send + Sync {
    /// From here on it may be opened.
    fn granted(&self);

    /// Takes the transaction for its end.
    fn take(&self) -> Taken;

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// What the guard finds when the handler has answered.
pub(crate) enum Taken {
    /// The handler did without one.
    None,
    /// To be ended.
    Open(Box<dyn Ending>),
    /// Something that outlives the handler still writes with it.
    Kept,
}

/// What is recorded of an answer.
pub(crate) enum Record {
    Response(Payload),
    Tombstone(Tombstone),
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An open transaction, of whatever type. Dropped, it is rolled back.
pub(crate) trait Ending: Send {
    fn commit(self: Box<Self>, held: HeldLease, record: Record) -> Boxed<CompletionResult>;
    fn roll_back(self: Box<Self>) -> Boxed<()>;
}

impl<T: Send + 'static> HandlerTx for Shared<T> {
    fn granted(&self) {
        self.granted.store(true, Ordering::Release);
    }

    fn take(&self) -> Taken {
        let Ok(mut slot) = self.slot.try_lock() else { return Taken::Kept };
        match std::mem::replace(&mut *slot, Slot::Ended) {
            Slot::Open(tx) => Taken::Open(Box::new((self.joined.clone(), tx))),
            Slot::Unopened | Slot::Ended => Taken::None,
        }
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl<T: Send + 'static> Ending for (JoinedEngine<T>, T) {
    fn commit(self: Box<Self>, held: HeldLease, record: Record) -> Boxed<CompletionResult> {
        let (joined, tx) = *self;
        match record {
            Record::Response(payload) => Box::pin(joined.commit(tx, held, payload)),
            Record::Tombstone(tombstone) => Box::pin(joined.commit_tombstone(tx, held, tombstone)),
        }
    }

    fn roll_back(self: Box<Self>) -> Boxed<()> {
        let (joined, tx) = *self;
        Box::pin(async move { joined.roll_back(tx).await })
    }
}

impl TxError {
    /// What the guard hears; the log hears why.
    fn told(&self) -> NoTx {
        match self {
            Self::Unavailable(error) => {
                tracing::warn!(%error, "no transaction could be opened; nothing was written");
                NoTx::Unavailable
            }
            Self::NotGranted | Self::Ended => {
                tracing::error!("{self}");
                NoTx::Misused
            }
        }
    }

    /// An answer for the guard, which makes the filter's own of it.
    pub(crate) fn answer(&self) -> Response<Bytes> {
        let told = self.told();
        let mut answer = problem_response(&no_tx(told, 0));
        answer.extensions_mut().insert(told);
        self.fate().mark(answer)
    }
}

#[cfg(feature = "axum")]
mod into_response {
    use axum_core::response::{IntoResponse, Response};

    use super::TxError;

    impl IntoResponse for TxError {
        fn into_response(self) -> Response {
            self.answer().map(axum_core::body::Body::from)
        }
    }
}
