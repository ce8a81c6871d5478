// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results come back byte for byte until their ttl ends. These cases also cover results that cannot
//! be read or stored.

use retryproof_core::store::{Acquired, Completion, FencedWrite, IdempotencyStore as _, Peeked};
use retryproof_core::{Blob, CodecId, ErrorKind, Opened, Payload, StoredResult, Tombstone};

use super::caller::{
    DAY, LONG, MS, StoreCaller, body, busy, completed, envelope, fingerprint, granted, is_absent,
    is_complete,
};
use tokio::time::Instant;

use crate::subject::Subject;

async fn store(s: &Subject, key: &str, value: Blob) -> StoreCaller {
    let holder = s.caller(&s.id(key));
    granted(holder.acquire(LONG).await);
    let done = Completion::new(value, DAY, None);
    assert_eq!(
        holder.complete_with(&done).await,
        FencedWrite::Applied,
        "the completion of {key} should be applied"
    );
    holder
}

async fn comes_back(s: &Subject, key: &str, content: &[u8]) {
    let holder = store(s, key, envelope(content)).await;
    // Do not use `assert_eq!` here: a failure would print a whole MiB.
    assert!(
        body(&is_complete(holder.peek().await)) == content,
        "{key}: a peek returned different bytes"
    );
    let replayed = completed(s.caller(&holder.id).acquire(LONG).await);
    assert!(body(&replayed) == content, "{key}: an acquire returned different bytes");
}

/// Results come back unchanged even if they are empty or binary, contain every byte, or contain
/// text that a database might interpret.
pub async fn cmp_1_results_come_back_byte_for_byte(s: &Subject) {
    comes_back(s, "empty", b"").await;
    comes_back(s, "one zero", b"\0").await;
    comes_back(s, "zeros", &[0; 300]).await;
    comes_back(s, "all bytes", &(0..=255).collect::<Vec<u8>>()).await;
    comes_back(s, "not utf-8", b"\xff\xfe\xc3\x28\xed\xa0\x80").await;
    comes_back(s, "text", "'; DROP TABLE x; -- \\ \" % _ \r\n\t {} ☃".as_bytes()).await;
    comes_back(s, "white space", b"  trailing  \n ").await;
}

/// A result of one MiB, or of the store's largest size, with varying content comes back unchanged.
pub async fn cmp_1_a_large_result_comes_back(s: &Subject) {
    let content: Vec<u8> = (0..s.largest_body(1 << 20))
        .map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3])
        .collect();
    comes_back(s, "large", &content).await;
}

/// The store keeps the envelope unchanged, including its codec and schema version.
pub async fn cmp_1_codec_and_schema_are_kept(s: &Subject) {
    for (codec, schema) in [(CodecId::NONE, 0), (CodecId::JSON, 7), (CodecId(65_535), 65_535)] {
        let payload = Payload::new(codec, schema, b"{}");
        let holder = store(s, &format!("{codec:?}"), payload.envelope().clone()).await;
        match is_complete(holder.peek().await).open(None) {
            Ok(Opened::Value(back)) => assert_eq!(back, payload),
            other => panic!("expected a value, got {other:?}"),
        }
    }
}

/// A result expires by its completion's ttl, counted from the completion. The acquire's ttl does
/// not matter.
pub async fn cmp_6_ttl_runs_from_completion(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).with_ttl(s.short());
    granted(holder.acquire(LONG).await);
    s.pass(2 * s.short()).await;
    let kept = Completion::new(envelope(b"kept"), LONG, None);
    assert_eq!(holder.complete_with(&kept).await, FencedWrite::Applied);
    if s.is_exact() {
        s.pass(LONG - MS).await;
        assert_eq!(body(&completed(s.caller(&id).acquire(LONG).await)), b"kept");
        s.pass(MS).await;
        is_absent(s.caller(&id).peek().await);
        granted(s.caller(&id).acquire(LONG).await);
    } else {
        s.pass(2 * s.short()).await;
        assert_eq!(body(&completed(s.caller(&id).acquire(LONG).await)), b"kept");
        lasts_from_completion(s).await;
    }
}

/// On a running clock, a result exists for at least its ttl after its completion was sent, even if
/// its acquire was long before.
async fn lasts_from_completion(s: &Subject) {
    let (id, ttl) = (s.id("brief"), s.kept(300 * MS));
    let holder = s.caller(&id).with_ttl(ttl);
    granted(holder.acquire(LONG).await);
    s.pass(200 * MS).await;
    let sent = Instant::now();
    assert_eq!(holder.complete(b"brief").await, FencedWrite::Applied);
    while !matches!(holder.peek().await, Peeked::Absent) {
        tokio::time::sleep(5 * MS).await;
    }
    // The tolerance allows for a store with a coarse clock.
    assert!(
        sent.elapsed() + 5 * MS >= ttl,
        "a result with the ttl {ttl:?} was gone {:?} after its completion was sent",
        sent.elapsed()
    );
}

