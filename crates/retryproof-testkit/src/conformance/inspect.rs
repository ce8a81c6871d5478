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
