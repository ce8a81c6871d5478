// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for replicas: a grant or completion has reached them, or the caller gets an error.

use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite, Force, ForceRequest, Forced, Peeked};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_redis::{RedisConfig, RedisStore};
use tokio::time::Instant;

use crate::support::server::Server;
use crate::support::{
    CANARY, ask, assert_masked, completion, execute, grant, id, key_of, own_prefix, replay, request,
};

/// How long a call waits for replicas if one is stopped: much longer than a running replica takes
/// on a loaded machine.
const SHORT: Duration = Duration::from_secs(1);

async fn pair() -> (Server, Server) {
    let primary = Server::start("").await;
    let replica = Server::start(&format!("replicaof 127.0.0.1 {}", primary.port)).await;
    while primary.info("connected_slaves").await < 1
        || !ask::<String>(&mut primary.stranger().await, "INFO replication")
            .await
            .contains("state=online")
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (primary, replica)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_1_a_replica_has_what_was_acknowledged() {
    let (primary, replica) = pair().await;
    let prefix = own_prefix();
    let url = format!("{}/0?wait-replicas=1&wait-timeout=PT2S&prefix={prefix}", primary.url());
    let store = RedisStore::connect(RedisConfig::from_url(&url).expect("a URL"))
        .await
        .expect("it connects");
    let mut there = replica.stranger().await;
    for at in 0..50 {
        let (id, owner) = (id(&format!("k{at}")), OwnerId::new());
        let key = key_of(&prefix, &id);
        grant(&store, &id, owner).await;
        let copied: Vec<u8> =
            redis::cmd("GET").arg(&key).query_async(&mut there).await.expect("read");
        assert!(copied.starts_with(b"rp2P"), "the grant is there");
        assert!(matches!(
            store.acquire(&id, &request(OwnerId::new())).await,
            Ok(Acquired::Busy(_))
        ));
        assert_eq!(
            store.complete(&id, owner, &completion("x")).await.expect("completed"),
            FencedWrite::Applied
        );
        let copied: Vec<u8> =
            redis::cmd("GET").arg(&key).query_async(&mut there).await.expect("read");
        assert!(copied.starts_with(b"rp2C"), "the result is there");
        assert_eq!(replay(&store, &id).await, "x");
    }
    // If the server has forgotten the scripts, the store also loads them again over the connection
    // that waits for replicas.
    primary.tell("SCRIPT FLUSH").await;
    execute(&store, &id("after"), "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_1_falling_short_of_replicas_is_told_and_heals() {
    let (primary, replica) = pair().await;
    let prefix = own_prefix();
    let config = RedisConfig::from_url(&primary.url()).expect("a URL").with_prefix(&prefix);
    let store =
        RedisStore::connect(config.with_wait_replicas(1, SHORT)).await.expect("it connects");
    execute(&store, &id("done"), "x").await;
    let (held, owner) = (id("held"), OwnerId::new());
    grant(&store, &held, owner).await;

    replica.signal("-STOP");
    let error = store
        .acquire(&id(CANARY), &request(OwnerId::new()))
        .await
        .expect_err("no replica confirms");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("confirmed = 0, expected = 1"), "{error}");
    assert_masked(&error);
    for _ in 0..2 {
        let error = store
            .complete(&held, owner, &completion(CANARY))
            .await
            .expect_err("no replica confirms");
        assert!(error.to_string().contains("confirmed = 0, expected = 1"), "{error}");
    }
    // Replays and heartbeats do not queue behind the calls that wait for replicas.
    let started = Instant::now();
    for _ in 0..20 {
        assert_eq!(replay(&store, &id("done")).await, "x");
        assert!(
            matches!(store.peek(&held).await, Ok(Peeked::Complete(_))),
            "it is written, though"
        );
    }
    assert!(started.elapsed() < 5 * SHORT, "{:?}", started.elapsed());

    replica.signal("-CONT");
    // The same owner completes again, as the engine does after this error.
    let again = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            match store.complete(&held, owner, &completion(CANARY)).await {
                Ok(fenced) => return fenced,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    });
    assert_eq!(again.await.expect("it heals"), FencedWrite::AlreadyApplied);
    grant(&store, &id("after"), OwnerId::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_1_the_first_replay_in_a_process_does_not_wait_for_replicas() {
    let server = Server::start("").await;
    let config = RedisConfig::from_url(&server.url()).expect("a URL").with_prefix(own_prefix());
    let alone = RedisStore::connect(config.clone()).await.expect("it connects");
    execute(&alone, &id("done"), "x").await;
    // There is no replica at all, so each call that waits for one takes this long.
    let waiting = config.with_wait_replicas(1, 5 * SHORT);
    let waiting = RedisStore::connect(waiting).await.expect("it connects");
    let began = Instant::now();
    assert_eq!(replay(&waiting, &id("done")).await, "x");
    assert!(began.elapsed() < 5 * SHORT, "{:?}", began.elapsed());
}

/// From Redis 7.2 on, WAIT does not wait for a replica if its connection has written nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_1_cmp_3_ops_3_a_repetition_writes_something_for_which_replicas_can_be_waited() {
    let (primary, _replica) = pair().await;
    let prefix = own_prefix();
    let config = RedisConfig::from_url(&primary.url()).expect("a URL").with_prefix(&prefix);
    let alone = RedisStore::connect(config.clone()).await.expect("it connects");
    let waiting = config.with_wait_replicas(1, Duration::from_secs(10));
    let waiting = RedisStore::connect(waiting).await.expect("it connects");
    let (completed, resolved, owner) = (id("completed"), id("resolved"), OwnerId::new());
    grant(&waiting, &completed, owner).await;
    let done = waiting.complete(&completed, owner, &completion("x")).await.expect("completed");
    assert_eq!(done, FencedWrite::Applied);
    let token = grant(&waiting, &resolved, OwnerId::new()).await.token;
    let resolve = ForceRequest::resolve(&resolved, token, completion("y")).even_if_live();
    let forced = waiting.force(&resolved, &resolve).await.expect("resolved");
    assert!(matches!(forced, Forced::Applied), "{forced:?}");

    let mut conn = primary.stranger().await;
    let mut kept = async || {
        let mut all: Vec<(Vec<u8>, i64)> = Vec::new();
        for id in [&completed, &resolved] {
            let key = key_of(&prefix, id);
            let value = ask(&mut conn, &format!("GET {key}")).await;
            all.push((value, ask(&mut conn, &format!("PEXPIRETIME {key}")).await));
        }
        all
    };
    let before = kept().await;
    let writes = async || primary.info("rdb_changes_since_last_save").await;
    for (store, more) in [(&waiting, 1), (&alone, 0)] {
        let written = writes().await;
        let again = store.complete(&completed, owner, &completion("z")).await.expect("answered");
        assert_eq!(again, FencedWrite::AlreadyApplied);
        assert_eq!(writes().await - written, more, "writes of a completion");
        let written = writes().await;
        let again = store.force(&resolved, &resolve).await.expect("answered");
        assert!(matches!(again, Forced::Applied), "{again:?}");
        assert_eq!(writes().await - written, more, "writes of a resolve");
    }
    assert_eq!(kept().await, before, "neither a result nor its ttl changes");
}
