// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Executor`] runs one operation on the primary, and sends it once more if a new connection can
//! help.

use std::io;
use std::sync::Arc;

use redis::{Pipeline, Value};
use retryproof_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout_at};

use crate::config::RedisConfig;
use crate::connection::{Purpose, Request};
use crate::error::{Failure, Recovery};
use crate::identity_mark::MarkKeeper;
use crate::pool::primary::PrimaryLocator;
use crate::pool::{OpenConnection, SharedConnection};
use crate::statement::{ScriptCall, Scripts, config_get, wait};

#[derive(Debug)]
pub(crate) struct Executor {
    locator: Arc<PrimaryLocator>,
    calls: SharedConnection,
    /// The connection for calls that wait for replicas. On this connection, each call waits for the
    /// calls before it.
    calls_with_wait: Option<SharedConnection>,
    /// `None` for plain identities, and until [`keep_mark`](Self::keep_mark).
    mark_keeper: Option<MarkKeeper>,
}

impl Executor {
    /// Opens the first connection.
    pub(crate) async fn connect(locator: &Arc<PrimaryLocator>) -> Result<Self> {
        let shared = |purpose| SharedConnection::new(Arc::clone(locator), purpose);
        let calls = shared(Purpose::Calls);
        calls.open().await?;
        let waits = locator.config().wait_replicas.is_some();
        let calls_with_wait = waits.then(|| shared(Purpose::CallsWithWait));
        Ok(Self { locator: Arc::clone(locator), calls, calls_with_wait, mark_keeper: None })
    }

    /// From now on, writes the mark of hashed identities again if the server loses it (ID-5). The
    /// mark must have been checked.
    pub(crate) fn keep_mark(&mut self) {
        self.mark_keeper = MarkKeeper::of(self.config());
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        self.locator.config()
    }

    pub(crate) fn scripts(&self) -> &Scripts {
        self.locator.connector().scripts()
    }

    pub(crate) fn waits_for_replicas(&self) -> bool {
        self.calls_with_wait.is_some()
    }

    /// Sends a request and waits for the answer. After a failure that a new connection can fix, the
    /// request is sent once more.
    pub(crate) async fn run(&self, request: Request<'_>) -> Result<Value, Failure> {
        self.run_on(&self.calls, request).await
    }

    /// Runs a batch of two commands: the first reads a key's time to live, the second its data.
    /// Returns both answers.
    pub(crate) async fn run_pair(&self, batch: &Pipeline) -> Result<(i64, Value), Failure> {
        if let Value::Array(answers) = self.run(Request::Batch(batch)).await?
            && let Ok([Value::Int(pttl), value]) = <[Value; 2]>::try_from(answers)
        {
            return Ok((pttl, value));
        }
        Err(unexpected_answer().into())
    }

    /// Runs a script in one round trip. If the server does not have the script, a second round trip
    /// loads the script and runs it.
    pub(crate) async fn run_script(&self, call: &ScriptCall<'_>) -> Result<Value, Failure> {
        match self.run(Request::One(&call.cmd)).await {
            Err(failure) if failure.code() == "NOSCRIPT" => {
                let mut batch = redis::pipe();
                batch.add_command(call.script.load()).add_command(call.cmd.clone());
                match self.run(Request::Batch(&batch)).await? {
                    Value::Array(mut answers) => Ok(answers.pop().unwrap_or(Value::Nil)),
                    other => Ok(other),
                }
            }
            answer => answer,
        }
    }

    /// Like [`run_script`](Self::run_script), but also waits for replicas if `wait_replicas` is
    /// configured. Fails if the script has written and too few replicas acknowledge in time.
    /// `has_written` derives from the script's answer whether the script has written. The script
    /// and WAIT share a connection, because WAIT covers only writes on its own connection.
    pub(crate) async fn run_script_and_wait(
        &self,
        call: &ScriptCall<'_>,
        has_written: impl Fn(&Value) -> bool,
    ) -> Result<Value, Failure> {
        let (Some(shared), Some((replicas, timeout))) =
            (&self.calls_with_wait, self.config().wait_replicas)
        else {
            return self.run_script(call).await;
        };
        let wait = wait(replicas, timeout);
        let mut batch = redis::pipe();
        batch.add_command(call.cmd.clone()).add_command(wait.clone());
        let answer = match self.run_on(shared, Request::Batch(&batch)).await {
            Err(failure) if failure.code() == "NOSCRIPT" => {
                let mut batch = redis::pipe();
                batch
                    .add_command(call.script.load())
                    .add_command(call.cmd.clone())
                    .add_command(wait);
                self.run_on(shared, Request::Batch(&batch)).await?
            }
            answer => answer?,
        };
        let Value::Array(mut answers) = answer else { return Err(unexpected_answer().into()) };
        let (reached, answer) = (answers.pop(), answers.pop().unwrap_or(Value::Nil));
        match reached {
            Some(Value::Int(reached)) if reached < i64::from(replicas) && has_written(&answer) => {
                Err(Error::unavailable(
                    "the record was written, but too few replicas confirmed it in time \
                     (`wait-replicas`)",
                )
                .with("confirmed", reached)
                .with("expected", replicas)
                .into())
            }
            _ => Ok(answer),
        }
    }

