// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod answer;
mod body;
mod caller;
pub mod endpoint;
mod extract;
mod fate;
mod head;
mod limits;
mod middleware;
mod then;

pub use caller::{caller, caller_async};
pub use extract::{GuardedTx, IdempotencyKey, Lease, NotGuarded, TxError};
pub use fate::WithFate;
pub use middleware::{Answering, Idempotency, IdempotencyService};

/// actix builds an app on each worker's thread, so the middleware is cloned and sent to these
/// threads.
const _: () = {
    const fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<Idempotency>();
};
