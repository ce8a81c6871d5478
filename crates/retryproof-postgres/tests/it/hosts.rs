// SPDX-License-Identifier: MIT OR Apache-2.0
//! A URL with several hosts (STO-7): the store uses the primary, leaves it when it fails, and does
//! not use an old primary that comes back.

mod moves;

use std::time::Duration;

use retryproof_core::store::{FencedWrite, Severity};
use retryproof_core::{Error, ErrorKind, IdempotencyStore, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};
use retryproof_testkit::standby::{PostgresGroup, Replication};
use retryproof_testkit::wire::WireProxy;
use tokio::time::Instant;

use crate::support::{
    CANARY, LONG, assert_masked, completion, execute, grant, id, replay, request, whole,
};

/// Longer than any step of these tests takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A primary and a standby, with a migrated table.
async fn group(how: Replication) -> PostgresGroup {
    let group = PostgresGroup::start(1, how, &["fsync=off", "shared_buffers=16MB"]);
    let group = group.expect("the servers start");
    config(&group.url()).migrate().await.expect("the schema is made");
    group
}

fn config(url: &str) -> PostgresConfig {
    PostgresConfig::from_url(url).expect("a valid URL").with_pooler(Pooler::Session)
}

async fn store(url: &str) -> PostgresStore {
    PostgresStore::connect(config(url)).await.expect("the store connects")
}

async fn refused(url: &str) -> Error {
    let error = PostgresStore::connect(config(url)).await.expect_err("it is refused");
    assert_masked(&error);
    error
}

/// Whether a node has a record.
fn has(group: &PostgresGroup, node: usize, key: &str) -> bool {
    let sql =
        format!("SELECT count(*) FROM retryproof_records WHERE key=convert_to('{key}','UTF8')");
    group.sql(node, &sql).expect("the node answers") != "0"
}

