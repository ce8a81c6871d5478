// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks the operations page against the library: no setting, kind of error, code or log line is
//! missing or wrong.

use std::path::Path;
use std::sync::Mutex;

use axum::Router;
use axum::routing::post;
use retryproof::http::{Code, IdempotencyFilter, Policy};
use retryproof::observe::LeaseEvent;
use retryproof::observe::telemetry::Instrument;
use retryproof::{
    Error, ErrorKind, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, MemoryStore,
    Observer, Outcome, config,
};
use tower::ServiceExt as _;

use super::{blocks, repository, rows};

const PAGE: &str = include_str!("../../../src/guide/operations.md");
/// The sections of settings whose defaults are in the stores' crates.
const STORES: [&str; 5] = ["memory", "sqlite", "postgres", "mysql", "redis"];

#[test]
fn cfg_1_every_setting_is_on_the_page_with_its_variable_and_default() {
    let rows = rows(PAGE);
    let row = |key: &str| {
        let cell = format!("`{key}`");
        rows.iter()
            .find(|row| row[0] == cell && row.len() == 4)
            .unwrap_or_else(|| panic!("{key} is not on the page"))
    };
    let unset = format!("{:?}", IdempotencyConfig::default());
    for (key, variable) in config::keys() {
        let row = row(key);
        assert_eq!(row[1], format!("`{variable}`"));
        // Setting a configuration key to the default that the page names changes nothing. The
        // keys of the stores have their defaults in the store crates.
        let value = row[3].trim_matches('`').to_owned();
        let has_none = matches!(
            key,
            "store"
                | "max-running"
                | "instance"
                | "identity-secret"
                | "seal.keys"
                | "seal.master"
                | "postgres.pooler"
                | "postgres.partitions"
        );
        let loaded = IdempotencyConfig::from_sources(None, [(variable, value.clone())]);
        let of_a_store = STORES
            .iter()
            .any(|store| key.split_once('.').is_some_and(|(table, _)| table == *store));
        match (has_none, of_a_store) {
            (true, _) => assert!(
                value.starts_with("no")
                    || ["found out", "host name and process id"].contains(&value.as_str()),
                "{key}: {value}"
            ),
            (false, true) => assert!(loaded.is_ok(), "{key}: {value}"),
            (false, false) => assert_eq!(format!("{:?}", loaded.unwrap()), unset, "{key}: {value}"),
        }
    }
    let settings =
        rows.iter().filter(|row| row.len() == 4 && row[1].contains("IDEMPOTENCY_")).count();
    assert_eq!(settings, config::keys().count(), "and no other");
}

#[test]
fn every_kind_of_error_is_on_the_page() {
    use ErrorKind::{
        Codec, Config, Corrupt, Full, Invalid, Schema, ShuttingDown, TooBusy, TooLarge,
        Unavailable, Unexpected, Unsupported,
    };
    let rows = rows(PAGE);
    for kind in [
        Invalid,
        Unavailable,
        ShuttingDown,
        TooBusy,
        Corrupt,
        Config,
        Unsupported,
        Schema,
        Full,
        TooLarge,
        Codec,
        Unexpected,
    ] {
        let begins = Error::new(kind, "x").to_string().trim_end_matches(": x").to_owned();
        let cells = [format!("`{kind:?}`"), format!("`{begins}`")];
        assert!(rows.iter().any(|row| row[0] == cells[0] && row[1] == cells[1]), "{cells:?}");
    }
}

#[test]
fn http_11_every_code_is_on_the_page_with_its_status() {
    let rows = rows(PAGE);
    let codes: Vec<_> = rows
        .iter()
        .filter(|row| row.len() == 5 && row[1].ends_with(|c: char| c.is_ascii_digit()))
        .collect();
    for code in [
        Code::KeyMissing,
        Code::KeyInvalid,
        Code::BodyTooLarge,
        Code::BodyUnreadable,
        Code::FingerprintMismatch,
        Code::InFlight,
        Code::ResultNotReplayable,
        Code::StoreUnavailable,
        Code::ShuttingDown,
        Code::TooBusy,
        Code::ResponseFailed,
        Code::CompletionFailed,
        Code::RecordUnreadable,
        Code::StoreError,
        Code::ScopeInvalid,
        Code::CallerMissing,
    ] {
        let row = codes
            .iter()
            .find(|row| row[0] == format!("`{code}`"))
            .unwrap_or_else(|| panic!("{code}"));
        // `caller-missing` is 401 if the filter has a challenge, and 400 otherwise.
        let status = row[1].trim_start_matches("401, ");
        assert_eq!(status, code.status().to_string(), "{code}");
    }
    assert_eq!(codes.len(), 16, "and no other");
}

