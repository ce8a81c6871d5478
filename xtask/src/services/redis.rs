// SPDX-License-Identifier: MIT OR Apache-2.0
//! Redis: one server alone, and a Sentinel group of a primary, two replicas and three sentinels.

use std::io;
use std::time::Duration;

use super::account::Account;
use super::install::Tools;
use super::server::{Failure, Server};
use super::site::Site;
use super::{until, wire};

/// The sentinels' name for the group.
const GROUP: &str = "retryproof";
const PRIMARY: &str = "sentinel-primary";
const REPLICAS: [&str; 2] = ["sentinel-replica-1", "sentinel-replica-2"];
const SENTINELS: [&str; 3] = ["sentinel-1", "sentinel-2", "sentinel-3"];

pub(super) fn standalone(site: &Site, tools: &Tools) -> io::Result<Server> {
    server(site, tools, "redis", "")
}

/// Returns the servers in the order in which they start. A sentinel writes changes of the servers'
/// settings to the servers' files, so each server restarts with the role that it had.
pub(super) fn group(site: &Site, tools: &Tools) -> io::Result<Vec<Server>> {
    let primary = site.port(PRIMARY);
    let mut group = vec![server(site, tools, PRIMARY, "")?];
    for name in REPLICAS {
        group.push(server(site, tools, name, &format!("replicaof 127.0.0.1 {primary}\n"))?);
    }
    for name in SENTINELS {
        let watch = format!(
            "sentinel monitor {GROUP} 127.0.0.1 {primary} 2\nsentinel down-after-milliseconds {GROUP} 1000\n\
             sentinel failover-timeout {GROUP} 5000\nsentinel parallel-syncs {GROUP} 1\n"
        );
        let mut sentinel = server(site, tools, name, "")?;
        sentinel.files = vec![("redis.conf", base(site, name) + &watch)];
        sentinel.command.push("--sentinel".into());
        group.push(sentinel);
    }
    Ok(group)
}

/// Waits until every sentinel sees the whole group: only then has a failover a quorum and a
/// replica.
pub(super) fn settle(group: &[Server], bound: Duration) -> Result<(), Failure> {
    let seen = format!(",slaves={},sentinels={}", REPLICAS.len(), SENTINELS.len());
    for sentinel in group.iter().filter(|server| SENTINELS.contains(&server.name)) {
        let whole = || {
            let answer = wire::ask_redis(sentinel.port, "INFO sentinel").ok()?;
            let group = answer.lines().find(|line| line.contains(&format!("name={GROUP},")))?;
            (group.contains("status=ok") && group.contains(&seen)).then_some(())
        };
        until(bound, whole)
            .ok_or_else(|| Failure::of(sentinel, "this sentinel does not see the whole group"))?;
    }
    Ok(())
}

pub(super) fn server(
    site: &Site,
    tools: &Tools,
    name: &'static str,
    role: &str,
) -> io::Result<Server> {
    let dir = site.dir(name);
    // A crash of the server loses nothing. A power loss can lose the last second, as in production.
    let durable = "save \"\"\nappendonly yes\nappendfsync everysec\nrepl-diskless-sync-delay 0\n";
    Ok(Server {
        name,
        port: site.port(name),
        // The server can run as root, but does not need to. The user `redis` exists if Debian's
        // package is installed.
        account: Account::pick(&["redis", "nobody"])?,
        files: vec![("redis.conf", base(site, name) + durable + role)],
        prepare: Vec::new(),
        command: vec![tools.path("redis-server")?, dir.join("redis.conf").display().to_string()],
        dir,
        ready: wire::redis,
    })
}

fn base(site: &Site, name: &str) -> String {
    let dir = site.dir(name);
    format!(
        "port {}\nbind 127.0.0.1\ndir \"{}\"\npidfile \"{}\"\n",
        site.port(name),
        dir.join("data").display(),
        dir.join("pid").display()
    )
}

pub(super) fn urls(site: &Site) -> Vec<(&'static str, String)> {
    vec![("REDIS", format!("redis://127.0.0.1:{}", site.port("redis")))]
}

pub(super) fn group_urls(site: &Site) -> Vec<(&'static str, String)> {
    let sentinels: Vec<String> =
        SENTINELS.iter().map(|name| format!("127.0.0.1:{}", site.port(name))).collect();
    vec![("SENTINEL", format!("redis+sentinel://{}/{GROUP}", sentinels.join(",")))]
}
