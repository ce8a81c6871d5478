// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests the caller and subject hooks, the scope of a matched route, and the extractors of a
//! guarded request.

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::test;
use actix_web::web;
use actix_web::{App, HttpMessage as _, HttpRequest, HttpResponse};
use retryproof_actix::{Idempotency, IdempotencyKey, Lease, NotGuarded};
use retryproof_core::seal::DataSubject;
use retryproof_core::{IdempotencyEngine, IdentitySecret, SharedStore};
use retryproof_http::{IdempotencyFilter, Policy};
use retryproof_memory::MemoryStore;
use retryproof_testkit::TestKeys;

use crate::world::{POLICY, Runs, engine, post, send};

#[derive(Clone)]
struct Tenant(String);

#[actix_web::test]
async fn http_16_a_caller_hook_sees_what_the_authentication_left_in_the_request() {
    let filter = IdempotencyFilter::builder(engine())
        .caller(retryproof_actix::caller(|request: &HttpRequest| {
            request.extensions().get::<Tenant>().map(|tenant| tenant.0.clone())
        }))
        .absent_callers_share()
        .build()
        .unwrap();
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |key: IdempotencyKey| std::future::ready(format!("{} {}", key.as_str(), runs.next()))
    };
    let app = test::init_service(App::new().service(
        web::resource("/orders").wrap(Idempotency::new(&filter, POLICY)).to(handler).wrap_fn(
            |request, service| {
                let tenant = request.headers().get("x-tenant").and_then(|name| name.to_str().ok());
                let tenant = tenant.map(|name| Tenant(name.to_owned()));
                if let Some(tenant) = tenant {
                    request.extensions_mut().insert(tenant);
                }
                actix_web::dev::Service::call(service, request)
            },
        ),
    ))
    .await;
    let ask = |tenant: Option<&'static str>| {
        let request = post("/orders", "k");
        match tenant {
            Some(tenant) => request
                .insert_header((
                    HeaderName::from_static("x-tenant"),
                    HeaderValue::from_static(tenant),
                ))
                .to_request(),
            None => request.to_request(),
        }
    };
    for (tenant, answer) in
        [(None, "k 1"), (Some("a"), "k 2"), (Some("b"), "k 3"), (Some("a"), "k 2"), (None, "k 1")]
    {
        assert_eq!(send(&app, ask(tenant)).await.text(), answer, "{tenant:?}");
    }
}

/// The subject hook reads actix's request too.
#[actix_web::test]
async fn seal_3_a_hook_names_the_subject_of_an_answer() {
    let secret = IdentitySecret::new("s".repeat(32)).unwrap();
    let memory = MemoryStore::builder().identity_secret(secret.clone()).build();
    let keys = TestKeys::new();
    let store = SharedStore::from(memory).sealed_by(Arc::new(keys.clone())).unwrap();
    let filter = IdempotencyFilter::builder(IdempotencyEngine::new(store))
        .callers_share_keys()
        .subject(retryproof_actix::caller(|request: &HttpRequest| {
            request.match_info().get("customer").map(str::to_owned)
        }))
        .build()
        .unwrap();
    let handler = || std::future::ready("paid");
    let resource = web::resource("/{customer}").wrap(Idempotency::new(&filter, POLICY)).to(handler);
    let app = test::init_service(App::new().service(resource)).await;
    let ask = async |customer: &str| {
        send(&app, post(&format!("/{customer}"), customer).to_request()).await
    };
    for customer in ["ada", "bob"] {
        assert_eq!(ask(customer).await.text(), "paid");
    }
    keys.destroy(&DataSubject::named(&secret, "ada"));
    assert_eq!(ask("ada").await.code(), "result-not-replayable");
    assert_eq!(ask("bob").await.text(), "paid");
}

#[actix_web::test]
async fn http_16_a_hook_may_wait_and_a_request_without_a_caller_is_refused() {
    let hook = retryproof_actix::caller_async(|request: &HttpRequest| {
        let tenant = request.headers().get("x-tenant").cloned();
        async move {
            tokio::task::yield_now().await;
            tenant.map(|name| name.to_str().unwrap_or_default().to_owned())
        }
    });
    let filter = IdempotencyFilter::builder(engine())
        .caller_async(hook)
        .challenge("Bearer")
        .build()
        .unwrap();
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || std::future::ready(runs.next().to_string())
    };
    let guarded = web::resource("/orders").wrap(Idempotency::new(&filter, POLICY)).to(handler);
    let app = test::init_service(App::new().service(guarded)).await;
    let refused = send(&app, post("/orders", "k").to_request()).await;
    assert_eq!((refused.status, &*refused.code()), (401, "caller-missing"));
    assert_eq!(refused.field("www-authenticate"), Some("Bearer"));
    for (tenant, answer) in [("a", "1"), ("b", "2"), ("a", "1")] {
        let ask = post("/orders", "k").insert_header((HeaderName::from_static("x-tenant"), tenant));
        assert_eq!(send(&app, ask.to_request()).await.text(), answer, "{tenant}");
    }
}

#[actix_web::test]
async fn http_16_a_route_of_many_paths_is_one_scope_and_no_route_is_an_error() {
    let engine = engine();
    let filter = crate::world::filter_on(&engine);
    let guard = |policy| Idempotency::new(&filter, policy);
    let app = test::init_service(
        App::new()
            .service(
                web::resource(r"/orders/{id:\d+}")
                    .wrap(guard(Policy::unnamed()))
                    .to(|| async { HttpResponse::Ok().body("order") }),
            )
            .default_service(
                web::to(|| async { HttpResponse::NotFound().finish() })
                    .wrap(guard(Policy::unnamed().with_unmatched())),
            ),
    )
    .await;
    assert_eq!(send(&app, post("/orders/1", "k").to_request()).await.text(), "order");
    // The scope is the same, but the path differs, so the fingerprint differs too.
    assert_eq!(send(&app, post("/orders/2", "k").to_request()).await.status, 422);
    let nowhere = send(&app, post("/nowhere", "k").to_request()).await;
    assert_eq!((nowhere.status, &*nowhere.code()), (500, "scope-invalid"));
}

#[actix_web::test]
async fn ann_6_what_only_a_guarded_request_has_is_refused_elsewhere() {
    let app = test::init_service(
        App::new()
            .route("/lease", web::post().to(|_: Lease| async { HttpResponse::Ok().finish() }))
            .route(
                "/key",
                web::post().to(|_: IdempotencyKey| async { HttpResponse::Ok().finish() }),
            ),
    )
    .await;
    for path in ["/lease", "/key"] {
        let refused = test::call_service(&app, post(path, "k").to_request()).await;
        assert_eq!(refused.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let error = refused.response().error().expect("an error");
        assert_eq!(error.as_error(), Some(&NotGuarded::Unguarded));
    }
}
