// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bad input and servers in trouble: each causes a typed error that names the remedy, nothing runs
//! or is damaged, and the store recovers without a restart.

mod far;
mod lines;
mod refused;

use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite, Inspect};
use retryproof_core::{ErrorKind, IdempotencyStore, Identity, OwnerId};
use retryproof_redis::{RedisConfig, RedisStore};

use crate::support::server::Server;
use crate::support::{
    CANARY, LONG, ask, assert_masked, completion, config, connected, execute, grant, id, is,
    key_of, own_prefix, refused, replay, request, service, stranger,
};

#[tokio::test]
async fn sto_5_a_replica_is_refused_and_a_demoted_server_recovers() {
    let primary = Server::start("").await;
    let server = Server::start("").await;
    let store = connected(&server).await;
    execute(&store, &id("done"), "result").await;
    let owner = OwnerId::new();
    grant(&store, &id("held"), owner).await;

    let replica = Server::start(&format!("replicaof 127.0.0.1 {}", primary.port)).await;
    is(&refused(config(&replica.url())).await, ErrorKind::Unavailable, "replica");

    // Make the server a replica of a port where no primary listens, so that it keeps its data.
    server.tell("REPLICAOF 127.0.0.1 1").await;
    for error in [
        store
            .acquire(&id(CANARY), &request(OwnerId::new()))
            .await
            .map(drop)
            .expect_err("read-only"),
        store
            .complete(&id("held"), owner, &completion(CANARY))
            .await
            .map(drop)
            .expect_err("read-only"),
        store.release(&id("held"), owner).await.map(drop).expect_err("read-only"),
        store.extend(&id("held"), owner, LONG).await.map(drop).expect_err("read-only"),
    ] {
        is(&error, ErrorKind::Unavailable, "replica");
        assert!(error.is_retryable());
    }
    server.tell("REPLICAOF NO ONE").await;
    assert_eq!(
        store.complete(&id("held"), owner, &completion("late")).await.expect("completed"),
        FencedWrite::Applied
    );
    grant(&store, &id(CANARY), OwnerId::new()).await;
}

#[tokio::test]
async fn sto_1_full_memory_refuses_new_keys_alone() {
    let server = Server::start("").await;
    let both = config(&server.url());
    let store = RedisStore::connect(both.clone()).await.expect("it connects");
    let fresh = RedisStore::connect(both).await.expect("it connects");
    execute(&store, &id("done"), "result").await;
    let owner = OwnerId::new();
    for key in ["a", "b", "c"] {
        grant(&store, &id(key), owner).await;
    }
    server.tell("CONFIG SET maxmemory 1").await;

    let error = store.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("full");
    is(&error, ErrorKind::Full, "maxmemory");
    assert_eq!(replay(&store, &id("done")).await, "result");
    assert_eq!(replay(&fresh, &id("done")).await, "result");
    assert!(matches!(
        fresh.acquire(&id("a"), &request(OwnerId::new())).await,
        Ok(Acquired::Busy(_))
    ));
    // A caller that got its lease before the memory was full can still extend, complete and release
    // it.
    assert_eq!(store.extend(&id("a"), owner, LONG).await.expect("extended"), FencedWrite::Applied);
    assert_eq!(
        store.complete(&id("a"), owner, &completion("done")).await.expect("completed"),
        FencedWrite::Applied
    );
    assert_eq!(store.release(&id("b"), owner).await.expect("released"), FencedWrite::Applied);

    server.tell("CONFIG SET maxmemory 0").await;
    grant(&store, &id(CANARY), OwnerId::new()).await;
    assert_eq!(replay(&fresh, &id("a")).await, "done");
}

#[tokio::test]
async fn sto_5_too_few_replicas_refuse_new_keys_alone() {
    let server = Server::start("").await;
    let both = config(&server.url());
    let store = RedisStore::connect(both.clone()).await.expect("it connects");
    let fresh = RedisStore::connect(both).await.expect("it connects");
    execute(&store, &id("done"), "result").await;
    let owner = OwnerId::new();
    grant(&store, &id("held"), owner).await;
    server.tell("CONFIG SET min-replicas-to-write 1").await;
    let error =
        store.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("no replicas");
    is(&error, ErrorKind::Unavailable, "min-replicas-to-write");
    let error =
        store.complete(&id("held"), owner, &completion(CANARY)).await.expect_err("no replicas");
    is(&error, ErrorKind::Unavailable, "min-replicas-to-write");
    assert_eq!(replay(&store, &id("done")).await, "result");
    assert_eq!(replay(&fresh, &id("done")).await, "result");
    server.tell("CONFIG SET min-replicas-to-write 0").await;
    assert_eq!(
        store.complete(&id("held"), owner, &completion("x")).await.expect("completed"),
        FencedWrite::Applied
    );
}

