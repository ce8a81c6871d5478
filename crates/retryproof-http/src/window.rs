// SPDX-License-Identifier: MIT OR Apache-2.0
//! The published window: `Idempotency-Expires`, the time until which a key is remembered (HTTP-21).

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use retryproof_core::clock::wall_clock_micros;

use crate::header_map::remove_in_order;

/// The name of the field. The field is stored with the response, so that every replay has the same
/// time.
const EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");

/// Adds the field to a response that will be recorded for `ttl`.
pub(crate) fn publish(headers: &mut HeaderMap, ttl: Duration) {
    let now = Duration::from_micros(wall_clock_micros());
    // Round down to a whole second, because `Expires` must never be later than the end of the
    // record's ttl.
    if let Ok(date) = HeaderValue::try_from(http_date(now.saturating_add(ttl).as_secs())) {
        headers.insert(EXPIRES, date);
    }
}

/// Removes the field, even if the handler set it. Called only if the guard publishes the window,
/// because only the guard may then set the field.
pub(crate) fn withdraw(headers: &mut HeaderMap) {
    remove_in_order(headers, &EXPIRES);
}

/// Formats a time as HTTP requires (RFC 9110 section 5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(secs_since_1970: u64) -> String {
    const DAYS: &[&str] = &["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: &[&str] =
        &["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, secs) = (secs_since_1970 / 86_400, secs_since_1970 % 86_400);
    // 1 January 1970 was a Thursday.
    let weekday = nth(DAYS, days + 4);
    // Count from 1 March of the year 0, so that a leap day is the last day of its year. Count in
    // eras of 400 years, because every era has the same number of days.
    let since = days + 719_468;
    let (era, day_of_era) = (since / 146_097, since % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March to January, any five consecutive months have 153 days in total.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    let month = nth(MONTHS, month);
    let (hour, minute, second) = (secs / 3_600, secs / 60 % 60, secs % 60);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Returns the name at `position` modulo the number of names.
fn nth(names: &'static [&'static str], position: u64) -> &'static str {
    let position = usize::try_from(position).unwrap_or_default();
    names.get(position % names.len()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_21_the_date_is_now_plus_the_ttl_without_fractions() {
        let ttl = Duration::from_millis(3_600_999);
        let date_of = |now: Duration| http_date((now + ttl).as_secs());
        let now = || Duration::from_micros(wall_clock_micros());
        let mut headers = HeaderMap::new();
        let before = now();
        publish(&mut headers, ttl);
        let dates = [date_of(before), date_of(now())];
        let published = headers[EXPIRES].to_str().unwrap();
        assert!(dates.iter().any(|date| date == published), "{published}, but not {dates:?}");
    }

    #[test]
    fn http_21_dates_are_written_as_http_writes_them() {
        for (secs, date) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (1_709_164_800, "Thu, 29 Feb 2024 00:00:00 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(http_date(secs), date);
        }
    }
}
