// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table for each test on the real server, short functions for calls, and the check that nothing
//! shows a key.

pub(crate) mod server;

use std::error::Error as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, HolderNote,
};
use retryproof_core::{
    CodecId, Error, IdempotencyStore, Identity, Opened, OwnerId, Payload, StoredResult,
};
use retryproof_mysql::{MysqlConfig, MysqlStore};
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
/// A text in keys and values. No error may show it (ID-4).
pub(crate) const CANARY: &str = "canary-4711";

/// Returns the variable `name` from the environment, or else from the file that
/// `cargo xtask services` wrote.
pub(crate) fn service(name: &str) -> Option<String> {
    if let Ok(value) = std::env::var(name) {
        return Some(value);
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/services/env");
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
}

/// Returns the URL of the server.
pub(crate) fn url() -> String {
    service("RETRYPROOF_TEST_MARIADB")
        .expect("no MariaDB for this test: run `cargo xtask services up mariadb`")
}

/// Returns the server's URL, with another user, password or database.
pub(crate) fn url_as(user: &str, password: &str, database: Option<&str>) -> String {
    let url = url();
    let (_, place) = url.split_once('@').expect("a user in the URL");
    let (host, own) = place.split_once('/').expect("a database in the URL");
    format!("mysql://{user}:{password}@{host}/{}", database.unwrap_or(own))
}

/// Returns a name that no other test uses.
pub(crate) fn unique(what: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{what}_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Opens a connection that is independent of the store's and has all privileges.
pub(crate) async fn stranger() -> MySqlConnection {
    MySqlConnection::connect(&url()).await.expect("the server answers")
}

pub(crate) async fn sql(conn: &mut MySqlConnection, text: &str) -> u64 {
    conn.execute(AssertSqlSafe(text))
        .await
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .rows_affected()
}

/// A migrated table that is dropped with its test.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: String,
    url: String,
}

impl Table {
    pub(crate) async fn new() -> Self {
        let table = Self::named(unique("it"));
        table.config().migrate().await.expect("the schema is made");
        table
    }

    /// Returns a table with this name, which need not exist.
    pub(crate) fn named(name: String) -> Self {
        Self { name, url: url() }
    }

    pub(crate) fn config(&self) -> MysqlConfig {
        self.config_at(&self.url)
    }

    pub(crate) fn config_at(&self, url: &str) -> MysqlConfig {
        MysqlConfig::from_url(url).expect("a valid URL").with_table_name(&self.name)
    }

    pub(crate) async fn store(&self) -> MysqlStore {
        MysqlStore::connect(self.config()).await.expect("the store connects")
    }
}

impl Drop for Table {
    /// Drops the tables on a separate thread and runtime, because a `Table` may be dropped inside a
    /// runtime.
    fn drop(&mut self) {
        let (url, name) = (self.url.clone(), self.name.clone());
        let gone = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut conn =
                    MySqlConnection::connect(&url).await.map_err(std::io::Error::other)?;
                for suffix in ["", "_meta", "_audit", "_ledger"] {
                    let drop = format!("DROP TABLE IF EXISTS `{name}{suffix}`");
                    conn.execute(AssertSqlSafe(drop)).await.map_err(std::io::Error::other)?;
                }
                Ok::<_, std::io::Error>(())
            })
        });
        if !matches!(gone.join(), Ok(Ok(()))) {
            eprintln!("the table {} stays behind", self.name);
        }
    }
}

pub(crate) fn id(key: &str) -> Identity {
    Identity::of("mysql.tests", key).expect("a valid identity")
}

/// Returns a request with a note about its holder (REC-2).
pub(crate) fn request(owner: OwnerId) -> AcquireRequest {
    let note = HolderNote::new(owner, LONG, None, "tests:1");
    AcquireRequest::new(owner, LONG, DAY).with_holder(Some(note))
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

pub(crate) async fn grant(store: &MysqlStore, id: &Identity, owner: OwnerId) -> Grant {
    match store.acquire(id, &request(owner)).await {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Acquires the key and completes it.
pub(crate) async fn execute(store: &MysqlStore, id: &Identity, body: &str) {
    let owner = OwnerId::new();
    grant(store, id, owner).await;
    assert_eq!(
        store.complete(id, owner, &completion(body)).await.expect("completed"),
        FencedWrite::Applied
    );
}

/// Returns the result that a duplicate call gets.
pub(crate) async fn replay(store: &MysqlStore, id: &Identity) -> String {
    match store.acquire(id, &request(OwnerId::new())).await {
        Ok(Acquired::Complete(stored)) => body(&stored),
        other => panic!("not complete: {other:?}"),
    }
}

/// Checks that neither the error nor its sources show a key, a value or a password (ID-4).
pub(crate) fn assert_masked(error: &Error) {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(&format!(" {inner} {inner:?}"));
        source = inner.source();
    }
    assert!(!text.contains(CANARY), "{text}");
}
