// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests what the conformance kit does not check: bounds, reclaiming, many threads, and long random
//! walks compared with a plain map.
//!
//! This file is over 400 lines long because most of its tests use the same few functions.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use retryproof_core::clock::ManualClock;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Force, ForceRequest, Forced, Grant,
    HolderNote, Inspect, LiveLease, Peeked, Purge, StoreStats,
};
use retryproof_core::{
    Blob, CodecId, ErrorKind, FencingToken, IdempotencyStore, Identity, Opened, OwnerId, Payload,
    Result, StoredResult,
};

use crate::MemoryStore;

mod notes;
mod operate;
mod walk;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Returns the output of a future that is ready at once.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store should not wait here"),
    }
}

fn id(n: usize) -> Identity {
    Identity::of("memory.tests", format!("key {n}")).unwrap()
}

fn request(lease: Duration, ttl: Duration) -> AcquireRequest {
    AcquireRequest::new(OwnerId::new(), lease, ttl)
}

fn completion(value: &[u8], ttl: Duration) -> Completion {
    Completion::new(envelope(value), ttl, None)
}

fn grant(store: &MemoryStore, id: &Identity, req: &AcquireRequest) -> Grant {
    match ready(store.acquire(id, req)) {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("no grant but {other:?}"),
    }
}

fn envelope(value: &[u8]) -> Blob {
    Payload::new(CodecId::BYTES, 0, value).envelope().clone()
}

fn bytes(result: &StoredResult) -> Vec<u8> {
    match result.open(None) {
        Ok(Opened::Value(payload)) => payload.body().to_vec(),
        other => panic!("no value but {other:?}"),
    }
}

fn finish(store: &MemoryStore, id: &Identity, value: &[u8], ttl: Duration) {
    let req = request(SECOND, ttl);
    grant(store, id, &req);
    assert_eq!(
        ready(store.complete(id, req.owner, &completion(value, ttl))).unwrap(),
        FencedWrite::Applied
    );
}

fn is_full(answer: &Result<Acquired>) -> bool {
    matches!(answer, Err(error) if error.kind() == ErrorKind::Full)
}

fn small(records: usize) -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new();
    (MemoryStore::builder().max_records(records).clock(Arc::new(clock.clone())).build(), clock)
}

#[test]
fn sto_1_a_full_store_refuses_new_keys_serves_known_ones_and_evicts_nothing() {
    for records in [0, 1, 2, 7, 100, 3_000] {
        let (store, _) = small(records);
        for n in 0..records {
            finish(&store, &id(n), b"value", HOUR);
        }
        for n in records..records + 5 {
            let answer = ready(store.acquire(&id(n), &request(SECOND, HOUR)));
            assert!(is_full(&answer), "{records}: {answer:?}");
        }
        for n in 0..records {
            let answer = ready(store.acquire(&id(n), &request(SECOND, HOUR)));
            assert!(matches!(answer, Ok(Acquired::Complete(result)) if bytes(&result) == b"value"));
        }
        assert_eq!(ready(store.stats()).unwrap().records, records as u64);
    }
}

#[test]
fn sto_1_a_full_store_takes_a_new_key_as_soon_as_a_record_is_gone_or_over() {
    let (store, clock) = small(2);
    let kept = request(HOUR, HOUR);
    grant(&store, &id(0), &kept);
    finish(&store, &id(1), b"", Duration::from_millis(1));
    assert!(is_full(&ready(store.acquire(&id(2), &kept))));
    clock.advance(Duration::from_micros(999));
    assert!(is_full(&ready(store.acquire(&id(2), &kept))));
    clock.advance(Duration::from_micros(1));
    grant(&store, &id(2), &kept);
    assert!(is_full(&ready(store.acquire(&id(3), &kept))));
    assert_eq!(ready(store.release(&id(0), kept.owner)).unwrap(), FencedWrite::Applied);
    grant(&store, &id(3), &kept);
    // This search for capacity fails. A completion with a short ttl then lets the next search start
    // earlier.
    assert!(is_full(&ready(store.acquire(&id(4), &kept))));
    let done = completion(b"", Duration::from_millis(1));
    assert_eq!(ready(store.complete(&id(3), kept.owner, &done)).unwrap(), FencedWrite::Applied);
    assert!(is_full(&ready(store.acquire(&id(4), &kept))));
    clock.advance(Duration::from_millis(1));
    grant(&store, &id(4), &kept);
    // A record whose holder died takes up space until both its lease and its ttl have ended
    // (STO-4).
    let (store, clock) = small(1);
    grant(&store, &id(0), &request(SECOND, 2 * SECOND));
    clock.advance(SECOND);
    assert!(is_full(&ready(store.acquire(&id(1), &kept))));
    clock.advance(SECOND);
    grant(&store, &id(1), &kept);
}

