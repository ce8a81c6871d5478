// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store fences completions and extends by owner, never by time.

use retryproof_core::OwnerId;
use retryproof_core::store::FencedWrite;

use super::caller::{
    LONG, MS, body, busy, completed, granted, is_absent, is_busy, is_complete, taken_over,
};
use crate::subject::Subject;

/// A completion counts even after the lease has ended, unless another owner took over.
pub async fn cmp_2_a_late_completion_by_the_recorded_owner_counts(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    granted(holder.acquire(s.short()).await);
    s.expire(&id, 3 * s.short()).await;
    assert_eq!(holder.complete(b"late").await, FencedWrite::Applied);
    assert_eq!(body(&completed(s.caller(&id).acquire(LONG).await)), b"late");
}

/// After a takeover, the old owner's completion is refused and changes nothing.
pub async fn cmp_2_a_zombie_completion_is_lost(s: &Subject) {
    let id = s.id("k");
    let (zombie, taker, token) = taken_over(s, &id).await;
    for _ in 0..2 {
        assert_eq!(zombie.complete(b"zombie").await, FencedWrite::NotOwner);
        assert_eq!(is_busy(s.caller(&id).peek().await).1, token);
    }
    assert_eq!(taker.complete(b"taker").await, FencedWrite::Applied);
    assert_eq!(body(&completed(s.caller(&id).acquire(LONG).await)), b"taker");
}

/// The old owner's completion is also refused if the new owner has already completed.
pub async fn cmp_2_a_zombie_completion_leaves_the_takers_result(s: &Subject) {
    let id = s.id("k");
    let (zombie, taker, _) = taken_over(s, &id).await;
    assert_eq!(taker.complete(b"taker").await, FencedWrite::Applied);
    assert_eq!(zombie.complete(b"zombie").await, FencedWrite::NotOwner);
    assert_eq!(body(&is_complete(s.caller(&id).peek().await)), b"taker");
    assert_eq!(
        body(&completed(zombie.acquire(LONG).await)),
        b"taker",
        "the old owner should get the new owner's result"
    );
}

/// The store compares all 128 bits of an owner ID. A store that compared only some bits could
/// confuse two executions.
pub async fn acq_9_owners_that_differ_in_one_bit_are_strangers(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let token = granted(holder.acquire(LONG).await).token;
    for bit in 0..128 {
        let mut bytes = *holder.owner.as_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut stranger = s.caller(&id);
        stranger.owner = OwnerId::from_bytes(bytes);
        assert_eq!(
            busy(stranger.acquire(LONG).await).1,
            token,
            "an owner whose id differs only in bit {bit} should not get the holder's lease"
        );
        assert_eq!(
            stranger.extend(LONG).await,
            FencedWrite::NotOwner,
            "an owner whose id differs only in bit {bit} should be refused"
        );
        assert_eq!(
            stranger.complete(b"stranger").await,
            FencedWrite::NotOwner,
            "an owner whose id differs only in bit {bit} should be refused"
        );
        assert_eq!(
            stranger.release().await,
            FencedWrite::NotOwner,
            "an owner whose id differs only in bit {bit} should be refused"
        );
    }
    assert_eq!(holder.complete(b"holder").await, FencedWrite::Applied);
    assert_eq!(body(&is_complete(holder.peek().await)), b"holder");
}

/// No other owner can complete a live holder's record.
pub async fn cmp_2_a_strangers_completion_is_lost(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    granted(holder.acquire(LONG).await);
    assert_eq!(s.caller(&id).complete(b"stranger").await, FencedWrite::NotOwner);
    is_busy(holder.peek().await);
    assert_eq!(holder.complete(b"holder").await, FencedWrite::Applied);
    assert_eq!(s.caller(&id).complete(b"stranger").await, FencedWrite::NotOwner);
    assert_eq!(body(&is_complete(holder.peek().await)), b"holder");
}

/// A completion of an absent record is refused, and creates no record.
pub async fn cmp_2_completing_an_absent_record_is_lost(s: &Subject) {
    let id = s.id("k");
    assert_eq!(s.caller(&id).complete(b"nothing").await, FencedWrite::NotOwner);
    is_absent(s.caller(&id).peek().await);
    let holder = s.caller(&id);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.release().await, FencedWrite::Applied);
    assert_eq!(holder.complete(b"released").await, FencedWrite::NotOwner);
    assert!(!granted(s.caller(&id).acquire(LONG).await).took_over);
}

