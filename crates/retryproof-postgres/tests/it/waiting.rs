// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiters of other processes are woken by notification (ACQ-4), and only if they were announced.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite};
use retryproof_core::{IdempotencyContext, IdempotencyEngine, IdempotencyStore, Outcome, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};
use sqlx_core::pool::PoolOptions;
use sqlx_postgres::{PgListener, PgPool};
use tokio::time::Instant;

use crate::round_trips::proxied;
use crate::support::{COLLIDING, Table, body, completion, execute, grant, id, pgbouncer, request};

/// Returns the sorted times from the answer to each completion until a waiter on another store has
/// the result.
pub(crate) async fn wake_ups(
    holder: &Arc<PostgresStore>,
    waiter: &Arc<PostgresStore>,
    key: &str,
    rounds: usize,
) -> Vec<Duration> {
    let mut took = Vec::new();
    for round in 0..rounds {
        let (id, owner) = (id(&format!("{key}{round}")), OwnerId::new());
        let token = grant(holder, &id, owner).await.token;
        let waiting = {
            let (waiter, id) = (Arc::clone(waiter), id.clone());
            tokio::spawn(async move {
                waiter.wait_for_change(&id, token, Duration::from_secs(30)).await.expect("woken");
                match waiter.acquire(&id, &request(OwnerId::new())).await.expect("answered") {
                    Acquired::Complete(stored) => assert_eq!(body(&stored), "result"),
                    other => panic!("{other:?}"),
                }
                Instant::now()
            })
        };
        // Complete at some moment before the fallback poll, which comes after a quarter of a
        // second.
        tokio::time::sleep(Duration::from_millis(20 + round as u64 % 7)).await;
        assert_eq!(
            holder.complete(&id, owner, &completion("result")).await.expect("completed"),
            FencedWrite::Applied
        );
        let answered = Instant::now();
        let had = waiting.await.expect("no panic");
        took.push(had.saturating_duration_since(answered));
    }
    took.sort();
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_4_a_waiter_of_another_process_is_told_within_milliseconds() {
    let table = Table::new().await;
    let (holder, waiter) = (Arc::new(table.store().await), Arc::new(table.store().await));
    let took = wake_ups(&holder, &waiter, "k", 60).await;
    println!("pushed: p50 {:?}, p90 {:?}, most {:?}", took[30], took[54], took[59]);
    // The goal on a quiet machine is 5 ms. A waiter that polls would take 125 ms.
    assert!(took[30] < Duration::from_millis(40), "{took:?}");
}

/// A waiter is not woken again and again because the same record, or another record with the same
/// hash, was released just before the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_4_a_waiter_is_told_of_an_earlier_end_once() {
    let table = Table::new().await;
    let (holder, waiter) = (Arc::new(table.store().await), Arc::new(table.store().await));
    // These wake-ups open the connections, so that the wake-ups below do not have to.
    wake_ups(&holder, &waiter, "before ", 2).await;
    let [other, key] = COLLIDING.map(id);
    for finished in [&key, &other] {
        let (before, owner) = (OwnerId::new(), OwnerId::new());
        grant(&holder, finished, before).await;
        let released = holder.release(finished, before).await.expect("released");
        assert_eq!(released, FencedWrite::Applied);
        let token = grant(&holder, &key, owner).await.token;
        let wakes = Arc::new(AtomicUsize::new(0));
        let waiting = {
            let (waiter, key, wakes) = (Arc::clone(&waiter), key.clone(), Arc::clone(&wakes));
            // Like the engine, the call acquires after each wake-up, and then waits again.
            tokio::spawn(async move {
                let at_most = Duration::from_secs(30);
                while let Acquired::Busy(_) =
                    waiter.acquire(&key, &request(OwnerId::new())).await.expect("answered")
                {
                    waiter.wait_for_change(&key, token, at_most).await.expect("woken");
                    wakes.fetch_add(1, Ordering::SeqCst);
                }
                Instant::now()
            })
        };
        tokio::time::sleep(Duration::from_secs(1)).await;
        let woken = wakes.load(Ordering::SeqCst);
        assert!(woken <= 3, "{woken} wake-ups in a second without any change");
        let done = completion("result");
        let done = holder.complete(&key, owner, &done).await.expect("completed");
        assert_eq!(done, FencedWrite::Applied);
        let answered = Instant::now();
        let took = waiting.await.expect("no panic").saturating_duration_since(answered);
        // A notification takes a few milliseconds. The limit is long enough for a waiter that
        // polls, because this test is about the number of wake-ups.
        assert!(took < Duration::from_secs(2), "{took:?}");
        let forget = format!("DELETE FROM \"{}\"", table.name);
        table.stranger().await.run(forget).await;
    }
}

