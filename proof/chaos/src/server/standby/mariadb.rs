// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MariadbGroup`]: a MariaDB primary and its replica, behind one address (STO-10).

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_testkit::standby::Replication;

use super::{DELAY_MS, FailsOver, LINKED_MS, NodeClocks, State};
use crate::mono::{self, MS};
use crate::server::delay::Delay;
use crate::server::process::Process;
use crate::server::recipe::{mariadb_node, program};
use crate::server::{End, FailOver};

/// Statements that each server runs at its start, and that its replica does not receive. The
/// store's user has no privilege that lets it write to a read-only server.
const INIT: &str = "\
SET sql_log_bin=0;
CREATE DATABASE IF NOT EXISTS retryproof;
CREATE USER IF NOT EXISTS 'retryproof'@'%' IDENTIFIED BY 'secret';
GRANT ALL PRIVILEGES ON retryproof.* TO 'retryproof'@'%';
CREATE USER IF NOT EXISTS 'operator'@'%' IDENTIFIED BY 'secret';
GRANT ALL PRIVILEGES ON *.* TO 'operator'@'%';
";

/// Each server is read-only until it is the primary. The timeout after which a primary no longer
/// waits for its replica is 49 days. While nothing confirms them, statements that workers have
/// given up keep their connections.
const SETTINGS: [&str; 11] = [
    "--log-bin=bin",
    "--relay-log=relay",
    "--log-slave-updates",
    "--sync-binlog=1",
    "--gtid-strict-mode=1",
    "--skip-slave-start",
    "--read-only=1",
    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
    "--rpl-semi-sync-master-timeout=4294967295",
    "--slave-parallel-threads=8",
    "--max-connections=2000",
];

/// How long, in milliseconds, a replica may need to apply what it has received.
const APPLIED_MS: u64 = 120_000;

/// Two servers, of which one is the primary.
pub(super) struct MariadbGroup {
    nodes: Vec<Process>,
    how: Replication,
    primary: usize,
    /// The one address of the group. It leads to the primary.
    address: Delay,
    /// The link on which a replica reaches each server, if links are slow.
    links: Vec<Delay>,
    clocks: NodeClocks,
    /// The last id that a server got.
    ids: u32,
    client: String,
}

impl MariadbGroup {
    /// Starts the servers, with their data in `dir`.
    pub(super) fn start(dir: &Path, how: Replication, clocks: NodeClocks) -> io::Result<Self> {
        let mut nodes = Vec::new();
        for number in 1..=2 {
            let (name, id) = (format!("mariadb-{number}"), format!("--server-id={number}"));
            let mut settings = [&SETTINGS[..], &[id.as_str()]].concat();
            if how == Replication::Synchronous {
                settings.push("--rpl-semi-sync-slave-enabled=1");
            }
            let recipe = mariadb_node(&name, dir, INIT, &settings)?;
            let (log, clock) = (dir.join(format!("{name}.log")), clocks.of(nodes.len()).cloned());
            let node = Process::new(recipe, log, clock);
            node.make()?;
            nodes.push(node);
        }
        let port = |node: &Process| node.recipe.port;
        let address = Delay::to(port(&nodes[0]), Duration::ZERO)?;
        let slow = |node: &Process| Delay::to(port(node), Duration::from_millis(DELAY_MS));
        let links = match how {
            Replication::Synchronous => Vec::new(),
            Replication::Asynchronous => nodes.iter().map(slow).collect::<io::Result<_>>()?,
        };
        let client = program("mariadb")?;
        let mut group = Self { nodes, how, primary: 0, address, links, clocks, ids: 2, client };
        for node in &mut group.nodes {
            node.start()?;
        }
        group.promote(0)?;
        group.follow(1, "")?;
        group.until_acknowledged()?;
        Ok(group)
    }

    /// Runs statements on a server, and returns the first line that it answers.
    fn sql(&self, node: usize, text: &str) -> io::Result<String> {
        let said = self.run(node, &["--skip-column-names", "-e", text])?;
        Ok(said.lines().next().unwrap_or_default().to_owned())
    }

    fn run(&self, node: usize, words: &[&str]) -> io::Result<String> {
        let port = self.nodes[node].recipe.port.to_string();
        let mut command = Command::new(&self.client);
        command.args(["--no-defaults", "--connect-timeout=5", "--host=127.0.0.1", "--port", &port]);
        command.args(["--user=operator", "--password=secret", "--batch"]).args(words);
        let output = command.stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(io::Error::other(format!("{}: {said}", self.nodes[node].recipe.name)))
    }

    /// Returns the last transaction that a replica has received completely.
    fn received(&self, replica: usize) -> io::Result<String> {
        let said = self.run(replica, &["--vertical", "-e", "SHOW ALL SLAVES STATUS"])?;
        let found = said.lines().find_map(|line| line.trim().strip_prefix("Gtid_IO_Pos:"));
        found
            .map(|position| position.trim().to_owned())
            .ok_or_else(|| io::Error::other("a server that should be a replica is none"))
    }

    fn written(&self, primary: usize) -> io::Result<String> {
        self.sql(primary, "SELECT @@gtid_binlog_pos")
    }

    /// Waits until a replica has applied this transaction. Otherwise, `STOP SLAVE` would throw away
    /// what it has received.
    fn until_applied(&self, replica: usize, position: &str) -> io::Result<()> {
        let applied = format!("SELECT MASTER_GTID_WAIT('{position}', {})", APPLIED_MS / 1_000);
        match &self.sql(replica, &applied)?[..] {
            "0" => Ok(()),
            _ => Err(io::Error::other("a replica did not apply what it had received")),
        }
    }

