// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that a stored response comes back byte for byte, and that anything else is refused
//! (HTTP-8, CMP-8).

use super::*;
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

type OwnedLines = Vec<(String, Vec<u8>)>;

fn lines(of: &OwnedLines) -> impl Iterator<Item = StoredLine<'_>> + Clone {
    of.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
}

fn response(status: u16, headers: &OwnedLines, trailers: &OwnedLines, body: &[&[u8]]) -> Bytes {
    let mut out = Vec::new();
    let draft = ResponseDraft {
        status,
        headers: lines(headers),
        trailers: lines(trailers),
        body: body.iter().copied(),
    };
    encode_response(&draft, &mut out);
    assert_eq!(draft.len(), out.len(), "the size is computed exactly");
    out.into()
}

fn tombstone(status: u16, headers: &OwnedLines) -> StoredResponse {
    let mut out = Vec::new();
    encode_tombstone(status, lines(headers), &mut out);
    StoredResponse::decode(out.into()).expect("an encoded record should be readable")
}

fn owned<'a>(lines: impl Iterator<Item = (&'a str, &'a [u8])>) -> OwnedLines {
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn line(name: &str, value: &str) -> (String, Vec<u8>) {
    (name.to_owned(), value.as_bytes().to_vec())
}

#[test]
fn http_8_order_equal_lines_and_raw_bytes_survive() {
    let headers = vec![
        line("x-b", "1"),
        line("content-type", "a/b"),
        line("x-b", "2"),
        ("x-raw".into(), vec![0xe9, b'\t', 0xff]),
    ];
    let stored = StoredResponse::decode(response(
        201,
        &headers,
        &vec![line("x-t", "")],
        &[b"ab", b"", b"c"],
    ))
    .unwrap();
    assert_eq!(stored.status(), 201);
    assert!(!stored.is_tombstone());
    assert_eq!(owned(stored.headers()), headers);
    assert_eq!(owned(stored.trailers()), [line("x-t", "")]);
    assert_eq!(stored.body(), &b"abc"[..]);
}

#[test]
fn cmp_8_the_layout_of_version_1_is_frozen() {
    let record =
        response(201, &vec![line("content-type", "a/b"), line("x-y", "z")], &vec![], &[b"hi"]);
    assert_eq!(record, &b"\x01\x00\x00\xc9\x02\x00\x03a/b\x43x-y\x01z\x00\x02hi"[..]);
}

#[test]
fn cmp_8_a_small_response_is_stored_small() {
    let headers = vec![line("content-type", "application/json")];
    let record = response(200, &headers, &vec![], &[&[b'x'; 180]]);
    assert_eq!(record.len(), 4 + 1 + (1 + 1 + 16) + 1 + 2 + 180);
}

#[test]
fn http_13_a_tombstone_keeps_location_first_and_8_kib_of_headers() {
    let big = "v".repeat(5000);
    let stored = tombstone(
        201,
        &vec![
            line("x-a", &big),
            line("x-b", &big),
            line("x-c", "c"),
            line("location", "/payments/1"),
        ],
    );
    assert!(stored.is_tombstone());
    assert_eq!(stored.status(), 201);
    assert_eq!(
        owned(stored.headers()),
        [line("location", "/payments/1"), line("x-a", &big), line("x-c", "c")]
    );
    assert_eq!(stored.body(), Bytes::new());
    assert_eq!(stored.trailers().count(), 0);
    assert_eq!(tombstone(200, &vec![line("location", &"l".repeat(9000))]).headers().count(), 0);
}

#[test]
fn cmp_8_every_cut_and_every_extension_is_refused() {
    let record = response(
        200,
        &vec![line("content-type", "a"), line("x-y", "z")],
        &vec![line("x-t", "1")],
        &[b"body"],
    );
    for cut in 0..record.len() {
        assert!(StoredResponse::decode(record.slice(..cut)).is_err(), "cut at {cut}");
    }
    let mut longer = record.to_vec();
    longer.push(0);
    assert!(StoredResponse::decode(longer.into()).is_err());
}

