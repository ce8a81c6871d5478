// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Outcome`] and what stands beside it: [`Report`], [`Recorded`], [`ExecuteError`], [`Rejected`].

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::payload::Tombstone;

/// What became of a call: exactly one of three (spec, section 1).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an in-flight outcome means that nothing ran"]
pub enum Outcome<T> {
    /// The action ran in this call; here is what it returned.
    Executed(T),
    /// It ran before; here is what was stored then.
    Replayed(T),
    /// Another caller is still at work, and the wait is over. Nothing ran.
    InFlight(InFlight),
}

impl<T> Outcome<T> {
    /// The value, executed or replayed; `None` while in flight.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Executed(value) | Self::Replayed(value) => Some(value),
            Self::InFlight(_) => None,
        }
    }

    /// Whether the action ran in this call.
    pub fn is_executed(&self) -> bool {
        matches!(self, Self::Executed(_))
    }

    /// Whether the value was stored by an earlier call.
    pub fn is_replayed(&self) -> bool {
        matches!(self, Self::Replayed(_))
    }

    /// Whether another caller is still at work.
    pub fn is_in_flight(&self) -> bool {
        matches!(self, Self::InFlight(_))
    }

    /// Maps the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Executed(value) => Outcome::Executed(f(value)),
            Self::Replayed(value) => Outcome::Replayed(f(value)),
            Self::InFlight(in_flight) => Outcome::InFlight(in_flight),
        }
    }
}

/// Another caller holds the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlight {
    /// What was left of its lease when this call ended.
    pub remaining: Duration,
}

impl InFlight {
    pub(crate) fn new(remaining: Duration) -> Self {
        Self { remaining }
    }

    /// When to try again: the holder's remaining lease in whole seconds, rounded up, from 1 to 30
    /// (HTTP-10).
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.redeliver_after().min(Duration::from_secs(30))
    }

    /// When a message may come again: as [`retry_after`](Self::retry_after) but without its bound
    /// of 30 s, for a broker is to wait no less than the remaining lease (LST-2).
    #[must_use]
    pub fn redeliver_after(&self) -> Duration {
        let up =
            self.remaining.as_secs().saturating_add(u64::from(self.remaining.subsec_nanos() > 0));
        Duration::from_secs(up.max(1))
    }
}

/// Whether the result was recorded (CMP-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recorded {
    /// It stands in the store.
    Yes,
    /// A tombstone stands: the work will not run again, but its result cannot be replayed (CMP-9).
    Tombstone,
    /// It could not be confirmed; a retry after the lease expires may run the action again.
    No,
}

/// An outcome with what happened to its record.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report<T> {
    /// The outcome.
    pub outcome: Outcome<T>,
    /// Whether a result stands in the store.
    pub recorded: Recorded,
    /// Whether this call ran the action and its completion was refused because another owner had
    /// taken over (CMP-2): the outcome is the taker's.
    pub fenced: bool,
}

/// Why a call has no outcome. `E` is the action's own error.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExecuteError<E> {
    /// The action failed; its error, unchanged. The key is free again (RUN-4).
    Action(E),
    /// The action failed, and said that its effect is not known by
    /// [`hold_on_error`](crate::Lease::hold_on_error). The key stays taken until the lease runs out
    /// (RUN-4).
    Held {
        /// The action's error, unchanged.
        error: E,
        /// What is left of the lease.
        remaining: Duration,
    },
    /// The store could not answer, or refused; nothing ran.
    Store(Error),
    /// The stored value is not one that this codec decodes; nothing ran.
    Codec(Error),
    /// The action ran, and its completion failed under the policy `propagate` (CMP-4).
    Completion(CompletionError),
    /// The key was used before with another fingerprint; nothing ran (FP-1).
    Mismatch,
    /// The completion was refused where it has to count: in a joined transaction.
    LeaseLost,
    /// The work is done, but its result cannot be replayed (HTTP-13); nothing ran.
    NotReplayable(Tombstone),
}

impl<E: fmt::Display> fmt::Display for ExecuteError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Action(error) | Self::Held { error, .. } => write!(f, "{error}"),
            Self::Store(error) | Self::Codec(error) => write!(f, "{error}"),
            Self::Completion(error) => write!(f, "{error}"),
            Self::Mismatch => f.write_str("the key was used before with another request"),
            Self::LeaseLost => f.write_str("the lease was lost; another caller took over"),
            Self::NotReplayable(_) => {
                f.write_str("the work is done, but its result cannot be replayed")
            }
        }
    }
}

