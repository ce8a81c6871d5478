// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Verdict`]: how to answer a broker, and the [`Reason`] for it.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use super::Refusal;
use crate::error::{Error, ErrorKind};
use crate::identity::Identity;
use crate::outcome::{ExecuteError, InFlight, Outcome, Recorded, Rejected};

/// How to answer a broker for one message (LST-2). A broker understands only these three answers,
/// so the enum is deliberately exhaustive. Each verdict holds its [`Reason`], for logs and
/// counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an unanswered message is redelivered"]
pub enum Verdict {
    /// Acknowledge the message, because its work is done.
    #[non_exhaustive]
    Ack {
        /// The reason.
        reason: Reason,
    },
    /// Return the message to the broker for redelivery.
    #[non_exhaustive]
    Nack {
        /// The minimum time until the redelivery. If this time is zero, only the listener's
        /// [`Backoff`](super::Backoff) sets the pause.
        after: Duration,
        /// The reason.
        reason: Reason,
    },
    /// Turn the message into a dead letter, because a redelivery would not help.
    #[non_exhaustive]
    DeadLetter {
        /// The reason.
        reason: Reason,
    },
}

/// The reason for a [`Verdict`]. The names that [`as_str`](Self::as_str) returns are stable, so
/// they can be used as metric labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The work ran in this delivery. Its result is recorded, unless the completion failed under
    /// the policy `log-and-return` (CMP-4). An annotated function that succeeds always gets this
    /// reason, even after a replay.
    Executed,
    /// The work ran in an earlier delivery (LST-1).
    Replayed,
    /// The work is done, but its result cannot be replayed (HTTP-13, CMP-9).
    NotReplayable,
    /// Another delivery of the message is in flight, or the consumer stopped before it handled this
    /// delivery.
    InFlight,
    /// The key was used with a different fingerprint (FP-1).
    Mismatch,
    /// The message cannot be handled at all.
    Poison(Poison),
    /// A stored result or record cannot be decoded (CMP-8).
    Unreadable,
    /// A joined transaction lost its lease and was rolled back (CMP-7).
    LeaseLost,
    /// Nothing ran. The store did not answer, the engine accepts no more work, or the program
    /// passed a scope or duration that is out of range.
    Store,
    /// The work ran, but its result could not be recorded (CMP-4).
    NotRecorded,
    /// The work returned an error, and the engine frees the key (RUN-4).
    Failed,
    /// The work returned an error and its effect is unknown. The key stays held until the lease
    /// runs out (RUN-4).
    Held,
    /// The work panicked. The engine frees the key, or holds it until the lease runs out if the
    /// effect of the work is unknown (RUN-4).
    Panicked,
}

/// The reason why a message can never be handled, even if it is redelivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Poison {
    /// The message has no key.
    NoKey,
    /// The message's key violates ID-3: a key must be 1 to 512 bytes long, must not be blank, and
    /// must not contain control characters.
    BadKey,
    /// The message's body or headers cannot be decoded.
    Unreadable,
}

impl Verdict {
    /// Returns the verdict for the result of an execution. A consumer that forwards the result must
    /// also apply [`replying`](Self::replying).
    pub fn of<T, E>(result: &Result<Outcome<T>, ExecuteError<E>>) -> Self {
        match result {
            Ok(Outcome::Executed(_)) => Self::ack(Reason::Executed),
            Ok(Outcome::Replayed(_)) => Self::ack(Reason::Replayed),
            Ok(Outcome::InFlight(busy)) => {
                Self::Nack { after: busy.redeliver_after(), reason: Reason::InFlight }
            }
            Err(ExecuteError::Action(_)) => Self::nack(Reason::Failed),
            Err(ExecuteError::Held { remaining, .. }) => Self::Nack {
                after: InFlight::new(*remaining).redeliver_after(),
                reason: Reason::Held,
            },
            Err(ExecuteError::Store(error)) => Self::of_store(error),
            Err(ExecuteError::Codec(_)) => Self::ack(Reason::Unreadable),
            Err(ExecuteError::Completion(failure)) => Self::of_completion(failure.recorded),
            Err(ExecuteError::Mismatch) => Self::dead_letter(Reason::Mismatch),
            Err(ExecuteError::LeaseLost) => Self::nack(Reason::LeaseLost),
            Err(ExecuteError::NotReplayable(_)) => Self::ack(Reason::NotReplayable),
        }
    }

    /// Returns the verdict for the result of an `#[idempotent(key = ..)]` function (ANN-5). A
    /// success always gets [`Reason::Executed`], because a success does not show whether the
    /// function ran or an earlier result was replayed.
    pub fn of_function<T, E: Refusal>(returned: &Result<T, E>) -> Self {
        match returned {
            Ok(_) => Self::ack(Reason::Executed),
            Err(error) => error.verdict(),
        }
    }

