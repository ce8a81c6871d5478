// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failovers: the primary is killed or frozen, and a standby is promoted.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_testkit::standby::Replication;
use retryproof_testkit::wire::WireProxy;
use tokio::time::{Instant, timeout};

use super::{PATIENCE, caught_up, config, group, has, store, until_it_works};
use crate::support::{Stranger, assert_masked, completion, execute, grant, id, replay, request};

/// How many keys have a holder and a waiter when the primary is killed.
const WAITED: usize = 40;
/// How many more calls show that no call reaches the old primary.
const CALLS: usize = 40;

/// An old primary that comes back accepts writes, like the new one. Only its timeline shows that it
/// is old.
#[tokio::test(flavor = "multi_thread")]
async fn sto_7_acq_4_calls_and_waiters_leave_a_killed_primary_for_good() {
    let mut group = group(Replication::Asynchronous).await;
    let url = group.url();
    let (holder, waiter) = (store(&url).await, Arc::new(store(&url).await));
    execute(&holder, &id("done"), "before").await;
    let mut waits = Vec::new();
    for at in 0..WAITED {
        let (key, owner) = (id(&format!("waited {at}")), OwnerId::new());
        let token = grant(&holder, &key, owner).await.token;
        let (waiter, waited) = (Arc::clone(&waiter), key.clone());
        let wait = async move {
            // The engine repeats a wait that failed.
            loop {
                if waiter.wait_for_change(&waited, token, PATIENCE).await.is_ok() {
                    return Instant::now();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        waits.push((key, owner, tokio::spawn(wait)));
    }
    caught_up(&group, 1, 0).await;

    group.kill(0).expect("killed");
    // While there is no primary, the error names each host.
    let error = loop {
        let error = holder.acquire(&id("k"), &request(OwnerId::new())).await.map(drop);
        match error.expect_err("there is no primary") {
            error if error.to_string().contains("is a standby") => break error,
            error => assert!(error.is_retryable(), "{error}"),
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_masked(&error);
    group.promote(1).expect("promoted");
    let (key, _) = until_it_works(&holder, "after").await;
    assert!(has(&group, 1, &key));
    assert_eq!(replay(&holder, &id("done")).await, "before");

    // The old primary starts again beside the new one, as the first host in the URL.
    group.start_again(0).expect("started");
    assert_eq!(group.sql(0, "SELECT pg_is_in_recovery()").expect("an answer"), "f");
    for (key, owner, wait) in waits {
        let done = holder.complete(&key, owner, &completion("v")).await.expect("completed");
        assert_eq!(done, FencedWrite::Applied);
        let finished = Instant::now();
        let woken = timeout(PATIENCE, wait).await.expect("the waiter ends").expect("no panic");
        // Without a notification, a waiter reads its record at least every 1.2 s.
        let late = woken.saturating_duration_since(finished);
        assert!(late < Duration::from_secs(10), "a waiter ended {late:?} after its holder");
    }
    for at in 0..CALLS {
        let key = format!("with the old primary {at}");
        // Every fourth call comes from a program that has just started.
        match at % 4 {
            0 => execute(&store(&url).await, &id(&key), "v").await,
            1 => execute(&waiter, &id(&key), "v").await,
            _ => execute(&holder, &id(&key), "v").await,
        }
        assert!(has(&group, 1, &key) && !has(&group, 0, &key), "{key}");
    }
    // The listening connections have moved too. After 10 s without a message, the last statement on
    // such a connection is its own check.
    let listening =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query='SELECT 1'";
    let until = Instant::now() + PATIENCE;
    while group.sql(1, listening).expect("an answer").parse::<u32>().expect("a number") < 2 {
        assert!(Instant::now() < until, "the stores do not listen on the new primary");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // The new primary goes away. A program that has seen it does not use the old one.
    group.kill(1).expect("killed");
    let error = loop {
        let error = holder.acquire(&id("k"), &request(OwnerId::new())).await.map(drop);
        match error.expect_err("there is no primary") {
            error if error.to_string().contains("is an old primary") => break error,
            error => assert!(error.is_retryable(), "{error}"),
        }
    };
    let said = error.to_string();
    let old = format!("127.0.0.1:{} is an old primary: it is on timeline 1", group.port(0));
    assert!(said.contains(&old) && said.contains("timeline 2 was seen"), "{said}");
    assert!(!has(&group, 0, "k"));
    // A program that has just started has not seen the new primary. This is documented: only a
    // fence outside of the program prevents it.
    store(&url).await;
    group.start_again(1).expect("started");
    until_it_works(&holder, "resumed").await;
}

/// The connections to a frozen primary stay open and give no answer.
#[tokio::test(flavor = "multi_thread")]
async fn sto_7_a_frozen_primary_is_left_within_one_call_and_not_used_when_it_wakes_up() {
    let mut group = group(Replication::Asynchronous).await;
    let limit = Duration::from_secs(2);
    let config = config(&group.url()).with_call_timeout(limit);
    let store = retryproof_postgres::PostgresStore::connect(config).await.expect("connected");
    let store = Arc::new(store);
    execute(&store, &id("before"), "v").await;
    caught_up(&group, 1, 0).await;

    group.freeze(0).expect("frozen");
    // These calls are sent to the frozen primary, and their answers come when it wakes up.
    let calls: Vec<_> = (0..6)
        .map(|at| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let (key, owner) = (id(&format!("frozen {at}")), OwnerId::new());
                let began = Instant::now();
                (store.acquire(&key, &request(owner)).await.is_ok(), began.elapsed())
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    group.promote(1).expect("promoted");
    let mut granted = Vec::new();
    for (at, call) in calls.into_iter().enumerate() {
        let (ok, took) = call.await.expect("no panic");
        assert!(took < limit + Duration::from_secs(8), "a call took {took:?}");
        if ok {
            granted.push(format!("frozen {at}"));
        }
    }
    let (key, _) = until_it_works(&store, "after").await;
    group.thaw(0).expect("thawed");
    for at in 0..CALLS {
        let key = format!("awake {at}");
        execute(&store, &id(&key), "v").await;
        assert!(has(&group, 1, &key) && !has(&group, 0, &key), "{key}");
    }
    assert!(has(&group, 1, &key));
    for key in granted {
        assert!(has(&group, 1, &key), "`{key}` was granted by the old primary only");
    }
}

/// A store whose connections to the old primary work all the time looks at the other hosts, too. A
/// call that waits for the old primary is then sent to the new one.
#[tokio::test(flavor = "multi_thread")]
async fn sto_7_an_idle_store_finds_a_new_primary_beside_its_old_one() {
    let mut group = group(Replication::Asynchronous).await;
    let config = config(&group.url()).with_call_timeout(PATIENCE);
    let store = retryproof_postgres::PostgresStore::connect(config).await.expect("connected");
    let store = Arc::new(store);
    let (locked, owner) = (id("locked"), OwnerId::new());
    grant(&store, &locked, owner).await;
    caught_up(&group, 1, 0).await;
    let mut stranger = Stranger::to(&group.url_of(&[0])).await;
    stranger.run("BEGIN; SELECT 1 FROM retryproof_records FOR UPDATE").await;
    let completing = Arc::clone(&store);
    let blocked =
        tokio::spawn(async move { completing.complete(&locked, owner, &completion("v")).await });
    group.promote(1).expect("promoted");
    let until = Instant::now() + PATIENCE;
    for at in 0.. {
        // If the store moves between an acquire and its completion, the new primary refuses the
        // completion, because it has no such record.
        let (key, _) = until_it_works(&store, &format!("k{at}")).await;
        if has(&group, 1, &key) {
            break;
        }
        assert!(Instant::now() < until, "the store still uses the old primary");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let completed = timeout(PATIENCE, blocked).await.expect("an answer").expect("no panic");
    assert_eq!(completed.expect("completed"), FencedWrite::Applied);
    assert_eq!(replay(&store, &id("locked")).await, "v");
    execute(&store, &id("moved"), "v").await;
    assert!(has(&group, 1, "moved") && !has(&group, 0, "moved"));
}

/// The old primary answers faster than the primary, but the store does not stop waiting for the
/// primary because of that.
#[tokio::test(flavor = "multi_thread")]
async fn sto_7_a_slow_primary_is_found_beside_an_old_one_that_came_back() {
    let mut group = group(Replication::Asynchronous).await;
    let proxy = WireProxy::to(([127, 0, 0, 1], group.port(1)).into()).await.expect("a proxy");
    let url = format!("postgres://postgres@127.0.0.1:{},{}/postgres", group.port(0), proxy.addr());
    // A host gets 2 s if another one is the primary, and 5 s otherwise.
    let config = config(&url).with_connect_timeout(Duration::from_secs(8));
    let config = config.with_call_timeout(PATIENCE);
    let store = retryproof_postgres::PostgresStore::connect(config).await.expect("connected");
    execute(&store, &id("before"), "v").await;
    caught_up(&group, 1, 0).await;
    group.kill(0).expect("killed");
    group.promote(1).expect("promoted");
    until_it_works(&store, "after").await;
    group.start_again(0).expect("started");

    // A login takes 2.4 s, or 3.2 s if it tries TLS first.
    proxy.delay(Duration::from_millis(800));
    proxy.cut();
    let acquired = store.acquire(&id("slow"), &request(OwnerId::new())).await;
    assert!(matches!(acquired, Ok(Acquired::Granted(_))), "{acquired:?}");
    assert!(has(&group, 1, "slow"));
}