/// If the answer to a completion was lost, the completion can be sent again. The repetition
/// succeeds, and the first value stays.
pub async fn cmp_3_completing_twice_is_already_done(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"first").await, FencedWrite::Applied);
    for _ in 0..3 {
        assert_eq!(holder.complete(b"second").await, FencedWrite::AlreadyApplied);
    }
    assert_eq!(body(&is_complete(holder.peek().await)), b"first");
    assert_eq!(body(&completed(s.caller(&id).acquire(LONG).await)), b"first");
}

/// A heartbeat keeps the lease beyond its original end.
pub async fn run_1_extend_renews_the_lease(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let token = granted(holder.acquire(s.short()).await).token;
    for _ in 0..4 {
        assert_eq!(holder.extend(LONG).await, FencedWrite::Applied);
        s.pass(s.short()).await;
        assert_eq!(
            busy(s.caller(&id).acquire(LONG).await).1,
            token,
            "an extend should keep the token"
        );
    }
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
}

/// An extend sets the lease's end to the requested time from now, even if the lease then ends
/// sooner than before.
pub async fn run_1_extend_counts_from_now(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    granted(holder.acquire(LONG).await);
    s.pass(10 * MS).await;
    assert_eq!(holder.extend(s.short()).await, FencedWrite::Applied);
    if s.is_exact() {
        assert_eq!(is_busy(holder.peek().await).0, s.short());
    }
    s.expire(&id, s.short()).await;
    assert!(granted(s.caller(&id).acquire(LONG).await).took_over);
}

/// A late heartbeat saves the lease, unless another owner took over.
pub async fn run_1_an_expired_lease_of_ones_own_is_extended(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let token = granted(holder.acquire(s.short()).await).token;
    s.expire(&id, 2 * s.short()).await;
    assert_eq!(holder.extend(LONG).await, FencedWrite::Applied);
    assert_eq!(busy(s.caller(&id).acquire(LONG).await).1, token);
}

/// After a takeover, the old owner's heartbeat is refused, and the new lease does not change.
pub async fn run_2_extend_after_a_takeover_is_lost(s: &Subject) {
    let id = s.id("k");
    let (zombie, _, token) = taken_over(s, &id).await;
    assert_eq!(zombie.extend(4 * LONG).await, FencedWrite::NotOwner);
    let (remaining, seen) = is_busy(zombie.peek().await);
    assert_eq!(seen, token);
    assert!(
        remaining <= LONG,
        "the refused heartbeat should not extend the lease, which has {remaining:?} left"
    );
}

/// No other owner can extend a live holder's lease.
pub async fn run_2_a_strangers_extend_is_lost(s: &Subject) {
    let id = s.id("k");
    let token = granted(s.caller(&id).acquire(LONG).await).token;
    assert_eq!(s.caller(&id).extend(4 * LONG).await, FencedWrite::NotOwner);
    assert_eq!(s.caller(&id).extend(MS).await, FencedWrite::NotOwner);
    s.pass(10 * MS).await;
    let (remaining, seen) = is_busy(s.caller(&id).peek().await);
    assert!(
        seen == token && remaining <= LONG,
        "the refused heartbeat should not extend the lease, which has {remaining:?} left"
    );
}

/// A heartbeat that arrives after the completion is refused and does not change the result.
pub async fn run_3_extend_revives_no_finished_record(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).with_ttl(s.short());
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    assert_eq!(holder.extend(LONG).await, FencedWrite::NotOwner);
    if s.is_exact() {
        assert_eq!(body(&is_complete(holder.peek().await)), b"done");
    }
    // The refused extend must not have prolonged the result's ttl either.
    s.expire(&id, s.short()).await;
    assert_eq!(
        holder.extend(LONG).await,
        FencedWrite::NotOwner,
        "a result past its ttl should not be extended either"
    );
    is_absent(holder.peek().await);
}

/// A heartbeat that arrives after the release, or for a key without a holder, is refused and
/// creates nothing.
pub async fn run_3_extend_revives_no_released_record(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    assert_eq!(holder.extend(LONG).await, FencedWrite::NotOwner);
    is_absent(holder.peek().await);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.release().await, FencedWrite::Applied);
    assert_eq!(holder.extend(LONG).await, FencedWrite::NotOwner);
    is_absent(holder.peek().await);
    assert!(!granted(s.caller(&id).acquire(LONG).await).took_over);
}
