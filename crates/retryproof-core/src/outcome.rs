// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a call ends: [`Outcome`], [`Report`], [`Recorded`], [`ExecuteError`] and [`Rejected`].

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::payload::Tombstone;

/// How a call ended.
///
/// Most callers treat [`Executed`](Self::Executed) and [`Replayed`](Self::Replayed) alike: both
/// variants mean that the work is done, and both contain the result. [`InFlight`](Self::InFlight)
/// means that another caller still holds the key; answer "try again later".
///
/// ```
/// use retryproof_core::Outcome;
///
/// fn answer(outcome: Outcome<String>) -> (u16, String) {
///     match outcome {
///         Outcome::Executed(receipt) | Outcome::Replayed(receipt) => (201, receipt),
///         Outcome::InFlight(holder) => {
///             (409, format!("try again in {} s", holder.retry_after().as_secs()))
///         }
///     }
/// }
///
/// assert_eq!(answer(Outcome::Replayed("receipt 1".to_owned())).0, 201);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an in-flight outcome means that nothing ran"]
pub enum Outcome<T> {
    /// The action ran in this call and returned this value.
    Executed(T),
    /// The action ran in another call, which stored this value.
    Replayed(T),
    /// Another caller still held the key when the wait ended. Usually, this call did not run the
    /// action. The exception is a call that ran the action and then lost its lease
    /// (`Report::fenced`).
    InFlight(InFlight),
}

impl<T> Outcome<T> {
    /// Returns the value of `Executed` or `Replayed`, and `None` for `InFlight`.
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

    /// Whether another call stored the value.
    pub fn is_replayed(&self) -> bool {
        matches!(self, Self::Replayed(_))
    }

    /// Whether another caller still holds the key.
    pub fn is_in_flight(&self) -> bool {
        matches!(self, Self::InFlight(_))
    }

    /// Applies `f` to the value, if there is one.
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
    /// The time left on the holder's lease when this call ended.
    pub remaining: Duration,
}

impl InFlight {
    pub(crate) fn new(remaining: Duration) -> Self {
        Self { remaining }
    }

    /// Returns how long to wait before the next attempt: the time left on the holder's lease,
    /// rounded up to whole seconds, at least 1 s and at most 30 s (HTTP-10).
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.redeliver_after().min(Duration::from_secs(30))
    }

    /// Returns how long a broker should wait before it redelivers the message (LST-2). Unlike
    /// [`retry_after`](Self::retry_after), the time is not limited to 30 s, because a redelivery
    /// before the end of the lease would find the key still taken.
    #[must_use]
    pub fn redeliver_after(&self) -> Duration {
        let partial = u64::from(self.remaining.subsec_nanos() > 0);
        Duration::from_secs(self.remaining.as_secs().saturating_add(partial).max(1))
    }
}

/// Whether the result was recorded (CMP-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recorded {
    /// The store has the result.
    Yes,
    /// The store has a tombstone: the work will not run again, but its result cannot be replayed
    /// (CMP-9).
    Tombstone,
    /// The result was not recorded, or the store did not confirm the completion. A retry may run
    /// the action again.
    No,
}

/// An outcome together with the state of its record.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report<T> {
    /// The outcome.
    pub outcome: Outcome<T>,
    /// Whether the result was recorded.
    pub recorded: Recorded,
    /// Whether this call ran the action but lost its lease, so that the store refused the
    /// completion. The outcome then comes from the call that took over (CMP-2). If no record is
    /// left, it is this call's own value, which is not recorded (CMP-4).
    pub fenced: bool,
}

/// Why a call has no outcome. `E` is the action's own error.
///
/// With `Store`, `Codec`, `Mismatch` and `NotReplayable`, this call did not run the action. There
/// are two exceptions: the call ran the action and then lost its lease (CMP-2), or the runtime shut
/// down while a spawned action ran.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExecuteError<E> {
    /// The action failed with this error. The engine frees the key. If the release fails, the key
    /// stays taken until the lease runs out (RUN-4).
    Action(E),
    /// The action failed after it had called [`hold_on_error`](crate::Lease::hold_on_error), so its
    /// effect is unknown. The key stays taken until the lease runs out (RUN-4).
    Held {
        /// The action's error, unchanged.
        error: E,
        /// The time left on the lease.
        remaining: Duration,
    },
    /// The store failed, or the engine refused the call.
    Store(Error),
    /// The call's codec cannot decode the stored value.
    Codec(Error),
    /// The action ran, but recording its result failed (CMP-4). Under the default policy, only a
    /// joined call fails in this way.
    Completion(CompletionError),
    /// The key was used before with a different fingerprint (FP-1).
    Mismatch,
    /// The call lost its lease, and its joined transaction was rolled back (CMP-7).
    LeaseLost,
    /// The work is done, but its result cannot be replayed (HTTP-13).
    NotReplayable(Tombstone),
}

