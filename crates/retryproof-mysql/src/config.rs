// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MysqlConfig`]: which server, which table, how many connections.

use std::fmt;
use std::str::FromStr as _;
use std::time::Duration;

use retryproof_core::config::{CONNECTION_BOUNDS, is_store_name};
use retryproof_core::{Error, ErrorKind, Result};
use sqlx_core::connection::ConnectOptions as _;
use sqlx_mysql::MySqlConnectOptions;

use crate::error::classify;

/// The default name of the table of records; that of the version appends `_meta` to it.
pub(crate) const DEFAULT_TABLE: &str = "retryproof_records";

/// What a [`MysqlStore`](crate::MysqlStore) is connected with.
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
    pub(crate) options: MySqlConnectOptions,
    pub(crate) table: String,
    pub(crate) connections: usize,
    pub(crate) patience: Duration,
    pub(crate) statement_timeout: Duration,
    pub(crate) returning: Option<bool>,
}

impl MysqlConfig {
    /// Reads `mysql://USER:PASSWORD@HOST:PORT/DATABASE` (or `mariadb://…`). Special characters in
    /// it are percent-encoded. Behind a `?` may follow, joined by `&`:
    ///
    /// - `table=NAME`: [`with_table_name`](Self::with_table_name);
    /// - `max-connections=N`: [`with_max_connections`](Self::with_max_connections);
    /// - `ssl-mode=disabled|preferred|required|verify_ca|verify_identity`, `ssl-ca=FILE`,
    ///   `ssl-cert=FILE`, `ssl-key=FILE`: encryption. All but the first two modes need the cargo
    ///   feature `tls`; the default `preferred` encrypts where both sides can;
    /// - `socket=PATH`: a Unix socket instead of host and port.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for another scheme, a malformed URL, no database, or an unknown
    /// parameter; [`ErrorKind::Unsupported`] for encryption without the feature. No error shows the
    /// URL (ID-4).
    pub fn from_url(url: &str) -> Result<Self> {
        let refuse = |message: &'static str| Error::new(ErrorKind::Config, message);
        let rest =
            url.strip_prefix("mysql://").or_else(|| url.strip_prefix("mariadb://")).ok_or_else(|| {
                refuse("the URL of a MySQL store has the form `mysql://USER:PASSWORD@HOST:PORT/DATABASE`")
            })?;
        if rest.contains('#') {
            return Err(refuse(
                "the URL of a MySQL store has a `#`; in a password it is written `%23`",
            ));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password with a bare `?` ends up in the query, which a message may quote (ID-4).
        if query.contains('@') {
            return Err(refuse(
                "the URL of a MySQL store has a `?` or an `@` out of place; in a password they \
                 are `%3F` and `%40`",
            ));
        }
        let (mut table, mut connections, mut driver) = (DEFAULT_TABLE, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "table" => table = value,
                "max-connections" => {
                    let number =
                        value.parse().ok().filter(|number| CONNECTION_BOUNDS.contains(number));
                    connections = Some(number.ok_or_else(|| {
                        refuse("`max-connections` of a MySQL store takes a number from 2 to 10000")
                    })?);
                }
                "ssl-mode" => {
                    check_encryption(value)?;
                    driver.push(pair);
                }
                "ssl-ca" | "ssl-cert" | "ssl-key" | "socket" => driver.push(pair),
                _ => {
                    return Err(refuse(
                        "the URL of a MySQL store takes the parameters `table`, \
                         `max-connections`, `ssl-mode`, `ssl-ca`, `ssl-cert`, `ssl-key` and \
                         `socket`",
                    )
                    .with("parameter", format_args!("{name:?}")));
                }
            }
        }
        // The driver's reasons are fixed texts: they quote nothing of the URL.
        let options =
            MySqlConnectOptions::from_str(&format!("mysql://{place}?{}", driver.join("&")))
                .map_err(|error| classify(error).error)?;
        if options.get_database().is_none_or(str::is_empty) {
            return Err(refuse(
                "the URL of a MySQL store names no database; write `…@HOST:PORT/DATABASE`",
            ));
        }
        // What the driver would set at connect is not needed: only bytes and integers travel, and
        // no time zone matters.
        let options = options
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .timezone(None)
            .set_names(false)
            .disable_statement_logging();
        let config = Self {
            options,
            table: table.to_owned(),
            connections: connections.unwrap_or(16),
            patience: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(10),
            returning: None,
        };
        config.table()?;
        Ok(config)
    }

