// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the page shows, and what it never shows.

use std::io::Error as IoError;
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::request::Parts;
use retryproof_admin::Access;
use retryproof_core::{IdempotencyContext, IdempotencyEngine, SharedStore};
use retryproof_memory::MemoryStore;
use tokio::time::{advance, sleep};

use crate::support::{Shelf, complete, find, get, newer, running};

#[tokio::test(start_paused = true)]
async fn ops_9_stuck_keys_are_shown_with_holder_and_times_the_oldest_first() {
    let shelf = Shelf::default();
    let young = shelf.put("pay", "young", running(Some(12), 40, "api-7:41"));
    let old = shelf.put("pay", "old", running(None, 7_500, "api-3:17"));
    let healthy = shelf.put("pay", "healthy", running(Some(29), 90, "api-9:99"));
    shelf.put("mail", "done", complete());
    let page = get(&shelf.page(), "/records").await;
    assert_eq!(page.status, StatusCode::OK);
    let at = |part: &str| page.body.find(part).unwrap_or_else(|| panic!("{part}: {}", page.body));
    assert!(at(&old.to_string()) < at(&young.to_string()));
    assert!(!page.has(&healthy.to_string()) && !page.has("api-9:99"));
    for part in [
        "<td>api-7:41</td><td>40 s</td><td>18 s ago</td><td>free in 12 s</td><td class=\"num\">41</td>",
        "<td>api-3:17</td><td>2 h 5 min</td>",
        "<td>free: the next call takes over</td>",
        "4 records, read just now.",
        "Store <b>shelf</b>",
    ] {
        at(part);
    }
    // The columns are: in progress, lease over, complete, expired, bytes.
    let numbers = |counts: [u64; 5]| counts.map(|n| format!("<td class=\"num\">{n}</td>")).concat();
    at(&format!("<tr><td>mail</td>{}", numbers([0, 0, 1, 0, 210])));
    at(&format!("<tr><td>pay</td>{}<td>2 h 5 min</td>", numbers([3, 1, 0, 0, 0])));

    let calm = Shelf::default();
    calm.put("pay", "healthy", running(Some(29), 90, "api-9:99"));
    assert!(get(&calm.page(), "/records").await.has("No key is stuck."));
}

#[tokio::test(start_paused = true)]
async fn ops_9_a_key_is_found_as_the_client_sent_it_and_by_its_digest() {
    let shelf = Shelf::default();
    let message = shelf.put("orders", "order-17", running(Some(29), 90, "api-9:99"));
    let shared = shelf.put("pay", "-:order-17", complete());
    let callers = shelf.put("pay", "5:alice:order-18", complete());
    let absent = shelf.put("pay", "a:order-19", complete());
    let page = shelf.page();
    for (form, found) in [
        ("scope=orders&key=order-17&caller=", &message),
        ("scope=pay&key=order-17", &shared),
        ("scope=pay&key=order-18&caller=alice", &callers),
        ("scope=pay&key=5%3Aalice%3Aorder-18", &callers),
        ("scope=pay&key=order-19&caller=", &absent),
    ] {
        let answer = find(&page, form).await;
        assert_eq!(answer.status, StatusCode::OK, "{form}");
        assert!(answer.has(&format!("<h2><code>{found}</code></h2>")), "{form}: {}", answer.body);
        let by_digest = format!("scope=&key={}", found.to_string().replace('#', "%23"));
        assert!(find(&page, &by_digest).await.has(&found.to_string()), "{by_digest}");
        let digest = found.key().to_string().replace('#', "");
        let in_scope = format!("scope={}&key={digest}", found.scope());
        assert!(find(&page, &in_scope).await.has(&found.to_string()), "{in_scope}");
    }
    let held = find(&page, "scope=orders&key=order-17").await;
    for part in ["in progress", "api-9:99", "1 min 30 s", "1 s ago", "free in 29 s", "<dd>41</dd>"]
    {
        assert!(held.has(part), "{part}: {}", held.body);
    }
    let done = find(&page, "scope=pay&key=order-17").await;
    for part in ["complete", "unknown", "kept for 1 h", "210 bytes"] {
        assert!(done.has(part), "{part}: {}", done.body);
    }
    for form in ["scope=pay&key=order-99", "scope=pay&key=order-17&caller=alice"] {
        assert!(find(&page, form).await.has("There is no record of this key."), "{form}");
    }
    let nowhere = find(&page, "key=0123456789abcdef").await;
    assert!(nowhere.has("None of the 4 records"), "{}", nowhere.body);
    assert_eq!(nowhere.status, StatusCode::OK);
    let refused = find(&page, "scope=&key=order-17").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.has("the scope is empty"), "{}", refused.body);
}

