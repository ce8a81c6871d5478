// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private cluster of three primaries with a replica each.

use std::fmt::Write as _;
use std::time::Duration;

use redis::Value;

use super::{PATIENCE, Server, free_port};
use crate::support::ask;

/// The slots of the three primaries.
const SLOTS: [&str; 3] = ["0-5460", "5461-10922", "10923-16383"];

/// Six nodes. The first three start as primaries, and the replica of a primary follows three later.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
}

impl Cluster {
    /// Starts the nodes, each with `settings`, and waits until they serve all slots and the
    /// replicas have their data.
    ///
    /// Each node starts with a file that names all nodes, so no node has to be introduced.
    pub(crate) async fn start(settings: &str) -> Self {
        let mut nodes = Vec::new();
        let mut buses = Vec::new();
        for _ in 0..2 * SLOTS.len() {
            let bus = free_port();
            let settings = format!(
                "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-port \
                 {bus}\ncluster-node-timeout 1000\n{settings}"
            );
            nodes.push(Server::new(&settings, false));
            buses.push(bus);
        }
        for at in 0..nodes.len() {
            let mut text = String::new();
            for (number, (node, bus)) in nodes.iter().zip(&buses).enumerate() {
                let (of, role) = (number % SLOTS.len(), number / SLOTS.len());
                let myself = if number == at { "myself," } else { "" };
                let (role, primary, slots) = match role {
                    0 => ("master", "-".to_owned(), SLOTS[of]),
                    _ => ("slave", id_of(of), ""),
                };
                writeln!(
                    text,
                    "{} 127.0.0.1:{}@{bus} {myself}{role} {primary} 0 0 {} connected {slots}",
                    id_of(number),
                    node.port,
                    of + 1
                )
                .expect("written");
            }
            text.push_str("vars currentEpoch 3 lastVoteEpoch 0\n");
            std::fs::write(nodes[at].dir.join("nodes.conf"), text).expect("written");
        }
        for node in &mut nodes {
            node.spawn();
        }
        let cluster = Self { nodes };
        for node in &cluster.nodes {
            node.until_it_answers().await;
        }
        cluster.settle().await;
        cluster
    }

    /// Waits until all running nodes serve all slots, and three replicas have their primary's data.
    pub(crate) async fn settle(&self) {
        let settled = async {
            loop {
                let (mut serving, mut linked) = (0, 0);
                for node in self.running() {
                    let mut conn = node.stranger().await;
                    let info: String = ask(&mut conn, "CLUSTER INFO").await;
                    serving += usize::from(info.contains("cluster_state:ok"));
                    let info: String = ask(&mut conn, "INFO replication").await;
                    linked += usize::from(info.contains("master_link_status:up"));
                }
                if serving == self.nodes.len() && linked == SLOTS.len() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, settled).await.expect("the cluster is ready");
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.process.is_some())
    }

    pub(crate) fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// Returns the number of the node that serves a slot, as the running nodes see it.
    pub(crate) async fn serving(&self, slot: u16) -> usize {
        let running = self.running().next().expect("a node");
        self.serving_as_seen_by(running, slot).await
    }

    /// Waits until every running node knows that `node` serves the slot. Until then, a failover can
    /// give the slot to another shard, and the slot's keys are lost.
    pub(crate) async fn until_known(&self, slot: u16, node: usize) {
        let known = async {
            for running in self.running() {
                while self.serving_as_seen_by(running, slot).await != node {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        };
        tokio::time::timeout(PATIENCE, known).await.expect("all nodes know the slot's node");
    }

    async fn serving_as_seen_by(&self, running: &Server, slot: u16) -> usize {
        let ranges: Vec<Value> = ask(&mut running.stranger().await, "CLUSTER SLOTS").await;
        for range in &ranges {
            let Value::Array(range) = range else { panic!("{ranges:?}") };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &range[..]
            else {
                panic!("{ranges:?}")
            };
            if (*first..=*last).contains(&i64::from(slot)) {
                let port = |node: &Server| primary[1] == Value::Int(node.port.into());
                return self.nodes.iter().position(port).expect("one of the nodes");
            }
        }
        panic!("no node serves {slot}: {ranges:?}")
    }

    pub(crate) async fn slot_of(&self, key: &str) -> u16 {
        let running = self.running().next().expect("a node");
        let mut conn = running.stranger().await;
        let slot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async(&mut conn).await;
        slot.expect("a slot")
    }

    /// Waits until the replica of a primary has its data.
    pub(crate) async fn replicated(&self, node: usize) {
        for number in 0.. {
            let filler = format!("filler{number}");
            if self.serving(self.slot_of(&filler).await).await == node {
                let mut conn = self.nodes[node].stranger().await;
                let () = ask(&mut conn, &format!("SET {filler} x")).await;
                let reached: i64 = ask(&mut conn, "WAIT 1 5000").await;
                assert_eq!(reached, 1);
                return;
            }
        }
    }

    /// Begins to move a slot, and moves its keys.
    pub(crate) async fn begin_move(&self, slot: u16, to: usize) {
        let from = self.serving(slot).await;
        let id = async |node: usize| -> String {
            ask(&mut self.nodes[node].stranger().await, "CLUSTER MYID").await
        };
        self.nodes[to].tell(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(from).await)).await;
        self.nodes[from].tell(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(to).await)).await;
        let mut conn = self.nodes[from].stranger().await;
        loop {
            let keys: Vec<String> =
                ask(&mut conn, &format!("CLUSTER GETKEYSINSLOT {slot} 100")).await;
            if keys.is_empty() {
                return;
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(self.nodes[to].port).arg("").arg(0).arg(5_000);
            migrate.arg("KEYS").arg(keys);
            let () = migrate.query_async(&mut conn).await.expect("the keys move");
        }
    }

    /// Gives the slot to the node that has received its keys.
    pub(crate) async fn end_move(&self, slot: u16, to: usize) {
        let from = self.serving(slot).await;
        let id: String = ask(&mut self.nodes[to].stranger().await, "CLUSTER MYID").await;
        for node in [to, from] {
            self.nodes[node].tell(&format!("CLUSTER SETSLOT {slot} NODE {id}")).await;
        }
    }

    /// Promotes the replica of the node that serves the slot, while that node is running.
    pub(crate) async fn fail_over(&self, slot: u16) {
        let from = self.serving(slot).await;
        let replica = (from + SLOTS.len()) % self.nodes.len();
        self.nodes[replica].tell("CLUSTER FAILOVER").await;
        self.until_served_by(slot, replica).await;
    }

    /// Waits until all running nodes know that the node serves the slot.
    pub(crate) async fn until_served_by(&self, slot: u16, node: usize) {
        let promoted = async {
            while self.serving(slot).await != node {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, promoted).await.expect("the slot has a new primary");
    }
}

/// Returns the id of a node.
fn id_of(number: usize) -> String {
    format!("{:040x}", number + 1)
}