/// Every call treats a result past its ttl as absent, even before a purge deletes it.
pub async fn cmp_6_a_result_past_its_ttl_counts_as_absent(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).with_ttl(s.short());
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"old").await, FencedWrite::Applied);
    s.expire(&id, s.short()).await;
    is_absent(holder.peek().await);
    let next = s.caller(&id);
    assert!(!granted(next.acquire(LONG).await).took_over);
    busy(s.caller(&id).acquire(LONG).await);
    assert_eq!(
        holder.complete(b"old").await,
        FencedWrite::NotOwner,
        "the old owner should have no record"
    );
    assert_eq!(next.complete(b"new").await, FencedWrite::Applied);
    assert_eq!(body(&completed(s.caller(&id).acquire(LONG).await)), b"new");
}

/// After the ttl, the owner that completed gets no special treatment: its acquire gets a fresh
/// grant.
pub async fn cmp_6_the_completer_past_its_ttl_is_granted_afresh(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).with_ttl(s.short());
    let first = granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"old").await, FencedWrite::Applied);
    s.expire(&id, s.short()).await;
    let second = granted(holder.acquire(LONG).await);
    assert!(
        !second.took_over && second.token > first.token,
        "the grant after the ttl should not be a takeover and should have a larger token; \
         first {first:?}, then {second:?}"
    );
}

/// The shortest ttl is one millisecond, or the shortest that the store can keep.
pub async fn cmp_6_a_ttl_of_one_millisecond(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).with_ttl(MS);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"brief").await, FencedWrite::Applied);
    s.expire(&id, MS).await;
    assert!(!granted(s.caller(&id).acquire(LONG).await).took_over);
}

/// The longest ttl is 3,650 days.
pub async fn cmp_6_a_ttl_of_ten_years(s: &Subject) {
    let id = s.id("k");
    let ttl = (3_650 * DAY).min(s.store_limit());
    let holder = s.caller(&id).with_ttl(ttl);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"kept").await, FencedWrite::Applied);
    assert_eq!(body(&completed(s.caller(&id).acquire(LONG).await)), b"kept");
    if s.is_exact() {
        s.pass(ttl - MS).await;
        assert_eq!(body(&is_complete(holder.peek().await)), b"kept");
        s.pass(MS).await;
        is_absent(holder.peek().await);
    }
}

/// No call by a duplicate, another owner or the owner itself changes a result within its ttl.
pub async fn cmp_6_a_result_never_changes_within_its_ttl(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).with_fingerprint(1);
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"first").await, FencedWrite::Applied);
    let stranger = s.caller(&id).with_fingerprint(2);
    completed(stranger.acquire(LONG).await);
    assert_eq!(stranger.complete(b"stranger").await, FencedWrite::NotOwner);
    assert_eq!(stranger.extend(LONG).await, FencedWrite::NotOwner);
    assert_eq!(stranger.release().await, FencedWrite::NotOwner);
    assert_eq!(holder.complete(b"again").await, FencedWrite::AlreadyApplied);
    assert_eq!(holder.extend(MS).await, FencedWrite::NotOwner);
    assert_eq!(holder.release().await, FencedWrite::NotOwner);
    s.outlast(MS).await;
    let stored = completed(s.caller(&id).acquire(LONG).await);
    assert_eq!(body(&stored), b"first");
    assert_eq!(stored.fingerprint(), Some(&fingerprint(1)));
}

/// A repeated completion does not prolong the ttl.
pub async fn cmp_6_completing_again_prolongs_nothing(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).with_ttl(s.short());
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"first").await, FencedWrite::Applied);
    let again = Completion::new(envelope(b"again"), LONG, None);
    let repeated = holder.complete_with(&again).await;
    // If the subject uses the host's clock, the ttl may already have ended, and a purge may have
    // deleted the record.
    assert!(
        repeated == FencedWrite::AlreadyApplied || !s.is_exact(),
        "the repeated completion should return `AlreadyApplied`, got {repeated:?}"
    );
    s.expire(&id, s.short()).await;
    is_absent(holder.peek().await);
}

