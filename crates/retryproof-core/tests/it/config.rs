// SPDX-License-Identifier: MIT OR Apache-2.0
//! CFG-1: every key from both sources, which values each key refuses, and what the messages show
//! and hide.
//!
//! This file is over 400 lines long because every key has a row here.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use retryproof_core::config::{Pooler, ScopeConfig, SqlDialect, StoredStatuses, Synchronous, keys};
use retryproof_core::{CompletionFailurePolicy, ErrorKind, FingerprintMode, IdempotencyConfig};

/// One key: a good value in TOML and in a variable, how to read it from the configuration, and bad
/// values in each spelling.
struct Row {
    key: &'static str,
    toml: &'static str,
    variable: &'static str,
    arrived: fn(&IdempotencyConfig) -> bool,
    bad_toml: &'static [&'static str],
    bad_variable: &'static [&'static str],
}

const S: Duration = Duration::from_secs(1);

const BAD_DURATION: &[&str] =
    &["7", "'24h'", "'P1M'", "'pt5s'", "'PT1,5S'", "'-PT5S'", "true", "''", "['PT1S']", "{}"];
const BAD_DURATION_VARIABLE: &[&str] =
    &["7", "24h", "P1M", "pt5s", "PT1,5S", "-PT5S", "P1DT", "", " PT5S"];
const BAD_COUNT: &[&str] =
    &["-1", "1.5", "'10'", "true", "99999999999999999999999", "[1]", "1979-05-27"];
const BAD_COUNT_VARIABLE: &[&str] =
    &["-1", "+1", "1.5", "1_000", "", "ten", "99999999999999999999999", " 1"];
