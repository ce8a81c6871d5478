// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RedisStore`]: the contract on one key per record.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, Known, Peeked, StoreProfile,
};
use retryproof_core::{
    Error, ErrorKind, FencingToken, IdempotencyStore, Identity, OwnerId, Result, SharedStore,
    StoredResult,
};

use crate::config::{BULK_LIMIT, RedisConfig};
use crate::connection::{Purpose, ask_setting, setting};
use crate::error::Failure;
use crate::pool::primary::Route;
use crate::pool::sentinel::Watches;
use crate::pool::{Ask, Link};
use crate::record::{self, Header, NOBODY, State, digits, millis, tail, unreadable};
use crate::statement::{Joined, Script};
use crate::waiters::Wake;

/// How long a release leaves the last token behind (ACQ-10): longer than a clock may step back.
const RESIDUE: Duration = Duration::from_secs(3_600);
/// Header, fingerprint and command beside a value.
const OVERHEAD: usize = 4_096;

/// Records in a Redis server, or in the primary of a Sentinel group. [The crate's page](crate) says
/// what it promises.
#[derive(Debug)]
pub struct RedisStore {
    route: Arc<Route>,
    calls: Link,
    /// Beside it, where replicas are waited for: there each caller waits for all before it.
    waiting: Option<Link>,
    pub(crate) wake: Wake,
    known: Known,
    max_value: usize,
    _watches: Watches,
}

