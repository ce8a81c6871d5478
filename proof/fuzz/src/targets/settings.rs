// SPDX-License-Identifier: MIT OR Apache-2.0
//! Store URLs and the configuration (CFG-1), with passwords that no text may show (ID-4).

use std::fmt::Debug;
use std::time::Duration;

use retryproof_core::{IdempotencyConfig, Result};
use retryproof_mysql::MysqlConfig;
use retryproof_postgres::PostgresConfig;
use retryproof_redis::RedisConfig;
use retryproof_sqlite::SqliteConfig;

use super::{about, kind, text};

/// The password in the corpora.
const PASSWORD: &str = "hunter2";

pub(super) fn url(input: &[u8]) -> u64 {
    let url = text(input);
    let scheme = url.split(':').next().unwrap_or_default();
    let (is_ok, shown) = match scheme {
        "postgres" | "postgresql" => shown(PostgresConfig::from_url(&url)),
        "mysql" | "mariadb" => shown(MysqlConfig::from_url(&url)),
        "sqlite" => shown(SqliteConfig::from_url(&url)),
        _ => shown(RedisConfig::from_url(&url)),
    };
    assert!(!is_secret(&url) || !shown.contains(PASSWORD), "{shown}");
    kind((is_ok, scheme.len(), shown.get(..48).map(str::to_owned).filter(|_| !is_ok)))
}

fn shown(config: Result<impl Debug>) -> (bool, String) {
    match config {
        Ok(config) => (true, format!("{config:?}")),
        Err(error) => (false, format!("{error} {error:?}")),
    }
}

/// Returns whether [`PASSWORD`] is part of the URL's password, and occurs nowhere else in the URL,
/// where an escape could also spell it.
fn is_secret(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let login = authority.rsplit_once('@').map_or("", |(login, _)| login);
    let password = login.split_once(':').map_or("", |(_, password)| password);
    let escapes = |text: &str| text.matches('%').count();
    password.contains(PASSWORD)
        && url.matches(PASSWORD).count() == 1
        && escapes(url) == escapes(password)
}

/// Checks how a configuration is read. The lines before `---` are the file, and the lines after it
/// are variables.
pub(super) fn configuration(input: &[u8]) -> u64 {
    let text = text(input);
    let (file, variables) = text.split_once("\n---\n").unwrap_or((&text, ""));
    let variables = variables.lines().filter_map(|line| line.split_once('='));
    let variables: Vec<_> =
        variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let read = || IdempotencyConfig::from_sources(Some(("app.toml", file)), variables.clone());
    match read() {
        Ok(config) => {
            let (ms, day) = (Duration::from_millis(1), Duration::from_secs(86_400));
            assert!((ms..=day * 3_650).contains(&config.default_ttl), "{config:?}");
            assert!((ms * 10..=day).contains(&config.default_lease), "{config:?}");
            assert!(config.default_wait_timeout <= day, "{config:?}");
            assert!((400..600).contains(&config.web.in_flight_status), "{config:?}");
            let shown = format!("{config:?}");
            assert!(!is_only_secret(&text) || !shown.contains(PASSWORD), "{shown}");
            let again = format!("{:?}", read().expect("the same text should be read again"));
            assert_eq!(shown, again);
            kind((true, about(shown.len()), variables.len()))
        }
        Err(error) => {
            let shown = format!("{error} {error:?}");
            assert!(!is_only_secret(&text) || !shown.contains(PASSWORD), "{shown}");
            kind((false, about(shown.len()), shown.matches(';').count()))
        }
    }
}

/// Returns whether the password occurs only as the value of a secret setting.
fn is_only_secret(text: &str) -> bool {
    let secret = |line: &&str| {
        let name = line.split('=').next().unwrap_or_default();
        matches!(
            name.trim(),
            "store" | "identity-secret" | "IDEMPOTENCY_STORE" | "IDEMPOTENCY_IDENTITY_SECRET"
        )
    };
    let lines = text.lines().filter(|line| line.contains(PASSWORD));
    let mut lines = lines.peekable();
    lines.peek().is_some() && lines.all(|line| secret(&line) && line.matches(PASSWORD).count() == 1)
}
