// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every command and script of the store, with its arguments.

use std::io::Write as _;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisWrite, ToRedisArgs};
use retryproof_core::store::{AcquireRequest, Completion, ForceAction, ForceRequest, HolderNote};
use retryproof_core::{OwnerId, Tombstone};

use crate::record::{
    HEADER, NO_OWNER, RELEASED, acquire_argument, bytes_of, complete_argument, millis, token_digits,
};

/// How long a released record keeps the last token (ACQ-10). Tokens keep growing if the server's
/// clock steps back by less than this time.
const RELEASED_TTL: Duration = Duration::from_secs(3_600);

/// A script. The store calls a script by its digest, and loads it if the server does not have
/// the script.
#[derive(Debug)]
pub(crate) struct Script {
    source: &'static str,
    sha: String,
}

impl Script {
    fn new(source: &'static str) -> Self {
        Self { source, sha: redis::Script::new(source).get_hash().to_owned() }
    }

    /// Begins a call on one key, with space for about `size` bytes of arguments.
    fn call(&self, key: &[u8], size: usize) -> Cmd {
        let mut cmd = Cmd::with_capacity(8, 64 + key.len() + size);
        cmd.arg("EVALSHA").arg(&self.sha).arg("1").arg(key);
        cmd
    }

    pub(crate) fn load(&self) -> Cmd {
        let mut cmd = Cmd::with_capacity(3, 16 + self.source.len());
        cmd.arg("SCRIPT").arg("LOAD").arg(self.source);
        cmd
    }
}

/// One call of a script on one key.
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: &'a Script,
    pub(crate) key: &'a [u8],
    pub(crate) cmd: Cmd,
}

/// All scripts.
#[derive(Debug)]
pub(crate) struct Scripts {
    acquire: Script,
    complete: Script,
    extend: Script,
    release: Script,
    force: Script,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self {
            acquire: Script::new(include_str!("../scripts/acquire.lua")),
            complete: Script::new(include_str!("../scripts/complete.lua")),
            extend: Script::new(include_str!("../scripts/extend.lua")),
            release: Script::new(include_str!("../scripts/release.lua")),
            force: Script::new(include_str!("../scripts/force.lua")),
        }
    }

    pub(crate) fn all(&self) -> [&Script; 5] {
        [&self.acquire, &self.complete, &self.extend, &self.release, &self.force]
    }

    pub(crate) fn acquire<'a>(&'a self, key: &'a [u8], req: &AcquireRequest) -> ScriptCall<'a> {
        let (lease, grace) = (millis(req.lease), millis(req.ttl));
        let mut cmd = self.acquire.call(key, 224);
        cmd.arg(acquire_argument(lease + grace, grace, req));
        ScriptCall { script: &self.acquire, key, cmd }
    }

    pub(crate) fn extend<'a>(
        &'a self,
        key: &'a [u8],
        owner: OwnerId,
        lease: Duration,
    ) -> ScriptCall<'a> {
        let mut cmd = self.extend.call(key, 64);
        cmd.arg(owner.as_bytes()).arg(millis(lease));
        ScriptCall { script: &self.extend, key, cmd }
    }

    pub(crate) fn complete<'a>(
        &'a self,
        key: &'a [u8],
        owner: OwnerId,
        done: &Completion,
    ) -> ScriptCall<'a> {
        let mut cmd = self.complete.call(key, done.value.len() + 160);
        let fingerprint = done.fingerprint.as_ref();
        cmd.arg(&complete_argument(owner, fingerprint))
            .arg(millis(done.ttl))
            .arg(Joined(bytes_of(fingerprint), &done.value));
        ScriptCall { script: &self.complete, key, cmd }
    }

    pub(crate) fn release<'a>(&'a self, key: &'a [u8], owner: OwnerId) -> ScriptCall<'a> {
        let mut cmd = self.release.call(key, 96);
        cmd.arg(owner.as_bytes()).arg(NO_OWNER.as_bytes()).arg(millis(RELEASED_TTL)).arg(RELEASED);
        ScriptCall { script: &self.release, key, cmd }
    }
}

