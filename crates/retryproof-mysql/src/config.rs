// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MysqlConfig`]: the server, the table and the number of connections.

use std::fmt;
use std::str::FromStr as _;
use std::time::Duration;

use retryproof_core::config::CONNECTION_BOUNDS;
use retryproof_core::{Error, ErrorKind, IdentitySecret, Result};
use retryproof_store_kit::table_name;
use sqlx_core::connection::ConnectOptions as _;
use sqlx_mysql::{MySqlConnectOptions, MySqlPool};

use crate::error::classify_at_connect;

/// The default name of the record table. The schema version is in a second table, whose name is
/// this name followed by `_meta`.
pub(crate) const DEFAULT_TABLE: &str = "retryproof_records";

/// Where the store gets the options of its connections.
#[derive(Clone)]
pub(crate) enum Source {
    Options(Box<MySqlConnectOptions>),
    /// The store reads the pool's options again for each new connection. If the application changes
    /// the password in the pool, new connections use the new password.
    Pool(MySqlPool),
}

impl Source {
    /// Returns the options for a new connection. These options stop the driver from sending its own
    /// settings when it connects. The store does not need those settings, because it binds no text
    /// and uses no time zone.
    pub(crate) fn options(&self) -> MySqlConnectOptions {
        let options = match self {
            Self::Options(options) => (**options).clone(),
            Self::Pool(pool) => (*pool.connect_options()).clone(),
        };
        options
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .timezone(None)
            .set_names(false)
            .disable_statement_logging()
    }
}

/// The configuration of a [`MysqlStore`](crate::MysqlStore).
///
/// ```
/// use retryproof_mysql::MysqlConfig;
///
/// # fn main() -> retryproof_core::Result<()> {
/// let config = MysqlConfig::from_url("mysql://payments:secret@db.internal:3306/payments?table=payment_records")?
///     .with_max_connections(32);
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MysqlConfig {
    pub(crate) source: Source,
    pub(crate) table: String,
    pub(crate) max_connections: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) max_value: Option<usize>,
    pub(crate) returning: Option<bool>,
    pub(crate) identity_secret: Option<IdentitySecret>,
}

impl MysqlConfig {
    /// Parses `mysql://USER:PASSWORD@HOST:PORT/DATABASE` (or `mariadb://…`). Special characters
    /// must be percent-encoded. Parameters follow a `?` and are joined by `&`:
    ///
    /// - `table=NAME`: like [`with_table_name`](Self::with_table_name);
    /// - `max-connections=N`: like [`with_max_connections`](Self::with_max_connections);
    /// - `ssl-mode=disabled|preferred|required|verify_ca|verify_identity`, `ssl-ca=FILE`,
    ///   `ssl-cert=FILE`, `ssl-key=FILE`: set up encryption. All modes except the first two need
    ///   the cargo feature `tls`; the default `preferred` encrypts if both sides support it;
    /// - `socket=PATH`: connects to a Unix socket instead of host and port.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for an unknown scheme, a malformed URL, a missing database or an
    /// unknown parameter. [`ErrorKind::Unsupported`] if encryption is required but the feature
    /// `tls` is off. No error shows the URL (ID-4).
    pub fn from_url(url: &str) -> Result<Self> {
        let refuse = |message: &'static str| Error::new(ErrorKind::Config, message);
        let rest =
            url.strip_prefix("mysql://").or_else(|| url.strip_prefix("mariadb://")).ok_or_else(|| {
                refuse("invalid URL for a MySQL store; expected `mysql://USER:PASSWORD@HOST:PORT/DATABASE`")
            })?;
        if rest.contains('#') {
            return Err(refuse(
                "the URL of a MySQL store contains a `#`; in a password, write it as `%23`",
            ));
        }
        let (server, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A bare `?` in a password would move the rest of the password into the query. An error
        // message could then quote that part (ID-4).
        if query.contains('@') {
            return Err(refuse(
                "the URL of a MySQL store has a misplaced `?` or `@`; in a password, write them as \
                 `%3F` and `%40`",
            ));
        }
        let (mut table, mut max_connections, mut driver_params) = (DEFAULT_TABLE, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "table" => table = value,
                "max-connections" => {
                    let number =
                        value.parse().ok().filter(|number| CONNECTION_BOUNDS.contains(number));
                    max_connections = Some(number.ok_or_else(|| {
                        refuse("`max-connections` of a MySQL store must be from 2 to 10000")
                    })?);
                }
                "ssl-mode" => {
                    check_encryption(value)?;
                    driver_params.push(pair);
                }
                "ssl-ca" | "ssl-cert" | "ssl-key" | "socket" => driver_params.push(pair),
                _ => {
                    return Err(refuse(
                        "unknown parameter in the URL of a MySQL store; it accepts `table`, \
                         `max-connections`, `ssl-mode`, `ssl-ca`, `ssl-cert`, `ssl-key` and \
                         `socket`",
                    )
                    .with("parameter", format_args!("{name:?}")));
                }
            }
        }
        // The driver's messages are fixed texts that quote no part of the URL.
        let options =
            MySqlConnectOptions::from_str(&format!("mysql://{server}?{}", driver_params.join("&")))
                .map_err(|error| classify_at_connect(error).error)?;
        if options.get_database().is_none_or(str::is_empty) {
            return Err(refuse(
                "the URL of a MySQL store names no database; write `…@HOST:PORT/DATABASE`",
            ));
        }
        let mut config = Self::of(Source::Options(Box::new(options))).with_table_name(table);
        if let Some(connections) = max_connections {
            config = config.with_max_connections(connections);
        }
        config.table()?;
        Ok(config)
    }