/// Bytes that are not an envelope are returned unchanged, and opening them fails with a typed
/// error. Nothing is granted.
pub async fn cmp_8_an_unreadable_envelope_fails_closed(s: &Subject) {
    for (key, foreign) in
        [("text", &b"not an envelope"[..]), ("empty", b""), ("newer", b"RP\x63\0\0\0\0\0")]
    {
        let holder = store(s, key, foreign.to_vec().into()).await;
        for _ in 0..2 {
            let stored = completed(s.caller(&holder.id).acquire(LONG).await);
            let error = stored.open(None).expect_err("an unreadable envelope should fail to open");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }
}

/// A call on a damaged record fails, or returns a result that cannot be opened. The call grants
/// nothing and deletes nothing.
pub async fn cmp_8_a_corrupt_record_fails_closed(s: &Subject) {
    let unreadable = |stored: &StoredResult| match stored.open(None) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
        Ok(other) => panic!("opening a damaged record returned {other:?}"),
    };
    let holder = store(s, "k", envelope(b"whole")).await;
    s.corrupt(&holder.id)
        .await
        .expect("the store under test should offer a way to damage a record");
    for _ in 0..3 {
        match holder.store.peek(&holder.id).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            Ok(Peeked::Complete(stored)) => unreadable(&stored),
            Ok(other) => panic!("a peek at a damaged record returned {other:?}"),
        }
        let stranger = s.caller(&holder.id);
        match holder.store.acquire(&holder.id, &stranger.request(LONG)).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            Ok(Acquired::Complete(stored)) => unreadable(&stored),
            Ok(other) => panic!("an acquire of a damaged record returned {other:?}"),
        }
    }
}

/// A tombstone ("done, but not replayable") is kept like a value.
pub async fn cmp_9_a_tombstone_comes_back_as_one(s: &Subject) {
    for detail in [&b""[..], b"201 /orders/1"] {
        let tombstone = Tombstone::with_detail(CodecId::BYTES, 1, detail);
        let holder =
            store(s, &format!("{} bytes", detail.len()), tombstone.envelope().clone()).await;
        match completed(s.caller(&holder.id).acquire(LONG).await).open(None) {
            Ok(Opened::Tombstone(back)) => assert_eq!(back, tombstone),
            other => panic!("expected a tombstone, got {other:?}"),
        }
    }
}

/// A value over the store's declared limit is refused with a typed error and changes nothing. A
/// value at the limit fits.
pub async fn cmp_9_a_value_over_the_limit_is_refused(s: &Subject) {
    let limit = s.store().profile().max_value;
    let holder = s.caller(&s.id("over"));
    granted(holder.acquire(LONG).await);
    let over = Completion::new(vec![7; limit + 1].into(), DAY, None);
    let error = holder
        .store
        .complete(&holder.id, holder.owner, &over)
        .await
        .expect_err("a value over the limit should be refused");
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    busy(s.caller(&holder.id).acquire(LONG).await);
    let tombstone = Completion::new(Tombstone::new().envelope().clone(), DAY, None);
    assert_eq!(
        holder.complete_with(&tombstone).await,
        FencedWrite::Applied,
        "after a value is refused as too large, the store should accept a tombstone instead"
    );

    let holder = s.caller(&s.id("at"));
    granted(holder.acquire(LONG).await);
    let at = Completion::new(vec![7; limit].into(), DAY, None);
    assert_eq!(
        holder.complete_with(&at).await,
        FencedWrite::Applied,
        "a value of {limit} bytes should fit"
    );
}

/// If small and large results follow each other under one key, nothing of an old result is left in
/// the next one.
pub async fn cmp_6_a_new_result_has_nothing_of_the_old_one(s: &Subject) {
    let id = s.id("k");
    let (long, longer) = (s.largest_body(5_000), s.largest_body(70_000));
    let ones = vec![1; long as usize];
    let threes = vec![3; longer as usize];
    for content in [ones, vec![2; 3], vec![], threes, b"end".to_vec()] {
        let holder = s.caller(&id).with_ttl(10 * MS);
        granted(holder.acquire(LONG).await);
        assert_eq!(holder.complete(&content).await, FencedWrite::Applied);
        if s.is_exact() {
            assert!(body(&is_complete(holder.peek().await)) == content);
        }
        s.expire(&id, 10 * MS).await;
    }
    let last = s.caller(&id);
    granted(last.acquire(LONG).await);
    assert_eq!(last.complete(b"last").await, FencedWrite::Applied);
    assert_eq!(body(&is_complete(last.peek().await)), b"last");
}

impl Subject {
    /// Returns `wished`, or the length of the longest body that the store accepts if that is
    /// shorter.
    fn largest_body(&self, wished: u32) -> u32 {
        let body = self.store().profile().max_value.saturating_sub(envelope(b"").len());
        u32::try_from(body).unwrap_or(u32::MAX).min(wished)
    }
}
