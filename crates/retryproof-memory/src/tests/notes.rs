// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests how many bytes notes and takeovers take, and a completion that races repeated acquires.

use retryproof_core::store::HolderNote;

use super::*;

fn noted(request: AcquireRequest, label: &str) -> AcquireRequest {
    let note = HolderNote::new(request.owner, request.lease, None, label);
    request.with_holder(Some(note))
}

fn stats(store: &MemoryStore) -> StoreStats {
    ready(store.stats()).unwrap()
}

/// Returns the size of one record in bytes, first in progress and then complete. The record has a
/// note if `label` is `Some`, and was taken over if `taken_over` is `true`.
fn sizes(label: Option<&str>, taken_over: bool) -> (u64, u64) {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    if taken_over {
        grant(&store, &id(1), &request(SECOND, HOUR));
        clock.advance(2 * SECOND);
    }
    let mut req = request(HOUR, HOUR);
    if let Some(label) = label {
        req = noted(req, label);
    }
    assert_eq!(grant(&store, &id(1), &req).took_over, taken_over);
    let in_progress = stats(&store).bytes;
    let done = completion(b"value", HOUR);
    assert_eq!(ready(store.complete(&id(1), req.owner, &done)).unwrap(), FencedWrite::Applied);
    (in_progress, stats(&store).bytes)
}

#[test]
fn rec_2_only_records_with_a_note_or_a_takeover_pay_for_them() {
    let plain = sizes(None, false);
    let (short, long) = (sizes(Some("h"), false), sizes(Some("hosts-7"), false));
    assert!(short.0 > plain.0 && short.1 > plain.1);
    // A record in progress always reserves space for the longest note, so a longer label adds no
    // bytes until the record is complete.
    assert_eq!((long.0 - short.0, long.1 - short.1), (0, 6));
    // The note takes 11 bytes. The note's length and the number of takeovers take 3 bytes together.
    assert_eq!(short.1 - plain.1, 14);
    assert_eq!(sizes(None, true).1 - plain.1, 3);
    assert_eq!(sizes(Some("h"), true), short);
}

/// However a record ends, the bytes of its note are freed.
#[test]
fn rec_2_the_bytes_of_notes_are_given_back() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    for round in 0..3 {
        for n in 0..40 {
            let (first, other) = (request(SECOND, SECOND), request(HOUR, SECOND));
            grant(&store, &id(n), &noted(first.clone(), "the first"));
            // The same owner acquires again, first with a longer note and then without a note.
            grant(&store, &id(n), &noted(first.clone(), "the first, with a longer label"));
            grant(&store, &id(n), &first);
            let mut owner = first.owner;
            if n % 2 == 0 {
                clock.advance(2 * SECOND);
                assert!(grant(&store, &id(n), &noted(other.clone(), "taker")).took_over);
                owner = other.owner;
            }
            match n % 5 {
                0 => {
                    let released = ready(store.release(&id(n), owner)).unwrap();
                    assert_eq!(released, FencedWrite::Applied);
                }
                1 | 2 => {
                    let done = completion(b"value", SECOND);
                    let fenced = ready(store.complete(&id(n), owner, &done)).unwrap();
                    assert_eq!(fenced, FencedWrite::Applied);
                }
                3 => {
                    let refused =
                        ready(store.complete(&id(n), OwnerId::new(), &completion(b"", HOUR)));
                    assert_eq!(refused.unwrap(), FencedWrite::NotOwner);
                }
                _ => {}
            }
        }
        // After two hours, all results have expired. Granting some of the keys again replaces the
        // old records.
        clock.advance(2 * HOUR);
        for n in 0..20 {
            grant(&store, &id(n), &noted(request(SECOND, SECOND), "again"));
        }
        clock.advance(2 * HOUR);
        ready(store.purge(1_000)).unwrap();
        assert_eq!(stats(&store), StoreStats::new(0, 0, 0), "round {round}");
    }
}

#[test]
fn rec_2_takeovers_stop_at_32767() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    for _ in 0..32_770 {
        grant(&store, &id(1), &request(SECOND, HOUR));
        clock.advance(2 * SECOND);
    }
    let seen = ready(store.get(&id(1))).unwrap().unwrap();
    assert_eq!(seen.takeovers, Some(32_767));
}

/// An owner completes on one thread, and repeats its acquire with other notes on another thread.
/// The completion is applied, and the result has one of the notes.
#[test]
fn rec_2_a_completion_beside_repeated_acquires_keeps_one_of_the_notes() {
    let store = MemoryStore::new();
    for round in 0..200 {
        let req = noted(request(HOUR, HOUR), "note 0");
        grant(&store, &id(round), &req);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..50 {
                    let again = noted(req.clone(), &format!("note {n}"));
                    if let Ok(Acquired::Complete(_)) = ready(store.acquire(&id(round), &again)) {
                        return;
                    }
                }
            });
            let done = completion(&[7; 300], HOUR);
            let fenced = ready(store.complete(&id(round), req.owner, &done)).unwrap();
            assert_eq!(fenced, FencedWrite::Applied);
        });
        let Ok(Peeked::Complete(result)) = ready(store.peek(&id(round))) else {
            panic!("the record is complete")
        };
        assert_eq!(bytes(&result), [7; 300]);
        let label = result.holder().and_then(HolderNote::label).unwrap();
        assert!(label.starts_with("note "), "{label}");
    }
}
