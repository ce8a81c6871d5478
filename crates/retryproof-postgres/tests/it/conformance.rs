// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance kit (STO-2): on PostgreSQL, again behind pgbouncer in transaction mode, and on a
//! primary with a synchronous standby, there on a table with partitions (STO-3).

use std::sync::Arc;

use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore, PostgresTx};
use retryproof_testkit::{Ledger, StoreSetup, Subject, SubjectBuilder};
use sqlx_core::executor::Executor as _;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::PgPoolOptions;

use crate::support::{Table, hex, pgbouncer, postgres, service};

/// The ledger of the conformance kit: a table in the store's database, to which joined transactions
/// write.
struct Rows(Arc<Table>);

impl Rows {
    fn table(&self) -> String {
        format!("\"{}_ledger\"", self.0.name)
    }
}

impl Ledger<PostgresTx> for Rows {
    async fn write(&self, tx: &mut PostgresTx) -> Result<(), String> {
        let text = AssertSqlSafe(format!("INSERT INTO {} VALUES ('paid')", self.table()));
        tx.execute(text).await.map(drop).map_err(|error| error.to_string())
    }

    async fn lose(&self, tx: &mut PostgresTx) {
        tx.execute("SELECT 1/0").await.expect_err("the transaction is aborted");
    }

    async fn rows(&self) -> u64 {
        let (mut other, table) = (self.0.stranger().await, self.table());
        let made = format!(
            "CREATE TABLE IF NOT EXISTS {table} (what text NOT NULL); GRANT INSERT ON {table} TO \
             PUBLIC"
        );
        other.run(made).await;
        other.number(format!("SELECT count(*) FROM {table}")).await.unsigned_abs()
    }
}

/// Returns the store on `url`. The test itself creates, damages and drops its tables on `direct`,
/// without a pooler and on one host.
async fn subject(direct: String, url: String, pooler: Pooler) -> Subject {
    let config = PostgresConfig::from_url(&url).expect("a valid URL").with_pooler(pooler);
    subject_of(Table::on(direct).await, config).await
}

async fn subject_of(table: Table, config: PostgresConfig) -> Subject {
    let app = table.url.clone();
    subject_on(table, config, &app, ()).await.with_wake_ups().build()
}

/// Returns the store with this configuration on a migrated table. The application's pool for joined
/// transactions connects to `app`. The subject keeps `proxies` until its end.
pub(crate) async fn subject_on(
    table: Table,
    config: PostgresConfig,
    app: &str,
    proxies: impl Send + Sync + 'static,
) -> SubjectBuilder<PostgresStore> {
    let table = Arc::new(table);
    let config =
        config.with_table_name(&table.name).with_max_connections(8).with_max_value(2 << 20);
    let direct = table.url.clone();
    let store = PostgresStore::connect(config.clone()).await.expect("the store connects");
    let another = {
        let (config, table) = (config.clone(), Arc::clone(&table));
        move || {
            let (config, _table) = (config.clone(), Arc::clone(&table));
            async move { PostgresStore::connect(config).await.expect("it connects again").into_shared() }
        }
    };
    let identities = {
        let config = config.clone();
        // When the test subject is dropped, this list drops the tables.
        let tables = parking_lot::Mutex::new(Vec::new());
        move |setup: StoreSetup| {
            tables.lock().push(Table { url: direct.clone(), name: setup.name.clone() });
            let config = config.clone().with_table_name(setup.name);
            let config = match setup.secret {
                Some(secret) => config.with_identity_secret(secret),
                None => config,
            };
            async move {
                if setup.migrates {
                    config.migrate().await?;
                }
                Ok(PostgresStore::connect(config).await?.into_shared())
            }
        }
    };
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy(app).expect("a valid URL");
    let rows = Rows(Arc::clone(&table));
    let corrupt = {
        let table = Arc::clone(&table);
        move |id: retryproof_core::Identity| {
            let table = Arc::clone(&table);
            async move {
                let (scope, key) = (hex(id.scope().as_str()), hex(id.key().expose()));
                let sql = format!(
                    "UPDATE \"{}\" SET state=7 WHERE scope={scope} AND key={key}",
                    table.name
                );
                assert_eq!(table.stranger().await.run(sql).await, 1);
            }
        }
    };
    // The result covers the versions and locks of all rows, so it changes with every write and
    // every row lock.
    let writes = {
        let table = Arc::clone(&table);
        move || {
            let _ = &proxies;
            let table = Arc::clone(&table);
            async move {
                let rows = "string_agg(tableoid::text||ctid::text||xmin::text||xmax::text, ',' \
                            ORDER BY tableoid, ctid)";
                let sql =
                    format!("SELECT hashtext(coalesce({rows},''))::bigint FROM \"{}\"", table.name);
                u64::from_ne_bytes(table.stranger().await.number(sql).await.to_ne_bytes())
            }
        }
    };
    Subject::of(store)
        .with_purge()
        .with_purge_claims()
        .with_inspect()
        .with_force()
        .with_audit()
        .with_joined(pool, rows)
        .with_another(another)
        .with_identities(identities)
        .with_corrupt(corrupt)
        .with_writes(writes)
}

mod direct {
    use super::*;

    async fn direct() -> Subject {
        subject(postgres(), postgres(), Pooler::Session).await
    }

    retryproof_testkit::conformance! { time = real, factory = direct }
}

mod behind_pgbouncer {
    use super::*;

    async fn behind_pgbouncer() -> Subject {
        subject(postgres(), pgbouncer(), Pooler::Transaction).await
    }

    retryproof_testkit::conformance! { time = real, factory = behind_pgbouncer }
}

/// Several hosts (STO-7): each commit waits for the standby. The table has partitions.
mod with_a_standby {
    use super::*;

    async fn with_a_standby() -> Subject {
        let url = service("RETRYPROOF_TEST_STANDBY", "standby");
        let (login, hosts) = url.split_once('@').expect("a user");
        let (primary, rest) = hosts.split_once(',').expect("two hosts");
        let (_, database) = rest.split_once('/').expect("a database");
        let table = Table::absent(format!("{login}@{primary}/{database}"));
        table.config().with_partitions(5).migrate().await.expect("migrated");
        let config = PostgresConfig::from_url(&url).expect("a valid URL");
        subject_of(table, config.with_partitions(5)).await
    }

    retryproof_testkit::conformance! { time = real, factory = with_a_standby }
}
