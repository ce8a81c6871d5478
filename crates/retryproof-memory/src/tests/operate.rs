// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests what the conformance kit does not check about scans and interventions: cursors, slots,
//! bytes, and the reclaiming of a changed record.

use retryproof_core::store::{RecordState, RecordSummary, ScanCursor, ScanPage};

use super::*;

fn scan(store: &MemoryStore, after: Option<&ScanCursor>, limit: usize) -> ScanPage {
    ready(store.scan(after, limit)).unwrap()
}

fn all(store: &MemoryStore, limit: usize) -> Vec<Identity> {
    let mut found = Vec::new();
    let mut page = scan(store, None, limit);
    loop {
        assert!(page.records.len() <= limit.max(1), "OPS-1: {page:?} for {limit}");
        found.extend(page.records.iter().map(|record| record.id.clone()));
        match page.next {
            Some(next) => page = scan(store, Some(&next), limit),
            None => return found,
        }
    }
}

fn summary(store: &MemoryStore, id: &Identity) -> RecordSummary {
    ready(store.get(id)).unwrap().expect("a record")
}

fn force(store: &MemoryStore, id: &Identity, req: &ForceRequest) -> Forced {
    ready(store.force(id, req)).unwrap()
}

#[track_caller]
fn applied(forced: &Forced) {
    assert!(matches!(forced, Forced::Applied), "{forced:?}");
}

fn complete(store: &MemoryStore, id: &Identity, owner: OwnerId, done: &Completion) {
    assert_eq!(ready(store.complete(id, owner, done)).unwrap(), FencedWrite::Applied);
}

#[test]
fn ops_1_each_record_is_found_once_with_every_limit() {
    let store = MemoryStore::new();
    for n in 0..500 {
        let req = request(HOUR, HOUR);
        grant(&store, &id(n), &req);
        match n % 3 {
            0 => complete(&store, &id(n), req.owner, &completion(b"done", HOUR)),
            // The release leaves a free slot between the slots in use.
            1 => assert_eq!(ready(store.release(&id(n), req.owner)).unwrap(), FencedWrite::Applied),
            _ => {}
        }
    }
    for limit in [0, 1, 7, 256, 10_000, usize::MAX] {
        let found = all(&store, limit);
        let distinct: std::collections::HashSet<_> = found.iter().cloned().collect();
        assert_eq!((found.len(), distinct.len()), (333, 333), "limit {limit}");
        assert!(distinct.contains(&id(0)) && !distinct.contains(&id(1)), "limit {limit}");
    }
}

#[test]
fn ops_1_a_cursor_of_another_store_is_invalid_and_one_past_the_end_ends() {
    let store = MemoryStore::new();
    for bytes in [&b""[..], b"17", b"123456789"] {
        let error = ready(store.scan(Some(&ScanCursor::new(bytes)), 10)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bytes:?}");
    }
    for bytes in [[0xff; 8], [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]] {
        let page = scan(&store, Some(&ScanCursor::new(bytes)), 10);
        assert!(page.records.is_empty() && page.next.is_none(), "{page:?}");
    }
}

#[test]
fn ops_4_interventions_account_for_every_byte() {
    let store = MemoryStore::new();
    let noted = || {
        let req = request(HOUR, HOUR);
        let note = HolderNote::new(req.owner, HOUR, None, "host:1");
        req.with_holder(Some(note))
    };
    let empty = ready(store.stats()).unwrap();

    let req = noted();
    let token = grant(&store, &id(0), &req).token;
    applied(&force(&store, &id(0), &ForceRequest::release(token).even_if_live()));
    assert_eq!(ready(store.stats()).unwrap(), empty, "after a release");

    let token = grant(&store, &id(1), &noted()).token;
    let resolve =
        ForceRequest::resolve(&id(1), token, completion(&[7; 10_000], HOUR)).even_if_live();
    applied(&force(&store, &id(1), &resolve));
    let large = ready(store.stats()).unwrap();
    assert_eq!((large.records, large.in_progress), (1, 0));
    applied(&force(&store, &id(1), &ForceRequest::erase(token)));
    let small = ready(store.stats()).unwrap();
    assert_eq!(large.bytes - small.bytes, 10_000, "an erased value frees its bytes");
    applied(&force(&store, &id(1), &ForceRequest::forget(token)));
    assert_eq!(ready(store.stats()).unwrap(), empty, "after a forget");
}

