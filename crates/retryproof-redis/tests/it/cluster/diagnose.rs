// SPDX-License-Identifier: MIT OR Apache-2.0
//! `diagnose` describes a cluster, and names slots that move or have no primary.

use std::time::Duration;

use retryproof_core::store::{Severity, StoreFinding};

use super::PATIENCE;
use crate::support::server::{Cluster, Server};
use crate::support::{ask, config};

const GOOD: &str = "appendonly yes\nappendfsync always\nmin-replicas-to-write 1";

fn ids(findings: &[StoreFinding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.id).collect()
}

#[tokio::test]
async fn ops_5_sto_8_the_state_of_a_cluster_is_named() {
    let cluster = Cluster::start(GOOD).await;
    let config = config(&cluster.url());
    let diagnosed = async || config.diagnose().await.expect("diagnosed");
    // A node learns of the other nodes' replicas after a while.
    let whole = async {
        while !diagnosed().await[0].problem.contains("3 primaries and 3 replicas") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, whole).await.expect("the node knows the replicas");
    let found = diagnosed().await;
    assert_eq!((ids(&found), found[0].severity), (vec!["cluster"], Severity::Note));

    let of: usize = cluster.serving(0).await;
    cluster.begin_move(0, (of + 1) % 3).await;
    let found = config.diagnose().await.expect("diagnosed");
    assert_eq!(ids(&found), ["cluster", "moving-slots"], "{found:#?}");
    assert_eq!(found[1].severity, Severity::Warning);
    for node in [of, (of + 1) % 3] {
        let at = format!("`127.0.0.1:{}`: 1", cluster.nodes[node].port);
        assert!(found[1].problem.contains(&at), "{found:#?}");
    }
    cluster.end_move(0, (of + 1) % 3).await;

    cluster.nodes[1].tell("CONFIG SET maxmemory-policy allkeys-lru").await;
    let found = config.diagnose().await.expect("diagnosed");
    assert_eq!(ids(&found), ["cluster", "eviction"], "{found:#?}");
    let at = format!("On `127.0.0.1:{}`: ", cluster.nodes[1].port);
    assert!(found[1].problem.starts_with(&at), "{found:#?}");
    cluster.nodes[1].tell("CONFIG SET maxmemory-policy noeviction").await;

    // Rights are checked on each node.
    const NEEDED: &str = "~acl:* &acl:* -@all +hello +select +role +script|load +evalsha +get \
                          +getrange +set +pttl +pexpire +time +spublish +ssubscribe +sunsubscribe \
                          +info +config|get +strlen +scan +cluster|slots +cluster|nodes +asking";
    let made = async |rights: &str| {
        for node in &cluster.nodes {
            let mut conn = node.stranger().await;
            let () = ask(&mut conn, &format!("ACL SETUSER app reset on >pw {rights}")).await;
        }
        let login = config.clone().with_user("app").with_password("pw").with_prefix("acl");
        login.diagnose().await.expect("diagnosed")
    };
    assert_eq!(ids(&made(NEEDED).await), ["cluster"]);
    let found = made(&NEEDED.replace(" +asking", "")).await;
    assert_eq!(ids(&found), ["cluster", "privilege"]);
    assert!(found[1].problem.ends_with(": +asking."), "{found:#?}");
    let found = made(&NEEDED.replace(" +cluster|slots", "")).await;
    assert_eq!(ids(&found), ["slots"]);
    assert!(found[0].advice.contains("+cluster|slots"), "{found:#?}");

    for node in &cluster.nodes {
        node.tell("CLUSTER DELSLOTS 7").await;
    }
    let found = config.diagnose().await.expect("diagnosed");
    assert_eq!((ids(&found)[1], found[1].severity), ("slots", Severity::Error), "{found:#?}");
    assert!(found[1].problem.starts_with("1 of 16384 slots"), "{found:#?}");
}

#[tokio::test]
async fn ops_5_sto_8_a_host_that_is_gone_and_a_server_of_another_mode_are_named() {
    let alone = Server::start(GOOD).await;
    let url = format!("redis+cluster://127.0.0.1:1,127.0.0.1:{}", alone.port);
    let found = config(&url).diagnose().await.expect("diagnosed");
    assert_eq!(ids(&found), ["server"], "{found:#?}");
    assert!(found[0].problem.contains("`redis://HOST:PORT`"), "{found:#?}");
    let node = Server::start(&format!("{GOOD}\ncluster-enabled yes")).await;
    let found = config(&node.url()).diagnose().await.expect("diagnosed");
    assert!(found.iter().any(|finding| finding.id == "server"), "{found:#?}");
    let url = format!("redis+cluster://127.0.0.1:1,127.0.0.1:{}", node.port);
    let found = config(&url).diagnose().await.expect("diagnosed");
    assert_eq!(ids(&found)[..2], ["hosts", "cluster"], "{found:#?}");
    assert!(found[0].problem.contains("`127.0.0.1:1`"), "{found:#?}");
}
