// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PostgresStore`]: implements the store contract with one statement for each operation.

mod acquire;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::config::SqlDialect;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Peeked, SharedStore, StoreProfile,
};
use retryproof_core::{Error, FencingToken, IdempotencyStore, Identity, OwnerId, Result};
use retryproof_store_kit::{
    CallPriority, CompletedHint, Record, RecordPhase, max_pause, too_large, wait_end,
    wait_for_change,
};
use tokio::time::{Instant, timeout};

use crate::config::PostgresConfig;
use crate::connection::StatementResult;
use crate::error::Failure;
use crate::execute::Executor;
use crate::execute::batch::{BatchOutcome, CompletionBatcher};
use crate::execute::record_limit::RecordLimits;
use crate::pool::Pool;
use crate::record::read_record;
use crate::statement::bound::BoundStatement;
use crate::statement::{Statement, StatementTexts};
use crate::waiters::notify::NotifyTask;
use crate::waiters::{FALLBACK_POLL, POLL, Waiters};

/// A value below every purge bucket.
pub(crate) const FIRST_BUCKET: i64 = 0;

/// Keeps records in a table of a PostgreSQL database, for any number of processes.
///
/// The store has its own connections and runs each statement in autocommit. The server's clock
/// decides what has expired.
pub struct PostgresStore {
    pub(crate) config: PostgresConfig,
    pub(crate) statements: Arc<StatementTexts>,
    pub(crate) executor: Arc<Executor>,
    record_limits: RecordLimits,
    batcher: CompletionBatcher,
    waiters: Arc<Waiters>,
    /// The records that this process has recently found to be complete.
    completed: CompletedHint,
    /// The bucket in which the next purge continues.
    pub(crate) purge_cursor: AtomicI64,
    _notify_task: Option<NotifyTask>,
}

impl PostgresStore {
    /// Connects to a database that [`PostgresConfig::migrate`] has prepared, and checks that the
    /// store can work with it. Call this inside the tokio runtime that will serve the store.
    ///
    /// # Errors
    /// The error's [kind](retryproof_core::ErrorKind) names the cause. `Schema`: the tables are
    /// missing (STO-3), or have a version that this program cannot use (REC-1). `Config`: the table
    /// name is invalid, the identity secret differs from that of the tables (ID-5), the user or the
    /// password is wrong, the database does not exist, or the TLS handshake failed. `Unexpected`: a
    /// privilege is missing. `Unsupported`: the server is older than PostgreSQL 12. `Unavailable`:
    /// the server cannot be reached, accepts no more connections, or is a standby.
    pub async fn connect(config: PostgresConfig) -> Result<Self> {
        Self::try_connect(config).await.map_err(|error| error.during("connect"))
    }

    async fn try_connect(config: PostgresConfig) -> Result<Self> {
        let table = config.table()?.to_owned();
        let pool = Pool::new(&config);
        let check_timeout = config.connect_timeout.max(config.call_timeout);
        timeout(check_timeout, pool.check(&config, &table)).await.map_err(|_| {
            Error::unavailable(
                "the server did not answer in time; check whether it is running, and whether it is \
                 overloaded",
            )
        })??;
        pool.open_reserved(Instant::now() + config.connect_timeout).await?;
        let record_limits = RecordLimits::new(pool.normal_size());
        let waiters = Arc::new(Waiters::new());
        let is_notified = pool.is_direct() && config.dialect == SqlDialect::Postgres;
        let notify_task = match is_notified {
            true => Some(NotifyTask::start(Arc::clone(pool.hosts()), &table, &waiters).await),
            false => None,
        };
        let statements = Arc::new(StatementTexts::new(&table, config.dialect));
        let executor = Arc::new(Executor::new(pool, config.call_timeout, config.dialect));
        let batcher = CompletionBatcher::new(
            Arc::clone(&executor),
            Arc::clone(&statements),
            config.call_timeout,
        );
        Ok(Self {
            config,
            statements,
            executor,
            record_limits,
            batcher,
            waiters,
            completed: CompletedHint::new(),
            purge_cursor: AtomicI64::new(FIRST_BUCKET),
            _notify_task: notify_task,
        })
    }

