// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answers to an acquire (granted, busy or complete), and the answer to a repeated acquire.

use std::time::Duration;

use retryproof_core::IdempotencyStore as _;
use retryproof_core::store::{AcquireRequest, Completion, FencedWrite};

use super::caller::{DAY, LONG, MS, body, busy, completed, envelope, granted, is_busy};
use crate::subject::Subject;

/// The grant of an unused key lasts for the requested time, and is not a takeover.
pub async fn acq_1_a_fresh_key_is_granted(s: &Subject) {
    let grant = granted(s.caller(&s.id("k")).acquire(LONG).await);
    assert!(!grant.took_over);
    assert!(grant.token.get() > 0);
    assert!(
        grant.remaining <= LONG && grant.remaining > LONG / 2,
        "the grant should have the lease that was requested, but has {:?} left",
        grant.remaining
    );
}

/// While a holder works, every other owner gets "busy" with the holder's token.
pub async fn acq_1_a_held_key_is_busy(s: &Subject) {
    let id = s.id("k");
    let token = granted(s.caller(&id).acquire(LONG).await).token;
    for _ in 0..3 {
        let (remaining, seen) = busy(s.caller(&id).acquire(LONG).await);
        assert_eq!(seen, token);
        assert!(
            remaining <= LONG && remaining > LONG / 2,
            "the holder's lease should be as long as requested, but has {remaining:?} left"
        );
    }
}

/// After a key is complete, every other owner gets the stored result.
pub async fn acq_1_a_completed_key_answers_with_its_result(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"receipt").await, FencedWrite::Applied);
    for _ in 0..3 {
        assert_eq!(body(&completed(s.caller(&id).acquire(LONG).await)), b"receipt");
    }
}

/// Answers measure the remaining time of a lease by the store's clock.
pub async fn acq_7_remaining_follows_the_stores_clock(s: &Subject) {
    let id = s.id("k");
    granted(s.caller(&id).acquire(LONG).await);
    let (before, _) = busy(s.caller(&id).acquire(LONG).await);
    let passed = if s.is_exact() { LONG / 4 } else { 30 * MS };
    s.pass(passed).await;
    let (after, _) = busy(s.caller(&id).acquire(LONG).await);
    let (looked, _) = is_busy(s.caller(&id).peek().await);
    if s.is_exact() {
        assert_eq!(before - after, passed);
        assert_eq!(looked, after);
    } else {
        assert!(
            before - after >= passed - 5 * MS,
            "within {passed:?}, the lease's remaining time only fell from {before:?} to {after:?}"
        );
        assert!(
            looked <= after && looked > LONG / 2,
            "a peek should show at most {after:?} left, as the acquire did, but shows {looked:?}"
        );
    }
}

/// If the answer to an acquire was lost, the owner sends the acquire again. The owner gets the same
/// lease, renewed and with the same token, and the grant is still not a takeover.
pub async fn acq_9_the_same_owner_gets_its_lease_again(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let first = granted(holder.acquire(LONG).await);
    for _ in 0..3 {
        let again = granted(holder.acquire(LONG).await);
        assert_eq!(again.token, first.token);
        assert!(!again.took_over);
        assert!(
            again.remaining > LONG / 2,
            "the repeated acquire should renew the lease, which has {:?} left",
            again.remaining
        );
    }
    assert_eq!(busy(s.caller(&id).acquire(LONG).await).1, first.token);
}

/// A repeated acquire gets the lease again even if the lease ran out in between, unless another
/// owner took over.
pub async fn acq_9_the_same_owner_gets_its_expired_lease_again(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let first = granted(holder.acquire(s.short()).await);
    s.expire(&id, s.short()).await;
    let again = granted(holder.acquire(LONG).await);
    assert_eq!(again.token, first.token);
    assert!(!again.took_over);
    assert_eq!(busy(s.caller(&id).acquire(LONG).await).1, first.token);
}