/// Returns the identity that the store holds after one request with the key `order-17`: its scope
/// and the digits of its key.
async fn identity_of(filter: IdempotencyFilter, tenant: Option<&'static str>) -> String {
    let scope = Policy::new("s");
    let app = Router::new().route("/", post(|| async { "done" }).layer(filter.guard(scope)));
    let request = axum::http::Request::post("/").header("idempotency-key", "order-17");
    let mut request = request.body(axum::body::Body::empty()).unwrap();
    if let Some(tenant) = tenant {
        request.extensions_mut().insert(tenant);
    }
    let Ok(answer) = app.oneshot(request).await;
    assert_eq!(answer.status(), 200);
    heard()
}

fn heard() -> String {
    let heard = HEARD.lock().unwrap().take();
    heard.expect("an observer should be called for each lease")
}

static HEARD: Mutex<Option<String>> = Mutex::new(None);

/// Stores the identity of the last grant, in the form in which log lines show it.
struct Hearing;

impl Observer for Hearing {
    fn acquired(&self, event: LeaseEvent<'_>) {
        *HEARD.lock().unwrap() = Some(event.identity.to_string());
    }
}

#[tokio::test]
async fn id_4_the_recipe_for_a_keys_digits_finds_the_line_of_every_caller() {
    let engine =
        || IdempotencyEngine::builder(MemoryStore::new()).observer(Hearing).build().unwrap();
    let by_tenant = || {
        IdempotencyFilter::builder(engine())
            .caller(|head: &axum::http::request::Parts| {
                head.extensions.get::<&'static str>().map(ToString::to_string)
            })
            .absent_callers_share()
            .build()
            .unwrap()
    };
    let shared = IdempotencyFilter::builder(engine()).callers_share_keys().build().unwrap();
    let function = IdempotencyContext::builder("s", "order-17").build().unwrap();
    let ran = engine().execute(function, || async { Ok::<_, std::io::Error>(()) }).await;
    assert_eq!(ran.unwrap(), Outcome::Executed(()));
    let printed = [
        heard(),
        identity_of(shared, None).await,
        identity_of(by_tenant(), Some("alice")).await,
        identity_of(by_tenant(), None).await,
        identity_of(by_tenant(), Some("alice\nof accounting")).await,
    ];
    let recipes = blocks(PAGE, "sh");
    let told: String = recipes.iter().take(2).map(|recipe| run(recipe)).collect();
    let told: Vec<_> = told.lines().map(|digits| format!("s#{digits}")).collect();
    assert_eq!(told, printed);
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sto_4_the_sql_of_the_page_finds_a_record_by_scope_and_key() {
    use retryproof::sqlite::{SqliteConfig, SqliteStore, SqliteTxSource};
    use retryproof::store::TxSource as _;

    let file = std::env::temp_dir().join(format!("retryproof-find-{}.db", std::process::id()));
    SqliteConfig::new(&file).migrate().unwrap();
    let engine = IdempotencyEngine::new(SqliteStore::open(&file).unwrap());
    let done = IdempotencyContext::builder("payments", "-:order-17").build().unwrap();
    let ran = engine.execute(done, || async { Ok::<_, std::io::Error>(()) }).await;
    assert_eq!(ran.unwrap(), Outcome::Executed(()));
    let sql = blocks(PAGE, "sql").into_iter().find(|sql| sql.starts_with("-- SQLite")).unwrap();
    let tx = SqliteTxSource::open_with(&SqliteConfig::new(&file)).unwrap().begin().await.unwrap();
    let state: i64 = tx.query_row(sql, (), |row| row.get(0)).unwrap();
    assert_eq!(state, 1);
    drop(tx);
    for more in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{more}", file.display()));
    }
}

