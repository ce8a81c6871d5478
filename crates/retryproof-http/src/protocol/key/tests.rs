// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests which texts are valid keys, and that both forms of a key are read as the same key
//! (HTTP-2).

use super::*;
use proptest::prelude::*;

fn text(key: Cow<'_, [u8]>) -> String {
    String::from_utf8(key.into_owned()).expect("a key should be ASCII")
}

fn key(line: &str) -> Result<String, KeyError> {
    parse([line.as_bytes()]).map(|key| text(key.expect("there should be one line")))
}

#[test]
fn http_2_bare_and_quoted_spell_one_key() {
    for line in
        ["abc", "\"abc\"", "  abc\t", " \"abc\" ", "\"abc\";v=1", "\"abc\"; a;b=?1;c=\"x\\\"y\""]
    {
        assert_eq!(key(line).as_deref(), Ok("abc"), "{line:?}");
    }
    let uuid = "8e03978e-40d5-43e8-bc93-6894a57f9324";
    assert_eq!(key(uuid).as_deref(), Ok(uuid));
    assert_eq!(key(&format!("\"{uuid}\"")).as_deref(), Ok(uuid));
}

#[test]
fn http_2_quoted_form_unescapes_and_keeps_spaces_and_commas() {
    assert_eq!(key(r#""a, b""#).as_deref(), Ok("a, b"));
    assert_eq!(key(r#"" a""#).as_deref(), Ok(" a"));
    assert_eq!(key(r#""a\"b\\c""#).as_deref(), Ok(r#"a"b\c"#));
    assert_eq!(key(r#""\"""#).as_deref(), Ok("\""));
}

#[test]
fn http_2_bare_form_keeps_a_quote_or_semicolon_inside() {
    assert_eq!(key("a\"b").as_deref(), Ok("a\"b"));
    assert_eq!(key("a;b=c").as_deref(), Ok("a;b=c"));
}

#[test]
fn http_2_no_line_is_no_key() {
    assert_eq!(parse(std::iter::empty()), Ok(None));
}

#[test]
fn http_2_refuses_what_is_not_one_key() {
    for line in ["", " ", "\t \t", "\"\"", "\"   \""] {
        assert_eq!(key(line), Err(KeyError::Empty), "{line:?}");
    }
    for line in [
        "a,b",
        "a b",
        "a\tb",
        "a\u{7f}",
        "a\u{1}",
        "é",
        "\"abc",
        "\"",
        "\"a\"b",
        "\"a\" ;x",
        "\"a\",\"b\"",
        "\"a\\x\"",
        "\"a\\",
        "\"é\"",
        "\"a\u{1}\"",
        "\"a\";",
        "\"a\";=1",
        "\"a\";A",
        "\"a\";a=",
        "\"a\";a=1.",
        "\"a\";a=?2",
        "\"a\";a=:x",
        "\"a\";a=@1.5",
        "\"a\";a=%\"%FF\"",
        "\"a\";a=%\"%ff\"",
        "\"a\";a=1234567890123456",
    ] {
        assert_eq!(key(line), Err(KeyError::Malformed), "{line:?}");
    }
    assert_eq!(parse([&b"a"[..], b"a"]), Err(KeyError::Repeated));
}

#[test]
fn http_2_takes_every_kind_of_parameter() {
    for parameter in [
        "a",
        "*a-b.c_1",
        "a=1",
        "a=-1.125",
        "a=tok:en/x",
        "a=:aGk=:",
        "a=?0",
        "a=@-62135596800",
        "a=%\"f%c3%bc\"",
    ] {
        assert_eq!(key(&format!("\"k\";{parameter}")).as_deref(), Ok("k"), "{parameter:?}");
    }
}

#[test]
fn http_2_limits_are_255_decoded_and_1024_raw() {
    let longest = "k".repeat(255);
    assert_eq!(key(&longest).as_deref(), Ok(longest.as_str()));
    assert_eq!(key(&"k".repeat(256)), Err(KeyError::TooLong));
    // With the enclosing quotes, 255 escaped quotes take 512 raw bytes. They decode to a valid key.
    let escaped = format!("\"{}\"", "\\\"".repeat(255));
    assert_eq!(key(&escaped).map(|k| k.len()), Ok(255));
    // White space and parameters count against the raw limit.
    assert_eq!(key(&format!("{}k", " ".repeat(1023))).as_deref(), Ok("k"));
    assert_eq!(key(&format!("{}k", " ".repeat(1024))), Err(KeyError::TooLong));
}

proptest! {
    #[test]
    fn http_2_never_panics_and_keeps_its_promise(raw in proptest::collection::vec(any::<u8>(), 0..1100)) {
        if let Ok(Some(key)) = parse([raw.as_slice()]) {
            let key = text(key);
            prop_assert!((1..=255).contains(&key.len()));
            prop_assert!(key.bytes().all(|b| (0x20..=0x7e).contains(&b)));
            prop_assert!(!key.trim().is_empty());
        }
    }

    #[test]
    fn http_2_quoting_round_trips(key in "[ -~]{1,255}") {
        let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
        let parsed = parse([quoted.as_bytes()]);
        if key.trim().is_empty() {
            prop_assert_eq!(parsed, Err(KeyError::Empty));
        } else {
            prop_assert_eq!(text(parsed.unwrap().unwrap()), key);
        }
    }

    /// An independent strict parser agrees on every quoted line. That parser refuses most bare
    /// lines, so this crate has its own parser.
    #[test]
    fn http_2_agrees_with_a_strict_parser_on_the_quoted_form(tail in "[ -~\\\\\";a=?1:@%]{0,40}") {
        let line = format!("\"{tail}");
        let theirs = sfv::Parser::new(line.trim_matches(['\t', ' ']).as_bytes()).parse_item::<sfv::Item>();
        let ours = parse([line.as_bytes()]);
        match (&theirs, &ours) {
            (Ok(item), Ok(Some(key))) => {
                prop_assert_eq!(item.bare_item.as_string().unwrap().as_str().as_bytes(), &**key);
            }
            (Ok(item), Err(KeyError::Empty)) => {
                prop_assert!(item.bare_item.as_string().unwrap().as_str().trim().is_empty());
            }
            (Err(_), Err(KeyError::Malformed)) => {}
            _ => prop_assert!(false, "{line:?}: {theirs:?} against {ours:?}"),
        }
    }
}

#[test]
fn id_4_debug_of_a_key_shows_its_length_alone() {
    let key = ClientKey::from_lines([&b"canary-key"[..]].into_iter());
    assert_eq!(format!("{key:?}"), "Ok(Some(ClientKey(10 bytes)))");
}
