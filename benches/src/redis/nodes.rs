// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Nodes`]: whether a suite of Redis measures one server or a cluster, and the driver's
//! connections to them.

use ::redis::aio::{ConnectionLike as _, MultiplexedConnection};
use ::redis::cluster::ClusterClientBuilder;
use ::redis::cluster_async::ClusterConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, Value};

use super::PATIENCE;
use crate::servers::{text, url};

/// What a suite measures; each suite has the name of its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nodes {
    One,
    Cluster,
}

/// What the suite `cluster` does not share with the suite `redis`.
pub(super) const NOTE: &str = "Three primaries with a replica each, as `cargo xtask services up cluster` starts them, all on \
     this machine, with append-only files that are flushed every second. The floor is the \
     driver's own cluster connection, which sends each command to the node that serves its slot. \
     The operations and the measurements are those of the suite `redis`. The statements row counts \
     the commands of all primaries.";

impl Nodes {
    pub(super) fn suite(self) -> &'static str {
        match self {
            Self::One => "redis",
            Self::Cluster => "cluster",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::One => "The Redis store",
            Self::Cluster => "The Redis store on a cluster",
        }
    }

    /// Returns the store's URL.
    pub(super) fn url(self) -> Result<String, String> {
        url(self.suite())
    }

    /// Returns the URL of each server that the store's URL names.
    fn urls(self) -> Result<Vec<String>, String> {
        let url = self.url()?;
        Ok(match url.strip_prefix("redis+cluster://") {
            Some(hosts) => hosts.split(',').map(|host| format!("redis://{host}")).collect(),
            None => vec![url],
        })
    }

    /// Connects to each primary.
    pub(super) async fn primaries(self) -> Result<Vec<MultiplexedConnection>, String> {
        let mut primaries = Vec::new();
        for url in self.urls()? {
            let mut node = connection(&url).await?;
            let mut cmd = Cmd::new();
            cmd.arg("INFO").arg("replication");
            let info: String = cmd.query_async(&mut node).await.map_err(text)?;
            if info.lines().any(|line| line.trim() == "role:master") {
                primaries.push(node);
            }
        }
        if primaries.is_empty() { Err("no primary was found".into()) } else { Ok(primaries) }
    }

    /// Opens the floor's connection; `url` is used for one server only, and names the database.
    pub(super) async fn floor(self, url: &str) -> Result<Floor, String> {
        Ok(match self {
            Self::One => Floor::One(connection(url).await?),
            Self::Cluster => {
                let client = ClusterClientBuilder::new(self.urls()?).response_timeout(PATIENCE);
                let client = client.build().map_err(text)?;
                Floor::Cluster(client.get_async_connection().await.map_err(text)?)
            }
        })
    }
}

pub(super) async fn connection(url: &str) -> Result<MultiplexedConnection, String> {
    let client = Client::open(url).map_err(text)?;
    let patience = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    client.get_multiplexed_async_connection_with_config(&patience).await.map_err(text)
}

/// A connection of the driver.
#[derive(Clone)]
pub(super) enum Floor {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Floor {
    pub(super) async fn send(&self, cmd: &Cmd) -> Result<Value, String> {
        match self {
            Self::One(connection) => connection.clone().send_packed_command(cmd).await,
            Self::Cluster(connection) => connection.clone().req_packed_command(cmd).await,
        }
        .map_err(text)
    }

    /// Sends the commands without a pause between them, and waits for all answers.
    pub(super) async fn send_all(&self, cmds: Vec<Cmd>) -> Result<(), String> {
        let mut tasks = tokio::task::JoinSet::new();
        for cmd in cmds {
            let floor = self.clone();
            tasks.spawn(async move { floor.send(&cmd).await });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(text)??;
        }
        Ok(())
    }
}