fn run(recipe: &str) -> String {
    let ran = std::process::Command::new("sh").args(["-euc", recipe]).output().unwrap();
    assert!(ran.status.success(), "{recipe}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

/// Returns the texts of the log lines from `info` upwards in a source file.
fn log_lines(source: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for level in ["info", "warn", "error"] {
        for call in source.split(&format!("tracing::{level}!(")).skip(1) {
            // End the call at `);` before a line break, because the message itself may contain
            // `);`.
            let call = call.split(");\n").next().unwrap_or_default();
            // The message is the last string literal of the call. If the literal is broken over
            // several lines, the indent of the continued lines is not part of the message.
            let Some(text) = call.rsplit('"').nth(1) else { continue };
            lines.push(text.split("\\\n").map(str::trim_start).collect());
        }
    }
    lines
}

fn walk(folder: &Path, visit: &mut impl FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            visit(&path, &std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_log_line_is_on_the_page_and_no_other() {
    let Some(root) = repository() else { return };
    let mut said = Vec::new();
    for published in [
        "retryproof",
        "retryproof-actix",
        "retryproof-client",
        "retryproof-core",
        "retryproof-http",
        "retryproof-kafka",
        "retryproof-mysql",
        "retryproof-nats",
        "retryproof-postgres",
        "retryproof-rabbitmq",
        "retryproof-redis",
        "retryproof-sqlite",
        "retryproof-store-kit",
    ] {
        walk(&root.join("crates").join(published).join("src"), &mut |path, source| {
            for line in log_lines(source) {
                // If a message contains placeholders, compare only the part before the first one.
                let line = line.split(" {").next().unwrap_or_default().to_owned();
                assert!(
                    line == "{self}" || PAGE.contains(&line),
                    "{}: {line:?} is not explained",
                    path.display()
                );
                said.push(line);
            }
        });
    }
    assert!(said.len() >= 15, "the search finds them: {said:?}");
    let table =
        PAGE.split("## Log lines").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    for row in table
        .lines()
        .filter(|line| ["| info", "| warn", "| error"].iter().any(|level| line.starts_with(level)))
    {
        let cell = row.split(" | ").nth(1).unwrap();
        let line = cell.trim_end_matches(" …").trim_matches('`').trim().trim_end_matches(" …");
        assert!(
            said.iter().any(|said| said == line) || line == "the request is not guarded",
            "{line:?} is not logged anywhere"
        );
    }
}

/// Reads a file of `docs/operate`, in a checkout of the repository.
fn operate(name: &str) -> Option<String> {
    let path = repository()?.join("docs/operate").join(name);
    Some(std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}")))
}

#[test]
fn run_9_each_alert_links_to_its_section_of_the_page() {
    let Some(alerts) = operate("alerts.yml") else { return };
    let tests = operate("alerts-test.yml").unwrap();
    let names: Vec<&str> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(names.len(), 12, "{names:?}");
    for name in names {
        assert!(PAGE.contains(&format!("\n### {name}\n")), "{name} has no section");
        let link = format!("/operations/index.html#{}\n", name.to_lowercase());
        assert!(alerts.contains(&link), "{name} has no link");
        assert!(tests.contains(&format!("alertname: {name}\n")), "{name} has no test");
    }
}

#[test]
fn run_9_the_board_and_the_alerts_use_only_metrics_that_exist() {
    const LABELS: [&str; 7] =
        ["scope", "outcome", "would_be", "ended_by", "attempt", "reason", "operation"];
    let is_known = |word: &str| {
        let metric = ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|suffix| word.strip_suffix(suffix))
            .unwrap_or(word);
        let label = word.trim_start_matches("idempotency_");
        LABELS.contains(&label) || Instrument::ALL.iter().any(|one| one.prometheus_name() == metric)
    };
    let mut used = 0;
    for file in ["alerts.yml", "alerts-test.yml", "grafana.json"] {
        let Some(text) = operate(file) else { return };
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with("idempotency_")) {
            assert!(is_known(word), "{file}: {word}");
            used += 1;
        }
    }
    assert!(used > 100, "the search finds them: {used}");
    let board = operate("grafana.json").unwrap();
    assert_eq!(board.matches("\"gridPos\"").count(), 13, "panels");
}