const BAD_FLAG: &[&str] = &["1", "'true'", "'yes'"];
const BAD_FLAG_VARIABLE: &[&str] = &["1", "TRUE", "yes", ""];
const BAD_WORD: &[&str] = &["'other'", "''", "7", "false"];
const BAD_WORD_VARIABLE: &[&str] = &["other", ""];
const BAD_NAME: &[&str] = &["''", "'2r'", "'a;b'", "'a-b'", "7"];
const BAD_NAME_VARIABLE: &[&str] = &["", "a b", "a:b", "2r"];
const BAD_CONNECTIONS: &[&str] = &["0", "1", "10001", "-1", "'8'"];
const BAD_CONNECTIONS_VARIABLE: &[&str] = &["", "1", "10001", "many"];

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row { key: "store", toml: "'memory:'", variable: "memory:", arrived: |c| c.store.as_deref() == Some("memory:"),
          bad_toml: &["''", "7", "[]"], bad_variable: &[""] },
    Row { key: "identity-secret", toml: "'5d3c9a1f0b7e4c2d8a6f1e3b5c7d9e0f'", variable: "5d3c9a1f0b7e4c2d8a6f1e3b5c7d9e0f",
          arrived: |c| c.identity_secret.is_some(),
          bad_toml: &["''", "7", "'5d3c9a1f0b7e4c2d8a6f1e3b5c7d9e0'"], bad_variable: &["", "too short"] },
    Row { key: "default-ttl", toml: "'P7D'", variable: "P7D", arrived: |c| c.default_ttl == 7 * 86_400 * S,
          bad_toml: BAD_DURATION, bad_variable: BAD_DURATION_VARIABLE },
    Row { key: "default-lease", toml: "'PT7S'", variable: "PT7S", arrived: |c| c.default_lease == 7 * S,
          bad_toml: BAD_DURATION, bad_variable: BAD_DURATION_VARIABLE },
    Row { key: "default-wait", toml: "'PT0S'", variable: "PT0S", arrived: |c| c.default_wait_timeout.is_zero(),
          bad_toml: BAD_DURATION, bad_variable: BAD_DURATION_VARIABLE },
    Row { key: "completion-failure-policy", toml: "'propagate'", variable: "propagate",
          arrived: |c| c.completion_failure_policy == CompletionFailurePolicy::Propagate,
          bad_toml: BAD_WORD, bad_variable: BAD_WORD_VARIABLE },
    Row { key: "operation-timeout", toml: "'PT0.5S'", variable: "PT0.5S", arrived: |c| c.operation_timeout == S / 2,
          bad_toml: BAD_DURATION, bad_variable: BAD_DURATION_VARIABLE },
    Row { key: "max-running", toml: "0x20", variable: "32", arrived: |c| c.max_running == Some(32),
          bad_toml: &["0", "-1", "'10'"], bad_variable: &["0", "none"] },
    Row { key: "max-waiting", toml: "1_000", variable: "1000", arrived: |c| c.max_waiting == 1_000,
          bad_toml: BAD_COUNT, bad_variable: BAD_COUNT_VARIABLE },
    Row { key: "max-waiting-bytes", toml: "1_000", variable: "1000", arrived: |c| c.max_waiting_bytes == 1_000,
          bad_toml: BAD_COUNT, bad_variable: BAD_COUNT_VARIABLE },
    Row { key: "max-hold", toml: "'PT2H'", variable: "PT2H", arrived: |c| c.max_hold == 7_200 * S,
          bad_toml: BAD_DURATION, bad_variable: BAD_DURATION_VARIABLE },
    Row { key: "instance", toml: "'pod-7'", variable: "pod-7", arrived: |c| c.instance.as_deref() == Some("pod-7"),
          bad_toml: &["''", "7", r#""a\tb""#], bad_variable: &["", "a\tb"] },
    Row { key: "purge.enabled", toml: "false", variable: "false", arrived: |c| !c.purge.enabled,
          bad_toml: BAD_FLAG, bad_variable: BAD_FLAG_VARIABLE },
    Row { key: "purge.interval", toml: "'PT5M'", variable: "PT5M", arrived: |c| c.purge.interval == 300 * S,
          bad_toml: BAD_DURATION, bad_variable: BAD_DURATION_VARIABLE },
    Row { key: "purge.claim", toml: "false", variable: "false", arrived: |c| !c.purge.claim,
          bad_toml: BAD_FLAG, bad_variable: BAD_FLAG_VARIABLE },
    Row { key: "seal.keys", toml: "'sqlite:k'", variable: "sqlite:k", arrived: |c| c.seal.keys.as_deref() == Some("sqlite:k"),
          bad_toml: &["''", "7", "[]"], bad_variable: &[""] },
    Row { key: "seal.master", toml: "'env:M'", variable: "env:M", arrived: |c| c.seal.master.as_deref() == Some("env:M"),
          bad_toml: &["''", "7", "[]"], bad_variable: &[""] },
    Row { key: "seal.cache", toml: "'PT7S'", variable: "PT7S", arrived: |c| c.seal.cache == 7 * S,
          bad_toml: BAD_DURATION, bad_variable: BAD_DURATION_VARIABLE },
    Row { key: "web.required", toml: "false", variable: "false", arrived: |c| !c.web.required,
          bad_toml: BAD_FLAG, bad_variable: BAD_FLAG_VARIABLE },
    Row { key: "web.key-header", toml: "'X-Key'", variable: "X-Key", arrived: |c| c.web.key_header == "X-Key",
          bad_toml: &["''", "'a b'", "'a:b'", "7"], bad_variable: &["", "a b", "é"] },
    Row { key: "web.max-body-bytes", toml: "0", variable: "0", arrived: |c| c.web.max_body_bytes == 0,
          bad_toml: BAD_COUNT, bad_variable: BAD_COUNT_VARIABLE },
    Row { key: "web.max-response-bytes", toml: "4096", variable: "4096", arrived: |c| c.web.max_response_bytes == 4_096,
          bad_toml: BAD_COUNT, bad_variable: BAD_COUNT_VARIABLE },
    Row { key: "web.collect-timeout", toml: "'PT2S'", variable: "PT2S", arrived: |c| c.web.collect_timeout == 2 * S,
          bad_toml: BAD_DURATION, bad_variable: BAD_DURATION_VARIABLE },
    Row { key: "web.in-flight-status", toml: "503", variable: "503", arrived: |c| c.web.in_flight_status == 503,
          bad_toml: &["200", "399", "600", "65937", "'409'"], bad_variable: &["200", "600", "65937", "conflict"] },
    Row { key: "web.publish-window", toml: "true", variable: "true", arrived: |c| c.web.publish_window,
          bad_toml: BAD_FLAG, bad_variable: BAD_FLAG_VARIABLE },
    Row { key: "web.fingerprint", toml: "'json'", variable: "json", arrived: |c| c.web.fingerprint == FingerprintMode::Json,
          bad_toml: BAD_WORD, bad_variable: BAD_WORD_VARIABLE },
    Row { key: "memory.max-records", toml: "5", variable: "5", arrived: |c| c.memory.max_records == Some(5),
          bad_toml: BAD_COUNT, bad_variable: BAD_COUNT_VARIABLE },
    Row { key: "memory.max-bytes", toml: "65_536", variable: "65536", arrived: |c| c.memory.max_bytes == Some(65_536),
          bad_toml: BAD_COUNT, bad_variable: BAD_COUNT_VARIABLE },
    Row { key: "sqlite.table-name", toml: "'r_2'", variable: "r_2", arrived: |c| c.sqlite.table_name.as_deref() == Some("r_2"),
          bad_toml: &["''", "'2r'", "'a;b'", "'sqlite_x'", "7"], bad_variable: &["", "a b", "SQLITE_x"] },
    Row { key: "sqlite.synchronous", toml: "'normal'", variable: "normal", arrived: |c| c.sqlite.synchronous == Some(Synchronous::Normal),
          bad_toml: BAD_WORD, bad_variable: BAD_WORD_VARIABLE },
    Row { key: "postgres.table-name", toml: "'r_2'", variable: "r_2", arrived: |c| c.postgres.table_name.as_deref() == Some("r_2"),
          bad_toml: BAD_NAME, bad_variable: BAD_NAME_VARIABLE },
    Row { key: "postgres.max-connections", toml: "20", variable: "20", arrived: |c| c.postgres.max_connections == Some(20),
          bad_toml: BAD_CONNECTIONS, bad_variable: BAD_CONNECTIONS_VARIABLE },
    Row { key: "postgres.pooler", toml: "'transaction'", variable: "transaction", arrived: |c| c.postgres.pooler == Some(Pooler::Transaction),
          bad_toml: BAD_WORD, bad_variable: BAD_WORD_VARIABLE },
    Row { key: "postgres.dialect", toml: "'plain'", variable: "plain", arrived: |c| c.postgres.dialect == Some(SqlDialect::Plain),
          bad_toml: BAD_WORD, bad_variable: BAD_WORD_VARIABLE },
    Row { key: "postgres.partitions", toml: "16", variable: "16", arrived: |c| c.postgres.partitions == Some(16),
          bad_toml: &["0", "1", "129", "-1", "'16'"], bad_variable: &["", "x", "1", "129"] },
    Row { key: "mysql.table-name", toml: "'r_2'", variable: "r_2", arrived: |c| c.mysql.table_name.as_deref() == Some("r_2"),
          bad_toml: BAD_NAME, bad_variable: BAD_NAME_VARIABLE },
    Row { key: "mysql.max-connections", toml: "20", variable: "20", arrived: |c| c.mysql.max_connections == Some(20),
          bad_toml: BAD_CONNECTIONS, bad_variable: BAD_CONNECTIONS_VARIABLE },
    Row { key: "redis.prefix", toml: "'pay'", variable: "pay", arrived: |c| c.redis.prefix.as_deref() == Some("pay"),
          bad_toml: BAD_NAME, bad_variable: BAD_NAME_VARIABLE },
    Row { key: "redis.wait-replicas", toml: "1", variable: "1", arrived: |c| c.redis.wait_replicas == Some(1),
          bad_toml: &["-1", "1001", "'1'"], bad_variable: &["", "x", "1001"] },
    Row { key: "redis.wait-timeout", toml: "'PT0.5S'", variable: "PT0.5S", arrived: |c| c.redis.wait_timeout == Some(S / 2),
          bad_toml: &["'PT0S'", "'500ms'", "'P2D'", "1"], bad_variable: &["", "PT0S", "1s"] },
];

fn from_file(text: &str) -> Result<IdempotencyConfig, String> {
    load(Some(text), &[])
}

fn load(text: Option<&str>, variables: &[(&str, &str)]) -> Result<IdempotencyConfig, String> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    IdempotencyConfig::from_sources(text.map(|text| ("app.toml", text)), variables).map_err(
        |error| {
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(!format!("{error:?}").contains("canary"), "ID-4");
            error.to_string()
        },
    )
}

