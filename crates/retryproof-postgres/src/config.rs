// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PostgresConfig`]: the server, the table and the number of connections.

mod dialect;
pub(crate) mod hosts;

use std::fmt;
use std::time::Duration;

use retryproof_core::config::{CONNECTION_BOUNDS, PARTITION_BOUNDS, Pooler, SqlDialect};
use retryproof_core::{Error, ErrorKind, IdentitySecret, Result};
use retryproof_store_kit::table_name;
use sqlx_core::connection::ConnectOptions as _;
use sqlx_postgres::{PgConnectOptions, PgPool};

/// The default name of the record table. The table that holds the schema version has the same name
/// with `_meta` appended.
pub(crate) const DEFAULT_TABLE: &str = "retryproof_records";

/// The URL parameters that the driver supports. The driver would ignore any other parameter.
const DRIVER_PARAMETERS: [&str; 17] = [
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

/// Where the store gets the options of its connections.
#[derive(Clone)]
pub(crate) enum Source {
    /// The options of each host.
    Hosts(Vec<PgConnectOptions>),
    /// The store reads the pool's options again for each new connection, so a password that the
    /// application changes in the pool takes effect.
    Pool(PgPool),
}

impl Source {
    /// Returns the number of hosts.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Hosts(hosts) => hosts.len(),
            Self::Pool(_) => 1,
        }
    }

    /// Returns the options for a new connection to a host, by its number. The options keep the
    /// driver from logging statements: behind a pooler, the statements contain keys (ID-4).
    pub(crate) fn options(&self, host: usize) -> PgConnectOptions {
        let options = match self {
            Self::Hosts(hosts) => hosts.get(host).cloned().unwrap_or_default(),
            Self::Pool(pool) => (*pool.connect_options()).clone(),
        };
        let named = options.get_application_name().is_some();
        let options = options
            .disable_statement_logging()
            .statement_cache_capacity(64)
            // Do not send this start-up parameter, because some poolers refuse it. The store reads
            // no floats, so it does not need the parameter.
            .extra_float_digits(None);
        if named { options } else { options.application_name("retryproof") }
    }

    /// Returns the address of each host, without user and password (ID-4).
    pub(crate) fn nodes(&self) -> Vec<String> {
        (0..self.count()).map(|host| hosts::node(&self.options(host))).collect()
    }
}

/// The server, table and limits of a [`PostgresStore`](crate::PostgresStore).
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
    pub(crate) connect_timeout: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) pooler: Pooler,
    pub(crate) dialect: SqlDialect,
    pub(crate) partitions: Option<usize>,
    pub(crate) max_value: usize,
    pub(crate) identity_secret: Option<IdentitySecret>,
}

/// The largest size of a value, in bytes. Hex digits double the length of a value, so this is half
/// of the server's limit for one message, minus 64 KiB for the rest of the message.
const MAX_VALUE: usize = (1 << 29) - (64 << 10);

impl PostgresConfig {
    /// Creates the default configuration for the server and database in `options`.
    #[must_use]
    pub fn new(options: PgConnectOptions) -> Self {
        Self::of(Source::Hosts(vec![options]))
    }

    /// Creates the default configuration for several hosts, of which one is the primary and the
    /// others are its standbys. The store finds out which host is the primary, and follows a
    /// failover (STO-7).
    ///
    /// ```
    /// use retryproof_postgres::{PgConnectOptions, PostgresConfig};
    ///
    /// # fn main() -> retryproof_core::Result<()> {
    /// let options = PgConnectOptions::new_without_pgpass().database("shop");
    /// let hosts = ["db1.internal", "db2.internal"].map(|host| options.clone().host(host));
    /// let config = PostgresConfig::from_hosts(hosts)?;
    /// # let _ = config;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if there is no host.
    pub fn from_hosts(hosts: impl IntoIterator<Item = PgConnectOptions>) -> Result<Self> {
        let hosts: Vec<_> = hosts.into_iter().collect();
        if hosts.is_empty() {
            return Err(Error::new(
                ErrorKind::Config,
                "the configuration of a PostgreSQL store needs at least one host",
            ));
        }
        Ok(Self::of(Source::Hosts(hosts)))
    }

