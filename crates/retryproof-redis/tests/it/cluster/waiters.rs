// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiters keep their wake-ups while primaries fail over and slots move.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{FencedWrite, Peeked};
use retryproof_core::{FencingToken, IdempotencyStore, Identity, OwnerId};
use retryproof_redis::RedisStore;
use tokio::time::Instant;

use super::{PATIENCE, connect};
use crate::support::server::Cluster;
use crate::support::{LONG, ask, completion, grant, id, key_of, own_prefix};

const CHANNELS: usize = 300;
const WAITERS: usize = 1_000;

/// Waits as the engine does, and returns when the record is complete.
async fn until_complete(store: Arc<RedisStore>, id: Identity, token: FencingToken) -> Instant {
    loop {
        let waited = store.wait_for_change(&id, token, LONG).await;
        match store.peek(&id).await {
            Ok(Peeked::Complete(_)) => return Instant::now(),
            Ok(Peeked::Busy(_)) if waited.is_ok() => {}
            Ok(Peeked::Absent) => panic!("the lease has ended, or a failover has lost it"),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Returns the channels with a subscriber.
///
/// A server ends its subscriptions to a slot that another shard gets. A primary that becomes a
/// replica ends them, or keeps them and receives the messages of the new primary: that depends on
/// the order in which it learns of the failover. So the channels of replicas count too.
async fn subscribed(cluster: &Cluster) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for node in cluster.running() {
        let channels: Vec<String> = ask(&mut node.stranger().await, "PUBSUB SHARDCHANNELS").await;
        all.extend(channels);
    }
    all
}

async fn until_all_are_subscribed(cluster: &Cluster) {
    let began = Instant::now();
    loop {
        let channels = subscribed(cluster).await.len();
        if channels == CHANNELS {
            eprintln!("all channels are subscribed after {:?}", began.elapsed());
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{channels} of {CHANNELS} channels are subscribed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_4_sto_8_no_waiter_is_forgotten_when_nodes_fail_over_and_slots_move() {
    let mut cluster = Cluster::start("").await;
    let prefix = own_prefix();
    let store = Arc::new(connect(&cluster, &prefix).await);
    let holder = connect(&cluster, &prefix).await;
    let owner = OwnerId::new();
    let ids: Vec<_> = (0..CHANNELS).map(|at| id(&format!("k{at}"))).collect();
    let mut tokens = Vec::new();
    for id in &ids {
        tokens.push(grant(&holder, id, owner).await.token);
    }
    let mut waiters: Vec<_> = (0..CHANNELS).map(|_| Vec::new()).collect();
    for at in (0..WAITERS).map(|waiter| waiter % CHANNELS) {
        let waiter = until_complete(Arc::clone(&store), ids[at].clone(), tokens[at]);
        waiters[at].push(tokio::spawn(waiter));
    }
    until_all_are_subscribed(&cluster).await;

    // Slots move in one direction. Otherwise the servers themselves may lose a slot's keys.
    let (from, to) = (0, 1);
    let mut moved = Vec::new();
    for id in &ids {
        let slot = cluster.slot_of(&key_of(&prefix, id)).await;
        if moved.len() < 20 && cluster.serving(slot).await == from {
            cluster.begin_move(slot, to).await;
            cluster.end_move(slot, to).await;
            moved.push(slot);
        }
    }
    assert_eq!(moved.len(), 20);
    for slot in moved {
        cluster.until_known(slot, to).await;
    }
    until_all_are_subscribed(&cluster).await;
    cluster.fail_over(0).await;
    cluster.settle().await;
    until_all_are_subscribed(&cluster).await;
    // Wait until the replicas have all leases.
    let killed = cluster.serving(6_000).await;
    cluster.replicated(killed).await;
    cluster.nodes[killed].kill();
    cluster.until_served_by(6_000, killed + 3).await;
    until_all_are_subscribed(&cluster).await;

    // The pauses of the fallback poll have grown to a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut woken = Vec::new();
    for (id, waiters) in ids.iter().zip(waiters) {
        let since = Instant::now();
        let completed = holder.complete(id, owner, &completion("x")).await.expect("completed");
        assert_eq!(completed, FencedWrite::Applied);
        for waiter in waiters {
            let end = tokio::time::timeout(PATIENCE, waiter).await.expect("it is woken");
            woken.push(end.expect("the waiter ends") - since);
        }
    }
    woken.sort();
    let (median, worst) = (woken[WAITERS / 2], woken[WAITERS - 1]);
    eprintln!("{WAITERS} waiters woken: p50 {median:?}, worst {worst:?}");
    assert!(median < Duration::from_millis(50), "pushed, not polled: {median:?}");
    assert!(worst < Duration::from_millis(1_500), "pushed, or polled: {worst:?}");
}
