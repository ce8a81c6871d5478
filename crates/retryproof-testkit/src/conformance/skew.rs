// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store's clock alone decides what has expired. The clients' clocks never matter.

use std::time::Duration;

use retryproof_core::store::FencedWrite;

use super::caller::{LONG, MS, body, busy, completed, granted, is_absent, is_busy};
use crate::subject::Subject;

const HOUR: Duration = Duration::from_secs(3_600);

/// If hours pass only on the client's clock, no lease and no result ends.
pub async fn acq_7_hours_on_the_clients_clock_end_nothing(s: &Subject) {
    let (held, done) = (s.id("held"), s.id("done"));
    let holder = s.caller(&held);
    let token = granted(holder.acquire(MS * 10).await).token;
    let completer = s.caller(&done).with_ttl(MS);
    granted(completer.acquire(LONG).await);
    assert_eq!(completer.complete(b"done").await, FencedWrite::Applied);
    s.skew(5 * HOUR).await;
    assert_eq!(is_busy(holder.peek().await), (MS * 10, token));
    assert_eq!(busy(s.caller(&held).acquire(LONG).await), (MS * 10, token));
    assert_eq!(body(&completed(s.caller(&done).acquire(LONG).await)), b"done");
    if s.store().can_purge() {
        s.purge_all().await;
        is_busy(holder.peek().await);
        completed(s.caller(&done).acquire(LONG).await);
    }
}

/// Leases and results end by the store's clock, even while the client's clock stands still.
pub async fn acq_7_the_stores_clock_ends_them(s: &Subject) {
    let (held, done) = (s.id("held"), s.id("done"));
    granted(s.caller(&held).acquire(HOUR).await);
    let completer = s.caller(&done).with_ttl(HOUR);
    granted(completer.acquire(LONG).await);
    assert_eq!(completer.complete(b"done").await, FencedWrite::Applied);
    s.pass_in_store(HOUR - MS);
    busy(s.caller(&held).acquire(LONG).await);
    completed(s.caller(&done).acquire(LONG).await);
    s.pass_in_store(MS);
    is_absent(s.caller(&done).peek().await);
    assert!(granted(s.caller(&held).acquire(LONG).await).took_over);
    assert!(!granted(s.caller(&done).acquire(LONG).await).took_over);
}
