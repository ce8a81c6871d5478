// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PostgresConfig`]: which server, which table, how many connections.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use retryproof_core::config::{CONNECTION_BOUNDS, is_store_name};
use retryproof_core::{Error, ErrorKind, Result};
use sqlx_core::connection::ConnectOptions as _;
use sqlx_postgres::{PgConnectOptions, PgPool};

/// The default name of the table of records; its companion appends `_meta` to it.
pub(crate) const DEFAULT_TABLE: &str = "retryproof_records";

/// The parameters of a URL that the driver takes; others it would ignore.
const OF_THE_DRIVER: [&str; 17] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// What stands between the store and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pooler {
    /// Found out by [`PostgresStore::connect`](crate::PostgresStore::connect): it asks over two
    /// connections, several times each, which process of the server answers.
    #[default]
    Detect,
    /// Nothing, or a pooler that gives a client one connection for as long as it stays (pgbouncer's
    /// `session`).
    Session,
    /// A pooler that gives each transaction another connection (pgbouncer's `transaction`): nothing
    /// is prepared, and waiters poll.
    Transaction,
}

/// Where connections come from.
#[derive(Clone)]
pub(crate) enum Source {
    Options(Box<PgConnectOptions>),
    /// Asked anew for each connection, so that a password that the application renews in its pool
    /// is ours too.
    Pool(PgPool),
}

impl Source {
    /// For one connection. Statements are not logged: behind a pooler they hold keys (ID-4).
    pub(crate) fn options(&self) -> PgConnectOptions {
        let options = match self {
            Self::Options(options) => (**options).clone(),
            Self::Pool(pool) => (*pool.connect_options()).clone(),
        };
        let named = options.get_application_name().is_some();
        let options = options
            .disable_statement_logging()
            .statement_cache_capacity(64)
            // The one start-up parameter that poolers refuse; we read no floats.
            .extra_float_digits(None);
        if named { options } else { options.application_name("retryproof") }
    }
}

/// What a [`PostgresStore`](crate::PostgresStore) is connected with.
///
/// ```
/// use retryproof_postgres::PostgresConfig;
///
/// # fn main() -> retryproof_core::Result<()> {
/// let config = PostgresConfig::from_url("postgres://app@db.internal/shop?table=payment_records")?
///     .with_max_connections(20);
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresConfig {
    pub(crate) source: Source,
    pub(crate) table: String,
    pub(crate) connections: usize,
    pub(crate) timeout: Duration,
    pub(crate) pooler: Pooler,
    pub(crate) max_value: usize,
}

/// Half of what the server takes in one message: as hex digits a value is twice as long.
const MOST: usize = (1 << 29) - (64 << 10);

impl PostgresConfig {
    /// The defaults on a server and database.
    #[must_use]
    pub fn new(options: PgConnectOptions) -> Self {
        Self::of(Source::Options(Box::new(options)))
    }

    /// The server and database of the application's own `sqlx::PgPool`. The store opens connections
    /// of its own with the pool's settings, as they are at each time: actions that hold all
    /// connections of the application never keep the store waiting (RUN-2). What the pool does to a
    /// connection after it is opened (`after_connect`) is not done to the store's.
    #[must_use]
    pub fn from_pool(pool: &PgPool) -> Self {
        Self::of(Source::Pool(pool.clone()))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            table: DEFAULT_TABLE.to_owned(),
            connections: 10,
            timeout: Duration::from_secs(4),
            pooler: Pooler::default(),
            max_value: MOST,
        }
    }

    /// Reads the URL form of a store: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with the
    /// parameters of the driver (`sslmode`, `sslrootcert`, `host`, `application_name`, `options`,
    /// …) and those of the store: `table=NAME`, `max-connections=N`, `pooler=session|transaction`.
    /// What the URL leaves out comes from the environment (`PGHOST`, `PGUSER`, `PGPASSWORD`, …).
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for another scheme, an unknown parameter (named without its value), or
    /// a value out of bounds. The URL itself is in no message (ID-4).
    pub fn from_url(url: &str) -> Result<Self> {
        let refuse = |message: &'static str| Error::new(ErrorKind::Config, message);
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err(refuse(
                "the URL of a PostgreSQL store has the form `postgres://USER:PASSWORD@HOST:PORT/DATABASE`",
            ));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "table" | "max-connections" | "pooler" => ours.push((name, value)),
                _ if OF_THE_DRIVER.contains(&name) || name.starts_with("options[") => {
                    theirs.push(pair)
                }
                _ => {
                    return Err(refuse(
                        "unknown parameter in the URL of a PostgreSQL store; it takes `table`, \
                         `max-connections`, `pooler` and those of libpq",
                    )
                    .with("parameter", name));
                }
            }
        }
        let url = if theirs.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", theirs.join("&"))
        };
        let options =
            PgConnectOptions::from_str(&url).map_err(|error| crate::error::classify(&error))?;
        let mut config = Self::new(options);
        for (name, value) in ours {
            config = match (name, value, value.parse()) {
                ("table", ..) => config.with_table_name(value),
                ("max-connections", _, Ok(connections))
                    if CONNECTION_BOUNDS.contains(&connections) =>
                {
                    config.with_max_connections(connections)
                }
                ("pooler", "session", _) => config.with_pooler(Pooler::Session),
                ("pooler", "transaction", _) => config.with_pooler(Pooler::Transaction),
                _ => {
                    return Err(refuse(
                        "`max-connections` takes 2 to 10000, `pooler` takes `session` or `transaction`",
                    )
                    .with("parameter", name));
                }
            };
        }
        config.table()?;
        Ok(config)
    }

    /// Names the table of records. It must match `[A-Za-z_][A-Za-z0-9_]{0,47}` (STO-3), which is
    /// checked when it is connected or migrated. It is used as it is written, capitals included, in
    /// the first schema of the `search_path`. Default `retryproof_records`.
    #[must_use]
    pub fn with_table_name(mut self, name: impl Into<String>) -> Self {
        self.table = name.into();
        self
    }

    /// How many connections the store opens at most, 2 to 10,000. Of them 2, or 1 of 3, are kept
    /// for beats, completions and releases (RUN-2). Besides there are up to 2 for the wake-ups of
    /// waiters. Default 10.
    #[must_use]
    pub fn with_max_connections(mut self, connections: usize) -> Self {
        self.connections = connections.clamp(*CONNECTION_BOUNDS.start(), *CONNECTION_BOUNDS.end());
        self
    }

    /// How long a call may take, the wait for a free connection included. Default 4 s: below the
    /// engine's default `operation-timeout`, so that the message says what it waited for (STO-5).
    #[must_use]
    pub fn with_timeout(mut self, most: Duration) -> Self {
        self.timeout = most;
        self
    }

    /// What stands between the store and the server. Default [`Pooler::Detect`].
    #[must_use]
    pub fn with_pooler(mut self, pooler: Pooler) -> Self {
        self.pooler = pooler;
        self
    }

    /// The largest value in bytes that a completion may store (CMP-9). Default and upper bound: 512
    /// MiB less 64 KiB.
    #[must_use]
    pub fn with_max_value(mut self, bytes: usize) -> Self {
        self.max_value = bytes.min(MOST);
        self
    }

    /// The table's name, validated: the one dynamic part of the SQL (STO-3).
    pub(crate) fn table(&self) -> Result<&str> {
        valid(&self.table)
    }
}

