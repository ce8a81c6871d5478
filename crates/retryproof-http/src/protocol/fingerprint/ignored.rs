// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IgnoredMembers`]: fingerprints of JSON bodies without the members that can differ in a retry
//! (FP-5).
//!
//! Such a fingerprint has 57 bytes: the algorithm byte, 32 bytes of a digest of the request without
//! the members, 8 bytes that identify the list of pointers, and 16 bytes of a digest of method,
//! path and query. If two fingerprints have different lists, their first digests cannot be
//! compared. The guard then compares the second digests, so that retries still succeed after a
//! change of the list.

use retryproof_core::Fingerprint;
use sha2::{Digest as _, Sha256};

use super::RequestParts;
use super::canonical::canonical_without;
use super::pointer::PointerNode;

/// The algorithm byte. The byte is stored, so it never changes meaning.
const JSON_WITHOUT: u8 = 4;

const DIGEST: usize = 32;
const LIST: usize = 8;
const TARGET: usize = 16;
const LEN: usize = 1 + DIGEST + LIST + TARGET;

/// The members of a body that its fingerprint leaves out.
#[derive(Debug)]
pub(crate) struct IgnoredMembers {
    root: PointerNode,
    list: [u8; LIST],
}

impl IgnoredMembers {
    /// Reads JSON pointers, whose form the configuration has checked.
    pub(crate) fn new(pointers: &[String]) -> Self {
        let root = PointerNode::of(pointers.iter().map(String::as_str));
        let mut sorted: Vec<_> = pointers.iter().map(String::as_bytes).collect();
        sorted.sort_unstable();
        sorted.dedup();
        Self { root, list: first_bytes(&digest_of(&sorted)) }
    }

    /// Returns the fingerprint of a request without these members. If the body is not I-JSON, the
    /// whole body counts.
    pub(crate) fn fingerprint(&self, request: &RequestParts<'_>) -> Fingerprint {
        let canonical = canonical_without(request.body, &self.root);
        let body = canonical.as_deref().unwrap_or(request.body);
        let digest = digest_of(&[request.method.as_bytes(), request.target.as_bytes(), body]);
        let mut bytes = Vec::with_capacity(LEN);
        bytes.push(JSON_WITHOUT);
        bytes.extend_from_slice(&digest);
        bytes.extend_from_slice(&self.list);
        bytes.extend_from_slice(&target_digest(request));
        // `bytes` has 57 bytes, which always fit into a fingerprint, so the fallback is never used.
        Fingerprint::new(&bytes).unwrap_or_else(|_| Fingerprint::tagged(JSON_WITHOUT, &digest))
    }
}

/// Whether a fingerprint leaves members out.
pub(crate) fn leaves_out(fingerprint: &Fingerprint) -> bool {
    fingerprint.algorithm() == JSON_WITHOUT
}

/// Whether two fingerprints were made by the same algorithm, and leave out the same members.
#[inline]
pub(crate) fn are_comparable(one: &Fingerprint, other: &Fingerprint) -> bool {
    one.algorithm() == other.algorithm() && (!leaves_out(one) || list(one) == list(other))
}

/// Whether the record's request had the method, path and query of `request`. The guard compares
/// only these if the record's fingerprint leaves out an unknown list of members.
pub(crate) fn has_target(record: &Fingerprint, request: &RequestParts<'_>) -> bool {
    record.as_bytes().get(LEN - TARGET..) == Some(&target_digest(request)[..])
}

fn list(fingerprint: &Fingerprint) -> Option<&[u8]> {
    fingerprint.as_bytes().get(1 + DIGEST..LEN - TARGET)
}

fn target_digest(request: &RequestParts<'_>) -> [u8; TARGET] {
    first_bytes(&digest_of(&[request.method.as_bytes(), request.target.as_bytes()]))
}

