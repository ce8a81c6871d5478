// SPDX-License-Identifier: MIT OR Apache-2.0
//! `get`, `stats`, `purge` and `migrate` on SQLite.

use std::future::Future;
use std::process::Stdio;

use http_body_util::{BodyExt as _, Full};
use retryproof::http::{IdempotencyFilter, Policy};
use retryproof::{IdempotencyContext, IdempotencyEngine};
use serde_json::Value;
use tower::{Layer as _, ServiceExt as _};

use crate::support::{Place, bare, code, err, eventually, out, started};

fn on_store<F: Future>(place: &Place, work: impl FnOnce(IdempotencyEngine) -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        work(IdempotencyEngine::new(retryproof::connect(&place.url).await.unwrap())).await
    })
}

fn get(place: &Place, arguments: &[&str]) -> Value {
    let output = place.retryproof(["get", "--output", "json"]).args(arguments).output().unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));
    serde_json::from_str(&out(&output)).unwrap()
}

#[test]
fn id_4_get_shows_a_record_and_masks_its_key() {
    let place = Place::sqlite();
    let missing = place.retryproof(["get", "payments", "canary"]).output().unwrap();
    assert_eq!((code(&missing), out(&missing)), (1, String::new()));
    assert!(err(&missing).contains("there is no record of payments#"), "{}", err(&missing));

    on_store(&place, |engine| async move {
        let context = IdempotencyContext::builder("payments", "canary").build().unwrap();
        let value = serde_json::json!({ "receipt": "r-1\u{1b}[2J" });
        let _ = engine.execute(context, || async { Ok::<_, std::io::Error>(value) }).await.unwrap();
    });
    let shown = place.retryproof(["get", "payments", "canary", "--body"]).output().unwrap();
    assert_eq!(code(&shown), 0, "{}", err(&shown));
    let text = out(&shown);
    assert!(text.contains("state") && text.contains("complete"), "{text}");
    assert!(text.contains("receipt") && !text.contains('\u{1b}'), "{text}");
    assert!(!format!("{text}{}", err(&missing)).contains("canary"), "{text}");

    let record = get(&place, &["payments", "canary", "--body"]);
    assert_eq!(record["state"], "complete");
    assert_eq!(record["body"]["value"]["receipt"], "r-1\u{1b}[2J");
    assert!(record["key"].as_str().unwrap().starts_with('#'));
    let record = get(&place, &["payments", "canary", "--show-keys"]);
    assert_eq!(record["key"], "canary");
    assert!(record.get("body").is_none());
}

#[test]
fn rec_2_get_shows_a_run_in_progress_and_its_holder() {
    let place = Place::sqlite();
    // The command waits for input that does not come.
    let mut command = place.run(&["--lease", "PT1M"], "echo > up; read line");
    let mut run = started(command.stdin(Stdio::piped()));
    let record = eventually("a run", || {
        place.path("up").exists().then(|| get(&place, &["work", "k", "--body"]))
    });
    assert_eq!((&record["state"], &record["is_over"]), (&"in_progress".into(), &false.into()));
    assert!(record["expires_in_ms"].as_u64().unwrap() <= 60_000);
    assert_eq!(record["body"], Value::Null);
    assert!(record["holder"].as_str().unwrap().ends_with(&format!(":{}", run.id())), "{record}");
    assert_eq!((&record["lease_ms"], &record["takeovers"]), (&60_000.into(), &0.into()));
    assert!(record["last_beat_ago_ms"].as_u64() <= record["granted_ago_ms"].as_u64());
    run.kill().unwrap();
    run.wait().unwrap();
}

