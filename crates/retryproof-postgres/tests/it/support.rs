// SPDX-License-Identifier: MIT OR Apache-2.0
//! The servers of the tests, a table for each test, short functions for calls, and the check that
//! nothing shows a key.

pub(crate) mod server;

use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, Completion, FencedWrite, Grant};
use retryproof_core::{
    CodecId, Error, IdempotencyStore, Identity, Opened, OwnerId, Payload, StoredResult,
};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};
use sqlx_core::connection::Connection as _;
use sqlx_core::executor::Executor as _;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::{PgConnection, PgRow};

pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
/// A text in keys and values. No error may show it (ID-4).
pub(crate) const CANARY: &str = "canary-4711";

/// Returns the variable `name` from the environment, or else from the file that
/// `cargo xtask services` wrote.
pub(crate) fn service(name: &str, up: &str) -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/services/env");
    let written = || {
        let lines = std::fs::read_to_string(file).ok()?;
        lines.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    };
    std::env::var(name)
        .ok()
        .or_else(written)
        .unwrap_or_else(|| panic!("no {name} for this test: run `cargo xtask services up {up}`"))
}

pub(crate) fn postgres() -> String {
    service("RETRYPROOF_TEST_POSTGRES", "postgres")
}

pub(crate) fn pgbouncer() -> String {
    service("RETRYPROOF_TEST_PGBOUNCER", "pgbouncer")
}

/// A connection that does not belong to the store, with helpers for tests.
pub(crate) struct Stranger(PgConnection);

impl Stranger {
    pub(crate) async fn to(url: &str) -> Self {
        Self(PgConnection::connect(url).await.expect("the server should accept the connection"))
    }

    pub(crate) async fn run(&mut self, sql: impl Into<String>) -> u64 {
        let sql = sql.into();
        let done = self.0.execute(raw_sql(AssertSqlSafe(sql.clone()))).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}")).rows_affected()
    }

    pub(crate) async fn row(&mut self, sql: impl Into<String>) -> PgRow {
        let sql = sql.into();
        let row = self.0.fetch_one(raw_sql(AssertSqlSafe(sql.clone()))).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub(crate) async fn number(&mut self, sql: impl Into<String>) -> i64 {
        self.row(sql).await.try_get(0).expect("a bigint")
    }
}

/// A table that is dropped with its test.
pub(crate) struct Table {
    pub(crate) url: String,
    pub(crate) name: String,
}

impl Table {
    /// Creates a migrated table on the server, without the pooler.
    pub(crate) async fn new() -> Self {
        Self::on(postgres()).await
    }

    pub(crate) async fn on(url: String) -> Self {
        let table = Self::absent(url);
        table.config().migrate().await.expect("the schema is made");
        table
    }

    /// Returns a table that has a name, but was not created.
    pub(crate) fn absent(url: String) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let random = OwnerId::new().as_bytes()[0];
        Self { url, name: format!("t_{}_{next}_{random:02x}", std::process::id()) }
    }

    pub(crate) fn config(&self) -> PostgresConfig {
        let config = PostgresConfig::from_url(&self.url).expect("a valid URL");
        config.with_table_name(&self.name).with_pooler(Pooler::Session)
    }

    pub(crate) async fn store(&self) -> PostgresStore {
        PostgresStore::connect(self.config()).await.expect("the store connects")
    }

    pub(crate) async fn stranger(&self) -> Stranger {
        Stranger::to(&self.url).await
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let (url, name) = (self.url.clone(), self.name.clone());
        // Drop the tables on a separate runtime, because this one may be shutting down.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                // A server that a test has stopped keeps its tables.
                if let Ok(mut conn) = PgConnection::connect(&url).await {
                    let sql = format!(
                        "DROP TABLE IF EXISTS \"{name}\", \"{name}_meta\", \"{name}_audit\", \
                         \"{name}_ledger\"; DROP FUNCTION IF EXISTS \"{name}_grant_1\", \"{name}_complete_1\", \
                         \"{name}_conflict\""
                    );
                    let _ = conn.execute(raw_sql(AssertSqlSafe(sql))).await;
                }
            });
        });
        let _ = dropping.join();
    }
}

/// Returns the bytes of `text` as an SQL expression.
pub(crate) fn hex(text: &str) -> String {
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("decode('{digits}','hex')")
}

/// Two keys whose FNV-1a hashes in the scope of these tests are the same. Finding such a pair takes
/// a minute.
pub(crate) const COLLIDING: [&str; 2] = [r"I\WA6R]02Z:", "lX`d]Ko58_3"];

pub(crate) fn id(key: &str) -> Identity {
    Identity::of("postgres.tests", key).expect("a valid identity")
}

pub(crate) fn request(owner: OwnerId) -> AcquireRequest {
    AcquireRequest::new(owner, LONG, DAY)
}

pub(crate) fn completion(body: &str) -> Completion {
    let payload = Payload::new(CodecId::BYTES, 1, body.as_bytes());
    Completion::new(payload.envelope().clone(), DAY, None)
}

pub(crate) fn body(stored: &StoredResult) -> String {
    match stored.open(None) {
        Ok(Opened::Value(payload)) => String::from_utf8_lossy(payload.body()).into_owned(),
        other => panic!("no value: {other:?}"),
    }
}

pub(crate) async fn grant(store: &PostgresStore, id: &Identity, owner: OwnerId) -> Grant {
    match store.acquire(id, &request(owner)).await {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Acquires the key and completes it.
pub(crate) async fn execute(store: &PostgresStore, id: &Identity, body: &str) {
    let owner = OwnerId::new();
    grant(store, id, owner).await;
    assert_eq!(
        store.complete(id, owner, &completion(body)).await.expect("completed"),
        FencedWrite::Applied
    );
}

/// Returns the result that a duplicate call gets.
pub(crate) async fn replay(store: &PostgresStore, id: &Identity) -> String {
    match store.acquire(id, &request(OwnerId::new())).await {
        Ok(Acquired::Complete(stored)) => body(&stored),
        other => panic!("not complete: {other:?}"),
    }
}

/// Checks that neither the error nor its sources show a key or a value (ID-4).
pub(crate) fn assert_masked(error: &Error) {
    let text = whole(error);
    let as_hex: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert!(!text.contains(CANARY) && !text.contains(&as_hex), "{text}");
}

/// Returns all texts of an error and of its sources.
pub(crate) fn whole(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(&format!(" {inner} {inner:?}"));
        source = inner.source();
    }
    text
}
