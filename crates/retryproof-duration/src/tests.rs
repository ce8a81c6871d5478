// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests which texts the grammar accepts and which it refuses (CTX-4).

use proptest::prelude::*;

use super::*;

#[test]
fn ctx_4_accepts_the_grammar() {
    let accepted = [
        ("PT0S", Duration::ZERO),
        ("P0D", Duration::ZERO),
        ("P0W", Duration::ZERO),
        ("PT5S", Duration::from_secs(5)),
        ("PT005S", Duration::from_secs(5)),
        ("PT1.5S", Duration::from_millis(1500)),
        ("PT0.000000001S", Duration::from_nanos(1)),
        ("PT0.25S", Duration::from_millis(250)),
        ("PT1M", Duration::from_secs(60)),
        ("PT90M", Duration::from_secs(5400)),
        ("PT1H1M1S", Duration::from_secs(3661)),
        ("PT1H1S", Duration::from_secs(3601)),
        ("PT24H", Duration::from_secs(86_400)),
        ("P1D", Duration::from_secs(86_400)),
        ("P1DT2H3M4.5S", Duration::from_millis(93_784_500)),
        ("P1DT0S", Duration::from_secs(86_400)),
        ("P2W", Duration::from_secs(14 * 86_400)),
        ("P3650D", Duration::from_secs(3650 * 86_400)),
        ("PT18446744073709551615.999999999S", Duration::MAX),
    ];
    for (text, expected) in accepted {
        assert_eq!(parse(text), Ok(expected), "{text}");
    }
}

#[test]
fn ctx_4_refuses_everything_else_with_its_reason() {
    use DurationError::*;
    let refused = [
        ("", Empty),
        ("  ", Empty),
        ("24h", NoPrefix),
        ("30", NoPrefix),
        (" PT5S ", NoPrefix),
        ("T5S", NoPrefix),
        ("-PT5S", Signed),
        ("+PT5S", Signed),
        ("P-1D", Signed),
        ("PT-5S", Signed),
        ("PT5-S", Signed),
        ("pt5s", LowerCase),
        ("p1d", LowerCase),
        ("PT5s", LowerCase),
        ("P1d", LowerCase),
        ("Pt5S", LowerCase),
        ("P", NoParts),
        ("PT", NoParts),
        ("P1DT", NoParts),
        ("P1WT", NoParts),
        ("P1Y", Calendar),
        ("P1M", Calendar),
        ("P1Y2M3DT4H", Calendar),
        ("P1D1M", Calendar),
        ("PT1Y", Calendar),
        ("P1W1D", MixedWeeks),
        ("P1D1W", MixedWeeks),
        ("P1WT1S", MixedWeeks),
        ("PT1,5S", Comma),
        ("P0,5D", Comma),
        ("P0.5D", FractionOutsideSeconds),
        ("P0.5W", FractionOutsideSeconds),
        ("PT0.5H", FractionOutsideSeconds),
        ("PT1.5M", FractionOutsideSeconds),
        ("PT1.5M3S", FractionOutsideSeconds),
        ("PT1.S", FractionDigits),
        ("PT1.1234567890S", FractionDigits),
        ("P5S", Misplaced),
        ("P5H", Misplaced),
        ("PT1D", Misplaced),
        ("PT1W", Misplaced),
        ("PT5S1M", Order),
        ("PT1S2S", Order),
        ("PT1.5S2S", Order),
        ("P1D2D", Order),
        ("PT5", Incomplete),
        ("PTS", Incomplete),
        ("PD", Incomplete),
        ("PT.5S", Incomplete),
        ("PT1M5", Incomplete),
        ("P1", Incomplete),
        ("PT1T2S", Unexpected),
        ("PTT5S", Incomplete),
        ("PT5S ", Unexpected),
        ("PT 5S", Unexpected),
        ("PT5X", Unexpected),
        ("PT1..5S", Unexpected),
        ("PT\u{665}S", Unexpected),
        ("P1\u{e9}", Unexpected),
        ("PT18446744073709551616S", TooLong),
        ("PT99999999999999999999999999S", TooLong),
        ("P18446744073709551615D", TooLong),
        ("P18446744073709551615W", TooLong),
        ("PT18446744073709551615M", TooLong),
        ("PT1M18446744073709551615S", TooLong),
        ("P1DT18446744073709551615S", TooLong),
    ];
    for (text, expected) in refused {
        assert_eq!(parse(text), Err(expected), "{text:?}");
    }
}

