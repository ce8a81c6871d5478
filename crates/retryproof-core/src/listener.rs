// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Verdict`]: a consumer's answer to a message broker (LST-1, LST-2). This module also has the
//! parts that the listeners for all brokers share.
//!
//! A message is handled like any other call: its scope and key make a context, and the engine runs
//! the work or replays its result. Only the answer differs: it has to say whether the message is
//! done.
//!
//! | result of the call | verdict | [`Reason`] |
//! |---|---|---|
//! | [`Outcome::Executed`] | ack, after the completion | `Executed` |
//! | [`Outcome::Replayed`] | ack | `Replayed` |
//! | the work is done, but its result cannot be replayed, or only a tombstone could be recorded | ack | `NotReplayable` |
//! | [`Outcome::InFlight`] | nack: redelivered no sooner than the holder's lease ends; does not count as a failure | `InFlight` |
//! | the key was used with a different fingerprint | dead letter | `Mismatch` |
//! | the message has no key or an invalid key, or cannot be decoded | dead letter | `Poison` |
//! | the work is done, but its result cannot be decoded | ack; a dead letter if the result has to be [forwarded](Verdict::replying) | `Unreadable` |
//! | the record cannot be decoded, so it is unknown whether the work is done | dead letter, because an ack could skip work that never ran | `Unreadable` |
//! | the work failed with an [unknown effect](crate::Lease::hold_on_error) | nack: redelivered no sooner than the lease ends, within the broker's redelivery limit | `Held` |
//! | the lease was lost, the store is unavailable, the program's scope or durations are out of range, the completion failed, the work failed or panicked | nack: redelivered within the broker's redelivery limit | `LeaseLost`, `Store`, `NotRecorded`, `Failed`, `Panicked` |
//!
//! A listener translates the three verdicts into the broker's own answers. Without a listener, a
//! consumer does the same with one `match`:
//!
//! ```
//! # use std::time::Duration;
//! # use {retryproof_core::{IdempotencyContext, IdempotencyEngine}, retryproof_memory::MemoryStore};
//! use retryproof_core::listener::Verdict;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let engine = IdempotencyEngine::new(MemoryStore::new());
//! # let message_id = "m-1";
//!
//! let ctx = IdempotencyContext::builder("orders.paid", message_id).wait_timeout(Duration::ZERO).build()?;
//! let result = engine.execute(ctx, async || Ok::<_, std::io::Error>(())).await;
//! match Verdict::of(&result) {
//!     Verdict::Ack { .. } => { /* acknowledge the message */ }
//!     Verdict::Nack { after, .. } => { /* have it redelivered, no sooner than `after` */ let _ = after; }
//!     Verdict::DeadLetter { .. } => { /* move it where a person will look at it */ }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`guarded`] creates the usual handler for a listener. To write a listener yourself, use the
//! parts that this library's listeners share: [`MessageCall`], [`AttemptRules`], [`dead_letter`],
//! [`WorkerPool`] and [`drain`].
//!
//! [`Outcome::Executed`]: crate::Outcome::Executed
//! [`Outcome::Replayed`]: crate::Outcome::Replayed
//! [`Outcome::InFlight`]: crate::Outcome::InFlight

use std::error::Error as StdError;

use sha2::{Digest, Sha256};

use crate::fingerprint::Fingerprint;
use crate::outcome::Rejected;

mod attempts;
mod counters;
pub mod dead_letter;
mod guarded;
mod message;
#[cfg(test)]
mod tests;
mod verdict;
mod workers;

pub use crate::backoff::Backoff;
pub use attempts::AttemptRules;
pub use counters::{VerdictCounters, VerdictCounts};
pub use guarded::{HandlerFuture, guarded};
pub use message::{AnyDelivery, MessageCall, MessageOptions, MessageSettings, json};
pub use verdict::{Poison, Reason, Verdict};
pub use workers::{WorkerPool, WorkerSlot, batch, drain, verdict_of};

/// Returns the fingerprint of a message's body (FP-1): an algorithm byte and the body's SHA-256. A
/// broker redelivers the same bytes. A message that repeats a key with a different body is
/// therefore not a redelivery, and is rejected.
#[must_use]
pub fn body_fingerprint(body: &[u8]) -> Fingerprint {
    /// The algorithm byte of message bodies, different from those of HTTP requests (FP-3). Records
    /// store this byte, so it must never change.
    const MESSAGE_BODY: u8 = 64;
    Fingerprint::tagged(MESSAGE_BODY, &Sha256::digest(body).into())
}

/// Lets [`Verdict::of_function`] distinguish a [`Rejected`] call from failed work. Implement this
/// trait for the error type of your `#[idempotent(key = ..)]` function.
///
/// ```
/// use retryproof_core::{Rejected, listener::Refusal};
///
/// enum HandlerError {
///     Mail(std::io::Error),
///     NotRun(Rejected),
/// }
///
/// impl Refusal for HandlerError {
///     fn rejected(&self) -> Option<&Rejected> {
///         match self {
///             Self::NotRun(rejected) => Some(rejected),
///             Self::Mail(_) => None, // the work failed: the message is redelivered
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` does not distinguish a rejected call from failed work",
    label = "this error type must implement `Refusal`",
    note = "implement `Refusal` for this type: return the `Rejected` that the error contains, or \
            `None` if the work itself failed"
)]
pub trait Refusal {
    /// Returns the [`Rejected`] inside this error, or `None` if the work itself failed.
    fn rejected(&self) -> Option<&Rejected>;

    /// Returns the verdict on the [`Rejected`], or [`Verdict::failed`] if there is none. Override
    /// this method to return [`Verdict::poison`] for errors that no retry can fix.
    fn verdict(&self) -> Verdict {
        self.rejected().map_or_else(Verdict::failed, Verdict::of_rejected)
    }
}

impl Refusal for Rejected {
    fn rejected(&self) -> Option<&Rejected> {
        Some(self)
    }
}

/// Finds the [`Rejected`] in an error that `?` has boxed.
impl Refusal for Box<dyn StdError + Send + Sync> {
    fn rejected(&self) -> Option<&Rejected> {
        self.downcast_ref()
    }
}
