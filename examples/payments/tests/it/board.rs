// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queries of `docs/operate/grafana.json`, sent to a real Prometheus that scrapes the storm.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use retryproof::clock::wall_clock_micros;
use serde_json::Value;

use crate::browser::{now, pause};
use crate::plot::{self, Panel};
use crate::prometheus::{Prometheus, Series, free};

const BOARD: &str = include_str!("../../../../docs/operate/grafana.json");

/// How long the database is locked, so that calls of the store fail.
const OUTAGE: Duration = Duration::from_millis(2_500);
/// The time from the end of an outage until Prometheus has scraped its effects twice.
const TWO_SCRAPES: Duration = Duration::from_millis(2_200);

/// The series that an outage leaves, unless the server is killed before the second scrape.
const TROUBLE: [&str; 2] = [
    "sum(rate(idempotency_calls_total{error_type!=\"\"}[5s]))",
    "sum(rate(idempotency_store_operation_duration_seconds_count{error_type!=\"\"}[5s]))",
];

/// Words in queries about events that do not happen in the storm. These queries need not have data.
const WITHOUT_EVENTS: [&str; 2] = [
    // This series stays empty, because every charge ends before its first heartbeat. The series has
    // the kind of error as a label, so it does not exist before the first failed heartbeat.
    "idempotency_lease_beats_failed_total",
    // These series stay empty, because a scope has them only in shadow mode, and no scope in the
    // storm is in that mode.
    "idempotency_outcome=\"shadow\"",
];

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("retryproof-board-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn seconds() -> u64 {
    wall_clock_micros() / 1_000_000
}

/// Holds the database's lock, so that every write waits and then fails.
fn lock(database: &Path) {
    let connection = rusqlite::Connection::open(database).expect("the database");
    connection.busy_timeout(Duration::from_secs(30)).expect("a timeout");
    connection.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    sleep(OUTAGE);
    connection.execute_batch("ROLLBACK").expect("the end of the lock");
}

fn sleep(duration: Duration) {
    let began = now();
    while began.elapsed() < duration {
        pause();
    }
}

fn has_data(found: &[Series]) -> bool {
    found.iter().flat_map(|series| &series.points).any(|(_, value)| value.is_finite())
}

/// Returns a query as Grafana sends it, with its variables replaced. The interval is the one that
/// Grafana computes for one scrape per second.
fn query(target: &Value) -> String {
    let query = target["expr"].as_str().expect("a query");
    query
        .replace("$__rate_interval", "5s")
        .replace("$__range", "60s")
        .replace("$scope", ".*")
        .replace("$job", ".*")
}

/// Returns the legend of a series, in which `{{label}}` stands for the value of a label.
fn legend(target: &Value, series: &Series) -> String {
    let mut legend = target["legendFormat"].as_str().expect("a legend").to_owned();
    for (label, value) in series.labels.as_object().into_iter().flatten() {
        legend = legend.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap_or_default());
    }
    legend
}

/// The storm has kills, and an outage of its store, so that no panel is empty for lack of events.
#[test]
fn run_9_a_real_prometheus_answers_every_query_of_the_board() {
    let (folder, operate) = (Folder::new(), free());
    let database = folder.0.join("payments.db");
    let prometheus = Prometheus::scrape(operate, &folder.0);
    let start = seconds();
    let mut storm = Command::new(env!("CARGO_BIN_EXE_payments"))
        .args(["storm", "--keys", "1500", "--clients", "32", "--kills", "5"])
        .args(["--operate", &operate.to_string()])
        .args(["--store", &format!("sqlite:{}", database.display())])
        .env("IDEMPOTENCY_PURGE_INTERVAL", "PT1S")
        .env("IDEMPOTENCY_OPERATION_TIMEOUT", "PT0.3S")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the storm starts");
    prometheus.wait_for_result("sum(idempotency_calls_total) > 100");
    let is_measured = |query: &&str| has_data(&prometheus.range(query, start, seconds()));
    while !TROUBLE.iter().all(is_measured) {
        assert!(storm.try_wait().expect("asked").is_none(), "no outage was measured in the storm");
        lock(&database);
        sleep(TWO_SCRAPES);
    }
    let said = crate::text(&storm.wait_with_output().expect("the storm ends"));
    assert!(said.ends_with("every promise held\n"), "{said}");
    let end = seconds();

    let board: Value = serde_json::from_str(BOARD).expect("JSON");
    let (mut panels, mut empty) = (Vec::new(), Vec::new());
    for panel in board["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        let mut lines = Vec::new();
        for target in panel["targets"].as_array().expect("queries") {
            let query = query(target);
            let found = match target["instant"] == true {
                true => prometheus.instant(&query, end),
                false => prometheus.range(&query, start, end),
            };
            let may_be_empty = WITHOUT_EVENTS.iter().any(|name| query.contains(name));
            if !may_be_empty && !has_data(&found) {
                empty.push(format!("{title}: {query}"));
            }
            lines.extend(found.into_iter().map(|series| (legend(target, &series), series.points)));
        }
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
        panels.push(Panel { title: title.to_owned(), unit: unit.to_owned(), lines });
    }
    assert!(empty.is_empty(), "queries without data:\n{}\n{said}", empty.join("\n"));
    assert_eq!(panels.len(), 13);
    panels.retain(|panel| !panel.lines.is_empty());
    let picture = plot::draw(&panels, end as f64);
    crate::keep_picture("board.svg", picture.as_bytes());
}
