// SPDX-License-Identifier: MIT OR Apache-2.0
//! The middleware: which requests run, are replayed, or pass unchanged.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use actix_web::dev::Service as _;
use actix_web::http::{ConnectionType, StatusCode, header};
use actix_web::test::{self, TestRequest};
use actix_web::web::{self, Bytes};
use actix_web::{App, HttpResponse, error};
use retryproof_actix::{Idempotency, Lease, WithFate as _};
use retryproof_core::FingerprintMode;
use retryproof_http::{AnswerFate, IdempotencyFilter, Policy};
use tokio::sync::Notify;

use crate::world::{POLICY, Runs, app, engine, filter, post, send};

#[actix_web::test]
async fn http_1_http_8_the_first_runs_and_a_repetition_gets_its_answer() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |body: Bytes| {
            let run = runs.next();
            async move {
                HttpResponse::Created()
                    .append_header(("x-line", "1"))
                    .append_header(("x-line", "2"))
                    .append_header(("idempotent-replayed", "true"))
                    .append_header(("cache-control", "max-age=60"))
                    .body(format!("run {run} of {body:?}"))
            }
        }
    };
    let app = app!(&filter(), handler);
    let ask = || post("/orders", "k").set_payload("two");
    let first = send(&app, ask().to_request()).await;
    assert_eq!((first.status, first.text()), (201, "run 1 of b\"two\""));
    assert!(!first.is_replay(), "a handler cannot forge the mark");
    assert_eq!(first.field("cache-control"), Some("max-age=60"));
    let again = send(&app, ask().to_request()).await;
    assert!(again.is_replay());
    assert_eq!(again.field("cache-control"), Some("no-store"));
    assert_eq!(again.repeated(), first.repeated());
    assert_eq!(runs.count(), 1);
    let other = send(&app, post("/orders", "k").set_payload("three").to_request()).await;
    assert_eq!((other.status, &*other.code()), (422, "fingerprint-mismatch"));
}

#[actix_web::test]
async fn http_3_a_request_without_a_key_passes_untouched_where_keys_are_optional() {
    let engine = engine();
    let mut web = engine.config().web.clone();
    web.required = false;
    web.max_body_bytes = 4;
    let filter =
        IdempotencyFilter::builder(engine).config(web).callers_share_keys().build().unwrap();
    let app = app!(&filter, |lease: Option<Lease>, body: Bytes| async move {
        HttpResponse::Ok().body(format!("{} {}", lease.is_some(), body.len()))
    });
    let answer =
        send(&app, TestRequest::post().uri("/orders").set_payload("12345").to_request()).await;
    assert_eq!(answer.text(), "false 5", "the guard sets no limit and takes no lease");
    assert_eq!(
        send(&app, post("/orders", "k").set_payload("1234").to_request()).await.text(),
        "true 4"
    );
    let refused =
        test::call_service(&app, post("/orders", "k2").set_payload("12345").to_request()).await;
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let declared = post("/orders", "k2").insert_header((header::CONTENT_LENGTH, "5")).to_request();
    let refused = test::call_service(&app, declared).await;
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(
        refused.response().head().connection_type(),
        ConnectionType::Close,
        "HTTP-4: the body is unread"
    );
}

#[actix_web::test]
async fn http_4_what_the_guard_lets_in_the_extractors_of_actix_take() {
    let app = test::init_service(
        App::new().service(
            web::resource("/orders")
                .wrap(Idempotency::new(&filter(), POLICY))
                .route(web::post().to(|body: Bytes| async move {
                    HttpResponse::Ok().body(body.len().to_string())
                }))
                .route(web::put().to(|form: web::Form<Vec<(String, String)>>| async move {
                    HttpResponse::Ok().body(form[0].1.len().to_string())
                })),
        ),
    )
    .await;
    // This body is over actix's own limits, which are 256 KiB for bytes and 16 KiB for forms.
    let large = "x".repeat(1 << 20);
    assert_eq!(
        send(&app, post("/orders", "k").set_payload(large).to_request()).await.text(),
        "1048576"
    );
    let form = TestRequest::put()
        .uri("/orders")
        .insert_header(("idempotency-key", "k2"))
        .insert_header(header::ContentType::form_url_encoded())
        .set_payload(format!("a={}", "x".repeat(100_000)));
    assert_eq!(send(&app, form.to_request()).await.text(), "100000");

    let own = test::init_service(
        App::new().app_data(web::PayloadConfig::new(3)).service(
            web::resource("/orders")
                .wrap(Idempotency::new(&filter(), POLICY))
                .to(|body: Bytes| async move { HttpResponse::Ok().body(body) }),
        ),
    )
    .await;
    let refused = send(&own, post("/orders", "k").set_payload("four").to_request()).await;
    assert_eq!(refused.status, 413, "a limit that the app has set stays");
}

