// SPDX-License-Identifier: MIT OR Apache-2.0
//! A purge deletes expired records, and nothing that is still needed.

use std::time::Duration;

use retryproof_core::Identity;
use retryproof_core::store::{Completion, FencedWrite};

use tokio::time::Instant;

use super::caller::{
    DAY, LONG, MS, body, busy, completed, envelope, granted, is_absent, is_busy, is_complete,
};
use crate::subject::Subject;

impl Subject {
    /// Purges until nothing is left to purge. Returns how many records were deleted.
    pub(super) async fn purge_all(&self) -> usize {
        let mut gone = 0;
        for _ in 0..10_000 {
            match self.store().purge(100).await.expect("the purge should succeed") {
                Some(100) => gone += 100,
                Some(rest) => return gone + rest,
                None => panic!("the store should be able to purge"),
            }
        }
        panic!("the purge does not end; it has deleted {gone} records so far");
    }

    /// Returns whether an operator still sees the record; `None` if the store cannot be inspected.
    async fn is_kept(&self, id: &retryproof_core::Identity) -> Option<bool> {
        if !self.can_inspect() {
            return None;
        }
        Some(self.store().get(id).await.expect("the inspection should succeed").is_some())
    }
}

/// A purge keeps live leases and results within their ttl.
pub async fn sto_4_purge_keeps_what_is_live(s: &Subject) {
    let (held, done) = (s.id("held"), s.id("done"));
    let holder = s.caller(&held).with_ttl(MS);
    let token = granted(holder.acquire(LONG).await).token;
    let completer = s.caller(&done);
    granted(completer.acquire(LONG).await);
    assert_eq!(completer.complete(b"done").await, FencedWrite::Applied);
    s.outlast(MS).await;
    s.purge_all().await;
    assert_eq!(
        is_busy(holder.peek().await).1,
        token,
        "a purge should keep a live lease, even past its ttl"
    );
    assert_eq!(body(&completed(s.caller(&done).acquire(LONG).await)), b"done");
    assert_eq!(holder.with_ttl(DAY).complete(b"held").await, FencedWrite::Applied);
}

/// A purge keeps an expired lease until its ttl is over too, because its owner may still complete.
pub async fn sto_4_purge_keeps_an_expired_lease_within_its_ttl(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    granted(holder.acquire(s.short()).await);
    s.expire(&id, s.short()).await;
    s.purge_all().await;
    assert_eq!(holder.complete(b"late").await, FencedWrite::Applied);
    s.purge_all().await;
    assert_eq!(body(&completed(s.caller(&id).acquire(LONG).await)), b"late");
}

/// A purge deletes and counts results past their ttl, and leases that are past both their end and
/// their ttl.
pub async fn sto_4_purge_removes_what_is_over(s: &Subject) {
    let (done, dead) = (s.id("done"), s.id("dead"));
    let completer = s.caller(&done).with_ttl(s.short());
    granted(completer.acquire(LONG).await);
    assert_eq!(completer.complete(b"done").await, FencedWrite::Applied);
    let holder = s.caller(&dead).with_ttl(s.short());
    granted(holder.acquire(s.short()).await);
    s.expire(&done, s.short()).await;
    s.expire(&dead, s.short()).await;
    // Wait a little longer, because a store can round an expiry time up.
    s.pass(s.short()).await;
    let gone = s.purge_all().await;
    if s.is_exact() {
        assert!(gone >= 2, "at least 2 records should be deleted, but {gone} were");
    }
    for id in [&done, &dead] {
        assert_ne!(s.is_kept(id).await, Some(true), "an expired record still exists");
        is_absent(s.caller(id).peek().await);
    }
    assert_eq!(
        holder.complete(b"late").await,
        FencedWrite::NotOwner,
        "the record should be deleted"
    );
    assert_eq!(holder.release().await, FencedWrite::AlreadyApplied);
    for id in [&done, &dead] {
        assert!(
            !granted(s.caller(id).acquire(LONG).await).took_over,
            "there should be nothing left to take over"
        );
    }
}

/// Creates ten results, and lets them expire.
async fn ten_expired_results(s: &Subject) -> Vec<Identity> {
    let ids: Vec<_> = (0..10).map(|at| s.id(&format!("k{at}"))).collect();
    for id in &ids {
        let holder = s.caller(id).with_ttl(MS);
        granted(holder.acquire(LONG).await);
        assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    }
    s.outlast(MS).await;
    ids
}