    /// Uses the server and database of the application's `sqlx::MySqlPool`. The store opens its own
    /// connections with the pool's current settings, so it is not delayed when actions hold all of
    /// the application's connections (RUN-2). The store does not run the pool's `after_connect`
    /// hook on its connections.
    #[must_use]
    pub fn from_pool(pool: &MySqlPool) -> Self {
        Self::of(Source::Pool(pool.clone()))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            table: DEFAULT_TABLE.to_owned(),
            max_connections: 16,
            connect_timeout: Duration::from_secs(3),
            call_timeout: Duration::from_secs(4),
            max_value: None,
            returning: None,
            identity_secret: None,
        }
    }

    /// Sets the name of the record table. The name must match `[A-Za-z_][A-Za-z0-9_]{0,47}`
    /// (STO-3), which `connect` and `migrate` check. The default is `retryproof_records`.
    #[must_use]
    pub fn with_table_name(mut self, name: impl Into<String>) -> Self {
        self.table = name.into();
        self
    }

    /// Sets how many connections the store may open, from 2 to 10,000. The store opens them on
    /// demand, and does not share them with the application. A quarter of them, and at least one,
    /// is reserved for the heartbeats, completions and releases of holders. Holders therefore keep
    /// their leases in a rush of new calls (RUN-2). The default is 16.
    #[must_use]
    pub fn with_max_connections(mut self, connections: usize) -> Self {
        self.max_connections =
            connections.clamp(*CONNECTION_BOUNDS.start(), *CONNECTION_BOUNDS.end());
        self
    }

    /// Sets how long opening a connection may take. A call stops waiting for a new connection at
    /// its own time limit. If the connection opens later, another call uses it. The default is 3 s.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a call may take, including the wait for a free connection. The default of 4 s
    /// is less than the engine's default `operation-timeout`, so the store ends a slow call first.
    /// The error then names what the call waited for (STO-5). If you raise the engine's
    /// `operation-timeout`, raise this limit too.
    #[must_use]
    pub fn with_call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Sets the maximum size, in bytes, of the value that a completion stores (CMP-9). The default,
    /// which is also the upper bound, is 4 KiB less than the `max_allowed_packet` that the server
    /// reports when the store connects.
    #[must_use]
    pub fn with_max_value(mut self, bytes: usize) -> Self {
        self.max_value = Some(bytes);
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

    /// Sets whether an acquire reads the row with `RETURNING`. By default, an acquire does so if
    /// the server supports `RETURNING` (MariaDB 10.5 and later). Tests turn this off to cover
    /// acquires without `RETURNING`. Without `RETURNING`, an acquire of a key in use costs a second
    /// round trip.
    #[doc(hidden)]
    #[must_use]
    pub fn with_returning(mut self, returning: bool) -> Self {
        self.returning = Some(returning);
        self
    }

    /// Returns how many of the connections are reserved for holders.
    pub(crate) fn reserved(&self) -> usize {
        (self.max_connections / 4).max(1)
    }

    /// Returns the table name if it is valid. The name is the only dynamic part of the SQL (STO-3).
    pub(crate) fn table(&self) -> Result<&str> {
        table_name(&self.table)
    }
}

