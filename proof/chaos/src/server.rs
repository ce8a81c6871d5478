// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Server`]: a store's server that belongs to the run, on a separate loopback port, with its data
//! below the run's folder. The run may kill it, because the run started it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::mono::{self, MS};

mod recipe;

use recipe::Recipe;
pub(crate) use recipe::program;

/// How long a server may take until it is ready, also after it was killed.
const READY_MS: u64 = 60_000;

/// How long the sentinels have to promote a replica.
const PROMOTED_MS: u64 = 15_000;

/// One server process.
struct Process {
    recipe: Recipe,
    child: Option<Child>,
    log: PathBuf,
}

/// A store's server, or a group of them.
pub(crate) struct Server {
    url: String,
    /// The port that the proxy passes on to; a group has none.
    port: Option<u16>,
    processes: Vec<Process>,
    dir: PathBuf,
    /// The port of a killed primary, and the time of the kill, until the group is complete again.
    deposed: Option<(u16, u64)>,
}

impl Server {
    /// Creates and starts a server in `dir`; none for a store without a server.
    pub(crate) fn start(store: &str, dir: &Path) -> io::Result<Option<Self>> {
        let Some((url, port, recipes)) = recipe::of(store, dir)? else { return Ok(None) };
        let mut server =
            Self { url, port, processes: Vec::new(), dir: dir.to_path_buf(), deposed: None };
        for recipe in recipes {
            let log = dir.join(format!("{}.log", recipe.name));
            let mut process = Process { recipe, child: None, log };
            process.make()?;
            process.start()?;
            server.processes.push(process);
        }
        Ok(Some(server))
    }

    /// Its URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The address on which it listens.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Kills the server without warning.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        match self.processes.first_mut() {
            Some(process) => process.kill(),
            None => Ok(()),
        }
    }

    /// Starts the server again with its data.
    pub(crate) fn start_again(&mut self) -> io::Result<()> {
        match self.processes.first_mut() {
            Some(process) => process.start(),
            None => Ok(()),
        }
    }

    /// Kills the primary of a group.
    pub(crate) fn begin_fail_over(&mut self) -> io::Result<()> {
        let primary = recipe::primary(&self.ports("sentinel"))?;
        let Some(process) =
            self.processes.iter_mut().find(|process| process.recipe.port == primary)
        else {
            return Err(io::Error::other("the primary is not a process of this run"));
        };
        process.kill()?;
        self.deposed = Some((primary, mono::now()));
        Ok(())
    }

    /// Continues the fail-over: when another server is the primary, the old one restarts as its
    /// replica. Returns whether the group is complete again.
    pub(crate) fn go_on_failing_over(&mut self) -> io::Result<bool> {
        let Some((deposed, since)) = self.deposed else { return Ok(true) };
        let old = self.processes.iter().position(|process| process.recipe.port == deposed);
        let Some(old) = old else { return Ok(true) };
        let now = recipe::primary(&self.ports("sentinel"));
        if self.processes[old].child.is_none() {
            let replaced = now.is_ok_and(|now| now != deposed);
            // A replica that has just lost its link cannot be promoted. In this case, restart the
            // old primary.
            if replaced || mono::now() > since + PROMOTED_MS * MS {
                self.processes[old].start()?;
            }
            return Ok(false);
        }
        // The fail-over is complete only when the replicas follow the new primary, because the next
        // fail-over needs one of them.
        let others = self
            .ports("redis")
            .into_iter()
            .filter(|port| now.as_ref().is_ok_and(|now| now != port));
        let whole = others.clone().count() > 0 && others.into_iter().all(recipe::follows);
        if whole {
            self.deposed = None;
        }
        Ok(whole)
    }

    fn ports(&self, of: &str) -> Vec<u16> {
        let named = self.processes.iter().filter(|process| process.recipe.name.starts_with(of));
        named.map(|process| process.recipe.port).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
        }
        // Children of a killed server may still write for a moment.
        for _ in 0..100 {
            if fs::remove_dir_all(&self.dir).is_ok() || !self.dir.exists() {
                break;
            }
            mono::rest(30);
        }
    }
}

impl Process {
    /// Writes its files and creates its data.
    fn make(&self) -> io::Result<()> {
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

    /// Starts the server and waits until it is ready. Remains of a killed server may prevent the
    /// start for a moment.
    fn start(&mut self) -> io::Result<()> {
        let until = mono::now() + READY_MS * MS;
        loop {
            let mut child = self.command(&tied(&self.recipe.command))?.spawn()?;
            while child.try_wait()?.is_none() {
                if self.serves() {
                    self.child = Some(child);
                    return Ok(());
                }
                if mono::now() > until {
                    child.kill()?;
                    child.wait()?;
                    return Err(io::Error::other(format!(
                        "{} did not become ready: {}",
                        self.recipe.name,
                        self.said()
                    )));
                }
                mono::rest(10);
            }
            if mono::now() > until {
                return Err(io::Error::other(format!(
                    "{} ended unexpectedly: {}",
                    self.recipe.name,
                    self.said()
                )));
            }
            mono::rest(50);
        }
    }

    fn serves(&self) -> bool {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.recipe.port));
        TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()
    }

    fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// The end of its log.
    fn said(&self) -> String {
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

/// The command of a server that is killed when this process ends in any way, if the machine
/// supports that.
fn tied(command: &[String]) -> Vec<String> {
    const SETPRIV: &str = "/usr/bin/setpriv";
    let mut words = Vec::new();
    if Path::new(SETPRIV).exists() {
        words.extend([SETPRIV, "--pdeathsig", "KILL", "--"].map(String::from));
    }
    words.extend_from_slice(command);
    words
}

/// A port on which no process listens.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Sends one command to a Redis server or a sentinel, and returns the answer.
fn ask(port: u16, command: &str) -> io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500))?;
    stream.set_read_timeout(Some(Duration::from_millis(60)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let (mut text, mut buffer) = (Vec::new(), [0; 4_096]);
    // The server does not close the connection, so the answer is what arrives before the read
    // timeout.
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        text.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8(text).map_err(io::Error::other)
}

/// The user that a server runs as; none if this process does not run as root.
fn user(names: &[&str]) -> io::Result<Option<(u32, u32)>> {
    if fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    for name in names {
        let line = users.lines().find(|line| line.split(':').next() == Some(name));
        let mut ids =
            line.into_iter().flat_map(|line| line.split(':')).skip(2).map(|id| id.parse().ok());
        if let (Some(Some(uid)), Some(Some(gid))) = (ids.next(), ids.next()) {
            return Ok(Some((uid, gid)));
        }
    }
    Err(io::Error::other(format!(
        "root must not run this server, and there is no user {}",
        names.join(" or ")
    )))
}