impl RedisStore {
    /// Connects, and sees whether the server is one that the store can use: Redis 7.0 or newer, no
    /// cluster, no replica. Warns when the server may evict records (STO-3).
    ///
    /// It needs a runtime of tokio that goes on for as long as the store is used; in another one
    /// the connection is made again.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a prefix or TLS that cannot be, [`ErrorKind::Unavailable`] when no
    /// server answers, [`ErrorKind::Unsupported`] for a cluster or an old server,
    /// [`ErrorKind::Unexpected`] for a replica, a wrong password, a missing right.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        Self::connected(config).await.map_err(|error| error.during("connect"))
    }

    async fn connected(config: RedisConfig) -> Result<Self> {
        config.check()?;
        let most = config.max_value;
        let waits = config.wait.is_some();
        let route = Arc::new(Route::new(config));
        let calls = Link::new(Arc::clone(&route), Purpose::Calls);
        calls.open().await?;
        let waiting = waits.then(|| Link::new(Arc::clone(&route), Purpose::Waiting));
        let wake = Wake::new(Arc::clone(&route));
        let watches = Watches::start(&route);
        let mut store = Self {
            route,
            calls,
            waiting,
            wake,
            known: Known::new(),
            max_value: 0,
            _watches: watches,
        };
        store.warn_of_eviction().await;
        let limit = store.bulk_limit().await.saturating_sub(OVERHEAD);
        store.max_value = most.map_or(limit, |most| most.min(limit));
        Ok(store)
    }

    /// The store as an engine takes it, with the capability to inspect. It needs no purge: the
    /// server deletes what has expired.
    #[must_use]
    pub fn into_shared(self) -> SharedStore {
        SharedStore::builder(self).with_inspect().build()
    }

    async fn warn_of_eviction(&self) {
        let answer = self.calls.call(Ask::One(&ask_setting("maxmemory-policy"))).await;
        if let Ok(answer) = answer
            && let Some(policy) = setting(&answer).filter(|&policy| policy != "noeviction")
        {
            tracing::warn!(
                policy,
                "the server may evict records when its memory is full, so that actions run \
                 again; set maxmemory-policy to noeviction"
            );
        }
    }

    async fn bulk_limit(&self) -> usize {
        let answer = self.calls.call(Ask::One(&ask_setting("proto-max-bulk-len"))).await.ok();
        answer.as_ref().and_then(setting).and_then(|bytes| bytes.parse().ok()).map_or(
            BULK_LIMIT,
            |bytes: usize| {
                // A string has a limit of its own.
                bytes.min(BULK_LIMIT)
            },
        )
    }

    pub(crate) fn calls(&self) -> &Link {
        &self.calls
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.route.config().prefix
    }

    pub(crate) fn key(&self, id: &Identity) -> Vec<u8> {
        record::key(self.prefix(), id)
    }

    /// Runs a script in one flight. One that the server does not know is loaded on the way, once.
    async fn run(&self, script: &Script, cmd: &Cmd) -> Result<Value, Failure> {
        match self.calls.call(Ask::One(cmd)).await {
            Err(failure) if failure.code() == "NOSCRIPT" => {
                let mut flight = redis::pipe();
                flight.add_command(script.load()).add_command(cmd.clone());
                self.calls.call(Ask::Flight(&flight)).await.map(last)
            }
            answer => answer,
        }
    }

    /// As [`run`](Self::run), and waits for the replicas where that is configured. The write and
    /// the wait share a connection: WAIT goes by the last write of its own.
    async fn run_and_wait(
        &self,
        script: &Script,
        cmd: &Cmd,
        has_written: impl Fn(&Value) -> bool,
    ) -> Result<Value, Failure> {
        let (Some(link), Some((replicas, time))) = (&self.waiting, self.route.config().wait) else {
            return self.run(script, cmd).await;
        };
        let mut wait = Cmd::new();
        wait.arg("WAIT").arg(replicas).arg(millis(time));
        let mut flight = redis::pipe();
        flight.add_command(cmd.clone()).add_command(wait.clone());
        let answer = match link.call(Ask::Flight(&flight)).await {
            Err(failure) if failure.code() == "NOSCRIPT" => {
                let mut flight = redis::pipe();
                flight.add_command(script.load()).add_command(cmd.clone()).add_command(wait);
                link.call(Ask::Flight(&flight)).await?
            }
            answer => answer?,
        };
        let Value::Array(mut answers) = answer else { return Err(mixed_up().into()) };
        let (reached, answer) = (answers.pop(), answers.pop().unwrap_or(Value::Nil));
        match reached {
            Some(Value::Int(reached)) if reached < i64::from(replicas) && has_written(&answer) => {
                Err(Error::unavailable(
                    "written, but too few replicas have confirmed it in time (`wait`)",
                )
                .with("confirmed", reached)
                .with("wanted", replicas)
                .into())
            }
            _ => Ok(answer),
        }
    }

    /// What stands under the key, read in one flight. First the time to live, then the value:
    /// whatever happens between the two, the answer was true at one instant of the call.
    async fn read(&self, key: &[u8]) -> Result<Peeked, Failure> {
        let mut flight = redis::pipe();
        flight.cmd("PTTL").arg(key).cmd("GET").arg(key);
        let (pttl, value) = pair(self.calls.call(Ask::Flight(&flight)).await?)?;
        let Value::BulkString(value) = value else { return Ok(Peeked::Absent) };
        let header = Header::read(&value)?;
        Ok(match header.state {
            State::Residue => Peeked::Absent,
            State::Complete => Peeked::Complete(record::result(&header, value)?),
            State::InProgress => match header.remaining(pttl) {
                Some(remaining) => Peeked::Busy { remaining, token: header.token },
                None => Peeked::Absent,
            },
        })
    }

    /// The result of an identity that was seen complete: a bare GET.
    async fn replay(&self, id: &Identity, key: &[u8]) -> Result<Option<StoredResult>, Failure> {
        let mut cmd = Cmd::with_capacity(2, key.len() + 8);
        cmd.arg("GET").arg(key);
        if let Value::BulkString(value) = self.calls.call(Ask::One(&cmd)).await? {
            let header = Header::read(&value)?;
            if header.state == State::Complete {
                return Ok(Some(record::result(&header, value)?));
            }
        }
        self.known.forget(id);
        Ok(None)
    }

    async fn try_acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired, Failure> {
        let key = self.key(id);
        if self.known.has(id)
            && let Some(stored) = self.replay(id, &key).await?
        {
            return Ok(Acquired::Complete(stored));
        }
        if self.waiting.is_some() {
            // Over that connection go grants alone.
            match self.read(&key).await? {
                Peeked::Complete(stored) => return Ok(self.complete_as(id, stored)),
                Peeked::Busy { .. } | Peeked::Absent => {}
            }
        }
        let script = &self.route.dialer().scripts().acquire;
        let (lease, grace) = (millis(req.lease), millis(req.ttl));
        let mut cmd = script.call(&key, 160);
        cmd.arg(record::asked(lease + grace, req.owner, grace, req.fingerprint.as_ref()));
        let granted = |answer: &Value| matches!(answer, Value::BulkString(said) if said.starts_with(b"G") || said.starts_with(b"T"));
        match self.run_and_wait(script, &cmd, granted).await {
            Ok(Value::BulkString(said)) => match said.first() {
                Some(b'r') => {
                    let header = Header::read(&said)?;
                    Ok(self.complete_as(id, record::result(&header, said)?))
                }
                Some(b'B') => {
                    let (token, left) = token_and_rest(&said)?;
                    Ok(Acquired::Busy { token, remaining: Duration::from_millis(left) })
                }
                Some(b'G' | b'T') => {
                    let (token, _) = token_and_rest(&said)?;
                    Ok(Acquired::Granted(Grant::new(
                        token,
                        Duration::from_millis(lease),
                        said[0] == b'T',
                    )))
                }
                _ => Err(unreadable("version").into()),
            },
            Ok(_) => Err(mixed_up().into()),
            Err(failure) if failure.refuses_writes() => match self.read(&key).await {
                Ok(Peeked::Complete(stored)) => Ok(self.complete_as(id, stored)),
                Ok(Peeked::Busy { remaining, token }) => Ok(Acquired::Busy { remaining, token }),
                Ok(Peeked::Absent) | Err(_) => Err(failure),
            },
            Err(failure) => Err(failure),
        }
    }

    fn complete_as(&self, id: &Identity, stored: StoredResult) -> Acquired {
        self.known.note(id, Duration::MAX);
        Acquired::Complete(stored)
    }

    async fn fenced(
        &self,
        operation: &'static str,
        id: &Identity,
        answer: Result<Value, Failure>,
    ) -> Result<FencedWrite> {
        match answer {
            Ok(Value::Int(0)) => Ok(FencedWrite::NotOwner),
            Ok(Value::Int(1)) => Ok(FencedWrite::Applied),
            Ok(Value::Int(2)) => Ok(FencedWrite::AlreadyApplied),
            Ok(Value::Int(_)) => Err(unreadable("version")),
            Ok(_) => Err(mixed_up()),
            Err(failure) => Err(failure.into_error()),
        }
        .map_err(|error| error.during(operation).for_identity(id))
    }
}

