// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Verdict`]: what a message broker is to be told (LST-1, LST-2), and what the adapters of all
//! brokers share.
//!
//! A message is handled like any other call: its scope and key make a context, the engine runs the
//! work or answers from the record. What is special is the answer. The broker wants to know whether
//! it may forget the message:
//!
//! | what became of the call | verdict | [`Reason`] |
//! |---|---|---|
//! | [`Outcome::Executed`] | ack, after completion | `Executed` |
//! | [`Outcome::Replayed`] | ack | `Replayed` |
//! | done, but not replayable; a completion that left a tombstone | ack | `NotReplayable` |
//! | [`Outcome::InFlight`] | nack, no sooner than the holder's lease ends; no failure of the message | `InFlight` |
//! | the key was used with another fingerprint | dead letter | `Mismatch` |
//! | no key, a key out of bounds, an unreadable message | dead letter | `Poison` |
//! | the result stands, but cannot be read | ack; dead letter if the result is to be [sent on](Verdict::replying) | `Unreadable` |
//! | the record cannot be read, so nobody knows whether the work is done | dead letter: an ack could skip it unrun | `Unreadable` |
//! | the work failed, and its effect is [not known](crate::Lease::hold_on_error) | nack, no sooner than its lease ends, within the broker's limit of redeliveries | `Held` |
//! | the lease was lost, the store is away, the program's scope or durations are out of bounds, the completion failed, the work failed or panicked | nack, within the broker's limit of redeliveries | `LeaseLost`, `Store`, `NotRecorded`, `Failed`, `Panicked` |
//!
//! A broker's adapter turns the three answers into its own words. A consumer without an adapter
//! does it in three lines:
//!
//! ```
//! # use std::time::Duration;
//! # use retryproof_core::{IdempotencyContext, IdempotencyEngine, MemoryStore};
//! use retryproof_core::listener::Verdict;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let engine = IdempotencyEngine::new(MemoryStore::new());
//! # let message_id = "m-1";
//!
//! let ctx = IdempotencyContext::builder("orders.paid", message_id).wait_timeout(Duration::ZERO).build()?;
//! let result = engine.execute(ctx, async || Ok::<_, std::io::Error>(())).await;
//! match Verdict::of(&result) {
//!     Verdict::Ack { .. } => { /* the broker may forget it */ }
//!     Verdict::Nack { after, .. } => { /* give it back, to come again no sooner than `after` */ let _ = after; }
//!     Verdict::DeadLetter { .. } => { /* put it where a person looks */ }
//! }
//! # Ok(())
//! # }
//! ```

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind};
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::outcome::{ExecuteError, InFlight, Outcome, Recorded, Rejected};

mod lanes;
mod tally;
#[cfg(test)]
mod tests;

pub use crate::backoff::Backoff;
pub use lanes::{Lanes, batch, caught};
pub use tally::{Tallied, Tally};

/// What a broker is to be told of one message (LST-2). The three answers are all there are, so the
/// enum is exhaustive on purpose; each carries the [`Reason`], for logs and counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a message that is not answered comes again"]
pub enum Verdict {
    /// The broker may forget the message: its work is done and recorded.
    #[non_exhaustive]
    Ack {
        /// Why.
        why: Reason,
    },
    /// The message has to come again.
    #[non_exhaustive]
    Nack {
        /// No sooner than this from now. Zero: whenever the adapter's own [`Backoff`] says.
        after: Duration,
        /// Why.
        why: Reason,
    },
    /// Coming again would not help: the message belongs where a person looks at it.
    #[non_exhaustive]
    DeadLetter {
        /// Why.
        why: Reason,
    },
}

/// Why a [`Verdict`] is what it is. [`as_str`](Self::as_str) is stable, for metric labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The work ran in this delivery and is recorded.
    Executed,
    /// It ran in an earlier delivery (LST-1).
    Replayed,
    /// It is done, and its result cannot be replayed (HTTP-13, CMP-9).
    NotReplayable,
    /// Another delivery of it is being worked on.
    InFlight,
    /// The key was used before with another fingerprint (FP-1).
    Mismatch,
    /// The message cannot be handled at all.
    Poison(Poison),
    /// A stored result or record cannot be read (CMP-8).
    Unreadable,
    /// The lease was lost where it has to count: in a joined transaction (CMP-7).
    LeaseLost,
    /// The store could not answer, or the engine takes no more work, or refuses the program's scope
    /// or durations; nothing ran.
    Store,
    /// The work ran, and its completion could not be recorded (CMP-4).
    NotRecorded,
    /// The work returned an error; its key is free again (RUN-4).
    Failed,
    /// The work returned an error and its effect is not known; its key stays taken until the lease
    /// runs out (RUN-4).
    Held,
    /// The work panicked; its key is free again (RUN-4).
    Panicked,
}

