// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NotifyTask`] exchanges the messages of [`Waiters`] with other processes by LISTEN and NOTIFY,
//! on two separate connections, which follow the primary.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::{Backoff, Error};
use sqlx_core::executor::Executor as _;
use sqlx_core::pool::PoolOptions;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::{PgConnection, PgListener, PgPool, Postgres};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::connection::hosts::{HostSelector, OpenedConnection};
use crate::error::Failure;
use crate::waiters::Waiters;

/// The time limit for opening a connection, for the LISTEN on it, and for emptying the outbox.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// The backoff between attempts to LISTEN. Its first step is also the pause after a NOTIFY has
/// failed twice.
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

/// How long the listening connection may be silent before the task checks that it still works.
const MAX_SILENCE: Duration = Duration::from_secs(10);

/// The task that receives notifications and the task that sends them. Dropping the value ends both
/// tasks.
pub(crate) struct NotifyTask([JoinHandle<()>; 2]);

impl NotifyTask {
    /// Starts both tasks after a first attempt to listen. If that attempt fails, the receiving task
    /// keeps trying.
    pub(crate) async fn start(
        hosts: Arc<HostSelector>,
        table: &str,
        waiters: &Arc<Waiters>,
    ) -> Self {
        let channel: Arc<str> = format!("{table}_wake").into();
        let listener = listen(&hosts, &channel).await.map_err(warn_not_listening).ok();
        waiters.set_listening(listener.is_some());
        let receiving =
            receive(Arc::clone(&hosts), Arc::clone(&channel), Arc::clone(waiters), listener);
        let sending = send_queued(hosts, channel, Arc::clone(waiters));
        Self([tokio::spawn(receiving), tokio::spawn(sending)])
    }
}

impl Drop for NotifyTask {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// A listener, and the epoch of its connection.
type Listening = (PgListener, u64);

/// Listens on a new connection. The time limit also covers a network that drops packets between the
/// statements, which only this function would wait for.
async fn listen(hosts: &HostSelector, channel: &str) -> Result<Listening, Failure> {
    let listening = timeout(NOTIFY_TIMEOUT, listen_unlimited(hosts, channel)).await;
    listening.unwrap_or_else(|_| Err(Failure::Store(Error::unavailable("LISTEN got no answer"))))
}

async fn listen_unlimited(hosts: &HostSelector, channel: &str) -> Result<Listening, Failure> {
    let (options, epoch) = match hosts.can_move() {
        false => (hosts.options_of(0), 0),
        true => {
            let opened = hosts.connect().await?;
            (hosts.options_of(opened.host), opened.epoch)
        }
    };
    // The driver's listener takes its connection from a pool. If the connection is lost, the
    // listener takes a new connection from the pool.
    let pool: PgPool = PoolOptions::<Postgres>::new()
        .max_connections(1)
        .acquire_timeout(NOTIFY_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await?;
    // The driver must report a lost connection immediately, because waiters have to poll from then
    // on.
    listener.eager_reconnect(false);
    if !hosts.is_primary(&mut listener, epoch).await? {
        return Err(Failure::Store(Error::unavailable("the primary moved; try again")));
    }
    listener.listen(channel).await?;
    Ok((listener, epoch))
}

/// Logs a warning. Call this at most once in each outage.
fn warn_not_listening(failure: Failure) {
    let error = failure.into_error();
    tracing::warn!(%error, "the store gets no notifications from the server; waiters poll instead");
}

async fn receive(
    hosts: Arc<HostSelector>,
    channel: Arc<str>,
    waiters: Arc<Waiters>,
    mut listener: Option<Listening>,
) {
    let (mut failures, mut is_logged) = (0, listener.is_none());
    loop {
        if let Some((mut listener, epoch)) = listener.take() {
            (failures, is_logged) = (0, false);
            let lost = receive_until_lost(&mut listener, &waiters);
            if hosts.unless_moved(epoch, lost).await.is_some() {
                hosts.doubt(epoch);
            }
            waiters.set_listening(false);
        }
        failures += 1;
        sleep(RETRY.after(failures)).await;
        match listen(&hosts, &channel).await {
            Ok(new) => {
                listener = Some(new);
                waiters.set_listening(true);
            }
            Err(failure) if !std::mem::replace(&mut is_logged, true) => warn_not_listening(failure),
            Err(_) => {}
        }
    }
}

/// Handles messages until the connection is lost.
async fn receive_until_lost(listener: &mut PgListener, waiters: &Waiters) {
    loop {
        match timeout(MAX_SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(message))) => waiters.on_notification(message.payload()),
            Ok(Ok(None) | Err(_)) => return,
            // A listener only reads. If the network drops its packets without closing the
            // connection, only a statement of its own shows that.
            Err(_) => {
                let check = timeout(NOTIFY_TIMEOUT, listener.execute(raw_sql("SELECT 1")));
                if !matches!(check.await, Ok(Ok(_))) {
                    return;
                }
            }
        }
    }
}

async fn send_queued(hosts: Arc<HostSelector>, channel: Arc<str>, waiters: Arc<Waiters>) {
    let mut conn: Option<OpenedConnection> = None;
    loop {
        waiters.outbox_changed.notified().await;
        // A payload that could not be sent is sent again on a new connection. If the second attempt
        // fails too, the payload is dropped, and the waiters find the change by polling.
        let mut unsent = None;
        for is_second in [false, true] {
            conn = conn.filter(|conn| conn.epoch == hosts.epoch());
            if conn.is_none() {
                let opened = timeout(NOTIFY_TIMEOUT, hosts.connect()).await;
                conn = opened.ok().and_then(Result::ok);
            }
            let Some(OpenedConnection { conn: open, .. }) = &mut conn else { break };
            match timeout(NOTIFY_TIMEOUT, send(open, &channel, &waiters, &mut unsent)).await {
                Ok(Ok(())) => break,
                // The connection might have been closed, for example after a day without messages.
                _ => conn = None,
            }
            if is_second {
                sleep(RETRY.after(1)).await;
            }
        }
    }
}

/// Empties the outbox. `unsent` keeps the payload until the server has accepted it. Sending a
/// payload twice only causes an unnecessary wake-up.
async fn send(
    conn: &mut PgConnection,
    channel: &str,
    waiters: &Waiters,
    unsent: &mut Option<String>,
) -> Result<(), sqlx_core::Error> {
    loop {
        if unsent.is_none() {
            *unsent = waiters.next_payload();
        }
        let Some(payload) = unsent.as_deref() else { return Ok(()) };
        conn.execute(raw_sql(AssertSqlSafe(format!("NOTIFY \"{channel}\", '{payload}'")))).await?;
        *unsent = None;
    }
}
