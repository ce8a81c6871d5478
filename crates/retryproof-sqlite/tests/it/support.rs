// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory for each test, short functions for calls, and the check that nothing shows a key.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::clock::wall_clock_micros;
use retryproof_core::store::{AcquireRequest, Acquired, Completion, FencedWrite, Grant};
use retryproof_core::{
    CodecId, Error, IdempotencyStore, Identity, Opened, OwnerId, Payload, StoredResult,
};
use retryproof_sqlite::{SqliteConfig, SqliteStore};

pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
/// Part of every key and value in the tests about trouble; no error may show it (ID-4).
pub(crate) const CANARY: &str = "canary-4711";

/// A directory that is removed with its test.
#[derive(Debug)]
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name =
            format!("retryproof-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        // A killed process may have had the same process ID, and left its files.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory for the test");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("records.db")
    }

    /// Returns a configuration for a migrated file.
    pub(crate) fn config(&self) -> SqliteConfig {
        let config = SqliteConfig::new(self.file());
        config.migrate().expect("the schema is made");
        config
    }

    /// Opens a store on a migrated file.
    pub(crate) fn store(&self) -> SqliteStore {
        SqliteStore::open_with(self.config()).expect("the store opens")
    }

    /// Opens a connection that does not belong to the store.
    pub(crate) fn stranger(&self) -> rusqlite::Connection {
        let conn = rusqlite::Connection::open(self.file()).expect("the file opens");
        conn.busy_timeout(Duration::from_secs(5)).expect("a time-out is set");
        conn
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A wall clock that a test moves, in both directions.
#[derive(Clone)]
pub(crate) struct Wall(Arc<AtomicU64>);

impl Wall {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(wall_clock_micros())))
    }

    pub(crate) fn forward(&self, by: Duration) {
        self.0.fetch_add(micros(by), Ordering::SeqCst);
    }

    pub(crate) fn back(&self, by: Duration) {
        self.0.fetch_sub(micros(by), Ordering::SeqCst);
    }

    pub(crate) fn on(&self, config: SqliteConfig) -> SqliteConfig {
        let now = Arc::clone(&self.0);
        config.with_wall_clock(move || now.load(Ordering::SeqCst))
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).expect("a time of a test")
}

pub(crate) fn id(key: &str) -> Identity {
    Identity::of("sqlite.tests", key).expect("a valid identity")
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

pub(crate) async fn grant(store: &SqliteStore, id: &Identity, owner: OwnerId) -> Grant {
    match store.acquire(id, &request(owner)).await {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Acquires the key and completes it.
pub(crate) async fn execute(store: &SqliteStore, id: &Identity, body: &str) {
    let owner = OwnerId::new();
    grant(store, id, owner).await;
    assert_eq!(
        store.complete(id, owner, &completion(body)).await.expect("completed"),
        FencedWrite::Applied
    );
}

/// Returns the result that a duplicate call gets.
pub(crate) async fn replay(store: &SqliteStore, id: &Identity) -> String {
    match store.acquire(id, &request(OwnerId::new())).await {
        Ok(Acquired::Complete(stored)) => body(&stored),
        other => panic!("not complete: {other:?}"),
    }
}

/// Checks that neither the error nor its sources show a key or a value (ID-4).
pub(crate) fn assert_masked(error: &Error) {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(&format!(" {inner} {inner:?}"));
        source = inner.source();
    }
    assert!(!text.contains(CANARY), "{text}");
}
