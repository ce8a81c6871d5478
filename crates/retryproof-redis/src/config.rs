// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RedisConfig`]: the server, the prefix, and how many replicas to wait for.

use std::fmt;
use std::time::Duration;

use retryproof_core::config::{PAUSE_BOUNDS, REPLICA_BOUNDS, is_store_name};
use retryproof_core::{Error, ErrorKind, IdentitySecret, Result};

mod url;

/// The default prefix of keys and channels.
pub(crate) const DEFAULT_PREFIX: &str = "retryproof";
/// Redis's default limit on the size of a value.
pub(crate) const BULK_LIMIT: usize = 512 << 20;

/// A host and its port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The primary, the sentinels that report its address, or nodes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Single(Address),
    Sentinel { nodes: Vec<Address>, service: String },
    Cluster(Vec<Address>),
}

/// The configuration of a [`RedisStore`](crate::RedisStore). `Debug` does not show passwords.
///
/// ```
/// use retryproof_redis::RedisConfig;
///
/// # fn main() -> retryproof_core::Result<()> {
/// let config =
/// RedisConfig::from_url("redis://app:secret@cache.internal/0")?.with_prefix("payments");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisConfig {
    pub(crate) target: Target,
    pub(crate) tls: bool,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<String>,
    pub(crate) db: u32,
    pub(crate) prefix: String,
    pub(crate) wait_replicas: Option<(u32, Duration)>,
    pub(crate) connect_timeout: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) max_value: Option<usize>,
    pub(crate) identity_secret: Option<IdentitySecret>,
    #[cfg(feature = "tls")]
    pub(crate) root_certificates: Option<Vec<u8>>,
}

impl RedisConfig {
    /// Parses the URL of a store:
    /// - `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`; `rediss://` for TLS, which needs the feature
    ///   `tls`;
    /// - `redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT],HOST[:PORT]…/SERVICE[/DB]`;
    ///   `rediss+sentinel://` for TLS;
    /// - `redis+cluster://[USER[:PASSWORD]@]HOST[:PORT],HOST[:PORT]…` with some nodes of a Redis
    ///   Cluster, which report the others (STO-8); `rediss+cluster://` for TLS.
    ///
    /// Users, passwords and the service are percent-decoded: write `/`, `?` and `@` in them as
    /// `%2F`, `%3F` and `%40`. Parameters follow a `?`, separated by `&`: `prefix=NAME`,
    /// `wait-replicas=REPLICAS`, `wait-timeout=PT1S`, `sentinel-user=NAME`,
    /// `sentinel-password=PASSWORD`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for an unknown scheme or parameter, an invalid address or an invalid
    /// prefix; [`ErrorKind::Unsupported`] for TLS without the feature. Messages show nothing of the
    /// URL except the name of a parameter.
    pub fn from_url(url: &str) -> Result<Self> {
        url::parse(url)
    }

