// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store's clock alone decides what has expired. The clients' clocks never matter.

use std::time::Duration;

use retryproof_core::store::FencedWrite;

use super::caller::{LONG, MS, body, busy, completed, granted, is_absent, is_busy};
use crate::subject::Subject;

const HOUR: Duration = Duration::from_secs(3_600);

/// If hours pass only on the client's clock, no lease and no result expires.
pub async fn acq_7_hours_on_the_clients_clock_end_nothing(s: &Subject) {
    let (held, done) = (s.id("held"), s.id("done"));
    let holder = s.caller(&held);
    let token = granted(holder.acquire(LONG).await).token;
    let completer = s.caller(&done).with_ttl(LONG);
    granted(completer.acquire(LONG).await);
    assert_eq!(completer.complete(b"done").await, FencedWrite::Applied);
    s.skew(5 * HOUR).await;
    let seen = is_busy(holder.peek().await);
    let met = busy(s.caller(&held).acquire(LONG).await);
    assert_eq!((seen.1, met.1), (token, token));
    if s.is_exact() {
        assert_eq!((seen.0, met.0), (LONG, LONG));
    }
    assert_eq!(body(&completed(s.caller(&done).acquire(LONG).await)), b"done");
    if s.store().can_purge() {
        s.purge_all().await;
        is_busy(holder.peek().await);
        completed(s.caller(&done).acquire(LONG).await);
    }
}

/// Leases and results expire by the store's clock, even while the client's clock stands still.
pub async fn acq_7_the_stores_clock_ends_them(s: &Subject) {
    let (held, done) = (s.id("held"), s.id("done"));
    let length = s.kept(if s.is_exact() { HOUR } else { 300 * MS });
    granted(s.caller(&held).acquire(length).await);
    let completer = s.caller(&done).with_ttl(length);
    granted(completer.acquire(LONG).await);
    assert_eq!(completer.complete(b"done").await, FencedWrite::Applied);
    if s.is_exact() {
        s.pass_in_store_alone(length - MS);
        busy(s.caller(&held).acquire(LONG).await);
        completed(s.caller(&done).acquire(LONG).await);
        s.pass_in_store_alone(MS);
    } else {
        s.pass_in_store_alone(length + MS);
    }
    is_absent(s.caller(&done).peek().await);
    assert!(granted(s.caller(&held).acquire(LONG).await).took_over);
    assert!(!granted(s.caller(&done).acquire(LONG).await).took_over);
}
