// SPDX-License-Identifier: MIT OR Apache-2.0
//! The findings that several stores report in the same words (OPS-5).

use std::time::Duration;

use retryproof_core::store::StoreFinding;
use retryproof_core::{Error, Result};

/// The largest clock difference that is not reported. The clocks of synchronised machines differ by
/// milliseconds.
const MAX_SKEW: Duration = Duration::from_secs(1);
/// How long an expired record can remain without a finding. The engine purges every minute.
const MAX_UNPURGED: Duration = Duration::from_secs(86_400);

/// Returns a finding if the clocks of the store and of this machine differ by more than a second.
/// All times are in microseconds since 1970. `sent` and `received` are this machine's times before
/// and after the call that read the store's clock, so a slow call does not count as a difference.
#[must_use]
pub fn clock_skew(sent: u64, store: u64, received: u64) -> Option<StoreFinding> {
    let (by, which) = if store < sent {
        (sent - store, "behind")
    } else {
        (store.saturating_sub(received), "ahead of")
    };
    let by = Duration::from_micros(by);
    (by > MAX_SKEW).then(|| {
        StoreFinding::warning(
            "clock",
            format!(
                "The store's clock is {:.1} s {which} the clock of this machine. The store's clock \
                 decides when leases and results end; after a failover, a server with another \
                 clock ends them early or late, and times in logs do not match.",
                by.as_secs_f64()
            ),
            "Synchronise the clocks of all servers and of this machine with NTP.",
        )
    })
}

/// Returns a finding if a record expired more than a day ago and is still there. `expired_ago` is
/// the time since the earliest expiry.
#[must_use]
pub fn unpurged(expired_ago: Duration) -> Option<StoreFinding> {
    (expired_ago > MAX_UNPURGED).then(|| {
        StoreFinding::warning(
            "purge",
            format!(
                "An expired record has not been deleted for {} h, so no purge has finished for \
                 that long. The table grows.",
                expired_ago.as_secs() / 3_600
            ),
            "Run `retryproof purge`. Then check that a service has `purge.enabled = true`, and \
             look for its warnings about the purge.",
        )
    })
}

/// Returns a finding if the user lacks the privileges that `missing` names. `grant` says how to
/// grant these privileges.
#[must_use]
pub fn lacks_privileges(missing: &[&str], grant: impl Into<String>) -> Option<StoreFinding> {
    (!missing.is_empty()).then(|| {
        let problem =
            format!("Calls fail because the user lacks these privileges: {}.", missing.join(", "));
        StoreFinding::error("privilege", problem, grant)
    })
}

/// Returns a finding if the store was set up with an identity secret other than the program's, or
/// if only one of the two has a secret (ID-5). `checked` is what
/// [`MetaRows::check_secret`](crate::MetaRows::check_secret) or
/// [`IdentitySecret::check`](retryproof_core::IdentitySecret::check) returned.
#[must_use]
pub fn other_identities(checked: Result<()>) -> Option<StoreFinding> {
    let error = checked.err()?;
    Some(StoreFinding::error(
        "identities",
        format!("The store does not open with this configuration ({error})."),
        "Set `identity-secret` to the secret with which the store was set up, or remove it if the \
         store was set up with plain keys.",
    ))
}

pub(crate) fn unusable_schema(error: &Error) -> StoreFinding {
    StoreFinding::error(
        "schema",
        format!("The store cannot use its tables ({error})."),
        "Run `retryproof migrate`, or upgrade this program if the tables are newer.",
    )
}

#[cfg(test)]
mod tests {
    use retryproof_core::IdentitySecret;
    use retryproof_core::store::Severity;

    use super::*;

    #[test]
    fn ops_5_only_a_difference_that_the_call_cannot_explain_is_reported() {
        const S: u64 = 1_000_000;
        let skew = |store| clock_skew(100 * S, store, 103 * S).map(|finding| finding.problem);
        for store in [99 * S, 100 * S, 101 * S, 104 * S] {
            assert_eq!(skew(store), None, "{store}");
        }
        assert!(skew(95 * S).is_some_and(|problem| problem.contains("5.0 s behind")));
        assert!(skew(108 * S).is_some_and(|problem| problem.contains("5.0 s ahead of")));
    }

    #[test]
    fn ops_5_an_expired_record_may_stay_for_a_day() {
        assert_eq!(unpurged(MAX_UNPURGED), None);
        let finding = unpurged(MAX_UNPURGED * 2).expect("reported");
        assert!(finding.problem.contains("48 h"), "{}", finding.problem);
        assert_eq!((finding.id, finding.severity), ("purge", Severity::Warning));
    }

    #[test]
    fn ops_5_id_5_identities_are_named_only_if_the_store_does_not_open() {
        let secret = IdentitySecret::new("canary-".repeat(5)).expect("32 bytes");
        let check = |own, recorded| other_identities(IdentitySecret::check(own, recorded));
        assert_eq!(check(None, None), None);
        assert_eq!(check(Some(&secret), Some(secret.mark())), None);
        for (own, recorded, text) in [
            (Some(&secret), None, "set up without an identity secret"),
            (None, Some(secret.mark()), "this program has no identity secret"),
            (Some(&secret), Some(1), "another identity secret"),
        ] {
            let finding = check(own, recorded).expect("reported");
            assert_eq!((finding.id, finding.severity), ("identities", Severity::Error));
            assert!(finding.problem.contains(text), "{}", finding.problem);
            assert!(!format!("{finding:?}").contains("canary"), "{finding:?}");
        }
    }

    #[test]
    fn ops_5_each_missing_privilege_is_named() {
        assert_eq!(lacks_privileges(&[], "GRANT"), None);
        let finding = lacks_privileges(&["INSERT", "DELETE"], "GRANT them.").expect("reported");
        assert!(finding.problem.contains("INSERT, DELETE"), "{}", finding.problem);
        assert_eq!((finding.id, finding.severity), ("privilege", Severity::Error));
    }
}