fn variable_of(key: &str) -> String {
    keys().find(|(known, _)| *known == key).map(|(_, variable)| variable).expect("a known key")
}

#[test]
fn cfg_1_the_rows_are_all_keys() {
    let known: Vec<_> = keys().map(|(key, _)| key).collect();
    assert_eq!(known, ROWS.iter().map(|row| row.key).collect::<Vec<_>>());
}

#[test]
fn cfg_1_every_key_arrives_from_either_source() {
    for row in ROWS {
        assert!(
            !(row.arrived)(&IdempotencyConfig::default()),
            "{}: the row proves nothing",
            row.key
        );
        let file = format!("[idempotency]\n{} = {}", row.key, row.toml);
        assert!((row.arrived)(&from_file(&file).unwrap()), "{file}");
        let variable = variable_of(row.key);
        assert!((row.arrived)(&load(None, &[(&variable, row.variable)]).unwrap()), "{variable}");
    }
}

#[test]
fn cfg_1_a_bad_value_of_any_key_names_key_value_and_source() {
    let is_secret =
        |key: &str| matches!(key, "store" | "identity-secret" | "seal.keys" | "seal.master");
    for row in ROWS {
        for bad in row.bad_toml {
            let text = format!("# first\n[idempotency]\n{} = {bad}", row.key);
            let message = from_file(&text).expect_err(&text);
            assert!(message.contains(&format!("idempotency.{} = ", row.key)), "{text}: {message}");
            assert!(message.contains("(app.toml, line 3): "), "{text}: {message}");
            let shown = bad.replace('\'', "\"");
            let plain = !shown.starts_with(['[', '{']) && !is_secret(row.key);
            assert!(!plain || message.contains(&format!(" = {shown} (")), "{text}: {message}");
        }
        let variable = variable_of(row.key);
        for bad in row.bad_variable {
            let message = load(None, &[(&variable, bad)]).expect_err(bad);
            let hidden = is_secret(row.key);
            let shown = if hidden { "(hidden)".to_owned() } else { format!("{bad:?}") };
            let says = format!("idempotency.{} = {shown} ({variable}): ", row.key);
            assert!(message.contains(&says), "{variable}={bad}: {message}");
        }
    }
}

