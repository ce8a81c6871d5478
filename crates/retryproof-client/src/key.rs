// SPDX-License-Identifier: MIT OR Apache-2.0
//! The key of a logical call, generated once or chosen by the caller, and its form in a header
//! (HTTP-2).

use std::fmt;

use http::HeaderValue;

/// The longest key that a server accepts, in bytes (HTTP-2).
const MAX: usize = 255;

/// The key of one logical call, sent with each of its attempts. `Debug` shows only the key's length
/// (ID-4), because anyone who knows a key can request the call's answer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Generates a key from 128 random bits of the operating system, as 32 hex digits.
    ///
    /// # Errors
    /// Returns an error if the operating system provides no random bits.
    pub fn random() -> Result<Self, NoRandom> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).map_err(NoRandom)?;
        Ok(Self(bits.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Accepts a key that the caller chose: 1 to 255 bytes of printable ASCII, not blank (HTTP-2).
    /// A key that contains a space or a comma, or begins with a quotation mark, is sent quoted.
    ///
    /// # Errors
    /// Returns an error for any other key.
    pub fn new(key: impl Into<String>) -> Result<Self, InvalidKey> {
        let key = key.into();
        if key.bytes().all(|byte| byte == b' ') {
            return Err(InvalidKey::Blank);
        }
        if key.len() > MAX {
            return Err(InvalidKey::TooLong);
        }
        if !key.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) {
            return Err(InvalidKey::Unprintable);
        }
        Ok(Self(key))
    }

    /// Returns the key as text. Store it with the work it belongs to, but do not log it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the header's value: the bare key if `quoted` is false and every server accepts that
    /// form, otherwise an RFC 9651 String. The value is marked sensitive: `Debug` of a request
    /// hides it, and HTTP/2 keeps it out of its compression tables.
    pub(crate) fn to_header(&self, quoted: bool) -> Option<HeaderValue> {
        let bare = !quoted && !self.0.starts_with('"') && !self.0.contains([' ', ',']);
        let mut value = if bare {
            HeaderValue::from_str(&self.0)
        } else {
            HeaderValue::from_str(&format!(
                "\"{}\"",
                self.0.replace('\\', "\\\\").replace('"', "\\\"")
            ))
        }
        // Printable ASCII is always a valid header value.
        .ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// Returns the same as [`expose`](IdempotencyKey::expose). This impl lets `idempotency_key(key)`
/// take the key of a [`CallError`](crate::CallError) or a [`CallReport`](crate::CallReport) for the
/// next call.
impl AsRef<str> for IdempotencyKey {
    fn as_ref(&self) -> &str {
        self.expose()
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.0.len())
    }
}

/// Why a text is not a valid key. The error does not contain the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidKey {
    /// Empty, or only spaces.
    Blank,
    /// Longer than 255 bytes.
    TooLong,
    /// Contains bytes other than printable ASCII.
    Unprintable,
}

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blank => "an idempotency key cannot be empty or blank",
            Self::TooLong => "an idempotency key can be at most 255 bytes long; hash longer keys",
            Self::Unprintable => {
                "an idempotency key must contain only printable ASCII characters; encode or hash \
                 other keys"
            }
        })
    }
}

impl std::error::Error for InvalidKey {}

/// The operating system provided no random bits for a key.
#[derive(Debug, Clone, Copy)]
pub struct NoRandom(getrandom::Error);

impl fmt::Display for NoRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the operating system provided no random bits for an idempotency key: {}", self.0)
    }
}

impl std::error::Error for NoRandom {}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn http_2_a_drawn_key_is_printable_and_never_comes_twice() {
        let keys: HashSet<String> =
            (0..10_000).map(|_| IdempotencyKey::random().unwrap().expose().to_owned()).collect();
        assert_eq!(keys.len(), 10_000);
        assert!(
            keys.iter()
                .all(|key| key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit()))
        );
        // Each of the 128 bits is 0 in some keys and 1 in others.
        let (mut ones, mut zeros) = (0_u128, 0_u128);
        for key in &keys {
            let bits = u128::from_str_radix(key, 16).unwrap();
            (ones, zeros) = (ones | bits, zeros | !bits);
        }
        assert_eq!((ones, zeros), (u128::MAX, u128::MAX));
    }

    #[test]
    fn http_2_a_key_is_bare_where_it_can_be_and_quoted_where_it_must() {
        for (key, line) in [
            ("order-17", "order-17"),
            ("a\"b\\c", "a\"b\\c"),
            ("order 17, again", "\"order 17, again\""),
            ("\"x\\ y", "\"\\\"x\\\\ y\""),
        ] {
            let key = IdempotencyKey::new(key).unwrap();
            assert_eq!(key.to_header(false).unwrap().as_bytes(), line.as_bytes());
            let string = format!("\"{}\"", key.expose().replace('\\', "\\\\").replace('"', "\\\""));
            assert_eq!(key.to_header(true).unwrap().as_bytes(), string.as_bytes());
        }
    }

    #[test]
    fn http_2_what_no_server_takes_is_refused_here() {
        assert_eq!(IdempotencyKey::new(""), Err(InvalidKey::Blank));
        assert_eq!(IdempotencyKey::new("   "), Err(InvalidKey::Blank));
        assert_eq!(IdempotencyKey::new("x".repeat(256)), Err(InvalidKey::TooLong));
        assert!(IdempotencyKey::new("x".repeat(255)).is_ok());
        for key in ["a\nb", "a\tb", "é", "\u{7f}", "\0"] {
            assert_eq!(IdempotencyKey::new(key), Err(InvalidKey::Unprintable), "{key:?}");
        }
    }

    #[test]
    fn id_4_no_form_of_debug_shows_a_key() {
        let key = IdempotencyKey::new("canary-key").unwrap();
        assert_eq!(format!("{key:?}"), "IdempotencyKey(10 bytes)");
        assert!(!format!("{:?}", key.to_header(true)).contains("canary"));
    }

    proptest! {
        #[test]
        fn http_2_every_key_that_is_taken_has_a_header(key in "[ -~]{1,255}") {
            if let Ok(key) = IdempotencyKey::new(key) {
                prop_assert!(key.to_header(false).is_some() && key.to_header(true).is_some());
            }
        }
    }
}
