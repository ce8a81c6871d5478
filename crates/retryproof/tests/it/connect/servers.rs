// SPDX-License-Identifier: MIT OR Apache-2.0
//! The URLs of PostgreSQL, MySQL and Redis: an error says what is wrong with a URL and does not
//! show its password, with the real servers too. The lab's suites, which create and drop tables,
//! show that each store works through a URL.

use std::time::{Duration, Instant};

use super::{configured, refusal, run};
use retryproof::{ErrorKind, IdempotencyConfig, Outcome};

/// Returns the variable of this name in the environment, or in the file that `cargo xtask services`
/// wrote.
pub(super) fn variable(name: &str) -> String {
    let written = || {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/services/env");
        let text = std::fs::read_to_string(file).ok()?;
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    };
    let value = std::env::var(name).ok().filter(|value| !value.is_empty()).or_else(written);
    value.unwrap_or_else(|| panic!("no {name} for this test: run `cargo xtask services up`"))
}

/// Returns the part of a URL from the host on.
fn place(url: &str) -> &str {
    url.rsplit_once('@').or_else(|| url.split_once("://")).expect("a URL").1
}

/// Returns the URL of the server, without the database.
fn server(url: &str) -> &str {
    url.rsplit_once('/').expect("a database").0
}

#[tokio::test]
async fn cfg_1_sto_1_a_bad_url_of_a_server_is_refused_by_what_is_wrong() {
    for (url, says) in [
        ("postgres:", "postgres://"),
        ("postgres:/app:canary@h/d", "postgres://"),
        ("postgres://app:canary@h:port/d", ""),
        ("postgres://app:canary@h:99999/d", ""),
        ("postgres://app:canary@h/d?tabel=canary", "tabel"),
        ("postgres://app:canary@h/d?table=a-b", "table"),
        ("postgres://app:canary@h/d?max-connections=1", "max-connections"),
        ("postgres://app:canary@h/d?pooler=canary", "pooler"),
        ("postgres://app:canary@h/d?dialect=canary", "dialect"),
        ("postgres://app:canary@h,i/d?dialect=plain", "dialect"),
        ("mysql:", "mysql://"),
        ("mysql://app:canary@h:port/d", ""),
        ("mysql://app:canary@h:3306", "database"),
        ("mysql://app:canary@h:3306/", "database"),
        ("mysql://app:canary@h/d?tabel=canary", "tabel"),
        ("mysql://app:canary@h/d?max-connections=canary", "max-connections"),
        ("mariadb://app:canary@h/d?timezone=x", "timezone"),
        ("redis:", "redis://"),
        ("redis://app:canary@h:port", "HOST:PORT"),
        ("redis://app:canary@h/canary", "database"),
        ("redis://app:canary@h?perfix=canary", "perfix"),
        ("redis://app:canary@h?prefix=a:b", "prefix"),
        ("redis://app:canary@a,b", "`redis+cluster`"),
        ("redis+cluster://app:canary@a,b/1", "database 0"),
        ("redis+cluster://app:canary@a,,b", "HOST:PORT"),
        ("redis+sentinel://app:canary@a:1,b:2", "service"),
        ("redis+sentinel://app:canary@a:1,,b:2/main", "HOST:PORT"),
    ] {
        let error = refusal(url).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
}

#[tokio::test]
async fn sto_1_a_server_that_is_not_there_is_unavailable_within_seconds() {
    for url in [
        "postgres://app:canary@127.0.0.1:1/d",
        "mysql://app:canary@127.0.0.1:1/d",
        "redis://app:canary@127.0.0.1:1",
        "redis+sentinel://app:canary@127.0.0.1:1,127.0.0.1:2/main",
        "redis+cluster://app:canary@127.0.0.1:1,127.0.0.1:2",
    ] {
        #[expect(clippy::disallowed_methods, reason = "real time, for a real server")]
        let began = Instant::now();
        let error = retryproof::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error}");
        assert!(began.elapsed() < Duration::from_secs(20), "{url}: {:?}", began.elapsed());
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("canary"), "ID-4: {shown}");
    }
}