#[actix_web::test]
async fn fp_3_canonical_json_of_a_large_body_is_made_off_the_async_worker() {
    let engine = engine();
    let mut web = engine.config().web.clone();
    web.fingerprint = FingerprintMode::Json;
    let filter =
        IdempotencyFilter::builder(engine).config(web).callers_share_keys().build().unwrap();
    let app =
        app!(&filter, |body: Bytes| async move { HttpResponse::Ok().body(body.len().to_string()) });
    for (size, waits) in [(1_000, false), (100_000, true)] {
        let body = format!("[{}0]", "5e-324,".repeat(size / 7));
        let length = body.len().to_string();
        let request = |key: &str| post("/orders", key).set_payload(body.clone()).to_request();
        let mut call = pin!(app.call(request(&format!("once-{size}"))));
        let waited = call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        assert_eq!(waited, waits, "{size}");
        let key = format!("k-{size}");
        assert_eq!(send(&app, request(&key)).await.text(), length);
        assert!(send(&app, request(&key)).await.is_replay());
    }
}

#[actix_web::test]
async fn http_7_an_answer_is_stored_released_or_held_as_it_is_marked() {
    let handler = |runs: Runs| {
        move |body: String| {
            let run = runs.next();
            async move {
                match (&*body, run) {
                    ("error", _) => Err(error::ErrorImATeapot("declined")),
                    ("release", 1) => {
                        Ok(HttpResponse::BadGateway().finish().with_fate(AnswerFate::Release))
                    }
                    ("hold", 1) => {
                        Ok(HttpResponse::BadGateway().finish().with_fate(AnswerFate::Hold))
                    }
                    _ => Ok(HttpResponse::Ok().body(format!("run {run}"))),
                }
            }
        }
    };
    let policy = Policy::new("fates")
        .with_lease(Duration::from_millis(50))
        .with_wait_timeout(Duration::from_secs(60));
    for (body, first, second) in [("error", 418, 418), ("release", 502, 200), ("hold", 502, 200)] {
        let runs = Runs::default();
        let guarded = web::resource("/orders").wrap(Idempotency::new(&filter(), policy));
        let app = test::init_service(App::new().service(guarded.to(handler(runs.clone())))).await;
        assert_eq!(
            send(&app, post("/orders", "k").set_payload(body).to_request()).await.status,
            first,
            "{body}"
        );
        let again = send(&app, post("/orders", "k").set_payload(body).to_request()).await;
        assert_eq!((again.status, again.is_replay()), (second, body == "error"), "{body}");
        assert_eq!(runs.count(), if body == "error" { 1 } else { 2 }, "{body}");
    }
}

#[actix_web::test]
async fn http_7_a_mark_of_an_inner_guarded_call_frees_no_outer_key() {
    let runs = Runs::default();
    let order = {
        let runs = runs.clone();
        move || {
            runs.next();
            async {
                let mail =
                    || async { HttpResponse::BadGateway().finish().with_fate(AnswerFate::Release) };
                let mail = web::resource("/mail")
                    .wrap(Idempotency::new(&filter(), Policy::new("mail")))
                    .to(mail);
                let inner = test::init_service(App::new().service(mail)).await;
                test::call_service(&inner, post("/mail", "m").to_request()).await.into_parts().1
            }
        }
    };
    let app = app!(&filter(), order);
    for _ in 0..3 {
        assert_eq!(send(&app, post("/orders", "k").to_request()).await.status, 502);
    }
    assert_eq!(runs.count(), 1);
}

#[actix_web::test]
async fn http_7_an_error_of_what_stands_inside_is_a_service_error_and_frees_the_key() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || std::future::ready(HttpResponse::Ok().body(runs.next().to_string()))
    };
    let app = test::init_service(
        App::new().service(
            web::resource("/orders")
                .wrap_fn(|request, service| {
                    let fails = request.headers().contains_key("x-fail");
                    let answering = actix_web::dev::Service::call(service, request);
                    async move {
                        match fails {
                            true => Err(error::ErrorServiceUnavailable("a layer inside")),
                            false => answering.await,
                        }
                    }
                })
                .wrap(Idempotency::new(&filter(), POLICY))
                .to(handler),
        ),
    )
    .await;
    let failing = post("/orders", "k").insert_header(("x-fail", "1")).to_request();
    assert!(
        actix_web::dev::Service::call(&app, failing).await.is_err(),
        "the error reaches the outer middleware"
    );
    let answer = send(&app, post("/orders", "k").to_request()).await;
    assert_eq!((answer.status, answer.is_replay(), answer.text()), (200, false, "1"));
}

#[actix_web::test]
async fn http_7_a_panic_goes_on_outside_and_frees_the_key() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || {
            let run = runs.next();
            async move {
                // The first run panics in its first poll. The second run is suspended, and panics
                // when it continues in a task.
                if run == 2 {
                    tokio::task::yield_now().await;
                }
                assert!(run > 2, "planted");
                HttpResponse::Ok().finish()
            }
        }
    };
    let app = std::rc::Rc::new(app!(&filter(), handler));
    for _ in 0..2 {
        let app = std::rc::Rc::clone(&app);
        let panicked = actix_web::rt::spawn(async move {
            test::call_service(&*app, post("/orders", "k").to_request()).await;
        });
        assert!(panicked.await.unwrap_err().is_panic());
    }
    assert_eq!(send(&*app, post("/orders", "k").to_request()).await.status, 200);
    assert_eq!(runs.count(), 3);
}

