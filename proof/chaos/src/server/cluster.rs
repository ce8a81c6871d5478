// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Cluster`]: a Redis Cluster of three primaries with a replica each, as an administrator sees
//! it. Two nodes that follow one another are a shard. Slots move between shards by the commands
//! that `redis-cli --cluster reshard` sends.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;

use redis::{Client, Cmd, Connection, FromRedisValue, Value};

use super::free_port;
use super::recipe::{Recipe, redis};

/// The number of shards.
pub(crate) const SHARDS: usize = 3;

/// The slots of the three shards at the start.
const RANGES: [(u16, u16); SHARDS] = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];

/// The time limit for an answer, and for the transfer of some keys.
const PATIENCE: Duration = Duration::from_secs(5);

/// The nodes, and which shard serves which slot.
pub(crate) struct Cluster {
    /// The ports of the nodes. Shard `n` has the nodes `n` and `n + SHARDS`.
    ports: Vec<u16>,
    owners: Vec<usize>,
    /// The connections to the nodes. On a busy machine, a new one takes long.
    lines: Vec<Option<Connection>>,
    /// The node that is each shard's primary, until something fails.
    primaries: [Option<usize>; SHARDS],
}

/// Returns the URL and the nodes of a new cluster, whose clients and replicas reach each node
/// through the port that `announced` returns for the node's own port. Each node starts with a file
/// that names all nodes, so no node has to be introduced.
pub(super) fn recipes(
    dir: &Path,
    mut announced: impl FnMut(u16) -> io::Result<u16>,
) -> io::Result<(String, Vec<Recipe>)> {
    let mut nodes = Vec::new();
    for number in 1..=2 * SHARDS {
        let (port, bus) = (free_port()?, free_port()?);
        let announced = announced(port)?;
        let settings = format!(
            "cluster-enabled yes\ncluster-config-file nodes.conf\n\
             cluster-node-timeout 1000\ncluster-port {bus}\ncluster-announce-port {announced}\n"
        );
        nodes.push((redis(&format!("node-{number}"), port, dir, &settings)?, bus, announced));
    }
    let known = |at: usize| {
        let mut text = String::new();
        for (number, (_, bus, port)) in nodes.iter().enumerate() {
            let (of, (first, last)) = (number % SHARDS, RANGES[number % SHARDS]);
            let myself = if number == at { "myself," } else { "" };
            let (role, primary, slots) = match number / SHARDS {
                0 => ("master", "-".to_owned(), format!("{first}-{last}")),
                _ => ("slave", id(of), String::new()),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{} 127.0.0.1:{port}@{bus} {myself}{role} {primary} 0 0 {} connected {slots}",
                id(number),
                of + 1
            );
        }
        text + "vars currentEpoch 3 lastVoteEpoch 0\n"
    };
    let files: Vec<_> = (0..nodes.len()).map(known).collect();
    let addresses: Vec<_> = nodes.iter().map(|(.., port)| format!("127.0.0.1:{port}")).collect();
    let add = |((mut recipe, ..), text): ((Recipe, u16, u16), String)| {
        recipe.files.push(("nodes.conf", text));
        recipe
    };
    let recipes = nodes.into_iter().zip(files).map(add).collect();
    Ok((format!("redis+cluster://{}", addresses.join(",")), recipes))
}

/// Returns the id of a node.
fn id(number: usize) -> String {
    format!("{:040x}", number + 1)
}

impl Cluster {
    pub(super) fn new(ports: Vec<u16>) -> Self {
        let of = |shard: usize| vec![shard; usize::from(RANGES[shard].1 - RANGES[shard].0) + 1];
        let lines = ports.iter().map(|_| None).collect();
        let owners = (0..SHARDS).flat_map(of).collect();
        Self { ports, owners, lines, primaries: [None; SHARDS] }
    }

    /// Returns the shard that serves the slot, apart from a move that has not ended.
    pub(crate) fn shard_of(&self, slot: u16) -> usize {
        self.owners[usize::from(slot)]
    }

    /// Returns the number of the node that is the shard's primary.
    fn primary(&mut self, shard: usize) -> io::Result<usize> {
        if let Some(primary) = self.primaries[shard] {
            return Ok(primary);
        }
        let found = [shard, shard + SHARDS].into_iter().find(|node| self.is_primary(*node));
        self.primaries[shard] = found;
        found.ok_or_else(|| io::Error::other(format!("shard {shard} has no primary")))
    }

    /// Returns whether the node runs and considers itself a primary.
    fn is_primary(&mut self, node: usize) -> bool {
        let role: io::Result<Vec<Value>> = self.run(node, &redis::cmd("ROLE"));
        let master = Value::BulkString(b"master".to_vec());
        role.is_ok_and(|role| role.first() == Some(&master))
    }

    /// Returns whether the node at this port runs and considers itself a primary.
    pub(super) fn leads(&mut self, port: u16) -> bool {
        let node = self.ports.iter().position(|other| *other == port);
        node.is_some_and(|node| self.is_primary(node))
    }

    /// Returns the ports of the shard's primary and of its replica.
    pub(super) fn shard(&mut self, shard: usize) -> io::Result<(u16, u16)> {
        self.primaries[shard] = None;
        let primary = self.primary(shard)?;
        self.primaries[shard] = None;
        Ok((self.ports[primary], self.ports[(primary + SHARDS) % self.ports.len()]))
    }

    /// Asks a replica to take over from its primary, which hands over all its writes first.
    pub(super) fn take_over(&mut self, replica: u16) -> io::Result<()> {
        let node = self.ports.iter().position(|port| *port == replica);
        let node = node.ok_or_else(|| io::Error::other("no node has this port"))?;
        self.run::<Value>(node, redis::cmd("CLUSTER").arg("FAILOVER")).map(drop)
    }

