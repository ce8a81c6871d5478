// SPDX-License-Identifier: MIT OR Apache-2.0
//! An operator can change a record. The change is fenced by the token that the operator saw, and is
//! refused under a live lease unless the request allows it. The answer says what the store found.
//!
//! This file is over 400 lines long because each action is checked in each state of a record.

use std::time::Duration;

use retryproof_core::store::{
    Acquired, Completion, FencedWrite, ForceAction, ForceRequest, Forced, Grant, Peeked,
};
use retryproof_core::{FencingToken, IdempotencyStore as _, Identity, Opened, StoredResult};

use super::caller::{
    ASLEEP, DAY, LONG, MS, StoreCaller, body, completed, envelope, granted, is_absent, is_complete,
};
use crate::doom::until_pending;
use crate::subject::Subject;

/// The number of polls after which a case gives up. No intervention needs this many polls, so an
/// intervention that is still pending then is stuck.
const MOST_AWAITS: u32 = 1_000;
/// How many rounds a race has.
const ROUNDS: usize = 24;

impl Subject {
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Forced {
        self.store().force(id, req).await.expect("the intervention should succeed")
    }

    /// Returns a caller whose lease is over, and its token.
    async fn dead(&self, id: &Identity) -> (StoreCaller, FencingToken) {
        let holder = self.caller(id).with_fingerprint(1).called("dead");
        let token = granted(holder.acquire(self.short()).await).token;
        self.expire(id, self.short()).await;
        (holder, token)
    }

    /// Returns a caller that has completed, and its token.
    async fn done(&self, id: &Identity) -> (StoreCaller, FencingToken) {
        let holder = self.caller(id).with_fingerprint(1).called("done");
        let token = granted(holder.acquire(LONG).await).token;
        assert_eq!(holder.complete(b"canary").await, FencedWrite::Applied);
        (holder, token)
    }
}

fn resolve(id: &Identity, token: FencingToken, with: &[u8]) -> ForceRequest {
    ForceRequest::resolve(id, token, Completion::new(envelope(with), DAY, None))
}

fn requests(id: &Identity, token: FencingToken) -> [ForceRequest; 4] {
    [
        ForceRequest::release(token),
        resolve(id, token, b"forced"),
        ForceRequest::forget(token),
        ForceRequest::erase(token),
    ]
}

/// Acquires a dead lease. Tries again while a concurrent intervention holds a lock in the database.
async fn taken(taker: &StoreCaller) -> Grant {
    for _ in 0..1_000 {
        match taker.acquire(LONG).await {
            Acquired::Busy(lease) if lease.remaining.is_zero() => tokio::time::sleep(MS).await,
            answer => return granted(answer),
        }
    }
    panic!("the lease should be granted in the end")
}

#[track_caller]
fn applied(forced: &Forced) {
    assert!(matches!(forced, Forced::Applied), "expected `Applied`, got {forced:?}");
}

/// All four actions are refused under a live lease, and the answer shows the lease. A forget and an
/// erase are refused even with `even_if_live`.
pub async fn ops_3_a_live_lease_is_refused(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).called("alive");
    let token = granted(holder.acquire(LONG).await).token;
    let asked = [ForceRequest::forget(token), ForceRequest::erase(token)];
    for req in requests(&id, token).into_iter().chain(asked.map(ForceRequest::even_if_live)) {
        match s.force(&id, &req).await {
            Forced::Live(lease) => {
                assert_eq!(
                    (lease.token, &lease.holder),
                    (token, &holder.note),
                    "{req:?} should show the live lease's token and holder"
                );
                assert!(
                    lease.remaining <= LONG && lease.remaining > LONG / 2,
                    "{req:?} should not change the live lease, which is now {lease:?}"
                );
            }
            other => panic!("{req:?}: expected a live lease, got {other:?}"),
        }
    }
    assert_eq!(holder.extend(LONG).await, FencedWrite::Applied);
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
}

