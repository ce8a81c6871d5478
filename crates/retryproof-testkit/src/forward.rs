// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`forward!`](crate::forward): the calls that a wrapper passes on unchanged.

/// Generates methods of [`IdempotencyStore`](crate::retryproof_core::IdempotencyStore) that pass
/// the call on to a field. Use the macro inside the `impl` block of a wrapper, for the methods that
/// the wrapper does not change. A method that is neither listed nor written is a compile error.
///
/// ```
/// use retryproof_core::store::{AcquireRequest, Acquired};
/// use retryproof_core::{Error, IdempotencyEngine, IdempotencyStore, Identity, Result, SharedStore};
/// use retryproof_memory::MemoryStore;
///
/// /// A store that grants nothing.
/// #[derive(Debug)]
/// struct Closed {
///     inner: MemoryStore,
/// }
///
/// impl IdempotencyStore for Closed {
///     retryproof_testkit::forward! {
///         inner: peek, wait_for_change, extend, complete, release, profile
///     }
///
///     async fn acquire(&self, _: &Identity, _: &AcquireRequest) -> Result<Acquired> {
///         Err(Error::unavailable("closed"))
///     }
/// }
///
/// let closed = Closed { inner: MemoryStore::new() };
/// let engine = IdempotencyEngine::new(SharedStore::new(closed));
/// ```
#[macro_export]
macro_rules! forward {
    ($inner:tt: $($method:ident),+ $(,)?) => {
        $($crate::forward!(@$method $inner);)+
    };
    (@acquire $inner:tt) => {
        async fn acquire(
            &self,
            id: &$crate::retryproof_core::Identity,
            req: &$crate::retryproof_core::store::AcquireRequest,
        ) -> $crate::retryproof_core::Result<$crate::retryproof_core::store::Acquired> {
            self.$inner.acquire(id, req).await
        }
    };
    (@peek $inner:tt) => {
        async fn peek(
            &self,
            id: &$crate::retryproof_core::Identity,
        ) -> $crate::retryproof_core::Result<$crate::retryproof_core::store::Peeked> {
            self.$inner.peek(id).await
        }
    };
    (@wait_for_change $inner:tt) => {
        async fn wait_for_change(
            &self,
            id: &$crate::retryproof_core::Identity,
            seen: $crate::retryproof_core::FencingToken,
            limit: ::std::time::Duration,
        ) -> $crate::retryproof_core::Result<()> {
            self.$inner.wait_for_change(id, seen, limit).await
        }
    };
    (@extend $inner:tt) => {
        async fn extend(
            &self,
            id: &$crate::retryproof_core::Identity,
            owner: $crate::retryproof_core::OwnerId,
            lease: ::std::time::Duration,
        ) -> $crate::retryproof_core::Result<$crate::retryproof_core::store::FencedWrite> {
            self.$inner.extend(id, owner, lease).await
        }
    };
    (@complete $inner:tt) => {
        async fn complete(
            &self,
            id: &$crate::retryproof_core::Identity,
            owner: $crate::retryproof_core::OwnerId,
            done: &$crate::retryproof_core::store::Completion,
        ) -> $crate::retryproof_core::Result<$crate::retryproof_core::store::FencedWrite> {
            self.$inner.complete(id, owner, done).await
        }
    };
    (@release $inner:tt) => {
        async fn release(
            &self,
            id: &$crate::retryproof_core::Identity,
            owner: $crate::retryproof_core::OwnerId,
        ) -> $crate::retryproof_core::Result<$crate::retryproof_core::store::FencedWrite> {
            self.$inner.release(id, owner).await
        }
    };
    (@profile $inner:tt) => {
        fn profile(&self) -> $crate::retryproof_core::store::StoreProfile {
            self.$inner.profile()
        }
    };
}
