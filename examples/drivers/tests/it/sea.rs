// SPDX-License-Identifier: MIT OR Apache-2.0
//! The adapters to both versions of SeaORM.

use retryproof::{HeldLease, JoinError, Payload};

use crate::suite::{Driver, suite};

macro_rules! driver {
    ($name:ident, $service:literal, $orm:ident, $dialect:ty, $adapter:ident) => {
        struct $name($orm::DatabaseConnection);

        impl Driver for $name {
            const SERVICE: &'static str = $service;
            type Dialect = $dialect;
            type Tx = drivers::$adapter::SeaTx;
            type Source = drivers::$adapter::SeaSource;

            async fn connect(url: &str) -> Self {
                let mut options = $orm::ConnectOptions::new(url.to_owned());
                options.max_connections(1).sqlx_logging(false);
                Self($orm::Database::connect(options).await.expect("a pool"))
            }

            fn source(&self) -> Self::Source {
                drivers::$adapter::SeaSource(self.0.clone())
            }

            async fn write(tx: &mut Self::Tx, sql: &str) {
                use $orm::ConnectionTrait as _;
                tx.execute_unprepared(sql).await.expect("written");
            }

            async fn write_alone(&self, sql: &str) {
                use $orm::ConnectionTrait as _;
                self.0.execute_unprepared(sql).await.expect("written");
            }

            async fn complete_in(
                &self,
                held: HeldLease,
                sql: &str,
                value: Payload,
                commits: bool,
            ) -> Result<(), JoinError> {
                use $orm::{ConnectionTrait as _, TransactionTrait as _};
                let tx = self.0.begin().await.expect("begun");
                tx.execute_unprepared(sql).await.expect("written");
                let pending = held.complete_in(&mut drivers::$adapter::SeaPort(&tx), value).await?;
                if commits {
                    tx.commit().await.expect("committed");
                    pending.committed();
                } else {
                    tx.rollback().await.expect("rolled back");
                    pending.rolled_back().await.expect("freed");
                }
                Ok(())
            }
        }
    };
}

driver!(Postgres, "POSTGRES", sea_orm, retryproof::postgres::PostgresDialect, sea_orm_postgres);
driver!(Mysql, "MARIADB", sea_orm, retryproof::mysql::MysqlDialect, sea_orm_mysql);
driver!(
    PostgresOf1,
    "POSTGRES",
    sea_orm_1,
    retryproof::postgres::PostgresDialect,
    sea_orm_1_postgres
);
driver!(MysqlOf1, "MARIADB", sea_orm_1, retryproof::mysql::MysqlDialect, sea_orm_1_mysql);

suite!(postgres, Postgres);
suite!(mysql, Mysql);
suite!(postgres_of_1, PostgresOf1);
suite!(mysql_of_1, MysqlOf1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cmp_7_mysql_a_transaction_that_is_gone_is_not_joined() {
    crate::suite::a_transaction_that_is_gone_is_not_joined::<Mysql>().await;
    crate::suite::a_transaction_that_is_gone_is_not_joined::<MysqlOf1>().await;
}