/// A purge never deletes more records than its limit. If it deletes fewer, no expired record is
/// left.
pub async fn sto_4_purge_takes_no_more_than_its_limit(s: &Subject) {
    s.purge_all().await;
    let ids = ten_expired_results(s).await;
    for _ in 0..4 {
        let gone = s
            .store()
            .purge(3)
            .await
            .expect("the purge should succeed")
            .expect("the store should be able to purge");
        assert!(gone <= 3, "a batch of 3 deleted {gone} records");
    }
    s.purge_all().await;
    for id in &ids {
        assert_ne!(s.is_kept(id).await, Some(true));
        is_absent(s.caller(id).peek().await);
    }
}

/// If a purge continues where the previous purge stopped, it must also return to records that were
/// live when the previous purge passed them. If a purge deletes fewer records than its limit, no
/// expired record may be left.
pub async fn sto_4_purge_comes_back_to_what_it_passed(s: &Subject) {
    s.purge_all().await;
    let passed = s.id("passed");
    let holder = s.caller(&passed).with_ttl(MS);
    granted(holder.acquire(LONG).await);
    s.outlast(MS).await;
    let ids = ten_expired_results(s).await;
    let mut gone = s
        .store()
        .purge(3)
        .await
        .expect("the purge should succeed")
        .expect("the store should be able to purge");
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied, "the lease should still run");
    s.outlast(MS).await;
    gone += s.purge_all().await;
    if s.is_exact() {
        assert!(gone >= 11, "at least 11 records should be deleted, but {gone} were");
    }
    for id in ids.iter().chain([&passed]) {
        assert_ne!(s.is_kept(id).await, Some(true), "an expired record still exists");
    }
}

/// A record that is granted, extended or completed after it has expired gets a new expiry. A purge
/// then ignores the old one.
pub async fn sto_4_purge_keeps_a_record_that_was_used_again(s: &Subject) {
    // `granted_again` is a key that is granted again after its result's ttl.
    let granted_again = s.id("granted again");
    let old = s.caller(&granted_again).with_ttl(MS);
    granted(old.acquire(LONG).await);
    assert_eq!(old.complete(b"old").await, FencedWrite::Applied);
    s.expire(&granted_again, MS).await;
    let token = granted(s.caller(&granted_again).acquire(LONG).await).token;
    // `extended` is a record whose lease and ttl have already ended when its owner extends it.
    let extended = s.id("extended");
    let owner = s.caller(&extended).with_ttl(MS);
    granted(owner.acquire(10 * MS).await);
    s.expire(&extended, 10 * MS).await;
    let saved = owner.extend(LONG).await;
    // `kept` is a record whose lease and ttl have already ended when its owner completes it with a
    // longer ttl.
    let kept = s.id("completed");
    let completer = s.caller(&kept).with_ttl(MS);
    granted(completer.acquire(10 * MS).await);
    s.expire(&kept, 10 * MS).await;
    let done = Completion::new(envelope(b"kept"), LONG, None);
    let counted = completer.complete_with(&done).await;
    // `asked_again` is a record whose lease and ttl have already ended when its owner acquires it
    // again.
    let asked_again = s.id("asked again");
    let asking = s.caller(&asked_again).with_ttl(MS);
    granted(asking.acquire(10 * MS).await);
    s.expire(&asked_again, 10 * MS).await;
    granted(asking.acquire(LONG).await);

    s.outlast(MS).await;
    s.purge_all().await;
    assert_eq!(busy(s.caller(&granted_again).acquire(LONG).await).1, token);
    is_busy(asking.peek().await);
    // The store might have deleted the expired record before the extend or the completion. If the
    // extend or the completion succeeded, the record must still exist.
    match saved {
        FencedWrite::Applied => assert!(is_busy(owner.peek().await).0 > LONG / 2),
        _ => is_absent(owner.peek().await),
    }
    match counted {
        FencedWrite::Applied => assert_eq!(body(&is_complete(completer.peek().await)), b"kept"),
        _ => is_absent(completer.peek().await),
    }
}

