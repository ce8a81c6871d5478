// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations as text for the output.

use std::time::Duration;

/// Writes a duration with its two largest units: `850 ms`, `12 s`, `3 min 20 s`, `2 d 4 h`.
pub(crate) fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |large: u64, unit: &str, small: u64, part: &str| match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {part}"),
    };
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// Whole milliseconds, for JSON.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_largest_units_are_shown() {
        let shown = |ms| spoken(Duration::from_millis(ms));
        assert_eq!(shown(0), "0 ms");
        assert_eq!(shown(850), "850 ms");
        assert_eq!(shown(12_900), "12 s");
        assert_eq!(shown(200_000), "3 min 20 s");
        assert_eq!(shown(3_600_000), "1 h");
        assert_eq!(shown(86_400_000 * 2 + 4 * 3_600_000), "2 d 4 h");
    }
}
