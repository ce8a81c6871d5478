// SPDX-License-Identifier: MIT OR Apache-2.0
//! The key `PREFIX:identity`, which stores whether the records have hashed identities (ID-5):
//! [`RedisConfig::migrate`] writes the key, and connecting checks it.

use redis::Value;
use retryproof_core::store::StoreFinding;
use retryproof_core::{Error, ErrorKind, IdentitySecret, Result};
use retryproof_store_kit::{other_identities, unreadable};

use crate::config::RedisConfig;
use crate::connection::Request;
use crate::error::{Failure, unexpected_answer};
use crate::execute::Executor;
use crate::identity_mark::key;
use crate::record::identity;
use crate::statement::{get, set_if_absent};

/// How many keys the server examines in one step of the search for plain records.
const SCAN_COUNT: usize = 1_000;

impl RedisConfig {
    /// Stores whether the prefix has plain or hashed identities (ID-5). Only hashed identities need
    /// this call: make it once, before the first program connects. Repeating the call is safe. With
    /// a secret, the first call reads all keys of the database to find out whether the prefix
    /// already has records.
    ///
    /// # Errors
    /// [`Config`](retryproof_core::ErrorKind::Config) if the prefix was set up with another secret,
    /// or has records with plain identities; otherwise the errors of
    /// [`RedisStore::connect`](crate::RedisStore::connect).
    pub async fn migrate(&self) -> Result<()> {
        self.try_migrate().await.map_err(|error| error.during("migrate"))
    }

    async fn try_migrate(&self) -> Result<()> {
        let executor = Executor::connect(self.clone()).await?;
        let secret = self.identity_secret.as_ref();
        if let Some(mark) = recorded(&executor).await? {
            return IdentitySecret::check(secret, Some(mark));
        }
        if secret.is_some() && has_plain_records(&executor).await.map_err(Failure::into_error)? {
            return IdentitySecret::check(secret, None);
        }
        let mark = secret.map_or(0, IdentitySecret::mark);
        let key = key(&self.prefix);
        let write = set_if_absent(&key, mark);
        executor.run(&key, Request::One(&write)).await.map_err(Failure::into_error)?;
        // Check the stored mark, because another process might have written its own mark first.
        check(&executor).await
    }
}

/// Fails if the records were set up with a secret other than the configured secret.
pub(crate) async fn check(executor: &Executor) -> Result<()> {
    let mark = recorded(executor).await?;
    check_mark(executor.config().identity_secret.as_ref(), mark)
}

fn check_mark(secret: Option<&IdentitySecret>, recorded: Option<i64>) -> Result<()> {
    match (secret, recorded) {
        (Some(_), None) => Err(Error::new(
            ErrorKind::Config,
            "the store was set up without an identity secret, or the server has evicted or lost \
             the key `PREFIX:identity`; run `retryproof migrate` with this program's \
             `identity-secret`, which changes nothing if the store has plain keys",
        )),
        (secret, recorded) => IdentitySecret::check(secret, recorded),
    }
}

/// Returns a finding if the records were set up with a secret other than `secret` (OPS-5). `answer`
/// is the server's answer to a GET of the mark's [`key`].
pub(crate) fn finding(answer: Value, secret: Option<&IdentitySecret>) -> Option<StoreFinding> {
    if matches!(answer, Value::ServerError(_)) {
        // Return no finding: the checks of the server and of the user's rights already report why
        // the server refuses to answer.
        return None;
    }
    match mark(answer) {
        Ok(None) if secret.is_some() => {
            let error = check_mark(secret, None).err()?;
            Some(StoreFinding::error(
                "identities",
                format!("The store does not open with this configuration ({error})."),
                "Run `retryproof migrate` with this `identity-secret`. Also set `maxmemory-policy \
                 noeviction`, so that the server does not evict the key again.",
            ))
        }
        recorded => other_identities(recorded.and_then(|mark| check_mark(secret, mark))),
    }
}

async fn recorded(executor: &Executor) -> Result<Option<i64>> {
    let key = key(&executor.config().prefix);
    let read = get(&key);
    mark(executor.run(&key, Request::One(&read)).await.map_err(Failure::into_error)?)
}

fn mark(answer: Value) -> Result<Option<i64>> {
    match answer {
        Value::Nil => Ok(None),
        Value::BulkString(digits) => {
            let mark = str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok());
            mark.map(Some).ok_or_else(|| unreadable("identity"))
        }
        _ => Err(unexpected_answer()),
    }
}

/// Whether the prefix has a record whose key is not a digest. If all keys are digests, the records
/// can belong to a store with hashed identities that lost its mark in a failover.
async fn has_plain_records(executor: &Executor) -> Result<bool, Failure> {
    let prefix = &executor.config().prefix;
    let is_plain = |key: &Vec<u8>| {
        identity(prefix, key).is_some_and(|id| !IdentitySecret::is_digest(id.key().expose()))
    };
    let mut after = None;
    loop {
        let step = executor.scan(after.as_ref(), SCAN_COUNT).await?;
        if step.keys.iter().any(is_plain) {
            return Ok(true);
        }
        after = step.next;
        if after.is_none() {
            return Ok(false);
        }
    }
}
