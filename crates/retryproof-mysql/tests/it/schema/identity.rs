// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identities are compared as bytes (ID-2), in a database whose collation ignores case, accents and
//! trailing spaces. Identities are bound as values, and never become part of the SQL.

use retryproof_core::{IdempotencyStore, Identity, Key, OwnerId, Scope};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::support::{Table, execute, replay, request, stranger};

/// Texts that some collations treat as equal, although their bytes differ.
const ALIKE: [&str; 14] =
    ["a", "A", "a ", "a  ", " a", "á", "a\u{301}", "ä", "ae", "æ", "ss", "ß", "ı", "İ"];

/// Texts that would do harm if they were pasted into a statement.
const HOSTILE: [&str; 14] = [
    "'",
    "''",
    "\\'",
    "\\",
    "' OR 1=1 -- ",
    "'; DROP TABLE retryproof_records; -- ",
    "/*!50000 SELECT SLEEP(5) */",
    "`",
    "%",
    "_",
    "?",
    "X'00'",
    "NULL",
    "\u{10ffff}\u{feff}",
];

#[tokio::test]
async fn id_2_identities_are_bytes_and_never_sql() {
    let table = Table::new().await;
    let store = table.store().await;
    let all: Vec<_> = ALIKE.into_iter().chain(HOSTILE).collect();
    let identity = |scope: &str, key: &str| {
        Identity::new(Scope::new(scope).expect("a scope"), Key::new(key).expect("a key"))
    };
    for (at, text) in all.iter().enumerate() {
        execute(&store, &identity(text, "k"), &format!("scope {at}")).await;
        execute(&store, &identity("s", text), &format!("key {at}")).await;
    }
    // The first store has completed these keys. The second store reads them for the first time.
    for store in [&store, &table.store().await] {
        for (at, text) in all.iter().enumerate() {
            assert_eq!(
                replay(store, &identity(text, "k")).await,
                format!("scope {at}"),
                "{text:?}"
            );
            assert_eq!(replay(store, &identity("s", text)).await, format!("key {at}"), "{text:?}");
        }
    }
    let count = format!("SELECT COUNT(*) FROM `{}`", table.name);
    let row = stranger().await.fetch_one(AssertSqlSafe(count)).await.expect("counted");
    assert_eq!(row.get::<i64, _>(0), 2 * i64::try_from(all.len()).expect("few"));
}

#[tokio::test]
async fn id_3_the_longest_identity_fits_and_stands_apart() {
    let table = Table::new().await;
    let store = table.store().await;
    let identity = |scope: usize, key: usize| {
        Identity::new(
            Scope::new("s".repeat(scope)).expect("a scope"),
            Key::new("k".repeat(key)).expect("a key"),
        )
    };
    execute(&store, &identity(255, 512), "longest").await;
    execute(&store, &identity(255, 511), "shorter").await;
    assert_eq!(replay(&store, &identity(255, 512)).await, "longest");
    assert_eq!(replay(&store, &identity(255, 511)).await, "shorter");
    // Both identities consist of the same bytes, split differently into scope and key.
    let (one, other) = (identity(254, 512), identity(255, 510));
    for id in [one, other] {
        assert!(matches!(store.peek(&id).await, Ok(retryproof_core::store::Peeked::Absent)));
        drop(store.acquire(&id, &request(OwnerId::new())).await.expect("granted"));
    }
}
