// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fencing tokens after a release and when the clock steps back (ACQ-10), and a completion after
//! the lease has ended.

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, FencedWrite, Inspect, Peeked};
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_redis::RedisStore;

use crate::support::server::Server;
use crate::support::{DAY, body, completion, config, grant, id, key_of, own_prefix, service};

#[tokio::test]
async fn acq_10_tokens_grow_over_a_release_although_the_clock_steps_back() {
    let server = Server::start("").await;
    let prefix = own_prefix();
    let store =
        RedisStore::connect(config(&server.url()).with_prefix(&prefix)).await.expect("it connects");
    let (id, owner) = (id("k"), OwnerId::new());
    grant(&store, &id, owner).await;
    // Set a token as if it had been granted when the clock was far ahead.
    let ahead = 9_000_000_000_000_000_u64;
    let mut conn = server.stranger().await;
    let key = key_of(&prefix, &id);
    let _: i64 = redis::cmd("SETRANGE")
        .arg(&key)
        .arg(20)
        .arg(ahead.to_string())
        .query_async(&mut conn)
        .await
        .expect("written");
    assert_eq!(store.release(&id, owner).await.expect("released"), FencedWrite::Applied);
    assert!(matches!(store.peek(&id).await, Ok(Peeked::Absent)), "a released record looks absent");
    assert!(store.get(&id).await.expect("inspected").is_none());
    assert_eq!(store.stats().await.expect("counted").records, 0);
    assert_eq!(
        store.complete(&id, owner, &completion("x")).await.expect("answered"),
        FencedWrite::NotOwner
    );
    assert_eq!(store.release(&id, owner).await.expect("answered"), FencedWrite::AlreadyApplied);
    let next = grant(&store, &id, OwnerId::new()).await;
    assert!(next.token.get() == ahead + 1 && !next.took_over, "{next:?}");
}

#[tokio::test]
async fn cmp_2_a_late_completion_by_the_recorded_owner_counts() {
    let store = RedisStore::connect(config(&service("RETRYPROOF_TEST_REDIS", "redis")))
        .await
        .expect("it connects");
    let (id, owner) = (id("k"), OwnerId::new());
    let brief = AcquireRequest::new(owner, Duration::from_millis(10), DAY);
    assert!(matches!(store.acquire(&id, &brief).await, Ok(Acquired::Granted(_))));
    while !matches!(store.peek(&id).await, Ok(Peeked::Absent)) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(
        store.complete(&id, owner, &completion("late")).await.expect("completed"),
        FencedWrite::Applied
    );
    match store.peek(&id).await {
        Ok(Peeked::Complete(stored)) => assert_eq!(body(&stored), "late"),
        other => panic!("{other:?}"),
    }
}