/// A request with another token changes nothing in any state of the record, and the answer shows
/// the current token.
pub async fn ops_3_another_token_is_refused(s: &Subject) {
    let id = s.id("k");
    let (zombie, seen) = s.dead(&id).await;
    let taker = s.caller(&id);
    let token = granted(taker.acquire(LONG).await).token;
    for completes in [true, false] {
        for req in requests(&id, seen).map(ForceRequest::even_if_live) {
            match s.force(&id, &req).await {
                Forced::AnotherToken(current) => {
                    assert_eq!(current, token, "{req:?} should show the current token")
                }
                other => panic!("{req:?}: expected another token, got {other:?}"),
            }
        }
        if completes {
            assert_eq!(taker.complete(b"done").await, FencedWrite::Applied);
        }
    }
    assert_eq!(body(&is_complete(zombie.peek().await)), b"done");
}

/// If there is no record, a request changes nothing.
pub async fn ops_3_an_absent_record_is_said_to_be_absent(s: &Subject) {
    let id = s.id("k");
    for req in requests(&id, FencingToken::new(1)) {
        let forced = s.force(&id, &req).await;
        assert!(
            matches!(forced, Forced::Absent),
            "{req:?} without a record should return `Absent`, got {forced:?}"
        );
    }
    let holder = s.caller(&id);
    let token = granted(holder.acquire(LONG).await).token;
    assert_eq!(holder.release().await, FencedWrite::Applied);
    for req in requests(&id, token) {
        let forced = s.force(&id, &req).await;
        assert!(
            matches!(forced, Forced::Absent),
            "{req:?} without a record should return `Absent`, got {forced:?}"
        );
    }
    is_absent(holder.peek().await);
}

/// A dead lease has no result to forget or to erase, and a result has no lease to release or to
/// resolve.
pub async fn ops_3_each_action_has_its_state(s: &Subject) {
    let id = s.id("dead");
    let (holder, token) = s.dead(&id).await;
    for req in [ForceRequest::forget(token), ForceRequest::erase(token)] {
        let forced = s.force(&id, &req).await;
        assert!(
            matches!(forced, Forced::Unfinished),
            "{req:?} of a record without a result should return `Unfinished`, got {forced:?}"
        );
    }
    assert_eq!(holder.complete(b"late").await, FencedWrite::Applied);

    let id = s.id("done");
    let (holder, token) = s.done(&id).await;
    for req in [ForceRequest::release(token), resolve(&id, token, b"forced").even_if_live()] {
        let forced = s.force(&id, &req).await;
        assert!(
            matches!(forced, Forced::Finished),
            "{req:?} of a complete record should return `Finished`, got {forced:?}"
        );
    }
    assert_eq!(body(&is_complete(holder.peek().await)), b"canary");
}

/// A dropped call took effect either completely or not at all, and the same request can be
/// repeated. The answer to the repeated request shows the state of the record.
pub async fn ops_3_a_dropped_call_may_be_repeated(s: &Subject) {
    for action in 0..4 {
        let mut done = false;
        for times in 0..MOST_AWAITS {
            let id = s.id(&format!("k{action} {times}"));
            let holder = s.caller(&id);
            let token = granted(holder.acquire(LONG).await).token;
            let req = requests(&id, token).into_iter().nth(action).expect("four actions");
            let req = req.even_if_live();
            if !req.ends_a_lease() {
                assert_eq!(holder.complete(b"canary").await, FencedWrite::Applied);
            }
            done = until_pending(s.store().force(&id, &req), times).await;
            stands(&req, holder.peek().await, done);
            let again = s.force(&id, &req).await;
            match (&again, &req.action) {
                (Forced::Applied, _) => {}
                (Forced::Absent, ForceAction::Release | ForceAction::Forget) => {}
                _ => {
                    panic!("{req:?}, dropped after {times} awaits and repeated, returned {again:?}")
                }
            }
            stands(&req, holder.peek().await, true);
            let late = holder.complete(b"late").await;
            let erased = matches!(req.action, ForceAction::Erase);
            let expected = if erased { FencedWrite::AlreadyApplied } else { FencedWrite::NotOwner };
            assert_eq!(
                late, expected,
                "{req:?} was dropped after {times} awaits; the answer to a late completion is wrong"
            );
            if done {
                break;
            }
        }
        assert!(done, "the call is not done after {MOST_AWAITS} await points");
    }
}

