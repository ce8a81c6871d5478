// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdempotencyConfig`]: all settings, with their defaults and bounds (CTX-2, CTX-3, CFG-1).

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use retryproof_duration::format as iso;

use crate::error::{Error, ErrorKind, Result};
use crate::identity::IdentitySecret;

#[cfg(feature = "config")]
mod load;
mod scope;
mod seal;
mod stores;
mod web;

#[cfg(feature = "config")]
pub use load::keys;
pub use scope::{ScopeConfig, StoredStatuses};
pub use seal::SealSettings;
pub use stores::{
    CONNECTION_BOUNDS, MemorySettings, MysqlSettings, PARTITION_BOUNDS, Pooler, PostgresSettings,
    REPLICA_BOUNDS, RedisSettings, SqlDialect, SqliteSettings, Synchronous, is_store_name,
};
pub use web::{FingerprintMode, WebConfig};

/// Bounds of a ttl (CTX-2).
pub const TTL_BOUNDS: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(3_650 * 86_400);
/// Bounds of a lease (CTX-2).
pub const LEASE_BOUNDS: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(86_400);
/// Bounds of a wait timeout (CTX-2). With a timeout of zero, a call checks once and never waits.
pub const WAIT_BOUNDS: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);

/// Bounds of the other durations, such as `operation-timeout`, `purge.interval` and
/// `redis.wait-timeout`. `max-hold` has its own bounds.
pub const PAUSE_BOUNDS: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(86_400);
/// The error text for a `fingerprint-ignore` without the fingerprint `json` (FP-5).
const NEEDS_JSON: &str = "needs idempotency.web.fingerprint = \"json\", because only the \
                          fingerprint of a JSON body can leave members out";
const HOLD_BOUNDS: RangeInclusive<Duration> = *LEASE_BOUNDS.start()..=*TTL_BOUNDS.end();

/// What the engine does if it cannot record the value of an action (CMP-4).
/// # When to use
/// Use `LogAndReturn` if callers need the value, even though a late retry may then run the work
/// again. Use `Propagate` if a second run costs more than a failed call, for example if the action
/// makes a charge that no downstream key protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CompletionFailurePolicy {
    /// Log an error and still return the value. If nothing could be recorded, a retry after the
    /// lease expires runs the action again.
    #[default]
    LogAndReturn,
    /// Fail the call with [`ExecuteError::Completion`](crate::ExecuteError::Completion).
    Propagate,
}

