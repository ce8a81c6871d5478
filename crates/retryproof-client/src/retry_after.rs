// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Retry-After` in both forms: seconds, or a date (RFC 9110, section 10.2.3).

use std::time::{Duration, SystemTime};

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName};

/// Returns how long the client should wait, according to the server. A header line that is neither
/// a number nor a date is ignored. If several lines are valid, the longest wait counts.
///
/// A date is compared with the answer's own `Date`: both come from the server's clock, so the local
/// clock does not matter. `now` is used only if the answer has no readable `Date`.
pub(crate) fn read(headers: &HeaderMap, now: impl FnOnce() -> SystemTime) -> Option<Duration> {
    let mut now = Some(now);
    let mut base = None;
    let mut longest = None;
    for line in headers.get_all(RETRY_AFTER) {
        let Ok(line) = line.to_str() else { continue };
        let line = line.trim_matches([' ', '\t']);
        let wait = match seconds(line) {
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => httpdate::parse_http_date(line).ok().map(|until| {
                let sent = *base.get_or_insert_with(|| {
                    date(headers, &DATE).or_else(|| now.take().map(|now| now())).unwrap_or(until)
                });
                until.duration_since(sent).unwrap_or_default()
            }),
        };
        longest = longest.max(wait);
    }
    longest
}

/// Parses `delay-seconds = 1*DIGIT`: no sign, no fraction, no space. A number too large for `u64`
/// counts as `u64::MAX`.
fn seconds(line: &str) -> Option<u64> {
    let digits = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| line.parse().unwrap_or(u64::MAX))
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use proptest::prelude::*;

    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const THEN: Duration = Duration::from_secs(784_111_777);

    fn wait(lines: &[&str], date: Option<&str>, now: SystemTime) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(RETRY_AFTER, line.parse().unwrap());
        }
        if let Some(date) = date {
            headers.insert(DATE, date.parse().unwrap());
        }
        read(&headers, || now).map(|wait| wait.as_secs())
    }

    #[test]
    fn http_10_seconds_are_digits_and_nothing_else() {
        let now = UNIX_EPOCH + THEN;
        for (line, expected) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("007", Some(7)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("1 ", Some(1)),
            ("1s", None),
            ("soon", None),
            ("\u{661}", None),
        ] {
            assert_eq!(wait(&[line], None, now), expected, "{line:?}");
        }
        assert_eq!(wait(&[], None, now), None);
    }

    #[test]
    fn http_10_all_three_date_formats_of_rfc_9110_are_read() {
        let sent = Some("Sun, 06 Nov 1994 08:49:30 GMT");
        for line in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(wait(&[line], sent, UNIX_EPOCH), Some(7), "{line}");
        }
    }

    #[test]
    fn http_10_dates_that_are_no_dates_say_nothing() {
        for line in [
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 25:49:37 GMT",
            "sun, 06 nov 1994 08:49:37 gmt",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "1994-11-06T08:49:37Z",
            "Sun, 06 Nov 0000 08:49:37 GMT",
        ] {
            assert_eq!(wait(&[line], None, UNIX_EPOCH + THEN), None, "{line}");
        }
    }

    #[test]
    fn http_10_a_date_is_judged_by_the_answers_own_clock_whatever_this_machine_thinks() {
        let (sent, until) =
            (Some("Sun, 06 Nov 1994 08:49:30 GMT"), "Sun, 06 Nov 1994 08:49:37 GMT");
        for now in [UNIX_EPOCH, UNIX_EPOCH + THEN, UNIX_EPOCH + THEN * 2] {
            assert_eq!(wait(&[until], sent, now), Some(7));
        }
        // Without a readable `Date`, this machine's clock is used.
        let now = UNIX_EPOCH + THEN - Duration::from_secs(3);
        assert_eq!(wait(&[until], None, now), Some(3));
        assert_eq!(wait(&[until], Some("yesterday"), now), Some(3));
    }

    #[test]
    fn http_10_a_date_in_the_past_is_no_wait() {
        let until = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(wait(&[until], Some("Sun, 06 Nov 1994 08:50:00 GMT"), UNIX_EPOCH), Some(0));
        assert_eq!(wait(&[until], None, UNIX_EPOCH + THEN * 2), Some(0));
    }

    #[test]
    fn http_10_of_several_lines_the_longest_counts() {
        let sent = Some("Sun, 06 Nov 1994 08:49:30 GMT");
        assert_eq!(wait(&["2", "Sun, 06 Nov 1994 08:49:37 GMT", "x"], sent, UNIX_EPOCH), Some(7));
        assert_eq!(wait(&["9", "Sun, 06 Nov 1994 08:49:37 GMT"], sent, UNIX_EPOCH), Some(9));
    }

    proptest! {
        #[test]
        fn http_10_nothing_that_a_server_writes_is_too_much(
            line in "[ -~]{0,40}|[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} \
                 [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
            date in "[ -~]{0,40}|[A-Z][a-z]{2}, [0-9]{2} (Jan|Feb|Nov) [0-9]{4} \
                 [0-2][0-9]:[0-5][0-9]:[0-5][0-9] GMT",
        ) {
            let _ = wait(&[&line], Some(&date), UNIX_EPOCH);
        }
    }
}
