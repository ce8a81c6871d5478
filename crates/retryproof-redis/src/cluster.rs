// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Cluster`]: the nodes of a Redis Cluster, and which of them serves which slots (STO-8).
//!
//! The map of slots is read when the store connects, and again after an answer or a failure that
//! shows that the map is out of date. An outdated map is harmless: a node that does not serve a
//! slot names the node that does.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use redis::Value;
use retryproof_core::{Error, ErrorKind, Result};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::config::{Address, Target};
use crate::connection::{Connector, Request};
use crate::error::{Failure, unexpected_answer};
use crate::pool::node::Node;
use crate::pool::primary::{PrimaryLocator, PrimaryPlace};
use crate::statement::cluster_slots;

mod call;
pub(crate) mod slots;

use slots::{SLOTS, SlotRange, ranges, slot};

/// How long one node may take to report the map before another node is asked as well.
const HEDGE: Duration = Duration::from_millis(200);
/// The shortest time between two readings of the map.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct Cluster {
    connector: Arc<Connector>,
    map: RwLock<SlotMap>,
    /// Whether a task is reading the map.
    refreshing: AtomicBool,
    refreshed: Notify,
    /// Counts the readings. Each begins with another node, so that a node that is cut off from the
    /// others does not report an old map again and again.
    readings: AtomicUsize,
}

/// A node of the cluster.
struct ClusterMember {
    at: Address,
    node: Arc<Node>,
}

/// Which node serves which slot.
struct SlotMap {
    owners: Vec<Option<Arc<ClusterMember>>>,
    /// All nodes that a node of the cluster has named, with their connections.
    members: HashMap<Address, Arc<ClusterMember>>,
}

