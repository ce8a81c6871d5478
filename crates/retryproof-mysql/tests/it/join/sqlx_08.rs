// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining transactions of sqlx 0.8 (CMP-7, feature `sqlx-08`); the store itself uses sqlx 0.9.

use std::time::Duration;

use retryproof_core::store::Peeked;
use retryproof_core::{ExecuteError, JoinError, JoinedEngine, Outcome, OwnerId};
use retryproof_mysql::sqlx_08::MysqlTx as Tx;
use sqlx_core_08::executor::Executor as _;
use sqlx_core_08::pool::PoolOptions;
use sqlx_core_08::raw_sql::raw_sql;
use sqlx_core_08::row::Row as _;
use sqlx_mysql_08::{MySql, MySqlConnection, MySqlPool};

use crate::join::{World, ctx, value, world};
use crate::support::{sql, stranger, url};

async fn joined() -> (World, MySqlPool, JoinedEngine<Tx>) {
    let world = world().await;
    let pool = MySqlPool::connect(&url()).await.expect("a pool of sqlx 0.8");
    let joined = world.engine.joined(pool.clone()).unwrap();
    (world, pool, joined)
}

async fn write(tx: &mut MySqlConnection, ledger: &str, what: &str) {
    tx.execute(raw_sql(&format!("INSERT INTO {ledger} VALUES ('{what}')"))).await.expect("written");
}

#[tokio::test]
async fn cmp_7_sqlx_08_mysql_commits_record_and_writes_together_or_neither() {
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

#[tokio::test]
async fn cmp_7_cmp_2_sqlx_08_mysql_a_refused_completion_fails_the_call_and_its_writes_are_gone() {
    let (world, _, joined) = joined().await;
    let (ledger, table) = (world.ledger(), world.table.name.clone());
    let digits: String =
        OwnerId::new().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let refused = joined
        .execute(ctx("k"), async |tx: &mut Tx| {
            write(tx, &ledger, "overtaken").await;
            let taken = format!("UPDATE `{table}` SET owner=X'{digits}',token=token+1 WHERE k='k'");
            assert_eq!(sql(&mut stranger().await, &taken).await, 1);
            Ok::<_, &'static str>(String::new())
        })
        .await;
    assert!(matches!(refused, Err(ExecuteError::LeaseLost)), "{refused:?}");
    assert_eq!((world.rows().await, world.ends()), (0, (0, 0, 1)));
    world.end().await;
}

#[tokio::test]
async fn cmp_7_sqlx_08_mysql_a_call_dropped_in_its_transaction_leaves_neither_and_a_free_key() {
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
async fn cmp_7_sqlx_08_mysql_complete_in_joins_a_transaction_that_the_program_began() {
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
    // A transaction that has ended is not joined, whatever ended it.
    let held = world.held("3").await;
    let mut tx = pool.begin().await.unwrap();
    tx.execute(raw_sql("ROLLBACK")).await.unwrap();
    let Err(JoinError::Failed(refused)) = held.complete_in(&mut tx, value("three")).await else {
        panic!("joined a transaction that is gone")
    };
    assert!(refused.to_string().contains("no longer open"), "{refused}");
    drop(tx);
    assert!(world.pay("3").await.unwrap().is_executed());
    world.end().await;
}

/// The pool has one connection. It stays open through a commit, a rollback and a transaction that
/// the action ended.
#[tokio::test]
async fn cmp_7_sqlx_08_mysql_a_pool_keeps_its_connection() {
    let world = world().await;
    let pool = PoolOptions::<MySql>::new().max_connections(1).connect(&url()).await.unwrap();
    let joined = world.engine.joined(pool.clone()).unwrap();
    let number = async || {
        let text = raw_sql("SELECT CAST(CONNECTION_ID() AS SIGNED)");
        let row = pool.acquire().await.unwrap().fetch_one(text).await.unwrap();
        row.get::<i64, _>(0)
    };
    let first = number().await;
    for (key, statement, fails) in
        [("commit", "DO 1", false), ("roll back", "DO 1", true), ("ended", "ROLLBACK", false)]
    {
        let paid = joined
            .execute(ctx(key), async |tx: &mut Tx| {
                tx.execute(raw_sql(statement)).await.unwrap();
                if fails { Err("declined") } else { Ok(String::new()) }
            })
            .await;
        assert_eq!(paid.is_ok(), key == "commit", "{paid:?}");
        assert_eq!(number().await, first, "{key}");
    }
    world.end().await;
}

/// After a transaction has ended early, later statements are never committed, and the pool gets its
/// connection back in its original state.
#[tokio::test]
async fn cmp_7_sqlx_08_mysql_a_transaction_that_is_gone_is_not_taken_for_the_one_that_was_opened() {
    let world = world().await;
    let ledger = world.ledger();
    let pool = PoolOptions::<MySql>::new().max_connections(1).connect(&url()).await.unwrap();
    let joined = world.engine.joined(pool.clone()).unwrap();
    let gone = joined
        .execute(ctx("k"), async |tx: &mut Tx| {
            write(tx, &ledger, "before").await;
            tx.execute(raw_sql("ROLLBACK")).await.unwrap();
            write(tx, &ledger, "after").await;
            Ok::<_, &'static str>(String::new())
        })
        .await;
    let Err(ExecuteError::Completion(failed)) = gone else { panic!("{gone:?}") };
    assert!(failed.error.to_string().contains("no longer open"), "{failed}");
    assert_eq!(world.rows().await, 0);
    write(&mut pool.acquire().await.unwrap(), &ledger, "alone").await;
    assert_eq!(world.rows().await, 1, "autocommit is as it was");
    assert!(world.pay("k").await.unwrap().is_executed());
    world.end().await;
}