    /// Returns the verdict for an annotated function that did not run, or whose result cannot be
    /// returned.
    pub fn of_rejected(rejected: &Rejected) -> Self {
        match rejected {
            Rejected::InFlight { retry_after } => {
                Self::Nack { after: *retry_after, reason: Reason::InFlight }
            }
            Rejected::Mismatch => Self::dead_letter(Reason::Mismatch),
            Rejected::LeaseLost => Self::nack(Reason::LeaseLost),
            Rejected::NotReplayable => Self::ack(Reason::NotReplayable),
            Rejected::Store(error) => Self::of_store(error),
            Rejected::Codec(_) => Self::ack(Reason::Unreadable),
            Rejected::Completion(failure) => Self::of_completion(failure.recorded),
        }
    }

    /// Returns the verdict for a message that can never be handled.
    pub fn poison(poison: Poison) -> Self {
        Self::dead_letter(Reason::Poison(poison))
    }

    /// Returns the verdict for failed work. Use it in a consumer that runs the work without an
    /// engine.
    pub fn failed() -> Self {
        Self::nack(Reason::Failed)
    }

    /// Returns a verdict that redelivers the message after at least `after` and does not count as a
    /// failure. Use it if another delivery is in flight, or if the consumer stops before it begins
    /// to handle the message.
    pub fn delayed(after: Duration) -> Self {
        Self::Nack { after, reason: Reason::InFlight }
    }

    /// Adapts the verdict for a consumer that forwards the result, for example as a reply to the
    /// sender. If the result cannot be decoded, there is nothing to forward, so the message becomes
    /// a dead letter.
    pub fn replying(self) -> Self {
        match self {
            Self::Ack { reason: reason @ Reason::Unreadable } => Self::DeadLetter { reason },
            other => other,
        }
    }

    /// Turns a nack into a dead letter with the same reason. Use this method if the message has no
    /// redeliveries left and the broker would drop the message.
    pub fn given_up(self) -> Self {
        match self {
            Self::Nack { reason, .. } => Self::DeadLetter { reason },
            other => other,
        }
    }

    /// Returns the reason for the verdict.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Ack { reason } | Self::Nack { reason, .. } | Self::DeadLetter { reason } => {
                *reason
            }
        }
    }

    /// Whether this delivery counts against the broker's redelivery limit. Every nack counts,
    /// except a nack with [`Reason::InFlight`].
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Nack { reason, .. } if *reason != Reason::InFlight)
    }

    /// Whether this delivery uses up one of the message's attempts. A nack uses up an attempt if
    /// the work failed or panicked, lost its lease, or was not recorded. A nack with
    /// [`Reason::Store`] does not, because nothing ran.
    #[must_use]
    pub fn is_failed_attempt(&self) -> bool {
        self.is_failure() && self.reason() != Reason::Store
    }

    /// Logs the verdict the same way for all brokers: dead letters as `error`, failures as `warn`,
    /// the rest as `debug`. The identity is masked (ID-4); a message without a usable key has no
    /// identity.
    pub fn log(&self, broker: &'static str, identity: Option<&Identity>) {
        let (why, identity) = (self.reason().as_str(), identity.map(tracing::field::display));
        match self {
            Self::DeadLetter { .. } => {
                tracing::error!(
                    broker,
                    why,
                    identity,
                    "the message becomes a dead letter and will not be delivered again; `why` \
                     gives the reason"
                );
            }
            Self::Nack { .. } if self.is_failure() => {
                tracing::warn!(
                    broker,
                    why,
                    identity,
                    "the message was not processed and will be redelivered; `why` gives the reason"
                );
            }
            Self::Nack { after, .. } => {
                tracing::debug!(
                    broker,
                    why,
                    identity,
                    ?after,
                    "the message will be redelivered later, because another call with the same key \
                     is still running"
                );
            }
            Self::Ack { .. } => {
                tracing::debug!(
                    broker,
                    why,
                    identity,
                    "the message is acknowledged, because its work is done"
                );
            }
        }
    }

    fn of_store(error: &Error) -> Self {
        match error.kind() {
            // Only an invalid key is the message's fault; an invalid scope or duration is the
            // program's fault.
            ErrorKind::Invalid if error.is_about_key() => Self::poison(Poison::BadKey),
            // If the error names no operation, the record is complete, and only its result could
            // not be decoded. If the error names an operation, the store could not decode the
            // record. The work might then not have run, so an ack could lose the message.
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

    pub(super) fn ack(reason: Reason) -> Self {
        Self::Ack { reason }
    }

    pub(super) fn nack(reason: Reason) -> Self {
        Self::Nack { after: Duration::ZERO, reason }
    }

    pub(super) fn dead_letter(reason: Reason) -> Self {
        Self::DeadLetter { reason }
    }
}

impl Reason {
    /// Returns the name for metric labels: lower case, with dashes.
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
                "the message's key must be 1 to 512 bytes of non-blank text without control \
                 characters"
            }
            Self::Unreadable => "the message cannot be decoded",
        })
    }
}

impl StdError for Poison {}
