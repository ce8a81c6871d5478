// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PostgresGroup`]: a private PostgreSQL primary with its standbys, for tests of failovers.
//!
//! The server's programs must be installed on this machine; `cargo xtask services up postgres`
//! installs them. The functions block, so call them on a thread that may wait.

mod system;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::folder::Folder;
use crate::process::{free_port, tail, tied};

use system::{children, programs, send, stop, user};

/// How long a step may take, such as a start. A busy machine can make a step slow.
const WITHIN: Duration = Duration::from_secs(120);

/// PostgreSQL servers on free ports of 127.0.0.1, with their data in a temporary folder. One is the
/// primary, and the others are its standbys. The nodes are numbered from 0, and node 0 is the first
/// primary. Dropping this value ends the servers and removes the folder.
///
/// If `setpriv` is installed, a server dies with the thread that started it, so no server outlives
/// a killed test.
#[derive(Debug)]
pub struct PostgresGroup {
    folder: Folder,
    programs: PathBuf,
    /// The user that the servers run as, if this process runs as root.
    user: Option<(u32, u32)>,
    settings: Vec<String>,
    nodes: Vec<PostgresNode>,
}

#[derive(Debug)]
struct PostgresNode {
    port: u16,
    child: Option<Child>,
    /// Environment variables.
    variables: Vec<(String, String)>,
}

/// Whether commits wait for a standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// A commit waits until any one of the other nodes has written it to its disk. The setting
    /// `synchronous_standby_names` is the same on every node.
    Synchronous,
    /// A commit waits for no standby.
    Asynchronous,
}

impl PostgresGroup {
    /// Starts a primary and its standbys. `settings` are further settings of every server, such as
    /// `fsync=off`.
    ///
    /// # Errors
    /// If a program is missing, or a server is not ready in time.
    pub fn start(standbys: usize, how: Replication, settings: &[&str]) -> io::Result<Self> {
        let folder = Folder::new("standby")?;
        // The servers run as another user, who has to pass through the folder.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711))?;
        let node = |_| PostgresNode { port: free_port(), child: None, variables: Vec::new() };
        let nodes: Vec<_> = (0..=standbys).map(node).collect();
        let mut common: Vec<String> = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=300",
            "wal_keep_size=256MB",
            "wal_retrieve_retry_interval=100ms",
        ]
        .map(String::from)
        .to_vec();
        if how == Replication::Synchronous {
            let names: Vec<_> = (0..nodes.len()).map(|node| format!("n{node}")).collect();
            common.push(format!("synchronous_standby_names=ANY 1 ({})", names.join(",")));
        }
        common.extend(settings.iter().map(|setting| (*setting).to_owned()));
        let (programs, user) = (programs()?, user()?);
        let mut group = Self { folder, programs, user, settings: common, nodes };
        let data = group.data(0).display().to_string();
        // Each promotion and each copy writes whole files of the log, so they are small.
        let own = ["--wal-segsize=2", "-D", &data];
        let flags = ["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"];
        group.own_folder(0)?;
        group.run("initdb", &[&flags[..], &own].concat())?;
        group.start_again(0)?;
        for standby in 1..group.nodes.len() {
            group.rebuild(standby, 0)?;
        }
        Ok(group)
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the port of a node.
    #[must_use]
    pub fn port(&self, node: usize) -> u16 {
        self.nodes[node].port
    }

    /// Returns a URL with these nodes, in this order.
    #[must_use]
    pub fn url_of(&self, nodes: &[usize]) -> String {
        let hosts = nodes.iter().map(|node| format!("127.0.0.1:{}", self.port(*node)));
        format!("postgres://postgres@{}/postgres", hosts.collect::<Vec<_>>().join(","))
    }

