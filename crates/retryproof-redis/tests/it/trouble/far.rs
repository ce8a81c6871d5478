// SPDX-License-Identifier: MIT OR Apache-2.0
//! A distant server: connecting takes longer than a heartbeat may take.

use std::net::SocketAddr;
use std::time::Duration;

use retryproof_core::{Acquisition, IdempotencyContext, IdempotencyEngine, IdempotencyStore};
use retryproof_redis::{RedisConfig, RedisStore};
use retryproof_testkit::wire::WireProxy;
use tokio::time::timeout;

use crate::support::{execute, id, own_prefix, service};

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a proxy to the test server whose delay can be set, and the configuration of a store
/// behind the proxy.
async fn far() -> (WireProxy, RedisConfig) {
    let url = service("RETRYPROOF_TEST_REDIS", "redis");
    let at: SocketAddr = url.trim_start_matches("redis://").parse().expect("an address");
    let proxy = WireProxy::to(at).await.expect("a proxy");
    let config = RedisConfig::new("127.0.0.1", proxy.addr().port()).with_prefix(own_prefix());
    (proxy, config)
}

/// Each call is dropped before the connection that it needs is open. The attempt to connect
/// continues, so a later call finds the connection open.
#[tokio::test]
async fn sto_5_a_dial_outlives_the_calls_that_wait_for_it() {
    let round_trip = Duration::from_millis(100);
    let (proxy, config) = far().await;
    let store = RedisStore::connect(config).await.expect("it connects");
    proxy.delay(round_trip);
    proxy.cut();
    let before = proxy.lines();
    let reached =
        async { while timeout(round_trip * 3 / 2, store.peek(&id("k"))).await.is_err() {} };
    timeout(PATIENCE, reached).await.expect("a call finds the connection that another began");
    assert_eq!(proxy.lines() - before, 1, "all of them share one connection attempt");
}

/// A heartbeat of this lease may take 1.92 s, which is less than the two round trips of connecting.
/// Connecting and the call together fit into the half of the lease that is left, with some 800 ms
/// to spare for a busy machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_1_a_lease_on_a_far_server_outlives_a_broken_connection() {
    let (proxy, config) = far().await;
    let (dial, call) = (Duration::from_secs(4), Duration::from_secs(8));
    let config = config.with_connect_timeout(dial).with_call_timeout(call);
    let store = RedisStore::connect(config).await.expect("it connects");
    proxy.delay(Duration::from_millis(1_040));
    let engine = IdempotencyEngine::builder(store).build().expect("an engine");
    let context = IdempotencyContext::builder("redis.far", "k").lease(Duration::from_secs(8));
    let context = context.wait_timeout(Duration::ZERO).build().expect("a context");
    let Acquisition::Granted(held) = engine.try_acquire(&context).await.expect("acquired") else {
        panic!("the key is new")
    };
    for _ in 0..2 {
        proxy.cut();
        let lost = timeout(Duration::from_millis(12_800), held.lease().lost()).await;
        assert!(lost.is_err(), "nothing was away: {lost:?}");
    }
}

/// A connection attempt ends with its runtime, and a call in another runtime does not wait for it.
#[test]
fn sto_5_a_dial_that_ends_with_its_runtime_is_begun_again() {
    let main = tokio::runtime::Runtime::new().expect("a runtime");
    let (proxy, store) = main.block_on(async {
        let (proxy, config) = far().await;
        (proxy, RedisStore::connect(config).await.expect("it connects"))
    });
    proxy.delay(Duration::from_millis(100));
    proxy.cut();
    let short =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    short.block_on(async {
        let given_up = timeout(Duration::from_millis(50), store.peek(&id("k"))).await;
        assert!(given_up.is_err(), "{given_up:?}");
    });
    drop(short);
    main.block_on(async {
        proxy.delay(Duration::ZERO);
        timeout(PATIENCE, execute(&store, &id("k"), "x")).await.expect("it connects again");
    });
}