#[actix_web::test]
async fn http_12_a_call_that_is_dropped_mid_handler_is_finished_and_replayed() {
    let (runs, go) = (Runs::default(), std::sync::Arc::new(Notify::new()));
    let handler = {
        let (runs, go) = (runs.clone(), std::sync::Arc::clone(&go));
        move || {
            let (runs, go) = (runs.clone(), std::sync::Arc::clone(&go));
            async move {
                runs.next();
                go.notified().await;
                HttpResponse::Ok().body("done")
            }
        }
    };
    let app = std::rc::Rc::new(app!(&filter(), handler));
    let left = {
        let app = std::rc::Rc::clone(&app);
        actix_web::rt::spawn(async move {
            test::call_service(&*app, post("/orders", "k").to_request()).await;
        })
    };
    while runs.count() == 0 {
        tokio::task::yield_now().await;
    }
    left.abort();
    assert!(left.await.unwrap_err().is_cancelled());
    go.notify_one();
    let answer = send(&*app, post("/orders", "k").to_request()).await;
    assert!(answer.is_replay());
    assert_eq!((answer.text(), runs.count()), ("done", 1));
}

#[actix_web::test]
async fn http_15_a_guard_around_the_guard_of_the_same_route_decides_alone() {
    let (filter, runs) = (filter(), Runs::default());
    let handler = {
        let runs = runs.clone();
        move || std::future::ready(HttpResponse::Ok().body(runs.next().to_string()))
    };
    let app = test::init_service(
        App::new().service(
            web::scope("").wrap(Idempotency::new(&filter, Policy::new("outer"))).service(
                web::resource("/orders")
                    .wrap(Idempotency::new(&filter, Policy::new("inner")))
                    .to(handler),
            ),
        ),
    )
    .await;
    assert_eq!(send(&app, post("/orders", "k").to_request()).await.text(), "1");
    assert!(send(&app, post("/orders", "k").to_request()).await.is_replay());
    assert_eq!(runs.count(), 1);
    // The inner policy recorded nothing, so the key is new under the scope `inner`.
    let inner = app!(&filter, || async { HttpResponse::Ok().body("fresh") });
    assert_eq!(send(&inner, post("/orders", "k").to_request()).await.text(), "fresh");
}

#[actix_web::test]
async fn http_1_a_middleware_outside_may_keep_the_request() {
    let app = test::init_service(
        App::new().service(
            web::resource("/orders")
                .wrap(Idempotency::new(&filter(), POLICY))
                .to(|body: Bytes| async move { HttpResponse::Ok().body(body) })
                .wrap_fn(|request, service| {
                    let kept = request.request().clone();
                    let answering = actix_web::dev::Service::call(service, request);
                    async move {
                        let answer = answering.await;
                        assert_eq!(kept.path(), "/orders");
                        answer
                    }
                }),
        ),
    )
    .await;
    for replayed in [false, true] {
        let answer = send(&app, post("/orders", "k").set_payload("two").to_request()).await;
        assert_eq!((answer.text(), answer.is_replay()), ("two", replayed));
    }
}

#[actix_web::test]
async fn http_4_where_a_middleware_outside_keeps_the_request_the_limits_stay_and_nothing_panics() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |body: Bytes| {
            runs.next();
            async move { HttpResponse::Ok().body(body.len().to_string()) }
        }
    };
    let keeping = |app: Option<usize>| {
        let guarded = web::resource("/orders")
            .wrap(Idempotency::new(&filter(), POLICY))
            .to(handler.clone())
            .wrap_fn(|request, service| {
                let kept = request.request().clone();
                let answering = actix_web::dev::Service::call(service, request);
                async move {
                    let answer = answering.await;
                    assert_eq!(kept.path(), "/orders");
                    answer
                }
            });
        match app {
            Some(limit) => App::new().app_data(web::PayloadConfig::new(limit)).service(guarded),
            None => App::new().service(guarded),
        }
    };
    let large = "x".repeat(300 << 10);
    let ask = |key: &str, declared: bool| {
        let request = post("/orders", key).set_payload(large.clone());
        let length = (header::CONTENT_LENGTH, large.len());
        if declared { request.insert_header(length) } else { request }
    };
    let app = test::init_service(keeping(None)).await;
    for (key, declared) in [("a", true), ("b", false)] {
        for replayed in [false, true] {
            let answer = send(&app, ask(key, declared).to_request()).await;
            assert_eq!((answer.status, answer.is_replay()), (413, replayed), "actix's own limit");
        }
    }
    assert_eq!(runs.count(), 0);
    let app = test::init_service(keeping(Some(1 << 20))).await;
    for (key, declared) in [("a", true), ("b", false)] {
        assert_eq!(send(&app, ask(key, declared).to_request()).await.text(), "307200");
    }
}