#[test]
fn cmp_8_foreign_records_are_refused() {
    for (record, what) in [
        (&b"\x02\x00\x00\xc8\x00\x00\x00"[..], "version"),
        (b"\x01\x02\x00\xc8\x00\x00\x00", "kind"),
        (b"\x01\x00\x00\x63\x00\x00\x00", "status 99"),
        (b"\x01\x00\x03\xe8\x00\x00\x00", "status 1000"),
        (b"\x01\x00\x00\xc8\x01\x3f\x00\x00\x00", "unknown name code"),
        (b"\x01\x00\x00\xc8\x01\x40\x00\x00\x00", "empty name"),
        (b"\x01\x00\x00\xc8\x01\x41A\x00\x00\x00", "upper-case name"),
        (b"\x01\x00\x00\xc8\x01\x41:\x00\x00\x00", "name byte"),
        (b"\x01\x00\x00\xc8\x01\x41\xff\x00\x00\x00", "name not UTF-8"),
        (b"\x01\x00\x00\xc8\x01\x44etag\x00\x00\x00", "common name spelled out"),
        (b"\x01\x00\x00\xc8\x01\x00\x01\x0a\x00\x00", "line feed in a value"),
        (b"\x01\x00\x00\xc8\x01\x00\x01\x7f\x00\x00", "delete in a value"),
        (b"\x01\x00\x00\xc8\x80\x00\x00\x00", "number not in shortest form"),
        (
            b"\x01\x00\x00\xc8\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            "number beyond 64 bits",
        ),
        (
            b"\x01\x00\x00\xc8\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00",
            "count beyond the record",
        ),
        (b"\x01\x01\x00\xc8\x00\x00\x00", "tombstone with a body"),
    ] {
        assert!(StoredResponse::decode(Bytes::from_static(record)).is_err(), "{what}");
    }
    assert!(StoredResponse::decode(Bytes::from_static(b"\x01\x00\x00\xc8\x00\x00\x00")).is_ok());
}

#[test]
fn id_4_debug_of_a_stored_response_shows_no_content() {
    let record = response(200, &vec![line("x-canary", "canary")], &vec![], &[b"canary"]);
    let shown = format!("{:?}", StoredResponse::decode(record).unwrap());
    assert!(!shown.contains("canary"), "{shown}");
}

fn any_lines() -> impl Strategy<Value = OwnedLines> {
    let name = prop_oneof![
        (0..COMMON_NAMES.len()).prop_map(|code| COMMON_NAMES[code].to_owned()),
        "[a-z0-9!#$%&'*+.^_`|~-]{1,12}",
    ];
    let value_byte = prop_oneof![Just(b'\t'), 0x20..=0x7e_u8, 0x80..=0xff_u8];
    vec((name, vec(value_byte, 0..40)), 0..6)
}

proptest! {
    #[test]
    fn http_8_any_response_round_trips(
        status in 100..=999_u16,
        headers in any_lines(),
        trailers in any_lines(),
        body in vec(vec(any::<u8>(), 0..150), 0..4),
    ) {
        let pieces: Vec<&[u8]> = body.iter().map(Vec::as_slice).collect();
        let stored = StoredResponse::decode(response(status, &headers, &trailers, &pieces)).unwrap();
        prop_assert_eq!(stored.status(), status);
        prop_assert_eq!(owned(stored.headers()), headers);
        prop_assert_eq!(owned(stored.trailers()), trailers);
        prop_assert_eq!(stored.body(), body.concat());
    }

    #[test]
    fn http_13_any_tombstone_round_trips(status in 100..=999_u16, headers in any_lines()) {
        let stored = tombstone(status, &headers);
        prop_assert_eq!(stored.status(), status);
        let mut expected = headers;
        expected.sort_by_key(|(name, _)| name != "location");
        prop_assert_eq!(owned(stored.headers()), expected);
    }

    #[test]
    fn cmp_8_decoding_never_panics(record in vec(any::<u8>(), 0..200)) {
        let _ = StoredResponse::decode(record.into());
    }

    #[test]
    fn cmp_8_a_flipped_byte_is_refused_or_read_without_panic(
        headers in any_lines(), at in any::<prop::sample::Index>(), to in any::<u8>(),
    ) {
        let mut record = response(200, &headers, &Vec::new(), &[b"body"]).to_vec();
        let at = at.index(record.len());
        record[at] = to;
        if let Ok(stored) = StoredResponse::decode(record.into()) {
            prop_assert_eq!(stored.headers().count(), stored.header_lines().len());
            let _ = (stored.trailers().count(), stored.body());
        }
    }

    #[test]
    fn cmp_8_varints_round_trip_in_their_stated_length(number in any::<usize>(), shift in 0..usize::BITS) {
        let number = number >> shift;
        let mut out = Vec::new();
        put_varint(number, &mut out);
        prop_assert_eq!(out.len(), varint_len(number));
        let mut reader = StoredReader { rest: &out };
        prop_assert_eq!(reader.varint(), Ok(number));
        prop_assert!(reader.rest.is_empty());
    }
}

fn judge(rules: &FieldRules, name: &str) -> FieldVerdict {
    rules.judge(name, &ConnectionNames::default(), Exchange::Other)
}

#[test]
fn http_9_connection_bound_fields_are_never_stored() {
    let mut rules = FieldRules::default();
    for name in [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
        "date",
        "trailer",
        "content-length",
    ] {
        rules.store(name);
        assert_eq!(judge(&rules, name), FieldVerdict::Drop, "{name}");
    }
    for name in ["content-type", "cache-control", "age", "expires", "pragma", "location", "x-date"]
    {
        assert_eq!(judge(&rules, name), FieldVerdict::Store, "{name}");
    }
}

