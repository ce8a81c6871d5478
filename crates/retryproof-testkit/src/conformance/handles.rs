// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several handles on the same data, such as those of several processes, behave like one store.

use retryproof_core::store::{Acquired, FencedWrite};

use super::caller::{LONG, body, busy, completed, granted, is_absent, is_busy};
use crate::subject::Subject;

/// A holder is visible through every handle, including one that is opened later.
pub async fn acq_1_a_holder_is_seen_through_every_handle(s: &Subject) {
    let other =
        s.another().await.expect("the store under test should offer a second handle on its data");
    let id = s.id("k");
    let token = granted(s.caller(&id).acquire(LONG).await).token;
    assert_eq!(busy(s.caller(&id).on(&other).acquire(LONG).await).1, token);
    let later =
        s.another().await.expect("the store under test should offer a second handle on its data");
    assert_eq!(is_busy(s.caller(&id).on(&later).peek().await).1, token);
    assert_eq!(busy(s.caller(&id).on(&later).acquire(LONG).await).1, token);
}

/// A result is replayed through every handle, including one that is opened later.
pub async fn cmp_1_a_result_is_replayed_through_every_handle(s: &Subject) {
    let other =
        s.another().await.expect("the store under test should offer a second handle on its data");
    let id = s.id("k");
    let holder = s.caller(&id);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"shared").await, FencedWrite::Applied);
    assert_eq!(body(&completed(s.caller(&id).on(&other).acquire(LONG).await)), b"shared");
    let later =
        s.another().await.expect("the store under test should offer a second handle on its data");
    assert_eq!(body(&completed(s.caller(&id).on(&later).acquire(LONG).await)), b"shared");
}

/// An owner is an ID and not a connection, so its calls can come through any handle.
pub async fn cmp_3_an_owner_may_come_through_any_handle(s: &Subject) {
    let other =
        s.another().await.expect("the store under test should offer a second handle on its data");
    let id = s.id("k");
    let holder = s.caller(&id);
    let elsewhere = holder.on(&other);
    let token = granted(holder.acquire(LONG).await).token;
    assert_eq!(granted(elsewhere.acquire(LONG).await).token, token);
    assert_eq!(elsewhere.extend(LONG).await, FencedWrite::Applied);
    assert_eq!(elsewhere.complete(b"done").await, FencedWrite::Applied);
    assert_eq!(holder.complete(b"done").await, FencedWrite::AlreadyApplied);

    let holder = s.caller(&s.id("released"));
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.on(&other).release().await, FencedWrite::Applied);
    is_absent(holder.peek().await);
    assert_eq!(holder.release().await, FencedWrite::AlreadyApplied);
}

/// A takeover through one handle fences the old owner on the other handle.
pub async fn cmp_2_a_takeover_through_another_handle_fences(s: &Subject) {
    let other =
        s.another().await.expect("the store under test should offer a second handle on its data");
    let id = s.id("k");
    let zombie = s.caller(&id);
    let dead = granted(zombie.acquire(s.short()).await).token;
    s.expire(&id, s.short()).await;
    let taker = s.caller(&id).on(&other);
    let grant = granted(taker.acquire(LONG).await);
    assert!(
        grant.took_over && grant.token > dead,
        "the grant after a dead lease with the token {dead} should be a takeover with a larger \
         token, got {grant:?}"
    );
    assert_eq!(zombie.extend(LONG).await, FencedWrite::NotOwner);
    assert_eq!(zombie.complete(b"zombie").await, FencedWrite::NotOwner);
    assert_eq!(zombie.release().await, FencedWrite::NotOwner);
    assert_eq!(taker.complete(b"taker").await, FencedWrite::Applied);
    assert_eq!(body(&completed(zombie.acquire(LONG).await)), b"taker");
}

/// If many callers on two handles compete for a fresh key or an expired lease, exactly one wins.
pub async fn acq_2_one_winner_over_all_handles(s: &Subject) {
    let other =
        s.another().await.expect("the store under test should offer a second handle on its data");
    for round in 0..8 {
        let id = s.id(&format!("k{round}"));
        if round % 2 == 1 {
            granted(s.caller(&id).acquire(s.short()).await);
            s.expire(&id, s.short()).await;
        }
        let callers: Vec<_> = (0..16)
            .map(|at| {
                let here = s.caller(&id);
                let caller = if at % 2 == 0 { here } else { here.on(&other) };
                tokio::spawn(
                    async move { matches!(caller.acquire(LONG).await, Acquired::Granted(_)) },
                )
            })
            .collect();
        let mut winners = 0;
        for caller in callers {
            winners += usize::from(caller.await.expect("the caller should not panic"));
        }
        assert_eq!(winners, 1, "round {round} should have one winner");
    }
}
