// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each grant of an identity gets a greater fencing token, whatever happened since the previous
//! grant.

use std::sync::Arc;

use parking_lot::Mutex;
use retryproof_core::FencingToken;
use retryproof_core::store::{Acquired, FencedWrite};

use super::caller::{LONG, MS, busy, granted, is_busy};
use crate::subject::Subject;

/// The last token of an identity, to check that each later token is greater.
#[derive(Default)]
struct Order(u64);

impl Order {
    #[track_caller]
    fn next(&mut self, token: FencingToken) {
        assert!(
            token.get() > self.0,
            "the token {token} should be larger than the one before it, {}",
            self.0
        );
        self.0 = token.get();
    }
}

/// Tokens grow across releases, even across many releases within one tick of any clock.
pub async fn acq_10_tokens_grow_over_releases(s: &Subject) {
    let id = s.id("k");
    let mut order = Order::default();
    for _ in 0..100 {
        let holder = s.caller(&id);
        order.next(granted(holder.acquire(LONG).await).token);
        assert_eq!(holder.release().await, FencedWrite::Applied);
    }
}

/// Tokens grow across takeovers.
pub async fn acq_10_tokens_grow_over_takeovers(s: &Subject) {
    let id = s.id("k");
    let mut order = Order::default();
    for _ in 0..8 {
        order.next(granted(s.caller(&id).acquire(10 * MS).await).token);
        s.expire(&id, 10 * MS).await;
    }
}

/// Tokens grow across results whose ttl has ended.
pub async fn acq_10_tokens_grow_over_expired_results(s: &Subject) {
    let id = s.id("k");
    let mut order = Order::default();
    for _ in 0..8 {
        let holder = s.caller(&id).with_ttl(MS);
        order.next(granted(holder.acquire(LONG).await).token);
        assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
        s.expire(&id, MS).await;
    }
}

/// Tokens grow across a purge, even though the purge deletes the whole record.
pub async fn acq_10_tokens_grow_over_purges(s: &Subject) {
    let id = s.id("k");
    let mut order = Order::default();
    for round in 0..6 {
        let holder = s.caller(&id).with_ttl(MS);
        let completes = round % 2 == 0;
        // A lease that will be completed must be long. Otherwise, the lease and the ttl could both
        // end before the completion, and the store could delete the record.
        let lease = if completes { LONG } else { 10 * MS };
        order.next(granted(holder.acquire(lease).await).token);
        if completes {
            assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
        }
        s.expire(&id, 10 * MS).await;
        s.purge_all().await;
    }
}

/// A lease keeps its token when its owner renews it. The next grant gets a greater token.
pub async fn acq_10_a_renewed_lease_keeps_its_place_in_the_order(s: &Subject) {
    let id = s.id("k");
    let mut order = Order::default();
    let holder = s.caller(&id);
    let token = granted(holder.acquire(LONG).await).token;
    order.next(token);
    for _ in 0..20 {
        assert_eq!(granted(holder.acquire(LONG).await).token, token);
        assert_eq!(holder.extend(LONG).await, FencedWrite::Applied);
    }
    assert_eq!(holder.release().await, FencedWrite::Applied);
    order.next(granted(s.caller(&id).acquire(LONG).await).token);
}

/// Busy answers contain the holder's token.
pub async fn acq_10_busy_shows_the_holders_token(s: &Subject) {
    let id = s.id("k");
    for _ in 0..3 {
        let token = granted(s.caller(&id).acquire(10 * MS).await).token;
        let holder_again = s.caller(&id);
        if s.is_exact() {
            assert_eq!(busy(holder_again.acquire(LONG).await).1, token);
            assert_eq!(is_busy(holder_again.peek().await).1, token);
        }
        s.expire(&id, 10 * MS).await;
    }
    let token = granted(s.caller(&id).acquire(LONG).await).token;
    assert_eq!(busy(s.caller(&id).acquire(LONG).await).1, token);
    assert_eq!(is_busy(s.caller(&id).peek().await).1, token);
}

/// Tokens follow the order of the grants while many callers acquire and release concurrently.
pub async fn acq_10_tokens_grow_in_the_order_of_grants(s: &Subject) {
    let id = s.id("k");
    // Each holder notes its token while it holds the key, so the notes are in the order of the
    // grants.
    let notes = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (store, id, notes) = (s.store().clone(), id.clone(), Arc::clone(&notes));
            tokio::spawn(async move {
                for _ in 0..20 {
                    let caller = super::caller::StoreCaller::new(&store, &id);
                    if let Acquired::Granted(grant) = caller.acquire(LONG).await {
                        notes.lock().push(grant.token);
                        assert_eq!(caller.release().await, FencedWrite::Applied);
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("the caller should not panic");
    }
    let mut order = Order::default();
    notes.lock().iter().for_each(|token| order.next(*token));
    assert!(order.0 > 0, "no caller was granted a lease");
}

/// Tokens grow even if the grants come through different handles on the same data, as when
/// processes start and end.
pub async fn acq_10_tokens_grow_over_handles(s: &Subject) {
    let id = s.id("k");
    let mut order = Order::default();
    for _ in 0..4 {
        let other = s
            .another()
            .await
            .expect("the store under test should offer a second handle on its data");
        for caller in [s.caller(&id), s.caller(&id).on(&other)] {
            order.next(granted(caller.acquire(LONG).await).token);
            assert_eq!(caller.release().await, FencedWrite::Applied);
        }
    }
}