#[test]
fn sto_1_the_bound_on_bytes_refuses_grants_but_never_a_completion() {
    let store = MemoryStore::builder().max_bytes(10_000).build();
    let held: Vec<_> = (0..5).map(|n| (id(n), request(HOUR, HOUR))).collect();
    for (id, req) in &held {
        grant(&store, id, req);
    }
    for (id, req) in &held {
        let done = completion(&[1; 4_000], HOUR);
        assert_eq!(ready(store.complete(id, req.owner, &done)).unwrap(), FencedWrite::Applied);
    }
    assert!(ready(store.stats()).unwrap().bytes > 20_000);
    assert!(is_full(&ready(store.acquire(&id(9), &request(HOUR, HOUR)))));
    for (id, req) in &held {
        let answer = ready(store.acquire(id, req));
        assert!(matches!(answer, Ok(Acquired::Complete(result)) if bytes(&result) == [1; 4_000]));
    }
    assert_eq!(store.profile().max_value, 10_000);
    let req = request(HOUR, HOUR);
    let error =
        ready(store.complete(&id(9), req.owner, &completion(&[0; 10_001], HOUR))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(!format!("{error:?} {error}").contains("key 9"), "ID-4");
}

#[test]
fn cmp_9_a_value_of_exactly_the_limit_is_kept() {
    let done = completion(&[7; 2_000], HOUR);
    let store = MemoryStore::builder().max_bytes(done.value.len() as u64).build();
    let req = request(HOUR, HOUR);
    let token = grant(&store, &id(0), &req).token;
    let resolve = ForceRequest::resolve(&id(0), token, done.clone()).even_if_live();
    assert!(matches!(ready(store.force(&id(0), &resolve)), Ok(Forced::Applied)));
    let forget = ForceRequest::forget(token);
    assert!(matches!(ready(store.force(&id(0), &forget)), Ok(Forced::Applied)));
    grant(&store, &id(0), &req);
    assert_eq!(ready(store.complete(&id(0), req.owner, &done)).unwrap(), FencedWrite::Applied);
}

#[test]
fn sto_1_keys_are_spread_over_the_shards() {
    let store = MemoryStore::new();
    for n in 0..2_000 {
        grant(&store, &id(n), &request(HOUR, HOUR));
    }
    let used = store.shards.iter().filter(|shard| shard.0.lock().counts().0 > 0).count();
    assert!(used > store.shards.len() / 2, "{used} of {} shards", store.shards.len());
}

#[test]
fn acq_9_acq_12_a_repeated_first_acquire_with_a_note_is_no_takeover() {
    let store = MemoryStore::new();
    let req = request(HOUR, HOUR);
    let note = HolderNote::new(req.owner, HOUR, None, "host:1");
    let req = req.with_holder(Some(note));
    let first = grant(&store, &id(0), &req);
    let again = grant(&store, &id(0), &req);
    assert_eq!((again.token, again.took_over), (first.token, false));
}

#[test]
fn sto_1_a_store_that_has_been_full_and_emptied_takes_as_many_again() {
    let (store, clock) = small(2_000);
    for round in 0..3 {
        for n in 0..2_000 {
            finish(&store, &id(n + round), &[0; 10], SECOND);
        }
        assert!(is_full(&ready(store.acquire(&id(5_000), &request(SECOND, HOUR)))));
        clock.advance(SECOND);
    }
    assert_eq!(ready(store.purge(usize::MAX)).unwrap(), 2_000);
    assert_eq!(ready(store.stats()).unwrap(), StoreStats::default());
}

#[test]
fn sto_4_purge_takes_what_is_over_to_the_nanosecond_and_nothing_else() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    let count = 1_500;
    for n in 0..count {
        finish(&store, &id(n), b"v", SECOND + Duration::from_nanos(n as u64 % 3));
    }
    grant(&store, &id(count), &request(2 * SECOND, SECOND));
    grant(&store, &id(count + 1), &request(SECOND, 3 * SECOND));
    let purge = |limit| ready(store.purge(limit)).unwrap();
    clock.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(purge(usize::MAX), 0);
    clock.advance(Duration::from_nanos(1));
    assert_eq!((purge(100), purge(300), purge(usize::MAX), purge(usize::MAX)), (100, 300, 100, 0));
    clock.advance(Duration::from_nanos(2));
    assert_eq!(purge(usize::MAX), 1_000);
    clock.advance(SECOND);
    assert_eq!(purge(usize::MAX), 1, "the lease of the first is over now; its ttl ended before");
    let late = request(SECOND, SECOND);
    clock.advance(SECOND);
    assert_eq!(purge(usize::MAX), 1);
    assert!(!grant(&store, &id(count + 1), &late).took_over, "nothing is left to take over");
    assert_eq!(ready(store.stats()).unwrap().records, 1);
}

