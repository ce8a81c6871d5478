// SPDX-License-Identifier: MIT OR Apache-2.0
//! The steps of an annotated handler, written by hand. The tests of the crate `retryproof` check
//! that the attribute generates the same steps.

use std::future::{Ready, ready};

use actix_web::dev::Payload;
use actix_web::test::{self, TestRequest};
use actix_web::web::{self, Bytes};
use actix_web::{App, Error, FromRequest, HttpRequest, HttpResponse, Responder, error};
use retryproof_actix::endpoint::{
    Arguments, EndpointFuture, EndpointRequest, Handler, run_endpoint,
};
use retryproof_actix::{Idempotency, IdempotencyKey, Lease};
use retryproof_http::{IdempotencyFilter, Policy};
use serde_json::Value;

use crate::world::{POLICY, Runs, engine, filter, post, send};

static POLICY_OF_ENDPOINTS: Policy = POLICY;

/// A function behind the guard, in the form that the attribute generates.
#[derive(Clone)]
pub(crate) struct Endpoint<F> {
    filter: IdempotencyFilter,
    function: F,
}

macro_rules! endpoint {
    ($($argument:ident)*) => {
        impl<F, Fut, R, $($argument),*> Handler<(EndpointRequest, Marker<($($argument,)*)>)> for Endpoint<F>
        where
            F: Fn($($argument),*) -> Fut + Clone + 'static,
            Fut: Future<Output = R> + 'static,
            R: Responder + 'static,
            ($($argument,)*): Arguments,
        {
            type Output = HttpResponse;
            type Future = EndpointFuture;

            #[allow(non_snake_case, reason = "types stand for arguments")]
            fn call(&self, (request, _): (EndpointRequest, Marker<($($argument,)*)>)) -> EndpointFuture {
                let function = self.function.clone();
                run_endpoint::<($($argument,)*), _, _, R>(
                    &self.filter, &POLICY_OF_ENDPOINTS, request, move |($($argument,)*)| function($($argument),*),
                )
            }
        }
    };
}

endpoint! { A }
endpoint! { A B }
endpoint! { A B C }

/// Distinguishes the endpoints of this file by their arguments; the attribute generates a separate
/// type for each endpoint instead.
pub(crate) struct Marker<T>(std::marker::PhantomData<T>);

impl<T> FromRequest for Marker<T> {
    type Error = Error;
    type Future = Ready<Result<Self, Error>>;

    fn from_request(_: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(Self(std::marker::PhantomData)))
    }
}

pub(crate) fn guarded<F>(filter: &IdempotencyFilter, function: F) -> Endpoint<F> {
    Endpoint { filter: filter.clone(), function }
}

/// An extractor of the header `x-user`, which is required. Its future is pending once.
pub(crate) struct User(String);

impl FromRequest for User {
    type Error = Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self, Error>>>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let user =
            request.headers().get("x-user").and_then(|user| Some(user.to_str().ok()?.to_owned()));
        Box::pin(async move {
            tokio::task::yield_now().await;
            user.map(Self).ok_or_else(|| error::ErrorUnauthorized("who are you?"))
        })
    }
}

fn of(user: &'static str, key: &str) -> TestRequest {
    post("/orders", key)
        .insert_header(("x-user", user))
        .set_payload("{\"id\":1}")
        .insert_header(("content-type", "application/json"))
}

#[actix_web::test]
async fn ann_6_an_argument_that_authenticates_stands_before_a_replay_wherever_the_body_is() {
    let filter = filter();
    let runs = Runs::default();
    let body_last = {
        let runs = runs.clone();
        move |user: User, order: web::Json<Value>| {
            ready(format!("{} {} {}", user.0, order["id"], runs.next()))
        }
    };
    let body_first = {
        let runs = runs.clone();
        move |order: web::Json<Value>, user: User| {
            ready(format!("{} {} {}", user.0, order["id"], runs.next()))
        }
    };
    let no_body = {
        let runs = runs.clone();
        move |user: User| ready(format!("{} {}", user.0, runs.next()))
    };
    for app in [
        App::new().route("/orders", web::post().to(guarded(&filter, body_last))),
        App::new().route("/orders", web::post().to(guarded(&crate::world::filter(), body_first))),
        App::new().route("/orders", web::post().to(guarded(&crate::world::filter(), no_body))),
    ] {
        let before = runs.count();
        let app = test::init_service(app).await;
        let first = send(&app, of("ann", "k").to_request()).await;
        assert_eq!((first.status, first.is_replay()), (200, false), "{first:?}");
        assert!(send(&app, of("ann", "k").to_request()).await.is_replay());
        let stranger = post("/orders", "k").insert_header(("content-type", "application/json"));
        let stranger = stranger.set_payload("{\"id\":1}").to_request();
        assert_eq!(send(&app, stranger).await.status, 401, "nothing is replayed to another caller");
        assert_eq!(runs.count(), before + 1);
    }
}

#[actix_web::test]
async fn ann_6_a_body_that_is_rejected_is_answered_unstored_and_leaves_the_key_free() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |_: User, order: web::Json<Value>| ready(format!("{} {}", order["id"], runs.next()))
    };
    let filter = filter();
    let app =
        test::init_service(App::new().route("/orders", web::post().to(guarded(&filter, handler))))
            .await;
    for _ in 0..2 {
        let bad = send(&app, of("ann", "k").set_payload("{").to_request()).await;
        assert_eq!((bad.status, bad.is_replay()), (400, false));
    }
    assert_eq!(send(&app, of("ann", "k").to_request()).await.text(), "1 1");
    assert!(send(&app, of("ann", "k").to_request()).await.is_replay());
    // The fingerprint is compared before the body is parsed (FP-1).
    assert_eq!(send(&app, of("ann", "k").set_payload("{").to_request()).await.status, 422);
}

