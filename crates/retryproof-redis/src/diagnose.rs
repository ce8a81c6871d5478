// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RedisConfig::diagnose`] finds what endangers the store: settings of the server, and missing
//! rights of the user (OPS-5).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use retryproof_core::clock::wall_clock_micros;
use retryproof_core::store::StoreFinding;
use retryproof_core::{Error, ErrorKind, Identity, Result};
use retryproof_store_kit::{clock_skew, lacks_privileges};
use tokio::time::timeout;

use crate::config::{RedisConfig, Target};
use crate::connection::handshake::{check_hello, check_role};
use crate::connection::{Connection, Connector, Request};
use crate::error::Failure;
use crate::pool::primary::{PrimaryLocator, PrimaryPlace};
use crate::statement::{Scripts, config_get_all, get, rights};
use crate::{identities, identity_mark, record};

mod cluster;

/// The time limit for all checks together.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The settings to read with CONFIG GET. The checks also read INFO, because a user often has the
/// right to only one of the two commands. INFO contains the first three of these settings, and the
/// state of the disk and of the replicas.
const SETTINGS: [&str; 5] =
    ["maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "min-replicas-to-write"];

/// Rights without which the store works, but less well. The list omits HELLO, because Redis accepts
/// that command from every user.
const HELPFUL: [&str; 4] = ["+role", "+spublish", "+ssubscribe", "+sunsubscribe"];
/// Rights that only the inspection of records needs.
const FOR_OPERATORS: [&str; 2] = ["+strlen", "+scan"];

impl RedisConfig {
    /// Looks for what endangers the store: the server's role, version and mode, eviction,
    /// persistence, replicas, missing rights of the user, another identity secret, and a clock that
    /// differs from this machine's (OPS-5); for a cluster also its nodes, and slots that have no
    /// primary or are being moved (STO-8). The checks write nothing. If the user lacks the right to
    /// `INFO` or `CONFIG GET`, a note says which checks were left out.
    ///
    /// # Errors
    /// The errors of [`RedisStore::connect`](crate::RedisStore::connect), if the server cannot be
    /// reached or does not answer the checks. A problem of the server's settings or the user's
    /// rights is a finding, not an error.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn diagnose(&self) -> Result<Vec<StoreFinding>> {
        let late = || {
            Error::unavailable(
                "the server did not answer the checks in time; check whether it is overloaded",
            )
        };
        let found = timeout(TIMEOUT, self.try_diagnose()).await;
        found.unwrap_or_else(|_| Err(late())).map_err(|error| error.during("diagnose"))
    }

    async fn try_diagnose(&self) -> Result<Vec<StoreFinding>> {
        let connector = Arc::new(Connector::new(self.clone())?);
        let place = match &self.target {
            Target::Cluster(seeds) => return self.diagnose_cluster(&connector, seeds).await,
            Target::Single(at) => PrimaryPlace::Server(at.clone()),
            Target::Sentinel { nodes, service } => {
                PrimaryPlace::Sentinel { nodes: nodes.clone(), service: service.clone() }
            }
        };
        let at = PrimaryLocator::new(Arc::clone(&connector), place).address().await?;
        let connection = connector.connect_unchecked(&at).await?;
        let mut findings = Vec::new();
        self.check_node(&connection, connector.scripts(), &mut findings).await?;
        Ok(findings)
    }

    /// Checks one server, or one node of a cluster.
    async fn check_node(
        &self,
        connection: &Connection,
        scripts: &Scripts,
        findings: &mut Vec<StoreFinding>,
    ) -> Result<()> {
        let mut select = Cmd::new();
        select.arg("SELECT").arg(self.db);
        if let Value::ServerError(_) = ask(connection, &select).await? {
            findings.push(StoreFinding::error(
                "database",
                format!("The server does not let the user select the database {}.", self.db),
                "Correct the number in the URL, or give the user the right `+select`.",
            ));
        } else {
            // In a cluster, only the node that has the key answers.
            let mark = ask(connection, &get(&identity_mark::key(&self.prefix))).await?;
            findings.extend(identities::finding(mark, self.identity_secret.as_ref()));
        }
        check_server(connection, self.is_cluster(), findings).await?;
        let sent = wall_clock_micros();
        if let Some(time) = micros(&ask(connection, &command("TIME")).await?) {
            findings.extend(clock_skew(sent, time, wall_clock_micros()));
        }
        let mut known = fields(&ask(connection, &command("INFO")).await?);
        let config = fields(&ask(connection, &config_get_all(&SETTINGS)).await?);
        findings.extend(unexamined(!known.is_empty(), !config.is_empty()));
        known.extend(config);
        check_settings(&known, self.wait_replicas.map_or(0, |(replicas, _)| replicas), findings);
        self.check_rights(connection, scripts, findings).await
    }

    async fn check_rights(
        &self,
        connection: &Connection,
        scripts: &Scripts,
        findings: &mut Vec<StoreFinding>,
    ) -> Result<()> {
        let key = record::key(&self.prefix, &Identity::of("retryproof.doctor", "probe")?);
        let mut missing = Vec::new();
        let (waits, in_cluster) = (self.wait_replicas.is_some(), self.is_cluster());
        for (right, cmd) in rights(&key, scripts, waits, in_cluster) {
            let answer = ask(connection, &cmd).await?;
            if matches!(answer, Value::ServerError(error) if error.code() == "NOPERM") {
                missing.push(right);
            }
        }
        let give = |rights: &[&str]| {
            format!(
                "Grant the user these rights for the keys `~{0}:*` and the channels `&{0}:*`: `ACL \
                 SETUSER … {1}`.",
                self.prefix,
                rights.join(" ")
            )
        };
        let (operators, missing): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|right| FOR_OPERATORS.contains(right));
        let (helpful, missing): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|right| HELPFUL.contains(right));
        findings.extend(lacks_privileges(&missing, give(&missing)));
        if !helpful.is_empty() {
            findings.push(StoreFinding::warning(
                "rights",
                format!(
                    "The user lacks these rights: {}. Without `+role`, the store notices that a \
                     server is a replica only when the server refuses a write. Without the other \
                     rights, waiters poll instead of being woken.",
                    helpful.join(", ")
                ),
                give(&helpful),
            ));
        }
        if !operators.is_empty() {
            findings.push(StoreFinding::note(
                "inspect",
                format!(
                    "The user lacks these rights, which only the verbs that show records need: {}.",
                    operators.join(", ")
                ),
                "Run `get`, `ls`, `stuck` and `stats` as a user that has these rights.",
            ));
        }
        Ok(())
    }
}

