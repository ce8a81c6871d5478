// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats durations and times for the output, and returns times as numbers.

use std::time::Duration;

use retryproof::clock::wall_clock_micros;
pub(crate) use retryproof_duration::spoken;

/// Returns the milliseconds since 1970, by this machine's clock.
pub(crate) fn now_millis() -> u64 {
    wall_clock_micros() / 1_000
}

/// Returns whole milliseconds, for JSON.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a time as people write it: `2026-11-22 09:30:00 UTC`. `at` is in milliseconds since
/// 1970.
pub(crate) fn clock_time(at: u64) -> String {
    /// The number of days in 400 years, after which the calendar repeats itself.
    const CYCLE: u64 = 146_097;
    let (mut days, second) = (at / 86_400_000, at / 1_000 % 86_400);
    let mut year = 1970 + days / CYCLE * 400;
    days %= CYCLE;
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    loop {
        let length = 365 + u64::from(is_leap(year));
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_1_a_time_is_a_date_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (1_763_857_500, "2025-11-23 00:25:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (13_574_649_600, "2400-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(clock_time(seconds * 1_000 + 999), text);
        }
    }
}