#[test]
fn http_16_get_finds_the_records_of_the_filter() {
    let place = Place::sqlite();
    let long = "x".repeat(300);
    on_store(&place, |engine| async move {
        for caller in [None, Some("alice"), Some(long.as_str())] {
            let builder = IdempotencyFilter::builder(engine.clone());
            let request = http::Request::post("/orders").header("idempotency-key", "order-17");
            let handler = tower::service_fn(|_: http::Request<_>| async {
                let response = http::Response::builder().status(201).header("location", "/o/1");
                Ok::<_, std::convert::Infallible>(
                    response.body(Full::new(bytes::Bytes::from("{\"id\":1}"))).unwrap(),
                )
            });
            let request = request.body(Full::new(bytes::Bytes::new()).boxed_unsync()).unwrap();
            let policy = Policy::new("orders").with_unmatched();
            let response = match caller {
                None => {
                    let filter = builder.callers_share_keys().build().unwrap();
                    filter.guard(policy).layer(handler).oneshot(request).await.unwrap()
                }
                Some(caller) => {
                    let caller = caller.to_owned();
                    let hook = move |_: &http::request::Parts| caller.clone();
                    let filter = builder.caller(hook).build().unwrap();
                    filter.guard(policy).layer(handler).oneshot(request).await.unwrap()
                }
            };
            assert_eq!(response.status(), 201);
        }
    });
    let long = "x".repeat(300);
    for who in [&["--shared"][..], &["--caller", "alice"], &["--caller", &long]] {
        let arguments: Vec<_> =
            ["orders", "order-17", "--body"].iter().chain(who).copied().collect();
        let record = get(&place, &arguments);
        assert_eq!(record["body"]["status"], 201, "{who:?}");
        assert_eq!(record["http_status"], 201, "{who:?}");
        assert_eq!(record["body"]["body"]["text"], "{\"id\":1}");
        assert!(record["body"]["headers"].to_string().contains("[\"location\",\"/o/1\"]"));
    }
    // A stored key that begins with a dash must be passed after `--`.
    let stored = ["get", "orders", "--body", "--", "-:order-17"];
    let text = out(&place.retryproof(stored).output().unwrap());
    assert!(text.contains("HTTP status 201\n") && text.contains("location: /o/1\n"), "{text}");
    let stored = ["get", "orders", "--", "-:order-17"];
    let text = out(&place.retryproof(stored).output().unwrap());
    assert!(text.contains("HTTP status") && !text.contains("location"), "{text}");
    let both = ["get", "orders", "k", "--shared", "--caller", "alice"];
    assert_eq!(code(&place.retryproof(both).output().unwrap()), 2);
}

#[test]
fn sto_4_purge_deletes_expired_records_only() {
    let place = Place::sqlite();
    for (key, ttl) in [("short", "PT0.001S"), ("long", "P1D")] {
        let run = ["run", "work", key, "--ttl", ttl, "--", "true"];
        assert_eq!(code(&place.retryproof(run).output().unwrap()), 0);
    }
    let expired = get(&place, &["work", "short", "--body"]);
    assert_eq!((&expired["is_over"], &expired["body"]), (&true.into(), &Value::Null));
    let purge = || {
        let output = place.retryproof(["purge", "--output", "jsonl"]).output().unwrap();
        assert_eq!(code(&output), 0, "{}", err(&output));
        out(&output)
    };
    assert_eq!(purge(), "{\"deleted\":1,\"store\":\"sqlite\"}\n");
    assert_eq!(purge(), "{\"deleted\":0,\"store\":\"sqlite\"}\n");
    let stats = place.retryproof(["stats"]).output().unwrap();
    let words: Vec<_> = out(&stats).split_whitespace().map(str::to_owned).collect();
    assert_eq!(words[..8], ["store", "sqlite", "records", "1", "in", "progress", "0", "complete"]);
}

#[test]
fn sto_3_migrate_is_explicit_and_its_sql_is_the_schema() {
    let place = Place::sqlite();
    let url = format!("sqlite:{}?table=pay", place.path("new.db").display());
    let with = |verb: &[&str]| bare().args(["--store", &url]).args(verb).output().unwrap();
    let printed = with(&["migrate", "--print"]);
    assert!(out(&printed).contains("pay_meta"), "{}", err(&printed));
    assert!(!place.path("new.db").exists(), "printing changes nothing");

    rusqlite::Connection::open(place.path("new.db")).unwrap();
    let refused = with(&["stats"]);
    assert_eq!(code(&refused), 4, "{}", err(&refused));
    assert!(err(&refused).contains("`retryproof migrate`"), "{}", err(&refused));
    for _ in 0..2 {
        let migrated = with(&["migrate"]);
        assert_eq!(code(&migrated), 0, "{}", err(&migrated));
    }
    assert_eq!(code(&with(&["stats"])), 0);

    let other = place.path("printed.db");
    let db = rusqlite::Connection::open(&other).unwrap();
    db.execute_batch("PRAGMA journal_mode = WAL").unwrap();
    db.execute_batch(&out(&printed)).unwrap();
    let url = format!("sqlite:{}?table=pay", other.display());
    assert_eq!(code(&bare().args(["stats", "--store", &url]).output().unwrap()), 0);
}
