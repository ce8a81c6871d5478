// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Patroni`]: three PostgreSQL servers, each with its Patroni, which decide through etcd which of
//! them is the primary. Commits wait for a standby (`synchronous_mode`). A Patroni and its server
//! together stand for a host. Apart from a planned switchover, the run only breaks something, and
//! Patroni does the rest.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::process::Process;
use super::recipe::{Recipe, program, words};
use super::standby::{BESIDE_MS, FailsOver, NodeClocks, State};
use super::{End, FailOver, free_port, user};
use crate::clocks::Preload;
use crate::mono::{self, MS};

const NODES: usize = 3;

/// How long a step of Patroni may take, such as a failover or the return of an old primary. With
/// these settings, an idle machine needs up to 25 s.
const WITHIN_MS: u64 = 120_000;

/// The time limit for an answer of Patroni, and for one to a switchover, which comes at its end.
const PATIENCE: Duration = Duration::from_secs(2);
const SWITCHED_WITHIN: Duration = Duration::from_secs(60);

/// The group: etcd, and the hosts in the order of their names.
pub(super) struct Patroni {
    hosts: Vec<Process>,
    /// The ports of the PostgreSQL servers.
    ports: Vec<u16>,
    psql: String,
    primary: usize,
    clocks: NodeClocks,
    /// Ends after the hosts, which need it to shut down.
    _etcd: Etcd,
}

/// The only member of etcd, which no fault hits: the subject is a failover, not etcd.
struct Etcd(Process);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.end(End::Killed);
    }
}

impl Patroni {
    /// Starts the group, with its files in `dir`.
    pub(super) fn start(dir: &Path, clocks: NodeClocks) -> io::Result<Self> {
        let ready = |recipe: Recipe, clock: Option<&Preload>| {
            let log = dir.join(format!("{}.log", recipe.name));
            let mut process = Process::new(recipe, log, clock.cloned());
            process.make()?;
            process.start()?;
            io::Result::Ok(process)
        };
        let etcd = etcd(dir)?;
        let client = etcd.port;
        let etcd = Etcd(ready(etcd, None)?);
        let mut group = Self {
            hosts: Vec::new(),
            ports: Vec::new(),
            psql: program("psql")?,
            primary: 0,
            clocks,
            _etcd: etcd,
        };
        for number in 0..NODES {
            let port = free_port()?;
            group.ports.push(port);
            let clock = group.clocks.of(number);
            group.hosts.push(ready(host(dir, number, port, client)?, clock)?);
        }
        group.until("all hosts to run", Self::is_whole)?;
        group.primary = group.leader(None).ok_or_else(|| io::Error::other("no host leads"))?;
        Ok(group)
    }

