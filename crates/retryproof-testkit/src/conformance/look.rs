// SPDX-License-Identifier: MIT OR Apache-2.0
//! A peek returns the state of the record, grants nothing and writes nothing.

use retryproof_core::IdempotencyStore as _;
use retryproof_core::store::FencedWrite;

use super::caller::{LONG, body, busy, completed, granted, is_absent, is_busy, is_complete};
use crate::subject::Subject;

/// A peek returns absent, busy or complete. A record past its lease or its ttl counts as absent.
pub async fn acq_8_look_tells_where_the_record_stands(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    is_absent(holder.peek().await);
    let token = granted(holder.acquire(LONG).await).token;
    let (remaining, seen) = is_busy(holder.peek().await);
    assert!(
        seen == token && remaining <= LONG && remaining > LONG / 2,
        "a peek should show the token {token} and the requested lease, but shows {seen} and \
         {remaining:?} left"
    );
    assert_eq!(holder.extend(s.short()).await, FencedWrite::Applied);
    s.expire(&id, s.short()).await;
    is_absent(holder.peek().await);
    // Use the short ttl only for the completion. With a short ttl in the acquire, the store could
    // delete the expired lease (STO-4), and the owner could no longer complete.
    let holder = holder.with_ttl(s.short());
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    if s.is_exact() {
        assert_eq!(body(&is_complete(holder.peek().await)), b"done");
    }
    s.expire(&id, s.short()).await;
    is_absent(holder.peek().await);
}

/// Peeks change nothing, whether the record is absent, expired or held.
pub async fn acq_8_look_grants_nothing(s: &Subject) {
    let id = s.id("k");
    for _ in 0..5 {
        is_absent(s.caller(&id).peek().await);
    }
    assert_eq!(s.caller(&id).release().await, FencedWrite::AlreadyApplied);
    let holder = s.caller(&id);
    let token = granted(holder.acquire(s.short()).await).token;
    s.expire(&id, s.short()).await;
    for _ in 0..5 {
        is_absent(s.caller(&id).peek().await);
    }
    assert_eq!(
        holder.extend(LONG).await,
        FencedWrite::Applied,
        "a holder whose lease has expired should still be able to extend it after a peek"
    );
    for _ in 0..5 {
        assert_eq!(is_busy(s.caller(&id).peek().await).1, token);
    }
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
}

/// Peeks, busy answers and replays write nothing. The case runs only if the subject offers a number
/// that changes with each write.
pub async fn acq_8_look_and_replay_write_nothing(s: &Subject) {
    let (absent, held, done) = (s.id("absent"), s.id("held"), s.id("done"));
    let first = s.writes().await.expect("the store under test should offer a count of its writes");
    let holder = s.caller(&held);
    granted(holder.acquire(LONG).await);
    let completer = s.caller(&done);
    granted(completer.acquire(LONG).await);
    assert_eq!(completer.complete(b"done").await, FencedWrite::Applied);
    let stats = s.store().stats().await.expect("the stats should be readable");
    let writes = s.writes().await.expect("the store under test should offer a count of its writes");
    assert_ne!(writes, first, "the count of writes should change with each write");
    for _ in 0..20 {
        is_absent(s.caller(&absent).peek().await);
        is_busy(s.caller(&held).peek().await);
        is_complete(s.caller(&done).peek().await);
        busy(s.caller(&held).acquire(LONG).await);
        completed(s.caller(&done).acquire(LONG).await);
    }
    assert_eq!(s.writes().await, Some(writes), "peeks and replays should write nothing");
    assert_eq!(s.store().stats().await.expect("the stats should be readable"), stats);
}

/// Without contention, no call costs more round trips than the store's profile says. The first
/// rounds are not counted, because they open connections and prepare statements.
pub async fn acq_8_no_call_costs_more_round_trips_than_declared(s: &Subject) {
    const WARM: u32 = 4;
    let most = u64::from(s.store().profile().max_round_trips);
    let count = || s.round_trips().expect("the store under test should count its round trips");
    for round in 0..WARM + 3 {
        let mut seen = count();
        let mut costs = |call: &str| {
            let (before, now) = (seen, count());
            seen = now;
            let trips = now - before;
            assert!(
                round < WARM || trips <= most,
                "the call ({call}) took {trips} round trips, but the profile declares {most}"
            );
        };
        let (done, gone) = (s.id(&format!("done{round}")), s.id(&format!("gone{round}")));
        let holder = s.caller(&done);
        granted(holder.acquire(LONG).await);
        costs("acquire");
        busy(s.caller(&done).acquire(LONG).await);
        costs("acquire of a held key");
        is_busy(holder.peek().await);
        costs("peek");
        assert_eq!(holder.extend(LONG).await, FencedWrite::Applied);
        costs("extend");
        assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
        costs("complete");
        completed(s.caller(&done).acquire(LONG).await);
        costs("replay");
        let holder = s.caller(&gone);
        granted(holder.acquire(LONG).await);
        costs("acquire");
        assert_eq!(holder.release().await, FencedWrite::Applied);
        costs("release");
        granted(s.caller(&gone).acquire(LONG).await);
        costs("acquire of a released key");
    }
}