fn check_encryption(mode: &str) -> Result<()> {
    match mode.to_ascii_lowercase().as_str() {
        "disabled" | "preferred" => Ok(()),
        "required" | "verify_ca" | "verify_identity" if cfg!(feature = "tls") => Ok(()),
        "required" | "verify_ca" | "verify_identity" => Err(Error::new(
            ErrorKind::Unsupported,
            "this build of retryproof-mysql has no TLS; enable its cargo feature `tls`",
        )),
        _ => Err(Error::new(
            ErrorKind::Config,
            "`ssl-mode` must be one of disabled, preferred, required, verify_ca, verify_identity",
        )),
    }
}

/// Omits the user, the password and the certificates (ID-4).
impl fmt::Debug for MysqlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.source.options();
        f.debug_struct("MysqlConfig")
            .field("host", &options.get_host())
            .field("port", &options.get_port())
            .field("database", &options.get_database())
            .field("table", &self.table)
            .field("max_connections", &self.max_connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("call_timeout", &self.call_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "mysql://user:geheim@localhost:3307/db";

    #[test]
    fn cfg_1_url_form_names_server_table_and_connections() {
        let config = MysqlConfig::from_url(&format!("{GOOD}?table=t&max-connections=8")).unwrap();
        assert_eq!((config.table.as_str(), config.max_connections, config.reserved()), ("t", 8, 2));
        let options = config.source.options();
        assert_eq!((options.get_host(), options.get_port()), ("localhost", 3307));
        assert_eq!(options.get_database(), Some("db"));
        assert!(
            MysqlConfig::from_url("mariadb://u@h/d?socket=/run/x.sock&ssl-mode=disabled").is_ok()
        );
        let kind = |url: &str| MysqlConfig::from_url(url).unwrap_err().kind();
        for bad in [
            "localhost/db",
            "postgres://u@h/d",
            "mysql://",
            "mysql://user:geheim@localhost",
            "mysql://user:geheim@localhost/",
            "mysql://user:geheim@localhost:port/db",
            "mysql://user:ge#heim@localhost/db",
            "mysql://user:geheim@localhost/db?tabel=t",
            "mysql://user:geheim@localhost/db?table=1",
            "mysql://user:geheim@localhost/db?table=a%60",
            "mysql://user:geheim@localhost/db?max-connections=1",
            "mysql://user:geheim@localhost/db?max-connections=x",
            "mysql://user:geheim@localhost/db?ssl-mode=maybe",
            "mysql://user:geheim@localhost/db?timezone=UTC",
        ] {
            assert_eq!(kind(bad), ErrorKind::Config, "{bad}");
        }
        if !cfg!(feature = "tls") {
            assert_eq!(kind(&format!("{GOOD}?ssl-mode=VERIFY_CA")), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn id_4_neither_debug_nor_errors_show_the_password() {
        assert!(!format!("{:?}", MysqlConfig::from_url(GOOD).unwrap()).contains("geheim"));
        for bad in [
            "mysql://u:geheim@h:x/d",
            "mysql://u:geheim@h",
            "mysql://u:geheim@h/d?x=geheim",
            "mysql://u:ge#geheim@h/d",
            "mysql://u:ge?geheim@h/d",
            "mysql://u:ge/geheim@h/d",
            "mysql://u:geheim%ff@h/d",
            "mysql:/u:geheim@h/d",
        ] {
            let error = MysqlConfig::from_url(bad).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(!text.contains("geheim"), "{text}");
        }
    }
}
