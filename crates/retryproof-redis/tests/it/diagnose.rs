// SPDX-License-Identifier: MIT OR Apache-2.0
//! `diagnose` names each fault that is planted in a server or a user.

use std::time::Duration;

use retryproof_core::store::{Severity, StoreFinding};
use retryproof_core::{Error, ErrorKind, IdentitySecret};
use retryproof_redis::{RedisConfig, RedisStore};

use crate::support::server::{Group, Server};
use crate::support::{ask, config, execute, id, is};

const GOOD: &str = "maxmemory-policy noeviction\nappendonly yes\nappendfsync always";

async fn findings(config: &RedisConfig) -> Vec<StoreFinding> {
    config.diagnose().await.unwrap_or_else(|error: Error| panic!("{error}"))
}

fn ids(findings: &[StoreFinding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.id).collect()
}

#[tokio::test]
async fn ops_5_a_server_in_order_has_no_finding_and_nothing_is_written() {
    let server = Server::start(GOOD).await;
    let store = RedisStore::connect(config(&server.url())).await.expect("it connects");
    execute(&store, &id("k"), "v").await;
    let keys: i64 = ask(&mut server.stranger().await, "DBSIZE").await;
    assert_eq!(findings(&config(&server.url())).await, []);
    let after: i64 = ask(&mut server.stranger().await, "DBSIZE").await;
    assert_eq!((keys, after), (1, 1));
}

#[tokio::test]
async fn ops_5_settings_that_lose_records_are_named() {
    let server = Server::start("maxmemory 100mb\nmaxmemory-policy allkeys-lru").await;
    let found = findings(&config(&server.url())).await;
    assert_eq!(ids(&found), ["eviction", "appendonly"]);
    assert!(found[0].problem.contains("allkeys-lru"), "{found:#?}");
    assert_eq!(found[0].severity, Severity::Error);
    server.tell("CONFIG SET maxmemory 0").await;
    server.tell("CONFIG SET appendonly yes").await;
    let found = findings(&config(&server.url())).await;
    assert_eq!(ids(&found), ["eviction", "appendfsync"]);
    assert_eq!(found[0].severity, Severity::Warning, "there is no limit: {found:#?}");
    assert!(found[1].problem.contains("everysec"), "{found:#?}");
}

#[tokio::test]
async fn ops_5_a_disk_that_fails_is_named() {
    let server = Server::start(&GOOD.replace("appendonly yes", "appendonly no")).await;
    server.lose_disk();
    server.tell("SET other value").await;
    server.tell("BGSAVE").await;
    let failed = async {
        while !ids(&findings(&config(&server.url())).await).contains(&"persistence") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), failed).await.expect("it is named");
}