#[test]
fn sto_4_later_grants_reclaim_what_is_over() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    for n in 0..10_000 {
        finish(&store, &id(n), b"v", SECOND);
    }
    clock.advance(10 * SECOND);
    for n in 10_000..20_000 {
        finish(&store, &id(n), b"v", HOUR);
    }
    let records = ready(store.stats()).unwrap().records;
    assert!(records < 11_000, "{records} of 20,000 records are left");
}

#[test]
fn acq_10_tokens_grow_over_release_takeover_purge_and_a_new_store() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    let mut last = 0;
    let mut check = |token: FencingToken| {
        assert!(token.get() > last, "{token} after {last}");
        last = token.get();
    };
    let id = id(1);
    for round in 0..4 {
        let req = request(SECOND, SECOND);
        let granted = grant(&store, &id, &req);
        check(granted.token);
        assert_eq!(
            grant(&store, &id, &req).token,
            granted.token,
            "the same owner should get the same token (ACQ-9)"
        );
        match round {
            0 => assert_eq!(ready(store.release(&id, req.owner)).unwrap(), FencedWrite::Applied),
            1 => clock.advance(SECOND),
            2 => {
                clock.advance(HOUR);
                assert_eq!(ready(store.purge(10)).unwrap(), 1);
            }
            _ => {}
        }
    }
    check(grant(&MemoryStore::new(), &id, &request(SECOND, SECOND)).token);
}

#[test]
fn acq_2_of_many_threads_at_expiry_one_takes_over() {
    for round in 0..200 {
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(Arc::new(clock.clone()));
        let id = id(round);
        grant(&store, &id, &request(SECOND, HOUR));
        clock.advance(SECOND);
        let winners: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        match ready(store.acquire(&id, &request(SECOND, HOUR))).unwrap() {
                            Acquired::Granted(grant) => usize::from(grant.took_over),
                            Acquired::Busy(LiveLease { remaining, .. }) => {
                                usize::from(remaining > SECOND)
                            }
                            Acquired::Complete(_) => 99,
                        }
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(winners, 1);
    }
}

