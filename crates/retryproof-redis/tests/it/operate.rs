// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operators see and change on a server, beyond the conformance kit.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use retryproof_core::store::{Force, ForceRequest, Forced, Inspect, ScanCursor};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_redis::{RedisConfig, RedisStore};

use crate::support::{ask, completion, execute, grant, id, key_of, own_prefix, service, stranger};

async fn place() -> (RedisStore, MultiplexedConnection, String) {
    let url = service("RETRYPROOF_TEST_REDIS", "redis");
    let prefix = own_prefix();
    let config = RedisConfig::from_url(&url).expect("a URL").with_prefix(&prefix);
    (RedisStore::connect(config).await.expect("it connects"), stranger(&url).await, prefix)
}

#[tokio::test]
async fn ops_1_released_records_are_not_scanned_and_foreign_keys_are_counted() {
    let (store, mut conn, prefix) = place().await;
    let owner = OwnerId::new();
    grant(&store, &id("released"), owner).await;
    let _ = store.release(&id("released"), owner).await.expect("released");
    for at in 0..50 {
        execute(&store, &id(&format!("k{at}")), "result").await;
    }
    let key = key_of(&prefix, &id("k0"));
    let foreign = format!("{prefix}:{{foreign}}");
    let _: i64 = ask(&mut conn, &format!("COPY {key} {foreign}")).await;
    // A key of another type is not a record, and does not stop the scan.
    let list = format!("{prefix}:{{list}}");
    let _: i64 = ask(&mut conn, &format!("RPUSH {list} x")).await;
    let (mut after, mut found, mut unreadable) = (None, BTreeSet::new(), 0);
    loop {
        let page = store.scan(after.as_ref(), 10).await.expect("scanned");
        let keys = page.records.iter().map(|record| record.id.key().expose().to_owned());
        found.extend(keys);
        unreadable += page.unreadable;
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    // SCAN may return a key twice, so an unreadable key can be counted twice.
    assert!(found.len() == 50 && unreadable >= 1, "{} found, {unreadable} unreadable", found.len());
    let _: i64 = ask(&mut conn, &format!("DEL {foreign} {list}")).await;
}

#[tokio::test]
async fn ops_1_a_cursor_of_another_store_is_invalid() {
    let (store, ..) = place().await;
    for bytes in [&b""[..], b"x", b"-1", b"0 MATCH *", b"123456789012345678901"] {
        let error = store.scan(Some(&ScanCursor::new(bytes)), 10).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

#[tokio::test]
async fn ops_4_an_erased_answer_is_not_in_the_record() {
    let (store, mut conn, prefix) = place().await;
    let owner = OwnerId::new();
    let token = grant(&store, &id("k"), owner).await.token;
    let done = completion("canary");
    let _ = store.complete(&id("k"), owner, &done).await.expect("completed");
    let key = key_of(&prefix, &id("k"));
    let kept: Vec<u8> = ask(&mut conn, &format!("GET {key}")).await;
    assert!(kept.ends_with(b"canary"), "the test finds what it looks for");
    let forced = store.force(&id("k"), &ForceRequest::erase(token)).await.expect("answered");
    assert!(matches!(forced, Forced::Applied), "{forced:?}");
    let kept: Vec<u8> = ask(&mut conn, &format!("GET {key}")).await;
    assert!(!kept.windows(6).any(|part| part == b"canary"));
    let lives: i64 = ask(&mut conn, &format!("PTTL {key}")).await;
    assert!(lives > 3_600_000, "the record keeps its ttl, and has {lives} ms left");
}

/// The operator's process ends right after the answer, so waiters must be notified before the
/// answer is sent.
#[tokio::test]
async fn ops_4_acq_4_a_change_by_an_operator_is_told_before_its_answer() {
    let (holder, _, prefix) = place().await;
    let url = service("RETRYPROOF_TEST_REDIS", "redis");
    for resolves in [false, true] {
        let id = id(&resolves.to_string());
        let token = grant(&holder, &id, OwnerId::new()).await.token;
        let client = redis::Client::open(&*url).expect("a URL");
        let mut listener = client.get_connection().expect("a connection");
        let subscribe = redis::cmd("SSUBSCRIBE").arg(key_of(&prefix, &id)).get_packed_command();
        listener.send_packed_command(&subscribe).expect("sent");
        listener.recv_response().expect("subscribed");
        let config = RedisConfig::from_url(&url).expect("a URL").with_prefix(&prefix);
        let operator = RedisStore::connect(config).await.expect("it connects");
        let req = match resolves {
            true => ForceRequest::resolve(&id, token, completion("forced")),
            false => ForceRequest::release(token),
        };
        let forced = operator.force(&id, &req.even_if_live()).await.expect("answered");
        drop(operator);
        assert!(matches!(forced, Forced::Applied), "{forced:?}");
        listener.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        let heard = listener.recv_response().expect("the change should be announced");
        let redis::Value::Array(heard) = heard else { panic!("{heard:?}") };
        let letter = if resolves { "C" } else { "R" };
        assert_eq!(heard[2], redis::Value::BulkString(letter.into()));
    }
}