/// The settings of an engine and of its HTTP filter.
///
/// # When to use
/// The defaults suit most programs. Set fields in code, as below, or read a TOML file and
/// environment variables with [`load`](Self::load) (feature `config`). Operators can override the
/// durations of one scope without a code change (CTX-3).
///
/// ```
/// use std::time::Duration;
/// use retryproof_core::config::ScopeConfig;
/// use retryproof_core::{IdempotencyConfig, IdempotencyEngine};
/// use retryproof_memory::MemoryStore;
///
/// let mut config = IdempotencyConfig::default();
/// config.default_ttl = Duration::from_secs(7 * 86_400);
/// config.scopes.insert(
///     "payments".to_owned(),
///     ScopeConfig { lease: Some(Duration::from_secs(120)), ..ScopeConfig::default() },
/// );
/// let engine = IdempotencyEngine::builder(MemoryStore::new()).config(config).build()?;
/// assert_eq!(engine.config().default_lease, Duration::from_secs(30));
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct IdempotencyConfig {
    /// `default-ttl`: how long results are kept after completion. Default: 24 h.
    pub default_ttl: Duration,
    /// `default-lease`: how long a key stays held after its holder's last heartbeat. Default: 30 s.
    pub default_lease: Duration,
    /// `default-wait`: how long a duplicate waits for the holder. Default: 10 s.
    pub default_wait_timeout: Duration,
    /// `completion-failure-policy`: what the engine does if a completion fails (CMP-4). Default:
    /// [`CompletionFailurePolicy::LogAndReturn`].
    pub completion_failure_policy: CompletionFailurePolicy,
    /// `operation-timeout`: the longest time that a store call may take (STO-5). Default: 5 s. A
    /// purge batch gets at least 30 s.
    pub operation_timeout: Duration,
    /// `max-running`: how many tracked actions may run concurrently (RUN-5). Default: no limit.
    pub max_running: Option<usize>,
    /// `max-waiting`: how many duplicates may wait concurrently, for each engine (a process
    /// normally has one, ACQ-13). Default: 4,096.
    pub max_waiting: usize,
    /// `max-waiting-bytes`: how many bytes all waiting duplicates may keep in memory, for each
    /// engine (ACQ-13). Callers declare these bytes with
    /// [`held_bytes`](crate::ContextBuilder::held_bytes). Default: 64 MiB.
    pub max_waiting_bytes: usize,
    /// `max-hold`: the longest time for which heartbeats extend the lease of a running action
    /// (RUN-6). Default: 1 h.
    pub max_hold: Duration,
    /// `instance`: the name that operators see if this process holds a key (REC-2). If `None` (the
    /// default), the name consists of the host's name and the process id. Stores keep the last 54
    /// bytes of the name, or the last 30 bytes if the call has a trace.
    pub instance: Option<String>,
    /// `purge.enabled` and `purge.interval`: whether and how often expired records are purged
    /// (STO-4).
    pub purge: PurgeConfig,
    /// `scope."NAME"`: the settings of one scope. These settings override the values of the call
    /// and of the annotation (CTX-3).
    pub scopes: HashMap<String, ScopeConfig>,
    /// `store`: a store URL for the facade's [`connect`](https://docs.rs/retryproof). `Debug` hides
    /// it (ID-4).
    pub store: Option<String>,
    /// `identity-secret`: with this secret, the [`store`](Self::store) keeps digests instead of
    /// keys (ID-5). All programs that use the store need the same secret. Default: none, so the
    /// store keeps the keys.
    pub identity_secret: Option<IdentitySecret>,
    /// `seal.*`: whether and how the facade's [`connect_with`](https://docs.rs/retryproof) seals
    /// results (SEAL-8). `Debug` hides the URL of the table of keys (ID-4).
    pub seal: SealSettings,
    /// `web.*`: the settings of the HTTP filter.
    pub web: WebConfig,
    /// `memory.*`: the bounds of the memory store.
    pub memory: MemorySettings,
    /// `sqlite.*`: settings for a [`store`](Self::store) URL that names a SQLite file.
    pub sqlite: SqliteSettings,
    /// `postgres.*`: settings for a [`store`](Self::store) URL that names a PostgreSQL server.
    pub postgres: PostgresSettings,
    /// `mysql.*`: settings for a [`store`](Self::store) URL that names a MySQL or MariaDB server.
    pub mysql: MysqlSettings,
    /// `redis.*`: settings for a [`store`](Self::store) URL that names a Redis server, a Sentinel
    /// group or a Redis Cluster.
    pub redis: RedisSettings,
}

/// `purge.*` (STO-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PurgeConfig {
    /// Whether the engine purges expired records. Default: true.
    pub enabled: bool,
    /// The pause between two rounds of purging. Each pause is lengthened at random by up to a
    /// tenth, so that the processes of a fleet do not purge in step. Default: 1 min.
    pub interval: Duration,
    /// Whether the processes that share a store claim each round, so that only one of them purges
    /// (STO-6). Default: true.
    pub claim: bool,
}

impl Default for IdempotencyConfig {
    fn default() -> Self {
        Self {
            default_ttl: Duration::from_secs(86_400),
            default_lease: Duration::from_secs(30),
            default_wait_timeout: Duration::from_secs(10),
            completion_failure_policy: CompletionFailurePolicy::default(),
            operation_timeout: Duration::from_secs(5),
            max_running: None,
            max_waiting: 4_096,
            max_waiting_bytes: 64 << 20,
            max_hold: Duration::from_secs(3_600),
            instance: None,
            purge: PurgeConfig::default(),
            scopes: HashMap::new(),
            store: None,
            identity_secret: None,
            seal: SealSettings::default(),
            web: WebConfig::default(),
            memory: MemorySettings::default(),
            sqlite: SqliteSettings::default(),
            postgres: PostgresSettings::default(),
            mysql: MysqlSettings::default(),
            redis: RedisSettings::default(),
        }
    }
}