#[test]
fn cfg_1_ctx_2_bounds_are_those_of_the_rules() {
    let takes = |key: &str, value: &str| from_file(&format!("idempotency.{key} = '{value}'"));
    for (key, least, most) in [
        ("default-ttl", "PT0.001S", "P3650D"),
        ("default-lease", "PT0.01S", "P1D"),
        ("default-wait", "PT0S", "P1D"),
        ("operation-timeout", "PT0.001S", "P1D"),
        ("max-hold", "PT0.01S", "P3650D"),
        ("purge.interval", "PT0.001S", "P1D"),
        ("seal.cache", "PT0S", "P1D"),
        ("scope.\"s\".ttl", "PT0.001S", "P3650D"),
        ("scope.\"s\".lease", "PT0.01S", "P1D"),
        ("scope.\"s\".wait", "PT0S", "P1D"),
    ] {
        for good in [least, most] {
            assert!(takes(key, good).is_ok(), "{key} = {good}");
        }
        let beyond = takes(key, "P3651D").unwrap_err();
        assert!(beyond.ends_with(&format!("expected {least} to {most}")), "{beyond}");
        assert!(least == "PT0S" || takes(key, "PT0S").is_err(), "{key}");
    }
}

#[test]
fn cfg_1_the_environment_wins_over_the_file() {
    let file =
        "[idempotency]\ndefault-wait = 'PT1S'\nweb.required = false\nweb.in-flight-status = 423";
    let config = load(
        Some(file),
        &[("IDEMPOTENCY_DEFAULT_WAIT", "PT2S"), ("IDEMPOTENCY_WEB_REQUIRED", "true")],
    );
    let config = config.unwrap();
    assert_eq!((config.default_wait_timeout, config.web.required), (2 * S, true));
    assert_eq!(config.web.in_flight_status, 423, "the file sets what the environment does not");
    assert_eq!(config.default_lease, 30 * S, "a setting in neither has its default");
    let message =
        load(Some("idempotency.default-wait = 1"), &[("IDEMPOTENCY_DEFAULT_WAIT", "PT2S")])
            .unwrap_err();
    assert!(
        message.contains("app.toml, line 1"),
        "a bad value stops the start even when it is overridden: {message}"
    );
}

