// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

use std::fmt;
use std::time::Duration;

/// The grammar of a duration, as error messages print it.
pub const GRAMMAR: &str =
    "`PnW` or `P[nD][T[nH][nM][n[.f]S]]`, for example `PT30S`, `PT1.5S`, `PT24H`, `P7D`";

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;
const MAX_DECIMALS: usize = 9;

/// The reason why a text is not a duration (CTX-4). The error does not contain the text: the caller
/// reports the text, and the attribute or configuration key where it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DurationError {
    /// The text is empty, or only white space.
    Empty,
    /// A sign: `-PT5S`, `PT-5S`, `+PT5S`.
    Signed,
    /// A lower-case letter in place of an upper-case letter: `pt5s`.
    LowerCase,
    /// The text does not begin with `P`: `24h`, `30`.
    NoPrefix,
    /// Nothing follows the `P` or the `T`.
    NoParts,
    /// Years, or months (an `M` before the `T`).
    Calendar,
    /// Weeks combined with other units.
    MixedWeeks,
    /// A comma before the fraction: `PT1,5S`.
    Comma,
    /// A fraction of a unit other than seconds: `P0.5D`.
    FractionOutsideSeconds,
    /// A fraction without digits, or with more than nine of them.
    FractionDigits,
    /// A unit on the wrong side of the `T`: hours or seconds before the `T`, or days or weeks after
    /// it.
    Misplaced,
    /// A unit that occurs twice, or that follows a smaller unit: `PT5S1M`.
    Order,
    /// A number without its unit, or a unit without its number.
    Incomplete,
    /// A character that is not in the grammar.
    Unexpected,
    /// More than `u64::MAX` seconds.
    TooLong,
}

impl DurationError {
    fn problem(self) -> &'static str {
        match self {
            Self::Empty => "it is empty",
            Self::Signed => "a duration cannot have a sign",
            Self::LowerCase => "its letters must be upper case",
            Self::NoPrefix => "it does not begin with `P`",
            Self::NoParts => "nothing follows the `P` or the `T`",
            Self::Calendar => {
                "years and months are not allowed, because they vary in length (minutes come after \
                 a `T`, as in `PT5M`)"
            }
            Self::MixedWeeks => "weeks cannot be combined with other units",
            Self::Comma => "a fraction must begin with a dot",
            Self::FractionOutsideSeconds => "only seconds can have a fraction",
            Self::FractionDigits => "a fraction must have 1 to 9 digits",
            Self::Misplaced => {
                "weeks and days come before the `T`, hours, minutes and seconds after it"
            }
            Self::Order => "each unit may occur at most once, larger units first",
            Self::Incomplete => "each part must be a number followed by its unit",
            Self::Unexpected => "it contains a character that is not allowed in a duration",
            Self::TooLong => "it is too long to be counted in seconds",
        }
    }
}

/// Prints the problem, then the accepted grammar: `its letters must be upper case; write …`.
impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; write {GRAMMAR}", self.problem())
    }
}

impl std::error::Error for DurationError {}

/// Parses an ISO 8601 duration in the strict grammar (CTX-4).
///
/// # Errors
/// [`DurationError`] if the text does not match the grammar, or if the duration is over `u64::MAX`
/// seconds. The caller checks bounds, such as those of CTX-2.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let Some(parts) = text.strip_prefix('P') else {
        return Err(no_prefix(text));
    };
    match parts.split_once('T') {
        None if parts.is_empty() => Err(DurationError::NoParts),
        None => Ok(Duration::from_secs(days(parts)?)),
        Some((_, "")) => Err(DurationError::NoParts),
        Some((date, time)) => {
            if date.ends_with('W') {
                return Err(DurationError::MixedWeeks);
            }
            let (seconds, nanos) = clock(time)?;
            let seconds = days(date)?.checked_add(seconds).ok_or(DurationError::TooLong)?;
            Ok(Duration::new(seconds, nanos))
        }
    }
}

/// Formats a duration so that [`parse`] reads it back: `parse(&format(d).to_string()) == Ok(d)` for
/// every `Duration`. The text consists of days, hours, minutes and seconds, and leaves out the
/// parts that are zero. A zero duration is `PT0S`.
#[must_use]
pub fn format(duration: Duration) -> Formatted {
    Formatted(duration)
}

/// Displays a duration in the form that [`parse`] reads. [`format()`] returns this type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formatted(Duration);

impl fmt::Display for Formatted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        let (days, in_day) = (total / DAY, total % DAY);
        f.write_str("P")?;
        if days > 0 {
            write!(f, "{days}D")?;
        }
        if in_day == 0 && nanos == 0 {
            return if days == 0 { f.write_str("T0S") } else { Ok(()) };
        }
        f.write_str("T")?;
        for (count, unit) in [(in_day / HOUR, 'H'), (in_day % HOUR / MINUTE, 'M')] {
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        match (in_day % MINUTE, nanos) {
            (0, 0) => Ok(()),
            (seconds, 0) => write!(f, "{seconds}S"),
            (seconds, nanos) => {
                let decimals = format!("{nanos:09}");
                write!(f, "{seconds}.{}S", decimals.trim_end_matches('0'))
            }
        }
    }
}