/// Puts a canary into everything that must never reach the page.
#[tokio::test(start_paused = true)]
async fn ops_9_id_4_no_key_and_no_answer_is_ever_shown() {
    let store = SharedStore::builder(MemoryStore::new()).with_inspect().build();
    let engine = IdempotencyEngine::new(store);
    for key in ["canary-1", "-:canary-2"] {
        let ctx = IdempotencyContext::builder("pay", key).build().unwrap();
        let answer = engine.execute(ctx, || async { Ok::<_, IoError>("canary-3".to_owned()) });
        assert!(answer.await.unwrap().into_value().is_some());
    }
    let ctx = IdempotencyContext::builder("pay", "canary-4").build().unwrap();
    let held = engine.try_acquire(&ctx).await.unwrap();
    // Without a trace, the memory store keeps no holder note, so this record counts as stuck only
    // when its lease has ended.
    advance(Duration::from_secs(3_600)).await;
    let page = retryproof_admin::router(&engine, |_: &Parts| Access::All);
    for answer in [
        get(&page, "/records").await,
        get(&page, "/live").await,
        find(&page, "scope=pay&key=canary-1").await,
        find(&page, "scope=pay&key=canary-2").await,
        find(&page, "scope=pay&key=canary-5").await,
        find(&page, "scope=&key=canary-6").await,
        find(&page, &format!("scope=pay&key=canary-7{}", "7".repeat(600))).await,
    ] {
        assert!(answer.has("<h1>retryproof</h1>"), "{}", answer.body);
        assert!(!answer.has("canary"), "{}", answer.body);
    }
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn ops_9_hostile_scopes_and_labels_stay_text() {
    const ATTACK: &str = "\"><script>alert(1)</script><img src=x onerror='x'>\u{202e}&amp;";
    let shelf = Shelf::default();
    // A label holds at most 54 bytes, so this attack is shorter than `ATTACK`.
    shelf.put(ATTACK, ATTACK, running(None, 60, "\"><script>alert(2)</script>\n\u{202e}"));
    let page = shelf.page();
    let form =
        "scope=%22%3E%3Cscript%3Ealert(3)&key=%3Cscript%3E&caller=%22%3E%3Cscript%3Ealert(4)";
    for answer in [
        get(&page, "/records").await,
        get(&page, "/live").await,
        find(&page, form).await,
        find(&page, "scope=%0A%3Cscript%3E&key=k").await,
    ] {
        for markup in ["<script", "<img", "onerror='", "\u{202e}"] {
            assert!(!answer.has(markup), "{markup:?} in {}", answer.body);
        }
    }
    let shown = get(&page, "/records").await;
    assert!(shown.has("&quot;&gt;&lt;script&gt;alert(2)&lt;/script&gt;\\u{a}\\u{202e}"));
    assert!(shown.has("<option value=\"&quot;&gt;&lt;script&gt;alert(1)"), "{}", shown.body);
    let echoed = find(&page, form).await;
    assert!(echoed.has("value=\"&quot;&gt;&lt;script&gt;alert(3)\""), "{}", echoed.body);
}

#[tokio::test(start_paused = true)]
async fn ops_9_viewers_share_one_scan_and_a_slow_scan_is_repeated_rarely() {
    let shelf = Shelf::default();
    for number in 0..20 {
        shelf.put("pay", &format!("order-{number}"), complete());
    }
    shelf.slow_down(Duration::from_secs(1));
    let page = shelf.page();
    // The scan takes 20 s. A request waits 2 s for the scan, and then shows the records read so
    // far.
    let (first, second) = tokio::join!(get(&page, "/records"), get(&page, "/live"));
    for answer in [first, second] {
        assert!(answer.has(">1 record read so far."), "{}", answer.body);
        assert!(!answer.has("No key is stuck."), "not all records were read");
    }
    sleep(Duration::from_secs(19)).await;
    assert!(get(&page, "/records").await.has("20 records, read 1 s ago."));
    assert_eq!(shelf.scans(), 1);
    sleep(Duration::from_secs(190)).await;
    get(&page, "/records").await;
    assert_eq!(shelf.scans(), 1, "a scan of 20 s is followed by a pause of 200 s");
    sleep(Duration::from_secs(11)).await;
    get(&page, "/records").await;
    assert_eq!(shelf.scans(), 2);
}

#[tokio::test(start_paused = true)]
async fn ops_9_an_error_of_the_store_is_shown_and_the_next_page_tries_again() {
    let shelf = Shelf::default();
    shelf.put("pay", "order-17", complete());
    let page = shelf.page();
    shelf.go_away();
    for answer in [get(&page, "/records").await, find(&page, "scope=pay&key=order-17").await] {
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.has("the store is away"), "{}", answer.body);
        assert!(!answer.has("No key is stuck") && !answer.has("There is no record"));
    }
    // If the store cannot be inspected, the page says so.
    let blind = IdempotencyEngine::new(SharedStore::new(MemoryStore::new()));
    let page = retryproof_admin::router(&blind, |_: &Parts| Access::ReadOnly);
    let answer = get(&page, "/records").await;
    assert!(answer.has("this store cannot show its records"), "{}", answer.body);
    let answer = find(&page, "scope=pay&key=order-17").await;
    assert!(answer.has("this store cannot show its records"), "{}", answer.body);
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[tokio::test(start_paused = true)]
async fn ops_9_cmp_8_records_that_cannot_be_read_say_which_program_to_upgrade() {
    let one =
        format!("1 record cannot be read by this program (version {VERSION}). Calls with its");
    let two =
        format!("2 records cannot be read by this program (version {VERSION}). Calls with th");
    for (count, sentence) in [(1, one), (2, two)] {
        let shelf = Shelf::default();
        shelf.put("pay", "order-17", complete());
        shelf.spoil(count);
        let page = get(&shelf.page(), "/records").await;
        assert!(page.has(&sentence), "{sentence}: {}", page.body);
        for part in ["Upgrade this program", "damaged", "kind `Corrupt` in the operations guide"] {
            assert!(page.has(part), "{part}: {}", page.body);
        }
    }
    let whole = Shelf::default();
    whole.put("pay", "order-17", complete());
    assert!(!get(&whole.page(), "/records").await.has("cannot be read"));
}

#[tokio::test(start_paused = true)]
async fn ops_9_rec_2_the_page_shows_the_versions_of_the_program_and_of_newer_holders() {
    let shelf = Shelf::default();
    shelf.put("pay", "order-17", running(Some(29), 1, "api-9:99"));
    let program = format!("<dt>Version of this program</dt><dd>{VERSION}</dd>");
    let calm = get(&shelf.page(), "/records").await;
    assert!(calm.has(&program), "{}", calm.body);
    assert!(!calm.has("newer version"), "{}", calm.body);
    shelf.put("pay", "order-18", newer());
    let page = get(&shelf.page(), "/records").await;
    assert!(
        page.has("A newer version of retryproof wrote the holder of 1 record."),
        "{}",
        page.body
    );
    shelf.put("pay", "order-19", newer());
    let page = get(&shelf.page(), "/records").await;
    assert!(
        page.has("A newer version of retryproof wrote the holder of 2 records."),
        "{}",
        page.body
    );
}