#[tokio::test]
async fn sto_5_a_server_that_cannot_save_refuses_new_keys_alone() {
    let server = Server::start("save 3600 1000000").await;
    let store = connected(&server).await;
    execute(&store, &id("done"), "result").await;
    let owner = OwnerId::new();
    grant(&store, &id("held"), owner).await;
    server.lose_disk();
    server.tell("BGSAVE").await;
    let mut conn = server.stranger().await;
    while !ask::<String>(&mut conn, "INFO persistence").await.contains("rdb_last_bgsave_status:err")
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error = store.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("no disk");
    is(&error, ErrorKind::Unavailable, "disk");
    let error = store.complete(&id("held"), owner, &completion(CANARY)).await.expect_err("no disk");
    is(&error, ErrorKind::Unavailable, "disk");
    assert_eq!(replay(&store, &id("done")).await, "result");
    server.tell("CONFIG SET stop-writes-on-bgsave-error no").await;
    assert_eq!(
        store.complete(&id("held"), owner, &completion("x")).await.expect("completed"),
        FencedWrite::Applied
    );
}

#[tokio::test]
async fn sto_5_a_loading_server_is_unavailable_until_it_is_done() {
    let mut server = Server::start(
        "appendonly yes\nloading-process-events-interval-bytes 1024\nkey-load-delay 0",
    )
    .await;
    let store = connected(&server).await;
    let owner = OwnerId::new();
    grant(&store, &id("held"), owner).await;
    let filler = "x".repeat(2_000);
    let mut conn = server.stranger().await;
    for at in 0..40 {
        let () = ask(&mut conn, &format!("SET filler{at} {filler}")).await;
    }
    let () = ask(&mut conn, "CONFIG SET key-load-delay 20000").await;
    let () = ask(&mut conn, "CONFIG REWRITE").await;
    let () = ask(&mut conn, "BGREWRITEAOF").await;
    while server.info("aof_rewrite_in_progress").await + server.info("aof_rewrite_scheduled").await
        > 0
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.kill();
    let error = store.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("it is down");
    is(&error, ErrorKind::Unavailable, "");
    server.spawn();
    let mut loading = 0;
    let fenced = loop {
        match store.complete(&id("held"), owner, &completion("late")).await {
            Ok(fenced) => break fenced,
            Err(error) => {
                is(&error, ErrorKind::Unavailable, "");
                loading += u32::from(error.to_string().contains("loading"));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    assert_eq!(fenced, FencedWrite::Applied, "the lease has survived the crash");
    assert!(loading > 0, "no call came while it was loading");
}

/// Checks that every call on this identity fails because its record is corrupt, and shows no key.
async fn all_corrupt(store: &RedisStore, id: &Identity, what: &str) {
    let owner = OwnerId::new();
    for fenced in [
        store.extend(id, owner, LONG).await,
        store.complete(id, owner, &completion(CANARY)).await,
        store.release(id, owner).await,
    ] {
        is(&fenced.map(drop).expect_err(what), ErrorKind::Corrupt, "by hand");
    }
    for error in [
        store.acquire(id, &request(owner)).await.map(drop).expect_err(what),
        store.peek(id).await.map(drop).expect_err(what),
        store
            .wait_for_change(id, retryproof_core::FencingToken::new(1), LONG)
            .await
            .expect_err(what),
        store.get(id).await.map(drop).expect_err(what),
    ] {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(!error.is_retryable());
        assert_masked(&error);
    }
}

#[tokio::test]
async fn cmp_8_what_we_did_not_write_fails_closed_and_stays() {
    let url = service("RETRYPROOF_TEST_REDIS", "redis");
    let prefix = own_prefix();
    let store =
        RedisStore::connect(RedisConfig::from_url(&url).expect("a URL").with_prefix(&prefix))
            .await
            .expect("it connects");
    let mut conn = stranger(&url).await;
    let id = id(CANARY);
    let key = key_of(&prefix, &id);
    let foreign: [(&str, &[&[u8]]); 5] = [
        ("a list", &[b"RPUSH", b"x"]),
        ("a hash", &[b"HSET", b"field", b"value"]),
        ("a set", &[b"SADD", b"x"]),
        ("a sorted set", &[b"ZADD", b"1", b"x"]),
        ("a stream", &[b"XADD", b"*", b"field", b"value"]),
    ];
    for (what, words) in foreign {
        let mut make = redis::cmd(std::str::from_utf8(words[0]).expect("a command"));
        make.arg(&key);
        words[1..].iter().for_each(|word| {
            make.arg(*word);
        });
        let _: redis::Value = make.query_async(&mut conn).await.expect("made");
        let before: Vec<u8> =
            redis::cmd("DUMP").arg(&key).query_async(&mut conn).await.expect("dumped");
        all_corrupt(&store, &id, what).await;
        let after: Vec<u8> =
            redis::cmd("DUMP").arg(&key).query_async(&mut conn).await.expect("dumped");
        assert_eq!(before, after, "{what} was touched");
        let () = redis::cmd("DEL").arg(&key).query_async(&mut conn).await.expect("deleted");
    }
    let former = format!("rp1P{}{:016}{:013}00", "o".repeat(16), 42, 0).into_bytes();
    let header =
        |head: &str| format!("{head}{}{:016}\0\0\0\0{:013}00", "o".repeat(16), 42, 0).into_bytes();
    for (what, value) in [
        ("a counter", b"42".to_vec()),
        ("a text", CANARY.repeat(20).into_bytes()),
        ("a former version", former),
        ("the version to come", header("rp3P")),
        ("an unknown state", header("rp2X")),
        ("a header cut short", header("rp2P")[..40].to_vec()),
    ] {
        let () = redis::cmd("SET").arg(&key).arg(&value).query_async(&mut conn).await.expect("set");
        all_corrupt(&store, &id, what).await;
        let after: Vec<u8> =
            redis::cmd("GET").arg(&key).query_async(&mut conn).await.expect("read");
        assert_eq!(after, value, "{what} was touched");
    }
    let () = redis::cmd("DEL").arg(&key).query_async(&mut conn).await.expect("deleted");
    execute(&store, &id, "free again").await;
}

#[tokio::test]
async fn id_2_nothing_in_scope_or_key_is_taken_for_syntax() {
    let server = Server::start("").await;
    let store = connected(&server).await;
    let hostile = [
        "*",
        "?",
        "[a-z]",
        "{",
        "}",
        "}{",
        "{}",
        "a}b{c",
        ":",
        "::",
        "1:a",
        "' .. redis.call('FLUSHALL') .. '",
        "]] redis.call('FLUSHALL') --[[",
        "\"; return 1 --",
        "KEYS[1]",
        "ARGV[1]",
        "%s%d%n",
        "\\r\\n$3\\r\\nDEL",
        "$5 *3",
        "+OK",
        "-ERR",
        "../../etc",
        "é",
        "e\u{301}",
        "SELECT 1; DROP",
        "${jndi:ldap}",
        " a",
        "a ",
    ];
    for (at, text) in hostile.iter().enumerate() {
        let scope = retryproof_core::Scope::new(*text).expect("a valid scope");
        let id = Identity::of(&scope, text).expect("a valid identity");
        execute(&store, &id, &format!("result {at}")).await;
    }
    for (at, text) in hostile.iter().enumerate() {
        let scope = retryproof_core::Scope::new(*text).expect("a valid scope");
        let id = Identity::of(&scope, text).expect("a valid identity");
        assert_eq!(replay(&store, &id).await, format!("result {at}"), "{text}");
        assert!(store.get(&id).await.expect("inspected").is_some());
    }
    let left: usize = ask(&mut server.stranger().await, "DBSIZE").await;
    assert_eq!(left, hostile.len(), "one key for each, and no other");
    assert_eq!(store.stats().await.expect("counted").records, hostile.len() as u64);
}

#[tokio::test]
async fn cmp_9_a_value_over_the_limit_is_too_large() {
    let server = Server::start("proto-max-bulk-len 2mb").await;
    let store = connected(&server).await;
    assert_eq!(store.profile().max_value, (2 << 20) - 4_096, "the limit of the server");
    let (id, owner) = (id(CANARY), OwnerId::new());
    grant(&store, &id, owner).await;
    let error = store
        .complete(&id, owner, &completion(&CANARY.repeat(200_000)))
        .await
        .expect_err("too large");
    is(&error, ErrorKind::TooLarge, "limit");
    let whole = "x".repeat(store.profile().max_value - 8);
    assert_eq!(
        store.complete(&id, owner, &completion(&whole)).await.expect("it fits"),
        FencedWrite::Applied
    );
    assert_eq!(replay(&store, &id).await.len(), whole.len());
}