pub(crate) fn valid(name: &str) -> Result<&str> {
    if is_store_name(name) {
        Ok(name)
    } else {
        Err(Error::new(ErrorKind::Config, "the table name must match [A-Za-z_][A-Za-z0-9_]{0,47}")
            .with("table", format_args!("{name:?}")))
    }
}

/// Host, port and database; neither user nor password (ID-4).
impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.source.options();
        f.debug_struct("PostgresConfig")
            .field("host", &options.get_host())
            .field("port", &options.get_port())
            .field("database", &options.get_database())
            .field("table", &self.table)
            .field("connections", &self.connections)
            .field("timeout", &self.timeout)
            .field("pooler", &self.pooler)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_3_table_names_are_validated() {
        for good in ["r", "_", "Records_2", &"r".repeat(48)] {
            assert!(valid(good).is_ok(), "{good}");
        }
        for bad in ["", "1r", "r-s", "r s", "r;", "r\"", "é", "a.b", &"r".repeat(49)] {
            assert!(valid(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cfg_1_url_form_names_server_table_and_pooler() {
        let config = PostgresConfig::from_url(
            "postgresql://u:canary-4711@h:1234/d?table=t&sslmode=disable&max-connections=3&pooler=transaction",
        )
        .unwrap();
        let options = config.source.options();
        assert_eq!(
            (options.get_host(), options.get_port(), options.get_database()),
            ("h", 1234, Some("d"))
        );
        assert_eq!(
            (config.table.as_str(), config.connections, config.pooler),
            ("t", 3, Pooler::Transaction)
        );
        let shown = format!("{config:?}");
        assert!(shown.contains("\"h\"") && !shown.contains("canary"), "{shown}");
    }

    #[test]
    fn cfg_1_bad_urls_are_refused_without_showing_them() {
        for bad in [
            "mysql://u:canary-4711@h/d",
            "postgres:h",
            "",
            "postgres://u:canary-4711@h:port/d",
            "postgres://u:canary-4711@h/d?table=1",
            "postgres://u:canary-4711@h/d?tabel=canary-4711",
            "postgres://u:canary-4711@h/d?pooler=canary-4711",
            "postgres://u:canary-4711@h/d?max-connections=0",
            "postgres://u:canary-4711@h/d?sslmode=canary-4711",
            "postgres://u:canary-4711@h/d?port=canary-4711",
        ] {
            let error = PostgresConfig::from_url(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            let mut shown = format!("{error} {error:?}");
            let mut source = std::error::Error::source(&error);
            while let Some(inner) = source {
                shown.push_str(&format!("{inner} {inner:?}"));
                source = inner.source();
            }
            assert!(!shown.contains("canary"), "{shown}");
        }
        let error = PostgresConfig::from_url("postgres://h/d?tabel=t").unwrap_err().to_string();
        assert!(error.contains("tabel"), "{error}");
        // Each parameter that the message names exists.
        for named in error.split('`').skip(1).step_by(2) {
            let url = format!("postgres://h/d?{named}=3");
            let unknown = PostgresConfig::from_url(&url)
                .is_err_and(|error| error.to_string().contains("unknown"));
            assert!(!unknown, "{named}");
        }
    }
}