#[actix_web::test]
async fn http_4_a_smaller_limit_of_the_app_holds_with_a_key_too() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |body: web::Bytes| ready(format!("{} {}", body.len(), runs.next()))
    };
    let app = App::new().app_data(web::PayloadConfig::new(1024));
    let app =
        test::init_service(app.route("/orders", web::post().to(guarded(&filter(), handler)))).await;
    for declared in [true, false] {
        let call = of("ann", "k").set_payload("x".repeat(600_000));
        let call = if declared { call.insert_header(("content-length", "600000")) } else { call };
        assert_eq!(send(&app, call.to_request()).await.status, 413);
    }
    let small = || of("ann", "k").set_payload("x".repeat(1024)).to_request();
    assert_eq!(send(&app, small()).await.text(), "1024 1", "nothing ran, and the key is free");
    assert!(send(&app, small()).await.is_replay());
}

#[actix_web::test]
async fn ann_6_a_handler_has_key_and_lease_and_a_pass_through_has_none() {
    let engine = engine();
    let mut web = engine.config().web.clone();
    web.required = false;
    let filter =
        IdempotencyFilter::builder(engine).config(web).callers_share_keys().build().unwrap();
    let handler = |lease: Option<Lease>, key: Option<IdempotencyKey>, body: Bytes| async move {
        let key = key.as_ref().map(IdempotencyKey::as_str).unwrap_or("none").to_owned();
        let downstream = lease.map(|lease| lease.downstream_key("charge").len());
        format!("{key} {} {}", downstream.is_some_and(|len| len > 0), body.len())
    };
    let app =
        test::init_service(App::new().route("/orders", web::post().to(guarded(&filter, handler))))
            .await;
    assert_eq!(
        send(&app, post("/orders", "a key").set_payload("four").to_request()).await.status,
        400
    );
    assert_eq!(
        send(&app, post("/orders", "k-1").set_payload("four").to_request()).await.text(),
        "k-1 true 4"
    );
    let keyless = TestRequest::post().uri("/orders").set_payload("four");
    assert_eq!(send(&app, keyless.to_request()).await.text(), "none false 4");
}

#[actix_web::test]
async fn http_15_a_middleware_around_an_annotated_handler_decides_alone() {
    let (filter, runs) = (filter(), Runs::default());
    let handler = {
        let runs = runs.clone();
        move |body: Bytes| ready(format!("{} {}", body.len(), runs.next()))
    };
    let app = test::init_service(
        App::new().service(
            web::resource("/orders")
                .wrap(Idempotency::new(&filter, Policy::new("outer")))
                .to(guarded(&filter, handler)),
        ),
    )
    .await;
    assert_eq!(
        send(&app, post("/orders", "k").set_payload("four").to_request()).await.text(),
        "4 1"
    );
    let again = send(&app, post("/orders", "k").set_payload("four").to_request()).await;
    assert!(again.is_replay());
    assert_eq!(again.text(), "4 1");
}

#[actix_web::test]
async fn ann_6_http_17_behind_a_middleware_too_no_rejection_is_stored() {
    let (filter, runs) = (filter(), Runs::default());
    let handler = {
        let runs = runs.clone();
        move |_: User, order: web::Json<Value>| ready(format!("{} {}", order["id"], runs.next()))
    };
    let app = test::init_service(
        App::new().service(
            web::resource("/orders")
                .wrap(Idempotency::new(&filter, Policy::new("outer")))
                .to(guarded(&filter, handler)),
        ),
    )
    .await;
    let stranger = post("/orders", "k").insert_header(("content-type", "application/json"));
    let stranger = stranger.set_payload("{\"id\":1}").to_request();
    assert_eq!(send(&app, stranger).await.status, 401);
    for _ in 0..2 {
        let bad = send(&app, of("ann", "k").set_payload("{").to_request()).await;
        assert_eq!((bad.status, bad.is_replay()), (400, false));
    }
    assert_eq!(send(&app, of("ann", "k").to_request()).await.text(), "1 1");
    assert!(send(&app, of("ann", "k").to_request()).await.is_replay());
}

#[actix_web::test]
async fn http_16_the_caller_hook_of_an_endpoint_sees_what_its_arguments_left() {
    struct Tenant;
    impl FromRequest for Tenant {
        type Error = Error;
        type Future = Ready<Result<Self, Error>>;

        fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
            use actix_web::HttpMessage as _;
            let name =
                request.headers().get("x-user").map(|name| name.to_str().unwrap().to_owned());
            request.extensions_mut().insert(name);
            ready(Ok(Self))
        }
    }
    let filter = IdempotencyFilter::builder(engine())
        .caller(retryproof_actix::caller(|request: &HttpRequest| {
            use actix_web::HttpMessage as _;
            request.extensions().get::<Option<String>>().cloned().flatten()
        }))
        .build()
        .unwrap();
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |_: Tenant| ready(runs.next().to_string())
    };
    let app =
        test::init_service(App::new().route("/orders", web::post().to(guarded(&filter, handler))))
            .await;
    for (user, answer) in [("a", "1"), ("b", "2"), ("a", "1")] {
        assert_eq!(send(&app, of(user, "k").to_request()).await.text(), answer);
    }
}
