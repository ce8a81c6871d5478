// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fencing tokens after restarts, purges and a clock that steps back (ACQ-10), and what a reopened
//! file keeps.

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, FencedWrite, LiveLease, Peeked, Purge};
use retryproof_core::{FencingToken, IdempotencyStore, Identity, OwnerId};
use retryproof_sqlite::SqliteStore;

use crate::support::{DAY, Dir, LONG, Wall, execute, grant, id, replay};

const HOUR: Duration = Duration::from_secs(3_600);

async fn token(store: &SqliteStore, id: &Identity) -> FencingToken {
    let owner = OwnerId::new();
    let grant = grant(store, id, owner).await;
    assert_eq!(store.release(id, owner).await.expect("released"), FencedWrite::Applied);
    grant.token
}

#[tokio::test]
async fn acq_10_tokens_grow_while_the_hosts_clock_steps_back() {
    let dir = Dir::new();
    let wall = Wall::new();
    let store = SqliteStore::open_with(wall.on(dir.config())).expect("opened");
    let mut last = token(&store, &id("k")).await;
    for step in 0..20 {
        if step % 2 == 0 {
            wall.back(HOUR)
        } else {
            wall.forward(HOUR / 4)
        }
        let next = token(&store, &id(if step % 3 == 0 { "k" } else { "other" })).await;
        assert!(next > last, "step {step}: {next} after {last}");
        last = next;
    }
}

#[tokio::test]
async fn acq_10_tokens_grow_over_purge_and_reopening() {
    let dir = Dir::new();
    let wall = Wall::new();
    let open = || SqliteStore::open_with(wall.on(dir.config())).expect("opened");
    let store = open();
    let first = grant(&store, &id("k"), OwnerId::new()).await.token;
    wall.forward(2 * DAY);
    assert_eq!(store.purge(10).await.expect("purged"), 1);
    drop(store);
    wall.back(4 * DAY);
    let second = token(&open(), &id("k")).await;
    assert!(second > first, "{second} after {first}");
}

#[tokio::test]
async fn cmp_1_reopening_keeps_records() {
    let dir = Dir::new();
    let wall = Wall::new();
    let open = || SqliteStore::open_with(wall.on(dir.config())).expect("opened");
    let (done, held, owner) = (id("done"), id("held"), OwnerId::new());
    let store = open();
    execute(&store, &done, "result").await;
    let held_token = grant(&store, &held, owner).await.token;
    drop(store);

    let store = open();
    assert_eq!(replay(&store, &done).await, "result");
    match store.peek(&held).await.expect("looked") {
        Peeked::Busy(LiveLease { remaining, token, .. }) => {
            assert_eq!((remaining, token), (LONG, held_token))
        }
        other => panic!("the lease is lost: {other:?}"),
    }
    wall.forward(LONG);
    match store
        .acquire(&held, &AcquireRequest::new(OwnerId::new(), LONG, DAY))
        .await
        .expect("acquired")
    {
        Acquired::Granted(grant) => assert!(grant.took_over && grant.token > held_token),
        other => panic!("not taken over: {other:?}"),
    }
    assert_eq!(store.extend(&held, owner, LONG).await.expect("asked"), FencedWrite::NotOwner);
}