#[tokio::test]
async fn ops_5_a_replica_a_cluster_and_a_missing_database_are_named() {
    let primary = Server::start(GOOD).await;
    let replica = Server::start(&format!("{GOOD}\nreplicaof 127.0.0.1 {}", primary.port)).await;
    let found = findings(&config(&replica.url())).await;
    assert_eq!((found[0].id, found[0].severity), ("role", Severity::Error), "{found:#?}");

    let linked = async {
        loop {
            let found = findings(&config(&primary.url())).await;
            if !found.is_empty() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(20), linked).await.expect("linked");
    assert_eq!(ids(&found), ["min-replicas-to-write"]);
    let two = config(&primary.url()).with_wait_replicas(2, Duration::from_secs(1));
    let found = findings(&two).await;
    assert_eq!(ids(&found), ["wait-replicas", "min-replicas-to-write"]);
    assert_eq!(found[0].severity, Severity::Error);

    let found = findings(&config(&primary.url()).with_db(99)).await;
    assert_eq!((found[0].id, found[0].severity), ("database", Severity::Error), "{found:#?}");
    let cluster = Server::start(&format!("{GOOD}\ncluster-enabled yes")).await;
    let found = findings(&config(&cluster.url())).await;
    assert_eq!((found[0].id, found[0].severity), ("server", Severity::Error), "{found:#?}");
}

#[tokio::test]
async fn ops_5_id_5_another_identity_secret_is_named() {
    let secret = |letter: &str| IdentitySecret::new(letter.repeat(32)).expect("32 bytes");
    let server = Server::start(GOOD).await;
    let (plain, hashed) = (config(&server.url()), config(&server.url()).with_prefix("hashed"));
    hashed.clone().with_identity_secret(secret("a")).migrate().await.expect("migrated");
    for (config, text) in [
        (plain.clone().with_identity_secret(secret("a")), "set up without an identity secret"),
        (hashed.clone(), "this program has no identity secret"),
        (hashed.clone().with_identity_secret(secret("b")), "another identity secret"),
    ] {
        let found = findings(&config).await;
        assert_eq!(ids(&found), ["identities"], "{found:#?}");
        assert_eq!(found[0].severity, Severity::Error);
        assert!(found[0].problem.contains(text), "{found:#?}");
    }
    let hashed = hashed.with_identity_secret(secret("a"));
    for config in [&plain, &hashed] {
        assert_eq!(findings(config).await, []);
    }
    // The server has evicted the mark.
    server.tell("DEL hashed:identity").await;
    let found = findings(&hashed).await;
    assert_eq!((ids(&found), found[0].severity), (vec!["identities"], Severity::Error));
    assert!(found[0].problem.contains("evicted"), "{found:#?}");
    assert!(found[0].advice.contains("noeviction"), "{found:#?}");
    hashed.migrate().await.expect("migrated");
    assert_eq!(findings(&hashed).await, []);
}

#[tokio::test]
async fn ops_5_each_missing_right_is_named() {
    let server = Server::start(GOOD).await;
    let made = async |rights: &str| {
        let mut conn = server.stranger().await;
        let () = ask(&mut conn, &format!("ACL SETUSER app reset on >pw {rights}")).await;
        let login = config(&server.url()).with_user("app").with_password("pw");
        findings(&login.with_prefix("acl")).await
    };
    const NEEDED: &str = "~acl:* &acl:* -@all +hello +select +role +script|load +evalsha +get \
                          +getrange +set +pttl +pexpire +time +spublish +ssubscribe \
                          +sunsubscribe";
    assert_eq!(
        ids(&made(NEEDED).await),
        ["settings", "inspect"],
        "the store needs no other rights"
    );
    let more = format!("{NEEDED} +info +config|get +strlen +scan");
    assert_eq!(made(&more).await, []);
    assert_eq!(made(&more.replace("+hello ", "")).await, [], "a user needs no right to HELLO");
    let without = |right: &str| more.replace(&format!(" {right} "), " ");
    for right in
        ["+get", "+getrange", "+set", "+pttl", "+pexpire", "+time", "+evalsha", "+script|load"]
    {
        let found = made(&without(right)).await;
        assert_eq!(ids(&found), ["privilege"], "{right}");
        assert!(found[0].problem.ends_with(&format!(": {right}.")), "{found:#?}");
        assert!(found[0].advice.contains("~acl:*"), "{found:#?}");
        assert_eq!(found[0].severity, Severity::Error);
    }
    assert_eq!(ids(&made(&without("+select")).await), ["database"]);
    for right in ["+role", "+spublish", "+ssubscribe", "+sunsubscribe"] {
        let found = made(&without(right)).await;
        assert_eq!(ids(&found), ["rights"], "{right}: {found:#?}");
        assert!(found[0].problem.contains(&format!(" {right}. ")), "{found:#?}");
        assert_eq!(found[0].severity, Severity::Warning);
    }
    let found = made(&without("&acl:*")).await;
    assert!(found[0].problem.contains(": +spublish, +ssubscribe. "), "{found:#?}");
    let found = made(&without("+strlen")).await;
    assert_eq!((ids(&found), found[0].severity), (vec!["inspect"], Severity::Note));
    let found = made(&more.replace("~acl:*", "~other:*")).await;
    assert!(
        found[0].problem.contains("+get, +getrange, +set, +pttl, +pexpire, +evalsha"),
        "{found:#?}"
    );
    for (right, unexamined) in [
        ("+config|get", "`appendfsync` and `min-replicas-to-write`"),
        ("+info", "the connected replicas and the state of the disk"),
    ] {
        let found = made(&without(right)).await;
        assert_eq!((ids(&found), found[0].severity), (vec!["settings"], Severity::Note), "{right}");
        let what = format!("so {unexamined} were not examined.");
        assert!(found[0].problem.ends_with(&what), "{found:#?}");
        assert!(found[0].advice.ends_with(&format!("the right `{right}`.")), "{found:#?}");
    }
    let keys: i64 = ask(&mut server.stranger().await, "DBSIZE").await;
    assert_eq!(keys, 0, "nothing was written");
}

#[tokio::test]
async fn ops_5_a_group_is_examined_at_its_primary() {
    let group = Group::start().await;
    let found = findings(&config(&group.url())).await;
    assert_eq!(ids(&found), ["appendonly", "min-replicas-to-write"], "{found:#?}");
}

#[tokio::test]
async fn ops_5_a_server_that_is_away_is_an_error() {
    let error = RedisConfig::new("127.0.0.1", 1).diagnose().await.expect_err("away");
    is(&error, ErrorKind::Unavailable, "diagnose");
    let server = Server::start("requirepass right").await;
    is(
        &config(&server.url()).diagnose().await.expect_err("no login"),
        ErrorKind::Config,
        "password",
    );
}