    /// Waits until `holds` returns `true`.
    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) -> io::Result<()> {
        let until = mono::now() + WITHIN_MS * MS;
        while !holds(self) {
            if mono::now() > until {
                let hosts: Vec<_> = self.hosts.iter().map(Process::said).collect();
                let hosts = hosts.join("\n  ");
                return Err(io::Error::other(format!("Patroni: waited for {what}:\n  {hosts}")));
            }
            mono::rest(100);
        }
        Ok(())
    }

    /// Returns the members, as a host other than `except` sees them.
    fn members(&self, except: Option<usize>) -> Option<Vec<Value>> {
        let others = (0..NODES).filter(|host| Some(*host) != except);
        others.into_iter().find_map(|host| {
            let (_, text) = self.ask(host, "GET", "/cluster", "", PATIENCE).ok()?;
            let all: Value = serde_json::from_str(&text).ok()?;
            all.get("members")?.as_array().cloned()
        })
    }

    /// Returns the host that leads and accepts writes. `except` is not asked.
    fn leader(&self, except: Option<usize>) -> Option<usize> {
        let members = self.members(except)?;
        let name = members.iter().find(|member| member["role"] == "leader")?["name"].as_str()?;
        let leader = (0..NODES).find(|host| name == self.hosts[*host].recipe.name)?;
        (Some(leader) != except && self.recovers(leader) == Some(false)).then_some(leader)
    }

    /// Returns whether the next failover can begin: every host runs, and one is a synchronous
    /// standby. Only such a standby may take over.
    fn is_whole(&self) -> bool {
        let Some(members) = self.members(None) else { return false };
        let runs = |member: &&Value| member["state"] == "running" || member["state"] == "streaming";
        let has = |role: &str| members.iter().any(|member| member["role"] == role);
        let timeline = members.first().map(|member| &member["timeline"]);
        let same = |member: &Value| Some(&member["timeline"]) == timeline;
        members.iter().filter(runs).count() == NODES
            && has("leader")
            && has("sync_standby")
            && members.iter().all(same)
    }

    /// Returns whether the PostgreSQL server of a host is a standby, or `None` without an answer.
    fn recovers(&self, host: usize) -> Option<bool> {
        let mut command = Command::new(&self.psql);
        command.args(["-XAtq", "-h", "127.0.0.1", "-U", "postgres", "-p"]);
        command.arg(self.ports[host].to_string());
        command.args(["-c", "SELECT pg_is_in_recovery()", "postgres"]);
        command.env("PGCONNECT_TIMEOUT", "2").stdin(Stdio::null()).stderr(Stdio::null());
        match String::from_utf8_lossy(&command.output().ok()?.stdout).trim() {
            "t" => Some(true),
            "f" => Some(false),
            _ => None,
        }
    }

    /// Sends a request to a host's Patroni, and returns the status and the body of the answer.
    fn ask(
        &self,
        host: usize,
        method: &str,
        path: &str,
        body: &str,
        within: Duration,
    ) -> io::Result<(u16, String)> {
        let port = self.hosts[host].recipe.port;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(within))?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        let (_, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        match status {
            Some(status) => Ok((status, body.to_owned())),
            None => Err(io::Error::other("Patroni's answer has no status")),
        }
    }

    /// Asks Patroni to hand over from the primary, which may be refused as long as no standby has
    /// all its writes.
    fn switch_over(&self) -> io::Result<()> {
        let old = self.primary;
        let request = json!({ "leader": self.hosts[old].recipe.name }).to_string();
        self.until("a switchover", |group| {
            let done = group.ask(old, "POST", "/switchover", &request, SWITCHED_WITHIN);
            let is_done = done.is_ok_and(|(status, _)| status == 200);
            is_done || group.leader(Some(old)).is_some()
        })
    }

    fn folder(&self, host: usize) -> &Path {
        &self.hosts[host].recipe.dir
    }

    /// Kills all processes of a host.
    fn kill(&mut self, host: usize) -> io::Result<()> {
        kill(self.folder(host))?;
        // No longer a process, but still a child.
        self.hosts[host].end(End::Killed)
    }
}

impl FailsOver for Patroni {
    fn url(&self) -> String {
        let hosts: Vec<_> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("postgres://postgres@{}/postgres", hosts.join(","))
    }

    fn ports(&self) -> Vec<u16> {
        self.ports.clone()
    }

    fn fail_over(&mut self, end: End, state: &Mutex<State>) -> io::Result<()> {
        let old = self.primary;
        match end {
            End::Killed => self.kill(old)?,
            End::ShutDown => {
                self.hosts[old].end(End::ShutDown)?;
                while !self.hosts[old].has_ended()? {
                    mono::rest(20);
                }
            }
            End::Frozen => drop(signal_all(self.folder(old), Signal::STOP)?),
            End::HandedOver => self.switch_over()?,
            // Patroni stays, and starts its server again.
            End::Crashed => {
                kill(&self.folder(old).join("data"))?;
                self.until("a primary", |group| group.leader(None).is_some())?;
            }
        }
        state.lock().died = Some(mono::now());
        if end != End::Crashed {
            self.until("another primary", |group| group.leader(Some(old)).is_some())?;
            state.lock().how_far = Ok(FailOver::Replaced);
        }
        let new = self.leader((end != End::Crashed).then_some(old)).unwrap_or(old);
        state.lock().moved_ns = self.clocks.moved_ns(old, new);
        if end == End::Frozen {
            mono::rest(BESIDE_MS);
            signal_all(self.folder(old), Signal::CONT)?;
        }
        if matches!(end, End::Frozen | End::HandedOver) {
            self.until("the old primary to follow", |group| group.recovers(old) == Some(true))?;
        }
        state.lock().how_far = Ok(FailOver::Calm);
        if matches!(end, End::Killed | End::ShutDown) {
            self.hosts[old].start()?;
        }
        self.until("all hosts to run", Self::is_whole)?;
        self.primary = self.leader(None).ok_or_else(|| io::Error::other("no host leads"))?;
        Ok(())
    }
}

impl Drop for Patroni {
    fn drop(&mut self) {
        for host in 0..self.hosts.len() {
            let _ = self.kill(host);
        }
    }
}

