// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completions that many callers send at the same time share statements. Each caller gets the
//! result of its own completion.

mod slots;

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::FencedWrite;
use retryproof_core::{IdempotencyStore, Identity, OwnerId};
use retryproof_postgres::{Pooler, PostgresStore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::round_trips::proxied;
use crate::support::{Table, completion, grant, id, replay};

const MANY: usize = 96;

async fn granted(store: &PostgresStore, name: &str) -> Vec<(Identity, OwnerId)> {
    let mut all = Vec::new();
    for at in 0..MANY {
        let (id, owner) = (id(&format!("{name} {at:03}")), OwnerId::new());
        grant(store, &id, owner).await;
        all.push((id, owner));
    }
    all
}

/// Completes all keys at the same time, each with a different value.
fn complete(
    store: &Arc<PostgresStore>,
    all: &[(Identity, OwnerId)],
) -> JoinSet<(usize, FencedWrite)> {
    let mut tasks = JoinSet::new();
    for (at, (id, owner)) in all.iter().cloned().enumerate() {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let done = completion(&format!("result {at}"));
            (at, store.complete(&id, owner, &done).await.expect("answered"))
        });
    }
    tasks
}

/// Checks that another process finds the result of each selected completion.
async fn is_replayed(table: &Table, all: &[(Identity, OwnerId)], which: impl Fn(usize) -> bool) {
    let other = table.store().await;
    for (at, (id, _)) in all.iter().enumerate().filter(|(at, _)| which(*at)) {
        assert_eq!(replay(&other, id).await, format!("result {at}"));
    }
}

/// Returns a store with long time limits, because these tests are not about late answers on a busy
/// machine.
async fn patient(table: &Table) -> Arc<PostgresStore> {
    let config = table
        .config()
        .with_call_timeout(Duration::from_secs(60))
        .with_connect_timeout(Duration::from_secs(60))
        .with_max_connections(20);
    Arc::new(PostgresStore::connect(config).await.expect("connected"))
}

#[tokio::test]
async fn cmp_1_completions_at_once_share_statements_and_each_is_its_owners() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let config = retryproof_postgres::PostgresConfig::from_url(&through).expect("a URL");
    let config =
        config.with_table_name(&table.name).with_pooler(Pooler::Session).with_max_connections(20);
    let store = Arc::new(PostgresStore::connect(config).await.expect("connected"));
    // Four completions are sent alone, and the others in statements of up to 32. The first round
    // also prepares the statements. On a slow disk, some completions wait too long for a batch and
    // are then sent alone, so the loop tries further rounds.
    let mut trips = Vec::new();
    while trips.last().is_none_or(|trips| *trips > 12) {
        assert!(
            trips.len() < 40,
            "{MANY} completions always took more than 12 round trips: {trips:?}"
        );
        let all = granted(&store, &format!("round {}", trips.len())).await;
        let before = proxy.flights();
        let told = complete(&store, &all).join_all().await;
        trips.push(proxy.flights() - before);
        assert!(told.iter().all(|(_, fenced)| *fenced == FencedWrite::Applied), "{told:?}");
        is_replayed(&table, &all, |_| true).await;
    }
    // A refused completion costs one more round trip, in which the store finds the reason.
    let strangers: Vec<_> =
        granted(&store, "k").await.into_iter().map(|(id, _)| (id, OwnerId::new())).collect();
    let mut fewest = u64::MAX;
    for _ in 0..10 {
        let before = proxy.flights();
        let told = complete(&store, &strangers).join_all().await;
        fewest = fewest.min(proxy.flights() - before);
        assert!(told.iter().all(|(_, fenced)| *fenced == FencedWrite::NotOwner), "{told:?}");
    }
    assert!(fewest <= 12 + MANY as u64, "{MANY} refused completions took {fewest} round trips");
}