/// Returns the SHA-256 of the algorithm byte, the number of parts, and each part preceded by its
/// length.
fn digest_of(parts: &[&[u8]]) -> [u8; DIGEST] {
    let mut sha = Sha256::new();
    sha.update([JSON_WITHOUT]);
    sha.update((parts.len() as u64).to_be_bytes());
    for part in parts {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    sha.finalize().into()
}

fn first_bytes<const N: usize>(digest: &[u8; DIGEST]) -> [u8; N] {
    let mut first = [0; N];
    first.copy_from_slice(&digest[..N]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(pointers: &[&str]) -> IgnoredMembers {
        IgnoredMembers::new(&pointers.iter().map(|&pointer| pointer.to_owned()).collect::<Vec<_>>())
    }

    fn of(ignored: &IgnoredMembers, target: &str, body: &str) -> Fingerprint {
        ignored.fingerprint(&RequestParts::new("POST", target, body.as_bytes()))
    }

    #[test]
    fn fp_5_named_members_do_not_count() {
        let ignored = without(&["/at", "/meta/trace", "/a~1b", "/m~0n", "/items/0/at"]);
        let base = r#"{"amount":1,"meta":{},"items":[{},{}]}"#;
        for same in [
            r#"{"at":1,"amount":1,"meta":{},"items":[{},{}]}"#,
            r#"{"amount":1,"at":{"deep":[2]},"meta":{},"items":[{},{}]}"#,
            r#"{"meta":{"trace":"x"},"items":[{},{}],"amount":1.0}"#,
            r#"{"amount":1,"meta":{},"items":[{"at":3},{}],"a/b":0,"m~n":0}"#,
            "{\"\\u0061t\": 4, \"amount\":1, \"meta\":{}, \"items\":[{ },{}]}",
        ] {
            assert_eq!(of(&ignored, "/a", base), of(&ignored, "/a", same), "{same}");
        }
        for other in [
            r#"{"amount":2,"meta":{},"items":[{},{}]}"#,
            r#"{"amount":1,"meta":{"at":1},"items":[{},{}]}"#,
            r#"{"amount":1,"meta":{},"items":[{},{"at":3}]}"#,
            r#"{"amount":1,"meta":{},"items":[{}]}"#,
            r#"{"amount":1,"meta":{},"items":[{},{}],"At":1}"#,
        ] {
            assert_ne!(of(&ignored, "/a", base), of(&ignored, "/a", other), "{other}");
        }
        assert_ne!(of(&ignored, "/a", base), of(&ignored, "/b", base));
    }

    #[test]
    fn fp_5_what_is_left_out_must_still_be_i_json() {
        let ignored = without(&["/at"]);
        // These bodies are not I-JSON, because a name is repeated or because no double equals the
        // number. No member is therefore left out of their fingerprints.
        for body in [r#"{"at":1,"at":2}"#, r#"{"b":1,"at":1,"at":1}"#] {
            assert_ne!(of(&ignored, "/a", body), of(&ignored, "/a", "{}"), "{body}");
        }
        assert_ne!(
            of(&ignored, "/a", r#"{"at":9007199254740993}"#),
            of(&ignored, "/a", r#"{"at":9007199254740992}"#)
        );
        assert_ne!(of(&ignored, "/a", "at=1"), of(&ignored, "/a", "at=2"));
        assert_eq!(of(&ignored, "/a", r#"{"at":1}"#), of(&ignored, "/a", "{}"));
        // Only a member of an object is left out, never an element of an array.
        let element = without(&["/0"]);
        assert_ne!(of(&element, "/a", "[1,2]"), of(&element, "/a", "[2]"));
    }

    #[test]
    fn fp_5_lists_are_compared_as_sets() {
        let (one, other) = (without(&["/a", "/b"]), without(&["/b", "/a", "/a"]));
        assert_eq!(of(&one, "/p", "{}"), of(&other, "/p", "{}"));
        let more = without(&["/a", "/b", "/c"]);
        let (mine, record) = (of(&one, "/p", "{}"), of(&more, "/p", "{}"));
        assert!(!are_comparable(&mine, &record) && are_comparable(&mine, &mine));
        assert!(has_target(&record, &RequestParts::new("POST", "/p", b"other")));
        for (method, target) in [("PUT", "/p"), ("POST", "/q"), ("POS", "T/p")] {
            assert!(!has_target(&record, &RequestParts::new(method, target, b"{}")));
        }
    }

    #[test]
    fn fp_5_the_form_is_frozen() {
        let made = of(&without(&["/at"]), "/a", r#"{"at":1}"#);
        assert_eq!((made.algorithm(), made.as_bytes().len()), (4, 57));
        let whole = Sha256::digest(
            b"\x04\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04POST\0\0\0\0\0\0\0\x02/a\0\0\0\0\0\0\0\x02{}",
        );
        let list = Sha256::digest(b"\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x03/at");
        let target =
            Sha256::digest(b"\x04\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x04POST\0\0\0\0\0\0\0\x02/a");
        assert_eq!(made.as_bytes()[1..], [&whole[..], &list[..8], &target[..16]].concat());
    }
}
