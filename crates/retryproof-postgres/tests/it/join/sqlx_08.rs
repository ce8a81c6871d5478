// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining transactions of sqlx 0.8 (CMP-7, feature `sqlx-08`); the store itself uses sqlx 0.9.

use std::time::Duration;

use retryproof_core::store::{Peeked, TxPort as _};
use retryproof_core::{ExecuteError, JoinError, JoinedEngine, Outcome, OwnerId};
use retryproof_postgres::sqlx_08::PostgresTx as Tx;
use sqlx_core_08::executor::Executor as _;
use sqlx_core_08::raw_sql::raw_sql;
use sqlx_postgres_08::{PgConnection, PgPool};

use crate::join::{OF_EACH_TYPE, World, ctx, hashed_world, value, world};
use crate::round_trips::proxied;
use crate::support::hex;

async fn joined() -> (World, PgPool, JoinedEngine<Tx>) {
    let world = world().await;
    let pool = PgPool::connect(&world.table.url).await.expect("a pool of sqlx 0.8");
    let joined = world.engine.joined(pool.clone()).unwrap();
    (world, pool, joined)
}

async fn write(tx: &mut PgConnection, ledger: &str, what: &str) {
    tx.execute(raw_sql(&format!("INSERT INTO {ledger} VALUES ('{what}')"))).await.expect("written");
}

#[tokio::test]
async fn cmp_7_sqlx_08_postgres_commits_record_and_writes_together_or_neither() {
    let (world, _, joined) = joined().await;
    let ledger = world.ledger();
    let pay = async |key: &'static str, fails: bool| {
        joined
            .execute(ctx(key), async |tx: &mut Tx| {
                write(tx, &ledger, key).await;
                if fails { Err("declined") } else { Ok(format!("paid {key}")) }
            })
            .await
    };
    assert_eq!(pay("k", false).await.unwrap(), Outcome::Executed("paid k".to_owned()));
    assert_eq!(pay("k", false).await.unwrap(), Outcome::Replayed("paid k".to_owned()));
    assert_eq!((world.rows().await, world.ends()), (1, (1, 0, 0)));
    let failed = pay("f", true).await;
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))), "{failed:?}");
    assert!(matches!(world.standing("f").await, Peeked::Absent), "the key is free");
    assert!(pay("f", false).await.unwrap().is_executed());
    assert_eq!((world.rows().await, world.ends()), (2, (2, 1, 0)));
    world.end().await;
}

/// The server is so far away that the rollback takes half a second.
#[tokio::test]
async fn cmp_7_sqlx_08_postgres_a_failed_call_has_rolled_back_when_it_returns() {
    let world = world().await;
    let (proxy, through) = proxied(&world.table.url).await;
    let pool = PgPool::connect(&through).await.expect("a pool of sqlx 0.8");
    let (joined, ledger) = (world.engine.joined(pool).unwrap(), world.ledger());
    let failed = joined
        .execute(ctx("f"), async |tx: &mut Tx| {
            write(tx, &ledger, "never").await;
            proxy.delay(Duration::from_millis(500));
            Err::<String, _>("declined")
        })
        .await;
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))), "{failed:?}");
    let locks = format!("SELECT count(*) FROM pg_locks WHERE relation='{ledger}'::regclass");
    assert_eq!(world.table.stranger().await.number(locks).await, 0, "the transaction is open");
    world.end().await;
}

#[tokio::test]
async fn id_5_sqlx_08_postgres_keeps_a_joined_record_under_its_digest() {
    let world = hashed_world().await;
    let pool = PgPool::connect(&world.table.url).await.expect("a pool of sqlx 0.8");
    let (joined, ledger) = (world.engine.joined(pool).unwrap(), world.ledger());
    for replayed in [false, true] {
        let pay = joined.execute(ctx("k"), async |tx: &mut Tx| {
            write(tx, &ledger, "k").await;
            Ok::<_, &'static str>("paid k".to_owned())
        });
        assert_eq!(pay.await.unwrap().is_replayed(), replayed);
    }
    assert_eq!((world.rows().await, world.plain_keys().await), (1, 0));
    world.end().await;
}

