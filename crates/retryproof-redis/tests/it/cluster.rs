// SPDX-License-Identifier: MIT OR Apache-2.0
//! A Redis Cluster: where records are, what happens when primaries fail over and slots move, and
//! which clusters are refused.

mod answers;
mod diagnose;
mod waiters;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite, Force, ForceRequest, Forced, Inspect, Peeked};
use retryproof_core::{ErrorKind, IdempotencyStore, Identity, OwnerId};
use retryproof_redis::{RedisConfig, RedisStore};
use retryproof_testkit::wire::WireProxy;
use tokio::time::Instant;

use crate::support::server::{Cluster, Server};
use crate::support::{
    CANARY, ask, completion, config, execute, grant, id, is, key_of, own_prefix, refused, replay,
    request, until_connected,
};

/// Longer than a failover takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(cluster: &Cluster, prefix: &str) -> RedisStore {
    let config = RedisConfig::from_url(&cluster.url()).expect("a URL").with_prefix(prefix);
    RedisStore::connect(config).await.expect("it connects")
}

/// Tries to acquire the key until a node grants it. Returns how long that took.
async fn until_granted(store: &RedisStore, id: &Identity) -> Duration {
    let (owner, began) = (OwnerId::new(), Instant::now());
    loop {
        match store.acquire(id, &request(owner)).await {
            Ok(Acquired::Granted(_)) => return began.elapsed(),
            Ok(other) => panic!("no other caller has the key: {other:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert!(began.elapsed() < PATIENCE, "no recovery without a restart: {error:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_8_records_are_on_all_primaries_and_operators_see_each() {
    let cluster = Cluster::start("").await;
    let prefix = own_prefix();
    // One node is enough, even if it is a replica, and even if the others in the URL are gone.
    let url = format!(
        "redis+cluster://no-such-host.invalid:1,127.0.0.1:1,127.0.0.1:{}",
        cluster.nodes[5].port
    );
    let store =
        RedisStore::connect(RedisConfig::from_url(&url).expect("a URL").with_prefix(&prefix));
    let store = store.await.expect("it connects");
    let ids: Vec<_> = (0..60).map(|at| id(&format!("k{at}"))).collect();
    for id in &ids {
        execute(&store, id, "x").await;
    }
    for node in &cluster.nodes[..3] {
        let keys: u64 = ask(&mut node.stranger().await, "DBSIZE").await;
        assert!(keys > 0, "each primary has records");
    }
    assert_eq!(store.stats().await.expect("counted").records, 60);
    let (mut seen, mut after, mut pages) = (BTreeSet::new(), None, 0);
    loop {
        let page = store.scan(after.as_ref(), 10).await.expect("a page");
        seen.extend(page.records.iter().map(|record| record.id.key().expose().to_owned()));
        pages += 1;
        // In the middle of the scan, a primary fails over. The scan begins again.
        if pages == 2 {
            cluster.fail_over(0).await;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 60);
    for id in &ids[..10] {
        let summary = store.get(id).await.expect("inspected").expect("a record");
        let forced = store.force(id, &ForceRequest::forget(summary.token)).await.expect("answered");
        assert!(matches!(forced, Forced::Applied), "{forced:?}");
        assert!(matches!(store.peek(id).await, Ok(Peeked::Absent)));
    }
    assert_eq!(store.stats().await.expect("counted").records, 50);
    // A failed-over or restarted primary has no scripts. The call loads them.
    for node in &cluster.nodes {
        node.tell("SCRIPT FLUSH").await;
    }
    for id in &ids[..20] {
        until_granted(&store, &Identity::of("again", id.key().expose()).expect("an identity"))
            .await;
    }
    assert_eq!(replay(&store, &ids[30]).await, "x");
}

/// The only node of a cluster announces the address of a proxy, which counts the round trips.
#[tokio::test]
async fn acq_8_sto_8_each_operation_is_one_round_trip() {
    let node = Server::start("cluster-enabled yes").await;
    let proxy = WireProxy::to(SocketAddr::from(([127, 0, 0, 1], node.port))).await;
    let proxy = proxy.expect("a proxy");
    let announced = proxy.addr().port();
    node.tell(&format!("CONFIG SET cluster-announce-port {announced}")).await;
    node.tell("CLUSTER ADDSLOTSRANGE 0 16383").await;
    let config = config(&format!("redis+cluster://127.0.0.1:{announced}"));
    let store = until_connected(config).await;
    let (id, owner) = (id("k"), OwnerId::new());
    let mut flights = proxy.flights();
    let mut one = |what: &str| {
        let now = proxy.flights();
        assert_eq!(now - flights, 1, "{what}");
        flights = now;
    };
    grant(&store, &id, owner).await;
    one("acquire");
    assert!(matches!(store.acquire(&id, &request(OwnerId::new())).await, Ok(Acquired::Busy(_))));
    one("in flight");
    assert!(matches!(store.peek(&id).await, Ok(Peeked::Busy(_))));
    one("peek");
    let extended = store.extend(&id, owner, PATIENCE).await.expect("extended");
    assert_eq!(extended, FencedWrite::Applied);
    one("extend");
    let completed = store.complete(&id, owner, &completion("x")).await.expect("completed");
    assert_eq!(completed, FencedWrite::Applied);
    one("complete");
    assert_eq!(replay(&store, &id).await, "x");
    one("replay");
    assert_eq!(store.release(&id, owner).await.expect("answered"), FencedWrite::NotOwner);
    one("release");
}

/// While a primary is dead, calls with its keys fail as unavailable and name it; after the
/// failover, they succeed. Completed records survive if they were replicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_8_a_killed_primary_is_replaced_without_a_restart() {
    let mut cluster = Cluster::start("").await;
    let prefix = own_prefix();
    let store = connect(&cluster, &prefix).await;
    let (held, done, owner) = (id("held"), id("done"), OwnerId::new());
    grant(&store, &held, owner).await;
    execute(&store, &done, "result").await;
    let mut killed = BTreeSet::new();
    for id in [&held, &done] {
        let slot = cluster.slot_of(&key_of(&prefix, id)).await;
        let primary = cluster.serving(slot).await;
        cluster.replicated(primary).await;
        if !killed.insert(primary) {
            continue;
        }
        cluster.nodes[primary].kill();
        let error = store.peek(id).await.expect_err("the primary is dead");
        let at = format!("127.0.0.1:{}", cluster.nodes[primary].port);
        is(&error, ErrorKind::Unavailable, "server = 127.0.0.1:");
        eprintln!("the first failure on {at}: {error}");
        let began = Instant::now();
        while store.peek(id).await.is_err() {
            assert!(began.elapsed() < PATIENCE, "no recovery without a restart");
        }
        eprintln!("primary killed: served again after {:?}", began.elapsed());
        cluster.nodes[primary].run().await;
        cluster.settle().await;
    }
    let completed = store.complete(&held, owner, &completion("late")).await.expect("completed");
    assert_eq!(completed, FencedWrite::Applied);
    assert_eq!(replay(&store, &done).await, "result");
    assert_eq!(replay(&store, &held).await, "late");
}

/// A slot is moved in small steps while calls with its keys run. No call fails, and no completed
/// record is granted again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_8_a_moving_slot_is_followed_without_a_failed_call() {
    let cluster = Cluster::start("").await;
    let prefix = own_prefix();
    let store = connect(&cluster, &prefix).await;
    let (held, done, fresh, owner) = (id("a}held"), id("a}done"), id("a}new"), OwnerId::new());
    let slot = cluster.slot_of(&key_of(&prefix, &done)).await;
    for id in [&held, &fresh] {
        assert_eq!(cluster.slot_of(&key_of(&prefix, id)).await, slot, "one hash tag");
    }
    let token = grant(&store, &held, owner).await.token;
    execute(&store, &done, "result").await;
    let to = (cluster.serving(slot).await + 1) % 3;
    cluster.begin_move(slot, to).await;
    // The records have moved, and the slot has not.
    assert_eq!(replay(&store, &done).await, "result");
    let other = connect(&cluster, &prefix).await;
    assert_eq!(replay(&other, &done).await, "result");
    assert!(matches!(other.peek(&held).await, Ok(Peeked::Busy(lease)) if lease.token == token));
    assert!(matches!(other.acquire(&held, &request(OwnerId::new())).await, Ok(Acquired::Busy(_))));
    assert_eq!(other.stats().await.expect("counted").records, 2);
    grant(&other, &fresh, owner).await;
    let extended = store.extend(&held, owner, Duration::from_secs(60)).await.expect("extended");
    assert_eq!(extended, FencedWrite::Applied);
    cluster.nodes[to].tell("SCRIPT FLUSH").await;
    let completed = store.complete(&held, owner, &completion("x")).await.expect("completed");
    assert_eq!(completed, FencedWrite::Applied);
    cluster.end_move(slot, to).await;
    assert_eq!(replay(&store, &held).await, "x");
    assert_eq!(replay(&store, &done).await, "result");
    let released = other.release(&fresh, owner).await.expect("released");
    assert_eq!(released, FencedWrite::Applied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_8_a_replica_has_what_was_acknowledged() {
    let cluster = Cluster::start("").await;
    let prefix = own_prefix();
    let url = format!("{}?wait-replicas=1&wait-timeout=PT2S&prefix={prefix}", cluster.url());
    let config = RedisConfig::from_url(&url).expect("a URL");
    let store = RedisStore::connect(config).await.expect("it connects");
    for at in 0..30 {
        let (id, owner) = (id(&format!("k{at}")), OwnerId::new());
        let key = key_of(&prefix, &id);
        let replica = cluster.serving(cluster.slot_of(&key).await).await + 3;
        let mut there = cluster.nodes[replica].stranger().await;
        let () = ask(&mut there, "READONLY").await;
        grant(&store, &id, owner).await;
        let copied: Vec<u8> =
            redis::cmd("GET").arg(&key).query_async(&mut there).await.expect("read");
        assert!(copied.starts_with(b"rp2P"), "the grant is there");
        let completed = store.complete(&id, owner, &completion("x")).await.expect("completed");
        assert_eq!(completed, FencedWrite::Applied);
        assert_eq!(replay(&store, &id).await, "x");
    }
    cluster.nodes[3].signal("-STOP");
    let mut refused = 0;
    for at in 0..12 {
        match store.acquire(&id(&format!("s{at}")), &request(OwnerId::new())).await {
            Ok(Acquired::Granted(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                is(&error, ErrorKind::Unavailable, "confirmed = 0, expected = 1");
                refused += 1;
                break;
            }
        }
    }
    assert_eq!(refused, 1, "a key of the primary whose replica hangs");
    cluster.nodes[3].signal("-CONT");
}

#[tokio::test]
async fn sto_8_a_server_of_another_mode_is_refused_and_names_the_scheme() {
    let alone = Server::start("").await;
    let url = format!("redis+cluster://u:{CANARY}@127.0.0.1:{}", alone.port);
    is(&refused(config(&url)).await, ErrorKind::Config, "password");
    let url = format!("redis+cluster://127.0.0.1:1,127.0.0.1:{}", alone.port);
    is(&refused(config(&url)).await, ErrorKind::Config, "`redis://HOST:PORT`");
    // The node belongs to no cluster yet.
    let node = Server::start("cluster-enabled yes").await;
    is(&refused(config(&node.url())).await, ErrorKind::Unsupported, "`redis+cluster://");
    let with_db = config(&node.url()).with_db(1);
    is(&refused(with_db).await, ErrorKind::Unsupported, "`redis+cluster://");
    let url = format!("redis+cluster://127.0.0.1:{}", node.port);
    is(&refused(config(&url)).await, ErrorKind::Unavailable, "slots = 16384");
    is(&refused(config(&url).with_db(1)).await, ErrorKind::Config, "database = 1");
    // The node has some of the slots.
    node.tell("CLUSTER ADDSLOTSRANGE 0 9999").await;
    is(&refused(config(&url)).await, ErrorKind::Unavailable, "slots = 6384");
    let gone = format!("redis+cluster://u:{CANARY}@127.0.0.1:1,no-such-host.invalid:2");
    let error = refused(config(&gone)).await;
    is(&error, ErrorKind::Unavailable, "server = ");
}
