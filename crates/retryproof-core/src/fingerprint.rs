// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Fingerprint`]: the digest by which duplicates are compared, in constant time (FP-1, FP-2).

use std::fmt;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};

mod value;

/// The maximum length of a fingerprint in bytes: one byte for the algorithm, and 63 for the digest.
pub const MAX_FINGERPRINT_BYTES: usize = 64;

/// The first byte of a hidden fingerprint. A context refuses any other fingerprint with this byte
/// (SEAL-6).
pub(crate) const HIDDEN: u8 = 0;

/// Decides whether two fingerprints can be compared at all (FP-3).
pub(crate) type Comparable = fn(&Fingerprint, &Fingerprint) -> bool;

pub(crate) fn have_one_algorithm(one: &Fingerprint, other: &Fingerprint) -> bool {
    one.algorithm() == other.algorithm()
}

/// A digest of what the caller sent.
///
/// The record keeps the digest. A different request under the same key is therefore refused instead
/// of getting the first result (FP-1). The first byte names the algorithm (FP-3). This crate does
/// not interpret the other bytes. A comparison of two fingerprints takes the same time wherever
/// they differ (FP-2).
// The alignment makes copies of the fingerprint faster, and every call makes some. It rounds the
// size up from 65 to 72 bytes, so a copy consists of whole 8-byte words.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Fingerprint {
    bytes: [u8; MAX_FINGERPRINT_BYTES],
    len: u8,
}

impl Fingerprint {
    /// Creates a fingerprint from 1 to 64 bytes. The first byte names the algorithm: choose 128 to
    /// 255 for your own, because values below 128 are reserved for retryproof. The byte 0 marks
    /// fingerprints that are stored hidden, so
    /// [`ContextBuilder::build`](crate::ContextBuilder::build) refuses a fingerprint that begins
    /// with it. A store with sealed results takes at most 63 bytes (SEAL-6).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for any other length.
    #[inline]
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut padded = [0; MAX_FINGERPRINT_BYTES];
        match u8::try_from(bytes.len()) {
            Ok(len) if len > 0 && bytes.len() <= MAX_FINGERPRINT_BYTES => {
                padded[..bytes.len()].copy_from_slice(bytes);
                Ok(Self { len, bytes: padded })
            }
            _ => Err(Error::new(ErrorKind::Invalid, "a fingerprint must have 1 to 64 bytes")
                .with("bytes", bytes.len())),
        }
    }

    /// Computes the fingerprint of a value that implements `Serialize` (FP-4), such as a whole
    /// order or a tuple of the fields that a retry must repeat.
    ///
    /// Two values of one type have the same fingerprint if and only if they serialize to the same
    /// shape and content. The width of an integer does not matter, and neither does the order of
    /// fields or map entries. Skipped fields are ignored. The order of a sequence does matter. A
    /// `HashSet` is serialized as a sequence, and its order differs in each process. Collect the
    /// set into a sorted `Vec` first.
    ///
    /// The fingerprint of a whole struct changes if a field is added or renamed. After a release
    /// with such a change, retries of earlier requests are refused. To avoid this, fingerprint a
    /// tuple of the fields that matter.
    ///
    /// ```
    /// use retryproof_core::Fingerprint;
    ///
    /// let sent = |amount: u64, currency: &str| Fingerprint::of(&(amount, currency));
    /// assert_eq!(sent(100, "EUR")?, sent(100, "EUR")?);
    /// assert_ne!(sent(100, "EUR")?, sent(900, "EUR")?);
    /// # Ok::<(), retryproof_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Codec`] if the value's own `Serialize` fails.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        /// The algorithm byte of values, different from those of HTTP requests (FP-3) and of
        /// message bodies. Records store this byte, so it must never be changed or reused.
        const VALUE: u8 = 65;
        let digest = value::digest(value).map_err(|_| {
            Error::new(
                ErrorKind::Codec,
                "the fingerprint cannot be computed, because the value cannot be serialized",
            )
        })?;
        Ok(Self::tagged(VALUE, &digest))
    }

    /// Creates a fingerprint from the byte that names the algorithm and a digest of 32 bytes
    /// (FP-3).
    #[must_use]
    #[inline]
    pub fn tagged(algorithm: u8, digest: &[u8; 32]) -> Self {
        let mut bytes = [0; MAX_FINGERPRINT_BYTES];
        bytes[0] = algorithm;
        bytes[1..33].copy_from_slice(digest);
        Self { bytes, len: 33 }
    }

    /// Returns all bytes of the fingerprint, for a store to keep.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Whether the fingerprint is one that the engine has hidden (SEAL-6).
    pub(crate) fn is_hidden(&self) -> bool {
        self.algorithm() == HIDDEN
    }

    /// Returns the algorithm byte (FP-3).
    #[must_use]
    #[inline]
    pub fn algorithm(&self) -> u8 {
        self.bytes[0]
    }
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        let differ = self.bytes.iter().zip(&other.bytes).fold(0, |differ, (a, b)| differ | (a ^ b));
        std::hint::black_box(differ) == 0 && self.len == other.len
    }
}

