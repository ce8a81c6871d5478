// SPDX-License-Identifier: MIT OR Apache-2.0
//! What cases need beyond the contract, and which cases the kit skips for a subject.

use std::fmt;
use std::time::Duration;

use retryproof_core::IdempotencyStore as _;
#[cfg(doc)]
use retryproof_core::store::ExpiryClock;

use super::cases;
use crate::subject::Subject;

/// The largest value limit that the cases test.
const TRIED: usize = 16 << 20;
/// The largest body that the cases store, apart from those that test a limit.
const LARGE: usize = 1 << 20;
/// The shortest duration that the cases use.
const SHORT: Duration = Duration::from_millis(1);

/// What a case needs beyond the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// Requires [`with_another`](crate::SubjectBuilder::with_another).
    Another,
    /// Requires [`with_purge`](crate::SubjectBuilder::with_purge).
    Purge,
    /// Requires [`with_purge_claims`](crate::SubjectBuilder::with_purge_claims).
    PurgeClaims,
    /// Requires [`with_inspect`](crate::SubjectBuilder::with_inspect).
    Inspect,
    /// Requires [`with_force`](crate::SubjectBuilder::with_force).
    Force,
    /// Requires [`with_audit`](crate::SubjectBuilder::with_audit).
    Audit,
    /// Requires [`with_corrupt`](crate::SubjectBuilder::with_corrupt).
    Corrupt,
    /// Requires [`with_clock`](crate::SubjectBuilder::with_clock), or `time = real` and a profile
    /// without [`ExpiryClock::Process`].
    ClockApart,
    /// Requires [`with_writes`](crate::SubjectBuilder::with_writes).
    Writes,
    /// Requires [`with_wake_ups`](crate::SubjectBuilder::with_wake_ups).
    WakeUps,
    /// Requires [`with_joined`](crate::SubjectBuilder::with_joined).
    Joined,
    /// Requires [`with_identities`](crate::SubjectBuilder::with_identities).
    Identities,
    /// Requires a limit on the size of values that is small enough to test: at most 16 MiB.
    SmallLimit,
    /// Requires [`with_round_trips`](crate::SubjectBuilder::with_round_trips).
    RoundTrips,
}

impl Need {
    const ALL: [Self; 14] = [
        Self::Another,
        Self::Purge,
        Self::PurgeClaims,
        Self::Inspect,
        Self::Force,
        Self::Audit,
        Self::Corrupt,
        Self::ClockApart,
        Self::Writes,
        Self::WakeUps,
        Self::Joined,
        Self::Identities,
        Self::SmallLimit,
        Self::RoundTrips,
    ];
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Another => "a second handle on the same data",
            Self::Purge => "purge",
            Self::PurgeClaims => "claims that keep other processes from purging",
            Self::Inspect => "inspection",
            Self::Force => "interventions by operators",
            Self::Audit => "an audit table",
            Self::Corrupt => "a way to damage a record",
            Self::ClockApart => "a clock that differs from the runtime's",
            Self::Writes => "a number that changes with its writes",
            Self::WakeUps => "wake-ups that arrive before a waiter's next read",
            Self::Joined => "transactions that the store joins",
            Self::Identities => "hashed identities",
            Self::SmallLimit => "a limit on the size of values that is 16 MiB or less",
            Self::RoundTrips => "a count of its round trips",
        })
    }
}

impl Subject {
    /// Returns whether the subject meets this need.
    pub(crate) fn offers(&self, need: Need) -> bool {
        let largest = self.store().profile().max_value;
        match need {
            Need::Another => self.has_another(),
            Need::Purge => self.store().can_purge(),
            Need::PurgeClaims => self.keeps_claims(),
            Need::Inspect => self.can_inspect(),
            Need::Force => self.store().can_force(),
            Need::Audit => self.store().can_audit(),
            Need::Corrupt => self.has_corrupt(),
            Need::ClockApart => self.has_clock_apart(),
            Need::Writes => self.counts_writes(),
            Need::WakeUps => self.wakes(),
            Need::Joined => self.joined().is_some(),
            Need::Identities => self.has_identities(),
            Need::SmallLimit => largest <= TRIED,
            Need::RoundTrips => self.counts_round_trips(),
        }
    }
}

/// Returns one line that says how many cases test the subject, which cases are skipped and why, and
/// to which profile the store was held.
#[must_use]
pub fn summary(subject: &Subject) -> String {
    let lacking: Vec<_> = Need::ALL.into_iter().filter(|need| !subject.offers(*need)).collect();
    let judged =
        cases().iter().filter(|case| case.needs.iter().all(|need| !lacking.contains(need)));
    let mut line = format!(
        "({}): {} of {} cases run",
        subject.store().profile().name,
        judged.count(),
        cases().len()
    );
    let mut link = "; skipped, grouped by what the store does not offer: ";
    for need in lacking {
        // A case with two unmet needs is listed under both.
        let names: Vec<_> = cases()
            .iter()
            .filter(|case| case.needs.contains(&need))
            .map(|case| case.name)
            .collect();
        line.push_str(&format!("{link}{need} ({}): {}", names.len(), names.join(", ")));
        link = "; ";
    }
    let profile = subject.store().profile();
    line.push_str(&format!("; profile: {profile}"));
    let mut link = "; not applicable because of the profile: ";
    if profile.min_duration > SHORT {
        let shortest = profile.min_duration;
        line.push_str(&format!("{link}leases and ttls shorter than {shortest:?}"));
        link = ", ";
    }
    if profile.max_value < LARGE {
        line.push_str(&format!("{link}values of more than {} bytes", profile.max_value));
    }
    line
}