#[test]
fn cfg_1_ctx_3_scopes_are_configured_by_name() {
    let config = from_file(
        "[idempotency.scope.\"payments\"]\nttl = 'P7D'\nwait = 'PT3S'\n[idempotency.scope.\"POST \
         /orders/{}\"]\nlease = 'PT5S'",
    )
    .unwrap();
    let payments = &config.scopes["payments"];
    assert_eq!(
        (payments.ttl, payments.lease, payments.wait_timeout),
        (Some(7 * 86_400 * S), None, Some(3 * S))
    );
    assert_eq!(config.scopes["POST /orders/{}"].lease, Some(5 * S));
    for (bad, says) in [
        (
            "[idempotency.scope.\"payments\"]\nttl = '1d'",
            r#"idempotency.scope."payments".ttl = "1d" (app.toml, line 2): "#,
        ),
        (
            "[idempotency.scope.payments]\nwit = 'PT1S'",
            r#"idempotency.scope."payments".wit = "PT1S" (app.toml, line 2): there is no such setting"#,
        ),
        (
            "idempotency.scope.payments = 'PT1S'",
            r#"idempotency.scope."payments" (app.toml, line 1): expected a table"#,
        ),
        ("idempotency.scope = 1", "idempotency.scope (app.toml, line 1): expected a table"),
        (
            "idempotency.scope.\"\".ttl = 'PT1S'",
            r#"idempotency.scope."" (app.toml, line 1): a scope must have"#,
        ),
        ("idempotency.scope.\"a\\tb\".ttl = 'PT1S'", "a scope must have 1 to 255 bytes"),
    ] {
        let message = from_file(bad).expect_err(bad);
        assert!(message.contains(says), "{bad}: {message}");
    }
}