impl Cluster {
    /// Reads the map of slots from one of the configured nodes.
    ///
    /// # Errors
    /// `Unavailable` if a slot has no primary; if no node reports the map, the error of one of the
    /// nodes.
    pub(crate) async fn connect(connector: Arc<Connector>) -> Result<Arc<Self>> {
        let owners = vec![None; usize::from(SLOTS)];
        let cluster = Arc::new(Self {
            connector,
            map: RwLock::new(SlotMap { owners, members: HashMap::new() }),
            refreshing: AtomicBool::new(false),
            refreshed: Notify::new(),
            readings: AtomicUsize::new(0),
        });
        cluster.read_map().await?;
        match cluster.uncovered() {
            0 => Ok(cluster),
            slots => Err(not_covered(slots)),
        }
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    pub(crate) fn node_of(&self, key: &[u8]) -> Option<Arc<Node>> {
        self.owner(slot(key)).map(|owner| Arc::clone(&owner.node))
    }

    fn owner(&self, slot: u16) -> Option<Arc<ClusterMember>> {
        self.map.read().owners[usize::from(slot)].clone()
    }

    /// Returns the nodes that serve slots, in the order of their addresses.
    pub(crate) fn primaries(&self) -> BTreeMap<Address, Arc<Node>> {
        let map = self.map.read();
        let mut primaries = BTreeMap::new();
        let mut last = None;
        for owner in map.owners.iter().flatten() {
            if last.is_none_or(|last| !Arc::ptr_eq(last, owner)) {
                primaries.insert(owner.at.clone(), Arc::clone(&owner.node));
                last = Some(owner);
            }
        }
        primaries
    }

    fn uncovered(&self) -> usize {
        self.map.read().owners.iter().filter(|owner| owner.is_none()).count()
    }

    /// Returns the node at this address, with its connections if it is known.
    fn member_at(&self, at: &Address) -> Arc<ClusterMember> {
        let mut map = self.map.write();
        Arc::clone(map.members.entry(at.clone()).or_insert_with(|| self.new_member(at)))
    }

    fn new_member(&self, at: &Address) -> Arc<ClusterMember> {
        let locator =
            PrimaryLocator::new(Arc::clone(&self.connector), PrimaryPlace::Server(at.clone()));
        Arc::new(ClusterMember { at: at.clone(), node: Arc::new(Node::new(locator)) })
    }

    /// Notes that a node has named another as the owner of the slot, and returns the other node.
    fn moved(&self, slot: u16, to: &Address) -> Arc<ClusterMember> {
        let member = self.member_at(to);
        self.map.write().owners[usize::from(slot)] = Some(Arc::clone(&member));
        member
    }

    /// Starts to read the map again, unless that has just begun. The task outlives the call that
    /// starts it.
    pub(crate) fn refresh(self: &Arc<Self>) {
        if self.refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let reading = Reading(Arc::clone(self));
        tokio::spawn(async move {
            if let Err(error) = reading.0.read_map().await {
                tracing::debug!(%error, "no node of the cluster reports its slots");
            }
            reading.0.refreshed.notify_waiters();
            sleep(REFRESH_PAUSE).await;
        });
    }

    /// Asks one node after another for the map, and uses the first answer. A node that does not
    /// answer delays the next one only by [`HEDGE`].
    pub(crate) async fn read_map(&self) -> Result<()> {
        let mut candidates = self.candidates().into_iter().peekable();
        let mut asked = JoinSet::new();
        let mut failure: Option<Error> = None;
        loop {
            if let Some(member) = candidates.next() {
                asked.spawn(async move { ask(&member).await });
            }
            let more = candidates.peek().is_some();
            tokio::select! {
                answer = asked.join_next() => match answer {
                    Some(Ok(Ok(ranges))) => {
                        self.adopt(ranges);
                        return Ok(());
                    }
                    Some(Ok(Err(error))) => {
                        // A refusal says more than a node that cannot be reached.
                        if failure.as_ref().is_none_or(|old| old.kind() == ErrorKind::Unavailable) {
                            failure = Some(error);
                        }
                    }
                    Some(Err(_)) => {}
                    None => return Err(failure.unwrap_or_else(|| not_covered(SLOTS.into()))),
                },
                () = sleep(HEDGE), if more => {}
            }
        }
    }

    /// Returns the nodes to ask for the map: the primaries, then their replicas, then the
    /// configured nodes.
    fn candidates(&self) -> Vec<Arc<ClusterMember>> {
        let primaries = self.primaries();
        let mut addresses: Vec<_> = primaries.keys().cloned().collect();
        let first = self.readings.fetch_add(1, Ordering::Relaxed) % addresses.len().max(1);
        addresses.rotate_left(first);
        let replicas: Vec<_> = self.map.read().members.keys().cloned().collect();
        let seeds = match &self.connector.config().target {
            Target::Cluster(seeds) => &seeds[..],
            Target::Single(_) | Target::Sentinel { .. } => &[],
        };
        for at in replicas.into_iter().chain(seeds.iter().cloned()) {
            if !addresses.contains(&at) {
                addresses.push(at);
            }
        }
        addresses.iter().map(|at| self.member_at(at)).collect()
    }

    /// Replaces the map. A node that is still named keeps its connections.
    fn adopt(&self, ranges: Vec<SlotRange>) {
        let mut map = self.map.write();
        let mut members = HashMap::new();
        let mut member_at = |at: &Address| {
            let known = || map.members.get(at).cloned().unwrap_or_else(|| self.new_member(at));
            Arc::clone(members.entry(at.clone()).or_insert_with(known))
        };
        let mut owners = vec![None; usize::from(SLOTS)];
        for SlotRange { first, last, primary, replicas } in ranges {
            owners[usize::from(first)..=usize::from(last)].fill(Some(member_at(&primary)));
            replicas.iter().for_each(|replica| drop(member_at(replica)));
        }
        *map = SlotMap { owners, members };
    }
}

/// Ends the reading of the map, even if its task is dropped with its runtime.
struct Reading(Arc<Cluster>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.refreshing.store(false, Ordering::Release);
    }
}

/// Asks a node for the map.
async fn ask(member: &ClusterMember) -> Result<Vec<SlotRange>> {
    let ClusterMember { at, node } = member;
    let deadline = Instant::now() + node.call_timeout(false);
    let answer = node.attempt(Request::One(&cluster_slots()), false, deadline, true).await;
    let answer: Value = answer.map_err(|failure| failure.on_node(at).into_error())?;
    match ranges(&answer, at) {
        Some(ranges) if ranges.is_empty() => Err(not_covered(SLOTS.into()).with("server", at)),
        Some(ranges) => Ok(ranges),
        None => Err(unexpected_answer().with("server", at)),
    }
}

fn not_covered(slots: usize) -> Error {
    Error::unavailable(
        "the cluster has slots without a primary, so it cannot serve all keys; assign the slots \
         (`redis-cli --cluster check`), or wait for the failover to end",
    )
    .with("slots", slots)
}

/// Returns the failure of a call whose slot has no primary.
fn no_owner(slot: u16) -> Failure {
    Error::unavailable("the slot of the key has no primary; see `CLUSTER SLOTS`")
        .with("slot", slot)
        .into()
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("config", self.connector.config()).finish_non_exhaustive()
    }
}
