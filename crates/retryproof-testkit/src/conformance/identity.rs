// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identities are compared byte for byte. No folding, padding, trimming or joining makes two
//! identities equal.

use retryproof_core::store::FencedWrite;
use retryproof_core::{IdempotencyStore as _, Identity, Key, MAX_KEY_BYTES, MAX_SCOPE_BYTES};

use super::caller::{LONG, body, completed, granted, is_absent, is_complete};
use crate::subject::Subject;

/// Acquires all identities, completes half of them, and releases the rest. Then checks the state of
/// each record.
async fn are_apart(s: &Subject, identities: &[Identity]) {
    let mut holders = Vec::new();
    for (at, id) in identities.iter().enumerate() {
        let holder = s.caller(id);
        match holder.acquire(LONG).await {
            retryproof_core::store::Acquired::Granted(grant) => assert!(!grant.took_over),
            other => {
                panic!(
                    "identity {at} of {} should get a grant, because it differs from all earlier \
                     ones, got {other:?}",
                    identities.len()
                )
            }
        }
        holders.push(holder);
    }
    let (first, rest) = holders.split_at(holders.len() / 2);
    for (at, holder) in first.iter().enumerate() {
        assert_eq!(holder.complete(format!("value {at}").as_bytes()).await, FencedWrite::Applied);
    }
    for holder in rest {
        assert_eq!(holder.release().await, FencedWrite::Applied);
    }
    for (at, holder) in first.iter().enumerate() {
        let stored = completed(s.caller(&holder.id).acquire(LONG).await);
        assert_eq!(
            body(&stored),
            format!("value {at}").as_bytes(),
            "identity {at} should get back its own value"
        );
    }
    for holder in rest {
        is_absent(holder.peek().await);
    }
}

/// One key in two scopes has two records, and two keys in one scope have two records.
pub async fn id_1_scope_and_key_name_a_record_together(s: &Subject) {
    let pairs = [("a", "k"), ("b", "k"), ("a", "l"), ("b", "l"), ("k", "a")];
    are_apart(s, &pairs.map(|(scope, key)| s.identity(scope, key))).await;
}

/// Identities differ if they differ only in case, white space, padding or Unicode form.
pub async fn id_2_identities_compare_byte_for_byte(s: &Subject) {
    let keys = [
        "key",
        "Key",
        "KEY",
        "key ",
        " key",
        "key  ",
        "key\u{a0}",
        "key\u{3000}",
        "key.",
        "ke",
        "keyy",
        // Some comparisons treat groups of these characters as equal: composed and decomposed
        // letters, sharp s and its capital, dotless and dotted i, the Kelvin sign and k, full-width
        // letters, ligatures.
        "\u{e9}",
        "e\u{301}",
        "\u{c9}",
        "e",
        "ß",
        "ss",
        "\u{1e9e}",
        "SS",
        "i",
        "ı",
        "İ",
        "I",
        "k",
        "\u{212a}",
        "\u{ff4b}",
        "fi",
        "\u{fb01}",
        "å",
        "a\u{30a}",
        "\u{212b}",
        "ς",
        "σ",
        "Σ",
        // These keys contain invisible characters, or characters beyond the first Unicode plane.
        "a",
        "a\u{200b}",
        "a\u{200d}",
        "a\u{fe0f}",
        "\u{feff}a",
        "😀",
        "😁",
        "𝐚",
        // These keys are different spellings of the number 1.
        "1",
        "01",
        "1.0",
        "1e0",
        "+1",
        "0x1",
        "１",
    ];
    let mut identities = keys.map(|key| s.identity("", key)).to_vec();
    identities.extend(keys.map(|scope| s.identity(scope, "the key")));
    are_apart(s, &identities).await;
}

/// No separator in a scope or a key makes two different pairs equal.
pub async fn id_2_separators_join_nothing(s: &Subject) {
    let mut identities = Vec::new();
    for separator in [
        ":", "/", "|", "#", ",", " ", "\\", "::", ".", "-", "_", "%", "'", "\"", "{", "}", "\u{7e}",
    ] {
        let joined = |a: &str, b: &str| format!("{a}{separator}{b}");
        identities.push(s.identity(&joined("a", "b"), "c"));
        identities.push(s.identity("a", &joined("b", "c")));
        identities.push(s.identity(&joined("a", "b"), &joined("b", "c")));
        identities.push(s.identity(&joined("a", ""), "c"));
        identities.push(s.identity("a", &joined("", "c")));
    }
    for (scope, key) in
        [("ab", "c"), ("a", "bc"), ("abc", "d"), ("ab", "cd"), ("1", "23"), ("12", "3")]
    {
        identities.push(s.identity(scope, key));
    }
    are_apart(s, &identities).await;
}

