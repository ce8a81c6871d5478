// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance kit (STO-2) on a real server, once with `INSERT … RETURNING`, and once as if the
//! server's INSERT could not return rows.

use std::sync::Arc;

use retryproof_core::Identity;
use retryproof_mysql::{MysqlConfig, MysqlStore, MysqlTx};
use retryproof_testkit::{Ledger, StoreSetup, Subject, SubjectBuilder};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{AssertSqlSafe, Executor as _, Row as _, raw_sql};

use crate::support::{Table, sql, stranger, url};

/// The ledger of the conformance kit: a table in the store's database, to which joined transactions
/// write.
struct Rows(Arc<Table>);

impl Rows {
    fn table(&self) -> String {
        format!("{}_ledger", self.0.name)
    }
}

impl Ledger<MysqlTx> for Rows {
    async fn write(&self, tx: &mut MysqlTx) -> Result<(), String> {
        let text = AssertSqlSafe(format!("INSERT INTO {} VALUES ('paid')", self.table()));
        tx.execute(text).await.map(drop).map_err(|error| error.to_string())
    }

    async fn lose(&self, tx: &mut MysqlTx) {
        // Roll back, as the server does after a deadlock.
        tx.execute(raw_sql("ROLLBACK")).await.expect("the transaction is gone");
    }

    async fn rows(&self) -> u64 {
        let (mut conn, table) = (stranger().await, self.table());
        sql(
            &mut conn,
            &format!("CREATE TABLE IF NOT EXISTS {table} (what TEXT NOT NULL) ENGINE=InnoDB"),
        )
        .await;
        let row = conn.fetch_one(AssertSqlSafe(format!("SELECT count(*) FROM {table}"))).await;
        row.expect("the rows are counted").get::<i64, _>(0).unsigned_abs()
    }
}

async fn subject(table: Table, config: MysqlConfig) -> SubjectBuilder<MysqlStore> {
    let store = MysqlStore::connect(config.clone()).await.expect("the store connects");
    let table = Arc::new(table);
    let pool =
        MySqlPoolOptions::new().max_connections(2).connect_lazy(&url()).expect("a valid URL");
    let rows = Rows(Arc::clone(&table));
    let another = {
        let (config, table) = (config.clone(), Arc::clone(&table));
        move || {
            let (config, _table) = (config.clone(), Arc::clone(&table));
            async move { MysqlStore::connect(config).await.expect("it connects again").into_shared() }
        }
    };
    let identities = {
        let config = config.clone();
        // When the test subject is dropped, this list drops the tables.
        let tables = parking_lot::Mutex::new(Vec::new());
        move |setup: StoreSetup| {
            tables.lock().push(Table::named(setup.name.clone()));
            let config = config.clone().with_table_name(setup.name);
            let config = match setup.secret {
                Some(secret) => config.with_identity_secret(secret),
                None => config,
            };
            async move {
                if setup.migrates {
                    config.migrate().await?;
                }
                Ok(MysqlStore::connect(config).await?.into_shared())
            }
        }
    };
    let corrupt = {
        let table = Arc::clone(&table);
        move |id: Identity| {
            let text = format!("UPDATE `{}` SET state = 7 WHERE scope = ? AND k = ?", table.name);
            async move {
                let spoilt = sqlx::query(AssertSqlSafe(text))
                    .bind(id.scope().as_str().as_bytes())
                    .bind(id.key().expose().as_bytes())
                    .execute(&mut stranger().await)
                    .await
                    .expect("the row is spoilt");
                assert_eq!(spoilt.rows_affected(), 1);
            }
        }
    };
    // The checksum changes when any row changes.
    let writes = move || {
        let text = format!("CHECKSUM TABLE `{}`", table.name);
        async move {
            let row = sqlx::query(AssertSqlSafe(text))
                .fetch_one(&mut stranger().await)
                .await
                .expect("a checksum");
            row.try_get::<i64, _>(1).expect("a number").unsigned_abs()
        }
    };
    Subject::of(store)
        .with_purge()
        .with_purge_claims()
        .with_wake_ups()
        .with_inspect()
        .with_force()
        .with_audit()
        .with_joined(pool, rows)
        .with_another(another)
        .with_identities(identities)
        .with_corrupt(corrupt)
        .with_writes(writes)
}

mod returning {
    use super::*;

    async fn returning() -> Subject {
        let table = Table::new().await;
        let config = table.config();
        subject(table, config).await.build()
    }

    retryproof_testkit::conformance! { time = real, factory = returning }
}

mod portable {
    use super::*;

    async fn portable() -> Subject {
        let table = Table::new().await;
        let config = table.config().with_returning(false);
        subject(table, config).await.build()
    }

    retryproof_testkit::conformance! { time = real, factory = portable }
}