    /// Uses the server and database of the application's `sqlx::PgPool`. The store opens separate
    /// connections with the pool's current settings. Actions that hold all of the application's
    /// connections therefore never delay the store (RUN-2). The store does not run the pool's
    /// `after_connect` on its own connections.
    #[must_use]
    pub fn from_pool(pool: &PgPool) -> Self {
        Self::of(Source::Pool(pool.clone()))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            table: DEFAULT_TABLE.to_owned(),
            connections: 10,
            connect_timeout: Duration::from_secs(4),
            call_timeout: Duration::from_secs(4),
            pooler: Pooler::default(),
            dialect: SqlDialect::default(),
            partitions: None,
            max_value: MAX_VALUE,
            identity_secret: None,
        }
    }

    /// Reads the configuration from a URL: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with the
    /// driver's parameters (`sslmode`, `sslrootcert`, `host`, `application_name`, `options`, …) and
    /// the store's: `table=NAME`, `max-connections=N`, `pooler=session|transaction`,
    /// `dialect=postgres|plain`, `partitions=N`. Settings that the URL omits come from the
    /// environment (`PGHOST`, `PGUSER`, `PGPASSWORD`, …).
    ///
    /// A URL with several hosts, `postgres://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE`, names a
    /// primary and its standbys in any order (STO-7). The parameter `port` is then the port of the
    /// hosts that name none. `target_session_attrs` may be `read-write` or `primary`, which changes
    /// nothing: the store never uses a standby.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a different URL scheme, an unknown parameter (the message names
    /// the parameter, but not its value), or a value out of range. No message contains the URL
    /// (ID-4).
    pub fn from_url(url: &str) -> Result<Self> {
        let refuse = |message: &'static str| Error::new(ErrorKind::Config, message);
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err(refuse(
                "invalid URL for a PostgreSQL store; expected \
                 `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, or several hosts: \
                 `postgres://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE`",
            ));
        }
        hosts::check_login(url)?;
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "table"
                | "max-connections"
                | "pooler"
                | "dialect"
                | "partitions"
                | "target_session_attrs" => ours.push((name, value)),
                _ if DRIVER_PARAMETERS.contains(&name) || name.starts_with("options[") => {
                    theirs.push(pair)
                }
                _ => {
                    return Err(refuse(
                        "unknown parameter in the URL of a PostgreSQL store; it accepts `table`, \
                         `max-connections`, `pooler`, `dialect`, `partitions` and those of libpq",
                    )
                    .with("parameter", name));
                }
            }
        }
        let mut config = Self::of(Source::Hosts(hosts::parse(base, theirs)?));
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
                ("dialect", "postgres", _) => config.with_dialect(SqlDialect::Postgres),
                ("dialect", "plain", _) => config.with_dialect(SqlDialect::Plain),
                ("partitions", _, Ok(partitions)) if PARTITION_BOUNDS.contains(&partitions) => {
                    config.with_partitions(partitions)
                }
                ("target_session_attrs", "read-write" | "primary", _) => config,
                _ => {
                    return Err(refuse(
                        "`max-connections` must be from 2 to 10000; `pooler` must be `session` or \
                         `transaction`; `dialect` must be `postgres` or `plain`; `partitions` must \
                         be from 2 to 128; `target_session_attrs` must be `read-write` or `primary`",
                    )
                    .with("parameter", name));
                }
            };
        }
        config.table()?;
        Ok(config)
    }

    /// Sets the name of the record table. The name must match `[A-Za-z_][A-Za-z0-9_]{0,47}`
    /// (STO-3), which `connect` and `migrate` check. The name is case-sensitive, and refers to a
    /// table in the first schema of the `search_path`. Default `retryproof_records`.
    #[must_use]
    pub fn with_table_name(mut self, name: impl Into<String>) -> Self {
        self.table = name.into();
        self
    }

    /// Sets how many connections the store may open, from 2 to 10,000. Of these, 2 (or 1 if the
    /// limit is 2 or 3) are reserved for heartbeats, completions and releases (RUN-2). The store
    /// opens up to 2 further connections to wake waiters. Default 10.
    #[must_use]
    pub fn with_max_connections(mut self, connections: usize) -> Self {
        self.connections = connections.clamp(*CONNECTION_BOUNDS.start(), *CONNECTION_BOUNDS.end());
        self
    }

    /// Sets the time limit for a call, including the wait for a free connection. Default 4 s. The
    /// default is below the engine's default `operation-timeout`, so the store ends a slow call
    /// first, with an error that names what the call waited for (STO-5). If you raise the engine's
    /// `operation-timeout`, raise this limit too.
    #[must_use]
    pub fn with_call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Sets the time limit for opening a connection. The call that needs the connection waits no
    /// longer than its own time limit. Default 4 s.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets whether the store connects to the server through a pooler. Default [`Pooler::Detect`].
    #[must_use]
    pub fn with_pooler(mut self, pooler: Pooler) -> Self {
        self.pooler = pooler;
        self
    }

    /// Sets the maximum size, in bytes, of the value that a completion stores (CMP-9). Default and
    /// upper bound: 512 MiB minus 64 KiB.
    #[must_use]
    pub fn with_max_value(mut self, bytes: usize) -> Self {
        self.max_value = bytes.min(MAX_VALUE);
        self
    }

    /// Stores a digest of each key, computed with this secret, in place of the key (ID-5).
    /// `migrate` fixes the secret when it creates the tables, and `connect` refuses any other
    /// secret. By default, there is no secret, and the tables contain the keys themselves.
    #[must_use]
    pub fn with_identity_secret(mut self, secret: IdentitySecret) -> Self {
        self.identity_secret = Some(secret);
        self
    }

    /// Checks the options, and returns the table name, the only dynamic part of the SQL (STO-3).
    pub(crate) fn table(&self) -> Result<&str> {
        self.check_dialect()?;
        table_name(&self.table)
    }
}

