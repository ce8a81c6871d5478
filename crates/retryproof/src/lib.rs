// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "full"),
    doc = "Runs a unit of work once per key. Documentation built with the feature `full` \
         contains the manual."
)]
// The front page is the repository's README. These lines come before the README and define
// the README's links first. The first definition of a link wins, so the links lead to this
// documentation and not to files.
#![cfg_attr(
    feature = "full",
    doc = "[guide-start]: guide::getting_started",
    doc = "[guide-http]: guide::http",
    doc = "[guide-functions]: guide::functions_and_listeners",
    doc = "[guide-client]: guide::client",
    doc = "[guide-webhooks]: guide::webhooks",
    doc = "[guide-listeners]: guide::listeners",
    doc = "[guide-guarantees]: guide::guarantees",
    doc = "[guide-store]: guide::writing_a_store",
    doc = "[guide-operations]: guide::operations",
    doc = "[guide-operating]: guide::operating",
    doc = "[timeline]: \
         https://raw.githubusercontent.com/retryproof/retryproof/main/docs/timeline.svg?sanitize=true",
    doc = "[checkout]: https://raw.githubusercontent.com/retryproof/retryproof/main/docs/checkout.png",
    doc = "[contributing]: https://github.com/retryproof/retryproof/blob/main/CONTRIBUTING.md",
    doc = "[spec]: https://github.com/retryproof/retryproof/blob/main/SPEC.md",
    doc = "[design]: https://github.com/retryproof/retryproof/blob/main/DESIGN.md",
    doc = "[architecture]: https://github.com/retryproof/retryproof/blob/main/ARCHITECTURE.md",
    doc = "",
    doc = include_str!("../README.md")
)]

extern crate self as retryproof;

#[cfg(feature = "blocking")]
pub mod blocking;
mod connect;
#[cfg(all(doc, feature = "full"))]
pub mod guide;

pub use retryproof_core::{
    Acquisition, Activity, Attempt, Blob, BytesCodec, Call, Codec, CodecId, CompletionError,
    CompletionFailurePolicy, CompletionResult, ContextBuilder, EngineBuilder, Error, ErrorKind,
    ExecuteError, FencingToken, Fingerprint, FingerprintMode, HeldLease, IdempotencyConfig,
    IdempotencyContext, IdempotencyEngine, IdempotencyStore, Identity, IdentitySecret, InFlight,
    IntoScope, JoinError, JoinedCall, JoinedEngine, JsonCodec, Key, Lease, NoCodec, Observer,
    OnDrop, OnFenced, Opened, Outcome, OwnerId, Payload, PendingCommit, Permit, Recorded, Rejected,
    Report, Result, Scope, SharedStore, StoredResult, Tombstone, WebConfig,
};
pub use retryproof_core::{clock, codec, config, listener, observe, store};

#[cfg(feature = "seal")]
pub use connect::seals_with;
pub use connect::{connect, connect_with, diagnose_with, migrate, migrate_with};

/// Sealed results: the interface, and with the feature `seal` the cipher, the master keys and the
/// table of keys (SEAL-1).
pub mod seal {
    pub use retryproof_core::seal::*;
    #[cfg(feature = "seal")]
    pub use retryproof_seal::{
        DataKey, Destruction, KeyId, KeyProvider, KeyRow, KeyTable, MasterKeys, MemoryKeyTable,
        ProviderFuture, Seals, SqliteKeyTable, TableFuture, WrappedKey,
    };
}

/// The client side: middleware for reqwest.
#[cfg(feature = "client")]
pub use retryproof_client as client;

/// The HTTP filter.
#[cfg(feature = "http")]
pub use retryproof_http as http;

/// The HTTP filter for actix-web: the middleware, the extractors, and `idempotent` for actix-web
/// handlers.
#[cfg(feature = "actix")]
pub mod actix {
    pub use retryproof_actix::*;
    #[cfg(feature = "macros")]
    pub use retryproof_macros::idempotent_actix as idempotent;
}

#[cfg(feature = "macros")]
pub use retryproof_macros::idempotent;

#[cfg(feature = "memory")]
pub use retryproof_memory::{MemoryStore, MemoryStoreBuilder};

/// The MySQL and MariaDB store.
#[cfg(feature = "mysql")]
pub use retryproof_mysql as mysql;

/// Kafka consumers.
#[cfg(feature = "kafka")]
pub use retryproof_kafka as kafka;

/// NATS JetStream consumers.
#[cfg(feature = "nats")]
pub use retryproof_nats as nats;

/// The PostgreSQL store.
#[cfg(feature = "postgres")]
pub use retryproof_postgres as postgres;

/// RabbitMQ consumers.
#[cfg(feature = "rabbitmq")]
pub use retryproof_rabbitmq as rabbitmq;

/// The Redis store.
#[cfg(feature = "redis")]
pub use retryproof_redis as redis;

/// The SQLite store.
#[cfg(feature = "sqlite")]
pub use retryproof_sqlite as sqlite;

/// A layer that runs any tower service once per key.
#[cfg(feature = "tower")]
pub use retryproof_tower as tower;

/// Items for the expansion of `#[idempotent]`. Do not use them directly, because they may change
/// without notice.
#[doc(hidden)]
pub mod __private {
    pub use crate::{__blocking as blocking, __endpoint as endpoint};
    #[cfg(feature = "actix")]
    pub use retryproof_actix as actix;
    pub use retryproof_core::Acquiring;
    pub use retryproof_core::annotated::*;
    #[cfg(feature = "http")]
    pub use retryproof_http as http;
}

/// Passes an expansion through, because the feature that it needs is on.
#[cfg(feature = "axum")]
#[doc(hidden)]
#[macro_export]
macro_rules! __endpoint {
    ($($item:tt)*) => { $($item)* };
}

/// Rejects an expansion, because the feature that it needs is off.
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

/// Passes an expansion through, because the feature that it needs is on.
#[cfg(feature = "blocking")]
#[doc(hidden)]
#[macro_export]
macro_rules! __blocking {
    ($($item:tt)*) => { $($item)* };
}

/// Rejects an expansion, because the feature that it needs is off.
#[cfg(not(feature = "blocking"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __blocking {
    ($($item:tt)*) => {
        ::core::compile_error!(
            "`#[idempotent(key = ..)]` on a blocking function needs the feature `blocking` of \
             the crate `retryproof`"
        )
    };
}