#[tokio::test]
async fn cmp_7_cmp_2_sqlx_08_postgres_a_refused_completion_fails_the_call_and_its_writes_are_gone()
{
    let (world, _, joined) = joined().await;
    let (ledger, table) = (world.ledger(), world.table.name.clone());
    let digits: String =
        OwnerId::new().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let refused = joined
        .execute(ctx("k"), async |tx: &mut Tx| {
            write(tx, &ledger, "overtaken").await;
            let sql = format!(
                "UPDATE \"{table}\" SET owner=decode('{digits}','hex'),token=token+1 WHERE key={}",
                hex("k")
            );
            assert_eq!(world.table.stranger().await.run(sql).await, 1);
            Ok::<_, &'static str>(String::new())
        })
        .await;
    assert!(matches!(refused, Err(ExecuteError::LeaseLost)), "{refused:?}");
    assert_eq!((world.rows().await, world.ends()), (0, (0, 0, 1)));
    world.end().await;
}

#[tokio::test]
async fn cmp_7_sqlx_08_postgres_a_call_dropped_in_its_transaction_leaves_neither_and_a_free_key() {
    let (world, _, joined) = joined().await;
    let ledger = world.ledger();
    let written = tokio::sync::Notify::new();
    let call = joined.execute(ctx("k"), async |tx: &mut Tx| {
        write(tx, &ledger, "never").await;
        written.notify_one();
        std::future::pending::<Result<String, &'static str>>().await
    });
    tokio::select! {
        _ = call => unreachable!("it never ends"),
        () = written.notified() => {}
    }
    // This `pay` ends before a lease of 3 s can end, so the key was released and not taken over.
    let paid = tokio::time::timeout(Duration::from_secs(2), world.pay("k")).await.expect("in time");
    assert_eq!(paid.unwrap(), Outcome::Executed("paid k".to_owned()));
    assert_eq!((world.counters.read().taken_over, world.rows().await), (0, 1));
    world.end().await;
}

#[tokio::test]
async fn cmp_7_sqlx_08_postgres_complete_in_joins_a_transaction_that_the_program_began() {
    let (world, pool, _) = joined().await;
    let ledger = world.ledger();
    for (key, commits) in [("1", true), ("2", false)] {
        let held = world.held(key).await;
        let mut tx = pool.begin().await.unwrap();
        write(&mut tx, &ledger, key).await;
        let pending = held.complete_in(&mut tx, value("by sqlx 0.8")).await.unwrap();
        if commits {
            tx.commit().await.unwrap();
            pending.committed();
        } else {
            tx.rollback().await.unwrap();
            pending.rolled_back().await.unwrap();
        }
    }
    assert_eq!(world.replay("1").await, "by sqlx 0.8");
    assert!(matches!(world.standing("2").await, Peeked::Absent));
    assert_eq!((world.rows().await, world.ends()), (1, (1, 1, 0)));
    // The record cannot be written in a transaction that has already failed. The error contains no
    // text of the server (ID-4).
    let held = world.held("3").await;
    let mut tx = pool.begin().await.unwrap();
    tx.execute("SELECT 1/0").await.unwrap_err();
    let Err(JoinError::Failed(refused)) = held.complete_in(&mut tx, value("three")).await else {
        panic!("joined a failed transaction")
    };
    assert!(refused.to_string().contains("25P02"), "{refused}");
    drop(tx);
    let (sql, params) = OF_EACH_TYPE;
    assert_eq!(pool.begin().await.unwrap().run_statement(sql, &params).await.unwrap(), 1);
    assert!(world.pay("3").await.unwrap().is_executed());
    world.end().await;
}