/// A shared statement sends at most 32 records, with values of at most 256 KiB together.
#[tokio::test]
async fn cmp_1_a_shared_statement_is_bounded_by_records_and_bytes() {
    for (bytes, most) in [(100, 32), (16 * 1_024, 16)] {
        let table = Table::new().await;
        let store = patient(&table).await;
        let body = "x".repeat(bytes - completion("").value.len());
        assert_eq!(completion(&body).value.len(), bytes);
        // All rows of one statement have the same `xmin`.
        let largest = format!(
            "SELECT max(sent) FROM (SELECT count(*) AS sent FROM \"{}\" WHERE state=1 \
             GROUP BY xmin::text) AS statements",
            table.name
        );
        let mut stranger = table.stranger().await;
        let mut rows = 0;
        // On a slow disk, completions wait too long for a large batch, so try several rounds.
        for round in 0..40 {
            let all = granted(&store, &format!("round {round}")).await;
            let mut tasks = JoinSet::new();
            for (id, owner) in all {
                let (store, done) = (Arc::clone(&store), completion(&body));
                tasks.spawn(async move { store.complete(&id, owner, &done).await.expect("done") });
            }
            let fenced = tasks.join_all().await;
            assert!(fenced.iter().all(|fenced| *fenced == FencedWrite::Applied), "{fenced:?}");
            rows = stranger.number(largest.clone()).await;
            if rows >= most {
                break;
            }
        }
        assert_eq!(rows, most, "the most records of {bytes} bytes in one statement");
    }
}

#[tokio::test]
async fn cmp_2_cmp_3_each_of_many_completions_is_judged_by_its_own_owner() {
    let table = Table::new().await;
    let store = patient(&table).await;
    let mut all = granted(&store, "k").await;
    for (at, (id, owner)) in all.iter_mut().enumerate() {
        match at % 3 {
            // Of every three completions, one names an owner that does not hold the record, and one
            // was already applied.
            1 => *owner = OwnerId::new(),
            2 => {
                let done = completion(&format!("result {at}"));
                assert_eq!(
                    store.complete(id, *owner, &done).await.expect("completed"),
                    FencedWrite::Applied
                );
            }
            _ => {}
        }
    }
    for (at, fenced) in complete(&store, &all).join_all().await {
        assert_eq!(
            fenced,
            [FencedWrite::Applied, FencedWrite::NotOwner, FencedWrite::AlreadyApplied][at % 3],
            "{at}"
        );
    }
    is_replayed(&table, &all, |at| at % 3 != 1).await;
    // Each completion is sent twice at the same time. One of the two is reported as already
    // applied.
    let twice = granted(&store, "twice").await;
    let both: Vec<_> = twice.iter().chain(&twice).cloned().collect();
    let mut done = [0; MANY];
    for (at, fenced) in complete(&store, &both).join_all().await {
        assert_ne!(fenced, FencedWrite::NotOwner);
        done[at % MANY] += usize::from(fenced == FencedWrite::Applied);
    }
    assert!(done.iter().all(|done| *done == 1), "{done:?}");
}