fn command(name: &str) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg(name);
    cmd
}

/// Sends a command. An error from the server counts as an answer, unless the server would return
/// the error for every command: without a login, in protected mode, while it loads its data, or
/// while a script runs.
async fn ask(connection: &Connection, cmd: &Cmd) -> Result<Value> {
    let mut batch = redis::pipe();
    batch.add_command(cmd.clone());
    let answers = connection.send(Request::Batch(&batch)).await.map_err(Failure::Connection);
    let answer = match answers.map_err(Failure::into_error)? {
        Value::Array(answers) => answers.into_iter().next().unwrap_or(Value::Nil),
        answer => answer,
    };
    match answer {
        Value::ServerError(error)
            if matches!(error.code(), "NOAUTH" | "LOADING" | "BUSY" | "DENIED") =>
        {
            Err(Failure::Server(error).into_error())
        }
        answer => Ok(answer),
    }
}

/// Checks the role, the version and the mode. A finding repeats the message of the error with which
/// connecting would fail.
async fn check_server(
    connection: &Connection,
    in_cluster: bool,
    findings: &mut Vec<StoreFinding>,
) -> Result<()> {
    let hello = check_hello(&ask(connection, &command("HELLO")).await?, in_cluster);
    let role = ask(connection, &command("ROLE")).await?;
    let (server, role) = match in_cluster {
        true => ("Use nodes of a Redis Cluster of Redis 7.0 or newer.", Ok(())),
        false => (
            "Use a standalone server of Redis 7.0 or newer, or a Sentinel group. For a Redis \
             Cluster, use the scheme `redis+cluster`.",
            check_role(&role),
        ),
    };
    for (checked, advice) in
        [(hello, server), (role, "Point the URL at the primary, or at the sentinels.")]
    {
        if let Err(failure) = checked {
            let error = failure.into_error();
            let id = if error.kind() == ErrorKind::Unavailable { "role" } else { "server" };
            findings.push(StoreFinding::error(
                id,
                format!("The store refuses the server ({error})."),
                advice,
            ));
        }
    }
    Ok(())
}

/// Returns a finding about the checks that are left out because the server does not answer INFO or
/// CONFIG GET to this user.
fn unexamined(has_info: bool, has_config: bool) -> Option<StoreFinding> {
    let (refused, checks, rights) = match (has_info, has_config) {
        (true, true) => return None,
        (true, false) => (
            "`CONFIG GET`",
            "`appendfsync` and `min-replicas-to-write` were not examined",
            "right `+config|get`",
        ),
        (false, true) => (
            "`INFO`",
            "the connected replicas and the state of the disk were not examined",
            "right `+info`",
        ),
        (false, false) => (
            "`INFO` or `CONFIG GET`",
            "eviction, persistence and replicas were not examined",
            "rights `+info +config|get`",
        ),
    };
    Some(StoreFinding::note(
        "settings",
        format!("The server does not answer {refused} to this user, so {checks}."),
        format!("Run the checks again as a user that has the {rights}."),
    ))
}

