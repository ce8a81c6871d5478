// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the middleware guards and what it lets pass (HTTP-1).

use actix_web::http::header::{self, HeaderName};
use actix_web::test::{self, TestRequest};
use actix_web::web;
use actix_web::{App, HttpResponse};
use retryproof_actix::Idempotency;
use retryproof_http::{Methods, Policy};

use crate::world::{POLICY, Runs, filter, post, send};

fn request(method: &str, path: &str, key: Option<&str>) -> TestRequest {
    let request = TestRequest::with_uri(path).method(method.parse().unwrap());
    match key {
        Some(key) => request.insert_header((HeaderName::from_static("idempotency-key"), key)),
        None => request,
    }
}

#[actix_web::test]
async fn http_1_the_middleware_lets_pass_what_changes_nothing_and_a_405_burns_no_key() {
    let runs = Runs::default();
    let refund = {
        let runs = runs.clone();
        move || std::future::ready(runs.next().to_string())
    };
    let guard = Idempotency::new(&filter(), POLICY);
    let app = test::init_service(
        App::new().service(web::resource("/refunds").wrap(guard).route(web::post().to(refund))),
    )
    .await;
    for (method, key) in [
        ("GET", None),
        ("GET", Some("k")),
        ("OPTIONS", None),
        ("PUT", Some("k")),
        ("PUT", Some("k")),
    ] {
        let answer = send(&app, request(method, "/refunds", key).to_request()).await;
        assert_eq!((answer.status, answer.is_replay()), (405, false), "{method} {key:?}");
    }
    let ran = send(&app, post("/refunds", "k").to_request()).await;
    assert_eq!((ran.text(), ran.is_replay()), ("1", false));
    assert_eq!(runs.count(), 1);
}

#[actix_web::test]
async fn http_1_what_no_resource_matches_passes_a_guard_around_scope_and_app() {
    let filter = filter();
    for policy in [Policy::unnamed(), Policy::new("named")] {
        let runs = Runs::default();
        let pay = move || std::future::ready(runs.next().to_string());
        let guard = || Idempotency::new(&filter, policy);
        let within = |at: &str| web::scope(at).route("/pay/{id}", web::post().to(pay.clone()));
        let around_app = test::init_service(App::new().service(within("/app")).wrap(guard())).await;
        let around_scope =
            test::init_service(App::new().service(within("/scope").wrap(guard()))).await;
        macro_rules! judge {
            ($app:expr, $at:literal) => {
                for key in [None, Some("k"), Some("k")] {
                    let path = concat!($at, "/nowhere");
                    let answer = send(&$app, request("POST", path, key).to_request()).await;
                    assert_eq!(
                        (answer.status, answer.is_replay()),
                        (404, false),
                        "{path} {policy:?} {key:?}"
                    );
                }
                for replayed in [false, true] {
                    let answer = send(&$app, post(concat!($at, "/pay/1"), $at).to_request()).await;
                    assert_eq!((answer.status, answer.is_replay()), (200, replayed), "{policy:?}");
                }
            };
        }
        judge!(around_app, "/app");
        judge!(around_scope, "/scope");
    }
}

#[actix_web::test]
async fn http_1_a_policy_names_the_methods_of_its_middleware() {
    let runs = Runs::default();
    let handler = move || std::future::ready(runs.next().to_string());
    let guard = Idempotency::new(&filter(), POLICY.methods(Methods::All));
    let app =
        test::init_service(App::new().service(web::resource("/x").wrap(guard).to(handler))).await;
    for method in ["GET", "PUT"] {
        for replayed in [false, true] {
            let answer = send(&app, request(method, "/x", Some(method)).to_request()).await;
            assert_eq!(answer.is_replay(), replayed, "{method}");
        }
    }
}

#[actix_web::test]
async fn http_1_a_fallback_is_guarded_where_the_policy_says_so() {
    let runs = Runs::default();
    let proxy = move || {
        let run = runs.next();
        async move {
            HttpResponse::Ok()
                .insert_header((header::CONTENT_TYPE, "text/plain"))
                .body(run.to_string())
        }
    };
    let guard = Idempotency::new(&filter(), Policy::new("proxy").with_unmatched());
    let app = test::init_service(App::new().default_service(web::to(proxy).wrap(guard))).await;
    for replayed in [false, true] {
        let answer = send(&app, post("/anything", "k").to_request()).await;
        assert_eq!((answer.text(), answer.is_replay()), ("1", replayed));
    }
}
