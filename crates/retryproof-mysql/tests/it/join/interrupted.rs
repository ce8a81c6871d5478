// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection or a process that ends in the middle of a joined transaction (CMP-7).

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use retryproof_core::store::{OwnedTx, Param, Peeked, TxPort, TxSource};
use retryproof_core::{
    Acquisition, Error, ErrorKind, ExecuteError, IdempotencyEngine, Outcome, Result,
};
use retryproof_mysql::{MySqlPool, MysqlConfig, MysqlDialect, MysqlStore, MysqlTx as Tx};
use sqlx::mysql::MySqlConnection;
use sqlx::{Executor as _, Row as _, raw_sql};

use super::{ctx, pool, value, world, write};
use crate::support::{sql, stranger, url};

/// Lets the server end the connection.
async fn kill(conn: &mut MySqlConnection) {
    let row = conn.fetch_one(raw_sql("SELECT CAST(CONNECTION_ID() AS SIGNED)")).await.unwrap();
    sql(&mut stranger().await, &format!("KILL {}", row.get::<i64, _>(0))).await;
}

/// If the server ends the connection before the COMMIT, nothing is committed. If only the answer to
/// the COMMIT is lost, everything is.
#[tokio::test]
async fn cmp_7_mysql_a_connection_that_dies_at_the_commit_leaves_neither() {
    /// A pool whose transactions lose their connection just before the COMMIT or, if the flag is
    /// set, lose the answer to the COMMIT.
    struct Cut(MySqlPool, bool);
    struct CutTx(Tx, bool);

    impl TxSource<MysqlDialect> for Cut {
        type Tx = CutTx;
        async fn begin(&self) -> Result<CutTx> {
            Ok(CutTx(TxSource::<MysqlDialect>::begin(&self.0).await?, self.1))
        }
    }
    impl TxPort<MysqlDialect> for CutTx {
        async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
            self.0.run_statement(sql, params).await
        }
    }
    impl OwnedTx<MysqlDialect> for CutTx {
        async fn commit_tx(mut self) -> Result<()> {
            if self.1 {
                self.0.commit_tx().await?;
                return Err(Error::unavailable("the answer was lost"));
            }
            kill(&mut self.0).await;
            self.0.commit_tx().await
        }
        async fn roll_back_tx(self) -> Result<()> {
            self.0.roll_back_tx().await
        }
    }

    let world = world().await;
    let ledger = world.ledger();
    for lost_answer in [false, true] {
        let source = Cut(world.pool.clone(), lost_answer);
        let paid = world
            .engine
            .joined(source)
            .unwrap()
            .execute(ctx("k"), async |tx: &mut CutTx| {
                write(&mut tx.0, &ledger, "k").await;
                Ok::<_, &'static str>("paid".to_owned())
            })
            .await;
        match lost_answer {
            false => {
                assert!(matches!(paid, Err(ExecuteError::Completion(_))), "{paid:?}");
                assert_eq!((world.rows().await, world.ends()), (0, (0, 1, 0)));
                assert!(matches!(world.standing("k").await, Peeked::Absent), "the key is free");
            }
            true => {
                assert_eq!(paid.unwrap(), Outcome::Executed("paid".to_owned()));
                assert_eq!((world.rows().await, world.ends()), (1, (1, 1, 0)));
            }
        }
    }
    world.end().await;
}

/// A connection that the server ended is an outage. The error does not say that the action ended
/// its transaction.
#[tokio::test]
async fn cmp_7_sto_5_mysql_a_connection_that_ends_is_an_outage() {
    let world = world().await;
    let mut tx = TxSource::<MysqlDialect>::begin(&world.pool).await.unwrap();
    kill(&mut tx).await;
    let error = tx.commit_tx().await.expect_err("the connection has ended");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let mut tx = world.pool.begin().await.unwrap();
    kill(&mut tx).await;
    let error = tx.run_statement("DO 1", &[]).await.expect_err("the connection has ended");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    world.end().await;
}

/// The environment variable that passes the table's name and the server's URL to the other process.
const OTHER: &str = "RETRYPROOF_MYSQL_TEST_JOINED";

/// Runs as the other process: writes, joins the transaction, and waits to be killed. Without the
/// variable, this test does nothing.
#[tokio::test]
async fn the_other_process() {
    let Ok(line) = std::env::var(OTHER) else { return };
    let (table, url) = line.split_once(' ').unwrap();
    let config = MysqlConfig::from_url(url).unwrap().with_table_name(table);
    let engine = IdempotencyEngine::new(MysqlStore::connect(config).await.unwrap());
    let Ok(Acquisition::Granted(held)) = engine.try_acquire(&ctx("k")).await else {
        panic!("not granted")
    };
    let mut tx = pool(url).await.begin().await.unwrap();
    write(&mut tx, &format!("{table}_meta_ledger"), "killed").await;
    let _pending = held.complete_in(&mut tx, value("never")).await.unwrap();
    println!("\n@written");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn cmp_7_mysql_a_killed_process_leaves_neither_and_its_lease_runs_out() {
    let world = world().await;
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args([
            "join::interrupted::the_other_process",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(OTHER, format!("{} {}", world.table.name, url()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "@written"));
    other.kill().unwrap();
    other.wait().unwrap();
    // This call waits until the lease of the killed process ends, and then takes over.
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Executed("paid k".to_owned()));
    assert_eq!((world.counters.read().taken_over, world.rows().await), (1, 1));
    world.end().await;
}