#[tokio::test]
async fn id_4_a_wrong_password_or_database_is_refused_by_the_real_servers() {
    let (postgres, mariadb) = (
        variable("RETRYPROOF_TEST_POSTGRES_PASSWORD"),
        variable("RETRYPROOF_TEST_MARIADB_PASSWORD"),
    );
    let (redis, sentinel) =
        (variable("RETRYPROOF_TEST_REDIS"), variable("RETRYPROOF_TEST_SENTINEL"));
    for (url, kind, says) in [
        (format!("postgres://app:canary@{}", place(&postgres)), ErrorKind::Config, "password"),
        (format!("mysql://app:canary@{}", place(&mariadb)), ErrorKind::Config, "password"),
        (format!("redis://app:canary@{}", place(&redis)), ErrorKind::Config, "password"),
        (
            format!("redis+cluster://app:canary@{}", place(&variable("RETRYPROOF_TEST_CLUSTER"))),
            ErrorKind::Config,
            "password",
        ),
        (
            format!("redis+sentinel://app:canary@{}", place(&sentinel)),
            ErrorKind::Config,
            "password",
        ),
        (
            format!("{}/no_such_database", server(&variable("RETRYPROOF_TEST_POSTGRES"))),
            ErrorKind::Config,
            "database",
        ),
        (
            format!("{}/no_such_database", server(&variable("RETRYPROOF_TEST_MARIADB"))),
            ErrorKind::Config,
            "database",
        ),
        (format!("{redis}/9999"), ErrorKind::Config, "database"),
    ] {
        let error = retryproof::connect(&url).await.unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("canary"), "ID-4: {shown}");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn sto_3_connect_makes_no_table_and_names_the_one_of_the_keys() {
    for (url, table) in
        [("RETRYPROOF_TEST_POSTGRES", "absent_p"), ("RETRYPROOF_TEST_MARIADB", "absent_m")]
    {
        let mut config = configured(Some(&variable(url)));
        config.postgres.table_name = Some("absent_p".to_owned());
        config.mysql.table_name = Some("absent_m".to_owned());
        for _ in 0..2 {
            let error = retryproof::connect_with(&config).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
            assert!(
                error.to_string().contains(table) && error.to_string().contains("migrate"),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn cfg_1_the_keys_of_redis_reach_the_store() {
    let url = variable("RETRYPROOF_TEST_REDIS");
    retryproof::migrate(&url).await.unwrap();
    let mut config = configured(Some(&url));
    config.redis.prefix = Some(format!("facade_{}", std::process::id()));
    retryproof::migrate_with(&config).await.unwrap();
    assert_eq!(
        run(retryproof::connect_with(&config).await.unwrap(), 1).await,
        Outcome::Executed(1)
    );
    let by_url = format!("{url}?prefix=facade_{}", std::process::id());
    assert_eq!(run(retryproof::connect(&by_url).await.unwrap(), 2).await, Outcome::Replayed(1));
    // The test server is standalone, so no replica can confirm a write.
    config.redis.prefix = Some(format!("facade_w_{}", std::process::id()));
    config.redis.wait_replicas = Some(1);
    config.redis.wait_timeout = Some(Duration::from_millis(20));
    let engine =
        retryproof::IdempotencyEngine::new(retryproof::connect_with(&config).await.unwrap());
    let ctx = retryproof::IdempotencyContext::builder("connect", "key-1")
        .ttl(Duration::from_secs(1))
        .lease(Duration::from_secs(1))
        .build()
        .unwrap();
    let error = engine.try_acquire(&ctx).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    config.redis.wait_replicas = None;
    let error = retryproof::connect_with(&config).await.unwrap_err();
    assert!(error.to_string().contains("redis.wait-replicas"), "{error}");
}

#[tokio::test]
async fn cfg_1_what_the_url_and_a_key_both_say_is_refused() {
    type Set = fn(&mut IdempotencyConfig);
    let cases: [(&str, &str, Set); 10] = [
        ("postgres://h/d?table=t", "postgres.table-name", |c| {
            c.postgres.table_name = Some("t".to_owned())
        }),
        ("postgres://h/d?max-connections=3", "postgres.max-connections", |c| {
            c.postgres.max_connections = Some(3)
        }),
        ("postgresql://h/d?pooler=session", "postgres.pooler", |c| {
            c.postgres.pooler = Some(retryproof::config::Pooler::Session);
        }),
        ("postgres://h/d?dialect=plain", "postgres.dialect", |c| {
            c.postgres.dialect = Some(retryproof::config::SqlDialect::Plain);
        }),
        ("postgres://h/d?partitions=4", "postgres.partitions", |c| c.postgres.partitions = Some(4)),
        ("mysql://h/d?table=t", "mysql.table-name", |c| c.mysql.table_name = Some("t".to_owned())),
        ("mariadb://h/d?max-connections=3", "mysql.max-connections", |c| {
            c.mysql.max_connections = Some(3)
        }),
        ("redis://h?prefix=t", "redis.prefix", |c| c.redis.prefix = Some("t".to_owned())),
        ("redis://h?wait-replicas=1", "redis.wait-replicas", |c| c.redis.wait_replicas = Some(1)),
        ("redis+sentinel://h/m?wait-replicas=1&wait-timeout=PT1S", "redis.wait-timeout", |c| {
            c.redis.wait_timeout = Some(Duration::from_secs(1));
        }),
    ];
    for (url, key, set) in cases {
        let mut config = configured(Some(url));
        set(&mut config);
        for error in [
            retryproof::connect_with(&config).await.unwrap_err(),
            retryproof::migrate_with(&config).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
            assert!(error.to_string().contains(key), "{url}: {error}");
        }
    }
}