impl Eq for Fingerprint {}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint(algorithm {}, {} bytes)", self.algorithm(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;

    fn of<T: Serialize + ?Sized>(value: &T) -> String {
        Fingerprint::of(value)
            .unwrap()
            .as_bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    #[derive(Serialize)]
    enum Shape {
        Unit,
        Other,
        New(u8),
        Tuple(u8, u8),
        Fields { a: u8, b: u8 },
    }

    #[derive(Serialize)]
    struct Order {
        amount: u32,
        note: Option<&'static str>,
        #[serde(skip)]
        _seen: u8,
    }

    /// Compares different values of one type, and values of different types whose parts form the
    /// same text when joined.
    #[test]
    fn fp_4_values_that_differ_have_fingerprints_that_differ() {
        let all = [
            of(&("a", "bc")),
            of(&("ab", "c")),
            of(&["abc"]),
            of("abc"),
            of(b"abc"),
            of(&("a", "b", "c")),
            of(&(("a",), "b")),
            of(&("a", ("b",))),
            of(&[("a", "b")]),
            of(""),
            of(&[""]),
            of(&[""; 2]),
            of(&None::<()>),
            of(&Some(())),
            of(&None::<Option<()>>.is_some()),
            of(&Some(None::<()>)),
            of(&true),
            of(&0),
            of(&1),
            of(&-1),
            of(&256),
            of(&i128::MIN),
            of(&u128::MAX),
            of(&i64::MAX),
            of(&"1"),
            of(&1.0),
            of(&-0.0),
            of(&f64::NAN),
            of(&f64::INFINITY),
            of(&[1, 2]),
            of(&[[1], [2]]),
            of(&[0; 0]),
            of(&Shape::Unit),
            of(&Shape::Other),
            of(&Shape::New(1)),
            of(&Shape::Tuple(1, 2)),
            of(&Shape::Fields { a: 1, b: 2 }),
            of(&Shape::Fields { a: 2, b: 1 }),
            of(&Order { amount: 1, note: None, _seen: 0 }),
            of(&Order { amount: 1, note: Some(""), _seen: 0 }),
            of(&std::collections::BTreeMap::from([("a", "b"), ("c", "d")])),
            of(&std::collections::BTreeMap::from([("a", "d"), ("c", "b")])),
            of(&std::collections::BTreeMap::from([("b", "a"), ("c", "d")])),
        ];
        let unlike: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(unlike.len(), all.len(), "{all:#?}");
    }

    /// Compares values that may differ between retries of the same request.
    #[test]
    fn fp_4_widths_and_the_order_of_entries_do_not_count() {
        assert_eq!(of(&7_u8), of(&7_i64));
        assert_eq!(of(&7_i16), of(&7_i32));
        assert_eq!(of(&1.5_f32), of(&1.5_f64));
        assert_eq!(of(&-7_i8), of(&-7_i128));
        assert_eq!(of(&(7_u64, "a")), of(&(7_u16, "a".to_owned())));
        let order = |seen| of(&Order { amount: 1, note: None, _seen: seen });
        assert_eq!(order(0), order(1));
        let many = |range: &mut dyn Iterator<Item = u32>| {
            of(&range.map(|n| (n.to_string(), n)).collect::<std::collections::HashMap<_, _>>())
        };
        assert_eq!(many(&mut (0..100)), many(&mut (0..100).rev()));
    }

    #[test]
    fn fp_4_an_absent_value_and_a_unit_struct_leave_a_trace() {
        #[derive(Serialize)]
        struct Marker;
        // Each of these types has one value, whose only trace is its tag.
        let tags = [("n", of(&None::<u8>)), ("0", of(&Marker)), ("0", of(&()))];
        for (tag, fingerprint) in tags {
            let digest = Sha256::digest(tag);
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(fingerprint.ends_with(&digest), "{tag}: {fingerprint}");
        }
    }

    /// Records store fingerprints. If this fingerprint changed, the retries of all stored records
    /// would be refused.
    #[test]
    fn fp_4_the_fingerprint_of_a_value_is_for_ever() {
        let order = (Order { amount: 300, note: Some("x"), _seen: 0 }, Shape::New(7), [-1.5], 'c');
        assert_eq!(
            of(&order),
            "41af019980dbc3f1155e0430c33c95bbf22d52e48a86e97bb1a976dff2f42330c1"
        );
    }

    #[test]
    fn fp_4_id_4_a_value_that_does_not_serialize_is_an_error_without_its_words() {
        struct Secret;
        impl Serialize for Secret {
            fn serialize<S: serde::Serializer>(
                &self,
                _: S,
            ) -> std::result::Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("4111 1111 1111 1111"))
            }
        }
        let error = Fingerprint::of(&[Secret]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Codec);
        assert!(!format!("{error} {error:?}").contains("4111"), "{error:?}");
    }

    #[test]
    fn fp_1_equality_is_by_all_bytes_and_length() {
        let fp = |b: &[u8]| Fingerprint::new(b).unwrap();
        assert_eq!(fp(&[1, 2, 3]), fp(&[1, 2, 3]));
        assert_ne!(fp(&[1, 2, 3]), fp(&[1, 2, 4]));
        assert_ne!(fp(&[1, 2]), fp(&[1, 2, 0]));
        assert!(Fingerprint::new(&[]).is_err());
        assert!(Fingerprint::new(&[0; 65]).is_err());
        assert_eq!(fp(&[7; 64]).algorithm(), 7);
    }
}