    /// Sends a command to a node. After an error, the next command has a new connection, and the
    /// primaries are looked for again.
    fn run<T: FromRedisValue>(&mut self, node: usize, cmd: &Cmd) -> io::Result<T> {
        let mut line = match self.lines[node].take() {
            Some(line) => line,
            None => connect(self.ports[node])?,
        };
        match cmd.query(&mut line) {
            Ok(answer) => {
                self.lines[node] = Some(line);
                Ok(answer)
            }
            Err(error) => {
                self.primaries = [None; SHARDS];
                Err(io::Error::other(error))
            }
        }
    }

    /// Returns whether all nodes serve all slots, and all replicas have their primaries' data.
    pub(super) fn is_whole(&mut self) -> bool {
        let mut following = 0;
        for node in 0..self.ports.len() {
            let info: io::Result<String> = self.run(node, redis::cmd("CLUSTER").arg("INFO"));
            let role: io::Result<String> = self.run(node, redis::cmd("INFO").arg("replication"));
            let (Ok(info), Ok(role)) = (info, role) else { return false };
            if !info.contains("cluster_state:ok") {
                return false;
            }
            following += usize::from(role.contains("master_link_status:up"));
        }
        following == SHARDS
    }

    /// Begins to move a slot between two shards: the source sends callers of the keys that it does
    /// not have to the target. May be repeated, also after the source or the target has failed over
    /// (`again`). A target that was importing the slot when the source failed over knows no owner
    /// of the slot from then on, and refuses every call until it is told of the new source.
    pub(crate) fn begin_move(
        &mut self,
        slot: u16,
        (from, to): (usize, usize),
        again: bool,
    ) -> io::Result<()> {
        let (source, target) = (self.primary(from)?, self.primary(to)?);
        if self.set(target, slot, &["IMPORTING", &id(source)], "already the owner")? && again {
            self.set(target, slot, &["NODE", &id(source)], "\0")?;
        }
        self.set(source, slot, &["MIGRATING", &id(target)], "not the owner").map(drop)
    }

    /// Moves the keys of a slot that is being moved. If the move was interrupted (`again`), a key
    /// may be on both nodes. The source's is then the newer one, because callers reach the target
    /// only through the source.
    pub(crate) fn move_keys(
        &mut self,
        slot: u16,
        (from, to): (usize, usize),
        again: bool,
    ) -> io::Result<()> {
        let (source, target) = (self.primary(from)?, self.primary(to)?);
        loop {
            let mut list = redis::cmd("CLUSTER");
            list.arg("GETKEYSINSLOT").arg(slot).arg(10);
            let keys: Vec<Vec<u8>> = self.run(source, &list)?;
            if keys.is_empty() {
                return Ok(());
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(self.ports[target]).arg("").arg(0).arg(1_000);
            if again {
                migrate.arg("REPLACE");
            }
            let _: Value = self.run(source, migrate.arg("KEYS").arg(keys))?;
        }
    }

    /// Gives a slot, whose keys have moved, to the target.
    pub(crate) fn end_move(&mut self, slot: u16, (from, to): (usize, usize)) -> io::Result<()> {
        let target = self.primary(to)?;
        // The target first: if only the source knew, no node would serve the slot.
        let others = (0..SHARDS).filter(|shard| *shard != to && *shard != from);
        for shard in [to, from].into_iter().chain(others) {
            let primary = self.primary(shard)?;
            self.set(primary, slot, &["NODE", &id(target)], "\0")?;
        }
        self.owners[usize::from(slot)] = to;
        Ok(())
    }

    /// Returns which of these moved slots every node knows to be served by their new shard. Until
    /// then, a failover can make another shard serve a slot, or none.
    pub(crate) fn known(&mut self, mut moved: Vec<(u16, usize)>) -> io::Result<Vec<u16>> {
        for node in 0..self.ports.len() {
            let map: Value = self.run(node, redis::cmd("CLUSTER").arg("SLOTS"))?;
            moved.retain(|(slot, shard)| {
                primary_of(&map, *slot)
                    .is_some_and(|node| [id(*shard), id(shard + SHARDS)].contains(&node))
            });
        }
        Ok(moved.into_iter().map(|(slot, _)| slot).collect())
    }

    /// Sends CLUSTER SETSLOT to a node. Returns `false` if it is refused with an error that
    /// contains `done`, because there is nothing to do.
    fn set(&mut self, node: usize, slot: u16, words: &[&str], done: &str) -> io::Result<bool> {
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SETSLOT").arg(slot).arg(words);
        match self.run::<Value>(node, &cmd) {
            Err(error) if error.to_string().contains(done) => Ok(false),
            other => other.map(|_| true),
        }
    }
}

/// Returns the id of the slot's primary in an answer to CLUSTER SLOTS.
fn primary_of(map: &Value, slot: u16) -> Option<String> {
    let Value::Array(ranges) = map else { return None };
    ranges.iter().find_map(|range| {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &range[..] else {
            return None;
        };
        let is_it = (*first..=*last).contains(&i64::from(slot));
        let id = primary.get(2).filter(|_| is_it)?;
        String::from_redis_value_ref(id).ok()
    })
}

fn connect(port: u16) -> io::Result<Connection> {
    let client = Client::open(format!("redis://127.0.0.1:{port}")).map_err(io::Error::other)?;
    let conn = client.get_connection_with_timeout(PATIENCE).map_err(io::Error::other)?;
    conn.set_read_timeout(Some(PATIENCE)).map_err(io::Error::other)?;
    Ok(conn)
}
