// SPDX-License-Identifier: MIT OR Apache-2.0
//! x

mod answer;
mod body;
mod caller;
pub mod endpoint;
mod extract;
mod fate;
mod head;
mod limits;
mod middleware;

pub use caller::caller;
pub use extract::{GuardedTx, IdempotencyKey, Lease, NotGuarded, TxError};
pub use fate::WithFate;
pub use middleware::{Answering, Idempotency, IdempotencyService};