    /// Names the table of records. It must match `[A-Za-z_][A-Za-z0-9_]{0,47}` (STO-3), which is
    /// checked when the store is connected or migrated. Default `retryproof_records`.
    #[must_use]
    pub fn with_table_name(mut self, name: impl Into<String>) -> Self {
        self.table = name.into();
        self
    }

    /// How many connections the store opens at most, 2 to 10,000; they are its own, and opened when
    /// they are needed. A quarter of them, at least one, serves running holders alone (beats,
    /// completions, releases), so that a rush of new calls ends no lease (RUN-2). Default 16.
    #[must_use]
    pub fn with_max_connections(mut self, connections: usize) -> Self {
        self.connections = connections.clamp(*CONNECTION_BOUNDS.start(), *CONNECTION_BOUNDS.end());
        self
    }

    /// How long a call waits for a free connection, and for a new one to open, each. Default 3 s.
    #[must_use]
    pub fn with_connect_timeout(mut self, most: Duration) -> Self {
        self.patience = most;
        self
    }

    /// How long a statement may take before its connection is thrown away. The engine's
    /// `operation-timeout` (5 s) is normally over before; this bounds what goes on behind it.
    /// Default 10 s.
    #[must_use]
    pub fn with_statement_timeout(mut self, most: Duration) -> Self {
        self.statement_timeout = most;
        self
    }

    /// Whether an acquire asks for the row by `RETURNING`. Default: where the server has it
    /// (MariaDB 10.5). Without it an acquire that finds the key in use, or its result, costs a
    /// second trip; for tests of that path.
    #[doc(hidden)]
    #[must_use]
    pub fn with_returning(mut self, returning: bool) -> Self {
        self.returning = Some(returning);
        self
    }

    /// How many of the connections are for holders alone.
    pub(crate) fn reserved(&self) -> usize {
        (self.connections / 4).max(1)
    }

    /// The table's name, validated: the one dynamic part of the SQL (STO-3).
    pub(crate) fn table(&self) -> Result<&str> {
        valid_table(&self.table)
    }
}

/// `name`, if it may name a table.
pub(crate) fn valid_table(name: &str) -> Result<&str> {
    if is_store_name(name) {
        Ok(name)
    } else {
        Err(Error::new(ErrorKind::Config, "the table name must match [A-Za-z_][A-Za-z0-9_]{0,47}")
            .with("table", format_args!("{name:?}")))
    }
}

fn check_encryption(mode: &str) -> Result<()> {
    match mode.to_ascii_lowercase().as_str() {
        "disabled" | "preferred" => Ok(()),
        "required" | "verify_ca" | "verify_identity" if cfg!(feature = "tls") => Ok(()),
        "required" | "verify_ca" | "verify_identity" => Err(Error::new(
            ErrorKind::Unsupported,
            "this build of retryproof-mysql cannot encrypt; switch on its cargo feature `tls`",
        )),
        _ => Err(Error::new(
            ErrorKind::Config,
            "`ssl-mode` is one of disabled, preferred, required, verify_ca, verify_identity",
        )),
    }
}

/// Without user, password and certificates (ID-4).
impl fmt::Debug for MysqlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlConfig")
            .field("host", &self.options.get_host())
            .field("port", &self.options.get_port())
            .field("database", &self.options.get_database())
            .field("table", &self.table)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.patience)
            .field("statement_timeout", &self.statement_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "mysql://user:geheim@localhost:3307/db";

    #[test]
    fn sto_3_table_names_are_validated() {
        for good in ["r", "_", "Records_2", "select", &"r".repeat(48)] {
            assert!(valid_table(good).is_ok(), "{good}");
        }
        for bad in ["", "1r", "r-s", "r s", "r;", "r`", "r.s", "é", &"r".repeat(49)] {
            assert!(valid_table(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cfg_1_url_form_names_server_table_and_connections() {
        let config = MysqlConfig::from_url(&format!("{GOOD}?table=t&max-connections=8")).unwrap();
        assert_eq!((config.table.as_str(), config.connections, config.reserved()), ("t", 8, 2));
        assert_eq!((config.options.get_host(), config.options.get_port()), ("localhost", 3307));
        assert_eq!(config.options.get_database(), Some("db"));
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
