// SPDX-License-Identifier: MIT OR Apache-2.0
//! A Redis Cluster of three primaries with a replica each.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use super::install::Tools;
use super::server::{Failure, Server};
use super::site::Site;
use super::{redis, until, wire};

/// The nodes. The first three start as primaries; the replica of a primary follows three later.
const NODES: [&str; 6] =
    ["cluster-1", "cluster-2", "cluster-3", "cluster-4", "cluster-5", "cluster-6"];
/// The slots of the three primaries.
const SLOTS: [&str; 3] = ["0-5460", "5461-10922", "10923-16383"];

/// Returns the nodes. Each starts with a file that names all nodes, and later rewrites that file,
/// so it restarts with the role that it had.
pub(super) fn nodes(site: &Site, tools: &Tools) -> io::Result<Vec<Server>> {
    let buses = site.free_ports(NODES.len())?;
    let mut nodes = Vec::new();
    for (at, name) in NODES.into_iter().enumerate() {
        let settings = format!(
            "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-port {}\ncluster-node-timeout 1000\n",
            buses[at]
        );
        let mut node = redis::server(site, tools, name, &settings)?;
        node.files.push(("data/nodes.conf", known_nodes(site, &buses, at)));
        nodes.push(node);
    }
    Ok(nodes)
}

/// Returns the file in which node `at` keeps what it knows of the cluster.
fn known_nodes(site: &Site, buses: &[u16], at: usize) -> String {
    let id = |number: usize| format!("{:040x}", number + 1);
    let mut text = String::new();
    for (number, (name, bus)) in NODES.iter().zip(buses).enumerate() {
        let of = number % SLOTS.len();
        let (role, primary, slots) = match number / SLOTS.len() {
            0 => ("master", "-".to_string(), SLOTS[of]),
            _ => ("slave", id(of), ""),
        };
        let myself = if number == at { "myself," } else { "" };
        let (id, port, epoch) = (id(number), site.port(name), of + 1);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{id} 127.0.0.1:{port}@{bus} {myself}{role} {primary} 0 0 {epoch} connected {slots}"
        );
    }
    text + "vars currentEpoch 3 lastVoteEpoch 0\n"
}

/// Waits until every node serves all slots, and every replica has its primary's data: only then can
/// a replica be promoted.
pub(super) fn settle(nodes: &[Server], bound: Duration) -> Result<(), Failure> {
    for node in nodes {
        let serves = || {
            let cluster = wire::ask_redis(node.port, "CLUSTER INFO").ok()?;
            let role = wire::ask_redis(node.port, "INFO replication").ok()?;
            let has_data = role.contains("role:master") || role.contains("master_link_status:up");
            (cluster.contains("cluster_state:ok") && has_data).then_some(())
        };
        until(bound, serves).ok_or_else(|| Failure::of(node, "this node serves no slots"))?;
    }
    Ok(())
}

pub(super) fn urls(site: &Site) -> Vec<(&'static str, String)> {
    let nodes: Vec<_> = NODES.iter().map(|name| format!("127.0.0.1:{}", site.port(name))).collect();
    vec![("CLUSTER", format!("redis+cluster://{}", nodes.join(",")))]
}