fn check_settings(
    known: &HashMap<String, String>,
    wait_replicas: u32,
    findings: &mut Vec<StoreFinding>,
) {
    // The server spells the same setting with dashes in CONFIG GET and with underscores in INFO.
    let either = |config: &str, info: &str| known.get(config).or_else(|| known.get(info));
    let number =
        |config: &str, info: &str| either(config, info).and_then(|text| text.parse::<u64>().ok());
    check_eviction(
        either("maxmemory-policy", "maxmemory_policy"),
        number("maxmemory", "maxmemory"),
        findings,
    );
    if either("appendonly", "aof_enabled").is_some_and(|value| matches!(value.as_str(), "no" | "0"))
    {
        findings.push(StoreFinding::warning(
            "appendonly",
            "The append-only file is off: a crash of the server loses all records since the last \
             snapshot, so their work may run again.",
            "Set `appendonly yes` and `appendfsync always`.",
        ));
    } else if let Some(sync) = known.get("appendfsync").filter(|sync| *sync != "always") {
        findings.push(StoreFinding::warning(
            "appendfsync",
            format!(
                "`appendfsync` is `{sync}`: a crash may lose the last writes (with `everysec`, \
                 those of the last 2 s), so work that was recorded as done may run again."
            ),
            "Set `appendfsync always`, unless you accept that risk.",
        ));
    }
    for name in ["rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"] {
        if let Some(status) = known.get(name).filter(|status| *status != "ok") {
            findings.push(StoreFinding::error(
                "persistence",
                format!(
                    "The server cannot write to its disk (`{name}` is `{status}`), so it refuses \
                     writes, or loses them when it stops."
                ),
                "Find the cause in the server's log; then free disk space, or correct the permissions \
                 of the server's data directory.",
            ));
        }
    }
    let replicas = number("connected_slaves", "connected_slaves").unwrap_or(0);
    if u64::from(wait_replicas) > replicas && known.contains_key("connected_slaves") {
        findings.push(StoreFinding::error(
            "wait-replicas",
            format!(
                "`wait-replicas` is {wait_replicas}, but {replicas} replicas are connected, so \
                 each grant and each completion fails."
            ),
            "Start the missing replicas, or lower `wait-replicas`.",
        ));
    }
    if replicas > 0 && number("min-replicas-to-write", "min_replicas_to_write") == Some(0) {
        findings.push(StoreFinding::warning(
            "min-replicas-to-write",
            "`min-replicas-to-write` is 0: a primary that is cut off keeps acknowledging writes, \
             and a failover loses them.",
            "Set `min-replicas-to-write 1` and `min-replicas-max-lag 10`.",
        ));
    }
}

fn check_eviction(policy: Option<&String>, limit: Option<u64>, findings: &mut Vec<StoreFinding>) {
    let Some(policy) = policy.filter(|policy| *policy != "noeviction") else { return };
    let advice = "Set `maxmemory-policy noeviction`, and use another server for caches.";
    findings.push(match limit {
        Some(0) => StoreFinding::warning(
            "eviction",
            format!(
                "`maxmemory-policy` is `{policy}`: as soon as `maxmemory` is set, the server may \
                 evict records, and their work runs again."
            ),
            advice,
        ),
        _ => StoreFinding::error(
            "eviction",
            format!(
                "`maxmemory-policy` is `{policy}`: when its memory is full, the server evicts \
                 records, and their work runs again."
            ),
            advice,
        ),
    });
}

/// Returns the fields in the answer to INFO, which is a text, or to CONFIG GET, which is a list or
/// a map. A refusal has no fields.
fn fields(answer: &Value) -> HashMap<String, String> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    match answer {
        Value::Array(list) => {
            list.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
        }
        Value::Map(map) => map.iter().map(|(name, value)| (text(name), text(value))).collect(),
        Value::BulkString(_) | Value::VerbatimString { .. } => {
            let info = match answer {
                Value::VerbatimString { text, .. } => text.clone(),
                answer => text(answer),
            };
            let pairs = info.lines().filter_map(|line| line.trim_end().split_once(':'));
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        }
        _ => HashMap::new(),
    }
}

/// Returns the microseconds since 1970 from an answer to TIME.
fn micros(answer: &Value) -> Option<u64> {
    let Value::Array(parts) = answer else { return None };
    let number = |part: &Value| match part {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let [seconds, micros] = &parts[..] else { return None };
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}