/// Prints hosts, ports and database, but never user or password (ID-4).
impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("hosts", &self.source.nodes())
            .field("database", &self.source.options(0).get_database())
            .field("table", &self.table)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("call_timeout", &self.call_timeout)
            .field("pooler", &self.pooler)
            .field("dialect", &self.dialect)
            .field("partitions", &self.partitions)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cfg_1_url_form_names_server_table_and_pooler() {
        let config = PostgresConfig::from_url(
            "postgresql://u:canary-4711@h:1234/d?table=t&sslmode=disable&max-connections=3&pooler=transaction",
        )
        .unwrap();
        let options = config.source.options(0);
        assert_eq!(
            (options.get_host(), options.get_port(), options.get_database()),
            ("h", 1234, Some("d"))
        );
        assert_eq!(
            (config.table.as_str(), config.connections, config.pooler),
            ("t", 3, Pooler::Transaction)
        );
        let shown = format!("{config:?}");
        assert!(shown.contains("\"h:1234\"") && !shown.contains("canary"), "{shown}");
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
            "postgres://u:canary-4711@h/d?partitions=1",
            "postgres://u:canary-4711@h/d?partitions=canary-4711",
            "postgres://u:canary-4711@h/d?sslmode=canary-4711",
            "postgres://u:canary-4711@h/d?port=canary-4711",
            "postgres://u:canary-4711@h,i/d?target_session_attrs=any",
            "postgres://u:ge?canary-4711@h/d",
            "postgres://u:ge?table=canary-4711@h/d",
            "postgres://u:12/canary-4711@h/d",
            "postgres://u:12#canary-4711@h/d",
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
        // Every parameter that the message names is accepted.
        for named in error.split('`').skip(1).step_by(2) {
            let url = format!("postgres://h/d?{named}=3");
            let unknown = PostgresConfig::from_url(&url)
                .is_err_and(|error| error.to_string().contains("unknown"));
            assert!(!unknown, "{named}");
        }
    }
}
