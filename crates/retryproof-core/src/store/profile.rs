// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`StoreProfile`]: what a store promises beyond the contract, and where its promise is smaller.

use std::fmt;
use std::time::Duration;

use crate::identity::IdentitySecret;
use crate::seal::Sealing;

/// A store's name, limits and abilities, for checks and messages.
///
/// The conformance kit holds a store to its profile: a store that declares less is tested for what
/// it declares. The kit prints the profile, so that readers see which promises the store does not
/// make (STO-2).
///
/// ```
/// use std::time::Duration;
/// use retryproof_core::store::{ExpiryClock, StoreProfile};
///
/// let second = Duration::from_secs(1);
/// let profile = StoreProfile::new("register")
///     .with_max_value(256 << 10)
///     .with_durations(2 * second, second)
///     .with_max_poll(5 * second)
///     .with_max_round_trips(2);
/// assert_eq!(profile.expiry_clock, ExpiryClock::Server);
/// assert_eq!(profile.round_up(Duration::from_millis(2_500)), 3 * second);
/// assert_eq!(
///     profile.to_string(),
///     "values of up to 262144 bytes; leases and ttls from 2s to 315360000s in steps of 1s, judged \
///      by the server's clock; a waiter reads again after 5s at the latest; up to 2 round trips for \
///      a call without contention"
/// );
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreProfile {
    /// A short name, such as `"memory"` or `"sqlite"`.
    pub name: &'static str,
    /// The largest value that [`complete`](super::IdempotencyStore::complete) accepts, in bytes.
    pub max_value: usize,
    /// The shortest lease or ttl that the store can keep. The engine refuses a call with a shorter
    /// one (STO-1).
    pub min_duration: Duration,
    /// The longest lease or ttl that the store can keep. The engine refuses a call with a longer
    /// one.
    pub max_duration: Duration,
    /// The step in which the store keeps durations, at least 1 ns. A duration between two steps is
    /// rounded up, so that no lease and no result ends early (STO-1).
    pub resolution: Duration,
    /// The clock that decides when a lease or a ttl is over (ACQ-7).
    pub expiry_clock: ExpiryClock,
    /// The longest time after which a waiter reads the record again if no notification wakes it. A
    /// change whose notification is lost delays the waiter by no more than this time (ACQ-4).
    pub max_poll: Duration,
    /// The largest number of round trips to the server that a call without contention costs, on a
    /// connection in use (ACQ-8). A takeover, an acquire that is sent again, and an acquire of
    /// a record that another process has changed may cost one more.
    pub max_round_trips: u32,
    /// Whether the store removes expired records without [`Purge`](super::Purge) (STO-4).
    pub reclaims: bool,
    /// Whether the records exist only in this process and every acquire and completion is ready at
    /// its first poll.
    ///
    /// If so, the engine polls these calls without allocating, and creates owner ids without a
    /// system call. After a fork, two processes can create the same id, which is safe only if they
    /// share no records (ACQ-9).
    ///
    /// A wrapper must call [`without_immediate`](Self::without_immediate) on the profile if its own
    /// calls can wait. Otherwise, the engine drops an acquire or a completion that has to wait, and
    /// sends it again with the same owner. The repetition is harmless (ACQ-9, CMP-3).
    pub immediate: bool,
    /// The secret of a store with hashed identities (ID-5). [`SharedStore`](super::SharedStore)
    /// then replaces the key in each call by a digest.
    pub identity_secret: Option<IdentitySecret>,
    /// The sealer of a [`SharedStore`](super::SharedStore) that a wrapper wraps, so that the
    /// wrapped store seals too.
    pub(crate) sealing: Option<Sealing>,
}

/// The clock that decides when a lease or a ttl is over (ACQ-7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpiryClock {
    /// The monotonic clock of the process, for a store whose records only one process sees.
    Process,
    /// The wall clock of the host, which all processes that share the store's file also share.
    Host,
    /// The clock of the server. If a standby or a replica takes over, its clock counts from then
    /// on, so leases end early or late by the difference.
    Server,
}

impl fmt::Display for ExpiryClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "the process's own clock",
            Self::Host => "the host's clock",
            Self::Server => "the server's clock",
        })
    }
}

