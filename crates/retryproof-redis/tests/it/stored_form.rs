// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stored form: notes about holders (REC-2). The module `headers` tests the fields of the
//! header.

mod headers;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, HolderNote, Inspect, LiveLease,
    Peeked, RecordState, RecordSummary, TraceContext,
};
use retryproof_core::{
    CodecId, Fingerprint, IdempotencyStore, Identity, OwnerId, Payload, StoredResult,
};
use retryproof_redis::{RedisConfig, RedisStore};

use crate::support::server::Server;
use crate::support::{
    DAY, LONG, body, completion, config, id, key_of, note, own_prefix, service, stranger,
};

/// Two stores on the same records, and a connection that is independent of them. The second store
/// has seen none of the completions of the first.
struct Place {
    store: RedisStore,
    fresh: RedisStore,
    stranger: MultiplexedConnection,
    prefix: String,
}

impl Place {
    async fn new() -> Self {
        let url = service("RETRYPROOF_TEST_REDIS", "redis");
        let prefix = own_prefix();
        let config = RedisConfig::from_url(&url).expect("a URL").with_prefix(&prefix);
        Self {
            store: RedisStore::connect(config.clone()).await.expect("it connects"),
            fresh: RedisStore::connect(config).await.expect("it connects"),
            stranger: stranger(&url).await,
            prefix,
        }
    }

    async fn read(&mut self, id: &Identity) -> Vec<u8> {
        let mut get = redis::cmd("GET");
        get.arg(key_of(&self.prefix, id));
        get.query_async(&mut self.stranger).await.expect("read")
    }

    async fn write(&mut self, id: &Identity, record: &[u8], lives: Duration) {
        let mut set = redis::cmd("SET");
        set.arg(key_of(&self.prefix, id)).arg(record).arg("PX").arg(lives.as_millis().to_string());
        let () = set.query_async(&mut self.stranger).await.expect("written");
    }

    /// Ends the lease of a record in progress, whose grace is a day.
    async fn end_lease(&mut self, id: &Identity) {
        let mut end = redis::cmd("PEXPIRE");
        end.arg(key_of(&self.prefix, id)).arg(DAY.as_millis().to_string());
        let _: i64 = end.query_async(&mut self.stranger).await.expect("ended");
    }

    async fn summary(&self, id: &Identity) -> RecordSummary {
        self.store.get(id).await.expect("inspected").expect("a record")
    }
}

fn noted(owner: OwnerId, holder: Option<HolderNote>) -> AcquireRequest {
    AcquireRequest::new(owner, LONG, DAY).with_holder(holder)
}

/// Returns a note of 64 bytes.
fn full_note(owner: OwnerId) -> HolderNote {
    let trace = TraceContext { trace_id: [0; 16], span_id: [0xff; 8], sampled: true };
    let note = HolderNote::new(owner, LONG, Some(trace), &"pod-".repeat(20));
    assert_eq!(note.as_bytes().len(), HolderNote::MAX_BYTES);
    note
}

