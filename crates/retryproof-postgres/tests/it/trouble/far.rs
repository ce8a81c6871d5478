// SPDX-License-Identifier: MIT OR Apache-2.0
//! A distant server: connecting takes longer than a heartbeat may take.

use std::time::Duration;

use retryproof_core::IdempotencyStore;
use retryproof_postgres::{PostgresConfig, PostgresStore};
use retryproof_testkit::wire::WireProxy;
use tokio::time::timeout;

use crate::round_trips::proxied;
use crate::support::{Table, id, postgres};

const PATIENCE: Duration = Duration::from_secs(20);

async fn store(table: &Table) -> (WireProxy, PostgresStore) {
    let (proxy, through) = proxied(&postgres()).await;
    let config =
        PostgresConfig::from_url(&through).expect("a valid URL").with_table_name(&table.name);
    (proxy, PostgresStore::connect(config).await.expect("connected"))
}

/// Each call is dropped before the connection that it needs is open, because connecting takes four
/// round trips. A later call finds the connection open. Its statement takes two round trips, and
/// ends before the call would be dropped.
#[tokio::test]
async fn sto_5_a_dial_outlives_the_call_that_began_it() {
    let table = Table::new().await;
    let (proxy, store) = store(&table).await;
    let round_trip = Duration::from_millis(250);
    proxy.delay(round_trip);
    proxy.cut();
    let reached =
        async { while timeout(round_trip * 7 / 2, store.peek(&id("k"))).await.is_err() {} };
    timeout(PATIENCE, reached).await.expect("a call finds the connection that another began");
}
