// SPDX-License-Identifier: MIT OR Apache-2.0
//! Round trips counted on the wire, and writes counted by the server (ACQ-8).

use std::net::SocketAddr;
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, FencedWrite, Peeked};
use retryproof_core::{IdempotencyStore, Identity, OwnerId};
use retryproof_redis::{RedisConfig, RedisStore};
use retryproof_testkit::wire::WireProxy;

use crate::support::server::Server;
use crate::support::{DAY, completion, config, execute, grant, id, own_prefix, replay, request};

async fn proxy(server: &Server) -> WireProxy {
    WireProxy::to(SocketAddr::from(([127, 0, 0, 1], server.port))).await.expect("a proxy")
}

/// Returns a store that connects through the proxy.
async fn through(proxy: &WireProxy, prefix: &str) -> RedisStore {
    let config = RedisConfig::new("127.0.0.1", proxy.addr().port()).with_prefix(prefix);
    RedisStore::connect(config).await.expect("it connects")
}

/// Waits until the lease of `id` has ended.
async fn expired(store: &RedisStore, id: &Identity) {
    while !matches!(store.peek(id).await, Ok(Peeked::Absent)) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn acq_8_each_operation_is_one_round_trip() {
    let server = Server::start("").await;
    let proxy = proxy(&server).await;
    let prefix = own_prefix();
    let store = through(&proxy, &prefix).await;
    let elsewhere = RedisStore::connect(
        RedisConfig::from_url(&server.url()).expect("a URL").with_prefix(&prefix),
    )
    .await
    .expect("it connects");
    let (a, b, done) = (id("a"), id("b"), id("done"));
    let (owner, other) = (OwnerId::new(), OwnerId::new());
    execute(&elsewhere, &done, "elsewhere").await;

    let mut flights = proxy.flights();
    let mut one = |what: &str| {
        let now = proxy.flights();
        assert_eq!(now - flights, 1, "{what}");
        flights = now;
    };
    grant(&store, &a, owner).await;
    one("acquire");
    assert!(matches!(store.acquire(&a, &request(other)).await, Ok(Acquired::Busy(_))));
    one("in flight");
    assert!(matches!(store.peek(&a).await, Ok(Peeked::Busy(_))));
    one("peek");
    assert_eq!(store.extend(&a, owner, DAY).await.expect("extended"), FencedWrite::Applied);
    one("extend");
    assert_eq!(
        store.complete(&a, owner, &completion("result")).await.expect("completed"),
        FencedWrite::Applied
    );
    one("complete");
    assert_eq!(replay(&store, &a).await, "result");
    one("replay of a record that this process has seen complete");
    assert_eq!(replay(&store, &done).await, "elsewhere");
    one("replay on first contact");
    assert_eq!(replay(&store, &done).await, "elsewhere");
    one("replay on second contact");
    grant(&store, &b, owner).await;
    one("acquire");
    assert_eq!(store.release(&b, owner).await.expect("released"), FencedWrite::Applied);
    one("release");
    grant(&store, &b, owner).await;
    one("acquire after a release");

    let c = id("c");
    let brief = AcquireRequest::new(owner, Duration::from_millis(10), DAY);
    assert!(matches!(elsewhere.acquire(&c, &brief).await, Ok(Acquired::Granted(_))));
    expired(&elsewhere, &c).await;
    assert!(grant(&store, &c, other).await.took_over);
    one("takeover");
    assert_eq!(
        store.complete(&c, owner, &completion("zombie")).await.expect("answered"),
        FencedWrite::NotOwner
    );
    one("a refused completion");
}

#[tokio::test]
async fn acq_8_forgotten_scripts_are_loaded_on_the_way_once() {
    let server = Server::start("").await;
    let proxy = proxy(&server).await;
    let store = through(&proxy, &own_prefix()).await;
    let owner = OwnerId::new();
    for round in 0..2 {
        server.tell("SCRIPT FLUSH").await;
        for (at, more) in [(0, 1), (1, 0)] {
            let id = id(&format!("{round} {at}"));
            let before = proxy.flights();
            grant(&store, &id, owner).await;
            assert_eq!(proxy.flights() - before, 1 + more, "acquire {at}");
            let before = proxy.flights();
            assert_eq!(
                store.extend(&id, owner, DAY).await.expect("extended"),
                FencedWrite::Applied
            );
            assert_eq!(proxy.flights() - before, 1 + more, "extend {at}");
            let before = proxy.flights();
            assert_eq!(
                store.complete(&id, owner, &completion("x")).await.expect("completed"),
                FencedWrite::Applied
            );
            assert_eq!(proxy.flights() - before, 1 + more, "complete {at}");
            let other = crate::support::id(&format!("{round} {at} released"));
            grant(&store, &other, owner).await;
            let before = proxy.flights();
            assert_eq!(store.release(&other, owner).await.expect("released"), FencedWrite::Applied);
            assert_eq!(proxy.flights() - before, 1 + more, "release {at}");
        }
    }
}

#[tokio::test]
async fn acq_8_replays_looks_and_busy_answers_write_nothing() {
    let server = Server::start("").await;
    let config = config(&server.url());
    let store = RedisStore::connect(config.clone()).await.expect("it connects");
    let fresh = RedisStore::connect(config).await.expect("it connects");
    execute(&store, &id("done"), "result").await;
    grant(&store, &id("held"), OwnerId::new()).await;
    let before = server.info("rdb_changes_since_last_save").await;
    for _ in 0..100 {
        assert_eq!(replay(&store, &id("done")).await, "result");
        assert_eq!(replay(&fresh, &id("done")).await, "result");
        assert!(matches!(
            store.acquire(&id("held"), &request(OwnerId::new())).await,
            Ok(Acquired::Busy(_))
        ));
        assert!(matches!(store.peek(&id("held")).await, Ok(Peeked::Busy(_))));
        assert!(matches!(store.peek(&id("none")).await, Ok(Peeked::Absent)));
    }
    assert_eq!(server.info("rdb_changes_since_last_save").await, before);
}

#[tokio::test]
async fn sto_4_the_server_reclaims_what_is_over() {
    let server = Server::start("").await;
    let store = RedisStore::connect(config(&server.url())).await.expect("it connects");
    assert!(store.profile().reclaims);
    let brief = Duration::from_millis(20);
    for at in 0..50 {
        let (id, owner) = (id(&format!("k{at}")), OwnerId::new());
        let request = AcquireRequest::new(owner, brief, brief);
        assert!(matches!(store.acquire(&id, &request).await, Ok(Acquired::Granted(_))));
    }
    let mut conn = server.stranger().await;
    loop {
        let left: u64 = crate::support::ask(&mut conn, "DBSIZE").await;
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