    /// Reads a server setting; `None` if the read fails, for example because the user has no
    /// permission.
    pub(crate) async fn server_setting(&self, name: &str) -> Option<String> {
        let answer = self.run(Request::One(&config_get(name))).await.ok()?;
        let value = match &answer {
            Value::Array(pair) => pair.get(1)?,
            Value::Map(map) => &map.first()?.1,
            _ => return None,
        };
        match value {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().map(str::to_owned),
            _ => None,
        }
    }

    async fn run_on(
        &self,
        shared: &SharedConnection,
        request: Request<'_>,
    ) -> Result<Value, Failure> {
        let deadline = Instant::now() + shared.call_timeout();
        let current = shared.current();
        // The driver limits each exchange to the call timeout. Only a call that has first waited
        // for a connection can outlast its deadline, so only such a call needs the deadline as a
        // second limit.
        let mut has_waited = current.is_none();
        let mut open = match current {
            Some(open) => open,
            None => within(deadline, shared.acquire()).await??,
        };
        if let Some(write) = self.mark_keeper.as_ref().and_then(MarkKeeper::due) {
            // The call does not wait for this command. If the command fails, the next one is sent
            // after the interval.
            let open = Arc::clone(&open);
            tokio::spawn(async move { open.connection.send(Request::One(&write)).await.map(drop) });
        }
        let mut retried = false;
        loop {
            let exchange = self.exchange(&open, request);
            let answered = if has_waited {
                within(deadline, exchange).await.unwrap_or_else(Err)
            } else {
                exchange.await
            };
            let failure = match answered {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match failure.recovery() {
                Recovery::None | Recovery::ReadOnly => return Err(failure),
                Recovery::ReconnectForNextCall => {
                    shared.invalidate(&open);
                    return Err(failure);
                }
                Recovery::RetryOnNewConnection => {
                    shared.invalidate(&open);
                    if retried {
                        return Err(failure.after_lost_answer());
                    }
                    (retried, has_waited) = (true, true);
                    let acquired = within(deadline, shared.acquire()).await;
                    let acquired = acquired.and_then(|open| open.map_err(Failure::from));
                    open = acquired.map_err(Failure::after_lost_answer)?;
                }
            }
        }
    }

    async fn exchange(
        &self,
        open: &OpenConnection,
        request: Request<'_>,
    ) -> Result<Value, Failure> {
        let sent = open.connection.send(request);
        let answer = if self.locator.can_move() {
            tokio::select! {
                biased;
                answer = sent => answer,
                // The primary has moved. Stop waiting, because a write on the old primary would be
                // lost.
                () = self.locator.moved(open.epoch) => {
                    Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into())
                }
            }
        } else {
            sent.await
        };
        match answer.map_err(Failure::Connection)? {
            Value::ServerError(error) => Err(Failure::Server(error)),
            // If one answer in the batch is an error, the batch fails with the first such error.
            Value::Array(answers) if matches!(request, Request::Batch(_)) => {
                match answers.iter().find_map(|answer| match answer {
                    Value::ServerError(error) => Some(error.clone()),
                    _ => None,
                }) {
                    Some(error) => Err(Failure::Server(error)),
                    None => Ok(Value::Array(answers)),
                }
            }
            answer => Ok(answer),
        }
    }
}

/// Returns the output of `work`, or a failure if `work` has not ended by `deadline`.
async fn within<T>(deadline: Instant, work: impl Future<Output = T>) -> Result<T, Failure> {
    let late = |_| Failure::Connection(io::Error::from(io::ErrorKind::TimedOut).into());
    timeout_at(deadline, work).await.map_err(late)
}

pub(crate) fn unexpected_answer() -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "the server's answer does not match the command; check for a proxy between the store \
         and the server",
    )
}
