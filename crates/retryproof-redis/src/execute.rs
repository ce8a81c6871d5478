// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Executor`] runs one operation on the primary of its record.

use redis::{Pipeline, Value};
use retryproof_core::{Error, Result};

use crate::config::RedisConfig;
use crate::connection::Request;
use crate::error::{Failure, unexpected_answer};
use crate::identity_mark::{self, MarkKeeper};
use crate::route::RecordRoute;
use crate::statement::{ScriptCall, Scripts, config_get, wait};

#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) route: RecordRoute,
    /// `None` for plain identities, and until [`keep_mark`](Self::keep_mark).
    mark_keeper: Option<MarkKeeper>,
}

impl Executor {
    /// Opens the first connection.
    pub(crate) async fn connect(config: RedisConfig) -> Result<Self> {
        Ok(Self { route: RecordRoute::connect(config).await?, mark_keeper: None })
    }

    /// From now on, writes the mark of hashed identities again if the server loses it (ID-5). The
    /// mark must have been checked.
    pub(crate) fn keep_mark(&mut self) {
        self.mark_keeper = MarkKeeper::of(self.config());
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        self.route.connector().config()
    }

    pub(crate) fn scripts(&self) -> &Scripts {
        self.route.connector().scripts()
    }

    pub(crate) fn waits_for_replicas(&self) -> bool {
        self.config().wait_replicas.is_some()
    }

    /// Sends a request about one key and waits for the answer. After a failure that may pass, the
    /// request is sent again.
    pub(crate) async fn run(&self, key: &[u8], request: Request<'_>) -> Result<Value, Failure> {
        self.run_routed(key, request, false).await
    }

    async fn run_routed(
        &self,
        key: &[u8],
        request: Request<'_>,
        waits: bool,
    ) -> Result<Value, Failure> {
        if let Some(write) = self.mark_keeper.as_ref().and_then(MarkKeeper::due) {
            // The call does not wait for this command. If the command fails, the next one is sent
            // after the interval.
            let (route, key) = (self.route.clone(), identity_mark::key(&self.config().prefix));
            tokio::spawn(
                async move { route.run(&key, Request::One(&write), false).await.map(drop) },
            );
        }
        self.route.run(key, request, waits).await
    }

    /// Runs a batch of two commands: the first reads a key's time to live, the second its data.
    /// Returns both answers.
    pub(crate) async fn run_pair(
        &self,
        key: &[u8],
        batch: &Pipeline,
    ) -> Result<(i64, Value), Failure> {
        if let Value::Array(answers) = self.run(key, Request::Batch(batch)).await?
            && let Ok([Value::Int(pttl), value]) = <[Value; 2]>::try_from(answers)
        {
            return Ok((pttl, value));
        }
        Err(unexpected_answer().into())
    }

    /// Runs a script in one round trip. If the server does not have the script, a second round trip
    /// loads the script and runs it.
    pub(crate) async fn run_script(&self, call: &ScriptCall<'_>) -> Result<Value, Failure> {
        match self.run(call.key, Request::One(&call.cmd)).await {
            Err(failure) if failure.code() == "NOSCRIPT" => {
                let mut batch = redis::pipe();
                batch.add_command(call.script.load()).add_command(call.cmd.clone());
                match self.run(call.key, Request::Batch(&batch)).await? {
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
    /// and WAIT share a connection, because WAIT covers only writes on its own connection. The last
    /// argument makes a script write the record again if an earlier call has completed it, because
    /// from Redis 7.2 on, WAIT confirms at once if its connection has written nothing.
    pub(crate) async fn run_script_and_wait(
        &self,
        call: &ScriptCall<'_>,
        has_written: impl Fn(&Value) -> bool,
    ) -> Result<Value, Failure> {
        let Some((replicas, timeout)) = self.config().wait_replicas else {
            return self.run_script(call).await;
        };
        let wait = wait(replicas, timeout);
        let mut cmd = call.cmd.clone();
        cmd.arg("W");
        let mut batch = redis::pipe();
        batch.add_command(cmd.clone()).add_command(wait.clone());
        let answer = match self.run_routed(call.key, Request::Batch(&batch), true).await {
            Err(failure) if failure.code() == "NOSCRIPT" => {
                let mut batch = redis::pipe();
                batch.add_command(call.script.load()).add_command(cmd).add_command(wait);
                self.run_routed(call.key, Request::Batch(&batch), true).await?
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

    /// Reads a setting of each primary. A primary is left out if the read fails, for example
    /// because the user has no permission.
    pub(crate) async fn server_settings(&self, name: &str) -> Vec<String> {
        let mut settings = Vec::new();
        for node in self.route.primaries() {
            let answer = node.run(Request::One(&config_get(name)), false).await;
            if let Ok(Value::Array(pair)) = &answer
                && let Some(Value::BulkString(bytes)) = pair.get(1)
                && let Ok(text) = std::str::from_utf8(bytes)
            {
                settings.push(text.to_owned());
            }
        }
        settings
    }
}
