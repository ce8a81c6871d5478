// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RedisStore`]: implements the store contract with one key per record.

use std::time::Duration;

use redis::Value;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, LiveLease, Peeked, StoreProfile,
};
use retryproof_core::{
    Error, FencingToken, IdempotencyStore, Identity, OwnerId, Result, SharedStore, StoredResult,
};
use retryproof_store_kit::{CompletedHint, max_pause, too_large, unreadable, while_running};

use crate::config::{BULK_LIMIT, RedisConfig};
use crate::connection::Request;
use crate::error::{Failure, Recovery, unexpected_answer};
use crate::execute::Executor;
use crate::identities;
use crate::pool::sentinel_watchers::SentinelWatchers;
use crate::record::{self, Header, HeaderPhase, decimal, millis, of_another_form, stored_result};
use crate::route::RecordRoute;
use crate::statement::{get, pttl_and_header, pttl_and_value};
use crate::waiters::{FALLBACK_POLL, wait_for_change};

/// The bytes that a request needs in addition to the value: for the header, the fingerprint and the
/// command.
const VALUE_OVERHEAD: usize = 4_096;

/// Keeps records on a Redis server, on the primary of a Sentinel group, or in a Redis Cluster. [The
/// crate's page](crate) describes the store's guarantees.
#[derive(Debug)]
pub struct RedisStore {
    pub(crate) executor: Executor,
    /// The records that this process has recently found to be complete.
    pub(crate) completed: CompletedHint,
    pub(crate) max_value: usize,
    _watchers: SentinelWatchers,
}

