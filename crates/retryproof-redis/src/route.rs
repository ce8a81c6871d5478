// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RecordRoute`]: which server has which record.

use std::sync::Arc;

use redis::Value;
use retryproof_core::Result;

use crate::cluster::Cluster;
use crate::config::{RedisConfig, Target};
use crate::connection::{Connector, Request};
use crate::error::Failure;
use crate::pool::node::Node;
use crate::pool::primary::{PrimaryLocator, PrimaryPlace};

/// One primary for all records, or a cluster, in which each record has the primary of its slot.
#[derive(Debug, Clone)]
pub(crate) enum RecordRoute {
    Primary(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl RecordRoute {
    /// Opens the first connection.
    pub(crate) async fn connect(config: RedisConfig) -> Result<Self> {
        let connector = Arc::new(Connector::new(config)?);
        let place = match &connector.config().target {
            Target::Single(at) => PrimaryPlace::Server(at.clone()),
            Target::Sentinel { nodes, service } => {
                PrimaryPlace::Sentinel { nodes: nodes.clone(), service: service.clone() }
            }
            Target::Cluster(_) => return Ok(Self::Cluster(Cluster::connect(connector).await?)),
        };
        let node = Node::new(PrimaryLocator::new(connector, place));
        node.open().await?;
        Ok(Self::Primary(Arc::new(node)))
    }

    pub(crate) fn connector(&self) -> &Connector {
        match self {
            Self::Primary(node) => node.locator().connector(),
            Self::Cluster(cluster) => cluster.connector(),
        }
    }

    /// Sends a request about one key, and waits for the answer. If `waits` is true, the request
    /// ends with a wait for replicas.
    pub(crate) async fn run(
        &self,
        key: &[u8],
        request: Request<'_>,
        waits: bool,
    ) -> Result<Value, Failure> {
        match self {
            Self::Primary(node) => node.run(request, waits).await,
            Self::Cluster(cluster) => cluster.run(key, request, waits).await,
        }
    }

    /// Returns the node that has the key; `None` if no node of the cluster serves the key's slot.
    pub(crate) fn node_of(&self, key: &[u8]) -> Option<Arc<Node>> {
        match self {
            Self::Primary(node) => Some(Arc::clone(node)),
            Self::Cluster(cluster) => cluster.node_of(key),
        }
    }

    /// Returns all primaries; those of a cluster in the order of their addresses.
    pub(crate) fn primaries(&self) -> Vec<Arc<Node>> {
        match self {
            Self::Primary(node) => vec![Arc::clone(node)],
            Self::Cluster(cluster) => cluster.primaries().into_values().collect(),
        }
    }
}
