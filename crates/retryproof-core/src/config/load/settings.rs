// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SETTINGS`]: the list of all settings.

use super::super::IdempotencyConfig;
use super::PREFIX;
use super::raw_value::RawValue;

/// One setting: its key, and the function that sets its value.
pub(super) struct Setting {
    /// The path below `idempotency`, joined by dots.
    pub(super) key: &'static str,
    pub(super) set: fn(&mut IdempotencyConfig, &RawValue<'_>) -> Result<(), String>,
}

macro_rules! settings {
    ($($key:literal => $($field:ident).+ = $read:ident $(, $wrap:ident)?;)*) => {
        &[$(Setting {
            key: $key,
            set: |config, value| {
                config.$($field).+ = $($wrap)? (value.$read()?);
                Ok(())
            },
        }),*]
    };
}

/// Every setting except those below `scope`.
pub(super) const SETTINGS: &[Setting] = settings! {
    "store" => store = text, Some;
    "identity-secret" => identity_secret = identity_secret, Some;
    "default-ttl" => default_ttl = duration;
    "default-lease" => default_lease = duration;
    "default-wait" => default_wait_timeout = duration;
    "completion-failure-policy" => completion_failure_policy = policy;
    "operation-timeout" => operation_timeout = duration;
    "max-running" => max_running = count, Some;
    "max-waiting" => max_waiting = count;
    "max-waiting-bytes" => max_waiting_bytes = count;
    "max-hold" => max_hold = duration;
    "instance" => instance = text, Some;
    "purge.enabled" => purge.enabled = flag;
    "purge.interval" => purge.interval = duration;
    "purge.claim" => purge.claim = flag;
    "seal.keys" => seal.keys = text, Some;
    "seal.master" => seal.master = text, Some;
    "seal.cache" => seal.cache = duration;
    "web.required" => web.required = flag;
    "web.key-header" => web.key_header = text;
    "web.max-body-bytes" => web.max_body_bytes = count;
    "web.max-response-bytes" => web.max_response_bytes = count;
    "web.collect-timeout" => web.collect_timeout = duration;
    "web.in-flight-status" => web.in_flight_status = status;
    "web.publish-window" => web.publish_window = flag;
    "web.fingerprint" => web.fingerprint = fingerprint;
    "memory.max-records" => memory.max_records = count, Some;
    "memory.max-bytes" => memory.max_bytes = count, Some;
    "sqlite.table-name" => sqlite.table_name = text, Some;
    "sqlite.synchronous" => sqlite.synchronous = synchronous, Some;
    "postgres.table-name" => postgres.table_name = text, Some;
    "postgres.max-connections" => postgres.max_connections = count, Some;
    "postgres.pooler" => postgres.pooler = pooler, Some;
    "postgres.dialect" => postgres.dialect = dialect, Some;
    "postgres.partitions" => postgres.partitions = count, Some;
    "mysql.table-name" => mysql.table_name = text, Some;
    "mysql.max-connections" => mysql.max_connections = count, Some;
    "redis.prefix" => redis.prefix = text, Some;
    "redis.wait-replicas" => redis.wait_replicas = count, Some;
    "redis.wait-timeout" => redis.wait_timeout = duration, Some;
};

impl Setting {
    /// Finds the setting whose key consists of the names in `path`. A name that contains a dot
    /// matches nothing.
    pub(super) fn at(path: &[&str]) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.key.split('.').eq(path.iter().copied()))
    }

    /// Returns the name of the setting's environment variable, such as
    /// `IDEMPOTENCY_WEB_MAX_BODY_BYTES` for `web.max-body-bytes`.
    pub(super) fn variable(&self) -> String {
        let name = |c: char| if matches!(c, '.' | '-') { '_' } else { c.to_ascii_uppercase() };
        PREFIX.chars().chain(self.key.chars().map(name)).collect()
    }
}

/// Whether a path names a table that contains settings.
pub(super) fn is_table(path: &[&str]) -> bool {
    match path {
        [one] => {
            *one == "scope"
                || SETTINGS.iter().any(|s| s.key.split_once('.').is_some_and(|(t, _)| t == *one))
        }
        ["scope", _] => true,
        _ => false,
    }
}

/// Returns ``; did you mean `web.required`?`` if a setting has a similar key, and an empty text
/// otherwise.
pub(super) fn closest(key: &str) -> String {
    SETTINGS
        .iter()
        .map(|setting| (distance(key, setting.key), setting.key))
        .min()
        .filter(|(distance, _)| *distance <= 3 && *distance < key.len())
        .map(|(_, key)| format!("; did you mean `{key}`?"))
        .unwrap_or_default()
}

/// Returns the edit distance of two keys: the number of characters to change, add or remove.
fn distance(a: &str, b: &str) -> usize {
    // Do not compute the distance of a very long key. A key in the file can have any length, and
    // every known key is shorter than this limit.
    if a.len() > 64 {
        return usize::MAX;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn cfg_1_each_key_has_a_variable_of_its_own() {
        let variables: HashSet<_> = SETTINGS.iter().map(Setting::variable).collect();
        assert_eq!(variables.len(), SETTINGS.len());
        assert!(variables.contains("IDEMPOTENCY_WEB_MAX_BODY_BYTES"));
    }

    #[test]
    fn cfg_1_a_mistyped_key_is_guessed() {
        assert_eq!(closest("default-tll"), "; did you mean `default-ttl`?");
        assert_eq!(closest("web.require"), "; did you mean `web.required`?");
        assert_eq!(closest("something-else"), "");
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!((distance("abc", ""), distance("", "abc"), distance("abc", "abc")), (3, 3, 0));
    }
}