/// Checks that the request has taken effect. If `must` is false, the record may also be unchanged.
#[track_caller]
fn stands(req: &ForceRequest, found: Peeked, must: bool) {
    let erased = |value: &StoredResult| matches!(value.open(None), Ok(Opened::Tombstone(_)));
    let (before, after) = match (&req.action, &found) {
        (ForceAction::Release, found) => {
            (matches!(found, Peeked::Busy(_)), matches!(found, Peeked::Absent))
        }
        (ForceAction::Resolve { .. }, Peeked::Complete(value)) => (false, body(value) == b"forced"),
        (ForceAction::Resolve { .. }, found) => (matches!(found, Peeked::Busy(_)), false),
        (ForceAction::Forget, Peeked::Complete(value)) => (body(value) == b"canary", false),
        (ForceAction::Forget, found) => (false, matches!(found, Peeked::Absent)),
        (ForceAction::Erase, Peeked::Complete(value)) => (!erased(value), erased(value)),
        (ForceAction::Erase, _) => (false, false),
    };
    assert!(after || (before && !must), "the record after {req:?} is wrong: {found:?}");
}

/// A released key is free: the next grant is not a takeover, and the old holder has lost its lease.
pub async fn ops_4_a_released_key_is_fresh(s: &Subject) {
    let id = s.id("k");
    let (holder, token) = s.dead(&id).await;
    applied(&s.force(&id, &ForceRequest::release(token)).await);
    is_absent(holder.peek().await);
    assert_eq!(holder.complete(b"late").await, FencedWrite::NotOwner);
    let again = s.force(&id, &ForceRequest::release(token)).await;
    assert!(
        matches!(again, Forced::Absent),
        "a repeated release should return `Absent`, got {again:?}"
    );
    let next = granted(s.caller(&id).acquire(LONG).await);
    assert!(
        next.token > token && !next.took_over,
        "the grant after a release should not be a takeover and should have a larger token than \
         {token}, got {next:?}"
    );
    assert_eq!(holder.extend(LONG).await, FencedWrite::NotOwner);
    assert_eq!(holder.complete(b"late").await, FencedWrite::NotOwner);
}

/// A live lease ends if the operator requests it, and the holder notices the loss.
pub async fn ops_4_a_live_lease_ends_if_asked_for(s: &Subject) {
    let id = s.id("released");
    let holder = s.caller(&id);
    let token = granted(holder.acquire(LONG).await).token;
    applied(&s.force(&id, &ForceRequest::release(token).even_if_live()).await);
    assert_eq!(holder.extend(LONG).await, FencedWrite::NotOwner);
    assert!(granted(s.caller(&id).acquire(LONG).await).token > token);

    let id = s.id("resolved");
    let holder = s.caller(&id);
    let token = granted(holder.acquire(LONG).await).token;
    applied(&s.force(&id, &resolve(&id, token, b"forced").even_if_live()).await);
    assert_eq!(holder.extend(LONG).await, FencedWrite::NotOwner);
    assert_eq!(holder.complete(b"late").await, FencedWrite::NotOwner);
    assert_eq!(body(&is_complete(holder.peek().await)), b"forced");
}