#[test]
fn cfg_1_ctx_5_http_19_http_20_fp_5_fp_6_a_scope_has_switches() {
    let text = "[idempotency]\nweb.fingerprint = 'json'\n[idempotency.scope.\"payments\"]\n\
                enabled = false\nstore = '2xx,4xx'\nmismatch-status = 409\nfingerprint-ignore = \
                ['/timestamp', '/meta/a~1b']\nfingerprint-while-in-flight = true";
    let config = from_file(text).unwrap();
    let payments = &config.scopes["payments"];
    assert_eq!(payments.enabled, Some(false));
    assert_eq!(payments.stored, Some(StoredStatuses::SUCCESSES.with_client_errors()));
    assert_eq!(payments.mismatch_status, Some(409));
    assert_eq!(payments.fingerprint_ignore, ["/timestamp", "/meta/a~1b"]);
    assert_eq!(payments.fingerprint_while_in_flight, Some(true));
    let untouched = from_file("idempotency.scope.\"payments\".wait = 'PT1S'").unwrap();
    let payments = &untouched.scopes["payments"];
    assert_eq!((payments.enabled, payments.stored, payments.mismatch_status), (None, None, None));
    assert!(payments.fingerprint_ignore.is_empty());
    assert_eq!((payments.fingerprint_while_in_flight, payments.shadow), (None, None));
    let watched = from_file("idempotency.scope.\"payments\".shadow = true").unwrap();
    assert_eq!(watched.scopes["payments"].shadow, Some(true), "CTX-6");
    let both = "[idempotency.scope.\"a\"]\nenabled = false\nshadow = true";
    let message = from_file(both).unwrap_err();
    assert!(message.contains("idempotency.scope.\"a\".shadow = true"), "{message}");
}

#[test]
fn cfg_1_a_bad_switch_names_key_value_and_source() {
    for (setting, value, says) in [
        ("enabled", "'false'", "\"false\" (app.toml, line 3): expected `true` or `false`"),
        ("enabled", "0", "0 (app.toml, line 3): expected `true` or `false`"),
        ("shadow", "'on'", "\"on\" (app.toml, line 3): expected `true` or `false`"),
        ("fingerprint-while-in-flight", "1", "1 (app.toml, line 3): expected `true` or `false`"),
        ("store", "'4xx'", "\"4xx\" (app.toml, line 3): expected `2xx`, optionally with"),
        ("store", "'2xx,200'", "\"2xx,200\" (app.toml, line 3): expected `2xx`"),
        ("store", "''", "\"\" (app.toml, line 3): expected `2xx`"),
        ("store", "['2xx']", "(an array) (app.toml, line 3): expected `2xx`"),
        ("mismatch-status", "400", "400 (app.toml, line 3): expected 409 or 422"),
        ("mismatch-status", "65945", "65945 (app.toml, line 3): expected 409 or 422"),
        ("mismatch-status", "'409'", "\"409\" (app.toml, line 3): expected a whole number"),
        ("fingerprint-ignore", "'/a'", "\"/a\" (app.toml, line 3): expected a list of JSON"),
        ("fingerprint-ignore", "[]", "(an array) (app.toml, line 3): expected a list of JSON"),
        ("fingerprint-ignore", "['/a', 7]", "(an array) (app.toml, line 3): expected a list"),
        ("fingerprint-ignore", "['/a', 'b']", "begin with `/`"),
        ("fingerprint-ignore", "['/a~2']", "\"/a~2\" is not such a pointer"),
        ("fingerprint-ignore", "['']", "\"\" is not such a pointer"),
    ] {
        let text = format!("# first\n[idempotency.scope.\"payments\"]\n{setting} = {value}");
        let message = from_file(&text).expect_err(&text);
        let key = format!("idempotency.scope.\"payments\".{setting} = ");
        assert!(message.contains(&key) && message.contains(says), "{text}: {message}");
    }
    let pointers = |count| {
        let list = "'/a',".repeat(count);
        let text = format!("idempotency.scope.a.fingerprint-ignore = [{list}]");
        from_file(&format!("{text}\nidempotency.web.fingerprint = 'json'"))
    };
    assert!(pointers(32).is_ok());
    let message = pointers(33).unwrap_err();
    assert!(message.contains("expected at most 32 JSON pointers"), "{message}");
}

