// SPDX-License-Identifier: MIT OR Apache-2.0
//! A completion stores its fingerprint, each answer with the result returns this fingerprint, and
//! every grant replaces it. A busy answer says whether the caller's fingerprint differs from the
//! holder's (FP-6).

use retryproof_core::store::{Acquired, Completion, FencedWrite};
use retryproof_core::{Fingerprint, Identity, Opened};

use super::caller::{
    DAY, LONG, busy, completed, envelope, fingerprint, granted, is_busy, is_complete,
};
use crate::subject::Subject;

/// The completion's fingerprint is returned with the result, by an acquire and by a peek. A missing
/// fingerprint stays missing.
pub async fn fp_1_the_completions_fingerprint_is_kept(s: &Subject) {
    for stored in [None, Some(fingerprint(1))] {
        let id = s.id(&format!("{}", stored.is_some()));
        let holder = s.caller(&id).with_fingerprint(9);
        granted(holder.acquire(LONG).await);
        let done = Completion::new(envelope(b"done"), DAY, stored);
        assert_eq!(holder.complete_with(&done).await, FencedWrite::Applied);
        assert_eq!(is_complete(holder.peek().await).fingerprint(), stored.as_ref());
        let found = completed(s.caller(&id).with_fingerprint(2).acquire(LONG).await);
        assert_eq!(found.fingerprint(), stored.as_ref());
        let judged = found.open(Some(&fingerprint(2))).expect("the result should open");
        assert_eq!(matches!(judged, Opened::Mismatch), stored.is_some());
    }
}

/// Fingerprints of 1 to 64 bytes are kept, even if they begin or end with zeros.
pub async fn fp_1_fingerprints_of_every_length_are_kept(s: &Subject) {
    for bytes in [&[0][..], &[1], &[255], &[0, 0], &[3; 33], &[0; 64], &[255; 64]] {
        let id = s.id(&format!("{bytes:?}"));
        let kept = Fingerprint::new(bytes).expect("the fingerprint should be valid");
        let holder = s.caller(&id);
        granted(holder.acquire(LONG).await);
        let done = Completion::new(envelope(b"done"), DAY, Some(kept));
        assert_eq!(holder.complete_with(&done).await, FencedWrite::Applied);
        let found = is_complete(holder.peek().await);
        assert_eq!(found.fingerprint().map(Fingerprint::as_bytes), Some(bytes));
    }
}

/// While the holder runs, fingerprints are not compared. A duplicate with a different fingerprint
/// gets "busy" like any other duplicate.
pub async fn fp_1_nothing_is_judged_while_the_holder_runs(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).with_fingerprint(1);
    let token = granted(holder.acquire(LONG).await).token;
    assert_eq!(busy(s.caller(&id).with_fingerprint(2).acquire(LONG).await).1, token);
    assert_eq!(busy(s.caller(&id).acquire(LONG).await).1, token);
    assert_eq!(is_busy(holder.peek().await).1, token);
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    assert_eq!(
        is_complete(holder.peek().await).fingerprint(),
        Some(&fingerprint(1)),
        "the busy calls should not change the holder's fingerprint"
    );
}

impl Subject {
    /// Returns whether the record has a fingerprint; `None` if there is no record, or if the store
    /// cannot be inspected. While a holder runs, only an operator can see the fingerprint.
    async fn keeps_fingerprint(&self, id: &Identity) -> Option<bool> {
        if !self.can_inspect() {
            return None;
        }
        self.store()
            .get(id)
            .await
            .expect("the inspection should succeed")
            .map(|record| record.has_fingerprint)
    }
}