/// Why a message cannot be handled, however often it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Poison {
    /// It has no key where the consumer looks for one.
    NoKey,
    /// Its key is outside ID-3: 1 to 512 bytes of text, not blank, without control characters.
    BadKey,
    /// Its body or its headers do not decode.
    Unreadable,
}

impl Verdict {
    /// Of an execution by the engine, for a consumer that returns nothing to whoever sent the
    /// message. One that does asks for [`replying`](Self::replying) on top.
    pub fn of<T, E>(result: &Result<Outcome<T>, ExecuteError<E>>) -> Self {
        match result {
            Ok(Outcome::Executed(_)) => Self::ack(Reason::Executed),
            Ok(Outcome::Replayed(_)) => Self::ack(Reason::Replayed),
            Ok(Outcome::InFlight(busy)) => {
                Self::Nack { after: busy.redeliver_after(), why: Reason::InFlight }
            }
            Err(ExecuteError::Action(_)) => Self::nack(Reason::Failed),
            Err(ExecuteError::Held { remaining, .. }) => {
                Self::Nack { after: InFlight::new(*remaining).redeliver_after(), why: Reason::Held }
            }
            Err(ExecuteError::Store(error)) => Self::of_store(error),
            Err(ExecuteError::Codec(_)) => Self::ack(Reason::Unreadable),
            Err(ExecuteError::Completion(failure)) => Self::of_completion(failure.recorded),
            Err(ExecuteError::Mismatch) => Self::dead_letter(Reason::Mismatch),
            Err(ExecuteError::LeaseLost) => Self::nack(Reason::LeaseLost),
            Err(ExecuteError::NotReplayable(_)) => Self::ack(Reason::NotReplayable),
        }
    }

    /// Of what a function under `#[idempotent(key = ..)]` returned (ANN-5). It does not say whether
    /// a value was made now or stored earlier; both are acknowledged.
    pub fn of_function<T, E: Refusal>(returned: &Result<T, E>) -> Self {
        match returned {
            Ok(_) => Self::ack(Reason::Executed),
            Err(error) => error.verdict(),
        }
    }

    /// Of the error value by which such a function says that it did not run, or that its result
    /// cannot be given.
    pub fn of_rejected(rejected: &Rejected) -> Self {
        match rejected {
            Rejected::InFlight { retry_after } => {
                Self::Nack { after: *retry_after, why: Reason::InFlight }
            }
            Rejected::Mismatch => Self::dead_letter(Reason::Mismatch),
            Rejected::LeaseLost => Self::nack(Reason::LeaseLost),
            Rejected::NotReplayable => Self::ack(Reason::NotReplayable),
            Rejected::Store(error) => Self::of_store(error),
            Rejected::Codec(_) => Self::ack(Reason::Unreadable),
            Rejected::Completion(failure) => Self::of_completion(failure.recorded),
        }
    }

    /// Of a message that cannot be handled.
    pub fn poison(why: Poison) -> Self {
        Self::dead_letter(Reason::Poison(why))
    }

    /// Of work that failed, for a consumer that runs it by itself.
    pub fn failed() -> Self {
        Self::nack(Reason::Failed)
    }

    /// Of a message that is to come again, no sooner than `after`, and did not fail: another
    /// delivery of it is being worked on, or its consumer stops before it was begun.
    pub fn put_off(after: Duration) -> Self {
        Self::Nack { after, why: Reason::InFlight }
    }

    /// For a consumer that sends the result on, as an answer to the sender: a result that stands
    /// and cannot be read is then no reason to acknowledge, and the message is a dead letter.
    pub fn replying(self) -> Self {
        match self {
            Self::Ack { why: why @ Reason::Unreadable } => Self::DeadLetter { why },
            other => other,
        }
    }

    /// Of a message that has used up its redeliveries, for a broker that would drop it next: a nack
    /// becomes a dead letter for the same reason.
    pub fn given_up(self) -> Self {
        match self {
            Self::Nack { why, .. } => Self::DeadLetter { why },
            other => other,
        }
    }

    /// Why it is so.
    #[must_use]
    pub fn why(&self) -> Reason {
        match self {
            Self::Ack { why } | Self::Nack { why, .. } | Self::DeadLetter { why } => *why,
        }
    }

