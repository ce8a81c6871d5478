// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts an identity to the key of its record, and back.

use retryproof_core::{Identity, Key, Scope};

/// Returns the key of a record: `prefix:{scope length:scope:key}`. The record's channel has the
/// same name. The scope's length keeps identities distinct (ID-2). In a cluster, the text in braces
/// would select the slot.
pub(crate) fn key(prefix: &str, id: &Identity) -> Vec<u8> {
    let (scope, key) = (id.scope().as_str(), id.key().expose());
    let mut out = Vec::with_capacity(prefix.len() + scope.len() + key.len() + 8);
    out.extend_from_slice(prefix.as_bytes());
    out.extend_from_slice(b":{");
    out.extend_from_slice(scope.len().to_string().as_bytes());
    for part in [scope, key] {
        out.push(b':');
        out.extend_from_slice(part.as_bytes());
    }
    out.push(b'}');
    out
}

/// Returns the identity of the record with this key; `None` for a key that this store does not
/// write.
pub(crate) fn identity(prefix: &str, key: &[u8]) -> Option<Identity> {
    let rest = key.strip_prefix(prefix.as_bytes())?.strip_prefix(b":{")?.strip_suffix(b"}")?;
    let (length, rest) = str::from_utf8(rest).ok()?.split_once(':')?;
    let (scope, rest) = rest.split_at_checked(length.parse().ok()?)?;
    let id = Identity::new(Scope::new(scope).ok()?, Key::new(rest.strip_prefix(':')?).ok()?);
    // Refuse a length that is written in another way, such as `+1` or `01`.
    (self::key(prefix, &id) == key).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_2_keys_of_distinct_identities_are_distinct() {
        let of = |scope: &'static str, key: &str| key_of(scope, key);
        assert_ne!(of("a:b", "c"), of("a", "b:c"));
        assert_ne!(of("1:a", "b"), of("1", "a:b"));
        assert_ne!(of("a", "b}"), of("a", "b"));
        assert_eq!(of("pay", "k 1"), b"p:{3:pay:k 1}");
    }

    #[test]
    fn ops_1_a_key_gives_back_its_identity() {
        for (scope, text) in [("pay", "k 1"), ("a:b", "c}"), ("1:a", ":b:"), ("ü", "{ключ}")] {
            let id = Identity::of(scope, text).unwrap();
            assert_eq!(identity("p", &key("p", &id)), Some(id));
        }
        let foreign: [&[u8]; 9] = [
            b"p:{3:pay:k",
            b"q:{3:pay:k}",
            b"p:{03:pay:k}",
            b"p:{4:pay:k}",
            b"p:{9:pay:k}",
            b"p:{3:pay:}",
            b"p:{x:pay:k}",
            b"p:{1:\xff:k}",
            b"p:{",
        ];
        for key in foreign {
            assert_eq!(identity("p", key), None, "{}", key.escape_ascii());
        }
    }

    fn key_of(scope: &'static str, text: &str) -> Vec<u8> {
        key("p", &Identity::of(scope, text).unwrap())
    }
}
