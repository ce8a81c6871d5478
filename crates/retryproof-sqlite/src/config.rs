// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SqliteConfig`]: the file, the table and the durability.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::clock::wall_clock_micros;
use retryproof_core::config::Synchronous;
use retryproof_core::{Error, ErrorKind, IdentitySecret, Result};
use retryproof_store_kit::table_name;

/// The default name of the record table. The names of the meta table, the audit table and the index
/// are this name followed by `_meta`, `_audit` and `_purge`.
pub(crate) const DEFAULT_TABLE: &str = "retryproof_records";

type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The file, table and limits of a [`SqliteStore`](crate::SqliteStore).
///
/// ```
/// use retryproof_sqlite::{SqliteConfig, Synchronous};
///
/// let config = SqliteConfig::new("payments.db")
///     .with_table_name("payment_records")
///     .with_synchronous(Synchronous::Normal);
/// ```
#[derive(Clone)]
pub struct SqliteConfig {
    pub(crate) path: PathBuf,
    pub(crate) table: String,
    pub(crate) synchronous: Synchronous,
    pub(crate) busy_timeout: Duration,
    pub(crate) readers: usize,
    pub(crate) max_value: Option<usize>,
    pub(crate) in_place: bool,
    pub(crate) wall_clock: WallClock,
    pub(crate) identity_secret: Option<IdentitySecret>,
}

impl SqliteConfig {
    /// Creates a configuration for the file at `path`, with default settings. A path that begins
    /// with `file:` is a SQLite URI. Network file systems are not supported, because they lack the
    /// shared memory that WAL needs.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_path_buf(),
            table: DEFAULT_TABLE.to_owned(),
            synchronous: Synchronous::default(),
            busy_timeout: Duration::from_secs(5),
            readers: std::thread::available_parallelism().map_or(2, usize::from).clamp(1, 8),
            max_value: None,
            in_place: false,
            wall_clock: Arc::new(wall_clock_micros),
            identity_secret: None,
        }
    }

    /// Parses the URL of a store: `sqlite:FILE`. FILE is a relative or absolute path, and is not
    /// percent-decoded. `sqlite:///abs/file` means `/abs/file`. The parameters `table=NAME` and
    /// `synchronous=full|normal` can follow a `?`, joined by `&`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for another scheme, a user or a password before a host (as in the URL
    /// of a server), a missing file name, `:memory:` (each connection would have its own database),
    /// an unknown parameter or an invalid table name.
    pub fn from_url(url: &str) -> Result<Self> {
        let refuse = |message: &'static str| Error::new(ErrorKind::Config, message);
        let rest = url
            .strip_prefix("sqlite:")
            .ok_or_else(|| refuse("invalid URL of a SQLite store; expected `sqlite:FILE`"))?;
        // Taken for a path, a password would be shown in messages (ID-4).
        let authority = url.split_once("://").and_then(|(_, rest)| rest.split(['/', '?']).next());
        if authority.is_some_and(|host| host.contains('@')) {
            return Err(refuse(
                "the URL of a SQLite store has no user, password or host; write `sqlite:FILE`",
            ));
        }
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (file, query) = rest.split_once('?').unwrap_or((rest, ""));
        if file.is_empty() {
            return Err(refuse("the URL of a SQLite store has no file name; write `sqlite:FILE`"));
        }
        if file.contains(":memory:") {
            return Err(refuse(
                "a SQLite store needs a file; to keep records only in the process, use `memory:`",
            ));
        }
        let mut config = Self::new(file);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            config = match pair.split_once('=') {
                Some(("table", name)) => config.with_table_name(name),
                Some(("synchronous", "full")) => config.with_synchronous(Synchronous::Full),
                Some(("synchronous", "normal")) => config.with_synchronous(Synchronous::Normal),
                _ => {
                    return Err(refuse(
                        "unknown parameter, or unknown value of a parameter, in the URL of a \
                         SQLite store; it accepts `table=NAME` and `synchronous=full|normal`",
                    )
                    .with("parameter", pair.split('=').next().unwrap_or_default()));
                }
            };
        }
        config.table()?;
        Ok(config)
    }

    /// Sets the name of the record table. The name must match `[A-Za-z_][A-Za-z0-9_]{0,47}` and
    /// must not begin with `sqlite_` (STO-3); `open` and `migrate` check the name. Default:
    /// `retryproof_records`.
    #[must_use]
    pub fn with_table_name(mut self, name: impl Into<String>) -> Self {
        self.table = name.into();
        self
    }

    /// Sets how durable commits are, and therefore how long they wait for the disk. Default:
    /// [`Synchronous::Full`].
    #[must_use]
    pub fn with_synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Sets how long a call retries while another connection has the file locked. Default: 5 s,
    /// which is also the engine's default `operation-timeout` (STO-5).
    #[must_use]
    pub fn with_busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Sets how many connections serve peeks and replays, 1 to 64. Default: the number of
    /// processors, at most 8.
    #[must_use]
    pub fn with_readers(mut self, readers: usize) -> Self {
        self.readers = readers.clamp(1, 64);
        self
    }

    /// Sets the size, in bytes, of the largest value that a completion can store (CMP-9). The
    /// default, which is also the upper bound, is SQLite's row limit minus 4 KiB for the other
    /// columns. The row limit is a billion bytes, unless SQLite was built with a different limit.
    #[must_use]
    pub fn with_max_value(mut self, bytes: usize) -> Self {
        self.max_value = Some(bytes);
        self
    }

    /// Sets whether uncontended writes run on the calling thread instead of the store's writing
    /// thread. Such a write saves two thread switches, but blocks the calling thread while it waits
    /// for the disk. Do not use this setting on the worker threads of an async runtime. Uncontended
    /// writes through the blocking facade always run on the calling thread. Default: off.
    #[must_use]
    pub fn with_in_place(mut self, in_place: bool) -> Self {
        self.in_place = in_place;
        self
    }

    /// Sets the clock that decides expiry, in microseconds since 1970 (ACQ-7). Use this setting
    /// only in tests. All processes that use a file must use the same clock. Default: the host's
    /// clock.
    #[must_use]
    pub fn with_wall_clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.wall_clock = Arc::new(clock);
        self
    }

    /// Stores a digest of each key, computed with this secret, in place of the key (ID-5).
    /// `migrate` fixes the secret when it creates the tables, and `open_with` refuses any other
    /// secret. By default, there is no secret, and the tables contain the keys themselves.
    #[must_use]
    pub fn with_identity_secret(mut self, secret: IdentitySecret) -> Self {
        self.identity_secret = Some(secret);
        self
    }

    /// Returns the table name if it is valid. The name is the only dynamic part of the SQL (STO-3).
    pub(crate) fn table(&self) -> Result<&str> {
        validated(&self.table)
    }
}

