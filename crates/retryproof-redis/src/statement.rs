// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scripts, as the server knows them.

use std::io::Write as _;

use redis::{Cmd, RedisWrite, ToRedisArgs};

/// One script: sent by its digest, and in full when the server does not know that.
#[derive(Debug)]
pub(crate) struct Script {
    source: &'static str,
    sha: String,
}

impl Script {
    fn new(source: &'static str) -> Self {
        Self { source, sha: redis::Script::new(source).get_hash().to_owned() }
    }

    /// The beginning of a call on one key: its arguments follow. `size` is about how many bytes
    /// those have.
    pub(crate) fn call(&self, key: &[u8], size: usize) -> Cmd {
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

/// Two pieces as one argument: each argument costs the server a sixteenth of a replay.
pub(crate) struct Joined<'a>(pub(crate) &'a [u8], pub(crate) &'a [u8]);

impl ToRedisArgs for Joined<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let mut arg = out.writer_for_next_arg();
        // Into memory: it does not fail.
        let _ = arg.write_all(self.0).and_then(|()| arg.write_all(self.1));
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) complete: Script,
    pub(crate) extend: Script,
    pub(crate) release: Script,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self {
            acquire: Script::new(include_str!("../scripts/acquire.lua")),
            complete: Script::new(include_str!("../scripts/complete.lua")),
            extend: Script::new(include_str!("../scripts/extend.lua")),
            release: Script::new(include_str!("../scripts/release.lua")),
        }
    }

    pub(crate) fn all(&self) -> [&Script; 4] {
        [&self.acquire, &self.complete, &self.extend, &self.release]
    }
}