    /// Creates a configuration for one server, with default settings.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self::on(Target::Single(Address { host: host.into(), port }))
    }

    pub(crate) fn on(target: Target) -> Self {
        Self {
            target,
            tls: false,
            user: None,
            password: None,
            sentinel_user: None,
            sentinel_password: None,
            db: 0,
            prefix: DEFAULT_PREFIX.to_owned(),
            wait_replicas: None,
            connect_timeout: Duration::from_secs(1),
            call_timeout: Duration::from_secs(2),
            max_value: None,
            identity_secret: None,
            #[cfg(feature = "tls")]
            root_certificates: None,
        }
    }

    /// Sets the user name for the server's access list. Default: the server's `default` user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the user's password.
    #[must_use]
    pub fn with_password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets the login for the sentinels, which is separate from the servers' login. Default: none.
    #[must_use]
    pub fn with_sentinel_login(
        mut self,
        user: Option<String>,
        password: impl Into<String>,
    ) -> Self {
        self.sentinel_user = user;
        self.sentinel_password = Some(password.into());
        self
    }

    /// Sets the database number. Default: 0, which is the only database of a cluster.
    #[must_use]
    pub fn with_db(mut self, db: u32) -> Self {
        self.db = db;
        self
    }

    /// Sets the prefix of all keys and channels. Connecting checks that the prefix matches
    /// `[A-Za-z_][A-Za-z0-9_]{0,47}` (STO-3). Default: `retryproof`.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Makes each grant and completion wait until `replicas` replicas have acknowledged the write
    /// (`WAIT`), but no longer than `timeout`. A failover then loses fewer records. If too few
    /// replicas acknowledge in time, the call fails as `Unavailable`. With this setting, grants and
    /// completions queue on a separate connection. An acquire takes two round trips, because it
    /// reads the record first. Connecting fails for more than 1,000 replicas, or for a timeout of
    /// less than 1 ms or more than a day. With 0 replicas, calls do not wait. Default: no wait.
    #[must_use]
    pub fn with_wait_replicas(mut self, replicas: u32, timeout: Duration) -> Self {
        self.wait_replicas = (replicas > 0).then_some((replicas, timeout));
        self
    }

    /// Sets the time limit for opening a connection. Default: 1 s.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the time limit for a call, including the wait for a connection. After this time, the
    /// call fails as `Unavailable`, and the next call opens a new connection. Default: 2 s, below
    /// the engine's default `operation-timeout` (STO-5). The timeout of a wait for replicas is
    /// added to this limit.
    #[must_use]
    pub fn with_call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Sets the largest value, in bytes, that a completion can store (CMP-9). Default and upper
    /// bound: the server's limit (`proto-max-bulk-len`, by default 512 MiB), minus 4 KiB.
    #[must_use]
    pub fn with_max_value(mut self, bytes: usize) -> Self {
        self.max_value = Some(bytes);
        self
    }

    /// Stores a digest of each key, computed with this secret, in place of the key (ID-5). The
    /// first [`migrate`](Self::migrate) fixes the secret, and connecting refuses any other secret.
    /// By default, there is no secret, and the records contain the keys themselves.
    #[must_use]
    pub fn with_identity_secret(mut self, secret: IdentitySecret) -> Self {
        self.identity_secret = Some(secret);
        self
    }

    /// Sets the CA certificates (PEM) that verify the servers. Default: the host's certificates,
    /// read once, when the store connects.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    /// Sets whether to use TLS, as `rediss://` does. TLS needs the feature `tls`; without the
    /// feature, connecting fails. Default: off.
    #[must_use]
    pub fn with_tls(mut self, tls: bool) -> Self {
        self.tls = tls;
        self
    }

    /// Checks everything that can be checked without a server.
    pub(crate) fn check(&self) -> Result<()> {
        if self.tls && !cfg!(feature = "tls") {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this build of retryproof-redis has no TLS, which `rediss` needs; enable its cargo \
                 feature `tls`",
            ));
        }
        if self.db != 0 && self.is_cluster() {
            return Err(Error::new(
                ErrorKind::Config,
                "a Redis Cluster has only the database 0; leave out the number",
            )
            .with("database", self.db));
        }
        if !is_store_name(&self.prefix) {
            return Err(Error::new(
                ErrorKind::Config,
                "the prefix must match [A-Za-z_][A-Za-z0-9_]{0,47}",
            )
            .with("prefix", format_args!("{:?}", self.prefix)));
        }
        let Some((replicas, time)) = self.wait_replicas else { return Ok(()) };
        if usize::try_from(replicas).map_or(true, |replicas| !REPLICA_BOUNDS.contains(&replicas)) {
            return Err(Error::new(
                ErrorKind::Config,
                "the number of replicas to wait for is out of range",
            )
            .with("wait_replicas", replicas)
            .with("limit", REPLICA_BOUNDS.end()));
        }
        // A time of 0 is refused too, because `WAIT` takes a timeout of 0 to mean no limit.
        if !PAUSE_BOUNDS.contains(&time) {
            return Err(Error::new(
                ErrorKind::Config,
                "the time to wait for replicas is out of range",
            )
            .with("wait_timeout", format_args!("{time:?}"))
            .with(
                "bounds",
                format_args!("{:?} to {:?}", PAUSE_BOUNDS.start(), PAUSE_BOUNDS.end()),
            ));
        }
        Ok(())
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.target, Target::Cluster(_))
    }

    /// Returns the time that `WAIT` adds to the call timeout; zero if calls do not wait for
    /// replicas.
    pub(crate) fn wait_timeout(&self) -> Duration {
        self.wait_replicas.map_or(Duration::ZERO, |(_, timeout)| timeout)
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("target", &self.target)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| ".."))
            .field("db", &self.db)
            .field("prefix", &self.prefix)
            .field("wait_replicas", &self.wait_replicas)
            .field("connect_timeout", &self.connect_timeout)
            .field("call_timeout", &self.call_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_3_prefixes_are_validated() {
        let ok = |prefix: &str| RedisConfig::new("h", 1).with_prefix(prefix).check().is_ok();
        for good in ["r", "_", "Records_2", &"r".repeat(48)] {
            assert!(ok(good), "{good}");
        }
        for bad in
            ["", "1r", "r-s", "r s", "r:", "r*", "r?", "r[a]", "r{", "r\r\n", "é", &"r".repeat(49)]
        {
            assert!(!ok(bad), "{bad}");
        }
    }
}
