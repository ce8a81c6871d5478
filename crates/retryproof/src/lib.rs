// SPDX-License-Identifier: MIT OR Apache-2.0
//! Run a unit of work once per (scope, key).

extern crate self as retryproof;

mod connect;

#[cfg(feature = "blocking")]
pub use retryproof_core::blocking;
pub use retryproof_core::{
    Acquisition, Activity, Attempt, Blob, BytesCodec, Call, Codec, CodecId, CompletionError,
    CompletionFailurePolicy, ContextBuilder, EngineBuilder, Error, ErrorKind, ExecuteError, FencingToken,
    Fingerprint, FingerprintMode, Finished, Held, IdempotencyConfig, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore, Identity, InFlight, IntoScope, JsonCodec, Key, Lease, MemoryStore, NoCodec, Observer,
    OnDrop, OnFenced, Opened, Outcome, OwnerId, Payload, Permit, Recorded, Rejected, Report, Result, Scope,
    SharedStore, StoredResult, Tombstone, WebConfig,
};
pub use retryproof_core::{clock, codec, config, observe, store};

pub use connect::{connect, connect_with, migrate, migrate_with};

/// The HTTP filter.
#[cfg(feature = "http")]
pub use retryproof_http as http;

#[cfg(feature = "macros")]
pub use retryproof_macros::idempotent;

/// The embedded store.
#[cfg(feature = "sqlite")]
pub use retryproof_sqlite as sqlite;

/// What the expansion of `#[idempotent]` names. Not for use by hand: it changes without notice.
#[doc(hidden)]
pub mod __private {
    pub use crate::{__blocking as blocking, __endpoint as endpoint};
    pub use retryproof_core::annotated::*;
    #[cfg(feature = "http")]
    pub use retryproof_http as http;
}

/// Passes an expansion through where the feature that it needs is on.
#[cfg(feature = "axum")]
#[doc(hidden)]
#[macro_export]
macro_rules! __endpoint {
    ($($item:tt)*) => { $($item)* };
}

/// Passes an expansion through where the feature that it needs is on.
#[cfg(not(feature = "axum"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __endpoint {
    ($($item:tt)*) => {
        ::core::compile_error!(
            "`#[idempotent(http, ..)]` needs the feature `axum` of the crate `retryproof`"
        );
    };
}

/// Passes an expansion through where the feature that it needs is on.
#[cfg(feature = "blocking")]
#[doc(hidden)]
#[macro_export]
macro_rules! __blocking {
    ($($item:tt)*) => { $($item)* };
}

/// Passes an expansion through where the feature that it needs is on.
#[cfg(not(feature = "blocking"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __blocking {
    ($($item:tt)*) => {
        ::core::compile_error!(
            "`#[idempotent(key = ..)]` on a blocking function needs the feature `blocking` of the crate `retryproof`"
        )
    };
}
