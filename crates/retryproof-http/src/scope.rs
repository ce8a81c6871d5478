// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a request to an identity: the default scope of a route, and the caller folded into the key (HTTP-16).

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// A caller longer than this is hashed, so that every folded key fits ID-3: 3 + 1 + 240 + 1 + 255 = 500 bytes.
const MAX_PLAIN_CALLER: usize = 240;

/// Method and route template with the parameters' names erased, so that renaming one orphans no record:
/// `POST /orders/{id}/{*rest}` becomes `POST /orders/{}/{*}`.
#[cfg(any(feature = "axum", test))]
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

/// The engine's key for a caller's key. Injective: an absent caller, an empty one and `a` are three callers, and no
/// choice of keys makes two callers meet. Always with a prefix, so that `.caller(..)` added later meets no old record
/// of somebody else.
pub(crate) fn fold(caller: Option<&str>, key: &str) -> String {
    // Longest prefix that is not the caller itself: `h:`, 64 hex digits, a colon.
    let mut folded = String::with_capacity(67 + caller.map_or(0, str::len).min(MAX_PLAIN_CALLER) + key.len());
    match caller {
        None => folded.push('-'),
        Some(caller) if caller.len() <= MAX_PLAIN_CALLER && !caller.chars().any(char::is_control) => {
            // `write!` into a String cannot fail.
            let _ = write!(folded, "{}:{caller}", caller.len());
        }
        Some(caller) => {
            folded.push_str("h:");
            for byte in Sha256::digest(caller) {
                let _ = write!(folded, "{byte:02x}");
            }
        }
    }
    folded.push(':');
    folded.push_str(key);
    folded
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

    #[test]
    fn http_16_absent_empty_and_named_callers_are_three() {
        assert_eq!(fold(None, "k"), "-:k");
        assert_eq!(fold(Some(""), "k"), "0::k");
        assert_eq!(fold(Some("a"), "k"), "1:a:k");
        assert_eq!(fold(Some("1:a"), "k"), "3:1:a:k");
        assert_eq!(
            fold(Some("a\nb"), "k"),
            format!("h:{}:k", Sha256::digest("a\nb").iter().map(|b| format!("{b:02x}")).collect::<String>())
        );
    }

    proptest! {
        #[test]
        fn http_16_every_folded_key_is_a_key_of_the_engine(caller in proptest::option::of("\\PC{0,300}|[\\x00-\\x20]{0,9}"), key in "[ -~]{1,255}") {
            let folded = fold(caller.as_deref(), &key);
            prop_assert!(Key::new(&folded).is_ok(), "{} bytes", folded.len());
        }

        #[test]
        fn http_16_folding_is_injective(
            one in (proptest::option::of("[a:0-9h-]{0,3}"), "[a:0-9-]{1,4}"),
            two in (proptest::option::of("[a:0-9h-]{0,3}"), "[a:0-9-]{1,4}"),
        ) {
            let folded = |pair: &(Option<String>, String)| fold(pair.0.as_deref(), &pair.1);
            prop_assert_eq!(folded(&one) == folded(&two), one == two);
        }
    }
}
