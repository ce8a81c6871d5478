// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who can see the page, and what browsers may do with it.

use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Method, Request, StatusCode};
use retryproof_admin::Access;

use crate::support::{Shelf, complete, find, get, send};

/// Decides by a header that, in production, a proxy with a login would set.
fn by_role(request: &Parts) -> Access {
    match request.headers.get("x-role").map(|role| role.as_bytes()) {
        Some(b"admin") => Access::All,
        Some(b"operator") => Access::ReadOnly,
        _ => Access::Denied,
    }
}

#[tokio::test(start_paused = true)]
async fn ops_9_a_denied_request_is_refused_before_the_store_is_asked() {
    let shelf = Shelf::default();
    shelf.put("pay", "order-17", complete());
    let page = retryproof_admin::router(&shelf.engine(), by_role);
    for (method, path) in [
        (Method::GET, "/"),
        (Method::GET, "/records"),
        (Method::HEAD, "/records"),
        (Method::POST, "/records"),
        (Method::DELETE, "/records"),
        (Method::GET, "/live"),
        (Method::GET, "/style.css"),
        (Method::GET, "/nothing"),
    ] {
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("x-role", "customer")
            .body(Body::from("scope=pay&key=order-17"))
            .unwrap();
        let answer = send(&page, request).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {path}");
        assert!(!answer.has("retryproof") && !answer.has("pay"), "{}", answer.body);
    }
    assert_eq!(shelf.calls(), 0);
    for role in ["admin", "operator"] {
        let request = Request::get("/records").header("x-role", role).body(Body::empty()).unwrap();
        assert_eq!(send(&page, request).await.status, StatusCode::OK, "{role}");
    }
    assert_eq!(shelf.calls(), 1, "one page of one scan serves both requests");
}

#[tokio::test(start_paused = true)]
async fn ops_9_every_answer_forbids_caches_scripts_and_frames() {
    let shelf = Shelf::default();
    let page = shelf.page();
    let denied = retryproof_admin::router(&shelf.engine(), |_: &Parts| Access::Denied);
    let answers = [
        (200, get(&page, "/records").await),
        (200, get(&page, "/live").await),
        (200, get(&page, "/style.css").await),
        (200, find(&page, "scope=pay&key=order-17").await),
        (400, find(&page, "scope=&key=order-17").await),
        (413, find(&page, &format!("scope=pay&key={}", "k".repeat(9_000))).await),
        (404, get(&page, "/nothing").await),
        (403, get(&denied, "/records").await),
    ];
    for (status, answer) in answers {
        assert_eq!(answer.status.as_u16(), status, "{}", answer.body);
        assert_eq!(answer.header("cache-control"), "no-store");
        assert_eq!(answer.header("x-frame-options"), "DENY");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
        let policy = answer.header("content-security-policy");
        for part in ["default-src 'none'", "style-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("script") && !policy.contains("unsafe"), "{policy}");
        for elsewhere in ["<script", "http://", "https://", "style=", "href=\"/", "action=\"/"] {
            assert!(!answer.has(elsewhere), "{elsewhere} in {}", answer.body);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ops_9_the_page_works_below_any_path() {
    let page = Router::new().nest("/ops/keys", Shelf::default().page());
    // A browser resolves `./keys/records` against `/ops/keys`, and `./records` against `/`.
    let moved = get(&page, "/ops/keys").await;
    assert_eq!(moved.status, StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(moved.header("location"), "./keys/records");
    let at_the_root = get(&Shelf::default().page(), "/").await;
    assert_eq!(at_the_root.header("location"), "./records");
    let shown = get(&page, "/ops/keys/records").await;
    assert_eq!(shown.status, StatusCode::OK);
    for link in ["href=\"style.css\"", "action=\"records\"", "href=\"live\""] {
        assert!(shown.has(link), "{link}");
    }
    assert_eq!(get(&page, "/ops/keys/style.css").await.status, StatusCode::OK);
    assert!(get(&page, "/ops/keys/live").await.has("href=\"records\""));
}
