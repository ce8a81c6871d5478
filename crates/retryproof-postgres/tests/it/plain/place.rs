// SPDX-License-Identifier: MIT OR Apache-2.0
//! A database whose users can do only what the plain dialect needs, and a role that owns its tables
//! there.

use std::time::Duration;

use retryproof_postgres::{Pooler, PostgresConfig};

use crate::support::{Stranger, Table, postgres};

use super::tap::Tap;

const DATABASE: &str = "retryproof_plain";
const ROLE: &str = "retryproof_plain";

/// The functions of PostgreSQL that the dialect calls. The server refuses all others to the role,
/// except those behind operators, casts and aggregates. The server itself calls
/// `satisfies_hash_partition`, to check in which partition a row belongs.
const ALLOWED: &str = "'clock_timestamp','convert_from','date_part','decode','length','now',\
                       'octet_length','satisfies_hash_partition','to_timestamp'";

/// Creates the database, unless an earlier test has created it. The database gets its name last, so
/// it exists only with its settings.
pub(crate) async fn database() -> String {
    let mut admin = Stranger::to(&postgres()).await;
    admin.run("SELECT pg_advisory_lock(4711)").await;
    let url = in_database(DATABASE);
    let found = format!("SELECT count(*) FROM pg_database WHERE datname='{DATABASE}'");
    if admin.number(found).await == 0 {
        let new = format!("{DATABASE}_new");
        admin.run(format!("DROP DATABASE IF EXISTS {new}")).await;
        admin.run(format!("CREATE DATABASE {new}")).await;
        {
            let mut inside = Stranger::to(&in_database(&new)).await;
            inside.run(setup()).await;
        }
        let rename = format!("ALTER DATABASE {new} RENAME TO {DATABASE}");
        // The connection above may take a moment to end.
        for _ in 0..100 {
            let left = format!("SELECT count(*) FROM pg_stat_activity WHERE datname='{new}'");
            if admin.number(left).await == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        admin.run(rename).await;
    }
    admin.run("SELECT pg_advisory_unlock(4711)").await;
    url
}

fn in_database(name: &str) -> String {
    let url = postgres();
    let (server, _) = url.rsplit_once('/').expect("a database");
    format!("{server}/{name}")
}

/// Only a superuser may create a function, in any language, or run a `DO` block.
fn setup() -> String {
    format!(
        "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname='{ROLE}') THEN CREATE ROLE \
         {ROLE} LOGIN PASSWORD 'secret'; END IF; END $$; \
         GRANT CREATE ON SCHEMA public TO {ROLE}; \
         REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC; REVOKE USAGE ON LANGUAGE sql FROM PUBLIC; \
         DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT p.oid::regprocedure FROM pg_proc AS p \
         WHERE p.prokind IN ('f','w') AND p.proname NOT IN ({ALLOWED}) AND \
         NOT EXISTS (SELECT FROM pg_operator WHERE oprcode=p.oid) AND \
         NOT EXISTS (SELECT FROM pg_cast WHERE castfunc=p.oid) LOOP \
         EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f); END LOOP; END $$"
    )
}

/// Returns the URL of the role. The connection is not encrypted, so that a [`Tap`] can read it.
pub(crate) fn as_role(url: &str, parameters: &str) -> String {
    let (_, rest) = url.split_once('@').expect("a user");
    format!("postgres://{ROLE}:secret@{rest}?sslmode=disable{parameters}")
}

/// Gives connections and calls time on a busy machine.
pub(crate) fn patient(config: PostgresConfig) -> PostgresConfig {
    const PATIENCE: Duration = Duration::from_secs(30);
    config.with_connect_timeout(PATIENCE).with_call_timeout(PATIENCE)
}

/// A table of the role, and the only way of the store to the server.
pub(crate) struct Place {
    pub(crate) table: Table,
    pub(crate) tap: Tap,
    /// The server behind the tap, with the role.
    pub(crate) url: String,
}

impl Place {
    /// Returns a place whose table was not created. The parameters follow in the URL.
    pub(crate) async fn absent(parameters: &str) -> Self {
        let table = Table::absent(database().await);
        let tap = Tap::to(&table.url).await;
        let url = as_role(&tap.through(&table.url), parameters);
        Self { table, tap, url }
    }

    /// Returns a place whose table the role has created.
    pub(crate) async fn new(parameters: &str) -> Self {
        let place = Self::absent(parameters).await;
        place.config().migrate().await.expect("the role creates its tables");
        place
    }

    pub(crate) fn config(&self) -> PostgresConfig {
        let plain = format!("{}&dialect=plain", self.url);
        let config = PostgresConfig::from_url(&plain).expect("a valid URL");
        patient(config).with_table_name(&self.table.name).with_pooler(Pooler::Session)
    }
}
