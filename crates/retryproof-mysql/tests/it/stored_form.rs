// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a record says about its holder (REC-2): the note, the count of takeovers, and the time of
//! the grant. Each test runs on both forms of the acquire: with and without `RETURNING`.

mod kept;

use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, FencedWrite, Grant, HolderNote, Inspect, Peeked, TraceContext,
};
use retryproof_core::{Fingerprint, IdempotencyStore, Identity, OwnerId};
use retryproof_mysql::MysqlStore;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::support::{DAY, LONG, Table, completion, execute, grant, id, request, sql, stranger};

const TRACE: TraceContext =
    TraceContext { trace_id: [b';'; 16], span_id: [b','; 8], sampled: true };

async fn stores(table: &Table) -> Vec<(bool, MysqlStore)> {
    let mut stores = Vec::new();
    for returning in [true, false] {
        let config = table.config().with_returning(returning);
        stores.push((returning, MysqlStore::connect(config).await.expect("connected")));
    }
    stores
}

fn note(owner: OwnerId, label: &str) -> Option<HolderNote> {
    Some(HolderNote::new(owner, LONG, None, label))
}

/// Acquires the key with this note.
async fn acquire(
    store: &MysqlStore,
    id: &Identity,
    owner: OwnerId,
    note: Option<HolderNote>,
) -> Grant {
    let req = AcquireRequest::new(owner, LONG, DAY).with_holder(note);
    match store.acquire(id, &req).await {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn complete(store: &MysqlStore, id: &Identity, owner: OwnerId) {
    let done = store.complete(id, owner, &completion("result")).await;
    assert_eq!(done.expect("answered"), FencedWrite::Applied);
}

/// Changes the row of the key.
async fn change(table: &Table, id: &Identity, what: &str) {
    let key = id.key().expose();
    let text = format!("UPDATE `{}` SET {what} WHERE k = '{key}'", table.name);
    assert_eq!(sql(&mut stranger().await, &text).await, 1);
}

/// Whether the row of the key satisfies this condition.
async fn is_true(table: &Table, id: &Identity, condition: &str) -> bool {
    let key = id.key().expose();
    let text = format!("SELECT {condition} FROM `{}` WHERE k = '{key}'", table.name);
    let row = stranger().await.fetch_one(AssertSqlSafe(text)).await.expect("the row is read");
    row.get::<i64, _>(0) == 1
}

async fn expire(table: &Table, id: &Identity) {
    change(table, id, "expires_at = '1980-01-01'").await;
}

/// Returns the note about the holder, and checks that an acquire, a peek and a `get` all return the
/// same note.
async fn shown(store: &MysqlStore, id: &Identity) -> Option<HolderNote> {
    let acquired = match store.acquire(id, &request(OwnerId::new())).await {
        Ok(Acquired::Busy(lease)) => lease.holder,
        Ok(Acquired::Complete(stored)) => stored.holder().cloned(),
        other => panic!("neither busy nor complete: {other:?}"),
    };
    let peeked = match store.peek(id).await {
        Ok(Peeked::Busy(lease)) => lease.holder,
        Ok(Peeked::Complete(stored)) => stored.holder().cloned(),
        other => panic!("neither busy nor complete: {other:?}"),
    };
    let got = store.get(id).await.expect("answered").expect("a record").holder;
    assert_eq!((&acquired, &peeked), (&got, &got));
    got
}

/// The owner, the numbers, the fingerprint and the note are read from one column. The owner, the
/// fingerprint and the note can contain the bytes that separate the parts.
#[tokio::test]
async fn rec_2_busy_and_complete_answers_carry_the_note() {
    let table = Table::new().await;
    for (returning, store) in stores(&table).await {
        // This store reads each key for the first time when the key's record is complete.
        let config = table.config().with_returning(returning);
        let other = MysqlStore::connect(config).await.expect("connected");
        for (at, byte) in [b';', b','].into_iter().enumerate() {
            let owner = OwnerId::from_bytes([byte; 16]);
            for fingerprint in [None, Some(vec![b';']), Some(vec![b','; 64])] {
                let longest = "0;".repeat(40);
                for (trace, label) in [(None, ""), (None, ";1,"), (Some(TRACE), &*longest)] {
                    let fingerprint = fingerprint.as_deref();
                    let prints = fingerprint.map_or(0, <[u8]>::len);
                    let key = id(&format!("{returning} {at} {prints} {}", label.len()));
                    let fingerprint =
                        fingerprint.map(|bytes| Fingerprint::new(bytes).expect("valid"));
                    let written = HolderNote::new(owner, LONG, trace, label);
                    let req = AcquireRequest::new(owner, LONG, DAY)
                        .with_fingerprint(fingerprint)
                        .with_holder(Some(written.clone()));
                    assert!(matches!(store.acquire(&key, &req).await, Ok(Acquired::Granted(_))));
                    assert_eq!(shown(&store, &key).await.as_ref(), Some(&written));

                    let beat = store.extend(&key, owner, LONG).await.expect("answered");
                    assert_eq!(beat, FencedWrite::Applied);
                    assert_eq!(shown(&store, &key).await.as_ref(), Some(&written));

                    let mut done = completion("result");
                    done.fingerprint = fingerprint;
                    let applied = store.complete(&key, owner, &done).await.expect("answered");
                    assert_eq!(applied, FencedWrite::Applied);
                    for store in [&store, &other] {
                        assert_eq!(shown(store, &key).await.as_ref(), Some(&written));
                        let answer = store.acquire(&key, &request(OwnerId::new())).await;
                        let Ok(Acquired::Complete(stored)) = answer else {
                            panic!("not complete: {answer:?}")
                        };
                        assert_eq!(stored.fingerprint(), fingerprint.as_ref());
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn rec_2_each_grant_replaces_or_removes_the_note() {
    let table = Table::new().await;
    for (returning, store) in stores(&table).await {
        let key = id(&format!("k{returning}"));
        let [first, second, third] = [(); 3].map(|()| OwnerId::new());
        acquire(&store, &key, first, note(first, "first")).await;
        expire(&table, &key).await;
        acquire(&store, &key, second, note(second, "second")).await;
        assert_eq!(shown(&store, &key).await, note(second, "second"));
        // The same owner acquires again (ACQ-9).
        acquire(&store, &key, second, note(second, "again")).await;
        assert_eq!(shown(&store, &key).await, note(second, "again"));
        acquire(&store, &key, second, None).await;
        assert_eq!(shown(&store, &key).await, None);
        acquire(&store, &key, second, note(second, "again")).await;
        complete(&store, &key, second).await;
        expire(&table, &key).await;
        acquire(&store, &key, third, None).await;
        assert_eq!(shown(&store, &key).await, None);
    }
}

#[tokio::test]
async fn rec_2_a_release_removes_the_note() {
    let table = Table::new().await;
    for (returning, store) in stores(&table).await {
        let (key, owner) = (id(&format!("k{returning}")), OwnerId::new());
        acquire(&store, &key, owner, note(owner, "gone")).await;
        assert_eq!(store.release(&key, owner).await.expect("released"), FencedWrite::Applied);
        assert!(is_true(&table, &key, "holder IS NULL AND takeovers = 0").await);
        acquire(&store, &key, owner, None).await;
        assert_eq!(shown(&store, &key).await, None);
    }
}

/// A program that does not support notes leaves the note of an earlier grant in the row. Neither
/// that note nor bytes that are not a note cause an error.
#[tokio::test]
async fn rec_2_the_note_of_an_earlier_grant_is_disowned() {
    let table = Table::new().await;
    let other = "owner = X'00112233445566778899AABBCCDDEEFF', token = token + 1";
    let longest = format!("holder = X'{}'", "FF".repeat(64));
    let changes =
        [other, "holder = X''", "holder = X'01'", "holder = X'3B3B3B3B3B3B3B3B'", &longest];
    for (returning, store) in stores(&table).await {
        for (at, what) in changes.into_iter().enumerate() {
            for done in [false, true] {
                let (key, owner) = (id(&format!("{returning} {at} {done}")), OwnerId::new());
                grant(&store, &key, owner).await;
                if done {
                    complete(&store, &key, owner).await;
                }
                assert!(shown(&store, &key).await.is_some());
                change(&table, &key, what).await;
                assert_eq!(shown(&store, &key).await, None, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn rec_2_takeovers_are_counted_until_the_key_is_free() {
    let table = Table::new().await;
    for (returning, store) in stores(&table).await {
        let key = id(&format!("k{returning}"));
        let counted = async |grant: Grant, count: u16| {
            let summary = store.get(&key).await.expect("answered").expect("a record");
            assert_eq!((summary.takeovers, summary.token), (Some(count), grant.token));
            assert_eq!(grant.took_over, count > 0);
        };
        let mut owner = OwnerId::new();
        counted(acquire(&store, &key, owner, None).await, 0).await;
        for count in 1..=3 {
            expire(&table, &key).await;
            owner = OwnerId::new();
            let grant = acquire(&store, &key, owner, None).await;
            counted(grant, count).await;
            // The same owner acquires again, once before its lease ends and once after (ACQ-9).
            assert_eq!(acquire(&store, &key, owner, None).await, grant);
            expire(&table, &key).await;
            assert_eq!(acquire(&store, &key, owner, None).await, grant);
            counted(grant, count).await;
        }
        let token = store.get(&key).await.expect("answered").expect("a record").token;
        complete(&store, &key, owner).await;
        counted(Grant::new(token, LONG, true), 3).await;
        expire(&table, &key).await;
        owner = OwnerId::new();
        counted(acquire(&store, &key, owner, None).await, 0).await;
        change(&table, &key, "takeovers = 32766").await;
        for _ in 0..2 {
            expire(&table, &key).await;
            owner = OwnerId::new();
            counted(acquire(&store, &key, owner, None).await, 32_767).await;
        }
        assert_eq!(store.release(&key, owner).await.expect("released"), FencedWrite::Applied);
        counted(acquire(&store, &key, OwnerId::new(), None).await, 0).await;
    }
}

#[tokio::test]
async fn rec_2_get_tells_when_the_lease_was_granted() {
    const HOUR: Duration = Duration::from_secs(3_600);
    const MINUTE: Duration = Duration::from_secs(60);
    let table = Table::new().await;
    let store = table.store().await;
    let (held, done) = (id("held"), id("done"));
    grant(&store, &held, OwnerId::new()).await;
    execute(&store, &done, "result").await;
    for key in [&held, &done] {
        let ago = async || {
            let summary = store.get(key).await.expect("answered").expect("a record");
            summary.granted_ago.expect("the store knows it")
        };
        assert!(ago().await < MINUTE);
        change(&table, key, "token = token - 3600000000").await;
        assert!((HOUR..HOUR + MINUTE).contains(&ago().await));
        // Set the token ahead of the server's clock, as if the clock had stepped back.
        change(&table, key, "token = token + 7200000000").await;
        assert_eq!(ago().await, Duration::ZERO);
    }
}
