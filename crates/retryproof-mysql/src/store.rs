// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MysqlStore`]: implements the store contract with SQL statements that each commit separately.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, ForceAction, ForceRequest, Param, Peeked,
    SharedStore, StoreProfile,
};
use retryproof_core::{Error, FencingToken, IdempotencyStore, Identity, OwnerId, Result};
use retryproof_store_kit::{CallPriority, CompletedHint, Record, RecordPhase, max_pause};
use tokio::time::timeout;

use crate::config::MysqlConfig;
use crate::connection::Connection;
use crate::error::{Failure, too_large};
use crate::execute::Executor;
use crate::pool::Pool;
use crate::schema::{CHECK_TIMEOUT, check};
use crate::statement::{
    PACKET_OVERHEAD, Statement, StatementTexts, completion_params, key_of, micros,
};
use crate::waiters::{POLL, Waiters};

/// Keeps records in a table of a MySQL or MariaDB server, for any number of processes.
///
/// Each statement commits separately, on a connection that only the store uses. The server's clock
/// decides when a lease or a ttl has ended (ACQ-7). Dropping a call closes its connection, but does
/// not undo what its statement has changed.
pub struct MysqlStore {
    pub(crate) config: MysqlConfig,
    pub(crate) executor: Executor,
    pub(crate) waiters: Waiters,
    /// The records that this process has recently seen complete.
    completed: CompletedHint,
    /// The records that this process has recently seen in progress, or has released. Their rows
    /// exist, so an acquire skips `Enter`, which cannot take over an existing row, and uses
    /// `Grant`.
    has_row: CompletedHint,
    /// The completion's SQL text for the application's transaction.
    pub(crate) joined_completion: Arc<str>,
    /// The `purge_after` at which the next purge starts, in microseconds since 1970.
    pub(crate) purge_cursor: AtomicI64,
    pub(crate) max_value: usize,
    /// How many bytes of values fit into one packet, in addition to the statement's text.
    pub(crate) packet_limit: usize,
}

impl MysqlStore {
    /// Connects to a database that [`MysqlConfig::migrate`] has prepared.
    ///
    /// # Errors
    /// The error's [kind](retryproof_core::ErrorKind) names the cause. `Schema`: the tables are
    /// missing (STO-3), or have a version that this program cannot use (REC-1). `Config`: the user,
    /// the password or the database is wrong, the table name is invalid, the tables have another
    /// identity secret (ID-5), or the TLS handshake failed. `Unexpected`: a privilege is missing.
    /// `Unsupported`: the server is too old. `Unavailable`: the server cannot be reached, or
    /// accepts no more connections.
    pub async fn connect(config: MysqlConfig) -> Result<Self> {
        Self::try_connect(config).await.map_err(|failure| failure.error.during("connect"))
    }

    async fn try_connect(config: MysqlConfig) -> Result<Self, Failure> {
        let table = config.table()?;
        let texts = StatementTexts::new(table);
        let late = |_| {
            Error::unavailable(
                "the MySQL server did not answer in time; check whether it is overloaded",
            )
        };
        let mut connection = Connection::open_first(&config).await?;
        let secret = config.identity_secret.as_ref();
        timeout(CHECK_TIMEOUT, check(&mut connection, table, secret)).await.map_err(late)??;
        let joined_completion =
            timeout(CHECK_TIMEOUT, connection.joined_completion(&texts)).await.map_err(late)??;
        let server = connection.server;
        let pool = Pool::new(
            config.source.clone(),
            config.max_connections,
            config.reserved(),
            config.connect_timeout,
        );
        pool.add(connection);
        let packet_limit = server.max_packet.saturating_sub(PACKET_OVERHEAD);
        let returning = server.returning && config.returning.unwrap_or(true);
        Ok(Self {
            executor: Executor::new(texts, pool, config.call_timeout, returning),
            waiters: Waiters::default(),
            completed: CompletedHint::new(),
            has_row: CompletedHint::new(),
            joined_completion,
            purge_cursor: AtomicI64::new(0),
            max_value: config.max_value.map_or(packet_limit, |bytes| bytes.min(packet_limit)),
            packet_limit,
            config,
        })
    }

    /// Wraps the store for an engine, with the capabilities to purge, to inspect, to let operators
    /// change records (OPS-3), to keep an audit table (OPS-10), and to join transactions.
    #[must_use]
    pub fn into_shared(self) -> SharedStore {
        let builder = SharedStore::builder(self).with_purge().with_inspect().with_force();
        builder.with_audit().with_join().build()
    }

    async fn try_acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired, Failure> {
        if self.completed.has(id) {
            match self.executor.replay(id).await? {
                Some(stored) => return Ok(Acquired::Complete(stored)),
                None => self.completed.forget(id),
            }
        }
        self.executor.acquire(id, req, self.has_row.has(id)).await
    }

    async fn try_extend(
        &self,
        id: &Identity,
        owner: OwnerId,
        lease: Duration,
    ) -> Result<FencedWrite, Failure> {
        let [scope, key] = key_of(id);
        let params = [Param::Int(micros(lease)), scope, key, Param::Bytes(owner.as_bytes())];
        let matched = self.executor.run_fenced(Statement::Extend, &params).await?;
        Ok(if matched { FencedWrite::Applied } else { FencedWrite::NotOwner })
    }

