// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--operate`: the page for operators as a person uses it in a browser, metrics, and spans.

use std::path::Path;
use std::time::Duration;

use retryproof::store::{AcquireRequest, Acquired, HolderNote};
use retryproof::{IdempotencyStore as _, Identity, OwnerId, Scope};
use serde_json::Value;

use crate::browser::Browser;
use crate::http::{self, Service};

const ORDER: &str = r#"{"account":"alice","amount":4200,"reference":"a bell"}"#;
const LEASE: Duration = Duration::from_secs(120);
const SECOND: i64 = 1_000_000;

fn operated() -> Service {
    Service::start(&["--operate", "127.0.0.1:0"])
}

fn pay(service: &Service, key: &str) -> http::Answer {
    let headers = [("idempotency-key", key), ("content-type", "application/json")];
    http::call(service.address, "POST", "/payments", &headers, ORDER).expect("an answer")
}

/// A record of a holder that died.
struct Dead {
    scope: &'static str,
    key: &'static str,
    holder: &'static str,
    /// How many seconds ago it was granted, and how many seconds of its lease are left.
    granted_ago: i64,
    left: i64,
}

const DEAD: [Dead; 3] = [
    Dead {
        scope: "payments",
        key: "-:order-2041",
        holder: "payments-7f9c:4711",
        granted_ago: 94,
        left: 41,
    },
    Dead {
        scope: "payments",
        key: "-:order-1987",
        holder: "payments-5d2a:118",
        granted_ago: 7_500,
        left: -7_400,
    },
    Dead {
        scope: "mail.receipt",
        key: "order-1987",
        holder: "worker-2:77",
        granted_ago: 312,
        left: 23,
    },
];

/// Leaves a record as a dead process does: acquires the key, and then moves the times in the record
/// into the past.
fn leave_behind(database: &Path, dead: &Dead) -> Identity {
    let id = Identity::of(Scope::new(dead.scope).expect("a scope"), dead.key).expect("a key");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("sqlite:{}", database.display());
        let store = retryproof::connect(&url).await.expect("a store");
        let owner = OwnerId::new();
        let note = HolderNote::new(owner, LEASE, None, dead.holder);
        let request = AcquireRequest::new(owner, LEASE, Duration::from_secs(86_400));
        let granted = store.acquire(&id, &request.with_holder(Some(note))).await.expect("granted");
        assert!(matches!(granted, Acquired::Granted(_)));
    });
    let lease = i64::try_from(LEASE.as_micros()).expect("a lease");
    let rows = rusqlite::Connection::open(database)
        .expect("the database")
        .execute(
            "UPDATE retryproof_records SET token = token - ?1, expires_at = expires_at - ?2 \
             WHERE scope = ?3 AND key = ?4",
            rusqlite::params![
                dead.granted_ago * SECOND,
                lease - dead.left * SECOND,
                dead.scope.as_bytes(),
                dead.key.as_bytes()
            ],
        )
        .expect("an update");
    assert_eq!(rows, 1);
    id
}

/// The page without the values of its cells, which differ from run to run.
const WITHOUT_VALUES: &str = "
    const body = document.body.cloneNode(true);
    for (const cell of body.querySelectorAll('td, dd')) cell.textContent = '..';
    return body.outerHTML.replace(/read (just now|\\d+ s ago)/, 'read ..');
";

/// Checks that docs/admin.png shows today's page: neither the page nor its style has changed since
/// the picture was made. Making a new picture also updates the file `admin.png.html`, with which
/// the page is compared.
fn assert_pictured(browser: &Browser) {
    let page = browser.run(WITHOUT_VALUES);
    let style = include_str!("../../../../crates/retryproof-admin/src/style.css");
    let shown = format!("<style>\n{style}</style>\n{}\n", page.as_str().expect("HTML"));
    let pictured = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/admin.png.html");
    if std::env::var_os("RETRYPROOF_UPDATE_PICTURE").is_some() {
        std::fs::write(pictured, &shown).expect("written");
    }
    let pictured = std::fs::read_to_string(pictured).unwrap_or_default();
    let how = "make a new picture: RETRYPROOF_UPDATE_PICTURE=1 cargo test -p payments ops_9";
    assert!(shown == pictured, "docs/admin.png shows another page; {how}\n{shown}");
}

