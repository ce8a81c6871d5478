// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests the canonical form of RFC 8785, and which bodies are compared raw (FP-3).

use super::number::{shortest, write_decimal};
use super::*;
use proptest::prelude::*;

fn jcs(body: &str) -> Option<String> {
    canonical(body.as_bytes())
        .map(|bytes| String::from_utf8(bytes).expect("canonical JSON should be UTF-8"))
}

fn number(double: f64) -> String {
    let mut out = if double < 0.0 { vec![b'-'] } else { Vec::new() };
    write_decimal(&shortest(double).expect("the double should be finite"), &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn fp_3_numbers_are_written_as_ecmascript_writes_them() {
    // The doubles of RFC 8785 appendix B, by bit pattern.
    for (bits, expected) in [
        (0x0000_0000_0000_0000, "0"),
        (0x8000_0000_0000_0000, "0"),
        (0x0000_0000_0000_0001, "5e-324"),
        (0x8000_0000_0000_0001, "-5e-324"),
        (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
        (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
        (0x4340_0000_0000_0000, "9007199254740992"),
        (0xc340_0000_0000_0000, "-9007199254740992"),
        (0x4430_0000_0000_0000, "295147905179352830000"),
        (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
        (0x44b5_2d02_c7e1_4af6, "1e+23"),
        (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
        (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
        (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
        (0x444b_1ae4_d6e2_ef50, "1e+21"),
        (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
        (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
        (0x41b3_de43_5555_5553, "333333333.3333332"),
        (0x41b3_de43_5555_5554, "333333333.33333325"),
        (0x41b3_de43_5555_5555, "333333333.3333333"),
        (0x41b3_de43_5555_5556, "333333333.3333334"),
        (0x41b3_de43_5555_5557, "333333333.33333343"),
        (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
        (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
    ] {
        assert_eq!(number(f64::from_bits(bits)), expected, "{bits:#x}");
    }
}

#[test]
fn fp_3_canonical_form_sorts_names_by_utf_16_and_unescapes() {
    assert_eq!(
        jcs(r#" { "numbers": [1E30, 4.50, 2e-3, 0.000000000000000000000000001, -0, 10, 1.0],
                  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false] } "#),
        Some(
            r#"{"literals":[null,true,false],"numbers":[1e+30,4.5,0.002,1e-27,0,10,1],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
                .to_owned()
        )
    );
    // In UTF-16, U+1F600 begins with the surrogate D83D. The character therefore sorts before
    // U+FB33, although its code point is larger.
    assert_eq!(
        jcs(
            "{\"\u{fb33}\":1,\"\\ud83d\\ude00\":2,\"\u{f6}\":3,\"\\r\":4,\"1\":5,\"\u{20ac}\":6,\"\u{80}\":7}"
        ),
        Some(
            "{\"\\r\":4,\"1\":5,\"\u{80}\":7,\"\u{f6}\":3,\"\u{20ac}\":6,\"\u{1f600}\":2,\"\u{fb33}\":1}"
                .to_owned()
        )
    );
    assert_eq!(
        jcs(r#"{"b":{"d":[],"c":{}},"a":""}"#),
        Some(r#"{"a":"","b":{"c":{},"d":[]}}"#.to_owned())
    );
}

#[test]
fn fp_3_what_is_not_i_json_is_left_raw() {
    for body in [
        "",
        " ",
        "{",
        "}",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\"}",
        "{a:1}",
        "01",
        "1.",
        ".5",
        "+1",
        "-",
        "1e",
        "nul",
        "true false",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\u{1}\"",
        "\"",
        "'a'",
        "\u{feff}1",
        "NaN",
        // These bodies are legal JSON, but not I-JSON.
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"\u0061":1}"#,
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud800\u0041""#,
        "\"\\ufdd0\"",
        "\"\u{ffff}\"",
        "1e400",
        "1e-400",
        "9007199254740993",
        "333333333.33333329",
        // The nearest double is written as 1424953923781206.2: the last digits 2 and 3 are equally
        // close, and 2 is even.
        "1424953923781206.3",
        "1e99999999999999999999",
    ] {
        assert_eq!(jcs(body), None, "{body:?}");
    }
    assert_eq!(canonical(b"\"\xff\""), None);
}

#[test]
fn fp_3_deep_nesting_is_left_raw_and_does_not_overflow() {
    let nest = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(jcs(&nest(128)).is_some());
    assert_eq!(jcs(&nest(129)), None);
    assert_eq!(jcs(&"[".repeat(1 << 20)), None);
    // The depths of sibling arrays are not added together.
    assert!(jcs(&format!("[{},{}]", nest(127), nest(127))).is_some());
}

/// Writes a double as `write_number` should, but slowly. Takes the shortest digits from the
/// standard library, and resolves ties with the exact value.
fn exact(double: f64) -> String {
    let text = format!("{double:e}");
    let (mantissa, _) = text.split_once('e').unwrap();
    let last = mantissa.len() - 1;
    let mut even = text.clone().into_bytes();
    if even[last] % 2 == 1 {
        even[last] -= 1;
        let even = String::from_utf8(even).unwrap();
        // No double has more than 767 significant digits, so `exact` is the exact value of
        // `double`.
        let exact = format!("{double:.767e}");
        let (digits, _) = exact.split_once('e').unwrap();
        let digits = digits.trim_end_matches('0');
        let (shorter, _) = even.split_once('e').unwrap();
        if even.parse() == Ok(double)
            && digits.strip_prefix(shorter).is_some_and(|rest| rest.trim_start_matches('.') == "5")
        {
            return jcs(&even).expect("the shortest digits should be canonicalised");
        }
    }
    let mut out = Vec::new();
    write_number(&text, &mut out).expect("the shortest digits should be accepted");
    String::from_utf8(out).unwrap()
}

/// Generates documents that vary in white space, escapes and the order of members.
fn document() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<i32>().prop_map(|n| n.to_string()),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(number),
        "[a-z\u{e9}\u{1f600}]{0,4}".prop_map(|s| format!("\"{s}\"")),
        "[a-z]{1,2}".prop_map(|s| format!("\"\\u00{:02x}\"", s.as_bytes()[0])),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5)
                .prop_map(|v| format!("[ {}\n]", v.join(" ,"))),
            proptest::collection::btree_map("[a-z\u{e9}\u{fb33}\u{1f600}]{0,3}", inner, 0..5)
                .prop_shuffle_map(),
        ]
    })
}

trait ShuffleMap {
    fn prop_shuffle_map(self) -> BoxedStrategy<String>;
}

impl<S: Strategy<Value = std::collections::BTreeMap<String, String>> + 'static> ShuffleMap for S {
    fn prop_shuffle_map(self) -> BoxedStrategy<String> {
        self.prop_map(|map| map.into_iter().collect::<Vec<_>>())
            .prop_shuffle()
            .prop_map(|members| {
                let members: Vec<_> =
                    members.iter().map(|(name, value)| format!("\t\"{name}\" : {value}")).collect();
                format!("{{{}}}", members.join(","))
            })
            .boxed()
    }
}

proptest! {
    #[test]
    fn fp_3_canonical_form_is_a_fixed_point(body in document()) {
        let once = jcs(&body).expect("a generated document should be I-JSON");
        prop_assert_eq!(jcs(&once).expect("canonical form should be I-JSON"), once.clone());
        prop_assert!(!once.contains(['\n', '\t']));
    }

    #[test]
    fn fp_3_canonicalisation_never_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = canonical(&body);
    }

    #[test]
    fn fp_3_canonicalisation_never_panics_on_near_json(body in "[\\[\\]{}\",:0-9eE+\\-.\\\\ua-f ]{0,60}") {
        if let Some(once) = jcs(&body) {
            prop_assert_eq!(jcs(&once), Some(once));
        }
    }

    #[test]
    fn fp_3_numbers_are_those_of_exact_arithmetic(bits in any::<u64>(), digits in 1_u64..10_u64.pow(17), power in -340_i32..310) {
        // The test covers arbitrary doubles, and doubles near short decimals, where ties occur.
        for double in [f64::from_bits(bits), format!("{digits}e{power}").parse().unwrap()] {
            if double.is_finite() {
                prop_assert_eq!(number(double.abs()), exact(double.abs()), "{:e}", double);
            }
        }
    }

    #[test]
    fn fp_3_numbers_read_back_as_the_same_double(double in any::<f64>().prop_filter("finite", |n| n.is_finite())) {
        let back: f64 = number(double).parse().unwrap();
        prop_assert!(back == double);
        prop_assert_eq!(jcs(&number(double)), Some(number(double)));
    }
}

/// Returns bodies of about `size` bytes that were once slow to canonicalise, or that could be slow.
fn nasty(size: usize) -> Vec<(&'static str, String)> {
    let list = |unit: &str| format!("[{}0]", unit.repeat(size / unit.len()));
    let nested = |depth: usize, inner: &str| {
        format!("{}{inner}{}", "{\"b\":".repeat(depth), ",\"a\":0}".repeat(depth))
    };
    let keys = |prefix: &str, count: usize| {
        let members = (0..count).rev().map(|n| format!("\"{prefix}{n:06}\":0")).collect::<Vec<_>>();
        format!("{{{}}}", members.join(","))
    };
    vec![
        ("the smallest double", list("5e-324,")),
        ("the largest double", list("1.7976931348623157e308,")),
        ("a tie", list("1424953923781206.2,")),
        ("the smallest normal double", list("2.2250738585072014e-308,")),
        ("short fractions", list("1.1,")),
        ("integers", list("1,")),
        ("long integers", list("9007199254740991,")),
        ("many digits", format!("0.{}1", "0".repeat(size))),
        ("trailing zeros", list("1000000000000000000000000000000,")),
        ("empty strings", list("\"\",")),
        ("short strings", list("\"a\",")),
        ("escapes", format!("\"{}\"", "\\u0001".repeat(size / 6))),
        ("quotes", format!("\"{}\"", "\\\"".repeat(size / 2))),
        ("surrogates", format!("\"{}\"", "\\ud83d\\ude00".repeat(size / 12))),
        ("empty objects", list("{},")),
        ("small objects with unsorted keys", list("{\"b\":0,\"a\":0},")),
        ("unsorted keys", keys("", size / 11)),
        ("long keys with a common prefix", keys(&"k".repeat(1000), size / 1011)),
        ("deep lists", list(&format!("{}{},", "[".repeat(120), "]".repeat(120)))),
        (
            "deeply nested objects with unsorted keys",
            nested(127, &format!("\"{}\"", "x".repeat(size))),
        ),
    ]
}

/// The bound is about ten times the measured 32 ns per byte; some inputs once took 7,000 ns per
/// byte.
#[test]
fn fp_3_canonicalisation_is_linear_in_the_body() {
    let bound = if cfg!(debug_assertions) { 10_000 } else { 300 };
    let size = if cfg!(debug_assertions) { 64 << 10 } else { 1 << 20 };
    for (what, body) in nasty(size) {
        // Use the fastest of three runs, because other tests run concurrently and can slow a run
        // down.
        let each = (0..3).map(|_| {
            let began = tokio::time::Instant::now();
            canonical(body.as_bytes());
            began.elapsed().as_nanos() / body.len() as u128
        });
        let each = each.min().unwrap_or_default();
        println!("{each:>5} ns/byte: {what}, {} bytes", body.len());
        assert!(each < bound, "{what}: {each} ns per byte");
    }
}

#[test]
fn fp_3_each_short_escape_is_read() {
    let text = r#"["\b\f\n\r\t\/\"\\"]"#;
    assert_eq!(jcs(text).as_deref(), Some(r#"["\b\f\n\r\t/\"\\"]"#));
    assert_eq!(jcs(r#"["\a"]"#), None);
}
