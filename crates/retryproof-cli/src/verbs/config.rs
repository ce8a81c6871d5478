// SPDX-License-Identifier: MIT OR Apache-2.0
//! `config show`: each setting with its value and the source of the value.

use std::time::Duration;

use retryproof::config::{self, Pooler, SqlDialect, Synchronous};
use retryproof::{CompletionFailurePolicy, FingerprintMode, IdempotencyConfig};
use serde_json::json;

use crate::exit::{self, VerbError};
use crate::output::Printer;
use crate::settings::{Sources, redacted};

/// Prints all settings, with the settings of scopes last.
pub(crate) fn show(sources: &Sources, print: &Printer) -> Result<u8, VerbError> {
    sources.config.validate()?;
    let mut rows: Vec<[String; 3]> = config::keys()
        .map(|(key, variable)| {
            let value = value_of(&sources.config, key).unwrap_or_else(|| "?".to_owned());
            [key.to_owned(), value, sources.of(key, &variable)]
        })
        .collect();
    let mut scopes: Vec<_> = sources.config.scopes.iter().collect();
    scopes.sort_by_key(|(name, _)| name.as_str());
    for (name, own) in scopes {
        let ignored = &own.fingerprint_ignore;
        for (part, value) in [
            ("ttl", own.ttl.map(iso)),
            ("lease", own.lease.map(iso)),
            ("wait", own.wait_timeout.map(iso)),
            ("enabled", flag(own.enabled)),
            ("shadow", flag(own.shadow)),
            ("store", own.stored.map(|stored| stored.to_string())),
            ("mismatch-status", own.mismatch_status.map(|status| status.to_string())),
            ("fingerprint-ignore", (!ignored.is_empty()).then(|| format!("{ignored:?}"))),
            ("fingerprint-while-in-flight", flag(own.fingerprint_while_in_flight)),
        ] {
            if let Some(value) = value {
                let key = format!("scope.{name:?}.{part}");
                let source = sources.in_file(&key).unwrap_or_default();
                rows.push([key, value, source]);
            }
        }
    }
    let values: Vec<_> = rows
        .iter()
        .map(|[key, value, source]| json!({ "setting": key, "value": value, "source": source }))
        .collect();
    print.list(["setting", "value", "source"], &rows, &values)?;
    Ok(exit::OK)
}

fn flag(value: Option<bool>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn iso(duration: Duration) -> String {
    retryproof_duration::format(duration).to_string()
}

/// Returns the value of a setting as `config show` prints it. Secrets are hidden, and an unset
/// value is `-`. Returns `None` for a key that is unknown to this version of the command.
fn value_of(config: &IdempotencyConfig, key: &str) -> Option<String> {
    let web = &config.web;
    Some(match key {
        "store" => config.store.as_deref().map_or_else(unset, redacted),
        "identity-secret" => optional(config.identity_secret.as_ref().map(|_| "(hidden)")),
        "default-ttl" => iso(config.default_ttl),
        "default-lease" => iso(config.default_lease),
        "default-wait" => iso(config.default_wait_timeout),
        "completion-failure-policy" => match config.completion_failure_policy {
            CompletionFailurePolicy::LogAndReturn => "log-and-return".to_owned(),
            CompletionFailurePolicy::Propagate => "propagate".to_owned(),
        },
        "operation-timeout" => iso(config.operation_timeout),
        "max-running" => optional(config.max_running),
        "max-waiting" => config.max_waiting.to_string(),
        "max-waiting-bytes" => config.max_waiting_bytes.to_string(),
        "max-hold" => iso(config.max_hold),
        "instance" => optional(config.instance.as_ref()),
        "purge.enabled" => config.purge.enabled.to_string(),
        "purge.interval" => iso(config.purge.interval),
        "purge.claim" => config.purge.claim.to_string(),
        "seal.keys" => config.seal.keys.as_deref().map_or_else(unset, redacted),
        "seal.master" => optional(config.seal.master.as_ref().map(|_| "(hidden)")),
        "seal.cache" => iso(config.seal.cache),
        "web.required" => web.required.to_string(),
        "web.key-header" => web.key_header.clone(),
        "web.max-body-bytes" => web.max_body_bytes.to_string(),
        "web.max-response-bytes" => web.max_response_bytes.to_string(),
        "web.collect-timeout" => iso(web.collect_timeout),
        "web.in-flight-status" => web.in_flight_status.to_string(),
        "web.publish-window" => web.publish_window.to_string(),
        "web.fingerprint" => match web.fingerprint {
            FingerprintMode::Request => "request".to_owned(),
            FingerprintMode::Body => "body".to_owned(),
            FingerprintMode::Json => "json".to_owned(),
        },
        "memory.max-records" => optional(config.memory.max_records),
        "memory.max-bytes" => optional(config.memory.max_bytes),
        "sqlite.table-name" => optional(config.sqlite.table_name.as_ref()),
        "sqlite.synchronous" => optional(config.sqlite.synchronous.map(|when| match when {
            Synchronous::Full => "full",
            Synchronous::Normal => "normal",
        })),
        "postgres.table-name" => optional(config.postgres.table_name.as_ref()),
        "postgres.max-connections" => optional(config.postgres.max_connections),
        "postgres.pooler" => optional(config.postgres.pooler.map(|pooler| match pooler {
            Pooler::Detect => "detect",
            Pooler::Session => "session",
            Pooler::Transaction => "transaction",
        })),
        "postgres.dialect" => optional(config.postgres.dialect.map(|dialect| match dialect {
            SqlDialect::Postgres => "postgres",
            SqlDialect::Plain => "plain",
        })),
        "postgres.partitions" => optional(config.postgres.partitions),
        "mysql.table-name" => optional(config.mysql.table_name.as_ref()),
        "mysql.max-connections" => optional(config.mysql.max_connections),
        "redis.prefix" => optional(config.redis.prefix.as_ref()),
        "redis.wait-replicas" => optional(config.redis.wait_replicas),
        "redis.wait-timeout" => optional(config.redis.wait_timeout.map(iso)),
        _ => return None,
    })
}

fn optional<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(unset, |value| value.to_string())
}

fn unset() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cfg_1_every_setting_has_a_value() {
        let config = IdempotencyConfig::default();
        for (key, _) in config::keys() {
            assert!(value_of(&config, key).is_some(), "{key}");
        }
    }
}
