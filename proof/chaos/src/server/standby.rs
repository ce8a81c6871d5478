// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Standby`]: a PostgreSQL primary with its standbys, or a MariaDB primary with its replica,
//! which fails over again and again: by hand, or by Patroni. A thread makes the steps, because some
//! take seconds. The servers die with that thread.

mod mariadb;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_testkit::standby::{PostgresGroup, Replication};

use super::delay::Delay;
use super::patroni::Patroni;
use super::{End, FailOver};
use crate::clocks::{Preload, WallClock};
use crate::mono::{self, MS};
use mariadb::MariadbGroup;

/// For how long, in milliseconds, an old primary runs beside the new one.
pub(super) const BESIDE_MS: u64 = 1_500;

/// By how much, in milliseconds, the link to an asynchronous standby delays the primary's writes.
const DELAY_MS: u64 = 150;

/// How much longer than the delay, in milliseconds, a write may need to reach the standby. At the
/// kill, the standby has received all that was written before the failover began.
const SLACK_MS: u64 = 500;

/// How long, in milliseconds, a standby may need to connect over its delayed link.
const LINKED_MS: u64 = 60_000;

/// How far the present failover is.
#[derive(Debug)]
pub(super) struct State {
    pub(super) how_far: io::Result<FailOver>,
    /// When the old primary was dead.
    pub(super) died: Option<u64>,
    /// By how much the clock of the new primary is ahead of the old one's, in nanoseconds.
    pub(super) moved_ns: i64,
}

/// A primary and the servers that can take its place.
pub(super) trait FailsOver {
    /// Returns the URL that workers use.
    fn url(&self) -> String;

    /// Returns the ports on which clients reach the servers.
    fn ports(&self) -> Vec<u16>;

    /// Ends the primary, promotes another server, and makes the old primary a copy of the new one.
    fn fail_over(&mut self, end: End, state: &Mutex<State>) -> io::Result<()>;
}

/// The clocks of a group's nodes.
pub(super) struct NodeClocks {
    /// The clock of every second node, and by how much it is ahead, in nanoseconds.
    ahead: Option<(Preload, i64)>,
}

impl NodeClocks {
    /// Returns a node's clock, or `None` for the right one.
    pub(super) fn of(&self, node: usize) -> Option<&Preload> {
        self.ahead.as_ref().filter(|_| node % 2 == 1).map(|(clock, _)| clock)
    }

    /// Returns by how much, in nanoseconds, a failover moves the store's clock.
    pub(super) fn moved_ns(&self, old: usize, new: usize) -> i64 {
        let ahead = self.ahead.as_ref().map_or(0, |(_, ns)| *ns);
        let of = |node: usize| if node % 2 == 1 { ahead } else { 0 };
        of(new) - of(old)
    }
}

/// A group of servers, and the thread that makes its failovers.
pub(super) struct Standby {
    pub(super) url: String,
    pub(super) ports: Vec<u16>,
    pub(super) has_patroni: bool,
    how: Replication,
    state: Arc<Mutex<State>>,
    /// How each primary ends. Without a sender, the thread ends.
    ends: Option<Sender<End>>,
    thread: Option<JoinHandle<()>>,
}