impl StoreProfile {
    /// Creates a profile for a store on a server, without special abilities. The profile allows
    /// values of any size, and durations of up to 3,650 days in steps of 1 µs. A waiter polls at
    /// least every 50 ms, and a call costs one round trip.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            max_value: usize::MAX,
            min_duration: Duration::from_micros(1),
            max_duration: Duration::from_secs(3_650 * 86_400),
            resolution: Duration::from_micros(1),
            expiry_clock: ExpiryClock::Server,
            max_poll: Duration::from_millis(50),
            max_round_trips: 1,
            reclaims: false,
            immediate: false,
            identity_secret: None,
            sealing: None,
        }
    }

    /// Sets the size of the largest value that the store accepts, in bytes.
    #[must_use]
    pub fn with_max_value(mut self, bytes: usize) -> Self {
        self.max_value = bytes;
        self
    }

    /// Sets the shortest lease or ttl that the store can keep, and the step in which it keeps
    /// durations. A step of zero becomes 1 ns.
    #[must_use]
    pub fn with_durations(mut self, shortest: Duration, step: Duration) -> Self {
        self.min_duration = shortest;
        self.resolution = step.max(Duration::from_nanos(1));
        self
    }

    /// Sets the clock that decides when a lease or a ttl is over.
    #[must_use]
    pub fn with_expiry_clock(mut self, clock: ExpiryClock) -> Self {
        self.expiry_clock = clock;
        self
    }

    /// Sets the longest time after which a waiter reads the record again without a notification.
    #[must_use]
    pub fn with_max_poll(mut self, pause: Duration) -> Self {
        self.max_poll = pause;
        self
    }

    /// Sets the largest number of round trips that a call without contention costs.
    #[must_use]
    pub fn with_max_round_trips(mut self, trips: u32) -> Self {
        self.max_round_trips = trips;
        self
    }

    /// Declares that the store removes expired records itself.
    #[must_use]
    pub fn with_reclaim(mut self) -> Self {
        self.reclaims = true;
        self
    }

    /// Declares that acquires and completions never wait, and that no other process shares the
    /// records. The process's own clock then decides when a lease is over, and a call costs no
    /// round trip.
    #[must_use]
    pub fn with_immediate(mut self) -> Self {
        self.immediate = true;
        self.expiry_clock = ExpiryClock::Process;
        self.max_round_trips = 0;
        self
    }

    /// Declares that the store keeps digests instead of keys, if `secret` is not `None` (ID-5).
    #[must_use]
    pub fn with_identity_secret(mut self, secret: Option<IdentitySecret>) -> Self {
        self.identity_secret = secret;
        self
    }

    /// Declares that a call can wait. A wrapper around an immediate store uses this method.
    #[must_use]
    pub fn without_immediate(mut self) -> Self {
        self.immediate = false;
        self
    }

    /// Returns the duration that the store keeps for a lease or a ttl of length `duration`: the
    /// next multiple of [`resolution`](Self::resolution) that is not shorter.
    #[must_use]
    pub fn round_up(&self, duration: Duration) -> Duration {
        let step = self.resolution.as_nanos();
        if step <= 1 {
            return duration;
        }
        let over = duration.as_nanos() % step;
        if over == 0 {
            return duration;
        }
        let rest = u64::try_from(step - over).unwrap_or(u64::MAX);
        duration.saturating_add(Duration::from_nanos(rest))
    }
}

/// Prints what the store promises, in one line.
impl fmt::Display for StoreProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max_value {
            usize::MAX => f.write_str("values of any size; ")?,
            bytes => write!(f, "values of up to {bytes} bytes; ")?,
        }
        write!(
            f,
            "leases and ttls from {:?} to {:?} in steps of {:?}, judged by {}; a waiter reads again \
             after {:?} at the latest; ",
            self.min_duration, self.max_duration, self.resolution, self.expiry_clock, self.max_poll
        )?;
        match self.max_round_trips {
            0 => f.write_str("no round trips"),
            1 => f.write_str("one round trip for a call without contention"),
            trips => write!(f, "up to {trips} round trips for a call without contention"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_1_durations_are_rounded_up_to_the_stores_steps() {
        let profile = |step| StoreProfile::new("any").with_durations(Duration::ZERO, step);
        let ms = Duration::from_millis;
        let seconds = profile(ms(1_000));
        for (asked, kept) in [(0, 0), (1, 1_000), (1_000, 1_000), (1_001, 2_000), (2_999, 3_000)] {
            assert_eq!(seconds.round_up(ms(asked)), ms(kept), "{asked} ms");
        }
        let odd = profile(Duration::from_nanos(7));
        assert_eq!(odd.round_up(Duration::from_nanos(15)), Duration::from_nanos(21));
        let exact = profile(Duration::ZERO);
        assert_eq!(exact.round_up(Duration::from_nanos(15)), Duration::from_nanos(15));
        assert_eq!(seconds.round_up(Duration::MAX), Duration::MAX, "an overflow saturates");
    }
}