impl<E: StdError + 'static> StdError for ExecuteError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Action(error) | Self::Held { error, .. } => error.source(),
            Self::Store(error) | Self::Codec(error) => error.source(),
            Self::Completion(error) => Some(&error.error),
            Self::Mismatch | Self::LeaseLost | Self::NotReplayable(_) => None,
        }
    }
}

/// The action ran; recording its result failed (CMP-4).
#[derive(Debug)]
#[non_exhaustive]
pub struct CompletionError {
    /// What failed.
    pub error: Error,
    /// What stands in the store all the same.
    pub recorded: Recorded,
}

impl CompletionError {
    pub(crate) fn new(error: Error, recorded: Recorded) -> Self {
        Self { error, recorded }
    }
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = match self.recorded {
            Recorded::Tombstone => "a tombstone stands, so it will not run again",
            _ => "a retry after the lease may run it again",
        };
        write!(f, "the action ran, but its result was not recorded ({next}): {}", self.error)
    }
}

impl StdError for CompletionError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.error)
    }
}

/// Why an annotated function did not run, or its result cannot be given: its error type implements
/// `From<Rejected>` (ANN-5).
#[derive(Debug)]
#[non_exhaustive]
pub enum Rejected {
    /// Another caller is at work; let the broker redeliver after this time.
    InFlight {
        /// When to try again: the holder's remaining lease in whole seconds, rounded up, at least 1
        /// (LST-2).
        retry_after: Duration,
    },
    /// The key was used before with another fingerprint (FP-1).
    Mismatch,
    /// The lease was lost in a joined transaction (CMP-7).
    LeaseLost,
    /// Done, but the result cannot be replayed.
    NotReplayable,
    /// The store could not answer, or the key or a duration is out of bounds.
    Store(Error),
    /// The stored value is not one that this codec decodes.
    Codec(Error),
    /// The action ran, and its completion failed under the policy `propagate` (CMP-4).
    Completion(CompletionError),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight { retry_after } => {
                write!(
                    f,
                    "another caller is at work on this key; try again in {} s",
                    retry_after.as_secs()
                )
            }
            Self::Mismatch => f.write_str("the key was used before with another request"),
            Self::LeaseLost => f.write_str("the lease was lost; another caller took over"),
            Self::NotReplayable => {
                f.write_str("the work is done, but its result cannot be replayed")
            }
            Self::Store(error) | Self::Codec(error) => write!(f, "{error}"),
            Self::Completion(error) => write!(f, "{error}"),
        }
    }
}

impl StdError for Rejected {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Store(error) | Self::Codec(error) => error.source(),
            Self::Completion(error) => Some(&error.error),
            _ => None,
        }
    }
}

impl From<Error> for Rejected {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// Turns an execute result into what an annotated function returns (ANN-5): the value, executed or
/// replayed, or an error of the function's own type.
///
/// # Errors
/// The action's own error unchanged, else `E::from` of the [`Rejected`] that names the reason.
pub fn settle<T, E: From<Rejected>>(result: Result<Outcome<T>, ExecuteError<E>>) -> Result<T, E> {
    match result {
        Ok(Outcome::Executed(value) | Outcome::Replayed(value)) => Ok(value),
        Ok(Outcome::InFlight(in_flight)) => {
            Err(Rejected::InFlight { retry_after: in_flight.redeliver_after() }.into())
        }
        Err(ExecuteError::Action(error) | ExecuteError::Held { error, .. }) => Err(error),
        Err(ExecuteError::Store(error)) => Err(Rejected::Store(error).into()),
        Err(ExecuteError::Codec(error)) => Err(Rejected::Codec(error).into()),
        Err(ExecuteError::Completion(error)) => Err(Rejected::Completion(error).into()),
        Err(ExecuteError::Mismatch) => Err(Rejected::Mismatch.into()),
        Err(ExecuteError::LeaseLost) => Err(Rejected::LeaseLost.into()),
        Err(ExecuteError::NotReplayable(_)) => Err(Rejected::NotReplayable.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_10_retry_after_is_whole_seconds_from_1_to_30() {
        let after = |ms| InFlight::new(Duration::from_millis(ms)).retry_after().as_secs();
        assert_eq!(
            [after(0), after(1), after(1_000), after(1_001), after(29_999), after(90_000)],
            [1, 1, 1, 2, 30, 30]
        );
        assert_eq!(InFlight::new(Duration::from_secs(90)).redeliver_after().as_secs(), 90);
    }
}
