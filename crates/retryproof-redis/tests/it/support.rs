// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared and private servers, short functions for calls, and the check that nothing shows a key.

pub(crate) mod server;
mod written;

use std::error::Error as _;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, HolderNote,
};
use retryproof_core::{
    CodecId, Error, ErrorKind, IdempotencyStore, Identity, Opened, OwnerId, Payload, StoredResult,
};
use retryproof_redis::{RedisConfig, RedisStore};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;

use crate::support::server::Server;
pub(crate) use crate::support::written::Written;

pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
/// A text in keys and values. No error may show it (ID-4).
pub(crate) const CANARY: &str = "canary-4711";

/// Returns the URL of a server that `cargo xtask services up` has started, from the environment
/// variable or else from the file that the command wrote.
pub(crate) fn service(variable: &str, name: &str) -> String {
    if let Ok(url) = std::env::var(variable) {
        return url;
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/services/env");
    let written = std::fs::read_to_string(file).unwrap_or_default();
    written
        .lines()
        .find_map(|line| line.strip_prefix(variable)?.strip_prefix('='))
        .map(str::to_owned)
        .unwrap_or_else(|| panic!("no {name} for this test: run `cargo xtask services up {name}`"))
}

/// Returns a prefix that only this caller uses.
pub(crate) fn own_prefix() -> String {
    OwnerId::new()
        .as_bytes()
        .iter()
        .take(6)
        .fold("t".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

/// Opens a connection that is independent of the store's, to the server that the `redis://` URL
/// names.
pub(crate) async fn stranger(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("a URL");
    client.get_multiplexed_async_connection().await.expect("a connection")
}

pub(crate) async fn ask<T: redis::FromRedisValue>(
    conn: &mut MultiplexedConnection,
    line: &str,
) -> T {
    let mut words = line.split(' ');
    let mut cmd = redis::cmd(words.next().expect("a command"));
    words.for_each(|word| {
        cmd.arg(word);
    });
    cmd.query_async(conn).await.unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Returns the key of a record, as `src/record/key.rs` builds it.
pub(crate) fn key_of(config_prefix: &str, id: &Identity) -> String {
    let (scope, key) = (id.scope().as_str(), id.key().expose());
    format!("{config_prefix}:{{{}:{scope}:{key}}}", scope.len())
}

pub(crate) fn id(key: &str) -> Identity {
    Identity::of("redis.tests", key).expect("a valid identity")
}

pub(crate) fn request(owner: OwnerId) -> AcquireRequest {
    AcquireRequest::new(owner, LONG, DAY).with_holder(Some(note(owner)))
}

pub(crate) fn note(owner: OwnerId) -> HolderNote {
    HolderNote::new(owner, LONG, None, "tests:1")
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

pub(crate) async fn grant(store: &impl IdempotencyStore, id: &Identity, owner: OwnerId) -> Grant {
    match store.acquire(id, &request(owner)).await {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Acquires the key and completes it.
pub(crate) async fn execute(store: &impl IdempotencyStore, id: &Identity, body: &str) {
    let owner = OwnerId::new();
    grant(store, id, owner).await;
    assert_eq!(
        store.complete(id, owner, &completion(body)).await.expect("completed"),
        FencedWrite::Applied
    );
}

/// Returns the result that a duplicate call gets.
pub(crate) async fn replay(store: &impl IdempotencyStore, id: &Identity) -> String {
    match store.acquire(id, &request(OwnerId::new())).await {
        Ok(Acquired::Complete(stored)) => body(&stored),
        other => panic!("not complete: {other:?}"),
    }
}

/// Returns a configuration for the server at `url`, with a prefix that no other caller uses.
pub(crate) fn config(url: &str) -> RedisConfig {
    RedisConfig::from_url(url).expect("a good URL").with_prefix(own_prefix())
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

pub(crate) async fn refused(config: RedisConfig) -> Error {
    let error = RedisStore::connect(config).await.expect_err("it cannot connect");
    assert_eq!(error.operation(), Some("connect"), "{error}");
    assert_masked(&error);
    error
}

/// Connects to a node of a cluster, which serves its slots a moment after it has got them.
pub(crate) async fn until_connected(config: RedisConfig) -> RedisStore {
    let connecting = async {
        loop {
            match RedisStore::connect(config.clone()).await {
                Ok(store) => return store,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), connecting).await.expect("it connects in time")
}

pub(crate) async fn connected(server: &Server) -> RedisStore {
    RedisStore::connect(config(&server.url())).await.expect("it connects")
}

pub(crate) fn is(error: &Error, kind: ErrorKind, says: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    assert_masked(error);
}

/// Reads a command that the store sends to a simulated server.
pub(crate) async fn read_command(line: &mut BufReader<TcpStream>) -> std::io::Result<Vec<String>> {
    let mut head = String::new();
    line.read_line(&mut head).await?;
    let count: usize =
        head.trim_end().trim_start_matches('*').parse().map_err(std::io::Error::other)?;
    let mut words = Vec::new();
    for _ in 0..count {
        head.clear();
        line.read_line(&mut head).await?;
        let len: usize =
            head.trim_end().trim_start_matches('$').parse().map_err(std::io::Error::other)?;
        let mut word = vec![0; len + 2];
        line.read_exact(&mut word).await?;
        words.push(String::from_utf8_lossy(&word[..len]).into_owned());
    }
    Ok(words)
}
