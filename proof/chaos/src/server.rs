// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Server`]: a store's server that belongs to the run, on a separate loopback port, with its data
//! below the run's folder. The run may kill it, because the run started it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clocks::{Preload, WallClock};
use crate::mono::{self, MS};
use crate::plan::Plan;
use crate::proxy::{Front, Target};

mod cluster;
mod delay;
mod patroni;
mod process;
mod recipe;
mod standby;

use cluster::Cluster;
pub(crate) use cluster::SHARDS;
use process::Process;
pub(crate) use recipe::program;
use standby::Standby;

/// The time within which the sentinels, or the nodes of a cluster, must promote a replica.
const PROMOTED_MS: u64 = 15_000;
/// The time after which a replica gives up a planned takeover.
const TAKES_OVER_MS: u64 = 6_000;

/// A primary that was killed or shut down, or that hands over to its replica.
#[derive(Debug, Clone, Copy)]
struct Deposed {
    port: u16,
    /// In a cluster, the primary's replica, which has to take over.
    replica: Option<u16>,
    since: u64,
    /// Whether the primary's process has ended, and was started again.
    ended: bool,
}

/// The state of a failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailOver {
    /// There is no primary.
    Away,
    /// There is a primary again, and the old one restarts as its replica.
    Replaced,
    /// The old primary will be a copy of the new one, so it disturbs no client any more.
    Calm,
    /// The next failover can begin.
    Whole,
}

/// How a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// SIGKILL.
    Killed,
    /// The signal after which a server ends in order.
    ShutDown,
    /// The primary of a cluster's shard, or of a group under Patroni, hands over to its replica,
    /// and continues as a replica.
    HandedOver,
    /// SIGSTOP of a Patroni and its server, which go on when another server is the primary.
    Frozen,
    /// SIGKILL of a server alone, whose Patroni starts it again.
    Crashed,
}

/// A store's server, or a group of them.
pub(crate) struct Server {
    url: String,
    processes: Vec<Process>,
    dir: PathBuf,
    /// A primary that has ended, until the group is complete again.
    deposed: Option<Deposed>,
    /// A PostgreSQL primary with standbys, or a MariaDB primary with a replica, instead of the
    /// processes.
    standby: Option<Standby>,
    cluster: Option<Cluster>,
    /// Delays what the nodes of the cluster send to their replicas.
    _front: Option<Front>,
}

impl Server {
    /// Starts a PostgreSQL primary with its standbys, of which every second node has the clock
    /// `ahead`, or a MariaDB primary with its replica. Returns `None` for any other store.
    pub(crate) fn group(
        store: &str,
        dir: &Path,
        ahead: Option<&WallClock>,
    ) -> io::Result<Option<Self>> {
        let Some(standby) = Standby::start(store, dir, ahead)? else { return Ok(None) };
        let (url, processes) = (standby.url.clone(), Vec::new());
        let (dir, standby) = (dir.to_path_buf(), Some(standby));
        Ok(Some(Self { url, processes, dir, deposed: None, standby, cluster: None, _front: None }))
    }

    /// Creates and starts the server of the plan's store in `dir`, with this clock. Returns `None`
    /// for a store without a server.
    pub(crate) fn start(
        plan: &Plan,
        dir: &Path,
        clock: Option<&Preload>,
    ) -> io::Result<Option<Self>> {
        if let Some(group) = Self::group(&plan.store, dir, None)? {
            return Ok(Some(group));
        }
        let mut front = plan.delay.map(Front::new);
        let found = match &mut front {
            Some(front) if plan.store == "cluster" => {
                Some(cluster::recipes(dir, |port| front.port_of(port))?)
            }
            _ => recipe::of(&plan.store, dir)?,
        };
        let Some((mut url, recipes)) = found else { return Ok(None) };
        if plan.wait_replicas > 0 {
            url = format!("{url}?wait-replicas={}&wait-timeout=PT1S", plan.wait_replicas);
        }
        front.iter_mut().try_for_each(Front::serve)?;
        let ports = recipes.iter().map(|recipe| recipe.port).collect();
        let cluster = url.starts_with("redis+cluster:").then(|| Cluster::new(ports));
        let (processes, folder) = (Vec::new(), dir.to_path_buf());
        let (deposed, standby) = (None, None);
        let mut server =
            Self { url, processes, dir: folder, deposed, standby, cluster, _front: front };
        for recipe in recipes {
            let log = dir.join(format!("{}.log", recipe.name));
            // The records' expiry does not depend on the clocks of sentinels.
            let clock = clock.filter(|_| !recipe.is_sentinel()).cloned();
            let mut process = Process::new(recipe, log, clock);
            process.make()?;
            process.start()?;
            server.processes.push(process);
        }
        Ok(Some(server))
    }

