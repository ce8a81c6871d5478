// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a layer guards and what it lets pass (HTTP-1).

use axum::Router;
use axum::routing::{any, get, post as on_post};
use http::{Method, Request, StatusCode};
use retryproof_http::{AnswerFate, Methods, Policy};

use crate::world::{Annotated, Runs, filter, post, request, send};

const KEY: &[(&str, &str)] = &[("idempotency-key", "k")];

fn keyed(method: &str, path: &str) -> Request<axum::body::Body> {
    request(method.parse().unwrap(), path, KEY, "")
}

/// Creates a router with nothing but `POST /refunds` behind the layer.
fn refunds(policy: Policy) -> (Router, Runs) {
    let runs = Runs::default();
    let refund = {
        let runs = runs.clone();
        on_post(move || async move { runs.run().to_string() })
    };
    (Router::new().route("/refunds", refund.layer(filter().guard(policy))), runs)
}

#[tokio::test(start_paused = true)]
async fn http_1_a_layer_lets_methods_pass_that_change_nothing() {
    let (app, runs) = refunds(Policy::new("refunds"));
    for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
        for headers in [&[][..], KEY] {
            let answer =
                send(&app, request(method.parse().unwrap(), "/refunds", headers, "")).await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {headers:?}");
            assert_eq!(answer.header("allow"), Some("POST"), "{method} {headers:?}");
            assert!(!answer.is_replay());
        }
    }
    assert_eq!(send(&app, keyed("POST", "/refunds")).await.text(), "1");
    assert_eq!(send(&app, request(Method::POST, "/refunds", &[], "")).await.code(), "key-missing");
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_1_a_405_below_a_layer_burns_no_key() {
    let (app, runs) = refunds(Policy::new("refunds"));
    for _ in 0..2 {
        let refused = send(&app, keyed("PUT", "/refunds")).await;
        assert_eq!((refused.status, refused.is_replay()), (StatusCode::METHOD_NOT_ALLOWED, false));
    }
    let ran = send(&app, keyed("POST", "/refunds")).await;
    assert_eq!((ran.text(), ran.is_replay()), ("1", false));
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_1_a_405_is_stored_where_the_answer_says_so_and_at_an_annotated_endpoint() {
    let runs = Runs::default();
    let handler = |runs: Runs, fate: Option<AnswerFate>| {
        move || async move {
            let mut answer = http::Response::new(axum::body::Body::from(runs.run().to_string()));
            *answer.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            match fate {
                Some(fate) => fate.mark(answer),
                None => answer,
            }
        }
    };
    let marked = on_post(handler(runs.clone(), Some(AnswerFate::Store)));
    let annotated = {
        let handler = handler(runs.clone(), None);
        Annotated(&crate::world::STD, move |_: String| handler())
    };
    let filter = filter();
    let app = Router::new()
        .route("/marked", marked.layer(filter.guard(Policy::new("marked"))))
        .route("/annotated", on_post(annotated))
        .with_state(filter);
    for (path, run) in [("/marked", "1"), ("/annotated", "2")] {
        assert_eq!(send(&app, post(path, "k", "")).await.text(), run);
        let again = send(&app, post(path, "k", "")).await;
        assert_eq!((again.text(), again.is_replay()), (run, true), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_1_what_the_router_did_not_match_passes() {
    let hello = || get(|| async { "hello" }).post(|| async { "a" });
    for policy in [Policy::unnamed(), Policy::new("named")] {
        let own = Router::new()
            .route("/a", hello())
            .fallback(|| async { (StatusCode::NOT_FOUND, "own") });
        for app in [Router::new().route("/a", hello()), own] {
            let app = app.layer(filter().guard(policy));
            for (method, headers) in
                [(Method::POST, KEY), (Method::POST, &[][..]), (Method::GET, &[][..])]
            {
                for _ in 0..2 {
                    let answer = send(&app, request(method.clone(), "/nowhere", headers, "")).await;
                    assert_eq!(
                        answer.status,
                        StatusCode::NOT_FOUND,
                        "{policy:?} {method} {headers:?}"
                    );
                    assert!(!answer.is_replay());
                }
            }
            assert_eq!(send(&app, keyed("GET", "/a")).await.text(), "hello");
            assert!(!send(&app, keyed("POST", "/a")).await.is_replay());
            assert!(send(&app, keyed("POST", "/a")).await.is_replay());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn http_1_a_service_nested_at_a_path_is_matched() {
    let runs = Runs::default();
    let service = {
        let runs = runs.clone();
        Router::new().fallback(move || async move { runs.run().to_string() })
    };
    let nested = Router::new().nest_service("/api", service);
    let named = nested.clone().layer(filter().guard(Policy::new("api")));
    for replayed in [false, true] {
        let answer = send(&named, post("/api/x", "k", "")).await;
        assert_eq!((answer.text(), answer.is_replay()), ("1", replayed));
    }
    // For a nested service, no route is known from which a default scope could be derived. The
    // request is refused, not passed on unguarded.
    let unnamed = nested.layer(filter().guard(Policy::unnamed()));
    assert_eq!(send(&unnamed, post("/api/x", "k", "")).await.code(), "scope-invalid");
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn http_1_a_fallback_is_guarded_where_the_policy_says_so() {
    let runs = Runs::default();
    let proxy = |policy: Policy| {
        let runs = runs.clone();
        let proxy = any(move || async move { runs.run().to_string() });
        Router::new().fallback_service(proxy.layer(filter().guard(policy)))
    };
    let guarded = proxy(Policy::new("proxy").with_unmatched());
    for replayed in [false, true] {
        let answer = send(&guarded, post("/anything", "k", "")).await;
        assert_eq!((answer.text(), answer.is_replay()), ("1", replayed));
    }
    let passed = proxy(Policy::new("proxy"));
    for run in ["2", "3"] {
        assert_eq!(send(&passed, post("/anything", "k", "")).await.text(), run);
    }
}

#[tokio::test(start_paused = true)]
async fn http_1_a_policy_names_the_methods_of_its_layer() {
    let app = |policy: Policy| {
        let runs = Runs::default();
        let handler = any(move || async move { runs.run().to_string() });
        Router::new().route("/x", handler.layer(filter().guard(policy)))
    };
    let all = app(Policy::new("x").methods(Methods::All));
    let put = app(Policy::new("x").methods(Methods::Only(&["PUT", "PURGE"])));
    let changing = app(Policy::new("x"));
    for (method, guarded) in [
        ("GET", [true, false, false]),
        ("OPTIONS", [true, false, false]),
        ("PUT", [true, true, true]),
        ("POST", [true, false, true]),
        ("PURGE", [true, true, true]),
        ("put", [true, false, true]),
    ] {
        for (app, guarded) in [&all, &put, &changing].into_iter().zip(guarded) {
            let request =
                || request(method.parse().unwrap(), "/x", &[("idempotency-key", method)], "");
            let first = send(app, request()).await;
            assert_eq!(first.status, StatusCode::OK, "{method}");
            assert_eq!(send(app, request()).await.is_replay(), guarded, "{method}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn http_1_what_a_layer_lets_pass_an_annotated_handler_inside_still_guards() {
    let runs = Runs::default();
    let read = {
        let runs = runs.clone();
        Annotated(&crate::world::STD, move |_: String| async move { runs.run().to_string() })
    };
    let filter = filter();
    let app = Router::new()
        .route("/x", get(read))
        .layer(filter.guard(Policy::new("outer")))
        .with_state(filter);
    for replayed in [false, true] {
        let answer = send(&app, keyed("GET", "/x")).await;
        assert_eq!((answer.text(), answer.is_replay()), ("1", replayed));
    }
    assert_eq!(send(&app, request(Method::GET, "/x", &[], "")).await.code(), "key-missing");
}