#[test]
fn cfg_1_fp_5_members_are_left_out_of_json_alone() {
    let file = "[idempotency]\nscope.\"payments\".fingerprint-ignore = ['/at']";
    let says = "idempotency.scope.\"payments\".fingerprint-ignore = [\"/at\"] (app.toml, line 2): \
                needs idempotency.web.fingerprint = \"json\"";
    let overriding: [&[(&str, &str)]; 2] = [&[], &[("IDEMPOTENCY_WEB_FINGERPRINT", "body")]];
    for variables in overriding {
        let message = load(Some(file), variables).unwrap_err();
        assert!(message.contains(says), "{message}");
    }
    assert!(load(Some(file), &[("IDEMPOTENCY_WEB_FINGERPRINT", "json")]).is_ok());
    let mut config = IdempotencyConfig::default();
    let own = ScopeConfig { fingerprint_ignore: vec!["/at".to_owned()], ..Default::default() };
    config.scopes.insert("payments".to_owned(), own);
    let message = config.validate().unwrap_err().to_string();
    assert!(message.contains("needs idempotency.web.fingerprint"), "set in code: {message}");
    config.web.fingerprint = FingerprintMode::Json;
    assert!(config.validate().is_ok());
}

#[test]
fn cfg_1_an_unknown_key_stops_the_start_and_is_guessed() {
    for (text, says) in [
        (
            "idempotency.defaultTtl = 'PT1S'",
            "idempotency.defaultTtl (app.toml, line 1): there is no such setting; did you mean `default-ttl`?",
        ),
        (
            "[idempotency.web]\nrequire = true",
            "idempotency.web.require (app.toml, line 2): there is no such setting; did you mean `web.required`?",
        ),
        (
            "idempotency.\"web.required\" = true",
            "idempotency.\"web.required\" (app.toml, line 1): there is no such setting",
        ),
        (
            "[idempotency.etcd]\nprefix = 'x'",
            "idempotency.etcd (app.toml, line 1): there is no such setting",
        ),
        (
            "idempotency.purge.enabled.really = true",
            "idempotency.purge.enabled = (a table) (app.toml, line 1): expected `true` or `false`",
        ),
        ("idempotency.web = true", "idempotency.web (app.toml, line 1): expected a table"),
        ("idempotency = 'x'", "idempotency (app.toml, line 1): expected a table"),
    ] {
        let message = from_file(text).expect_err(text);
        assert!(message.contains(says), "{text}: {message}");
    }
}

#[test]
fn cfg_1_keys_outside_the_prefix_are_ignored() {
    let text = "store = 7\n[server]\nport = 80\n[[jobs]]\nx = 1\n[idempotency]\nmax-waiting = \
         5\n[idempotency2]\nstore = 9";
    assert_eq!(from_file(text).unwrap().max_waiting, 5);
    for empty in
        ["", "[server]\nport = 80", "[idempotency]", "[idempotency.web]\n[idempotency.scope]"]
    {
        let config = from_file(empty).unwrap();
        assert_eq!(format!("{config:?}"), format!("{:?}", IdempotencyConfig::default()), "{empty}");
    }
    let foreign = [("IDEMPOTENCYX", "1"), ("idempotency_store", "x"), ("PATH", "/bin")];
    assert!(load(None, &foreign).unwrap().store.is_none());
}

#[test]
fn run_9_a_scope_without_settings_is_named_by_the_configuration() {
    let config = from_file("[idempotency.scope.\"payments\"]\n[idempotency.scope]\nmail = {}");
    let mut scopes: Vec<_> = config.unwrap().scopes.into_keys().collect();
    scopes.sort();
    assert_eq!(scopes, ["mail", "payments"]);
    for blank in ["[idempotency.scope.\"\"]", "[idempotency.scope.\" \"]\nttl = 'PT1H'"] {
        let message = from_file(blank).unwrap_err();
        assert_eq!(message.matches("a scope must have 1 to 255 bytes").count(), 1, "{message}");
    }
}