#[test]
fn http_9_fields_named_by_connection_are_not_stored() {
    let connection =
        ConnectionNames::parse([&b"close, X-Hop"[..], b" , x-other\t,\xff"].into_iter());
    for (name, verdict) in [
        ("x-hop", FieldVerdict::Drop),
        ("x-other", FieldVerdict::Drop),
        ("close", FieldVerdict::Drop),
        ("x", FieldVerdict::Store),
    ] {
        assert_eq!(
            FieldRules::default().judge(name, &connection, Exchange::Other),
            verdict,
            "{name}"
        );
    }
}

#[test]
fn http_9_content_length_is_kept_for_head_alone() {
    let judge = |exchange| {
        FieldRules::default().judge("content-length", &ConnectionNames::default(), exchange)
    };
    assert_eq!(judge(Exchange::Head), FieldVerdict::Store);
    assert_eq!(judge(Exchange::Other), FieldVerdict::Drop);
}

#[test]
fn http_9_sensitive_fields_have_one_switch_each_way() {
    let mut rules = FieldRules::default();
    for name in SENSITIVE {
        assert_eq!(judge(&rules, name), FieldVerdict::Sensitive, "{name}");
    }
    rules.store("Set-Cookie");
    assert_eq!(judge(&rules, "set-cookie"), FieldVerdict::Store);
    rules.skip("Set-Cookie");
    rules.skip("X-Request-Id");
    assert_eq!(judge(&rules, "set-cookie"), FieldVerdict::Drop);
    assert_eq!(judge(&rules, "x-request-id"), FieldVerdict::Drop);
    rules.store("x-request-id");
    assert_eq!(judge(&rules, "x-request-id"), FieldVerdict::Store);
}

#[test]
fn http_8_a_handler_cannot_mark_its_answer_as_a_replay() {
    let mut rules = FieldRules::default();
    rules.store("Idempotent-Replayed");
    assert_eq!(judge(&rules, "idempotent-replayed"), FieldVerdict::Forged);
}

#[test]
fn http_9_the_trailer_field_is_made_anew() {
    assert_eq!(trailer_field(["x-a", "x-b", "x-a"].into_iter()), "x-a, x-b");
    assert_eq!(trailer_field(std::iter::empty()), "");
}

#[test]
fn ops_4_a_response_of_an_operator_is_stored_as_one_of_a_handler() {
    let payload = StoredResponse::encode(201, &[("content-type", b"text/plain")], b"done").unwrap();
    assert_eq!((payload.codec(), payload.schema()), (retryproof_core::CodecId::HTTP, SCHEMA));
    let by_handler = response(201, &vec![line("content-type", "text/plain")], &vec![], &[b"done"]);
    assert_eq!(payload.body(), &by_handler[..]);
    assert!(StoredResponse::encode(204, &[], b"").is_ok());
}

#[test]
fn ops_4_a_response_that_no_handler_returns_is_refused() {
    for status in [0, 100, 199, 600, 999] {
        assert!(StoredResponse::encode(status, &[], b"").is_err(), "{status}");
    }
    for name in ["", "Content-Type", "a b", "a\r\nb"] {
        assert!(StoredResponse::encode(200, &[(name, b"x")], b"").is_err(), "{name:?}");
    }
    for value in [&b"a\r\nb: c"[..], b"\n", b"\0", b"\x7f"] {
        assert!(StoredResponse::encode(200, &[("a", value)], b"").is_err(), "{value:?}");
    }
}

#[test]
fn http_8_many_fields_with_long_names_survive() {
    let long = "x".repeat(200);
    let headers: OwnedLines = (0..300).map(|n| line(&format!("{long}-{n}"), "v")).collect();
    let record = response(200, &headers, &vec![line(&long, "7")], &[b"ab"]);
    let stored = StoredResponse::decode(record).unwrap();
    assert_eq!(owned(stored.headers()), headers);
}

#[test]
fn http_8_one_pass_reads_common_and_other_names_and_the_length_only_for_head() {
    let headers = vec![line("content-type", "a/b"), line("x-b", "1"), line("content-length", "7")];
    let bytes = response(201, &headers, &vec![line("x-t", "")], &[b"ab"]);
    for (to_head, fields) in [(false, 2), (true, 3)] {
        let record = StoredRecord { bytes: &bytes, to_head };
        let start = |status, count| {
            assert_eq!((status, count), (201, 3));
            OwnedLines::new()
        };
        let read = record.read(start, |lines, name, value| {
            let name = name.map_or_else(str::to_owned, |code| COMMON_NAMES[code].to_owned());
            lines.push((name, value.to_vec()));
            Some(())
        });
        let (lines, body) = read.unwrap();
        assert_eq!((&lines[..], &body[..]), (&headers[..fields], &b"ab"[..]));
    }
}