impl RedisStore {
    /// Connects, and checks that the store can use the server. The server must be Redis 7.0 or
    /// newer, and must not be a replica. It must be a node of a Redis Cluster exactly if the
    /// configuration names a cluster (STO-8). Logs a warning if the server may evict records
    /// (STO-3).
    ///
    /// The store needs a tokio runtime that runs as long as the store is used. If that runtime ends
    /// and another runtime uses the store, the store opens a new connection.
    ///
    /// # Errors
    /// The error's [kind](retryproof_core::ErrorKind) names the cause: `Config` for an invalid
    /// prefix, an identity secret other than that of the records (ID-5), a wrong user or password,
    /// a TLS handshake that failed, or a standalone server where a cluster is configured;
    /// `Unavailable` if no server answers, only a replica does, or slots of the cluster have no
    /// primary; `Unsupported` for a node of a cluster where a server is configured, for an old
    /// server, or for TLS without the feature; `Unexpected` for a missing permission.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        Self::try_connect(config).await.map_err(|error| error.during("connect"))
    }

    async fn try_connect(config: RedisConfig) -> Result<Self> {
        let configured = config.max_value;
        let mut executor = Executor::connect(config).await?;
        identities::check(&executor).await?;
        executor.keep_mark();
        let watchers = match &executor.route {
            RecordRoute::Primary(node) => SentinelWatchers::start(node.locator()),
            RecordRoute::Cluster(_) => SentinelWatchers::default(),
        };
        warn_of_eviction(&executor).await;
        let limit = bulk_limit(&executor).await.saturating_sub(VALUE_OVERHEAD);
        Ok(Self {
            executor,
            completed: CompletedHint::new(),
            max_value: configured.map_or(limit, |bytes| bytes.min(limit)),
            _watchers: watchers,
        })
    }

    /// Converts the store to the form that an engine takes. The result can also inspect records,
    /// and lets operators change them (OPS-3). The store needs no purge: the server deletes expired
    /// records.
    #[must_use]
    pub fn into_shared(self) -> SharedStore {
        SharedStore::builder(self).with_inspect().with_force().build()
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.executor.config().prefix
    }

    pub(crate) fn key(&self, id: &Identity) -> Vec<u8> {
        record::key(self.prefix(), id)
    }

    /// Reads a record in one round trip.
    async fn read_record(&self, key: &[u8]) -> Result<Peeked, Failure> {
        let (pttl, value) = self.executor.run_pair(key, &pttl_and_value(key)).await?;
        let Value::BulkString(value) = value else { return Ok(Peeked::Absent) };
        let header = Header::of_record(&value)?;
        Ok(match header.phase {
            HeaderPhase::Released => Peeked::Absent,
            HeaderPhase::Complete => Peeked::Complete(stored_result(&header, value)?),
            HeaderPhase::InProgress => match header.remaining(pttl) {
                Some(remaining) => Peeked::Busy(header.live_lease(&value, remaining)),
                None => Peeked::Absent,
            },
        })
    }

    /// Returns the time left in the lease with token `seen`; `None` if the lease has ended, or if
    /// its record was completed or released. Reads only the header, not the stored result.
    async fn remaining_lease(
        &self,
        key: &[u8],
        seen: FencingToken,
    ) -> Result<Option<Duration>, Failure> {
        let (pttl, head) = self.executor.run_pair(key, &pttl_and_header(key)).await?;
        let Value::BulkString(head) = head else { return Ok(None) };
        if head.is_empty() {
            return Ok(None);
        }
        let header = Header::read(&head)?;
        if header.phase != HeaderPhase::InProgress || header.token != seen {
            return Ok(None);
        }
        Ok(header.remaining(pttl))
    }

    /// Returns the result of a record that this process has previously found to be complete; `None`
    /// if the record is no longer complete.
    async fn replay(&self, id: &Identity, key: &[u8]) -> Result<Option<StoredResult>, Failure> {
        if let Value::BulkString(value) = self.executor.run(key, Request::One(&get(key))).await? {
            let header = Header::of_record(&value)?;
            if header.phase == HeaderPhase::Complete {
                return Ok(Some(stored_result(&header, value)?));
            }
        }
        self.completed.forget(id);
        Ok(None)
    }

    async fn try_acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired, Failure> {
        let key = self.key(id);
        if self.completed.has(id)
            && let Some(stored) = self.replay(id, &key).await?
        {
            return Ok(Acquired::Complete(stored));
        }
        if self.executor.waits_for_replicas() {
            // Replay a complete record without using the connection that waits for replicas.
            match self.read_record(&key).await? {
                Peeked::Complete(stored) => return Ok(self.complete_as(id, stored)),
                Peeked::Busy(_) | Peeked::Absent => {}
            }
        }
        let call = self.executor.scripts().acquire(&key, req);
        let granted = |answer: &Value| match answer {
            Value::BulkString(bytes) => matches!(bytes.first(), Some(b'G' | b'T')),
            _ => false,
        };
        match self.executor.run_script_and_wait(&call, granted).await {
            Ok(Value::BulkString(answer)) => match answer.first() {
                Some(b'r') => {
                    let header = Header::of_record(&answer)?;
                    Ok(self.complete_as(id, stored_result(&header, answer)?))
                }
                Some(b'B') => Ok(Acquired::Busy(busy(&answer, Some(req))?)),
                Some(b'G' | b'T') => {
                    let token = FencingToken::new(decimal(&answer[1..], "token")?);
                    let lease = Duration::from_millis(millis(req.lease));
                    Ok(Acquired::Granted(Grant::new(token, lease, answer[0] == b'T')))
                }
                _ => Err(of_another_form().into()),
            },
            Ok(_) => Err(unexpected_answer().into()),
            // While the server refuses writes, stored results can still be replayed.
            Err(failure) if failure.recovery() == Recovery::ReadOnly => {
                match self.read_record(&key).await {
                    Ok(Peeked::Complete(stored)) => Ok(self.complete_as(id, stored)),
                    Ok(Peeked::Busy(lease)) => Ok(Acquired::Busy(lease)),
                    Ok(Peeked::Absent) | Err(_) => Err(failure),
                }
            }
            Err(failure) => Err(failure),
        }
    }

    fn complete_as(&self, id: &Identity, stored: StoredResult) -> Acquired {
        self.completed.note(id, Duration::MAX);
        Acquired::Complete(stored)
    }
}