impl IdempotencyStore for RedisStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let acquired = self.try_acquire(id, req).await;
        acquired.map_err(|failure| failure.into_error().during("acquire").for_identity(id))
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        let standing = self.read(&self.key(id)).await;
        standing.map_err(|failure| failure.into_error().during("peek").for_identity(id))
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
        let waited = self.wait(id, seen, at_most).await;
        waited.map_err(|failure| failure.into_error().during("wait_for_change").for_identity(id))
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        let script = &self.route.dialer().scripts().extend;
        let mut cmd = script.call(&self.key(id), 64);
        cmd.arg(owner.as_bytes()).arg(millis(lease));
        let answer = self.run(script, &cmd).await;
        self.fenced("extend", id, answer).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        if done.value.len() > self.max_value {
            return Err(Error::new(
                ErrorKind::TooLarge,
                "the value is larger than the store accepts",
            )
            .with("bytes", done.value.len())
            .with("limit", self.max_value)
            .during("complete")
            .for_identity(id));
        }
        let script = &self.route.dialer().scripts().complete;
        let mut cmd = script.call(&self.key(id), done.value.len() + 160);
        cmd.arg(owner.as_bytes())
            .arg(millis(done.ttl))
            .arg(Joined(&tail(0, done.fingerprint.as_ref()), &done.value));
        let written = |answer: &Value| matches!(answer, Value::Int(1 | 2));
        let answer = self.run_and_wait(script, &cmd, written).await;
        if matches!(answer, Ok(Value::Int(1 | 2))) {
            self.known.note(id, Duration::MAX);
        }
        self.fenced("complete", id, answer).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let script = &self.route.dialer().scripts().release;
        let mut cmd = script.call(&self.key(id), 96);
        cmd.arg(owner.as_bytes()).arg(NOBODY.as_bytes()).arg(millis(RESIDUE)).arg(tail(0, None));
        let answer = self.run(script, &cmd).await;
        self.fenced("release", id, answer).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("redis").with_max_value(self.max_value).with_reclaim()
    }
}

/// With every capability that the store has.
impl From<RedisStore> for SharedStore {
    fn from(store: RedisStore) -> Self {
        store.into_shared()
    }
}

/// What the granting script says behind its first letter.
fn token_and_rest(said: &[u8]) -> Result<(FencingToken, u64)> {
    let (token, rest) = said
        .get(1..)
        .and_then(|said| said.split_at_checked(16))
        .ok_or_else(|| unreadable("token"))?;
    Ok((FencingToken::new(digits(token, "token")?), digits(rest, "token")?))
}

fn mixed_up() -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "the server's answer does not fit the question; is there a proxy between?",
    )
}

/// The answer to the last command of a flight.
fn last(answer: Value) -> Value {
    match answer {
        Value::Array(mut answers) => answers.pop().unwrap_or(Value::Nil),
        other => other,
    }
}

/// A time to live and what came with it.
pub(crate) fn pair(answer: Value) -> Result<(i64, Value), Failure> {
    if let Value::Array(answers) = answer
        && let Ok([Value::Int(pttl), value]) = <[Value; 2]>::try_from(answers)
    {
        return Ok((pttl, value));
    }
    Err(mixed_up().into())
}