impl Scripts {
    pub(crate) fn force<'a>(&'a self, key: &'a [u8], req: &ForceRequest) -> ScriptCall<'a> {
        let size = match &req.action {
            ForceAction::Resolve { done, .. } => done.value.len(),
            _ => 0,
        };
        let mut cmd = self.force.call(key, size + 192);
        let name = match &req.action {
            ForceAction::Release => "release",
            ForceAction::Resolve { .. } => "resolve",
            ForceAction::Forget => "forget",
            ForceAction::Erase => "erase",
        };
        cmd.arg(name).arg(&token_digits(req.token)).arg(u8::from(req.even_if_live));
        match &req.action {
            ForceAction::Release | ForceAction::Forget => {
                cmd.arg(NO_OWNER.as_bytes()).arg(millis(RELEASED_TTL)).arg(RELEASED);
            }
            ForceAction::Resolve { by, done } => {
                let fingerprint = done.fingerprint.as_ref();
                cmd.arg(&complete_argument(*by, fingerprint))
                    .arg(millis(done.ttl))
                    .arg(Joined(bytes_of(fingerprint), &done.value));
            }
            ForceAction::Erase => {
                cmd.arg(Joined(&[], Tombstone::new().envelope()));
            }
        }
        ScriptCall { script: &self.force, key, cmd }
    }
}

/// Sends two pieces as one argument. A further argument would cost the server a sixteenth of the
/// time that a replay takes.
struct Joined<'a>(&'a [u8], &'a [u8]);

impl ToRedisArgs for Joined<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut arg = out.writer_for_next_arg();
        // Writing to memory cannot fail.
        let _ = arg.write_all(self.0).and_then(|()| arg.write_all(self.1));
    }
}

/// Reads a key's whole value, but not its time to live.
pub(crate) fn get(key: &[u8]) -> Cmd {
    let mut cmd = Cmd::with_capacity(2, key.len() + 8);
    cmd.arg("GET").arg(key);
    cmd
}

/// Sets a key if it does not exist.
pub(crate) fn set_if_absent(key: &[u8], value: i64) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("SET").arg(key).arg(value).arg("NX");
    cmd
}

/// Reads the time to live, then the value. If the record changes between the two reads, the value
/// is still a state that the record had during the call. Only the remaining time can belong to the
/// earlier state.
pub(crate) fn pttl_and_value(key: &[u8]) -> Pipeline {
    let mut batch = redis::pipe();
    batch.cmd("PTTL").arg(key).cmd("GET").arg(key);
    batch
}

/// Reads the time to live, then the header, but not the value.
pub(crate) fn pttl_and_header(key: &[u8]) -> Pipeline {
    let mut batch = redis::pipe();
    batch.cmd("PTTL").arg(key);
    add_range(&mut batch, key, HEADER);
    batch
}

/// Reads the server's clock. For each key, also reads the time to live, the length, and the header
/// with a note of at most `HolderNote::MAX_BYTES` bytes.
pub(crate) fn time_and_summaries<'a>(keys: impl Iterator<Item = &'a [u8]>) -> Pipeline {
    let mut batch = redis::pipe();
    batch.cmd("TIME");
    for key in keys {
        batch.cmd("PTTL").arg(key).cmd("STRLEN").arg(key);
        add_range(&mut batch, key, HEADER + HolderNote::MAX_BYTES);
    }
    batch
}

pub(crate) fn add_length_and_header(batch: &mut Pipeline, key: &[u8]) {
    batch.cmd("STRLEN").arg(key);
    add_range(batch, key, HEADER);
}

/// Adds a read of a record's first `bytes` bytes to `batch`.
fn add_range(batch: &mut Pipeline, key: &[u8], bytes: usize) {
    batch.cmd("GETRANGE").arg(key).arg(0).arg(bytes - 1);
}