#[tokio::test]
async fn sto_5_locked_rows_hold_up_their_own_completions_alone() {
    let table = Table::new().await;
    // The first round locks one row of a shared statement. In the second round, so many completions
    // are sent alone, each waiting for a locked row, that they occupy every slot.
    for (round, rows) in [vec![50], vec![0, 1, 2, 3, 4, 5, 6, 7]].into_iter().enumerate() {
        let store = patient(&table).await;
        let all = granted(&store, &format!("round {round}")).await;
        let mut stranger = table.stranger().await;
        stranger.run("BEGIN").await;
        for at in &rows {
            let lock = format!(
                "SELECT 1 FROM \"{}\" WHERE key=convert_to('round {round} {at:03}','UTF8') FOR UPDATE",
                table.name
            );
            stranger.run(lock).await;
        }
        let (locked, free): (Vec<_>, Vec<_>) = (0..MANY).partition(|at| rows.contains(at));
        let alone = if round == 0 {
            Vec::new()
        } else {
            locked.iter().map(|at| all[*at].clone()).collect()
        };
        let mut held = complete(&store, &alone);
        if round > 0 {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let others: Vec<_> =
            if round == 0 { all.clone() } else { free.iter().map(|at| all[*at].clone()).collect() };
        let mut tasks = complete(&store, &others);
        for _ in 0..free.len() {
            let ended =
                timeout(Duration::from_secs(30), tasks.join_next()).await.expect("not held up");
            assert_eq!(ended.unwrap().unwrap().1, FencedWrite::Applied);
        }
        assert_eq!(tasks.len() + held.len(), locked.len(), "what is locked waits");
        assert!(
            held.try_join_next().is_none() && tasks.try_join_next().is_none(),
            "what is locked waits"
        );
        stranger.run("ROLLBACK").await;
        for (_, fenced) in tasks.join_all().await.into_iter().chain(held.join_all().await) {
            assert_eq!(fenced, FencedWrite::Applied);
        }
    }
}

#[tokio::test]
async fn acq_11_a_completion_that_is_dropped_in_line_harms_no_other() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let config = retryproof_postgres::PostgresConfig::from_url(&through).expect("a URL");
    let config = config.with_table_name(&table.name).with_pooler(Pooler::Session);
    let config = config
        .with_call_timeout(Duration::from_secs(60))
        .with_connect_timeout(Duration::from_secs(60));
    let store = PostgresStore::connect(config).await.expect("connected");
    let store = Arc::new(store);
    for round in 0..10_u64 {
        let all = granted(&store, &format!("round {round}")).await;
        let mut dropped = JoinSet::new();
        for (id, owner) in all.iter().step_by(2).cloned() {
            let store = Arc::clone(&store);
            let done = completion("dropped");
            let soon = Duration::from_micros(round * 300);
            dropped.spawn(
                async move { timeout(soon, store.complete(&id, owner, &done)).await.is_ok() },
            );
        }
        let kept: Vec<_> = all.iter().skip(1).step_by(2).cloned().collect();
        let told = complete(&store, &kept).join_all().await;
        assert!(told.iter().all(|(_, fenced)| *fenced == FencedWrite::Applied), "{told:?}");
        is_replayed(&table, &kept, |_| true).await;
        dropped.join_all().await;
        // A dropped completion can be repeated by its owner.
        for (id, owner) in all.iter().step_by(2) {
            let again = store.complete(id, *owner, &completion("dropped")).await.expect("answered");
            assert_ne!(again, FencedWrite::NotOwner);
        }
    }
    // Dropped completions lose no slot. If all slots were lost, every completion would be sent
    // alone.
    for round in 10.. {
        assert!(round < 50, "completions no longer share a statement");
        let all = granted(&store, &format!("round {round}")).await;
        let before = proxy.flights();
        complete(&store, &all).join_all().await;
        if proxy.flights() - before < MANY as u64 / 2 {
            break;
        }
    }
}

#[test]
fn sto_5_a_store_that_outlives_its_runtime_completes_all_the_same() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    };
    let first = runtime();
    let table = first.block_on(Table::new());
    let store = first.block_on(patient(&table));
    drop(first);
    runtime().block_on(async {
        for round in 0..8 {
            let all = granted(&store, &format!("round {round}")).await;
            let told = timeout(Duration::from_secs(60), complete(&store, &all).join_all())
                .await
                .expect("no call hangs");
            assert!(told.iter().all(|(_, fenced)| *fenced != FencedWrite::NotOwner), "{told:?}");
            is_replayed(&table, &all, |_| true).await;
        }
        // No slot is lost. If all slots were lost, a single completion would wait in the queue
        // forever.
        let all = granted(&store, "alone").await;
        let began = Instant::now();
        for (id, owner) in &all[..20] {
            assert_eq!(
                store.complete(id, *owner, &completion("x")).await.expect("completed"),
                FencedWrite::Applied
            );
        }
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "{:?} for 20 completions",
            began.elapsed()
        );
        drop(table);
    });
}