    /// Returns a URL with all nodes.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(&(0..self.count()).collect::<Vec<_>>())
    }

    /// Restarts a node with these environment variables, which it also has at each later start.
    ///
    /// # Errors
    /// If the node does not end or does not answer in time.
    pub fn restart_with(&mut self, node: usize, variables: &[(String, String)]) -> io::Result<()> {
        self.nodes[node].variables = variables.to_vec();
        self.shut_down(node)?;
        self.start_again(node)
    }

    /// Runs SQL on a node, and returns the first column of the first row.
    ///
    /// # Errors
    /// If the node does not answer, or refuses the SQL.
    pub fn sql(&self, node: usize, sql: &str) -> io::Result<String> {
        let port = self.port(node).to_string();
        let flags = ["-X", "-A", "-t", "-q", "-h", "127.0.0.1", "-U", "postgres", "-p", &port];
        let said = self.run("psql", &[&flags[..], &["-c", sql, "postgres"]].concat())?;
        Ok(said.lines().next().unwrap_or_default().to_owned())
    }

    /// Kills all processes of a node with SIGKILL, so its clients see their connections end.
    ///
    /// # Errors
    /// If the processes cannot be killed.
    pub fn kill(&mut self, node: usize) -> io::Result<()> {
        self.freeze(node)?;
        self.signal(node, "KILL")?;
        if let Some(mut child) = self.nodes[node].child.take() {
            child.wait()?;
        }
        Ok(())
    }

    /// Shuts a node down. It first sends its last writes to its standbys, and its clients see their
    /// connections end.
    ///
    /// # Errors
    /// If the node does not end in time.
    pub fn shut_down(&mut self, node: usize) -> io::Result<()> {
        let Some(mut child) = self.nodes[node].child.take() else { return Ok(()) };
        let pid = child.id().to_string();
        Command::new("kill").args(["-s", "INT", "--", &pid]).status()?;
        let ended = until(|| Ok(child.try_wait()?.is_some()));
        if ended.is_err() {
            self.nodes[node].child = Some(child);
        }
        ended
    }

    /// Stops all processes of a node with SIGSTOP. Its connections stay open.
    ///
    /// # Errors
    /// If the processes cannot be stopped.
    pub fn freeze(&mut self, node: usize) -> io::Result<()> {
        let Some(child) = &self.nodes[node].child else { return Ok(()) };
        // As long as it runs, the postmaster can start a process that no signal reaches. That
        // process would live on after a kill, and keep the node's shared memory.
        stop(child.id())?;
        self.signal(node, "STOP")
    }

    /// Lets a frozen node go on.
    ///
    /// # Errors
    /// If the processes cannot be continued.
    pub fn thaw(&mut self, node: usize) -> io::Result<()> {
        self.signal(node, "CONT")
    }

    /// Starts a node with its data, and waits until it answers. A primary that was killed starts as
    /// a primary.
    ///
    /// # Errors
    /// If the node does not answer in time.
    pub fn start_again(&mut self, node: usize) -> io::Result<()> {
        let ready = until(|| {
            // Remains of a killed server can block the new one for a moment. Then start it again.
            if let Some(child) = &mut self.nodes[node].child
                && child.try_wait()?.is_some()
            {
                self.nodes[node].child = None;
            }
            if self.nodes[node].child.is_none() {
                let child = self.launch(node)?;
                self.nodes[node].child = Some(child);
            }
            // A server that recovers accepts connections before it answers.
            let listens = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port(node))).is_ok();
            Ok(listens && self.sql(node, "SELECT 1").is_ok())
        });
        ready.map_err(|error| {
            io::Error::other(format!("node {node}: {error}: {}", tail(&self.log(node))))
        })
    }

    /// Promotes a standby, and waits until it accepts writes. No other node is changed.
    ///
    /// # Errors
    /// If the node is no standby, or is not promoted in time.
    pub fn promote(&mut self, node: usize) -> io::Result<()> {
        self.sql(node, "SELECT pg_promote(wait => true, wait_seconds => 60)")?;
        until(|| Ok(self.sql(node, "SELECT pg_is_in_recovery()").is_ok_and(|is| is == "f")))
    }

    /// Fails over to the standby that has received most, as an operator would do: promotes it, and
    /// lets the other standbys follow it. Returns the number of the new primary.
    ///
    /// # Errors
    /// If no standby answers, or a step fails.
    pub fn fail_over(&mut self) -> io::Result<usize> {
        let mut standbys = Vec::new();
        for node in 0..self.count() {
            if self.nodes[node].child.is_none() {
                continue;
            }
            let received = "SELECT CASE WHEN pg_is_in_recovery() THEN \
                            pg_wal_lsn_diff(coalesce(pg_last_wal_receive_lsn(),'0/0'),'0/0') END";
            if let Ok(received) = self.sql(node, received).map(|text| text.parse::<u64>())
                && let Ok(received) = received
            {
                standbys.push((received, node));
            }
        }
        let best = standbys.iter().max().map(|(_, node)| *node);
        let best = best.ok_or_else(|| io::Error::other("no standby answers"))?;
        self.promote(best)?;
        for (_, node) in standbys.into_iter().filter(|(_, node)| *node != best) {
            self.follow(node, best)?;
        }
        Ok(best)
    }

    /// Lets a running standby follow another primary.
    ///
    /// # Errors
    /// If the node refuses the setting.
    pub fn follow(&mut self, standby: usize, primary: usize) -> io::Result<()> {
        self.follow_at(standby, self.port(primary))
    }

    /// Lets a running standby follow the primary behind a port of 127.0.0.1, such as that of a
    /// proxy.
    ///
    /// # Errors
    /// If the node refuses the setting.
    pub fn follow_at(&mut self, standby: usize, port: u16) -> io::Result<()> {
        let conninfo = conninfo(standby, port);
        self.sql(standby, &format!("ALTER SYSTEM SET primary_conninfo='{conninfo}'"))?;
        self.sql(standby, "SELECT pg_reload_conf()").map(drop)
    }

    /// Ends a node, and makes it a standby with a new copy of the primary's data.
    ///
    /// # Errors
    /// If the copy fails, or the standby does not receive the primary's writes in time.
    pub fn rebuild(&mut self, node: usize, primary: usize) -> io::Result<()> {
        self.kill(node)?;
        let data = self.data(node);
        let _ = fs::remove_dir_all(&data);
        self.own_folder(node)?;
        let (from, to) = (conninfo(node, self.port(primary)), data.display().to_string());
        let flags = ["-R", "-X", "stream", "-c", "fast", "--no-sync"];
        self.run("pg_basebackup", &[&flags[..], &["-d", &from, "-D", &to]].concat())?;
        self.start_again(node)?;
        self.until_streaming(node, primary)
    }

    /// Waits until a standby receives the primary's writes.
    ///
    /// # Errors
    /// If it does not receive them in time.
    pub fn until_streaming(&self, standby: usize, primary: usize) -> io::Result<()> {
        until(|| Ok(self.streams(standby, primary).unwrap_or(false)))
    }

    /// Whether a standby receives the primary's writes.
    ///
    /// # Errors
    /// If the primary does not answer.
    pub fn streams(&self, standby: usize, primary: usize) -> io::Result<bool> {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_replication WHERE application_name='n{standby}' AND \
             state='streaming'"
        );
        Ok(self.sql(primary, &sql)? != "0")
    }

    fn data(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("n{node}/data"))
    }

    fn log(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("n{node}.log"))
    }

    /// Creates the folder of a node's data.
    fn own_folder(&self, node: usize) -> io::Result<()> {
        let data = self.data(node);
        let above = data.parent().unwrap_or(&data);
        fs::create_dir_all(above)?;
        match self.user {
            Some((uid, gid)) => chown(above, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir("/").stdin(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Runs a program to its end, and returns its output.
    fn run(&self, program: &str, arguments: &[&str]) -> io::Result<String> {
        let mut words = vec![self.programs.join(program).display().to_string()];
        words.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let output = self.command(&words).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(io::Error::other(format!("{program} failed: {said}")))
    }

    fn launch(&self, node: usize) -> io::Result<Child> {
        let log = fs::File::options().create(true).append(true).open(self.log(node))?;
        let data = self.data(node).display().to_string();
        let mut words = vec![self.programs.join("postgres").display().to_string()];
        words.extend(["-D".to_owned(), data, "-p".to_owned(), self.port(node).to_string()]);
        words.extend(self.settings.iter().flat_map(|one| ["-c".to_owned(), one.clone()]));
        let mut command = self.command(&tied(&words));
        command.envs(self.nodes[node].variables.iter().map(|(name, value)| (name, value)));
        command.stdout(log.try_clone()?).stderr(log).spawn()
    }

    /// Sends a signal to the postmaster, and then to its children, of which each leads a process
    /// group of its own.
    fn signal(&self, node: usize, signal: &str) -> io::Result<()> {
        let Some(child) = &self.nodes[node].child else { return Ok(()) };
        let postmaster = child.id();
        send(signal, &[&[postmaster], &children(postmaster)?[..]].concat())
    }
}

impl Drop for PostgresGroup {
    fn drop(&mut self) {
        for node in 0..self.count() {
            let _ = self.kill(node);
        }
    }
}

fn conninfo(standby: usize, port: u16) -> String {
    format!("host=127.0.0.1 port={port} user=postgres application_name=n{standby}")
}

/// Waits until `holds` returns `true`.
#[expect(clippy::disallowed_methods, reason = "the servers need real time, and the caller blocks")]
fn until(mut holds: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let until = Instant::now() + WITHIN;
    while !holds()? {
        if Instant::now() > until {
            return Err(io::Error::other(format!("not done within {WITHIN:?}")));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
