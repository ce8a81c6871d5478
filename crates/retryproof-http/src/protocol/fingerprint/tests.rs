// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests what a fingerprint covers (FP-3).

use super::*;
use proptest::prelude::*;

fn of(algorithm: FingerprintAlgorithm, method: &str, target: &str, body: &str) -> Vec<u8> {
    fingerprint(algorithm, &RequestParts::new(method, target, body.as_bytes())).as_bytes().to_vec()
}

#[test]
fn fp_3_request_covers_method_target_and_body() {
    let base = of(FingerprintAlgorithm::Request, "POST", "/orders/1?a=1", "{}");
    assert_eq!(base[0], 1);
    assert_eq!(base, of(FingerprintAlgorithm::Request, "POST", "/orders/1?a=1", "{}"));
    for other in [
        of(FingerprintAlgorithm::Request, "PUT", "/orders/1?a=1", "{}"),
        of(FingerprintAlgorithm::Request, "POST", "/orders/2?a=1", "{}"),
        of(FingerprintAlgorithm::Request, "POST", "/orders/1?a=2", "{}"),
        of(FingerprintAlgorithm::Request, "POST", "/orders/1/?a=1", "{}"),
        of(FingerprintAlgorithm::Request, "POST", "/orders/1?a=1", "{ }"),
        of(FingerprintAlgorithm::Request, "POS", "T/orders/1?a=1", "{}"),
        of(FingerprintAlgorithm::Request, "POST", "/orders/1?a=1{", "}"),
    ] {
        assert_ne!(base, other);
    }
}

#[test]
fn fp_3_body_covers_the_body_alone() {
    let base = of(FingerprintAlgorithm::Body, "POST", "/a", "x");
    assert_eq!(base[0], 2);
    assert_eq!(base, of(FingerprintAlgorithm::Body, "PUT", "/b", "x"));
    assert_ne!(base, of(FingerprintAlgorithm::Body, "POST", "/a", "y"));
}

#[test]
fn fp_3_json_meets_across_spellings_and_is_raw_otherwise() {
    let base = of(FingerprintAlgorithm::Json, "POST", "/a", r#"{"a":1,"b":[2.0]}"#);
    assert_eq!(base[0], 3);
    assert_eq!(
        base,
        of(FingerprintAlgorithm::Json, "POST", "/a", "{ \"b\": [2], \"\\u0061\":1e0 }")
    );
    assert_ne!(base, of(FingerprintAlgorithm::Json, "POST", "/b", r#"{"a":1,"b":[2.0]}"#));
    assert_ne!(base, of(FingerprintAlgorithm::Json, "POST", "/a", r#"{"a":1,"b":[2.1]}"#));
    assert_ne!(
        of(FingerprintAlgorithm::Json, "POST", "/a", "not json"),
        of(FingerprintAlgorithm::Json, "POST", "/a", "not  json")
    );
    // These two numbers are above 2^53 and round to the same double, but their fingerprints must
    // differ.
    assert_ne!(
        of(FingerprintAlgorithm::Json, "POST", "/a", "9007199254740993"),
        of(FingerprintAlgorithm::Json, "POST", "/a", "9007199254740992")
    );
}

#[test]
fn fp_3_algorithm_bytes_are_frozen() {
    for (algorithm, byte) in [
        (FingerprintAlgorithm::Request, 1),
        (FingerprintAlgorithm::Body, 2),
        (FingerprintAlgorithm::Json, 3),
    ] {
        assert_eq!(FingerprintAlgorithm::from_byte(byte), Some(algorithm));
    }
    assert_eq!(FingerprintAlgorithm::from_byte(0), None);
    assert_eq!(FingerprintAlgorithm::from_byte(FIRST_CUSTOM_ALGORITHM), None);
    // A change here would invalidate every stored fingerprint: add a new algorithm byte instead.
    assert_eq!(
        of(FingerprintAlgorithm::Request, "POST", "/payments", "{\"amount\":1}")[1..5],
        Sha256::digest(
            b"\x01\0\0\0\0\0\0\0\x04POST\0\0\0\0\0\0\0\x09/payments{\"amount\":1}\0\0\0\0\0\0\0\x0c"
        )[..4]
    );
}

#[test]
fn id_4_debug_of_request_parts_shows_no_target_and_no_body() {
    let shown = format!("{:?}", RequestParts::new("POST", "/canary", b"canary"));
    assert!(!shown.contains("canary"), "{shown}");
}

proptest! {
    #[test]
    fn fp_3_pieces_do_not_matter(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..6)) {
        let whole: Vec<u8> = pieces.concat();
        for algorithm in [FingerprintAlgorithm::Request, FingerprintAlgorithm::Body] {
            let mut hasher = FingerprintHasher::new(algorithm, "POST", "/a?b");
            pieces.iter().for_each(|piece| hasher.update(piece));
            prop_assert_eq!(hasher.finish(), fingerprint(algorithm, &RequestParts::new("POST", "/a?b", &whole)));
        }
    }
}

#[test]
fn fp_5_ignored_members_matter_only_to_the_json_fingerprint() {
    let ignored = super::ignored::IgnoredMembers::new(&["/at".to_owned()]);
    let of = |algorithm, body: &str| {
        fingerprint_without(
            Some(&ignored),
            algorithm,
            &RequestParts::new("POST", "/", body.as_bytes()),
        )
    };
    let (one, other) = (r#"{"at":1}"#, r#"{"at":2}"#);
    assert_eq!(of(FingerprintAlgorithm::Json, one), of(FingerprintAlgorithm::Json, other));
    for algorithm in [FingerprintAlgorithm::Request, FingerprintAlgorithm::Body] {
        assert_ne!(of(algorithm, one), of(algorithm, other));
    }
}
