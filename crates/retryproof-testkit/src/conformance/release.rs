// SPDX-License-Identifier: MIT OR Apache-2.0
//! A release makes the record absent. Only the record's owner can release it.

use retryproof_core::store::{Completion, FencedWrite};

use super::caller::{
    DAY, LONG, body, busy, envelope, granted, is_absent, is_busy, is_complete, taken_over,
};
use crate::subject::Subject;

/// After a release, the next caller sees an unused key.
pub async fn run_4_a_released_key_is_fresh(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).with_fingerprint(1);
    let token = granted(holder.acquire(LONG).await).token;
    assert_eq!(holder.release().await, FencedWrite::Applied);
    is_absent(holder.peek().await);
    let next = s.caller(&id);
    let grant = granted(next.acquire(LONG).await);
    assert!(
        !grant.took_over && grant.token > token,
        "the grant after a release should not be a takeover and should have a larger token than \
         {token}, got {grant:?}"
    );
    assert_eq!(next.complete(b"next").await, FencedWrite::Applied);
    let stored = is_complete(holder.peek().await);
    assert_eq!(body(&stored), b"next");
    assert!(stored.fingerprint().is_none(), "the released record's fingerprint was still kept");
}

/// If the answer to a release was lost, the release can be repeated. Releasing a key without a
/// record also succeeds.
pub async fn run_4_releasing_again_is_already_done(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    assert_eq!(holder.release().await, FencedWrite::AlreadyApplied);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.release().await, FencedWrite::Applied);
    assert_eq!(holder.release().await, FencedWrite::AlreadyApplied);
    assert_eq!(s.caller(&id).release().await, FencedWrite::AlreadyApplied);
    is_absent(holder.peek().await);
}

/// No other owner can release a live holder's key.
pub async fn run_4_a_strangers_release_is_lost(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let token = granted(holder.acquire(LONG).await).token;
    assert_eq!(s.caller(&id).release().await, FencedWrite::NotOwner);
    assert_eq!(busy(s.caller(&id).acquire(LONG).await).1, token);
    assert_eq!(holder.complete(b"mine").await, FencedWrite::Applied);
}

/// After a takeover, the old owner's release is refused, and the new holder keeps its lease.
pub async fn run_4_a_zombie_release_is_lost(s: &Subject) {
    let id = s.id("k");
    let (zombie, taker, token) = taken_over(s, &id).await;
    assert_eq!(zombie.release().await, FencedWrite::NotOwner);
    assert_eq!(is_busy(zombie.peek().await).1, token);
    assert_eq!(taker.complete(b"taker").await, FencedWrite::Applied);
    assert_eq!(zombie.release().await, FencedWrite::NotOwner);
    assert_eq!(body(&is_complete(zombie.peek().await)), b"taker");
}

/// A complete record cannot be released, even by its owner.
pub async fn run_4_a_completed_record_is_not_released(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    assert_eq!(holder.release().await, FencedWrite::NotOwner);
    assert_eq!(s.caller(&id).release().await, FencedWrite::NotOwner);
    assert_eq!(body(&is_complete(holder.peek().await)), b"done");
}

/// A release counts even after the lease has ended, unless another owner took over.
pub async fn run_4_an_expired_lease_of_ones_own_is_released(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    granted(holder.acquire(s.short()).await);
    s.expire(&id, s.short()).await;
    assert_eq!(holder.release().await, FencedWrite::Applied);
    assert_eq!(holder.release().await, FencedWrite::AlreadyApplied);
}

/// There is no failed state. A released record looks deleted to every call, even if the store keeps
/// a part of it.
pub async fn cmp_5_a_released_record_looks_deleted(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let token = granted(holder.acquire(LONG).await).token;
    assert_eq!(holder.release().await, FencedWrite::Applied);
    is_absent(holder.peek().await);
    holder.wait_for_change(token, LONG).await;
    let done = Completion::new(envelope(b"x"), DAY, None);
    assert_eq!(holder.complete_with(&done).await, FencedWrite::NotOwner);
    assert_eq!(holder.extend(LONG).await, FencedWrite::NotOwner);
    assert_eq!(holder.release().await, FencedWrite::AlreadyApplied);
    if s.can_inspect() {
        let found = s.store().get(&id).await.expect("the inspection should succeed");
        assert!(found.is_none(), "the released record is still visible: {found:?}");
    }
    let again = granted(holder.acquire(LONG).await);
    assert!(!again.took_over, "a grant after a release should not count as a takeover");
    assert!(
        again.token > token,
        "a grant after a release should have a larger token: {} after {token}",
        again.token
    );
}