/// The time of a renewed lease counts from the repeated acquire.
pub async fn acq_9_asking_again_prolongs_the_lease(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    granted(holder.acquire(s.short()).await);
    let again = granted(holder.acquire(LONG).await);
    assert!(
        again.remaining > LONG / 2,
        "the repeated acquire should renew the lease, which has {:?} left",
        again.remaining
    );
    s.pass(2 * s.short()).await;
    busy(s.caller(&id).acquire(LONG).await);
}

/// An owner that acquires again after its completion gets the result. A complete record never
/// becomes a lease again.
pub async fn acq_9_the_completer_asking_again_gets_its_result(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"mine").await, FencedWrite::Applied);
    assert_eq!(body(&completed(holder.acquire(LONG).await)), b"mine");
    assert_eq!(holder.complete(b"other").await, FencedWrite::AlreadyApplied);
}

/// The shortest and the longest lease are accepted: 10 ms and a day, or what the store can keep.
pub async fn ctx_2_leases_from_10_ms_to_24_h(s: &Subject) {
    let short = s.id("short");
    granted(s.caller(&short).acquire(10 * MS).await);
    s.expire(&short, 10 * MS).await;
    assert!(granted(s.caller(&short).acquire(10 * MS).await).took_over);

    let long = s.id("long");
    let day = DAY.min(s.store_limit());
    let grant = granted(s.caller(&long).acquire(day).await);
    assert!(
        grant.remaining > day / 2,
        "right after its grant, a lease of {day:?} has only {:?} left",
        grant.remaining
    );
    if s.is_exact() {
        s.pass(day - MS).await;
        assert_eq!(busy(s.caller(&long).acquire(day).await).0, MS);
        s.pass(MS).await;
        assert!(granted(s.caller(&long).acquire(day).await).took_over);
    }
}

/// The ttl counts from completion, so it does not limit a lease.
pub async fn ctx_2_a_lease_may_be_longer_than_its_ttl(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).with_ttl(MS);
    let token = granted(holder.acquire(LONG).await).token;
    s.outlast(MS).await;
    assert_eq!(busy(s.caller(&id).acquire(LONG).await).1, token);
    let kept = s.caller(&id);
    assert_eq!(
        holder.with_ttl(DAY).complete(b"late").await,
        FencedWrite::Applied,
        "the record should outlive the ttl that its acquire set"
    );
    assert_eq!(body(&completed(kept.acquire(LONG).await)), b"late");
}

/// A lease and a ttl between two of the store's steps are rounded up, so neither ends early.
pub async fn sto_1_durations_between_two_steps_are_rounded_up(s: &Subject) {
    let step = s.store().profile().resolution;
    let asked = s.short() + step / 2;
    let (held, done) = (s.id("held"), s.id("done"));
    let (holder, completer) = (s.caller(&held), s.caller(&done));
    granted(completer.acquire(LONG).await);
    let sent = tokio::time::Instant::now();
    let request = AcquireRequest::new(holder.owner, asked, DAY);
    let answer = s.store().acquire(&held, &request).await.expect("the acquire should succeed");
    let left = granted(answer).remaining;
    assert!(left <= asked + step, "a lease of {asked:?} in steps of {step:?} has {left:?} left");
    let completion = Completion::new(envelope(b"done"), asked, None);
    assert_eq!(completer.complete_with(&completion).await, FencedWrite::Applied);
    if s.is_exact() {
        let least = Duration::from_nanos(1);
        s.pass(asked - least).await;
        busy(s.caller(&held).acquire(LONG).await);
        completed(s.caller(&done).acquire(LONG).await);
        s.pass(step + least).await;
        assert!(granted(s.caller(&held).acquire(LONG).await).took_over);
        assert!(!granted(s.caller(&done).acquire(LONG).await).took_over);
        return;
    }
    for id in [&held, &done] {
        s.expire(id, s.short()).await;
        // The tolerance allows for a store with a coarse clock.
        assert!(
            sent.elapsed() + 5 * MS >= asked,
            "a duration of {asked:?} was over after only {:?}",
            sent.elapsed()
        );
    }
}

impl Subject {
    /// Returns the longest duration that the store can keep.
    pub(super) fn store_limit(&self) -> Duration {
        self.store().profile().max_duration
    }
}