/// Many threads use a few keys in a small store; no result is lost, changed or duplicated.
#[test]
fn cmp_6_many_threads_on_few_keys_see_one_result_each() {
    let store = MemoryStore::builder().max_records(64).build();
    let runs: Vec<_> = (0..64).map(|_| std::sync::atomic::AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (store, runs) = (&store, &runs);
            scope.spawn(move || {
                for step in 0..20_000_usize {
                    let n = (step * 7 + thread * 13) % 64;
                    let req = request(HOUR, HOUR);
                    match ready(store.acquire(&id(n), &req)).unwrap() {
                        Acquired::Granted(_) if step % 3 == 0 => {
                            assert_eq!(
                                ready(store.release(&id(n), req.owner)).unwrap(),
                                FencedWrite::Applied
                            );
                        }
                        Acquired::Granted(_) => {
                            runs[n].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                            let done = completion(format!("value of {n}").as_bytes(), HOUR);
                            assert_eq!(
                                ready(store.complete(&id(n), req.owner, &done)).unwrap(),
                                FencedWrite::Applied
                            );
                        }
                        Acquired::Complete(result) => {
                            assert_eq!(bytes(&result), format!("value of {n}").as_bytes())
                        }
                        Acquired::Busy(_) => {}
                    }
                }
            });
        }
    });
    assert!(runs.iter().all(|runs| runs.load(std::sync::atomic::Ordering::Relaxed) == 1));
}

#[test]
fn id_2_odd_identities_do_not_meet() {
    let store = MemoryStore::new();
    let pairs = [
        ("a:b", "c"),
        ("a", "b:c"),
        ("a", "bc"),
        ("ab", "c"),
        ("a", "BC"),
        ("a", "bc "),
        ("a", "\u{e9}"),
        ("a", "e\u{301}"),
    ];
    let ids: Vec<_> = pairs.iter().map(|(scope, key)| Identity::of(*scope, key).unwrap()).collect();
    for (n, id) in ids.iter().enumerate() {
        finish(&store, id, &[u8::try_from(n).unwrap()], HOUR);
    }
    for (n, id) in ids.iter().enumerate() {
        let answer = ready(store.peek(id)).unwrap();
        assert!(
            matches!(answer, Peeked::Complete(result) if bytes(&result) == [u8::try_from(n).unwrap()])
        );
    }
}

#[tokio::test(start_paused = true)]
async fn acq_4_waiters_wake_at_completion_release_takeover_and_lease_end() {
    let clock = ManualClock::new();
    let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
    for ending in ["complete", "release", "take over", "purge"] {
        let (id, req) = (Identity::of("wait", ending).unwrap(), request(10 * SECOND, SECOND));
        let token = grant(&store, &id, &req).token;
        let waiter = tokio::spawn({
            let (store, id) = (Arc::clone(&store), id.clone());
            async move { store.wait_for_change(&id, token, HOUR).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        let before = tokio::time::Instant::now();
        match ending {
            "complete" => {
                let fenced = store.complete(&id, req.owner, &completion(b"", HOUR)).await;
                assert_eq!(fenced.unwrap(), FencedWrite::Applied);
            }
            "release" => {
                assert_eq!(store.release(&id, req.owner).await.unwrap(), FencedWrite::Applied)
            }
            _ => {
                clock.advance(10 * SECOND);
                if ending == "purge" {
                    assert_eq!(store.purge(9).await.unwrap(), 1);
                } else {
                    assert!(grant(&store, &id, &request(SECOND, SECOND)).took_over);
                }
            }
        }
        waiter.await.unwrap().unwrap();
        assert_eq!(before.elapsed(), Duration::ZERO, "{ending}");
        // A call after the change does not wait at all.
        store.wait_for_change(&id, token, HOUR).await.unwrap();
        assert_eq!(before.elapsed(), Duration::ZERO, "{ending}");
        clock.advance(HOUR);
        store.purge(9).await.unwrap();
    }
    let id = Identity::of("wait", "nothing happens").unwrap();
    let token = grant(&store, &id, &request(10 * SECOND, SECOND)).token;
    for (at_most, slept) in
        [(SECOND, SECOND), (HOUR, 10 * SECOND), (Duration::ZERO, Duration::ZERO)]
    {
        let before = tokio::time::Instant::now();
        store.wait_for_change(&id, token, at_most).await.unwrap();
        assert!(
            (slept..slept + Duration::from_millis(2)).contains(&before.elapsed()),
            "{at_most:?}"
        );
    }
}