async fn granted(store: &RedisStore, id: &Identity, request: &AcquireRequest) -> Grant {
    match store.acquire(id, request).await {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn busy(store: &RedisStore, id: &Identity) -> LiveLease {
    match store.acquire(id, &noted(OwnerId::new(), None)).await {
        Ok(Acquired::Busy(lease)) => lease,
        other => panic!("not busy: {other:?}"),
    }
}

async fn busy_to_a_peek(store: &RedisStore, id: &Identity) -> LiveLease {
    match store.peek(id).await {
        Ok(Peeked::Busy(lease)) => lease,
        other => panic!("not busy: {other:?}"),
    }
}

async fn stored(store: &RedisStore, id: &Identity) -> StoredResult {
    match store.acquire(id, &noted(OwnerId::new(), None)).await {
        Ok(Acquired::Complete(stored)) => stored,
        other => panic!("not complete: {other:?}"),
    }
}

async fn completed(store: &RedisStore, id: &Identity, owner: OwnerId, done: &Completion) {
    assert_eq!(store.complete(id, owner, done).await.expect("completed"), FencedWrite::Applied);
}

/// Returns a record of the owner `[7; 16]` with token 42, one takeover and a grace of a day.
fn header(state: u8, note_length: &[u8; 2], fingerprint_length: &str, rest: &[u8]) -> Vec<u8> {
    let numbers = format!("{:013}{fingerprint_length}", DAY.as_millis());
    let token = format!("{:016}", 42);
    let start = [b"rp2", &[state][..], &[7; 16], token.as_bytes(), &[0, 1], note_length];
    [&start.concat(), numbers.as_bytes(), rest].concat()
}

#[tokio::test]
async fn rec_2_busy_answers_name_the_holder() {
    let place = Place::new().await;
    for (at, fingerprint) in
        [None, Some(Fingerprint::new(&[7; 64]).expect("64 bytes"))].iter().enumerate()
    {
        let owner = OwnerId::new();
        for (what, holder) in
            [("none", None), ("some", Some(note(owner))), ("full", Some(full_note(owner)))]
        {
            let id = id(&format!("{at} {what}"));
            let request = noted(owner, holder.clone()).with_fingerprint(*fingerprint);
            let token = granted(&place.store, &id, &request).await.token;
            for lease in [
                busy(&place.store, &id).await,
                busy(&place.fresh, &id).await,
                busy_to_a_peek(&place.store, &id).await,
            ] {
                assert_eq!(lease.holder, holder, "{what}");
                assert_eq!(lease.token, token, "{what}");
                assert!(lease.remaining > LONG / 2 && lease.remaining <= LONG, "{what}: {lease:?}");
            }
            let summary = place.summary(&id).await;
            assert_eq!(summary.holder, holder, "{what}");
            assert_eq!((summary.state, summary.value_bytes), (RecordState::InProgress, 0));
            assert_eq!(summary.has_fingerprint, fingerprint.is_some());
        }
    }
}

#[tokio::test]
async fn rec_2_beats_and_completions_keep_the_note() {
    let place = Place::new().await;
    for (at, fingerprint) in
        [None, Some(Fingerprint::new(&[7; 64]).expect("64 bytes"))].iter().enumerate()
    {
        let owner = OwnerId::new();
        for (what, holder) in
            [("none", None), ("some", Some(note(owner))), ("full", Some(full_note(owner)))]
        {
            let id = id(&format!("{at} {what}"));
            granted(&place.store, &id, &noted(owner, holder.clone())).await;
            let beat = place.store.extend(&id, owner, LONG * 2).await.expect("extended");
            assert_eq!(beat, FencedWrite::Applied);
            let lease = busy(&place.store, &id).await;
            assert!(lease.remaining > LONG, "{lease:?}");
            assert_eq!(lease.holder, holder, "{what}");

            // The completion's fingerprint replaces the fingerprint of the grant.
            let value = Payload::new(CodecId::BYTES, 1, b"result").envelope().clone();
            let done = Completion::new(value, DAY, *fingerprint);
            completed(&place.store, &id, owner, &done).await;
            let peeked = match place.store.peek(&id).await {
                Ok(Peeked::Complete(stored)) => stored,
                other => panic!("not complete: {other:?}"),
            };
            // The store that completed the record reads it with GET. The other store reads it with
            // the script.
            for stored in [stored(&place.store, &id).await, stored(&place.fresh, &id).await, peeked]
            {
                assert_eq!(stored.holder(), holder.as_ref(), "{what}");
                assert_eq!(stored.fingerprint(), fingerprint.as_ref(), "{what}");
                let opened = stored.open(fingerprint.as_ref()).expect("opened");
                assert!(format!("{opened:?}").starts_with("Value"), "{what}: {opened:?}");
            }
            let summary = place.summary(&id).await;
            assert_eq!(summary.holder, holder, "{what}");
            assert_eq!(summary.value_bytes, done.value.len(), "{what}");
        }
    }
}

#[tokio::test]
async fn rec_2_each_grant_replaces_the_note() {
    let mut place = Place::new().await;
    let id = id("k");
    let [first, second, third] = [(); 3].map(|()| OwnerId::new());
    granted(&place.store, &id, &noted(first, Some(full_note(first)))).await;
    // The same owner acquires again, with another note.
    granted(&place.store, &id, &noted(first, Some(note(first)))).await;
    assert_eq!(busy(&place.store, &id).await.holder, Some(note(first)));

    place.end_lease(&id).await;
    assert!(granted(&place.store, &id, &noted(second, Some(full_note(second)))).await.took_over);
    assert_eq!(busy(&place.store, &id).await.holder, Some(full_note(second)));
    let late = place.store.complete(&id, first, &completion("late")).await.expect("answered");
    assert_eq!(late, FencedWrite::NotOwner);
    assert_eq!(busy(&place.store, &id).await.holder, Some(full_note(second)));

    place.end_lease(&id).await;
    granted(&place.store, &id, &noted(third, None)).await;
    assert_eq!(busy(&place.store, &id).await.holder, None);
    completed(&place.store, &id, third, &completion("third")).await;
    assert_eq!(stored(&place.fresh, &id).await.holder(), None);
    assert_eq!(place.summary(&id).await.holder, None);
}

#[tokio::test]
async fn rec_2_a_release_leaves_no_note() {
    let mut place = Place::new().await;
    let (id, owner) = (id("k"), OwnerId::new());
    granted(&place.store, &id, &noted(owner, Some(full_note(owner)))).await;
    let token = &place.read(&id).await[20..36].to_vec();
    assert_eq!(place.store.release(&id, owner).await.expect("released"), FencedWrite::Applied);
    let zeroes = "0".repeat(15);
    let released = [&b"rp2R"[..], &[0; 16], token, &[0; 4], zeroes.as_bytes()].concat();
    assert_eq!(place.read(&id).await, released);
    assert!(matches!(place.store.peek(&id).await, Ok(Peeked::Absent)));
    assert!(place.store.get(&id).await.expect("inspected").is_none());
    granted(&place.store, &id, &noted(owner, None)).await;
    assert_eq!(busy(&place.store, &id).await.holder, None);
}

#[tokio::test]
async fn rec_2_notes_of_other_grants_and_versions_are_not_shown() {
    let mut place = Place::new().await;
    let owner = OwnerId::from_bytes([7; 16]);
    let later = [&[9, 0][..], &[7; 4], &[b'x'; 94]].concat();
    for (what, bytes) in [
        ("of another owner", note(OwnerId::from_bytes([8; 16])).as_bytes()),
        ("too short", &[1, 0, 7]),
        ("too long", &later),
        ("of 1,000 bytes", &[7; 1_000]),
    ] {
        let id = id(what);
        let length = u16::try_from(bytes.len()).expect("short").to_be_bytes();
        let in_progress = header(b'P', &length, "03", &[bytes, &b"abc"[..]].concat());
        place.write(&id, &in_progress, DAY + LONG).await;
        assert_eq!(busy(&place.store, &id).await.holder, None, "{what}");
        assert_eq!(busy_to_a_peek(&place.store, &id).await.holder, None, "{what}");
        assert_eq!(place.summary(&id).await.holder, None, "{what}");
        let beat = place.store.extend(&id, owner, LONG).await.expect("extended");
        assert_eq!(beat, FencedWrite::Applied, "{what}");
        assert_eq!(place.read(&id).await, in_progress, "{what}");

        // A completion keeps a note that it cannot read.
        completed(&place.store, &id, owner, &completion("result")).await;
        let complete = place.read(&id).await;
        assert_eq!(complete[4..40], in_progress[4..40], "{what}");
        assert_eq!(complete[40..55], [b'0'; 15], "{what}");
        assert_eq!(&complete[55..55 + bytes.len()], bytes, "{what}");
        for store in [&place.store, &place.fresh] {
            let stored = stored(store, &id).await;
            assert_eq!((stored.holder(), stored.fingerprint()), (None, None), "{what}");
            assert_eq!(body(&stored), "result", "{what}");
        }
        assert_eq!(place.summary(&id).await.holder, None, "{what}");
    }
}

#[tokio::test]
async fn rec_2_a_server_that_refuses_writes_still_names_the_holder() {
    let server = Server::start("").await;
    let store = RedisStore::connect(config(&server.url())).await.expect("it connects");
    let (id, owner) = (id("k"), OwnerId::new());
    granted(&store, &id, &noted(owner, Some(note(owner)))).await;
    server.tell("CONFIG SET maxmemory 1").await;
    assert_eq!(busy(&store, &id).await.holder, Some(note(owner)));
}