    /// Returns the server's URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the addresses on which the server's processes listen, and whether these processes
    /// name the ports of others.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let target = |process: &Process| Target {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, process.recipe.port)),
            names_ports: process.recipe.is_sentinel(),
        };
        let of_group = self.standby.iter().flat_map(|standby| &standby.ports).map(|port| Target {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, *port)),
            names_ports: false,
        });
        self.processes.iter().map(target).chain(of_group).collect()
    }

    /// Returns whether a failover may lose acknowledged writes at any time until the group is whole
    /// again.
    pub(crate) fn loses_writes(&self) -> bool {
        self.standby.is_none()
    }

    /// Returns how long before the end of a primary, in milliseconds, an acknowledged write may be
    /// lost, if the run knows this and writes may be lost.
    pub(crate) fn loses_ms(&self, end: End) -> Option<u64> {
        self.standby.as_ref()?.loses_ms(end)
    }

    /// Returns by how much, in nanoseconds, the present failover has moved the store's clock.
    pub(crate) fn moved_ns(&self) -> i64 {
        self.standby.as_ref().map_or(0, Standby::moved_ns)
    }

    /// Returns when the old primary of the present failover was dead, if the run knows this.
    pub(crate) fn died(&self) -> Option<u64> {
        self.standby.as_ref()?.died()
    }

    /// Ends it.
    pub(crate) fn end(&mut self, end: End) -> io::Result<()> {
        self.processes.first_mut().map_or(Ok(()), |process| process.end(end))
    }

    /// Returns whether the server's process has ended.
    pub(crate) fn has_ended(&mut self) -> io::Result<bool> {
        self.processes.first_mut().map_or(Ok(true), Process::has_ended)
    }

    /// Starts the server again with its data, and waits until it is ready.
    pub(crate) fn start_again(&mut self) -> io::Result<()> {
        self.processes.first_mut().map_or(Ok(()), Process::start)
    }

    /// Begins to start the server again with its data.
    pub(crate) fn begin_again(&mut self) -> io::Result<()> {
        self.processes.first_mut().map_or(Ok(()), Process::begin)
    }

    /// Returns whether the server is ready.
    pub(crate) fn is_ready(&mut self) -> io::Result<bool> {
        self.processes.first_mut().map_or(Ok(true), Process::is_ready)
    }

    /// Returns whether the server is a group that Patroni manages.
    pub(crate) fn has_patroni(&self) -> bool {
        self.standby.as_ref().is_some_and(|standby| standby.has_patroni)
    }

    /// Returns whether the server is a Redis Cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Returns the cluster, if the server is one.
    pub(crate) fn cluster(&mut self) -> Option<&mut Cluster> {
        self.cluster.as_mut()
    }

    /// Ends the primary of a group, or of a cluster's shard.
    pub(crate) fn begin_fail_over(&mut self, end: End, shard: usize) -> io::Result<()> {
        if let Some(standby) = &self.standby {
            return standby.begin_fail_over(end);
        }
        let (primary, replica) = match &mut self.cluster {
            Some(cluster) => cluster.shard(shard).map(|(primary, other)| (primary, Some(other)))?,
            None => (recipe::primary(&self.ports("sentinel"))?, None),
        };
        let since = mono::now();
        if let (End::HandedOver, Some(cluster), Some(replica)) = (end, &mut self.cluster, replica) {
            cluster.take_over(replica)?;
            self.deposed =
                Some(Deposed { port: primary, replica: Some(replica), since, ended: true });
            return Ok(());
        }
        let Some(process) =
            self.processes.iter_mut().find(|process| process.recipe.port == primary)
        else {
            return Err(io::Error::other("the primary is not a process of this run"));
        };
        process.end(end)?;
        self.deposed = Some(Deposed { port: primary, replica, since, ended: false });
        Ok(())
    }

    /// Continues the failover: when another server is the primary, the old one restarts as its
    /// replica.
    pub(crate) fn go_on_failing_over(&mut self) -> io::Result<FailOver> {
        if let Some(standby) = &self.standby {
            return standby.how_far();
        }
        let Some(deposed) = self.deposed else { return Ok(FailOver::Whole) };
        let Deposed { port, replica, since, ended } = deposed;
        let old = self.processes.iter().position(|process| process.recipe.port == port);
        let Some(old) = old else { return Ok(FailOver::Whole) };
        let now = match (&mut self.cluster, replica) {
            (Some(cluster), Some(replica)) => cluster
                .leads(replica)
                .then_some(replica)
                .ok_or_else(|| io::Error::other("the replica has not taken over")),
            _ => recipe::primary(&self.ports("sentinel")),
        };
        if !ended {
            if !self.processes[old].has_ended()? {
                return Ok(FailOver::Away);
            }
            let replaced = now.is_ok_and(|now| now != port);
            // A replica that has just lost its link cannot be promoted. In this case, restart the
            // old primary.
            if !replaced && mono::now() <= since + PROMOTED_MS * MS {
                return Ok(FailOver::Away);
            }
            self.processes[old].start()?;
            self.deposed = Some(Deposed { ended: true, ..deposed });
            return Ok(FailOver::Replaced);
        }
        // The failover is complete only when the replicas follow the new primary, because the next
        // failover needs one of them.
        if let Some(cluster) = &mut self.cluster {
            let is_late = mono::now() > since + TAKES_OVER_MS * MS;
            if !(now.is_ok() || is_late) || !cluster.is_whole() {
                return Ok(FailOver::Replaced);
            }
            self.deposed = None;
            return Ok(FailOver::Whole);
        }
        let others = self
            .ports("redis")
            .into_iter()
            .filter(|port| now.as_ref().is_ok_and(|now| now != port));
        let whole = others.clone().count() > 0 && others.into_iter().all(recipe::follows);
        if !whole {
            return Ok(FailOver::Replaced);
        }
        self.deposed = None;
        Ok(FailOver::Whole)
    }

    fn ports(&self, of: &str) -> Vec<u16> {
        let named = self.processes.iter().filter(|process| process.recipe.name.starts_with(of));
        named.map(|process| process.recipe.port).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The servers of a group may write until their thread has ended.
        self.standby = None;
        for process in self.processes.iter_mut().rev() {
            let _ = process.end(End::Killed);
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

/// Finds a port on which no process listens.
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

/// Returns the user that a server runs as, or `None` if this process does not run as root.
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