/// A resolved record replays what the operator recorded. The former holder has lost its lease, and
/// a repeated request changes nothing.
pub async fn ops_4_a_resolved_record_is_replayed(s: &Subject) {
    let id = s.id("k");
    let (holder, token) = s.dead(&id).await;
    for _ in 0..2 {
        // An operator can repeat the command in another process, which creates a new request.
        applied(&s.force(&id, &resolve(&id, token, b"forced")).await);
        assert_eq!(holder.complete(b"late").await, FencedWrite::NotOwner);
        assert_eq!(holder.extend(LONG).await, FencedWrite::NotOwner);
        assert_eq!(holder.release().await, FencedWrite::NotOwner);
        let stored = completed(s.caller(&id).acquire(LONG).await);
        assert_eq!((body(&stored), stored.holder()), (b"forced".to_vec(), None));
    }
    let other = s.force(&id, &resolve(&id, token, b"other")).await;
    assert!(
        matches!(other, Forced::Finished),
        "a resolve with another result should return `Finished`, got {other:?}"
    );
    // The record still has the token that the operator saw.
    applied(&s.force(&id, &ForceRequest::erase(token)).await);
}

/// A resolve without a fingerprint keeps the fingerprint of the grant, so that a retry with another
/// request is still refused. Only a store with `StoreProfile::immediate` may lose this fingerprint.
pub async fn ops_4_a_resolve_keeps_the_fingerprint(s: &Subject) {
    let id = s.id("k");
    let (holder, token) = s.dead(&id).await;
    applied(&s.force(&id, &resolve(&id, token, b"forced")).await);
    let stored = is_complete(holder.peek().await);
    if stored.fingerprint().is_some() || !s.store().profile().immediate {
        assert_eq!(stored.fingerprint(), holder.fingerprint.as_ref());
    }
}

/// The work of a forgotten key runs again, with a greater token.
pub async fn ops_4_a_forgotten_key_runs_again(s: &Subject) {
    let id = s.id("k");
    let (holder, token) = s.done(&id).await;
    applied(&s.force(&id, &ForceRequest::forget(token)).await);
    is_absent(holder.peek().await);
    assert_eq!(holder.complete(b"again").await, FencedWrite::NotOwner);
    let next = s.caller(&id);
    let grant = granted(next.acquire(LONG).await);
    assert!(
        grant.token > token && !grant.took_over,
        "the grant after a `forget` should not be a takeover and should have a larger token than \
         {token}, got {grant:?}"
    );
    assert_eq!(next.complete(b"second").await, FencedWrite::Applied);
    let stored = is_complete(holder.peek().await);
    assert_eq!((body(&stored), stored.fingerprint()), (b"second".to_vec(), None));
}

/// An erased answer becomes a tombstone, so the work does not run again. Owner, token, fingerprint
/// and note stay.
pub async fn ops_4_an_erased_answer_is_a_tombstone(s: &Subject) {
    let id = s.id("k");
    let (holder, token) = s.done(&id).await;
    for _ in 0..2 {
        applied(&s.force(&id, &ForceRequest::erase(token)).await);
        let stored = completed(s.caller(&id).acquire(LONG).await);
        match stored.open(None) {
            Ok(Opened::Tombstone(tombstone)) => assert!(tombstone.detail().body().is_empty()),
            other => panic!("expected a tombstone, got {other:?}"),
        }
        assert_eq!(stored.fingerprint(), holder.fingerprint.as_ref());
        assert_eq!(stored.holder(), holder.note.as_ref());
        assert_eq!(holder.complete(b"canary").await, FencedWrite::AlreadyApplied);
    }
}

/// A tombstone lasts as long as the answer would have.
pub async fn ops_4_an_erased_answer_keeps_its_ttl(s: &Subject) {
    let id = s.id("k");
    let ttl = 4 * s.short();
    let holder = s.caller(&id).with_ttl(ttl);
    let token = granted(holder.acquire(LONG).await).token;
    assert_eq!(holder.complete(b"canary").await, FencedWrite::Applied);
    let forced = s.force(&id, &ForceRequest::erase(token)).await;
    // If the subject uses the host's clock, the ttl may already have ended.
    assert!(
        matches!(forced, Forced::Applied) || !s.is_exact(),
        "the erase should return `Applied`, got {forced:?}"
    );
    if s.is_exact() {
        s.pass(ttl / 2).await;
        is_complete(holder.peek().await);
    }
    s.expire(&id, ttl).await;
    is_absent(holder.peek().await);
}