#[test]
fn ctx_4_message_says_the_problem_and_the_grammar() {
    let message = parse("P1M").unwrap_err().to_string();
    assert!(message.starts_with("years and months are not allowed"), "{message}");
    assert!(message.ends_with(GRAMMAR), "{message}");
}

#[test]
fn ctx_4_format_is_short() {
    let shown = [
        (Duration::ZERO, "PT0S"),
        (Duration::from_secs(30), "PT30S"),
        (Duration::from_millis(1_500), "PT1.5S"),
        (Duration::from_nanos(1), "PT0.000000001S"),
        (Duration::from_secs(60), "PT1M"),
        (Duration::from_millis(60_001), "PT1M0.001S"),
        (Duration::from_secs(86_400), "P1D"),
        (Duration::from_secs(86_400 + 3_600), "P1DT1H"),
        (Duration::from_millis(86_400_500), "P1DT0.5S"),
        (Duration::MAX, "P213503982334601DT7H15.999999999S"),
    ];
    for (duration, expected) in shown {
        assert_eq!(format(duration).to_string(), expected);
    }
}

/// Generates texts that nearly match the grammar. Purely random strings almost never match it.
fn near_grammar() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        proptest::sample::select(vec![
            "P", "T", "1", "0", "59", ".", ",", "-", "W", "D", "H", "M", "S", "Y", "s", " ",
        ]),
        0..8,
    )
    .prop_map(|pieces| pieces.concat())
}

/// Checks a text with a second implementation of the grammar, kept as simple as possible.
fn by_the_book(text: &str) -> bool {
    fn number(text: &str) -> bool {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
    }
    fn seconds(text: &str) -> bool {
        match text.split_once('.') {
            None => number(text),
            Some((whole, decimals)) => number(whole) && number(decimals) && decimals.len() <= 9,
        }
    }
    fn optional(text: &str, unit: char, valid: fn(&str) -> bool) -> Option<&str> {
        match text.split_once(unit) {
            None => Some(text),
            Some((count, rest)) => valid(count).then_some(rest),
        }
    }
    let Some(rest) = text.strip_prefix('P') else { return false };
    if let Some(weeks) = rest.strip_suffix('W') {
        return number(weeks);
    }
    let (date, time) = match rest.split_once('T') {
        None => (rest, None),
        Some((date, time)) => (date, Some(time)),
    };
    let date_fits = optional(date, 'D', number) == Some("");
    match time {
        None => !date.is_empty() && date_fits,
        Some(time) => {
            let left = optional(time, 'H', number)
                .and_then(|rest| optional(rest, 'M', number))
                .and_then(|rest| optional(rest, 'S', seconds));
            !time.is_empty() && date_fits && left == Some("")
        }
    }
}

#[test]
fn a_spoken_duration_has_its_two_largest_units() {
    let shown = |ms| spoken(Duration::from_millis(ms));
    assert_eq!(shown(0), "0 ms");
    assert_eq!(shown(850), "850 ms");
    assert_eq!(shown(12_900), "12 s");
    assert_eq!(shown(200_000), "3 min 20 s");
    assert_eq!(shown(3_600_000), "1 h");
    assert_eq!(shown(86_400_000 * 2 + 4 * 3_600_000), "2 d 4 h");
}

proptest! {
    #[test]
    fn ctx_4_parse_inverts_format(seconds: u64, nanos in 0_u32..1_000_000_000) {
        let duration = Duration::new(seconds, nanos);
        prop_assert_eq!(parse(&format(duration).to_string()), Ok(duration));
    }

    #[test]
    fn ctx_4_no_text_panics(text: String) {
        let _ = parse(&text);
    }

    #[test]
    fn ctx_4_agrees_with_the_plain_grammar(text in near_grammar()) {
        prop_assume!(text.len() < 20); // another test covers overflow
        prop_assert_eq!(parse(&text).is_ok(), by_the_book(&text), "{:?}", text);
    }
}