    /// Makes a server the primary. It waits for a replica before it accepts a write.
    fn promote(&mut self, node: usize) -> io::Result<()> {
        let waits = match self.how {
            Replication::Synchronous => "SET GLOBAL rpl_semi_sync_master_enabled=1;",
            Replication::Asynchronous => "",
        };
        self.sql(
            node,
            &format!(
                "STOP SLAVE; RESET SLAVE ALL; SET GLOBAL sync_binlog=1; \
                 SET GLOBAL innodb_flush_log_at_trx_commit=1; {waits} SET GLOBAL read_only=0"
            ),
        )?;
        self.address.lead_to(self.nodes[node].recipe.port);
        self.primary = node;
        Ok(())
    }

    /// Lets a server that has everything up to this position follow the primary.
    fn follow(&self, node: usize, position: &str) -> io::Result<()> {
        let link = self.links.get(self.primary);
        let port = link.map_or(self.nodes[self.primary].recipe.port, |link| link.port);
        if let Some(link) = link {
            link.set_broken(false);
        }
        // A replica that logs what it applies would wait for a replica of its own. Only primaries
        // are killed, so a replica need not flush what it applies, and a busy disk does not hold it
        // up.
        self.sql(
            node,
            &format!(
                "SET GLOBAL rpl_semi_sync_master_enabled=0; SET GLOBAL sync_binlog=0; \
                 SET GLOBAL innodb_flush_log_at_trx_commit=2; \
                 SET GLOBAL gtid_slave_pos='{position}'; \
                 CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, \
                 MASTER_USER='operator', MASTER_PASSWORD='secret', MASTER_USE_GTID=slave_pos, \
                 MASTER_CONNECT_RETRY=1; START SLAVE"
            ),
        )
        .map(drop)
    }

    /// Throws the data and the log of a server away. Its copy begins with the first transaction of
    /// the primary's log. It gets a new id, because a replica skips what a server with its own id
    /// has written.
    fn empty(&mut self, node: usize) -> io::Result<()> {
        self.ids += 1;
        self.sql(
            node,
            &format!(
                "STOP SLAVE; RESET SLAVE ALL; DROP DATABASE retryproof; RESET MASTER; \
                 SET GLOBAL server_id={}; SET sql_log_bin=0; CREATE DATABASE retryproof",
                self.ids
            ),
        )
        .map(drop)
    }

    /// Waits until the primary accepts writes: with semi-synchronous copies, until its replica
    /// confirms them.
    fn until_acknowledged(&self) -> io::Result<()> {
        let clients = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE \
                       VARIABLE_NAME='Rpl_semi_sync_master_clients'";
        let replica = 1 - self.primary;
        self.until("a replica did not connect", || match self.how {
            Replication::Synchronous => Ok(self.sql(self.primary, clients)? == "1"),
            Replication::Asynchronous => {
                Ok(self.links[self.primary].is_used() && self.received(replica).is_ok())
            }
        })
    }

    /// Waits until the replica has received what the primary had written at the beginning.
    fn until_received(&self) -> io::Result<()> {
        let written = number(&self.written(self.primary)?);
        let replica = 1 - self.primary;
        self.until("a replica did not receive what was written", || {
            Ok(number(&self.received(replica)?) >= written)
        })
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
        let until = mono::now() + LINKED_MS * MS;
        while !holds()? {
            if mono::now() > until {
                return Err(io::Error::other(what.to_owned()));
            }
            mono::rest(20);
        }
        Ok(())
    }
}

/// Returns the sequence number of a position, which has one domain: `DOMAIN-SERVER-NUMBER`.
fn number(position: &str) -> u64 {
    position.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl FailsOver for MariadbGroup {
    fn url(&self) -> String {
        format!("mysql://retryproof:secret@127.0.0.1:{}/retryproof", self.address.port)
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.address.port]
    }

    /// A primary that is killed comes back without its data, because its log may contain
    /// transactions that no replica has and that were never acknowledged. Any other primary is
    /// demoted: it becomes read-only, and its replica is promoted as soon as it has everything.
    /// Connections to the demoted server stay open.
    fn fail_over(&mut self, end: End, state: &Mutex<State>) -> io::Result<()> {
        let (old, new) = (self.primary, 1 - self.primary);
        let has = match end {
            End::Killed => {
                // What is under way to the replica is lost with its sender.
                if let Some(link) = self.links.get(old) {
                    self.until_received()?;
                    link.set_broken(true);
                }
                self.nodes[old].end(End::Killed)?;
                state.lock().died = Some(mono::now());
                self.received(new)?
            }
            // Only Patroni's primaries end in another way.
            _ => {
                self.sql(old, "SET GLOBAL read_only=1")?;
                state.lock().died = Some(mono::now());
                self.written(old)?
            }
        };
        self.until_applied(new, &has)?;
        state.lock().moved_ns = self.clocks.moved_ns(old, new);
        self.promote(new)?;
        if self.how == Replication::Asynchronous {
            state.lock().how_far = Ok(FailOver::Calm);
        }
        if end == End::Killed {
            self.nodes[old].start()?;
            self.empty(old)?;
            self.follow(old, "")?;
        } else {
            self.follow(old, &has)?;
        }
        self.until_acknowledged()?;
        state.lock().how_far = Ok(FailOver::Calm);
        let written = self.written(new)?;
        self.until_applied(old, &written)
    }
}

impl Drop for MariadbGroup {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.end(End::Killed);
        }
    }
}