impl Standby {
    /// Starts the group of a store with this name, with its data in `dir` or in its own folder.
    /// With synchronous copies, PostgreSQL has two standbys, so that one is left after a failover.
    /// Every second node has the clock `ahead`. Returns `None` for any other store.
    pub(super) fn start(
        store: &str,
        dir: &Path,
        ahead: Option<&WallClock>,
    ) -> io::Result<Option<Self>> {
        let how = match store {
            "standby" | "mariadb-standby" | "patroni" => Replication::Synchronous,
            "standby-async" | "mariadb-standby-async" => Replication::Asynchronous,
            _ => return Ok(None),
        };
        let (ends, commands) = channel();
        let (ready, started) = channel();
        let state =
            Arc::new(Mutex::new(State { how_far: Ok(FailOver::Whole), died: None, moved_ns: 0 }));
        let shared = Arc::clone(&state);
        let clocks =
            NodeClocks { ahead: ahead.map(|clock| (clock.preload().clone(), clock.ahead_ns())) };
        let (has_patroni, is_mariadb) = (store == "patroni", store.starts_with("mariadb"));
        let dir = dir.to_path_buf();
        let thread = thread::spawn(move || {
            let group: io::Result<Box<dyn FailsOver>> = if has_patroni {
                Patroni::start(&dir, clocks).map(|group| Box::new(group) as _)
            } else if is_mariadb {
                MariadbGroup::start(&dir, how, clocks).map(|group| Box::new(group) as _)
            } else {
                ByHand::start(how, clocks).map(|group| Box::new(group) as _)
            };
            match group {
                Ok(group) => {
                    let _ = ready.send(Ok((group.url(), group.ports())));
                    serve(group, &commands, &shared);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        });
        let (url, ports) = started.recv().map_err(io::Error::other)??;
        let (ends, thread) = (Some(ends), Some(thread));
        Ok(Some(Self { url, ports, has_patroni, how, state, ends, thread }))
    }

    /// Returns how long before the end of a primary, in milliseconds, an acknowledged write may be
    /// lost. A primary that is shut down or demoted first waits for its standbys.
    pub(super) fn loses_ms(&self, end: End) -> Option<u64> {
        let loses = self.how == Replication::Asynchronous && end == End::Killed;
        loses.then_some(DELAY_MS + SLACK_MS)
    }

    /// Begins a failover, whose old primary ends like this.
    pub(super) fn begin_fail_over(&self, end: End) -> io::Result<()> {
        *self.state.lock() = State { how_far: Ok(FailOver::Away), died: None, moved_ns: 0 };
        let ends = self.ends.as_ref().ok_or_else(|| io::Error::other("the group has ended"))?;
        ends.send(end).map_err(io::Error::other)
    }

    pub(super) fn how_far(&self) -> io::Result<FailOver> {
        match &self.state.lock().how_far {
            Ok(how_far) => Ok(*how_far),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }

    /// Returns by how much the present failover has moved the store's clock.
    pub(super) fn moved_ns(&self) -> i64 {
        self.state.lock().moved_ns
    }

    /// Returns when the old primary of the present failover was dead.
    pub(super) fn died(&self) -> Option<u64> {
        self.state.lock().died
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.ends = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(mut group: Box<dyn FailsOver>, ends: &Receiver<End>, state: &Mutex<State>) {
    while let Ok(end) = ends.recv() {
        let done = group.fail_over(end, state);
        state.lock().how_far = done.map(|()| FailOver::Whole);
    }
}

/// PostgreSQL servers, the number of the primary, and the links on which standbys reach each
/// server.
struct ByHand {
    servers: PostgresGroup,
    how: Replication,
    primary: usize,
    links: Vec<Delay>,
    clocks: NodeClocks,
}

impl ByHand {
    fn start(how: Replication, clocks: NodeClocks) -> io::Result<Self> {
        let standbys = if how == Replication::Synchronous { 2 } else { 1 };
        let mut servers = PostgresGroup::start(standbys, how, &[])?;
        for node in 1..=standbys {
            if let Some(clock) = clocks.of(node) {
                servers.restart_with(node, &clock.variables())?;
            }
        }
        let delayed = if how == Replication::Asynchronous { servers.count() } else { 0 };
        let to = |node| Delay::to(servers.port(node), Duration::from_millis(DELAY_MS));
        let links = (0..delayed).map(to).collect::<io::Result<_>>()?;
        let mut group = Self { servers, how, primary: 0, links, clocks };
        for standby in 1..=standbys {
            group.delay(standby)?;
        }
        Ok(group)
    }

    /// Lets a standby receive the primary's writes over the delayed link, if there is one.
    fn delay(&mut self, standby: usize) -> io::Result<()> {
        let Some(link) = self.links.get(self.primary) else { return Ok(()) };
        link.set_broken(false);
        self.servers.follow_at(standby, link.port)?;
        let until = mono::now() + LINKED_MS * MS;
        while !link.is_used() {
            if mono::now() > until {
                return Err(io::Error::other("a standby did not connect over its delayed link"));
            }
            mono::rest(20);
        }
        Ok(())
    }

    /// Waits until each standby has received what the primary had written at the beginning.
    fn until_received(&self) -> io::Result<()> {
        let written = self.servers.sql(self.primary, "SELECT pg_current_wal_flush_lsn()")?;
        let has_it = format!("SELECT pg_last_wal_receive_lsn() >= '{written}'");
        let until = mono::now() + LINKED_MS * MS;
        for standby in (0..self.servers.count()).filter(|node| *node != self.primary) {
            while self.servers.sql(standby, &has_it)? != "t" {
                if mono::now() > until {
                    return Err(io::Error::other("a standby did not receive what was written"));
                }
                mono::rest(20);
            }
        }
        Ok(())
    }
}

impl FailsOver for ByHand {
    fn url(&self) -> String {
        self.servers.url()
    }

    fn ports(&self) -> Vec<u16> {
        (0..self.servers.count()).map(|node| self.servers.port(node)).collect()
    }

    /// Ends the primary, promotes a standby, and makes the old primary a standby of the new one.
    /// Before that, an old primary that was killed runs beside the new one. Without a standby, it
    /// acknowledges nothing if copies are synchronous. If they are not, a process that cannot reach
    /// the new one in time would use it (STO-7).
    fn fail_over(&mut self, end: End, state: &Mutex<State>) -> io::Result<()> {
        let old = self.primary;
        match end {
            End::Killed => {
                // What is under way to the standby is lost with its sender. On a busy machine, a
                // copy that has just begun to receive may be further behind than the link.
                if let Some(link) = self.links.get(old) {
                    self.until_received()?;
                    link.set_broken(true);
                }
                self.servers.kill(old)?;
            }
            // The others happen only under Patroni.
            _ => self.servers.shut_down(old)?,
        }
        state.lock().died = Some(mono::now());
        self.primary = self.servers.fail_over()?;
        state.lock().moved_ns = self.clocks.moved_ns(old, self.primary);
        state.lock().how_far = Ok(FailOver::Replaced);
        if self.how == Replication::Synchronous && end == End::Killed {
            self.servers.start_again(old)?;
            mono::rest(BESIDE_MS);
            self.servers.kill(old)?;
        }
        state.lock().how_far = Ok(FailOver::Calm);
        self.servers.rebuild(old, self.primary)?;
        self.delay(old)?;
        let others = (0..self.servers.count()).filter(|node| *node != self.primary);
        for standby in others {
            self.servers.until_streaming(standby, self.primary)?;
        }
        Ok(())
    }
}