impl Default for PurgeConfig {
    fn default() -> Self {
        Self { enabled: true, interval: Duration::from_secs(60), claim: true }
    }
}

impl fmt::Debug for IdempotencyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyConfig")
            .field("default_ttl", &self.default_ttl)
            .field("default_lease", &self.default_lease)
            .field("default_wait_timeout", &self.default_wait_timeout)
            .field("completion_failure_policy", &self.completion_failure_policy)
            .field("operation_timeout", &self.operation_timeout)
            .field("max_running", &self.max_running)
            .field("max_waiting", &self.max_waiting)
            .field("max_waiting_bytes", &self.max_waiting_bytes)
            .field("max_hold", &self.max_hold)
            .field("instance", &self.instance)
            .field("purge", &self.purge)
            .field("scopes", &self.scopes)
            .field("store", &self.store.as_ref().map(|_| "(hidden)"))
            .field("identity_secret", &self.identity_secret)
            .field("seal", &self.seal)
            .field("web", &self.web)
            .field("memory", &self.memory)
            .field("sqlite", &self.sqlite)
            .field("postgres", &self.postgres)
            .field("mysql", &self.mysql)
            .field("redis", &self.redis)
            .finish()
    }
}

impl IdempotencyConfig {
    /// Checks every setting. [`build`](crate::EngineBuilder::build) calls this method.
    ///
    /// # Errors
    /// [`ErrorKind::Config`]. The message names the first setting that is out of range, with its
    /// value, or two settings that contradict each other.
    pub fn validate(&self) -> Result<()> {
        self.check().map_err(OutOfBounds::into_error)?;
        let mut ignoring: Vec<_> =
            self.scopes.iter().filter(|(_, own)| !own.fingerprint_ignore.is_empty()).collect();
        ignoring.sort_unstable_by_key(|(name, _)| name.as_str());
        match ignoring.first() {
            Some((scope, own)) if self.web.fingerprint != FingerprintMode::Json => {
                let (value, needs) = (&own.fingerprint_ignore, NEEDS_JSON);
                Err(Error::new(
                    ErrorKind::Config,
                    format!("idempotency.scope.{scope:?}.fingerprint-ignore = {value:?} {needs}"),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the settings of sealed results are complete and fit together (SEAL-8). The
    /// facade's `connect_with` calls this method.
    ///
    /// # Errors
    /// [`ErrorKind::Config`]. The message names the settings that are missing or do not fit
    /// together.
    pub fn check_seal(&self) -> Result<()> {
        self.seal.agrees_with(self)
    }

    /// Returns the names of the scopes that are switched off (CTX-5).
    pub(crate) fn disabled_scopes(&self) -> impl Iterator<Item = &str> {
        let disabled = self.scopes.iter().filter(|(_, own)| own.enabled == Some(false));
        disabled.map(|(name, _)| name.as_str())
    }

    /// Returns the names of the scopes in shadow mode (CTX-6).
    pub(crate) fn shadowed_scopes(&self) -> impl Iterator<Item = &str> {
        let shadowed = self
            .scopes
            .iter()
            .filter(|(_, own)| own.shadow == Some(true) && own.enabled != Some(false));
        shadowed.map(|(name, _)| name.as_str())
    }

    fn check(&self) -> Result<(), OutOfBounds> {
        within("default-ttl", self.default_ttl, &TTL_BOUNDS)?;
        within("default-lease", self.default_lease, &LEASE_BOUNDS)?;
        within("default-wait", self.default_wait_timeout, &WAIT_BOUNDS)?;
        within("operation-timeout", self.operation_timeout, &PAUSE_BOUNDS)?;
        within("max-hold", self.max_hold, &HOLD_BOUNDS)?;
        within("purge.interval", self.purge.interval, &PAUSE_BOUNDS)?;
        if self.max_running == Some(0) {
            return Err(refused("max-running", 0, "1 or more (omit the setting for no limit)"));
        }
        if let Some(instance) = &self.instance
            && (!(1..=255).contains(&instance.len()) || instance.chars().any(char::is_control))
        {
            return Err(refused(
                "instance",
                format!("{instance:?}"),
                "1 to 255 bytes without control characters",
            ));
        }
        for (scope, own) in &self.scopes {
            own.check(scope)?;
        }
        self.seal.check()?;
        self.web.check()?;
        self.sqlite.check()?;
        self.postgres.check()?;
        self.mysql.check()?;
        self.redis.check()
    }
}

/// A setting whose value is out of range.
struct OutOfBounds {
    key: Cow<'static, str>,
    value: String,
    expected: String,
}

impl OutOfBounds {
    fn into_error(self) -> Error {
        let Self { key, value, expected } = self;
        Error::new(
            ErrorKind::Config,
            format!("idempotency.{key} = {value} is not valid; expected {expected}"),
        )
    }
}

fn within(
    key: impl Into<Cow<'static, str>>,
    value: Duration,
    bounds: &RangeInclusive<Duration>,
) -> Result<(), OutOfBounds> {
    if bounds.contains(&value) {
        return Ok(());
    }
    Err(refused(key, iso(value), &format!("{} to {}", iso(*bounds.start()), iso(*bounds.end()))))
}

fn refused(
    key: impl Into<Cow<'static, str>>,
    value: impl fmt::Display,
    expected: &str,
) -> OutOfBounds {
    OutOfBounds { key: key.into(), value: value.to_string(), expected: expected.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctx_2_defaults_are_the_rules() {
        let config = IdempotencyConfig::default();
        assert!(config.validate().is_ok());
        assert_eq!(config.default_ttl, Duration::from_secs(24 * 3600));
        assert_eq!(config.default_lease, Duration::from_secs(30));
        assert_eq!(config.default_wait_timeout, Duration::from_secs(10));
        assert_eq!(config.completion_failure_policy, CompletionFailurePolicy::LogAndReturn);
    }

    #[test]
    fn acq_6_acq_13_run_5_run_6_sto_4_sto_6_default_bounds_are_the_rules() {
        let config = IdempotencyConfig::default();
        assert_eq!(config.operation_timeout, Duration::from_secs(5));
        assert_eq!((config.max_waiting, config.max_waiting_bytes), (4_096, 64 * 1_024 * 1_024));
        assert_eq!(config.max_running, None);
        assert_eq!(config.max_hold, Duration::from_secs(3_600));
        let minute = Duration::from_secs(60);
        assert_eq!(config.purge, PurgeConfig { enabled: true, interval: minute, claim: true });
    }

    #[test]
    fn http_3_http_4_http_7_http_10_http_21_default_bounds_of_the_filter_are_the_rules() {
        let web = WebConfig::default();
        assert!(web.required && !web.publish_window);
        assert_eq!(web.max_body_bytes, 1_024 * 1_024);
        assert_eq!(web.max_response_bytes, 8 * 1_024 * 1_024);
        assert_eq!(web.collect_timeout, Duration::from_secs(5));
        assert_eq!((&*web.key_header, web.in_flight_status), ("Idempotency-Key", 409));
        assert_eq!(web.fingerprint, FingerprintMode::Request);
    }

    #[test]
    fn cfg_1_bad_values_name_key_and_value() {
        let mut config =
            IdempotencyConfig { default_lease: Duration::from_millis(9), ..Default::default() };
        let text = config.validate().unwrap_err().to_string();
        assert!(text.contains("idempotency.default-lease") && text.contains("PT0.009S"), "{text}");
        config = IdempotencyConfig::default();
        config.web.in_flight_status = 200;
        assert!(config.validate().unwrap_err().to_string().contains("in-flight-status = 200"));
        config = IdempotencyConfig { max_running: Some(0), ..Default::default() };
        assert!(config.validate().is_err());
        for instance in ["", "a\nb", &"n".repeat(256)] {
            config = IdempotencyConfig { instance: Some(instance.into()), ..Default::default() };
            assert!(config.validate().unwrap_err().to_string().contains("idempotency.instance"));
        }
        config = IdempotencyConfig {
            store: Some("postgres://u:canary@h/db".into()),
            ..Default::default()
        };
        assert!(!format!("{config:?}").contains("canary"), "ID-4");
    }
}