/// A notification arrives even if the connection that sends notifications was closed while it was
/// idle, for example by a firewall or a timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_4_a_message_outlives_the_connection_that_it_was_to_go_by() {
    let table = Table::new().await;
    let (holder, waiter) = (Arc::new(table.store().await), Arc::new(table.store().await));
    let mut stranger = table.stranger().await;
    let tellers =
        format!("FROM pg_stat_activity WHERE query LIKE 'NOTIFY \"{}_wake\"%'", table.name);
    let mut took = Vec::new();
    for round in 0..5 {
        // The waiter announces itself, and the holder notifies it. In the second wake-up, all
        // connections are already open.
        wake_ups(&holder, &waiter, &format!("before {round} "), 2).await;
        let ended = stranger
            .number(format!("SELECT count(pg_terminate_backend(pid,10000)) {tellers}"))
            .await;
        assert_eq!(ended, 2, "the tellers of both");
        assert_eq!(stranger.number(format!("SELECT count(*) {tellers}")).await, 0);
        took.extend(wake_ups(&holder, &waiter, &format!("after {round} "), 1).await);
    }
    took.sort();
    println!("pushed over a new connection: {took:?}");
    // The fallback poll comes after more than 150 ms. Opening a connection takes a few
    // milliseconds, and more on a busy machine.
    assert!(took[2] < Duration::from_millis(150), "{took:?}");
}

