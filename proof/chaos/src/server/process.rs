// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Process`]: one server process, which is killed or shut down and started again.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::End;
use super::recipe::Recipe;
use crate::clocks::Preload;
use crate::mono::{self, MS};
use crate::workers::signal;

/// How long a server may take to start, even after it was killed, or to shut down.
const WITHIN_MS: u64 = 60_000;

/// One server process.
pub(super) struct Process {
    pub(super) recipe: Recipe,
    child: Option<Child>,
    log: PathBuf,
    clock: Option<Preload>,
    /// The time by which the start or shutdown under way must be done.
    until: u64,
}

impl Process {
    pub(super) fn new(recipe: Recipe, log: PathBuf, clock: Option<Preload>) -> Self {
        Self { recipe, child: None, log, clock, until: 0 }
    }

    /// Writes the server's files and creates its data.
    pub(super) fn make(&self) -> io::Result<()> {
        let dir = &self.recipe.dir;
        fs::create_dir_all(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        for (name, text) in &self.recipe.files {
            fs::write(dir.join(name), text)?;
            self.give(&dir.join(name))?;
        }
        self.give(dir)?;
        for words in &self.recipe.prepare {
            let status = self.command(words)?.status()?;
            if !status.success() {
                return Err(io::Error::other(format!("{} failed: {}", words[0], self.said())));
            }
        }
        Ok(())
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        match self.recipe.user {
            Some((uid, gid)) => chown(path, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    fn command(&self, words: &[String]) -> io::Result<Command> {
        let log = fs::OpenOptions::new().append(true).create(true).open(&self.log)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&self.recipe.dir).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        if let Some((uid, gid)) = self.recipe.user {
            command.uid(uid).gid(gid);
        }
        Ok(command)
    }

    /// Starts the server and waits until it is ready.
    pub(super) fn start(&mut self) -> io::Result<()> {
        self.begin()?;
        while !self.is_ready()? {
            mono::rest(10);
        }
        Ok(())
    }

    /// Begins to start it.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.until = mono::now() + WITHIN_MS * MS;
        self.spawn()
    }

    fn spawn(&mut self) -> io::Result<()> {
        let mut command = self.command(&tied(&self.recipe.command))?;
        if let Some(clock) = &self.clock {
            clock.apply(&mut command);
        }
        self.child = Some(command.spawn()?);
        Ok(())
    }

    /// Returns whether the server is ready. Remains of a killed server may prevent the start for a
    /// moment, so a server that has ended is started again.
    pub(super) fn is_ready(&mut self) -> io::Result<bool> {
        let is_late = mono::now() > self.until;
        let Some(child) = &mut self.child else { return Ok(false) };
        let ended = child.try_wait()?.is_some();
        if !ended && self.serves() {
            return Ok(true);
        }
        if is_late {
            self.end(End::Killed)?;
            return Err(io::Error::other(format!(
                "{} {}: {}",
                self.recipe.name,
                if ended { "ended unexpectedly" } else { "did not become ready" },
                self.said()
            )));
        }
        if ended {
            mono::rest(50);
            self.spawn()?;
        }
        Ok(false)
    }

    fn serves(&self) -> bool {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.recipe.port));
        TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()
    }

    /// Kills the server, or shuts it down in order.
    pub(super) fn end(&mut self, end: End) -> io::Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        if end == End::ShutDown {
            self.until = mono::now() + WITHIN_MS * MS;
            return signal(child, self.recipe.shut_down);
        }
        child.kill()?;
        child.wait()?;
        self.child = None;
        Ok(())
    }

    /// Returns whether the process, which was told to shut down, has ended.
    pub(super) fn has_ended(&mut self) -> io::Result<bool> {
        let Some(child) = &mut self.child else { return Ok(true) };
        match child.try_wait()? {
            Some(status) if status.success() => {
                self.child = None;
                Ok(true)
            }
            Some(status) => Err(io::Error::other(format!(
                "{} was shut down, but {status}: {}",
                self.recipe.name,
                self.said()
            ))),
            None if mono::now() > self.until => Err(io::Error::other(format!(
                "{} did not shut down: {}",
                self.recipe.name,
                self.said()
            ))),
            None => Ok(false),
        }
    }

    /// Returns the end of the server's log.
    pub(super) fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        // An installer ends its output with advice, so look for the errors.
        let mut lines: Vec<&str> =
            text.lines().filter(|line| line.contains("ERROR") || line.contains("FATAL")).collect();
        if lines.is_empty() {
            lines = text.lines().collect();
        }
        lines[lines.len().saturating_sub(6)..].join(" | ")
    }
}

/// Changes the command of a server so that the server is killed when this process ends in any way,
/// if the machine supports that.
fn tied(command: &[String]) -> Vec<String> {
    const SETPRIV: &str = "/usr/bin/setpriv";
    let mut words = Vec::new();
    if Path::new(SETPRIV).exists() {
        words.extend([SETPRIV, "--pdeathsig", "KILL", "--"].map(String::from));
    }
    words.extend_from_slice(command);
    words
}
