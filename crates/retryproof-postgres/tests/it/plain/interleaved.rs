// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statement of a grant reads in one part and writes in another. Whatever happens between the
//! two, the part that writes decides on the newest version of the row (ACQ-2).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, FencedWrite, Purge as _};
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_postgres::{PostgresStore, SqlDialect};
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, JoinSet};

use super::conflicts::inject;
use super::place::Place;
use crate::support::{DAY, Stranger, Table, completion, execute, grant, hex, id, replay, request};

const BRIEF: Duration = Duration::from_millis(10);

/// How often a test tries to commit while the store's statement waits for the row. On a busy
/// machine, that wait, which is limited to 250 ms, may end first.
const TRIES: usize = 40;

/// Waits until a statement of the role waits for a lock on the table, or until `task` has ended.
async fn blocked<T>(admin: &mut Stranger, table: &Table, task: &JoinHandle<T>) {
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type='Lock' AND query LIKE '%{}%'",
        table.name
    );
    while !task.is_finished() && admin.number(waiting.clone()).await == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Another transaction changes the row after the statement has read it, and commits before the
/// statement writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_9_acq_2_a_row_that_changes_between_read_and_write_is_judged_again() {
    let place = Place::new("").await;
    let store = Arc::new(PostgresStore::connect(place.config()).await.expect("connected"));
    for kind in ["absent", "expired", "released"] {
        let mut tries = 0..TRIES;
        while !changed_in_between(&place, &store, kind, tries.next().expect("a try")).await {}
    }
}

/// Returns whether the acquire has waited for the other transaction's commit.
async fn changed_in_between(
    place: &Place,
    store: &Arc<PostgresStore>,
    kind: &str,
    number: usize,
) -> bool {
    const TOKEN: u64 = 9_007_199_254_740_991;
    let (mut other, mut admin) = (place.table.stranger().await, place.table.stranger().await);
    let (id, name) = (id(&format!("{kind} {number}")), &place.table.name);
    if kind != "absent" {
        let owner = OwnerId::new();
        let brief = AcquireRequest::new(owner, BRIEF, DAY);
        assert!(matches!(store.acquire(&id, &brief).await, Ok(Acquired::Granted(_))));
        if kind == "released" {
            let released = store.release(&id, owner).await.expect("released");
            assert_eq!(released, FencedWrite::Applied);
        }
        tokio::time::sleep(2 * BRIEF).await;
    }
    // The other transaction grants the record to another owner, but has not committed yet.
    let (scope, key) = (hex(id.scope().as_str()), hex(id.key().expose()));
    other
        .run(format!(
            "BEGIN; INSERT INTO \"{name}\" AS r \
             (scope,key,state,owner,token,takeovers,expires_at,purge_bucket) VALUES \
             ({scope},{key},0,decode(md5('other'),'hex'),{TOKEN},0,\
             clock_timestamp()+interval '1 hour',{TOKEN}) ON CONFLICT (key,scope) DO UPDATE SET \
             owner=excluded.owner,token=excluded.token,expires_at=excluded.expires_at"
        ))
        .await;
    let acquiring = {
        let (store, id) = (Arc::clone(store), id.clone());
        tokio::spawn(async move { store.acquire(&id, &request(OwnerId::new())).await })
    };
    blocked(&mut admin, &place.table, &acquiring).await;
    other.run("COMMIT").await;
    match acquiring.await.expect("no panic") {
        Ok(Acquired::Busy(lease)) => lease.token.get() == TOKEN,
        answer => panic!("{kind}: {answer:?}"),
    }
}