/// Runs one step of a scan for the records with `prefix`. The step checks about `count` keys,
/// beginning at `cursor`. The server skips keys that are not strings. The store writes no such
/// keys, and the commands that read records would fail on them.
pub(crate) fn scan(cursor: &[u8], prefix: &str, count: usize) -> Cmd {
    let mut cmd = Cmd::new();
    // The prefix has only letters, digits and `_`, so it contains no pattern characters.
    let pattern = format!("{prefix}:{{*");
    cmd.arg("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(count);
    cmd.arg("TYPE").arg("string");
    cmd
}

/// Waits until `replicas` replicas have acknowledged the connection's last write, or until
/// `timeout` has passed.
pub(crate) fn wait(replicas: u32, timeout: Duration) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("WAIT").arg(replicas).arg(millis(timeout));
    cmd
}

/// Reads a server setting.
pub(crate) fn config_get(name: &str) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("CONFIG").arg("GET").arg(name);
    cmd
}

/// Reads several server settings.
pub(crate) fn config_get_all(names: &[&str]) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("CONFIG").arg("GET").arg(names);
    cmd
}

/// Returns the commands for which a user needs rights, each with its right. None of the commands
/// writes. A command that could write has contradictory options, and the server checks the user's
/// rights before it refuses these options. The list ends with `SSUBSCRIBE` and `SUNSUBSCRIBE`, so
/// the connection cannot be used for anything else.
pub(crate) fn rights(
    key: &[u8],
    scripts: &Scripts,
    waits: bool,
    in_cluster: bool,
) -> Vec<(&'static str, Cmd)> {
    let cmd = |name: &'static str, arguments: &[&[u8]]| {
        let mut cmd = Cmd::new();
        cmd.arg(name).arg(arguments);
        cmd
    };
    let unknown_script = [b'0'; 40];
    let mut rights = vec![
        ("+get", cmd("GET", &[key])),
        ("+getrange", cmd("GETRANGE", &[key, b"0", b"0"])),
        ("+set", cmd("SET", &[key, b"", b"NX", b"XX"])),
        ("+pttl", cmd("PTTL", &[key])),
        ("+pexpire", cmd("PEXPIRE", &[key, b"1", b"NX", b"XX"])),
        ("+time", cmd("TIME", &[])),
        ("+evalsha", cmd("EVALSHA", &[&unknown_script, b"1", key])),
        ("+script|load", scripts.release.load()),
        ("+role", cmd("ROLE", &[])),
        ("+strlen", cmd("STRLEN", &[key])),
        ("+scan", cmd("SCAN", &[b"0", b"COUNT", b"1"])),
    ];
    if waits {
        rights.push(("+wait", cmd("WAIT", &[b"0", b"1"])));
    }
    if in_cluster {
        rights.extend([("+cluster|slots", cluster_slots()), ("+asking", asking())]);
    }
    rights.extend([
        ("+spublish", cmd("SPUBLISH", &[key, b"C"])),
        ("+ssubscribe", cmd("SSUBSCRIBE", &[key])),
        ("+sunsubscribe", cmd("SUNSUBSCRIBE", &[key])),
    ]);
    rights
}

/// Reads which node of a cluster serves which slots.
pub(crate) fn cluster_slots() -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("CLUSTER").arg("SLOTS");
    cmd
}

/// Lets the next command, and only that one, run on a node that is about to receive the key's slot.
pub(crate) fn asking() -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("ASKING");
    cmd
}

/// Begins or ends the subscription to one channel.
pub(crate) fn subscription(begins: bool, channel: &[u8]) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg(if begins { "SSUBSCRIBE" } else { "SUNSUBSCRIBE" }).arg(channel);
    cmd
}

/// Queries a sentinel for the primary's address.
pub(crate) fn primary_address(service: &str) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("SENTINEL").arg("get-master-addr-by-name").arg(service);
    cmd
}