impl<E: fmt::Display> fmt::Display for ExecuteError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Action(error) | Self::Held { error, .. } => write!(f, "{error}"),
            Self::Store(error) | Self::Codec(error) => write!(f, "{error}"),
            Self::Completion(error) => write!(f, "{error}"),
            Self::Mismatch => f.write_str("the key was used before with a different request"),
            Self::LeaseLost => {
                f.write_str("the call lost its lease, so its joined transaction was rolled back")
            }
            Self::NotReplayable(_) => f.write_str(
                "an earlier call did the work, but its result was not stored and cannot be \
                 returned",
            ),
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

/// The action ran, but recording its result failed (CMP-4).
#[derive(Debug)]
#[non_exhaustive]
pub struct CompletionError {
    /// Why the result was not recorded.
    pub error: Error,
    /// What the store has instead of the result.
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
            Recorded::Tombstone => {
                "the record says only that the work is done, so the action will not run again"
            }
            _ => "a retry after the lease ends may run the action again",
        };
        write!(f, "the action ran, but its result was not recorded ({next}): {}", self.error)
    }
}

impl StdError for CompletionError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.error)
    }
}

/// Why an annotated function did not run, or why its result cannot be returned. The function's
/// error type implements `From<Rejected>` (ANN-5).
///
/// ```
/// use std::time::Duration;
/// use retryproof_core::Rejected;
///
/// enum OrderError {
///     TryAgain(Duration),
///     Refused(String),
/// }
///
/// impl From<Rejected> for OrderError {
///     fn from(rejected: Rejected) -> Self {
///         match rejected {
///             Rejected::InFlight { retry_after } => Self::TryAgain(retry_after),
///             other => Self::Refused(other.to_string()),
///         }
///     }
/// }
/// # assert!(matches!(Rejected::Mismatch.into(), OrderError::Refused(_)));
/// # let busy = Rejected::InFlight { retry_after: Duration::from_secs(1) };
/// # assert!(matches!(busy.into(), OrderError::TryAgain(_)));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Rejected {
    /// Another caller still holds the key.
    InFlight {
        /// How long a broker should wait before it redelivers the message: the time left on the
        /// holder's lease, rounded up to whole seconds, at least 1 s (LST-2).
        retry_after: Duration,
    },
    /// The key was used before with a different fingerprint (FP-1).
    Mismatch,
    /// The call lost its lease, and its joined transaction was rolled back (CMP-7).
    LeaseLost,
    /// The work is done, but its result cannot be replayed.
    NotReplayable,
    /// The store failed, the engine refused the call, or the key or a duration is invalid.
    Store(Error),
    /// The function's codec cannot decode the stored value.
    Codec(Error),
    /// The action ran, but recording its result failed (CMP-4). Under the default policy, only a
    /// joined call fails in this way.
    Completion(CompletionError),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight { retry_after } => {
                write!(
                    f,
                    "another caller is working on this key; try again in {} s",
                    retry_after.as_secs()
                )
            }
            Self::Mismatch => f.write_str("the key was used before with a different request"),
            Self::LeaseLost => {
                f.write_str("the call lost its lease, so its joined transaction was rolled back")
            }
            Self::NotReplayable => f.write_str(
                "an earlier call did the work, but its result was not stored and cannot be \
                 returned",
            ),
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

/// Converts the result of an execution into the result of an annotated function (ANN-5). An
/// executed or replayed value becomes `Ok`; every failure becomes an error of the function's own
/// type.
///
/// # Errors
/// Returns the action's own error unchanged. Any other failure becomes a [`Rejected`], which
/// `E::from` converts.
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
