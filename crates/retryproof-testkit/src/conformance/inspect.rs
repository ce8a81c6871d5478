// SPDX-License-Identifier: MIT OR Apache-2.0
//! An operator sees the state of each record, expired or not, but not its value.

use retryproof_core::Identity;
use retryproof_core::store::{FencedWrite, RecordState, RecordSummary};

use super::caller::{DAY, LONG, envelope, granted};
use crate::subject::Subject;

impl Subject {
    async fn summary(&self, id: &Identity) -> Option<RecordSummary> {
        self.store().get(id).await.expect("the inspection should succeed")
    }
}

/// An operator sees whether a record is in progress, dead or complete. The summary also shows the
/// record's token, remaining time and size, and whether it has a fingerprint.
pub async fn sto_2_an_operator_sees_where_a_record_stands(s: &Subject) {
    let id = s.id("k");
    assert!(s.summary(&id).await.is_none());
    let holder = s.caller(&id).with_fingerprint(1);
    let token = granted(holder.acquire(LONG).await).token;
    let seen = s.summary(&id).await.expect("the record should exist");
    assert_eq!((seen.state, seen.token, seen.value_bytes), (RecordState::InProgress, token, 0));
    assert!(seen.has_fingerprint);
    let left = seen.remaining.expect("the record should have time left");
    assert!(
        left <= LONG && left > LONG / 2,
        "the lease should be as long as requested, but has {left:?} left"
    );

    assert_eq!(holder.extend(s.short()).await, FencedWrite::Applied);
    s.expire(&id, s.short()).await;
    let seen = s.summary(&id).await.expect("a dead lease should still be visible");
    assert_eq!((seen.state, seen.token, seen.remaining), (RecordState::InProgress, token, None));

    assert_eq!(holder.complete(b"a value").await, FencedWrite::Applied);
    let seen = s.summary(&id).await.expect("the record should exist");
    assert_eq!((seen.state, seen.token), (RecordState::Complete, token));
    assert_eq!(seen.value_bytes, envelope(b"a value").len());
    assert!(seen.has_fingerprint);
    let left = seen.remaining.expect("the record should have time left");
    assert!(
        left <= DAY && left > DAY / 2,
        "the result should be kept for the requested ttl, but has {left:?} left"
    );
}

/// The summary of a record whose lease or ttl is over shows the time since its end, if the store
/// can determine it. The summary of a live record shows none.
pub async fn sto_2_an_operator_sees_when_a_record_ended(s: &Subject) {
    let (held, done) = (s.id("held"), s.id("done"));
    let holder = s.caller(&held);
    granted(holder.acquire(LONG).await);
    let seen = s.summary(&held).await.expect("the record should exist");
    assert_eq!(seen.ended_ago, None, "a live lease has not ended");
    assert_eq!(holder.extend(s.short()).await, FencedWrite::Applied);
    s.expire(&held, s.short()).await;
    let first = s.summary(&held).await.expect("a dead lease should still be visible");
    s.expire(&held, s.short()).await;
    let second = s.summary(&held).await.expect("a dead lease should still be visible");
    if let (Some(first), Some(second)) = (first.ended_ago, second.ended_ago) {
        assert!(
            first + s.short() <= second && second < LONG,
            "{:?} later, the end should be as much longer ago: {first:?}, then {second:?}",
            s.short()
        );
    }

    let completer = s.caller(&done).with_ttl(s.short());
    granted(completer.acquire(LONG).await);
    assert_eq!(completer.complete(b"done").await, FencedWrite::Applied);
    s.expire(&done, s.short()).await;
    // A store may delete a record as soon as its ttl is over.
    if let Some(seen) = s.summary(&done).await {
        assert_eq!(seen.remaining, None, "the ttl is over");
        let ago = seen.ended_ago.unwrap_or_default();
        assert!(ago < LONG, "the ttl should have ended a moment ago, and not {ago:?} ago");
    }
}

/// One count covers all records, and another covers those in progress. Other subjects may share the
/// store, so the case checks only that the counts are not too low.
pub async fn sto_2_an_operator_counts_the_records(s: &Subject) {
    for at in 0..6 {
        let holder = s.caller(&s.id(&format!("k{at}")));
        granted(holder.acquire(LONG).await);
        if at < 2 {
            assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
        }
    }
    let stats = s
        .store()
        .stats()
        .await
        .expect("the stats should be readable")
        .expect("the store should support inspection");
    assert!(
        stats.records >= 6 && stats.in_progress >= 4,
        "the store should count at least 6 records, 4 of them in progress: {stats:?}"
    );
    assert!(
        stats.in_progress + 2 <= stats.records,
        "the 2 complete records should not be counted as in progress: {stats:?}"
    );
}
