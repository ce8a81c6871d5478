// SPDX-License-Identifier: MIT OR Apache-2.0
//! The adapters to diesel-async.

use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{
    AsyncConnection as _, AsyncMysqlConnection, AsyncPgConnection, RunQueryDsl as _,
    SimpleAsyncConnection as _,
};
use retryproof::{HeldLease, JoinError, Payload, PendingCommit};

use crate::suite::{Driver, suite};

/// How a program's own transaction ends without a commit.
enum Unwritten {
    Refused(JoinError),
    Declined(Box<PendingCommit>),
    Failed(diesel::result::Error),
}

impl From<diesel::result::Error> for Unwritten {
    fn from(error: diesel::result::Error) -> Self {
        Self::Failed(error)
    }
}

macro_rules! driver {
    ($name:ident, $service:literal, $connection:ty, $dialect:ty, $adapter:ident) => {
        struct $name(Pool<$connection>);

        impl Driver for $name {
            const SERVICE: &'static str = $service;
            type Dialect = $dialect;
            type Tx = drivers::$adapter::DieselTx;
            type Source = drivers::$adapter::DieselSource;

            async fn connect(url: &str) -> Self {
                let manager = AsyncDieselConnectionManager::<$connection>::new(url);
                Self(Pool::builder(manager).max_size(1).build().expect("a pool"))
            }

            fn source(&self) -> Self::Source {
                drivers::$adapter::DieselSource(self.0.clone())
            }

            async fn write(tx: &mut Self::Tx, sql: &str) {
                tx.batch_execute(sql).await.expect("written");
            }

            async fn write_alone(&self, sql: &str) {
                let mut conn = self.0.get().await.expect("a connection");
                diesel::sql_query(sql).execute(&mut *conn).await.expect("written");
            }

            async fn complete_in(
                &self,
                held: HeldLease,
                sql: &str,
                value: Payload,
                commits: bool,
            ) -> Result<(), JoinError> {
                let mut pooled = self.0.get().await.expect("a connection");
                // Borrow the connection itself, because the pool's guard has its own method
                // `transaction`, whose closure would get the guard.
                let conn: &mut $connection = &mut pooled;
                let ended = conn
                    .transaction(async |conn: &mut $connection| {
                        diesel::sql_query(sql).execute(conn).await?;
                        let mut port = drivers::$adapter::DieselPort(conn);
                        let joined = held.complete_in(&mut port, value).await;
                        let pending = joined.map_err(Unwritten::Refused)?;
                        if commits {
                            Ok(pending)
                        } else {
                            Err(Unwritten::Declined(Box::new(pending)))
                        }
                    })
                    .await;
                match ended {
                    Ok(pending) => pending.committed(),
                    Err(Unwritten::Declined(pending)) => {
                        pending.rolled_back().await.expect("freed")
                    }
                    Err(Unwritten::Refused(error)) => return Err(error),
                    Err(Unwritten::Failed(error)) => panic!("{error}"),
                }
                Ok(())
            }
        }
    };
}

driver!(
    Postgres,
    "POSTGRES",
    AsyncPgConnection,
    retryproof::postgres::PostgresDialect,
    diesel_postgres
);
driver!(Mysql, "MARIADB", AsyncMysqlConnection, retryproof::mysql::MysqlDialect, diesel_mysql);

suite!(postgres, Postgres);
suite!(mysql, Mysql);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cmp_7_mysql_a_transaction_that_is_gone_is_not_joined() {
    crate::suite::a_transaction_that_is_gone_is_not_joined::<Mysql>().await;
}