#[test]
fn cfg_1_all_problems_are_told_at_once() {
    let text = "[idempotency]\ndefault-ttl = 'x'\nnonsense = 1";
    let message =
        load(Some(text), &[("IDEMPOTENCY_MAX_WAITING", "x"), ("IDEMPOTENCY_DEFAULT_WAIT", "y")])
            .unwrap_err();
    assert!(message.starts_with("invalid configuration: 4 problems: "), "{message}");
    let at = |part: &str| message.find(part).unwrap_or_else(|| panic!("{part} in {message}"));
    assert!(
        at("default-ttl") < at("nonsense")
            && at("IDEMPOTENCY_DEFAULT_WAIT") < at("IDEMPOTENCY_MAX_WAITING")
    );
}

#[test]
fn cfg_1_id_4_no_message_shows_a_password() {
    let url = "postgres://app:canary@db/records";
    for text in [
        format!("idempotency.store = ['{url}']"),
        format!("idempotency.sotre = '{url}'"),
        format!("idempotency.default-ttl = '{url}'"),
        format!("idempotency.web.key-header = '{url}'"),
        "idempotency.sqlite.table-name = 'app@canary'".to_owned(),
        format!("idempotency.scope.\"s\".ttl = '{url}'"),
        // The text is not TOML, so the parser's own message would quote the line.
        format!("[idempotency]\nstore = \"{url}\nmax-waiting = 7"),
        format!("idempotency.store = {url}"),
        format!("[idempotency]\nstore = '{url}'\nstore = '{url}'"),
    ] {
        let message = from_file(&text).expect_err(&text);
        assert!(!message.contains("canary"), "{message}");
        assert!(message.contains("app.toml, line"), "{message}");
    }
    let message = load(None, &[("IDEMPOTENCY_MAX_HOLD", url)]).unwrap_err();
    assert!(
        !message.contains("canary") && message.contains("= (hidden) (IDEMPOTENCY_MAX_HOLD)"),
        "{message}"
    );
    let message = load(None, &[("IDEMPOTENCY_IDENTITY_SECRET", "canary")]).unwrap_err();
    assert!(!message.contains("canary") && message.contains("32 random bytes"), "{message}");
    let secret = "canary".repeat(6);
    let config = load(None, &[("IDEMPOTENCY_IDENTITY_SECRET", &secret)]).unwrap();
    assert!(!format!("{config:?}").contains("canary"));
    let config = load(None, &[("IDEMPOTENCY_STORE", url)]).unwrap();
    assert_eq!(config.store.as_deref(), Some(url));
    assert!(!format!("{config:?}").contains("canary"));
}

#[test]
fn cfg_1_a_long_value_is_cut_in_the_message() {
    let long = "é".repeat(5_000);
    let message = from_file(&format!("idempotency.default-ttl = '{long}'")).unwrap_err();
    assert!(message.len() < 500 && message.contains("(shortened)"), "{message}");
    assert!(
        from_file(&format!("idempotency.'{long}' = 1"))
            .unwrap_err()
            .contains("there is no such setting")
    );
}

/// Collects the variables that warnings name.
#[derive(Clone, Default)]
pub(crate) struct Warnings(pub(crate) Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for Warnings {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        self.0.lock().unwrap().push(format!("{}={value:?}", field.name()));
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn cfg_1_an_unknown_variable_is_a_warning_that_hides_its_value() {
    let warnings = Warnings::default();
    let unknown = [
        ("IDEMPOTENCY_STOER", "canary"),
        ("IDEMPOTENCY_SCOPE_PAYMENTS_TTL", "canary"),
        ("IDEMPOTENCY_", ""),
    ];
    let loaded = tracing::subscriber::with_default(warnings.clone(), || load(None, &unknown));
    assert!(loaded.unwrap().store.is_none());
    let said = warnings.0.lock().unwrap().join("\n");
    for (name, _) in unknown {
        assert!(said.contains(&format!("variable={name:?}")), "{said}");
    }
    assert!(
        said.contains("a scope can be configured only in the configuration file")
            && !said.contains("canary"),
        "{said}"
    );
}
