// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lease passes to another caller only after it has expired, and in one atomic step.

use retryproof_core::store::{Acquired, FencedWrite, LiveLease};

use super::caller::{LONG, MS, busy, completed, granted, is_absent};
use crate::subject::Subject;

/// While a lease runs, no other owner is granted the key, up to the lease's last millisecond.
pub async fn acq_2_a_live_lease_is_not_taken_over(s: &Subject) {
    let id = s.id("k");
    granted(s.caller(&id).acquire(LONG).await);
    if s.is_exact() {
        s.pass(LONG - MS).await;
        assert_eq!(busy(s.caller(&id).acquire(LONG).await).0, MS);
    } else {
        s.pass(50 * MS).await;
        busy(s.caller(&id).acquire(LONG).await);
    }
}

/// The next caller after the end of a lease is granted a takeover with a larger token.
pub async fn acq_2_an_expired_lease_is_taken_over(s: &Subject) {
    let id = s.id("k");
    let dead = granted(s.caller(&id).acquire(s.short()).await);
    s.expire(&id, s.short()).await;
    is_absent(s.caller(&id).peek().await);
    let taker = granted(s.caller(&id).acquire(LONG).await);
    assert!(taker.took_over);
    assert!(
        taker.token > dead.token,
        "the token of the takeover ({}) should be larger than the token before it ({})",
        taker.token,
        dead.token
    );
    assert!(
        taker.remaining > LONG / 2,
        "the takeover should get the lease that it requested, but has {:?} left",
        taker.remaining
    );
    assert_eq!(busy(s.caller(&id).acquire(LONG).await).1, taker.token);
}

/// Other owners get no grant before the lease ends, however often they acquire.
pub async fn acq_2_no_takeover_before_expiry(s: &Subject) {
    let id = s.id("k");
    // A call that a busy machine delays must not make up for a lease that ended early.
    let lease = s.kept(if s.is_exact() { s.short() } else { 800 * MS });
    let before = tokio::time::Instant::now();
    granted(s.caller(&id).acquire(lease).await);
    let mut passed = std::time::Duration::ZERO;
    loop {
        match s.caller(&id).acquire(LONG).await {
            Acquired::Granted(grant) => {
                assert!(grant.took_over);
                break;
            }
            Acquired::Busy(LiveLease { remaining, .. }) => {
                assert!(
                    remaining <= lease,
                    "a lease of {lease:?} should not have {remaining:?} left"
                )
            }
            Acquired::Complete(_) => panic!("no caller completed"),
        }
        let step = match passed.is_zero() {
            true if s.is_exact() => lease - 10 * MS,
            _ if s.is_exact() => MS,
            _ => 20 * MS,
        };
        s.pass(step).await;
        passed += step;
        assert!(
            passed < 100 * lease,
            "the lease of {lease:?} should end, but no takeover was granted within {passed:?}"
        );
    }
    if s.is_exact() {
        assert_eq!(passed, lease);
    } else {
        // `before` is a time before the grant, so by now at least the duration of the lease should
        // have passed. The tolerance allows for a store with a coarse clock.
        assert!(
            before.elapsed() + 5 * MS >= lease,
            "a lease of {lease:?} was taken over after only {:?}",
            before.elapsed()
        );
    }
}

/// If many callers acquire at the instant of expiry, one caller wins, and the others see the
/// winner.
pub async fn acq_2_one_winner_at_expiry(s: &Subject) {
    for round in 0..8 {
        let id = s.id(&format!("k{round}"));
        granted(s.caller(&id).acquire(s.short()).await);
        s.expire(&id, s.short()).await;
        let callers: Vec<_> = (0..32)
            .map(|_| {
                let caller = s.caller(&id);
                tokio::spawn(async move { caller.acquire(LONG).await })
            })
            .collect();
        let (mut winners, mut seen) = (Vec::new(), Vec::new());
        for caller in callers {
            match caller.await.expect("the caller should not panic") {
                Acquired::Granted(grant) => {
                    assert!(grant.took_over);
                    winners.push(grant.token);
                }
                Acquired::Busy(LiveLease { token, .. }) => seen.push(token),
                Acquired::Complete(_) => panic!("no caller completed"),
            }
        }
        assert_eq!(
            (winners.len(), seen.len()),
            (1, 31),
            "round {round} should have one winner and 31 losers"
        );
        assert!(
            seen.iter().all(|token| *token == winners[0]),
            "the losers should see the winner's token"
        );
    }
}

/// A holder that took over and then died can be taken over like any other holder.
pub async fn acq_2_a_takeover_can_be_taken_over(s: &Subject) {
    let id = s.id("k");
    let mut last = granted(s.caller(&id).acquire(s.short()).await).token;
    for _ in 0..4 {
        s.expire(&id, s.short()).await;
        let grant = granted(s.caller(&id).acquire(s.short()).await);
        assert!(
            grant.took_over && grant.token > last,
            "the grant after a dead lease with the token {last} should be a takeover with a larger \
             token, got {grant:?}"
        );
        last = grant.token;
    }
    s.expire(&id, s.short()).await;
    let last = s.caller(&id);
    granted(last.acquire(LONG).await);
    assert_eq!(last.complete(b"at last").await, FencedWrite::Applied);
    completed(s.caller(&id).acquire(LONG).await);
}

/// A grant after a release, or after a result's ttl, is not a takeover.
pub async fn acq_12_only_a_takeover_says_so(s: &Subject) {
    let released = s.id("released");
    let holder = s.caller(&released);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.release().await, FencedWrite::Applied);
    assert!(!granted(s.caller(&released).acquire(LONG).await).took_over);

    let late = s.id("released after its end");
    let holder = s.caller(&late);
    granted(holder.acquire(s.short()).await);
    s.expire(&late, s.short()).await;
    assert_eq!(holder.release().await, FencedWrite::Applied);
    assert!(!granted(s.caller(&late).acquire(LONG).await).took_over);

    let forgotten = s.id("past its ttl");
    let holder = s.caller(&forgotten).with_ttl(s.short());
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"old").await, FencedWrite::Applied);
    s.expire(&forgotten, s.short()).await;
    assert!(!granted(s.caller(&forgotten).acquire(LONG).await).took_over);
}

/// If the answer to a takeover was lost, the repeated acquire must report a takeover again.
/// Otherwise, the action would not know that an earlier holder died in the middle of the work.
pub async fn acq_12_a_takeover_asked_for_again_says_so_again(s: &Subject) {
    let id = s.id("k");
    granted(s.caller(&id).acquire(s.short()).await);
    s.expire(&id, s.short()).await;
    let taker = s.caller(&id);
    let first = granted(taker.acquire(LONG).await);
    for lease in [LONG, s.short()] {
        let again = granted(taker.acquire(lease).await);
        assert!(
            again.took_over && again.token == first.token,
            "the repeated acquire should get the same token and count as a takeover again; first \
             {first:?}, then {again:?}"
        );
    }
    // A repeated acquire reports the takeover even if the lease ran out between the two acquires.
    s.expire(&id, s.short()).await;
    assert!(granted(taker.acquire(LONG).await).took_over);
    assert_eq!(taker.release().await, FencedWrite::Applied);

    // The next grant is not a takeover.
    let next = s.caller(&id);
    assert!(!granted(next.acquire(LONG).await).took_over);
    assert!(!granted(next.acquire(LONG).await).took_over);
}