fn etcd(dir: &Path) -> io::Result<Recipe> {
    let (port, peer, dir) = (free_port()?, free_port()?, dir.join("etcd"));
    let [client, peer] = [port, peer].map(|port| format!("http://127.0.0.1:{port}"));
    let data = dir.join("data").display().to_string();
    let command = words(&[
        &program("etcd")?,
        "--data-dir",
        &data,
        "--listen-client-urls",
        &client,
        "--advertise-client-urls",
        &client,
        "--listen-peer-urls",
        &peer,
        "--initial-advertise-peer-urls",
        &peer,
        "--initial-cluster",
        &format!("default={peer}"),
    ]);
    Ok(Recipe {
        name: "etcd".into(),
        port,
        user: user(&["postgres", "nobody"])?,
        files: Vec::new(),
        prepare: Vec::new(),
        command,
        shut_down: Signal::TERM,
        dir,
    })
}

/// Returns Patroni number `number`, whose PostgreSQL server listens on `port`.
fn host(dir: &Path, number: usize, port: u16, etcd: u16) -> io::Result<Recipe> {
    let (name, rest) = (format!("host-{number}"), free_port()?);
    let dir = dir.join(&name);
    let at = |name: &str| dir.join(name).display().to_string();
    // PATH may have the server without its tools.
    let tools = PathBuf::from(program("pg_controldata")?);
    let [postgres_at, rest_at] = [port, rest].map(|port| format!("127.0.0.1:{port}"));
    let settings = json!({
        "scope": "chaos",
        "name": name,
        "restapi": { "listen": rest_at, "connect_address": rest_at },
        "etcd3": { "host": format!("127.0.0.1:{etcd}") },
        "bootstrap": {
            "dcs": {
                // Patroni's defaults are 30, 10 and 10, with which each failover takes longer.
                "ttl": 20,
                "loop_wait": 5,
                "retry_timeout": 5,
                "synchronous_mode": true,
                "postgresql": {
                    "use_pg_rewind": true,
                    "remove_data_directory_on_rewind_failure": true,
                    "remove_data_directory_on_diverged_timelines": true,
                    "parameters": { "max_connections": 300, "wal_keep_size": "256MB" },
                },
            },
            "initdb": [{ "encoding": "UTF8" }, { "locale": "C" }, { "auth": "trust" }, "no-sync"],
        },
        "postgresql": {
            "listen": postgres_at,
            "connect_address": postgres_at,
            "data_dir": at("data"),
            "bin_dir": tools.parent(),
            "pgpass": at("pgpass"),
            "authentication": {
                "superuser": { "username": "postgres" },
                "replication": { "username": "replicator" },
            },
            "parameters": { "unix_socket_directories": "" },
            "pg_hba": [
                "host all all 127.0.0.1/32 trust",
                "host replication all 127.0.0.1/32 trust",
            ],
        },
    });
    // A Patroni that is killed leaves its PostgreSQL running. So it gets SIGTERM when this process
    // ends in any way, and shuts its server down.
    let tied = ["setpriv", "--pdeathsig", "TERM", "--"];
    let command = words(&[&tied[..], &[&program("patroni")?, &at("patroni.yml")]].concat());
    Ok(Recipe {
        name,
        port: rest,
        user: user(&["postgres", "nobody"])?,
        // JSON is also YAML.
        files: vec![("patroni.yml", settings.to_string())],
        prepare: Vec::new(),
        command,
        shut_down: Signal::TERM,
        dir,
    })
}

/// Kills all processes that run in a folder or below it.
fn kill(folder: &Path) -> io::Result<()> {
    // Stop them all first, so that none sees another one die.
    signal_all(folder, Signal::STOP)?;
    let until = mono::now() + WITHIN_MS * MS;
    while signal_all(folder, Signal::KILL)? {
        if mono::now() > until {
            return Err(io::Error::other("killed processes do not end"));
        }
        mono::rest(5);
    }
    Ok(())
}

/// Sends a signal to all processes that run in a folder or below it, also to those that they start
/// meanwhile. Returns whether there were any. PostgreSQL runs in its data folder, and is no child
/// of its Patroni.
fn signal_all(folder: &Path, signal: Signal) -> io::Result<bool> {
    let mut sent = Vec::new();
    loop {
        let mut found = processes(folder)?;
        found.retain(|pid| !sent.contains(pid));
        if found.is_empty() {
            return Ok(!sent.is_empty());
        }
        for pid in &found {
            // It may have ended meanwhile.
            let _ = Pid::from_raw(*pid).map(|pid| kill_process(pid, signal));
        }
        sent.append(&mut found);
    }
}

fn processes(folder: &Path) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // The link of a process that has ended cannot be read.
        if fs::read_link(entry.path().join("cwd")).is_ok_and(|at| at.starts_with(folder)) {
            found.push(pid);
        }
    }
    Ok(found)
}
