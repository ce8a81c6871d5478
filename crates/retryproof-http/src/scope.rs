// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a request to an identity: the default scope of a route, and the caller folded into the key
//! (HTTP-16).

use sha2::{Digest as _, Sha256};

use crate::filter::CallerIdentity;
use crate::protocol::key::MAX_KEY;

/// A caller longer than this is hashed, so that every folded key fits ID-3: 3 + 1 + 240 + 1 + 255 =
/// 500 bytes.
const MAX_PLAIN_CALLER: usize = 240;

/// Method and route template with the parameters' names erased, so that renaming one orphans no
/// record: `POST /orders/{id}/{*rest}` becomes `POST /orders/{}/{*}`.
pub(crate) fn default_scope(method: &str, template: &str) -> String {
    let mut scope = String::with_capacity(method.len() + 1 + template.len());
    scope.push_str(method);
    scope.push(' ');
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        let (literal, brace) = rest.split_at(at);
        scope.push_str(literal);
        // A doubled brace is a literal one (the routers' escape); it is kept as it stands.
        if brace.starts_with("{{") || brace.starts_with("}}") {
            scope.push_str(&brace[..2]);
            rest = &brace[2..];
        } else if let (Some(name), Some(end)) = (brace.strip_prefix('{'), brace.find('}')) {
            scope.push_str(if name.starts_with('*') { "{*}" } else { "{}" });
            rest = &brace[end + 1..];
        } else {
            scope.push_str(&brace[..1]);
            rest = &brace[1..];
        }
    }
    scope.push_str(rest);
    scope
}

/// Calls `then` with a key for the engine, of at most 500 bytes, without an allocation of its own:
/// the engine makes one.
///
/// Injective: callers that share keys, an absent caller, an empty one and `a` are four, and no
/// choice of keys makes two of them meet. Always with a prefix, so that `.caller(..)` added later
/// meets no old record of another caller. The guide tells operators how it is made
/// (`guide/operations.md`).
pub(crate) fn folded<T>(by: &CallerIdentity, key: &[u8], then: impl FnOnce(&str) -> T) -> T {
    match by {
        // A UUID with room to spare.
        CallerIdentity::Anyone | CallerIdentity::Absent if key.len() <= 60 => {
            then(Folded { bytes: [0; 62], len: 0 }.fold(by, key))
        }
        _ => then(Folded { bytes: [0; MAX_FOLDED], len: 0 }.fold(by, key)),
    }
}

struct Folded<const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
}

/// The longest prefix, `240:` and a caller of 240 bytes, a colon, and the longest key.
const MAX_FOLDED: usize = 4 + MAX_PLAIN_CALLER + 1 + MAX_KEY;

impl<const ROOM: usize> Folded<ROOM> {
    fn fold(&mut self, by: &CallerIdentity, key: &[u8]) -> &str {
        match by {
            CallerIdentity::Anyone => self.push(b"-"),
            CallerIdentity::Absent => self.push(b"a"),
            CallerIdentity::Named(caller)
                if caller.len() <= MAX_PLAIN_CALLER && !caller.chars().any(char::is_control) =>
            {
                self.push(caller.len().to_string().as_bytes());
                self.push(b":");
                self.push(caller.as_bytes());
            }
            CallerIdentity::Named(caller) => {
                self.push(b"h:");
                for byte in Sha256::digest(caller) {
                    self.push(format!("{byte:02x}").as_bytes());
                }
            }
        }
        self.push(b":");
        self.push(key);
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }

    fn push(&mut self, text: &[u8]) {
        let room = &mut self.bytes[self.len..];
        // Nothing is cut off: whatever is pushed has its place in the sum above.
        let text = &text[..text.len().min(room.len())];
        room[..text.len()].copy_from_slice(text);
        self.len += text.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use retryproof_core::Key;

    #[test]
    fn http_16_parameter_names_are_erased() {
        for (template, scope) in [
            ("/orders", "POST /orders"),
            ("/orders/{id}", "POST /orders/{}"),
            ("/orders/{order}/items/{*rest}", "POST /orders/{}/items/{*}"),
            ("/v{major}.{minor}", "POST /v{}.{}"),
            ("/{{literal}}/{x}", "POST /{{literal}}/{}"),
            ("/odd{", "POST /odd{"),
            ("/", "POST /"),
        ] {
            assert_eq!(default_scope("POST", template), scope);
        }
    }

    fn folded(caller: Option<&str>, key: &str) -> String {
        let by = caller
            .map_or(CallerIdentity::Absent, |caller| CallerIdentity::Named(caller.to_owned()));
        super::folded(&by, key.as_bytes(), str::to_owned)
    }

    #[test]
    fn http_16_shared_keys_absent_empty_and_named_callers_are_four() {
        assert_eq!(super::folded(&CallerIdentity::Anyone, b"k", str::to_owned), "-:k");
        assert_eq!(folded(None, "k"), "a:k");
        assert_eq!(folded(Some(""), "k"), "0::k");
        assert_eq!(folded(Some("a"), "k"), "1:a:k");
        assert_eq!(folded(Some("1:a"), "k"), "3:1:a:k");
        let hash = Sha256::digest("a\nb").iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(folded(Some("a\nb"), "k"), format!("h:{hash}:k"));
        let (longest, key) = ("c".repeat(240), "k".repeat(255));
        assert_eq!(folded(Some(&longest), &key), format!("240:{longest}:{key}"));
        for length in [60, 61, 255] {
            assert_eq!(folded(None, &key[..length]), format!("a:{}", &key[..length]));
        }
        assert_eq!(folded(Some(&format!("{longest}c")), &key).len(), 2 + 64 + 1 + 255);
    }

    proptest! {
        #[test]
        fn http_16_every_folded_key_is_a_key_of_the_engine(caller in proptest::option::of(
            "\\PC{0,300}|[\\x00-\\x20]{0,9}"), key in "[ -~]{1,255}") {
            let folded = folded(caller.as_deref(), &key);
            prop_assert!(folded.ends_with(&format!(":{key}")), "nothing is cut off");
            prop_assert!(Key::new(&folded).is_ok(), "{} bytes", folded.len());
        }

        #[test]
        fn http_16_folding_is_injective(
            one in (proptest::option::of("[a:0-9h-]{0,3}"), "[a:0-9-]{1,4}"),
            two in (proptest::option::of("[a:0-9h-]{0,3}"), "[a:0-9-]{1,4}"),
        ) {
            let folded = |pair: &(Option<String>, String)| folded(pair.0.as_deref(), &pair.1);
            prop_assert_eq!(folded(&one) == folded(&two), one == two);
        }
    }
}