    /// Wraps the store for an engine, with the capabilities to purge, to inspect, to let operators
    /// change records (OPS-3), to keep an audit table (OPS-10), and to join a transaction (CMP-7).
    #[must_use]
    pub fn into_shared(self) -> SharedStore {
        let builder = SharedStore::builder(self).with_purge().with_inspect().with_force();
        builder.with_audit().with_join().build()
    }

    pub(crate) async fn run(
        &self,
        priority: CallPriority,
        statement: &BoundStatement<'_>,
    ) -> Result<StatementResult> {
        self.executor.run(priority, statement).await.map_err(Failure::into_error)
    }

    /// Wakes the record's waiters after a joined transaction was committed (ACQ-4).
    pub(crate) fn notify_finished(&self, id: &Identity) {
        self.waiters.notify_finished(id);
    }

    pub(crate) async fn read_record(
        &self,
        priority: CallPriority,
        statement: Statement,
        id: &Identity,
    ) -> Result<Option<Record>> {
        let result = self.run(priority, &self.statements.by_key(statement, id)).await?;
        result.row.as_ref().map_or(Ok(None), read_record)
    }

    /// Returns the status of a record, and remembers the record if it is complete.
    fn peeked(&self, id: &Identity, record: Option<Record>) -> Peeked {
        self.note_completed(id, record.as_ref());
        Record::peeked(record)
    }

    /// Returns the answer to an acquire that finds a live lease or a complete record; `None` if the
    /// acquire finds neither.
    fn acquired(
        &self,
        id: &Identity,
        record: Option<Record>,
        req: &AcquireRequest,
    ) -> Option<Acquired> {
        self.note_completed(id, record.as_ref());
        Record::acquired(record, req)
    }

    fn note_completed(&self, id: &Identity, record: Option<&Record>) {
        if let Some(Record { phase: RecordPhase::Complete(Some((_, remaining))), .. }) = record {
            self.completed.note(id, *remaining);
        }
    }

    /// Returns the time left in the lease with token `seen`; `None` if the lease is over.
    async fn remaining_lease(&self, id: &Identity, seen: FencingToken) -> Result<Option<Duration>> {
        let record = self.read_record(CallPriority::Normal, Statement::Peek, id).await?;
        Ok(record.and_then(|record| record.remaining_lease(seen)))
    }

    /// Whether notifications arrive. If the store detects a pooler only after it has connected, the
    /// pooler has accepted the LISTEN, but forwards no notifications.
    fn is_notified(&self) -> bool {
        self.waiters.is_listening() && self.executor.is_direct()
    }

    async fn wait(&self, id: &Identity, seen: FencingToken, at_most: Duration) -> Result<()> {
        let until = wait_end(at_most);
        let subscription = self.waiters.subscribe(id);
        // If no time is left, the caller does not sleep, so no wake-up is needed.
        if !at_most.is_zero() {
            self.waiters.announce(&subscription);
        }
        let announced = Mutex::new(Instant::now());
        let remaining_lease = || async {
            let is_held = self.remaining_lease(id, seen).await?.is_some();
            if is_held {
                self.waiters.announce_again(&subscription, &announced);
            }
            Ok(is_held.then_some(Duration::MAX))
        };
        let poll = || Waiters::poll(self.is_notified());
        wait_for_change(subscription.woken(), until, poll, remaining_lease).await
    }

