// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Courier`]: carries the messages of [`Wake`] by LISTEN and NOTIFY, each on a connection of its
//! own.

use std::sync::Arc;
use std::time::Duration;

use sqlx_core::executor::Executor as _;
use sqlx_core::pool::PoolOptions;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::{PgConnection, PgListener, PgPool, Postgres};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::config::Source;
use crate::error::classify;
use crate::pool::Pool;
use crate::waiters::Wake;

/// How long a connection may take to come about, or a message to be sent.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts to listen: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// The two tasks; they end with it.
pub(crate) struct Courier([JoinHandle<()>; 2]);

impl Courier {
    /// Listens before it returns, if that is to be had; else goes on trying.
    pub(crate) async fn start(source: Source, table: &str, wake: &Arc<Wake>) -> Self {
        let channel: Arc<str> = format!("{table}_wake").into();
        let listener = listen(&source, &channel).await.map_err(unheard).ok();
        wake.set_listening(listener.is_some());
        let hearing = hear(source.clone(), Arc::clone(&channel), Arc::clone(wake), listener);
        let telling = tell(source, channel, Arc::clone(wake));
        Self([tokio::spawn(hearing), tokio::spawn(telling)])
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

async fn listen(source: &Source, channel: &str) -> Result<PgListener, sqlx_core::Error> {
    // The driver's listener takes its connection, and the next one after a loss, from a pool.
    let pool: PgPool = PoolOptions::<Postgres>::new()
        .max_connections(1)
        .acquire_timeout(PATIENCE)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_lazy_with(source.options());
    let mut listener = PgListener::connect_with(&pool).await?;
    // Whoever loses the connection is told at once, and may not sleep on.
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    Ok(listener)
}

/// Said once for each outage.
fn unheard(error: sqlx_core::Error) {
    let error = classify(&error);
    tracing::warn!(%error, "waiters are not woken by the server; they poll instead");
}

async fn hear(
    source: Source,
    channel: Arc<str>,
    wake: Arc<Wake>,
    mut listener: Option<PgListener>,
) {
    let (mut again, mut said) = (AGAIN.0, listener.is_none());
    loop {
        if let Some(mut listener) = listener.take() {
            (again, said) = (AGAIN.0, false);
            while let Ok(Some(message)) = listener.try_recv().await {
                wake.heard(message.payload());
            }
            wake.set_listening(false);
        }
        sleep(again).await;
        again = (again * 2).min(AGAIN.1);
        // Its pool ends it in time.
        match listen(&source, &channel).await {
            Ok(new) => {
                listener = Some(new);
                wake.set_listening(true);
            }
            Err(error) if !std::mem::replace(&mut said, true) => unheard(error),
            Err(_) => {}
        }
    }
}

async fn tell(source: Source, channel: Arc<str>, wake: Arc<Wake>) {
    let mut conn: Option<PgConnection> = None;
    loop {
        wake.post.notified().await;
        // The message that failed goes along to the new connection. What cannot be sent there
        // either is not kept: the waiters poll.
        let mut unsent = None;
        for fresh in [false, true] {
            if conn.is_none() {
                conn = timeout(PATIENCE, Pool::open(&source)).await.ok().and_then(Result::ok);
            }
            let Some(open) = &mut conn else { break };
            match timeout(PATIENCE, send(open, &channel, &wake, &mut unsent)).await {
                Ok(Ok(())) => break,
                // It may have been idle for a day; once more on a new one.
                _ => conn = None,
            }
            if fresh {
                sleep(AGAIN.0).await;
            }
        }
    }
}

/// Empties the outbox. `unsent` is the message under way, until the server has taken it; said
/// twice, it wakes somebody for nothing.
async fn send(
    conn: &mut PgConnection,
    channel: &str,
    wake: &Wake,
    unsent: &mut Option<String>,
) -> Result<(), sqlx_core::Error> {
    loop {
        if unsent.is_none() {
            *unsent = wake.next_message();
        }
        let Some(message) = unsent.as_deref() else { return Ok(()) };
        conn.execute(raw_sql(AssertSqlSafe(format!("NOTIFY \"{channel}\", '{message}'")))).await?;
        *unsent = None;
    }
}
