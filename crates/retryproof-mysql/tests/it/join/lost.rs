// SPDX-License-Identifier: MIT OR Apache-2.0
//! A joined transaction that ends before its commit (CMP-7): whatever the action does after that,
//! its writes and the record are committed together or not at all.

use std::time::Duration;

use retryproof_core::store::Peeked;
use retryproof_core::{
    Acquisition, CodecId, ExecuteError, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore as _, JoinError, JoinedEngine, Outcome, Payload,
};
use retryproof_mysql::{MySqlPool, MysqlTx as Tx};
use sqlx::mysql::{MySqlConnection, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _, raw_sql};

use crate::support::{Table, sql, stranger, url};

const MS: Duration = Duration::from_millis(1);

struct World {
    engine: IdempotencyEngine,
    pool: MySqlPool,
    joined: JoinedEngine<Tx>,
    table: Table,
}

async fn world() -> World {
    let table = Table::new().await;
    let engine = IdempotencyEngine::new(table.store().await);
    // The pool has one connection, so the next transaction finds whatever the previous one left on
    // it.
    let pool = MySqlPoolOptions::new().max_connections(1).connect(&url()).await.expect("a pool");
    let world = World { joined: engine.joined(pool.clone()).unwrap(), engine, pool, table };
    let accounts = world.accounts();
    let mut conn = stranger().await;
    sql(
        &mut conn,
        &format!("CREATE TABLE {accounts} (id INT PRIMARY KEY, cents INT NOT NULL) ENGINE=InnoDB"),
    )
    .await;
    sql(&mut conn, &format!("INSERT INTO {accounts} VALUES (1,100),(2,100)")).await;
    world
}

impl World {
    fn accounts(&self) -> String {
        format!("{}_meta_accounts", self.table.name)
    }

    async fn cents(&self) -> (i32, i32) {
        let text = AssertSqlSafe(format!("SELECT cents FROM {} ORDER BY id", self.accounts()));
        let rows = stranger().await.fetch_all(text).await.unwrap();
        (rows[0].get(0), rows[1].get(0))
    }

    async fn standing(&self) -> Peeked {
        self.engine.store().peek(ctx().identity()).await.unwrap()
    }

    async fn pay(&self) -> Result<Outcome<String>, ExecuteError<String>> {
        let accounts = self.accounts();
        let act = async |tx: &mut Tx| {
            add(tx, &accounts, 1, -10).await?;
            add(tx, &accounts, 2, 10).await?;
            Ok("paid".to_owned())
        };
        self.joined.execute(ctx(), act).await
    }

    async fn assert_nothing_happened(&self, why: &str) {
        let free = async {
            // A release in the background might not have reached the store yet.
            while let Peeked::Busy(_) = self.standing().await {
                tokio::time::sleep(5 * MS).await;
            }
        };
        tokio::time::timeout(5_000 * MS, free)
            .await
            .expect("the key is freed, not left to its lease");
        assert!(matches!(self.standing().await, Peeked::Absent), "{why}");
        assert_eq!(self.cents().await, (100, 100), "{why}");
    }

    /// Checks that the pool's connection is in its original state: a single statement commits, and
    /// so does a transaction.
    async fn assert_the_pool_is_as_it_was(&self) {
        let mut conn = self.pool.acquire().await.unwrap();
        let row = conn.fetch_one(raw_sql("SELECT CAST(@@autocommit AS SIGNED)")).await.unwrap();
        assert_eq!(row.get::<i64, _>(0), 1, "autocommit");
        let mut tx = conn.begin().await.unwrap();
        add(&mut tx, &self.accounts(), 1, 1).await.unwrap();
        tx.commit().await.unwrap();
        add(&mut conn, &self.accounts(), 1, -1).await.unwrap();
        assert_eq!(self.cents().await.0 % 10, 0);
    }

    async fn end(self) {
        sql(&mut stranger().await, &format!("DROP TABLE {}", self.accounts())).await;
    }
}

fn ctx() -> IdempotencyContext {
    IdempotencyContext::builder("mysql.tests", "order-17").lease(30_000 * MS).build().unwrap()
}

fn value() -> Payload {
    Payload::new(CodecId::BYTES, 1, b"paid".as_slice())
}

async fn add(
    conn: &mut MySqlConnection,
    accounts: &str,
    id: i32,
    cents: i32,
) -> Result<(), String> {
    let text = format!("UPDATE {accounts} SET cents=cents+({cents}) WHERE id={id}");
    conn.execute(AssertSqlSafe(text)).await.map(drop).map_err(|error| error.to_string())
}