    async fn try_complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        if done.value.len() > self.config.max_value {
            return Err(too_large(done.value.len(), self.config.max_value));
        }
        let deadline = self.executor.deadline();
        let written = match self.batcher.submit(id, owner, done, deadline).await {
            BatchOutcome::Applied => FencedWrite::Applied,
            BatchOutcome::Alone(_slot) => self.complete_alone(id, owner, done, deadline).await?,
            BatchOutcome::Refused => match self.refusal(id, owner).await? {
                Some(written) => written,
                None => self.complete_alone(id, owner, done, deadline).await?,
            },
        };
        if written != FencedWrite::NotOwner {
            // Notify the waiters even if the record was complete before this call. If the answer to
            // an earlier attempt was lost, the waiters have not been woken yet (ACQ-4).
            self.completed.note(id, done.ttl);
            self.waiters.notify_finished(id);
        }
        Ok(written)
    }

    async fn complete_alone(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
        deadline: Instant,
    ) -> Result<FencedWrite> {
        let statement = self.statements.complete(Statement::Complete, id, &owner, done);
        let result = self.executor.run_until(deadline, CallPriority::Holder, &statement).await;
        if result.map_err(Failure::into_error)?.affected > 0 {
            return Ok(FencedWrite::Applied);
        }
        Ok(self.refusal(id, owner).await?.unwrap_or(FencedWrite::NotOwner))
    }

    /// Returns why a completion changed no row; `None` if the owner still holds the record.
    async fn refusal(&self, id: &Identity, owner: OwnerId) -> Result<Option<FencedWrite>> {
        let record = self.read_record(CallPriority::Holder, Statement::Peek, id).await?;
        Ok(match record {
            Some(Record { owner: by, phase: RecordPhase::Complete(_), .. }) if by == owner => {
                Some(FencedWrite::AlreadyApplied)
            }
            Some(Record { owner: by, phase: RecordPhase::InProgress(_), .. }) if by == owner => {
                None
            }
            _ => Some(FencedWrite::NotOwner),
        })
    }

    async fn try_release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let statement = self.statements.release(id, &owner);
        let written = loop {
            if self.run(CallPriority::Holder, &statement).await?.affected > 0 {
                break FencedWrite::Applied;
            }
            match self.read_record(CallPriority::Holder, Statement::Peek, id).await? {
                None => break FencedWrite::AlreadyApplied,
                // An acquire of this owner, whose caller has given up, arrived between the two
                // statements (ACQ-11).
                Some(Record { owner: by, phase: RecordPhase::InProgress(_), .. })
                    if by == owner => {}
                Some(_) => break FencedWrite::NotOwner,
            }
        };
        if written != FencedWrite::NotOwner {
            // As in `try_complete`, notify waiters after a repeated call too.
            self.waiters.notify_finished(id);
        }
        Ok(written)
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("config", &self.config)
            .field("direct", &self.executor.is_direct())
            .field("listening", &self.waiters.is_listening())
            .finish_non_exhaustive()
    }
}

impl IdempotencyStore for PostgresStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.try_acquire(id, req).await.map_err(|error| error.during("acquire").for_identity(id))
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        let record = self.read_record(CallPriority::Normal, Statement::Read, id).await;
        record
            .map(|record| self.peeked(id, record))
            .map_err(|error| error.during("peek").for_identity(id))
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.wait(id, seen, at_most)
            .await
            .map_err(|error| error.during("wait_for_change").for_identity(id))
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        let statement = self.statements.extend(id, &owner, lease);
        let result = self.run(CallPriority::Holder, &statement).await;
        match result.map_err(|error| error.during("extend").for_identity(id))?.affected {
            0 => Ok(FencedWrite::NotOwner),
            _ => Ok(FencedWrite::Applied),
        }
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.try_complete(id, owner, done)
            .await
            .map_err(|error| error.during("complete").for_identity(id))
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.try_release(id, owner).await.map_err(|error| error.during("release").for_identity(id))
    }

    fn profile(&self) -> StoreProfile {
        let poll = match self.config.dialect {
            SqlDialect::Postgres => FALLBACK_POLL,
            SqlDialect::Plain => POLL,
        };
        StoreProfile::new("postgres")
            .with_max_poll(max_pause(poll))
            .with_max_value(self.config.max_value)
            .with_identity_secret(self.config.identity_secret.clone())
    }
}

/// The conversion keeps every capability of the store.
impl From<PostgresStore> for SharedStore {
    fn from(store: PostgresStore) -> Self {
        store.into_shared()
    }
}