pub(crate) fn validated(name: &str) -> Result<&str> {
    if name.get(..7).is_some_and(|head| head.eq_ignore_ascii_case("sqlite_")) {
        return Err(Error::new(ErrorKind::Config, "a table name must not begin with `sqlite_`")
            .with("table", format_args!("{name:?}")));
    }
    table_name(name)
}

/// Whether the path is the URL of a store or a server. A SQLite URI `file:…` is a path.
pub(crate) fn is_url(path: &Path) -> bool {
    let path = path.to_string_lossy();
    path.starts_with("sqlite:") || (path.contains("://") && !path.starts_with("file:"))
}

impl fmt::Debug for SqliteConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteConfig")
            .field("path", if is_url(&self.path) { &"(hidden)" } else { &self.path })
            .field("table", &self.table)
            .field("synchronous", &self.synchronous)
            .field("busy_timeout", &self.busy_timeout)
            .field("readers", &self.readers)
            .field("in_place", &self.in_place)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_3_table_names_are_validated() {
        let ok = |name: &str| SqliteConfig::new("x").with_table_name(name).table().is_ok();
        for good in ["r", "_", "Records_2", &"r".repeat(48)] {
            assert!(ok(good), "{good}");
        }
        for bad in
            ["", "1r", "r-s", "r s", "r;", "r\"", "é", "sqlite_x", "SQLite_x", &"r".repeat(49)]
        {
            assert!(!ok(bad), "{bad}");
        }
    }

    #[test]
    fn cfg_1_url_form_names_file_table_and_durability() {
        let path = |url| SqliteConfig::from_url(url).map(|c| c.path);
        assert_eq!(path("sqlite:a b.db").unwrap(), Path::new("a b.db"));
        assert_eq!(path("sqlite:/var/a.db").unwrap(), Path::new("/var/a.db"));
        assert_eq!(path("sqlite:///var/a.db").unwrap(), Path::new("/var/a.db"));
        assert_eq!(path("sqlite:///var/a@b.db").unwrap(), Path::new("/var/a@b.db"));
        assert_eq!(path("sqlite:a@b.db").unwrap(), Path::new("a@b.db"));
        let config = SqliteConfig::from_url("sqlite:a.db?table=t&synchronous=normal").unwrap();
        assert_eq!((config.table.as_str(), config.synchronous), ("t", Synchronous::Normal));
        for bad in [
            "a.db",
            "sqlite:",
            "sqlite:?table=t",
            "sqlite::memory:",
            "sqlite:a?x=1",
            "sqlite:a?table=1",
            "sqlite:a?synchronous=off",
        ] {
            assert_eq!(path(bad).unwrap_err().kind(), ErrorKind::Config, "{bad}");
        }
    }

    #[test]
    fn id_4_a_password_in_a_url_is_refused_and_not_shown() {
        for url in [
            "sqlite://:canary@",
            "sqlite://u:canary@h/a.db",
            "sqlite://canary@h?table=t",
            "sqlite:://u:canary@h",
            "sqlite:a.db?x=://u:canary@h",
            "sqlite:a.db?key=canary",
        ] {
            let error = SqliteConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
        }
        for url in ["sqlite://u:canary@h/a.db", "postgres://u:canary@db/pay", "sqlite:canary"] {
            let config = SqliteConfig::new(url);
            let error = config.migrate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            let text = format!("{error} {error:?} {config:?}");
            assert!(!text.contains("canary"), "{text}");
        }
    }
}