/// A release or a resolve of a live lease wakes a waiter.
pub async fn ops_4_waiters_are_woken(s: &Subject) {
    for (at, key) in ["release", "resolve"].into_iter().enumerate() {
        let id = s.id(key);
        let token = granted(s.caller(&id).acquire(LONG).await).token;
        let waiter = s.caller(&id);
        let waiting = tokio::spawn(async move { waiter.wait_for_change(token, ASLEEP).await });
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        if !s.is_paused() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let req = requests(&id, token)[at].clone().even_if_live();
        applied(&s.force(&id, &req).await);
        tokio::time::timeout(s.woken_within(), waiting)
            .await
            .expect("the waiter should be woken")
            .expect("the waiter should not panic");
    }
}

/// A release races with a takeover of the same dead lease. In the end, the taker always has a
/// lease.
pub async fn ops_3_a_release_races_a_takeover(s: &Subject) {
    for round in 0..ROUNDS {
        let id = s.id(&format!("k{round}"));
        let (zombie, seen) = s.dead(&id).await;
        let taker = s.caller(&id);
        let operator = s.store().clone();
        let (of, req) = (id.clone(), ForceRequest::release(seen));
        let forcing = tokio::spawn(async move { operator.force(&of, &req).await });
        tokio::task::yield_now().await;
        let grant = taken(&taker).await;
        let forced =
            forcing.await.expect("the task should not panic").expect("the call should succeed");
        match forced {
            Forced::Applied => {}
            Forced::AnotherToken(token) => assert_eq!(
                token, grant.token,
                "round {round}: the release should show the taker's token"
            ),
            other => panic!(
                "round {round}: the release should return `Applied` or `AnotherToken`, got \
                 {other:?}"
            ),
        }
        assert_eq!(
            zombie.complete(b"late").await,
            FencedWrite::NotOwner,
            "round {round}: the completion of the dead holder should be refused"
        );
        assert_eq!(
            taker.complete(b"done").await,
            FencedWrite::Applied,
            "round {round}: the completion of the taker should be applied"
        );
        assert_eq!(
            body(&is_complete(taker.peek().await)),
            b"done",
            "round {round}: the record should have the taker's result"
        );
    }
}

/// A resolve races with a live holder's completion. One of the two wins, and both answers show
/// which one.
pub async fn ops_3_a_resolve_races_a_completion(s: &Subject) {
    for round in 0..ROUNDS {
        let id = s.id(&format!("k{round}"));
        let holder = s.caller(&id);
        let token = granted(holder.acquire(LONG).await).token;
        let operator = s.store().clone();
        let (of, req) = (id.clone(), resolve(&id, token, b"forced").even_if_live());
        let forcing = tokio::spawn(async move { operator.force(&of, &req).await });
        tokio::task::yield_now().await;
        let written = holder.complete(b"done").await;
        let forced =
            forcing.await.expect("the task should not panic").expect("the call should succeed");
        let expected: &[u8] = match (written, &forced) {
            (FencedWrite::Applied, Forced::Finished) => b"done",
            (FencedWrite::NotOwner, Forced::Applied) => b"forced",
            other => panic!(
                "round {round}: either the completion or the resolve should win, got {other:?}"
            ),
        };
        match holder.peek().await {
            Peeked::Complete(stored) => assert_eq!(
                body(&stored),
                expected,
                "round {round}: the record should have the winner's result"
            ),
            other => panic!("round {round}: expected a result, got {other:?}"),
        }
    }
}
