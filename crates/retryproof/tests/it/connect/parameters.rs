// SPDX-License-Identifier: MIT OR Apache-2.0
//! CFG-1: a parameter of a URL accepts exactly the values of the key that it sets.

use retryproof::mysql::MysqlConfig;
use retryproof::postgres::PostgresConfig;
use retryproof::redis::RedisConfig;
use retryproof::sqlite::SqliteConfig;
use retryproof::{Error, ErrorKind, IdempotencyConfig};

fn parsed(url: &str) -> Result<(), Error> {
    match url.split(':').next() {
        Some("sqlite") => SqliteConfig::from_url(url).map(drop),
        Some("postgres") => PostgresConfig::from_url(url).map(drop),
        Some("mysql") => MysqlConfig::from_url(url).map(drop),
        _ => RedisConfig::from_url(url).map(drop),
    }
}

fn loaded(key: &str, value: &str) -> Result<(), Error> {
    let variable = format!("IDEMPOTENCY_{}", key.replace(['.', '-'], "_").to_uppercase());
    IdempotencyConfig::from_sources(None, [(variable, value.to_owned())]).map(drop)
}

struct Parameter {
    /// The URL up to the parameter's value.
    url: &'static str,
    key: &'static str,
    takes: &'static [&'static str],
    refuses: &'static [&'static str],
}

const NAMES: (&[&str], &[&str]) = (
    &["r", "_", "Records_2", "rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr"],
    &["", "1r", "r-s", "r s", "r;", "\u{e9}", "rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr"],
);
const CONNECTIONS: (&[&str], &[&str]) =
    (&["2", "16", "10000"], &["", "0", "1", "10001", "-1", "2.5", "x", "99999999999999999999"]);

fn parameters() -> Vec<Parameter> {
    let of = |url, key, (takes, refuses)| Parameter { url, key, takes, refuses };
    vec![
        of("sqlite:a.db?table=", "sqlite.table-name", NAMES),
        of("sqlite:a.db?table=", "sqlite.table-name", (&[], &["sqlite_x", "SQLite_x"])),
        of(
            "sqlite:a.db?synchronous=",
            "sqlite.synchronous",
            (&["full", "normal"], &["", "off", "FULL"]),
        ),
        of("postgres://h/d?table=", "postgres.table-name", NAMES),
        of("postgres://h/d?max-connections=", "postgres.max-connections", CONNECTIONS),
        of(
            "postgres://h/d?pooler=",
            "postgres.pooler",
            (&["session", "transaction"], &["", "statement"]),
        ),
        of(
            "postgres://h/d?dialect=",
            "postgres.dialect",
            (&["postgres", "plain"], &["", "Plain", "cockroach"]),
        ),
        of(
            "postgres://h/d?partitions=",
            "postgres.partitions",
            (&["2", "16", "128"], &["", "0", "1", "129", "-1", "2.5", "x", "99999999999999999999"]),
        ),
        of("mysql://h/d?table=", "mysql.table-name", NAMES),
        of("mysql://h/d?max-connections=", "mysql.max-connections", CONNECTIONS),
        of("redis://h?prefix=", "redis.prefix", NAMES),
        of(
            "redis://h?wait-replicas=",
            "redis.wait-replicas",
            (&["0", "1", "1000"], &["", "-1", "1001", "x", "99999999999"]),
        ),
        of(
            "redis://h?wait-replicas=1&wait-timeout=",
            "redis.wait-timeout",
            // 0 is refused, because the server would wait without a limit.
            (
                &["PT0.001S", "PT1S", "PT24H"],
                &["", "PT0S", "PT0.0001S", "PT24H0.001S", "PT9999H", "1", "x"],
            ),
        ),
    ]
}

#[test]
fn cfg_1_a_parameter_of_a_url_has_the_bounds_of_its_key() {
    for Parameter { url, key, takes, refuses } in parameters() {
        for value in takes {
            loaded(key, value).unwrap_or_else(|error| panic!("{key} takes {value:?}: {error}"));
            parsed(&format!("{url}{value}"))
                .unwrap_or_else(|error| panic!("{url} takes {value:?}: {error}"));
        }
        for value in refuses {
            for refused in [loaded(key, value), parsed(&format!("{url}{value}"))] {
                let error = refused.expect_err(&format!("{key} and {url} refuse {value:?}"));
                assert_eq!(error.kind(), ErrorKind::Config, "{url}{value}: {error}");
            }
        }
    }
}

/// `parameters` covers every configuration key of the stores in a file or on a server.
#[test]
fn cfg_1_no_key_of_a_store_is_left_out() {
    let table: Vec<_> = parameters().iter().map(|parameter| parameter.key).collect();
    for (key, _) in retryproof::config::keys() {
        let store = key.split('.').next().unwrap_or_default();
        if ["sqlite", "postgres", "mysql", "redis"].contains(&store) {
            assert!(table.contains(&key), "{key}");
        }
    }
}