/// A purge has read an expired record, which is granted again before the purge deletes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_9_sto_4_a_purge_does_not_delete_what_was_granted_again() {
    let place = Place::new("").await;
    let store = Arc::new(PostgresStore::connect(place.config()).await.expect("connected"));
    let (mut other, mut admin) = (place.table.stranger().await, place.table.stranger().await);
    let name = &place.table.name;
    for number in 0..TRIES {
        let again = format!("again {number}");
        for key in [again.as_str(), "gone"] {
            let brief = AcquireRequest::new(OwnerId::new(), BRIEF, BRIEF);
            assert!(matches!(store.acquire(&id(key), &brief).await, Ok(Acquired::Granted(_))));
        }
        tokio::time::sleep(3 * BRIEF).await;
        let lease = "expires_at=clock_timestamp()+interval '1 hour',purge_bucket=9007199254740991";
        other.run(format!("BEGIN; UPDATE \"{name}\" SET {lease} WHERE key={}", hex(&again))).await;
        let purging = {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.purge(10).await })
        };
        blocked(&mut admin, &place.table, &purging).await;
        other.run("COMMIT").await;
        let purged = purging.await.expect("no panic");
        let busy = store.acquire(&id(&again), &request(OwnerId::new())).await;
        assert!(matches!(busy, Ok(Acquired::Busy(_))), "{busy:?}");
        match purged {
            Ok(1) => return,
            Err(error) if error.is_retryable() => store.purge(10).await.map(drop).expect("purged"),
            other => panic!("{other:?}"),
        }
    }
    panic!("the purge never waited for the commit");
}

const CALLERS: usize = 12;
const ROUNDS: usize = 12;

/// Lets many callers race for each key when it is absent, expired, released and expired again.
/// Checks that one caller gets each grant, and that the tokens grow.
async fn race(stores: &[Arc<PostgresStore>]) {
    for round in 0..ROUNDS {
        let id = id(&format!("raced {round}"));
        let mut last = 0;
        for turn in 0..4 {
            let start = Arc::new(Barrier::new(CALLERS));
            let mut callers = JoinSet::new();
            for at in 0..CALLERS {
                let (store, id) = (Arc::clone(&stores[at % stores.len()]), id.clone());
                let start = Arc::clone(&start);
                callers.spawn(async move {
                    let owner = OwnerId::new();
                    start.wait().await;
                    (owner, store.acquire(&id, &request(owner)).await)
                });
            }
            let answers = callers.join_all().await;
            let mut granted = BTreeMap::new();
            for (owner, answer) in answers {
                match answer.expect("answered") {
                    Acquired::Granted(grant) => {
                        granted.insert(grant.token.get(), owner);
                    }
                    Acquired::Busy(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(granted.len(), 1, "round {round}, turn {turn}: {:?}", granted.keys());
            let (token, owner) = granted.pop_first().expect("one grant");
            assert!(token > last, "{token} after {last}");
            last = token;
            let ended = match turn {
                1 => stores[0].release(&id, owner).await,
                _ => stores[0].extend(&id, owner, Duration::from_millis(1)).await,
            };
            assert_eq!(ended.expect("ended"), FencedWrite::Applied);
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
}

/// Returns three stores on the same table.
async fn three(place: &Place) -> Vec<Arc<PostgresStore>> {
    let mut stores = Vec::new();
    for _ in 0..3 {
        let config = place.config().with_max_connections(6);
        stores.push(Arc::new(PostgresStore::connect(config).await.expect("connected")));
    }
    stores
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_9_acq_2_of_many_callers_one_is_granted() {
    let place = Place::new("").await;
    race(&three(&place).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_9_acq_2_of_many_callers_one_is_granted_at_serializable() {
    let place = Place::new("&options[default_transaction_isolation]=serializable").await;
    inject(&place.table, "random() < 0.1", "random() < 0.1").await;
    race(&three(&place).await).await;
}

/// Programs with either dialect share a table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_9_acq_2_both_dialects_share_one_table() {
    let table = Table::new().await;
    let with = |dialect| PostgresStore::connect(table.config().with_dialect(dialect));
    let postgres = Arc::new(with(SqlDialect::Postgres).await.expect("connected"));
    let plain = Arc::new(with(SqlDialect::Plain).await.expect("connected"));
    race(&[Arc::clone(&postgres), Arc::clone(&plain)]).await;
    for (key, one, other) in [("a", &postgres, &plain), ("b", &plain, &postgres)] {
        execute(one, &id(key), "result").await;
        assert_eq!(replay(other, &id(key)).await, "result");
        let (held, owner) = (id(&format!("held {key}")), OwnerId::new());
        let token = grant(one, &held, owner).await.token;
        // The other process completes the record for its owner, and the waiter polls.
        let waiting = one.wait_for_change(&held, token, Duration::from_secs(30));
        let done = completion("result");
        let (waited, completed) = tokio::join!(waiting, other.complete(&held, owner, &done));
        waited.expect("waited");
        assert_eq!(completed.expect("completed"), FencedWrite::Applied);
        assert_eq!(replay(one, &held).await, "result");
    }
}