impl IdempotencyStore for RedisStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.try_acquire(id, req).await.map_err(during("acquire", id))
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        self.read_record(&self.key(id)).await.map_err(during("peek", id))
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        if at_most.is_zero() {
            return Ok(());
        }
        let key = self.key(id);
        let waited = wait_for_change(&self.executor.route, &key, at_most, || {
            self.remaining_lease(&key, seen)
        })
        .await;
        waited.map_err(during("wait_for_change", id))
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        let key = self.key(id);
        let call = self.executor.scripts().extend(&key, owner, lease);
        let answer = self.executor.run_script(&call).await;
        fenced_write(answer).map_err(during("extend", id))
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        if done.value.len() > self.max_value {
            let error = too_large(done.value.len(), self.max_value);
            return Err(error.during("complete").for_identity(id));
        }
        let key = self.key(id);
        let call = self.executor.scripts().complete(&key, owner, done);
        let written = |answer: &Value| matches!(answer, Value::Int(1 | 2));
        let answer = self.executor.run_script_and_wait(&call, written).await;
        if matches!(answer, Ok(Value::Int(1 | 2))) {
            self.completed.note(id, Duration::MAX);
        }
        fenced_write(answer).map_err(during("complete", id))
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let key = self.key(id);
        let call = self.executor.scripts().release(&key, owner);
        let answer = self.executor.run_script(&call).await;
        fenced_write(answer).map_err(during("release", id))
    }

    fn profile(&self) -> StoreProfile {
        let step = Duration::from_millis(1);
        StoreProfile::new("redis")
            .with_durations(step, step)
            .with_max_poll(max_pause(FALLBACK_POLL))
            .with_max_value(self.max_value)
            .with_reclaim()
            .with_identity_secret(self.executor.config().identity_secret.clone())
    }
}

/// The conversion keeps every capability of the store.
impl From<RedisStore> for SharedStore {
    fn from(store: RedisStore) -> Self {
        store.into_shared()
    }
}

async fn warn_of_eviction(executor: &Executor) {
    for policy in executor.server_settings("maxmemory-policy").await {
        if policy != "noeviction" {
            tracing::warn!(
                policy,
                "the server may evict records when its memory is full, so actions may run again; \
                 set maxmemory-policy to noeviction"
            );
        }
    }
}

/// Returns the limit on the size of an argument and of a stored string: of all servers, the
/// smallest limit.
async fn bulk_limit(executor: &Executor) -> usize {
    let settings = executor.server_settings("proto-max-bulk-len").await;
    let limits = settings.iter().filter_map(|bytes| bytes.parse::<usize>().ok());
    limits.min().map_or(BULK_LIMIT, |bytes| bytes.min(BULK_LIMIT))
}

/// Decodes the answer of a script that changes a record only for its owner.
fn fenced_write(answer: Result<Value, Failure>) -> Result<FencedWrite, Failure> {
    match answer? {
        Value::Int(0) => Ok(FencedWrite::NotOwner),
        Value::Int(1) => Ok(FencedWrite::Applied),
        Value::Int(2) => Ok(FencedWrite::AlreadyApplied),
        Value::Int(_) => Err(of_another_form().into()),
        _ => Err(unexpected_answer().into()),
    }
}

/// Decodes a script's answer about a live lease. The answer is a letter, the lease's remaining
/// milliseconds as 19 digits, and the record. `req` is the request of an acquire.
pub(crate) fn busy(answer: &[u8], req: Option<&AcquireRequest>) -> Result<LiveLease> {
    let (remaining, record) = answer
        .get(1..)
        .and_then(|rest| rest.split_at_checked(19))
        .ok_or_else(|| unreadable("length"))?;
    let remaining = Duration::from_millis(decimal(remaining, "remaining")?);
    let header = Header::of_record(record)?;
    let held = header.fingerprint_in(record)?;
    let mismatch = req.is_some_and(|req| req.differs_from(held.as_ref()));
    Ok(header.live_lease(record, remaining).with_mismatch(mismatch))
}

fn during<'a>(operation: &'static str, id: &'a Identity) -> impl FnOnce(Failure) -> Error + 'a {
    move |failure| while_running(failure.into_error()).during(operation).for_identity(id)
}
