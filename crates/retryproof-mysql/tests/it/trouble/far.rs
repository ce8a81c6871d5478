// SPDX-License-Identifier: MIT OR Apache-2.0
//! A distant server: connecting takes longer than a heartbeat may take.

use std::time::Duration;

use retryproof_core::IdempotencyStore;
use retryproof_mysql::MysqlStore;
use retryproof_testkit::wire::WireProxy;
use tokio::time::timeout;

use crate::round_trips::{server, through};
use crate::support::{Table, id};

const PATIENCE: Duration = Duration::from_secs(20);

async fn store(table: &Table) -> (WireProxy, MysqlStore) {
    let proxy = WireProxy::to(server()).await.expect("a proxy");
    let config = table.config_at(&through(&proxy));
    (proxy, MysqlStore::connect(config).await.expect("the store connects"))
}

/// Each call is dropped before the connection that it needs is open, because connecting takes three
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
        async { while timeout(round_trip * 11 / 4, store.peek(&id("k"))).await.is_err() {} };
    timeout(PATIENCE, reached).await.expect("a call finds the connection that another began");
}

/// A call that ends at the store's `call_timeout` does not end its attempt to connect, which
/// continues for up to `connect_timeout`.
#[tokio::test]
async fn sto_5_a_dial_outlives_the_limit_of_the_call_that_began_it() {
    let table = Table::new().await;
    let proxy = WireProxy::to(server()).await.expect("a proxy");
    let config = table.config_at(&through(&proxy)).with_call_timeout(Duration::from_secs(1));
    let store = MysqlStore::connect(config).await.expect("the store connects");
    let lines = proxy.lines();
    proxy.delay(Duration::from_millis(600));
    proxy.cut();
    let error = store.peek(&id("k")).await.expect_err("connecting takes 1.8 s");
    assert!(error.to_string().contains("in time"), "{error}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    proxy.delay(Duration::ZERO);
    drop(store.peek(&id("k")).await.expect("the connection that the other call began"));
    assert_eq!(proxy.lines(), lines + 1);
}