/// The store treats text that other software interprets, such as SQL, as plain text.
pub async fn id_2_odd_text_is_only_text(s: &Subject) {
    let odd = [
        "' OR '1'='1",
        "'; DROP TABLE records; --",
        "\"; --",
        "\\'; --",
        "%",
        "_",
        "%%",
        "a%",
        "a_",
        "*",
        "?",
        "[a]",
        "a*",
        "{tag}",
        "{tag}x",
        "$1",
        ":1",
        "@p",
        "#{x}",
        "${x}",
        "%s",
        "%n",
        "\\0",
        "\\n",
        "\\",
        "\\\\",
        "null",
        "NULL",
        "true",
        "../../etc",
        "<a>",
        "&amp;",
        "a\u{2028}b",
        "ab",
        "\u{202e}ab",
        "\u{e000}",
        "\u{10ffff}",
    ];
    let mut identities = odd.map(|key| s.identity("", key)).to_vec();
    identities.extend(odd.map(|scope| s.identity(scope, "k")));
    are_apart(s, &identities).await;
}

/// The longest scopes and keys fit, and the store compares every byte of them.
pub async fn id_3_the_longest_identities_fit(s: &Subject) {
    let room = MAX_SCOPE_BYTES - s.id("k").scope().as_str().len() + "kit".len();
    let long = "x".repeat(MAX_KEY_BYTES - 1);
    let scope = "s".repeat(room - 1);
    // The first of these keys ends with a two-byte character, the second with a four-byte
    // character.
    let wide = format!("{}é", "x".repeat(MAX_KEY_BYTES - 2));
    let wider = format!("{}😀", "x".repeat(MAX_KEY_BYTES - 4));
    let identities = [
        s.identity("", &format!("{long}a")),
        s.identity("", &format!("{long}b")),
        s.identity("", &format!("{long}A")),
        s.identity("", &long),
        s.identity("", &wide),
        s.identity("", &wider),
        s.identity("", &long[..254]),
        s.identity("", &long[..255]),
        s.identity("", &long[..256]),
        s.identity(&format!("{scope}a"), "k"),
        s.identity(&format!("{scope}b"), "k"),
        s.identity(&scope, "k"),
        s.identity(&format!("{scope}a"), &format!("{long}a")),
        s.identity(&format!("{scope}a"), &format!("{long}b")),
        s.identity("", "k"),
    ];
    assert_eq!(identities[9].scope().as_str().len(), MAX_SCOPE_BYTES);
    are_apart(s, &identities).await;
}

/// The `Debug` output of a store and its errors contain no key and no value.
pub async fn id_4_a_store_prints_neither_keys_nor_values(s: &Subject) {
    let id = Identity::new(
        s.id("k").scope().clone(),
        Key::new("canary-key-4711").expect("the key should be valid"),
    );
    let holder = s.caller(&id);
    granted(holder.acquire(LONG).await);
    let mut printed = format!("{:?}", s.store());
    assert_eq!(holder.complete(b"canary-value-4712").await, FencedWrite::Applied);
    printed += &format!("{:?} {:?}", s.store(), is_complete(holder.peek().await));
    printed += &format!("{:?}", s.caller(&id).acquire(LONG).await);
    let limit = s.store().profile().max_value;
    if limit <= 16 << 20 {
        let holder = s.caller(&Identity::new(
            id.scope().clone(),
            Key::new("canary-key-4713").expect("the key should be valid"),
        ));
        granted(holder.acquire(LONG).await);
        let over = holder.completion(&vec![b'x'; limit]);
        let error = holder
            .store
            .complete(&holder.id, holder.owner, &over)
            .await
            .expect_err("a value over the limit should be refused");
        printed += &format!("{error} {error:?}");
    }
    assert!(
        !printed.contains("canary"),
        "`Debug` and `Display` should not show a key or a value: {printed}"
    );
}