/// A takeover replaces the dead owner's fingerprint. An owner that repeats its acquire replaces its
/// own fingerprint.
pub async fn fp_2_a_takeover_replaces_the_fingerprint(s: &Subject) {
    let id = s.id("k");
    granted(s.caller(&id).with_fingerprint(1).acquire(s.short()).await);
    s.expire(&id, s.short()).await;
    let taker = s.caller(&id).with_fingerprint(2);
    granted(taker.acquire(LONG).await);
    assert_eq!(taker.complete(b"taker").await, FencedWrite::Applied);
    assert_eq!(is_complete(taker.peek().await).fingerprint(), Some(&fingerprint(2)));

    let id = s.id("without");
    granted(s.caller(&id).with_fingerprint(1).acquire(s.short()).await);
    assert_ne!(
        s.keeps_fingerprint(&id).await,
        Some(false),
        "the holder's fingerprint was not kept"
    );
    s.expire(&id, s.short()).await;
    granted(s.caller(&id).acquire(LONG).await);
    assert_ne!(
        s.keeps_fingerprint(&id).await,
        Some(true),
        "the dead owner's fingerprint was still kept"
    );

    let id = s.id("again");
    let holder = s.caller(&id).with_fingerprint(3);
    granted(holder.acquire(LONG).await);
    let changed =
        super::caller::StoreCaller { fingerprint: Some(fingerprint(4)), ..holder.clone() };
    granted(changed.acquire(LONG).await);
    assert_eq!(changed.complete(b"again").await, FencedWrite::Applied);
    assert_eq!(is_complete(holder.peek().await).fingerprint(), Some(&fingerprint(4)));
}

/// A result past its ttl leaves no fingerprint for the next result.
pub async fn fp_2_an_expired_result_leaves_no_fingerprint(s: &Subject) {
    let id = s.id("k");
    let old = s.caller(&id).with_fingerprint(1).with_ttl(s.short());
    granted(old.acquire(LONG).await);
    assert_eq!(old.complete(b"old").await, FencedWrite::Applied);
    s.expire(&id, s.short()).await;
    let new = s.caller(&id);
    granted(new.acquire(LONG).await);
    assert_eq!(new.complete(b"new").await, FencedWrite::Applied);
    assert!(is_complete(new.peek().await).fingerprint().is_none());
}

impl Subject {
    /// Asserts that other callers' acquires are compared with the holder's fingerprint `held`.
    async fn compares_with(&self, id: &Identity, held: Option<u8>) {
        for (own, compares) in [(Some(1), true), (Some(2), true), (None, true), (Some(3), false)] {
            let mut stranger = self.caller(id);
            stranger.fingerprint = own.map(fingerprint);
            stranger.compares_in_flight = compares;
            let differs = compares && own.is_some() && held.is_some() && own != held;
            match stranger.acquire(LONG).await {
                Acquired::Busy(lease) => assert_eq!(
                    lease.mismatch, differs,
                    "the store compared the fingerprint {own:?} with the holder's {held:?} wrongly"
                ),
                other => panic!("expected busy, got {other:?}"),
            }
        }
    }
}

/// If fingerprints are compared while the holder runs, a busy answer says whether the two requests'
/// fingerprints differ, even after a heartbeat of the holder.
pub async fn fp_6_a_busy_answer_tells_whether_the_request_differs(s: &Subject) {
    for held in [Some(1), None] {
        let mut holder = s.caller(&s.id(&format!("{held:?}"))).comparing();
        holder.fingerprint = held.map(fingerprint);
        granted(holder.acquire(LONG).await);
        s.compares_with(&holder.id, held).await;
        assert_eq!(holder.extend(LONG).await, FencedWrite::Applied);
        s.compares_with(&holder.id, held).await;
        assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
        let stored = is_complete(holder.peek().await);
        assert_eq!(stored.fingerprint().copied(), held.map(fingerprint));
    }
}

/// Every grant replaces the holder's fingerprint: a takeover, a repeated acquire, and a grant after
/// a release.
pub async fn fp_6_a_grant_replaces_the_fingerprint_to_compare_with(s: &Subject) {
    let id = s.id("k");
    let holder = |byte| s.caller(&id).with_fingerprint(byte).comparing();
    granted(holder(1).acquire(s.short()).await);
    s.expire(&id, s.short()).await;
    let taker = holder(2);
    granted(taker.acquire(LONG).await);
    s.compares_with(&id, Some(2)).await;
    let again = taker.with_fingerprint(1);
    granted(again.acquire(LONG).await);
    s.compares_with(&id, Some(1)).await;
    assert_eq!(again.release().await, FencedWrite::Applied);
    granted(s.caller(&id).comparing().acquire(LONG).await);
    s.compares_with(&id, None).await;
}