/// Formats a duration for people to read, in at most two units, for example `850 ms`, `12 s` or `3
/// min 20 s`. Smaller units are dropped. [`parse`] does not read this form.
#[must_use]
pub fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |large: u64, unit: &str, small: u64, part: &str| match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {part}"),
    };
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..MINUTE => format!("{seconds} s"),
        MINUTE..HOUR => two(seconds / MINUTE, "min", seconds % MINUTE, "s"),
        HOUR..DAY => two(seconds / HOUR, "h", seconds % HOUR / MINUTE, "min"),
        _ => two(seconds / DAY, "d", seconds % DAY / HOUR, "h"),
    }
}

/// Picks the most helpful error for a text that does not begin with `P`.
fn no_prefix(text: &str) -> DurationError {
    match text.trim_start().as_bytes() {
        [] => DurationError::Empty,
        [b'+' | b'-', ..] => DurationError::Signed,
        [b'p', ..] => DurationError::LowerCase,
        _ => DurationError::NoPrefix,
    }
}

/// Parses `nW`, `nD` or an empty text, and returns the seconds.
fn days(text: &str) -> Result<u64, DurationError> {
    if text.is_empty() {
        return Ok(0);
    }
    let part = Part::take(text)?;
    let length = match part.unit {
        'W' => WEEK,
        'D' => DAY,
        'Y' | 'M' => return Err(DurationError::Calendar),
        'H' | 'S' => return Err(DurationError::Misplaced),
        other => return Err(foreign(other)),
    };
    if part.decimals.is_some() {
        return Err(DurationError::FractionOutsideSeconds);
    }
    if part.rest.is_empty() {
        return part.whole()?.checked_mul(length).ok_or(DurationError::TooLong);
    }
    // The first part is valid, so the mistake is in the rest.
    Err(match Part::take(part.rest)?.unit {
        _ if part.unit == 'W' => DurationError::MixedWeeks,
        'W' => DurationError::MixedWeeks,
        'Y' | 'M' => DurationError::Calendar,
        'H' | 'S' => DurationError::Misplaced,
        'D' => DurationError::Order,
        other => foreign(other),
    })
}

/// Parses `[nH][nM][n[.f]S]`, with at least one part, into seconds and nanoseconds.
fn clock(mut text: &str) -> Result<(u64, u32), DurationError> {
    let mut seconds = 0_u64;
    let mut nanos = 0;
    let mut smallest = u64::MAX;
    while !text.is_empty() {
        let part = Part::take(text)?;
        let length = match part.unit {
            'H' => HOUR,
            'M' => MINUTE,
            'S' => 1,
            'W' | 'D' => return Err(DurationError::Misplaced),
            'Y' => return Err(DurationError::Calendar),
            other => return Err(foreign(other)),
        };
        if length >= smallest {
            return Err(DurationError::Order);
        }
        if part.decimals.is_some() && part.unit != 'S' {
            return Err(DurationError::FractionOutsideSeconds);
        }
        nanos = part.nanos()?;
        seconds = part
            .whole()?
            .checked_mul(length)
            .and_then(|part| seconds.checked_add(part))
            .ok_or(DurationError::TooLong)?;
        smallest = length;
        text = part.rest;
    }
    Ok((seconds, nanos))
}

/// One number and its unit, split off the front of the text.
struct Part<'a> {
    digits: &'a str,
    decimals: Option<&'a str>,
    unit: char,
    rest: &'a str,
}

impl<'a> Part<'a> {
    fn take(text: &'a str) -> Result<Self, DurationError> {
        let (digits, after) = split_digits(text);
        if digits.is_empty() {
            return Err(match after.chars().next() {
                Some('+' | '-') => DurationError::Signed,
                Some('.' | ',') => DurationError::Incomplete,
                Some(unit) if "YMWDHST".contains(unit) => DurationError::Incomplete,
                Some(other) => foreign(other),
                None => DurationError::Incomplete,
            });
        }
        let (decimals, after) = match after.strip_prefix('.') {
            Some(fraction) => {
                let (decimals, after) = split_digits(fraction);
                (Some(decimals), after)
            }
            None => (None, after),
        };
        let mut rest = after.chars();
        let unit = rest.next().ok_or(DurationError::Incomplete)?;
        Ok(Self { digits, decimals, unit, rest: rest.as_str() })
    }

    fn whole(&self) -> Result<u64, DurationError> {
        // `digits` contains only digits, so parsing fails only if the number overflows.
        self.digits.parse().map_err(|_| DurationError::TooLong)
    }

    fn nanos(&self) -> Result<u32, DurationError> {
        let Some(decimals) = self.decimals else { return Ok(0) };
        if decimals.is_empty() || decimals.len() > MAX_DECIMALS {
            return Err(DurationError::FractionDigits);
        }
        format!("{decimals:0<MAX_DECIMALS$}").parse().map_err(|_| DurationError::FractionDigits)
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// Returns the error for a character that is not a unit.
fn foreign(found: char) -> DurationError {
    match found {
        ',' => DurationError::Comma,
        '+' | '-' => DurationError::Signed,
        lower if "ymwdhst".contains(lower) => DurationError::LowerCase,
        _ => DurationError::Unexpected,
    }
}

#[cfg(test)]
mod tests;
