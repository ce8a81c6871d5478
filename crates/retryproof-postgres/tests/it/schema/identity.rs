// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keys are values, never SQL (ID-2), both in prepared statements and as literals that go through a
//! pooler.

use retryproof_core::IdempotencyStore;
use retryproof_core::store::Peeked;
use retryproof_postgres::{PostgresConfig, PostgresStore};

use crate::support::{Table, execute, id, pgbouncer, postgres, replay};

#[tokio::test]
async fn id_2_nothing_in_a_key_ends_a_literal() {
    for url in [postgres(), pgbouncer()] {
        let table = Table::new().await;
        let config = PostgresConfig::from_url(&url).expect("a valid URL");
        let store =
            PostgresStore::connect(config.with_table_name(&table.name)).await.expect("connected");
        let drop_table = format!("'; DROP TABLE \"{}\"; --", table.name);
        for key in
            [&*drop_table, "$1", "\\x00", "\\'; SELECT 1; --", "%s{}", "decode('','hex')", "E'\\''"]
        {
            execute(&store, &id(key), key).await;
            assert_eq!(replay(&store, &id(key)).await, key);
            assert!(matches!(store.peek(&id(&format!("{key} "))).await, Ok(Peeked::Absent)));
        }
        let rows = format!("SELECT count(*) FROM \"{}\"", table.name);
        assert_eq!(table.stranger().await.number(rows).await, 7);
    }
}