#[test]
fn ops_9_an_operator_sees_stuck_keys_and_finds_a_key_in_a_browser() {
    let service = operated();
    for number in 0..7 {
        assert_eq!(pay(&service, &format!("order-{number}")).status, 201);
    }
    let browser = Browser::open();
    let dead = DEAD.map(|dead| leave_behind(&service.database(), &dead).to_string());
    browser.go(service.operators.as_deref().expect("a page"));
    browser.wait("document.querySelectorAll('main section').length === 4");
    let stuck = browser.text("section[aria-labelledby='h-stuck']");
    for part in ["payments-7f9c:4711", "payments-5d2a:118", "worker-2:77", "free in", "2 h 5 min"] {
        assert!(stuck.contains(part), "{part:?} is missing in {stuck}");
    }
    let at = |id: &String| stuck.find(id.as_str()).expect("the masked key");
    assert!(
        at(&dead[1]) < at(&dead[2]) && at(&dead[2]) < at(&dead[0]),
        "the oldest first: {stuck}"
    );
    assert!(!stuck.contains("order-"), "{stuck}");
    assert!(browser.text("section[aria-labelledby='h-scopes']").contains("mail.receipt"));
    for (field, label) in [("#scope", "Scope"), ("#key", "Key, or the digest of a log line")] {
        assert_eq!(browser.label(field), label);
    }
    for width in [320, 768] {
        browser.show_as(width, 800, "dark");
        browser.wait(&format!("innerWidth === {width}"));
        let wide = browser.run("return document.documentElement.scrollWidth");
        assert_eq!(wide, width, "wider than its window");
    }
    browser.show_as(1_120, 840, "light");
    crate::keep_picture("admin.png", &browser.picture_of_all(1_120));
    assert_pictured(&browser);

    // Search first for the key as the client sent it, then for the digest that logs print.
    browser.fill("#scope", "payments");
    browser.fill("#key", "order-2041");
    browser.click("form button");
    browser.wait("document.querySelector('.record')");
    let record = browser.text(".record");
    for part in [&*dead[0], "in progress", "payments-7f9c:4711", "Token"] {
        assert!(record.contains(part), "{part:?} is missing in {record}");
    }
    assert!(!browser.text("body").contains("order-2041"));
    let url = browser.run("return location.href + document.referrer").to_string();
    assert!(!url.contains("order-2041"), "{url}");
    browser.fill("#key", &dead[2]);
    browser.click("form button");
    browser.wait("document.querySelector('.record dl').textContent.includes('worker-2:77')");
    browser.fill("#key", "order-99");
    browser.click("form button");
    browser.wait("document.querySelector('.notice')");
    assert!(browser.text(".notice").starts_with("There is no record of this key."));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn ops_9_the_page_of_the_service_asks_for_its_password() {
    let service = operated();
    let get = |headers: &[(&str, &str)]| {
        http::call(service.operate(), "GET", "/admin/records", headers, "").expect("an answer")
    };
    for headers in [&[][..], &[("authorization", "Basic b3BlcmF0b3I6MTIzNA==")]] {
        let refused = get(headers);
        assert_eq!(refused.status, 401);
        assert!(refused.header("www-authenticate").expect("a challenge").starts_with("Basic"));
        assert_eq!(refused.header("cache-control"), Some("no-store"));
        assert!(!refused.body.contains("retryproof"), "{}", refused.body);
    }
    // The port for customers does not serve the operators' page.
    assert_eq!(service.get("/admin/records").status, 404);
    assert_eq!(service.get("/metrics").status, 404);
}

#[test]
fn rec_2_run_9_metrics_count_a_payment_and_the_span_of_its_replay_links_to_it() {
    let service = operated();
    let get = |path: &str| http::call(service.operate(), "GET", path, &[], "").expect("an answer");
    let unrecorded = "idempotency_completions_unrecorded_total{idempotency_scope=\"payments\"";
    let before = get("/metrics").body;
    let line = before.lines().find(|line| line.starts_with(unrecorded)).expect("born at 0");
    assert!(line.ends_with(" 0"), "{line}");
    for _ in 0..2 {
        assert_eq!(pay(&service, "canary-17").status, 201);
    }
    let metrics = get("/metrics");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4"));
    for outcome in ["executed", "replayed"] {
        let labels = format!("idempotency_outcome=\"{outcome}\",idempotency_scope=\"payments\"");
        let is_wanted =
            |line: &&str| line.starts_with("idempotency_calls_total{") && line.contains(&labels);
        let line =
            metrics.body.lines().find(is_wanted).unwrap_or_else(|| panic!("{}", metrics.body));
        assert!(line.ends_with(" 1"), "{line}");
    }
    let spans = get("/spans").body;
    let spans: Vec<Value> =
        spans.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let call = |outcome: &str| {
        let is_wanted = |span: &&Value| {
            span["name"] == "idempotency.call" && span["fields"]["outcome"] == outcome
        };
        spans.iter().find(is_wanted).unwrap_or_else(|| panic!("no span {outcome} in {spans:#?}"))
    };
    let (executed, replayed) = (call("executed"), call("replayed"));
    assert_ne!(executed["trace"], replayed["trace"]);
    assert_eq!(replayed["links"][0]["trace"], executed["trace"]);
    for shown in [metrics.body, format!("{spans:?}")] {
        assert!(!shown.contains("canary"), "{shown}");
    }
}
