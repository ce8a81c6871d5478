// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the pauses of an exponential backoff with full jitter. Each pause is random, between
//! zero and a ceiling that doubles up to a cap.

use std::time::Duration;

/// Returns the ceiling of the random pause after an attempt. `attempt` counts from 1.
pub(crate) fn ceiling(base: Duration, cap: Duration, attempt: u32) -> Duration {
    let doubled =
        1_u32.checked_shl(attempt.saturating_sub(1)).and_then(|factor| base.checked_mul(factor));
    doubled.unwrap_or(cap).min(cap)
}

/// Returns a pause between zero and `ceiling`, chosen by the 64 random bits in `bits`.
pub(crate) fn jitter(ceiling: Duration, bits: u64) -> Duration {
    let nanos = (ceiling.as_nanos() * (u128::from(bits) + 1)) >> 64;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: Duration = Duration::from_millis(100);
    const CAP: Duration = Duration::from_secs(3);

    #[test]
    fn the_ceiling_doubles_up_to_its_cap_and_never_overflows() {
        let millis = |attempt| ceiling(BASE, CAP, attempt).as_millis();
        assert_eq!([1, 2, 3, 4, 5].map(millis), [100, 200, 400, 800, 1600]);
        for attempt in [6, 7, 31, 32, 33, 64, u32::MAX] {
            assert_eq!(ceiling(BASE, CAP, attempt), CAP, "{attempt}");
        }
        assert_eq!(ceiling(Duration::MAX, Duration::MAX, 40), Duration::MAX);
    }

    #[test]
    fn jitter_is_full_from_nothing_to_the_ceiling_and_even() {
        assert_eq!(jitter(CAP, 0), Duration::ZERO);
        assert_eq!(jitter(CAP, u64::MAX), CAP);
        assert_eq!(jitter(CAP, u64::MAX / 2), CAP / 2);
        assert_eq!(jitter(Duration::ZERO, u64::MAX), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn no_wait_is_longer_than_the_cap(
            attempt: u32, bits: u64, base in 0_u64..1 << 50, cap in 0_u64..1 << 50,
        ) {
            let (base, cap) = (Duration::from_nanos(base), Duration::from_nanos(cap));
            prop_assert!(jitter(ceiling(base, cap, attempt), bits) <= cap);
        }
    }
}