/// Makes the server choose the transaction on `conn`, which has changed account 1, as the victim of
/// a deadlock.
async fn deadlock(conn: &mut MySqlConnection, accounts: &str) {
    // Let the other transaction change more rows, so that the server does not choose it as the
    // deadlock's victim.
    let mut other = stranger().await;
    let scratch = format!("{accounts}_weight");
    sql(&mut other, &format!("CREATE TABLE {scratch} (n INT) ENGINE=InnoDB")).await;
    sql(&mut other, "BEGIN").await;
    for n in 0..20 {
        sql(&mut other, &format!("INSERT INTO {scratch} VALUES ({n})")).await;
    }
    add(&mut other, accounts, 2, 0).await.unwrap();
    let crossing = {
        let accounts = accounts.to_owned();
        tokio::spawn(async move {
            add(&mut other, &accounts, 1, 0).await.unwrap();
            sql(&mut other, "ROLLBACK").await;
            sql(&mut other, &format!("DROP TABLE {scratch}")).await;
        })
    };
    // Whichever transaction waits last, the server rolls back the one on `conn`.
    let met = add(conn, accounts, 2, 10).await;
    assert!(met.unwrap_err().contains("1213"));
    crossing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cmp_7_mysql_an_action_that_swallows_a_deadlock_leaves_neither_record_nor_writes() {
    let world = world().await;
    let accounts = world.accounts();
    let swallowed = world
        .joined
        .execute(ctx(), async |tx: &mut Tx| {
            add(tx, &accounts, 1, -10).await?;
            deadlock(tx, &accounts).await;
            // The deadlock has rolled the whole transaction back, but the action repeats only the
            // statement that failed.
            add(tx, &accounts, 2, 10).await?;
            Ok::<_, String>("paid".to_owned())
        })
        .await;
    assert!(matches!(swallowed, Err(ExecuteError::Completion(_))), "{swallowed:?}");
    world.assert_nothing_happened("deadlock").await;
    world.assert_the_pool_is_as_it_was().await;
    assert_eq!(world.pay().await.unwrap(), Outcome::Executed("paid".to_owned()));
    assert_eq!(world.cents().await, (90, 110));
    world.end().await;
}

/// The action ends the transaction with a statement. In some cases, it then begins another
/// transaction itself.
#[tokio::test]
async fn cmp_7_mysql_a_transaction_that_was_ended_by_the_action_is_not_taken_for_the_one_that_was_opened()
 {
    let world = world().await;
    let accounts = world.accounts();
    for endings in [&["ROLLBACK"][..], &["ROLLBACK", "BEGIN"], &["ROLLBACK", "SET autocommit=0"]] {
        let ended = world
            .joined
            .execute(ctx(), async |tx: &mut Tx| {
                add(tx, &accounts, 1, -10).await?;
                for ending in endings {
                    tx.execute(raw_sql(*ending)).await.unwrap();
                }
                add(tx, &accounts, 2, 10).await?;
                Ok::<_, String>("paid".to_owned())
            })
            .await;
        let Err(ExecuteError::Completion(failed)) = ended else { panic!("{endings:?}: {ended:?}") };
        assert!(failed.error.to_string().contains("no longer open"), "{failed}");
        world.assert_nothing_happened(&format!("{endings:?}")).await;
        world.assert_the_pool_is_as_it_was().await;
    }
    // What the action committed itself stays committed. Everything after that is rolled back.
    let committed = world
        .joined
        .execute(ctx(), async |tx: &mut Tx| {
            tx.execute(raw_sql("COMMIT")).await.unwrap();
            add(tx, &accounts, 2, 10).await?;
            Ok::<_, String>("paid".to_owned())
        })
        .await;
    assert!(matches!(committed, Err(ExecuteError::Completion(_))), "{committed:?}");
    world.assert_nothing_happened("COMMIT").await;
    world.end().await;
}

/// However a transaction ends, the pool's connection is then in autocommit again. sqlx's nested
/// transactions are savepoints in the engine's transaction.
#[tokio::test]
async fn cmp_7_mysql_the_pool_gets_its_connections_back_as_they_were() {
    let world = world().await;
    let accounts = world.accounts();
    let nested = world.joined.execute(ctx(), async |tx: &mut Tx| {
        add(tx, &accounts, 1, -10).await?;
        let mut inner = tx.begin().await.unwrap();
        add(&mut inner, &accounts, 2, 1_000).await?;
        inner.rollback().await.unwrap();
        add(tx, &accounts, 2, 10).await?;
        Ok::<_, String>("paid".to_owned())
    });
    assert_eq!(nested.await.unwrap(), Outcome::Executed("paid".to_owned()));
    assert_eq!(world.cents().await, (90, 110));
    world.assert_the_pool_is_as_it_was().await;

    let other = || IdempotencyContext::builder("mysql.tests", "order-18").build().unwrap();
    let failed = world.joined.execute(other(), async |tx: &mut Tx| {
        add(tx, &accounts, 1, -10).await?;
        Err::<String, _>("declined".to_owned())
    });
    assert!(matches!(failed.await, Err(ExecuteError::Action(_))));
    world.assert_the_pool_is_as_it_was().await;

    // The call is dropped in the middle of a statement.
    let dropped = world.joined.execute(other(), async |tx: &mut Tx| {
        add(tx, &accounts, 1, -10).await?;
        tx.execute(raw_sql("SELECT SLEEP(1)")).await.unwrap();
        Ok::<_, String>(String::new())
    });
    assert!(tokio::time::timeout(300 * MS, dropped).await.is_err());
    world.assert_the_pool_is_as_it_was().await;
    assert_eq!(world.cents().await, (90, 110));
    world.end().await;
}

#[tokio::test]
async fn cmp_7_mysql_complete_in_fails_where_the_transaction_is_gone() {
    let world = world().await;
    let accounts = world.accounts();
    let held = async || match world.engine.try_acquire(&ctx()).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    };
    let held_first = held().await;
    let mut tx = world.pool.begin().await.unwrap();
    add(&mut tx, &accounts, 1, -10).await.unwrap();
    deadlock(&mut tx, &accounts).await;
    let refused = held_first.complete_in(&mut tx, value()).await;
    let Err(JoinError::Failed(error)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("no longer open"), "{error}");
    tx.rollback().await.unwrap();
    world.assert_nothing_happened("a transaction of sqlx").await;

    let mut conn = stranger().await;
    let refused = held().await.complete_in(&mut conn, value()).await;
    assert!(matches!(refused, Err(JoinError::Failed(_))), "{refused:?}");
    world.assert_nothing_happened("a connection in no transaction").await;

    sql(&mut conn, "BEGIN").await;
    let pending = held().await.complete_in(&mut conn, value()).await.unwrap();
    sql(&mut conn, "COMMIT").await;
    pending.committed();
    assert!(matches!(world.standing().await, Peeked::Complete(_)));
    world.end().await;
}
