// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stores that cannot be used at the start, named without their passwords (ID-4): exit code 1 and
//! one line if the store refuses, exit code 2 and the usage if the URL is wrong.

use crate::place::{url, variable, with};
use crate::server::refusal;

const SECRET: &str = "canary-4711";

/// Expects exit code 1 and one line, which contains all of `says`.
async fn refused(store: &str, says: &[&str]) {
    let said = refused_with(1, store, says).await;
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// Expects exit code 2, a line that contains all of `says`, and the usage.
async fn misused(store: &str, says: &[&str]) {
    let said = refused_with(2, store, says).await;
    assert!(said.lines().nth(1).is_some_and(|line| line.starts_with("usage: lab")), "{said}");
}

async fn refused_with(exit: i32, store: &str, says: &[&str]) -> String {
    let (code, said) = refusal(&["--store", store], &[("RUST_LOG", "error")]).await;
    let shown = store.replace(SECRET, "***");
    assert_eq!(code, Some(exit), "{shown}: {said}");
    assert!(!said.contains(SECRET) && !said.contains("-secret"), "ID-4: {said}");
    let scheme = store.split(':').next().unwrap_or_default();
    assert!(said.starts_with("lab: ") && said.contains(scheme), "{said}");
    for part in says {
        assert!(said.contains(part), "{shown}: {said}");
    }
    said
}

/// Returns `url` with this login.
fn login(url: &str, login: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    format!("{scheme}://{login}@{place}")
}

/// Returns `url` with this database.
fn database(url: &str, name: &str) -> String {
    let (server, _) = url.rsplit_once('/').expect("a database");
    format!("{server}/{name}")
}

#[tokio::test]
async fn sto_1_a_server_that_is_not_there_is_named_without_its_password() {
    for store in [
        format!("postgres://app:{SECRET}@127.0.0.1:1/app"),
        format!("mysql://app:{SECRET}@127.0.0.1:1/app"),
        format!("redis://app:{SECRET}@127.0.0.1:1"),
        format!("redis+sentinel://app:{SECRET}@127.0.0.1:1,127.0.0.1:2/main"),
        format!("redis+cluster://app:{SECRET}@127.0.0.1:2,127.0.0.1:1"),
    ] {
        refused(&store, &["127.0.0.1:1", "unavailable"]).await;
    }
}

#[tokio::test]
async fn id_4_a_wrong_password_is_refused_and_not_shown() {
    let wrong = format!("app:{SECRET}");
    refused(&login(&variable("postgres", "_PASSWORD"), &wrong), &["password"]).await;
    refused(&login(&variable("mariadb", "_PASSWORD"), &wrong), &["password"]).await;
    refused(&login(&url("redis"), &wrong), &["password"]).await;
    refused(&login(&url("sentinel"), &wrong), &["password"]).await;
    refused(&login(&url("cluster"), &wrong), &["password"]).await;
}

#[tokio::test]
async fn sto_1_a_missing_database_is_said() {
    let missing = "retryproof_no_such_database";
    refused(&database(&url("postgres"), missing), &["database"]).await;
    refused(&database(&url("pgbouncer"), missing), &["database"]).await;
    refused(&database(&url("mariadb"), missing), &["database"]).await;
    refused(&format!("{}/9999", url("redis")), &["database"]).await;
}

#[tokio::test]
async fn cfg_1_a_url_that_is_none_is_refused_by_the_part_that_is_wrong() {
    let own = format!("app:{SECRET}@127.0.0.1");
    misused(&format!("postgres://{own}:1/app?tabel={SECRET}"), &["tabel"]).await;
    misused(&format!("mysql://{own}:1/app?tabel={SECRET}"), &["tabel"]).await;
    misused(&format!("redis://{own}:1?perfix={SECRET}"), &["perfix"]).await;
    misused(&format!("mysql://{own}:1"), &["database"]).await;
    misused(&format!("redis+sentinel://{own}:1"), &["service"]).await;
    for scheme in ["postgres", "mysql", "redis"] {
        misused(&format!("{scheme}://{own}:port/1"), &["invalid configuration"]).await;
    }
    misused(&with(&url("redis"), "prefix=a-b"), &["prefix"]).await;
    misused("nosuch:", &["`nosuch`", "postgres://"]).await;
    misused("nosuch", &["sqlite:"]).await;
}