    /// Whether this delivery counts against the broker's limit of redeliveries: a nack that says
    /// something about the message or its work, and not only that another delivery came first.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Nack { why, .. } if *why != Reason::InFlight)
    }

    /// Says it in the log, the same for all brokers: `debug` for what is as it should be, `warn`
    /// for a failure, `error` for a dead letter. The identity prints masked (ID-4); a message
    /// without a usable key has none.
    pub fn log(&self, broker: &'static str, identity: Option<&Identity>) {
        let (why, identity) = (self.why().as_str(), identity.map(tracing::field::display));
        match self {
            Self::DeadLetter { .. } => {
                tracing::error!(broker, why, identity, "message sent to the dead letters");
            }
            Self::Nack { .. } if self.is_failure() => {
                tracing::warn!(broker, why, identity, "message given back, to be delivered again");
            }
            Self::Nack { after, .. } => {
                tracing::debug!(
                    broker,
                    why,
                    identity,
                    ?after,
                    "message put off while another delivery runs"
                );
            }
            Self::Ack { .. } => {
                tracing::debug!(broker, why, identity, "message acknowledged");
            }
        }
    }

    fn of_store(error: &Error) -> Self {
        match error.kind() {
            // Whatever else is invalid, a scope or a duration, is a mistake of the program: the
            // message is as good as any.
            ErrorKind::Invalid if error.is_about_key() => Self::poison(Poison::BadKey),
            // The engine opens a result without an operation of the store: then the record is known
            // to be complete. Met by a store, nobody knows the record's state, and an ack could
            // skip work that never ran.
            ErrorKind::Corrupt if error.operation().is_none() => Self::ack(Reason::Unreadable),
            ErrorKind::Corrupt => Self::dead_letter(Reason::Unreadable),
            _ => Self::nack(Reason::Store),
        }
    }

    fn of_completion(recorded: Recorded) -> Self {
        match recorded {
            Recorded::Yes | Recorded::Tombstone => Self::ack(Reason::NotReplayable),
            Recorded::No => Self::nack(Reason::NotRecorded),
        }
    }

    fn ack(why: Reason) -> Self {
        Self::Ack { why }
    }

    fn nack(why: Reason) -> Self {
        Self::Nack { after: Duration::ZERO, why }
    }

    fn dead_letter(why: Reason) -> Self {
        Self::DeadLetter { why }
    }
}

impl Reason {
    /// Its name, as counted: lower case, with dashes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Replayed => "replayed",
            Self::NotReplayable => "not-replayable",
            Self::InFlight => "in-flight",
            Self::Mismatch => "fingerprint-mismatch",
            Self::Poison(Poison::NoKey) => "no-key",
            Self::Poison(Poison::BadKey) => "bad-key",
            Self::Poison(Poison::Unreadable) => "unreadable-message",
            Self::Unreadable => "record-unreadable",
            Self::LeaseLost => "lease-lost",
            Self::Store => "store",
            Self::NotRecorded => "not-recorded",
            Self::Failed => "failed",
            Self::Held => "held",
            Self::Panicked => "panicked",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Poison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoKey => "the message has no key",
            Self::BadKey => {
                "the message's key is not 1 to 512 bytes of text without control characters"
            }
            Self::Unreadable => "the message does not decode",
        })
    }
}

impl StdError for Poison {}

/// The fingerprint of a message's body (FP-1): its SHA-256 behind an algorithm byte of its own.
/// Brokers deliver the same bytes again, so a message under a known key whose body is another one
/// is no redelivery, and is refused.
#[must_use]
pub fn body_fingerprint(body: &[u8]) -> Fingerprint {
    /// Apart from those of HTTP requests (FP-3). It stands in records: never changed, never reused.
    const MESSAGE_BODY: u8 = 64;
    Fingerprint::tagged(MESSAGE_BODY, &Sha256::digest(body).into())
}

/// An error of a function under `#[idempotent(key = ..)]` that a [`Verdict`] can be made of: it
/// says which of its values is the [`Rejected`] that it was made from.
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
///             Self::Mail(_) => None, // the work's own failure: it comes again
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` does not tell a refused call from failed work",
    label = "it wants to be a `Refusal`",
    note = "implement `Refusal` for it: the `Rejected` inside, or `None` for an error of the \
            work itself"
)]
pub trait Refusal {
    /// The [`Rejected`] inside; `None` for an error of the work itself.
    fn rejected(&self) -> Option<&Rejected>;

    /// The verdict: that of the [`Rejected`], else [`Verdict::failed`]. An error type that knows of
    /// failures which no repetition cures overrides this, and asks for the dead letters by
    /// [`Verdict::poison`].
    fn verdict(&self) -> Verdict {
        self.rejected().map_or_else(Verdict::failed, Verdict::of_rejected)
    }
}

impl Refusal for Rejected {
    fn rejected(&self) -> Option<&Rejected> {
        Some(self)
    }
}

/// The [`Rejected`] is found again in the box that `?` put it in.
impl Refusal for Box<dyn StdError + Send + Sync> {
    fn rejected(&self) -> Option<&Rejected> {
        self.downcast_ref()
    }
}
