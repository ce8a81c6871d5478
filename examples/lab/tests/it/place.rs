// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a test keeps its records: in a separate file, table or prefix, in the store that
//! `RETRYPROOF_LAB_STORE` names.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::Connection as _;
use sqlx::Executor as _;

/// The values of `RETRYPROOF_LAB_STORE` besides `memory` and `sqlite`. `cargo xtask services`
/// starts a service for each, except for `plain`, the plain dialect on the service `postgres`.
pub(crate) const SERVICES: [&str; 8] =
    ["postgres", "pgbouncer", "standby", "plain", "mariadb", "redis", "sentinel", "cluster"];

/// Returns the store that the suite runs on.
pub(crate) fn chosen() -> String {
    match std::env::var("RETRYPROOF_LAB_STORE") {
        Ok(name) if SERVICES.contains(&&*name) || ["memory", "sqlite"].contains(&&*name) => name,
        Ok(name) => {
            panic!(
                "RETRYPROOF_LAB_STORE={name}: expected `memory`, `sqlite` or one of {SERVICES:?}"
            )
        }
        Err(_) => "memory".to_owned(),
    }
}

/// Returns a variable of `cargo xtask services`, from the environment or from the file that this
/// command wrote.
pub(crate) fn variable(service: &str, suffix: &str) -> String {
    let name = format!("RETRYPROOF_TEST_{}{suffix}", service.to_uppercase());
    let written = || {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/services/env");
        let text = std::fs::read_to_string(file).ok()?;
        text.lines().find_map(|line| Some(line.strip_prefix(&name)?.strip_prefix('=')?.to_owned()))
    };
    let value = std::env::var(&name).ok().filter(|value| !value.is_empty()).or_else(written);
    value.unwrap_or_else(|| {
        panic!("no {service} for this test: run `cargo xtask services up {service}`")
    })
}

/// Returns the URL of a service.
pub(crate) fn url(service: &str) -> String {
    match service {
        "plain" => with(&variable("postgres", ""), "dialect=plain"),
        service => variable(service, ""),
    }
}

/// Returns the URL by which a driver of PostgreSQL reaches the service: without the store's
/// parameters, and with the first host only, which starts as the primary.
fn bare_url(service: &str) -> String {
    let url = variable(if service == "plain" { "postgres" } else { service }, "");
    match (url.split_once(','), url.rsplit_once('/')) {
        (Some((first, _)), Some((_, database))) => format!("{first}/{database}"),
        _ => url,
    }
}

/// Returns `url` with one more parameter.
pub(crate) fn with(url: &str, parameter: &str) -> String {
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}{parameter}")
}

/// Returns a name that no other test uses, in this run or another.
fn own_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    // The process id alone is not unique: ids are reused, and tables of a killed run may still
    // exist.
    let random: String = retryproof::OwnerId::new()
        .as_bytes()
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("lab_{}_{number}_{random}", std::process::id())
}

/// A store for one test; its tables on a server are dropped with it.
pub(crate) struct Place {
    pub(crate) url: String,
    rest: Rest,
}

enum Rest {
    Nothing,
    Folder { _folder: Folder },
    Postgres { server: String, table: String },
    Mysql { server: String, table: String },
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::on(&chosen())
    }

    /// Creates a store that processes can share: SQLite instead of memory.
    pub(crate) fn shared() -> Self {
        match &*chosen() {
            "memory" => Self::on("sqlite"),
            other => Self::on(other),
        }
    }

    pub(crate) fn on(store: &str) -> Self {
        match store {
            "memory" => Self { url: "memory:".to_owned(), rest: Rest::Nothing },
            "sqlite" => {
                let folder = Folder::new();
                let url = format!("sqlite:{}", folder.path().join("records.db").display());
                Self { url, rest: Rest::Folder { _folder: folder } }
            }
            service => Self::at(service, &url(service)),
        }
    }

    /// Creates a store on a service that is reached through another URL.
    pub(crate) fn at(service: &str, by: &str) -> Self {
        let (server, name) = (bare_url(service), own_name());
        match service {
            "postgres" | "pgbouncer" | "standby" | "plain" => Self {
                url: with(by, &format!("table={name}")),
                rest: Rest::Postgres { server, table: name },
            },
            "mariadb" => Self {
                url: with(by, &format!("table={name}")),
                rest: Rest::Mysql { server, table: name },
            },
            // Do not delete the records of a prefix in Redis: finding them would scan the keys of
            // everyone who uses the server. The records expire by themselves.
            _ => Self { url: with(by, &format!("prefix={name}")), rest: Rest::Nothing },
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let rest = std::mem::replace(&mut self.rest, Rest::Nothing);
        if matches!(rest, Rest::Nothing | Rest::Folder { .. }) {
            return;
        }
        // Use a separate thread with its own runtime, because `drop` may run inside a runtime.
        let swept = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(rest.sweep());
        });
        if swept.join().is_err() && !std::thread::panicking() {
            panic!("the test left something behind");
        }
    }
}

impl Rest {
    async fn sweep(self) {
        match self {
            Self::Nothing | Self::Folder { .. } => {}
            Self::Postgres { server, table } => {
                let options = sqlx_postgres::PgConnectOptions::from_str(&server).expect("a URL");
                // Do not send this start-up parameter, because poolers refuse it.
                let options = options.extra_float_digits(None);
                let mut conn =
                    sqlx_postgres::PgConnection::connect_with(&options).await.expect("the server");
                let sql = format!(
                    "DROP TABLE IF EXISTS \"{table}\", \"{table}_meta\", \"{table}_audit\"; \
                     DROP FUNCTION IF EXISTS \"{table}_grant_1\", \"{table}_complete_1\""
                );
                let sql = sqlx_core::raw_sql::raw_sql(sqlx_core::sql_str::AssertSqlSafe(sql));
                conn.execute(sql).await.expect("the tables are dropped");
            }
            Self::Mysql { server, table } => {
                let mut conn =
                    sqlx::mysql::MySqlConnection::connect(&server).await.expect("the server");
                let sql =
                    format!("DROP TABLE IF EXISTS `{table}`, `{table}_meta`, `{table}_audit`");
                conn.execute(sqlx::AssertSqlSafe(sql)).await.expect("the tables are dropped");
            }
        }
    }
}

/// A new folder, which is removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("retryproof-{}", own_name()));
        std::fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
