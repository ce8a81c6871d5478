// SPDX-License-Identifier: MIT OR Apache-2.0
//! ISO 8601 durations (CTX-4).

use std::time::Duration;

use super::{about, kind, text};

/// A parser of durations.
pub type Parse = fn(&str) -> Option<Duration>;

pub(super) fn run(input: &[u8]) -> u64 {
    check(input, |text| retryproof_duration::parse(text).ok())
}

/// Checks the properties of a parser.
///
/// # Panics
/// If a property does not hold.
#[must_use]
pub fn check(input: &[u8], parse: Parse) -> u64 {
    let text = text(input);
    let parsed = parse(&text);
    assert_eq!(parsed, expected(&text), "{text:?}");
    if let Err(error) = retryproof_duration::parse(&text) {
        assert!(!error.to_string().is_empty());
        return kind(std::mem::discriminant(&error));
    }
    let Some(duration) = parsed else { return 0 };
    let written = retryproof_duration::format(duration).to_string();
    assert_eq!(parse(&written), Some(duration), "{written}");
    assert!(!retryproof_duration::spoken(duration).is_empty());
    let parts = text
        .bytes()
        .filter(u8::is_ascii_uppercase)
        .fold(0_u32, |set, letter| set | 1 << (letter - b'A'));
    kind((
        parts,
        about(usize::try_from(duration.as_secs()).unwrap_or(0)),
        duration.subsec_nanos() > 0,
    ))
}

/// Parses the text with a second implementation of the grammar, which adds up nanoseconds.
fn expected(text: &str) -> Option<Duration> {
    const SECOND: u128 = 1_000_000_000;
    let rest = text.strip_prefix('P')?;
    let (date, time) = match rest.split_once('T') {
        Some((_, "")) => return None,
        Some((date, time)) => (date, time),
        None if rest.is_empty() => return None,
        None => (rest, ""),
    };
    let whole = |digits: &str| {
        let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        all.then(|| digits.parse::<u64>().ok().map(u128::from)).flatten()
    };
    let mut total = match date {
        "" => 0,
        date => match date.split_at_checked(date.len() - 1)? {
            (weeks, "W") if time.is_empty() => whole(weeks)? * 604_800 * SECOND,
            (days, "D") => whole(days)? * 86_400 * SECOND,
            _ => return None,
        },
    };
    let mut rest = time;
    for (unit, seconds) in [('H', 3_600), ('M', 60)] {
        if let Some((count, after)) = rest.split_once(unit) {
            total += whole(count)? * seconds * SECOND;
            rest = after;
        }
    }
    if !rest.is_empty() {
        let seconds = rest.strip_suffix('S')?;
        let (seconds, decimals) = match seconds.split_once('.') {
            Some((seconds, decimals)) => (seconds, Some(decimals)),
            None => (seconds, None),
        };
        total += whole(seconds)? * SECOND;
        if let Some(decimals) = decimals {
            whole(decimals).filter(|_| decimals.len() <= 9)?;
            total += format!("{decimals:0<9}").parse::<u128>().ok()?;
        }
    }
    let seconds = u64::try_from(total / SECOND).ok()?;
    Some(Duration::new(seconds, u32::try_from(total % SECOND).ok()?))
}