/// A purge keeps a result for its completion's ttl, even if its acquire's ttl was shorter or
/// longer.
pub async fn sto_4_purge_goes_by_the_completions_ttl(s: &Subject) {
    let (longer, shorter) = (s.id("longer"), s.id("shorter"));
    let completer = s.caller(&longer).with_ttl(MS);
    granted(completer.acquire(LONG).await);
    let done = Completion::new(envelope(b"longer"), LONG, None);
    assert_eq!(completer.complete_with(&done).await, FencedWrite::Applied);
    let brief = s.caller(&shorter).with_ttl(DAY);
    granted(brief.acquire(LONG).await);
    let done = Completion::new(envelope(b"shorter"), s.kept(MS), None);
    assert_eq!(brief.complete_with(&done).await, FencedWrite::Applied);
    s.outlast(MS).await;
    s.purge_all().await;
    assert_eq!(body(&is_complete(completer.peek().await)), b"longer");
    is_absent(brief.peek().await);
    assert_ne!(s.is_kept(&shorter).await, Some(true));
}

/// Purges can run concurrently without harm.
pub async fn sto_4_purge_from_two_instances_at_once(s: &Subject) {
    let live = s.caller(&s.id("live"));
    granted(live.acquire(LONG).await);
    let ids: Vec<_> = (0..40).map(|at| s.id(&format!("k{at}"))).collect();
    for id in &ids {
        let holder = s.caller(id).with_ttl(MS);
        granted(holder.acquire(LONG).await);
        assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    }
    s.outlast(MS).await;
    let purges: Vec<_> = (0..4)
        .map(|_| {
            let store = s.store().clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    store.purge(5).await.expect("the purge should succeed");
                }
            })
        })
        .collect();
    for purge in purges {
        purge.await.expect("the purge should not panic");
    }
    s.purge_all().await;
    for id in &ids {
        is_absent(s.caller(id).peek().await);
    }
    assert_eq!(live.complete(b"live").await, FencedWrite::Applied);
}

/// The length of a claim: short enough for a case to wait for its end, but longer than a few
/// concurrent claims take on a busy machine.
const CLAIM: Duration = Duration::from_secs(1);

impl Subject {
    async fn claim(&self, at_most: Duration) -> bool {
        let claimed = self.store().claim_purge(at_most).await.expect("the claim should succeed");
        claimed.expect("the store should be able to purge")
    }

    /// Waits for the end of any other process's claim, and then claims the purge.
    async fn claim_in_time(&self, at_most: Duration) {
        for _ in 0..10_000 {
            if self.claim(at_most).await {
                return;
            }
            self.pass(MS).await;
        }
        panic!("the claim should be free again, but cannot be obtained");
    }

    /// Claims the purge, and checks that a second claim is refused while the first lasts.
    async fn claim_alone(&self) {
        let began = Instant::now();
        self.claim_in_time(CLAIM).await;
        let second = self.claim(CLAIM).await;
        assert!(!second || began.elapsed() >= CLAIM, "a second claim should be refused");
    }
}

/// While a claim lasts, no other caller gets a claim. A claim ends on its own when its time is
/// over, so a claimer that dies blocks the purge only until then. A purge needs no claim.
pub async fn sto_6_a_claim_keeps_others_out_until_it_ends(s: &Subject) {
    let began = Instant::now();
    s.claim_alone().await;
    let ids = ten_expired_results(s).await;
    s.purge_all().await;
    for id in &ids {
        is_absent(s.caller(id).peek().await);
    }
    if began.elapsed() < CLAIM / 2 {
        assert!(!s.claim(CLAIM).await, "a purge should not end the claim");
    }
    s.pass(CLAIM + MS).await;
    s.claim_in_time(CLAIM).await;
}

/// If many callers claim at the same time, exactly one gets the claim.
pub async fn sto_6_of_racing_claims_one_is_granted(s: &Subject) {
    s.claim_alone().await;
    for _ in 0..2 {
        s.pass(CLAIM + MS).await;
        let claims: Vec<_> = (0..16)
            .map(|_| {
                let store = s.store().clone();
                tokio::spawn(async move { store.claim_purge(CLAIM).await })
            })
            .collect();
        let mut granted = 0;
        for claim in claims {
            let claim = claim.await.expect("the claim should not panic");
            granted += usize::from(claim.expect("the claim should succeed") == Some(true));
        }
        assert_eq!(granted, 1, "exactly one of the concurrent claims should be granted");
    }
}