#[test]
fn ops_4_takeovers_and_notes_survive_where_they_belong_to_the_record() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    grant(&store, &id(0), &request(SECOND, HOUR));
    clock.advance(SECOND);
    let req = request(SECOND, HOUR);
    let note = HolderNote::new(req.owner, SECOND, None, "host:1");
    let req = req.with_holder(Some(note.clone()));
    let token = grant(&store, &id(0), &req).token;
    complete(&store, &id(0), req.owner, &completion(b"canary", HOUR));
    applied(&force(&store, &id(0), &ForceRequest::erase(token)));
    let seen = summary(&store, &id(0));
    assert_eq!((seen.state, seen.takeovers), (RecordState::Complete, Some(1)));
    assert_eq!(seen.holder, Some(note));
    assert_eq!((seen.token, seen.remaining), (token, Some(HOUR)));

    grant(&store, &id(1), &request(SECOND, HOUR));
    clock.advance(SECOND);
    let token = grant(&store, &id(1), &request(SECOND, HOUR)).token;
    clock.advance(SECOND);
    let resolve = ForceRequest::resolve(&id(1), token, completion(b"forced", HOUR));
    applied(&force(&store, &id(1), &resolve));
    let seen = summary(&store, &id(1));
    assert_eq!((seen.takeovers, seen.holder, seen.token), (Some(1), None, token));
    assert_eq!(seen.remaining, Some(HOUR));
}

#[test]
fn ops_4_a_resolved_or_erased_record_is_purged_after_its_ttl() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    let token = grant(&store, &id(0), &request(HOUR, SECOND)).token;
    let resolve =
        ForceRequest::resolve(&id(0), token, completion(b"forced", 2 * SECOND)).even_if_live();
    applied(&force(&store, &id(0), &resolve));
    applied(&force(&store, &id(0), &ForceRequest::erase(token)));
    clock.advance(SECOND);
    assert_eq!(ready(store.purge(10)).unwrap(), 0);
    clock.advance(SECOND);
    assert_eq!(ready(store.purge(10)).unwrap(), 1);
    assert!(ready(store.get(&id(0))).unwrap().is_none());
}

#[test]
fn cmp_9_a_resolve_that_is_too_large_changes_nothing() {
    let store = MemoryStore::builder().max_bytes(1_000).build();
    let req = request(HOUR, HOUR);
    let token = grant(&store, &id(0), &req).token;
    let resolve =
        ForceRequest::resolve(&id(0), token, completion(&[7; 2_000], HOUR)).even_if_live();
    let error = ready(store.force(&id(0), &resolve)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.to_string().contains("force"), "{error}");
    complete(&store, &id(0), req.owner, &completion(b"done", HOUR));
}

#[test]
fn ops_4_forgotten_records_leave_no_memory_behind() {
    let (store, clock) = small(10_000);
    for round in 0..50_000 {
        finish(&store, &id(round), b"kept", 24 * HOUR);
        let token = summary(&store, &id(round)).token;
        applied(&force(&store, &id(round), &ForceRequest::forget(token)));
        // The next record expires soon. It can reuse the slot of the forgotten record, whose ttl
        // was longer.
        finish(&store, &id(1_000_000 + round), b"brief", SECOND);
        if round % 100 == 0 {
            clock.advance(SECOND);
        }
    }
    let slots: u32 = store.shards.iter().map(|shard| shard.0.lock().table.slots.len()).sum();
    assert!(slots < 5_000, "{slots} slots");
    clock.advance(3 * SECOND);
    ready(store.purge(usize::MAX)).unwrap();
    let left = ready(store.stats()).unwrap();
    assert_eq!(left, StoreStats::default(), "a purge frees every record that is over");
}

#[test]
fn ops_4_a_forgotten_record_does_not_delay_the_purge_of_its_neighbours() {
    let (store, clock) = small(10_000);
    for n in 0..5_000 {
        finish(&store, &id(n), b"", if n % 10 == 0 { HOUR } else { 24 * HOUR });
    }
    for n in (0..5_000).filter(|n| n % 10 != 0) {
        let token = summary(&store, &id(n)).token;
        applied(&force(&store, &id(n), &ForceRequest::forget(token)));
    }
    assert_eq!(ready(store.purge(usize::MAX)).unwrap(), 0);
    assert_eq!(ready(store.stats()).unwrap().records, 500);
    clock.advance(HOUR);
    assert_eq!(ready(store.purge(usize::MAX)).unwrap(), 500);
}