/// A completion or release whose answer was lost is repeated, and finds that it has already taken
/// effect. Here it was applied by another process, which neither listens for notifications nor
/// sends any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_3_acq_4_a_repetition_wakes_those_whom_the_lost_answer_did_not() {
    let table = Table::new().await;
    let (holder, waiter) = (Arc::new(table.store().await), Arc::new(table.store().await));
    let deaf = table.config().with_pooler(Pooler::Transaction);
    let deaf = PostgresStore::connect(deaf).await.expect("connected");
    // These wake-ups open the connections, so that the wake-ups below do not have to.
    wake_ups(&holder, &waiter, "before ", 2).await;
    for release in [false, true] {
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for round in 0..7 {
            let (id, owner) = (id(&format!("{release} {round}")), OwnerId::new());
            let token = grant(&holder, &id, owner).await.token;
            let waits = |store: &Arc<PostgresStore>| {
                let (store, id) = (Arc::clone(store), id.clone());
                tokio::spawn(async move {
                    store
                        .wait_for_change(&id, token, Duration::from_secs(30))
                        .await
                        .expect("woken");
                    Instant::now()
                })
            };
            let (own_waiter, other_waiter) = (waits(&holder), waits(&waiter));
            tokio::time::sleep(Duration::from_millis(20)).await;
            for (store, said) in
                [(&deaf, FencedWrite::Applied), (&*holder, FencedWrite::AlreadyApplied)]
            {
                let fenced = match release {
                    true => store.release(&id, owner).await,
                    false => store.complete(&id, owner, &completion("result")).await,
                };
                assert_eq!(fenced.expect("answered"), said);
            }
            let repeated = Instant::now();
            own.push(own_waiter.await.expect("no panic").saturating_duration_since(repeated));
            others.push(other_waiter.await.expect("no panic").saturating_duration_since(repeated));
        }
        own.sort();
        others.sort();
        println!(
            "woken by a repetition (release: {release}): {own:?}, in another process {others:?}"
        );
        // The fallback poll comes after more than 150 ms, so a faster waiter was notified.
        for median in [own[3], others[3]] {
            assert!(median < Duration::from_millis(150), "release: {release}, {own:?} {others:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_4_behind_a_pooler_waiters_poll() {
    let table = Table::new().await;
    let config =
        PostgresConfig::from_url(&pgbouncer()).expect("a URL").with_table_name(&table.name);
    let config = config.with_pooler(Pooler::Transaction);
    let connect =
        || async { Arc::new(PostgresStore::connect(config.clone()).await.expect("connected")) };
    let (holder, waiter) = (connect().await, connect().await);
    let took = wake_ups(&holder, &waiter, "k", 30).await;
    println!("polled: p50 {:?}, p90 {:?}, most {:?}", took[15], took[27], took[29]);
    assert!(took[15] < Duration::from_millis(100), "{took:?}");
}

#[tokio::test]
async fn acq_4_nobody_is_notified_of_what_nobody_waits_for() {
    let table = Table::new().await;
    let (holder, waiter) = (Arc::new(table.store().await), Arc::new(table.store().await));
    let options = table.url.parse().expect("a URL");
    let pool: PgPool = PoolOptions::new().max_connections(1).connect_lazy_with(options);
    let mut all = PgListener::connect_with(&pool).await.expect("a listener");
    all.listen(&format!("{}_wake", table.name)).await.expect("it listens");
    for at in 0..50 {
        execute(&holder, &id(&at.to_string()), "result").await;
    }
    wake_ups(&holder, &waiter, "k", 1).await;
    let mut heard = Vec::new();
    while let Ok(Ok(message)) = tokio::time::timeout(Duration::from_millis(200), all.recv()).await {
        heard.push(message.payload().to_owned());
    }
    // There is one announcement and one notification, and neither shows a key.
    assert_eq!(heard.len(), 2, "{heard:?}");
    assert!(
        heard.iter().all(
            |text| text.len() == 33 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'w')
        ),
        "{heard:?}"
    );
}

/// A waiter that would be notified reads its record about once a second.
#[tokio::test]
async fn acq_4_a_waiter_that_is_notified_reads_rarely() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let config = PostgresConfig::from_url(&through).expect("a URL").with_table_name(&table.name);
    let store = PostgresStore::connect(config.with_pooler(Pooler::Session)).await;
    let store = store.expect("connected");
    let token = grant(&store, &id("k"), OwnerId::new()).await.token;
    let before = proxy.flights();
    store.wait_for_change(&id("k"), token, Duration::from_secs(2)).await.expect("looked");
    let reads = proxy.flights() - before;
    assert!((2..=16).contains(&reads), "{reads} round trips in 2 s");
}

#[tokio::test]
async fn acq_5_a_sleeping_waiter_holds_no_connection() {
    let table = Table::new().await;
    let store = Arc::new(
        PostgresStore::connect(table.config().with_max_connections(3)).await.expect("connected"),
    );
    let (held, owner) = (id("held"), OwnerId::new());
    let token = grant(&store, &held, owner).await.token;
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let (store, held) = (Arc::clone(&store), held.clone());
            tokio::spawn(async move {
                store.wait_for_change(&held, token, Duration::from_secs(30)).await
            })
        })
        .collect();
    for at in 0..50 {
        execute(&store, &id(&at.to_string()), "result").await;
    }
    assert_eq!(store.release(&held, owner).await.expect("released"), FencedWrite::Applied);
    for waiter in waiters {
        waiter.await.expect("no panic").expect("woken");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_1_the_callers_of_several_engines_share_one_run() {
    let table = Table::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let mut engines = Vec::new();
    for _ in 0..4 {
        engines.push(IdempotencyEngine::new(table.store().await));
    }
    let callers: Vec<_> = (0..100)
        .map(|at| {
            let (engine, runs) = (engines[at % 4].clone(), Arc::clone(&runs));
            tokio::spawn(async move {
                let wait = Duration::from_secs(60);
                let ctx = IdempotencyContext::builder("postgres.tests", "herd").wait_timeout(wait);
                let action = || async {
                    runs.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    Ok::<_, std::convert::Infallible>(7_u32)
                };
                engine.execute(ctx.build().expect("a context"), action).await.expect("an outcome")
            })
        })
        .collect();
    let mut replayed = 0;
    for caller in callers {
        replayed += usize::from(caller.await.expect("no panic") == Outcome::Replayed(7));
    }
    assert_eq!((runs.load(Ordering::SeqCst), replayed), (1, 99));
}