    async fn try_complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite, Failure> {
        let params = completion_params(id, &owner, done);
        let mut write = FencedWrite::Applied;
        if !self.executor.run_fenced(Statement::Complete, &params).await? {
            write = match self.peek_as_holder(id).await? {
                Some(Record { owner: stored, phase: RecordPhase::Complete(_), .. })
                    if stored == owner =>
                {
                    FencedWrite::AlreadyApplied
                }
                _ => return Ok(FencedWrite::NotOwner),
            };
        }
        // Notify waiters after a repeated completion too. If the answer to the first attempt was
        // lost, nothing has woken the waiters yet (ACQ-4).
        self.completed.note(id, Duration::MAX);
        self.waiters.notify(id);
        Ok(write)
    }

    async fn try_release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite, Failure> {
        let [scope, key] = key_of(id);
        let params = [scope, key, Param::Bytes(owner.as_bytes())];
        let mut write = FencedWrite::Applied;
        while !self.executor.run_fenced(Statement::Release, &params).await? {
            match self.peek_as_holder(id).await? {
                None | Some(Record { phase: RecordPhase::Released, .. }) => {
                    write = FencedWrite::AlreadyApplied;
                    break;
                }
                // An acquire of this owner, whose caller has given up, arrived between the two
                // statements (ACQ-11).
                Some(Record { owner: stored, phase: RecordPhase::InProgress(_), .. })
                    if stored == owner => {}
                Some(_) => return Ok(FencedWrite::NotOwner),
            }
        }
        // As in `try_complete`, notify waiters after a repeated call too.
        self.has_row.note(id, Duration::MAX);
        self.waiters.notify(id);
        Ok(write)
    }

    /// Wakes the waiters of a record that an operator has changed, and updates this process's hints
    /// about the record.
    pub(crate) fn on_forced(&self, id: &Identity, req: &ForceRequest) {
        match &req.action {
            ForceAction::Resolve { .. } => self.completed.note(id, Duration::MAX),
            ForceAction::Release | ForceAction::Forget => {
                self.completed.forget(id);
                self.has_row.note(id, Duration::MAX);
            }
            ForceAction::Erase => {}
        }
        if req.ends_a_lease() {
            self.waiters.notify(id);
        }
    }

    /// Reads the record without its value, after a holder's statement has matched no row.
    async fn peek_as_holder(&self, id: &Identity) -> Result<Option<Record>, Failure> {
        self.executor.read_record(CallPriority::Holder, Statement::Peek, id).await
    }

    /// Returns the time left in the lease with token `seen`; `None` if the lease has ended, or its
    /// holder has completed or released the record.
    async fn remaining_lease(
        &self,
        id: &Identity,
        seen: FencingToken,
    ) -> Result<Option<Duration>, Failure> {
        let found = self.executor.read_record(CallPriority::Normal, Statement::Peek, id).await?;
        Ok(found.and_then(|record| record.remaining_lease(seen)))
    }
}

impl IdempotencyStore for MysqlStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let acquired = self.try_acquire(id, req).await.map_err(during("acquire", id))?;
        match &acquired {
            Acquired::Complete(_) => self.completed.note(id, Duration::MAX),
            // After a grant, wake the waiters that are still waiting for an earlier lease to end.
            Acquired::Granted(_) => self.waiters.notify(id),
            Acquired::Busy(_) => self.has_row.note(id, Duration::MAX),
        }
        Ok(acquired)
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        let found = self.executor.read_record(CallPriority::Normal, Statement::Find, id).await;
        found.map(Record::peeked).map_err(during("peek", id))
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        let waited =
            self.waiters.wait_for_change(id, at_most, || self.remaining_lease(id, seen)).await;
        waited.map_err(during("wait_for_change", id))
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.try_extend(id, owner, lease).await.map_err(during("extend", id))
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
        self.try_complete(id, owner, done).await.map_err(during("complete", id))
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.try_release(id, owner).await.map_err(during("release", id))
    }

    /// The largest value is 4 KiB less than the `max_allowed_packet` that the server reports when
    /// the store connects. The configuration can set a lower limit.
    fn profile(&self) -> StoreProfile {
        StoreProfile::new("mysql")
            .with_max_poll(max_pause(POLL))
            .with_max_round_trips(if self.executor.returning { 1 } else { 2 })
            .with_max_value(self.max_value)
            .with_identity_secret(self.config.identity_secret.clone())
    }
}

fn during<'a>(operation: &'static str, id: &'a Identity) -> impl FnOnce(Failure) -> Error + 'a {
    move |failure| failure.error.during(operation).for_identity(id)
}

/// The conversion keeps every capability of the store.
impl From<MysqlStore> for SharedStore {
    fn from(store: MysqlStore) -> Self {
        store.into_shared()
    }
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStore")
            .field("config", &self.config)
            .field("pool", &self.executor.pool)
            .finish_non_exhaustive()
    }
}