/// Waits until the standby has everything that the primary has.
async fn caught_up(group: &PostgresGroup, standby: usize, primary: usize) {
    let position = "SELECT pg_current_wal_lsn()";
    let target = group.sql(primary, position).expect("the primary answers");
    let replayed = format!("SELECT pg_last_wal_replay_lsn()>='{target}'::pg_lsn");
    let until = Instant::now() + PATIENCE;
    while group.sql(standby, &replayed).expect("the standby answers") != "t" {
        assert!(Instant::now() < until, "the standby does not catch up");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Executes keys until a call succeeds. Returns that key, and how long it took.
async fn until_it_works(store: &PostgresStore, prefix: &str) -> (String, Duration) {
    let began = Instant::now();
    for attempt in 0.. {
        let (key, owner) = (format!("{prefix} {attempt}"), OwnerId::new());
        let acquired = store.acquire(&id(&key), &request(owner)).await;
        if acquired.is_ok()
            && let Ok(FencedWrite::Applied) =
                store.complete(&id(&key), owner, &completion("v")).await
        {
            return (key, began.elapsed());
        }
        assert!(began.elapsed() < PATIENCE, "the store does not recover: {acquired:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    unreachable!("the loop ends by a return or a panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn sto_7_the_primary_is_found_and_each_refused_host_is_named() {
    let group = group(Replication::Asynchronous).await;
    let (primary, standby) = (group.port(0), group.port(1));
    let user = format!("postgres://postgres:{CANARY}@");
    // The order of the hosts does not matter, and hosts that cannot be reached are skipped.
    for (at, hosts) in [
        format!("127.0.0.1:{primary},127.0.0.1:{standby}"),
        format!("127.0.0.1:{standby},127.0.0.1:{primary}"),
        format!("127.0.0.1:1,nowhere.invalid,127.0.0.1:{primary}"),
    ]
    .into_iter()
    .enumerate()
    {
        let store = store(&format!("{user}{hosts}/postgres?target_session_attrs=read-write")).await;
        execute(&store, &id(&format!("k{at}")), "v").await;
        assert!(has(&group, 0, &format!("k{at}")));
    }

    // A standby alone.
    let error = refused(&format!("{user}127.0.0.1:1,127.0.0.1:{standby}/postgres")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = error.to_string();
    assert!(said.contains(&format!("127.0.0.1:{standby} is a standby")), "{said}");
    assert!(said.contains("127.0.0.1:1 failed: "), "{said}");

    // All nodes are away, and a login that each node refuses.
    let error = refused(&format!("{user}127.0.0.1:1,127.0.0.1:2/postgres")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1:2 failed"), "{error}");
    let error = refused(&format!(
        "postgres://nobody:{CANARY}@127.0.0.1:{primary},127.0.0.1:{standby}/postgres"
    ))
    .await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(whole(&error).contains("28000"), "{}", whole(&error));

    // A server that is no copy of the primary.
    let other = PostgresGroup::start(0, Replication::Asynchronous, &["fsync=off"]);
    let other = other.expect("the server starts");
    let error =
        refused(&format!("{user}127.0.0.1:{primary},127.0.0.1:{}/postgres", other.port(0))).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("do not belong together"), "{error}");
    drop(other);

    // A primary that turns read-only, in the middle of the store's calls.
    let store = store(&group.url()).await;
    let owner = OwnerId::new();
    grant(&store, &id("held"), owner).await;
    let set = |value: &str| {
        let sql = format!("ALTER SYSTEM SET default_transaction_read_only={value}");
        group.sql(0, &sql).expect("set");
        group.sql(0, "SELECT pg_reload_conf()").expect("reloaded");
    };
    set("on");
    let until = Instant::now() + PATIENCE;
    let error = loop {
        match store.extend(&id("held"), owner, LONG).await {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < until, "the server still accepts writes"),
        }
    };
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{primary}")), "{error}");
    assert_masked(&error);
    let error = store.extend(&id("held"), owner, LONG).await.map(drop).expect_err("read-only");
    assert!(error.to_string().contains("is set to read-only"), "{error}");
    set("off");
    until_it_works(&store, "resumed").await;
    assert_eq!(store.extend(&id("held"), owner, LONG).await.expect("held"), FencedWrite::Applied);
}

/// With several hosts, a call on an open connection costs what it costs with one host.
#[tokio::test(flavor = "multi_thread")]
async fn sto_7_acq_8_several_hosts_cost_no_round_trip() {
    let group = group(Replication::Asynchronous).await;
    let proxy = WireProxy::to(([127, 0, 0, 1], group.port(0)).into()).await.expect("a proxy");
    let url = format!("postgres://postgres@127.0.0.1:{},{}/postgres", group.port(1), proxy.addr());
    let store = PostgresStore::connect(config(&url).with_max_connections(2)).await;
    let store = store.expect("the store connects");
    for round in 0..3 {
        let id = id(&format!("k{round}"));
        let before = proxy.flights();
        execute(&store, &id, "v").await;
        let executed = proxy.flights();
        replay(&store, &id).await;
        // The first rounds open the connections and prepare the statements.
        if round == 2 {
            assert_eq!((executed - before, proxy.flights() - executed), (2, 1));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sto_7_ops_5_a_diagnosis_names_each_host_and_what_a_failover_would_lose() {
    let mut group = group(Replication::Asynchronous).await;
    let (primary, standby) = (group.port(0), group.port(1));
    let found = async |url: &str| {
        let found = config(url).diagnose().await.expect("diagnosed");
        let found = found.into_iter().filter(|one| ["hosts", "replication"].contains(&one.id));
        found.map(|one| (one.severity, one.problem)).collect::<Vec<_>>()
    };
    let has = |found: &[(Severity, String)], severity, texts: &[&str]| {
        let fits = |one: &&(Severity, String)| {
            one.0 == severity && texts.iter().all(|text| one.1.contains(text))
        };
        assert!(found.iter().any(|one| fits(&one)), "{severity:?} {texts:?}: {found:#?}");
    };
    let here = |port: u16| format!("127.0.0.1:{port}");

    let both = found(&group.url()).await;
    let roles =
        format!("{} is a primary on timeline 1; {} is a standby", here(primary), here(standby));
    has(&both, Severity::Note, &[&roles]);
    // Commits wait for no standby.
    has(&both, Severity::Warning, &["may lose the last commits"]);
    assert_eq!(both.len(), 2, "{both:#?}");

    // The copy was made before the setting.
    group.sql(0, "ALTER SYSTEM SET synchronous_standby_names='ANY 1 (n0,n1)'").expect("set");
    group.sql(0, "SELECT pg_reload_conf()").expect("reloaded");
    let until = Instant::now() + PATIENCE;
    let uneven = loop {
        let found = found(&group.url()).await;
        if found.iter().any(|(_, problem)| problem.contains("is empty on")) {
            break found;
        }
        assert!(Instant::now() < until, "{found:#?}");
    };
    has(&uneven, Severity::Warning, &["is empty on", &here(standby)]);

    let away = found(&group.url().replace(&here(standby), "127.0.0.1:1")).await;
    has(&away, Severity::Warning, &["127.0.0.1:1 failed", "could not use this host"]);
    let alone = found(&group.url().replace(&here(primary), "127.0.0.1:1")).await;
    has(&alone, Severity::Error, &["None of the hosts is a primary", &here(standby)]);
    // The primary's host accepts connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let silent = silent.local_addr().expect("bound");
    let hung = found(&group.url().replace(&here(primary), &silent.to_string())).await;
    has(&hung, Severity::Error, &["None of the hosts is a primary", &silent.to_string()]);

    // Two servers accept writes.
    group.promote(1).expect("promoted");
    let two = found(&group.url()).await;
    has(&two, Severity::Note, &[&format!("{} is a primary on timeline 2", here(standby))]);
    has(&two, Severity::Error, &[&here(primary), "accepts writes too, on timeline 1"]);
}

#[tokio::test(start_paused = true)]
async fn sto_7_ops_5_a_diagnosis_waits_as_long_as_the_configuration_allows() {
    let silent = || std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let servers = [silent(), silent()];
    let hosts = servers.each_ref().map(|server| server.local_addr().expect("bound").to_string());
    let config = config(&format!("postgres://u:{CANARY}@{}/d", hosts.join(",")));
    let began = Instant::now();
    let error = config.with_connect_timeout(LONG).diagnose().await.expect_err("no host answers");
    assert_masked(&error);
    assert!(began.elapsed() > Duration::from_secs(20), "{error}");
    let said = error.to_string();
    assert!(hosts.iter().all(|host| said.contains(host)), "{said}");
}
