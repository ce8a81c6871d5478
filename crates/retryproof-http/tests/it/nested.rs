// SPDX-License-Identifier: MIT OR Apache-2.0
//! A handler that calls another endpoint in process and returns its response: what the guard notes
//! about the inner response does not apply to the outer one (HTTP-7).

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Json};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post as on_post};
use http::request::Parts;
use http::{Request, StatusCode};
use retryproof_core::Recorded;
use retryproof_http::{AnswerFate, Methods, Policy, Release};
use tower::ServiceExt as _;

use crate::world::{Annotated, Runs, STD, filter, filter_with, post, request, send};

static MAIL: Policy = Policy::new("mail");

/// Creates an app whose handler charges, sends the request `mail` to `inner`, and returns the
/// response of `inner`.
fn charging(inner: &Router, mail: fn() -> Request<Body>) -> (Router, Runs) {
    let (runs, inner) = (Runs::default(), inner.clone());
    let order = {
        let runs = runs.clone();
        move || async move {
            runs.run();
            let Ok(answer) = inner.oneshot(mail()).await;
            answer
        }
    };
    (Router::new().route("/order", on_post(order).layer(filter().guard(STD))), runs)
}

fn busy(fate: AnswerFate) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, fate, "the mail server is busy").into_response()
}

/// An extractor that rejects each request with a marked response.
struct Busy;

impl<S: Sync> FromRequestParts<S> for Busy {
    type Rejection = Response;

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Response> {
        Err(busy(Release))
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_a_mark_of_an_inner_guarded_call_frees_no_outer_key() {
    let keyed = || post("/mail", "m", "");
    let keyless = || request(http::Method::POST, "/mail", &[], "");
    let optional = filter_with(|config| config.web.required = false);
    let layered = Router::new()
        .route("/mail", on_post(|| async { busy(Release) }).layer(optional.guard(MAIL)));
    let annotated = Annotated(&MAIL, |_: String| async { busy(Release) });
    let annotated = Router::new().route("/mail", on_post(annotated)).with_state(optional);
    let rejecting = Annotated(&MAIL, |_: Busy, _: String| async { "sent" });
    let rejecting = Router::new().route("/mail", on_post(rejecting)).with_state(filter());
    for (what, inner, mail) in [
        ("a layer", &layered, keyed as fn() -> Request<Body>),
        ("an annotated handler", &annotated, keyed),
        ("an extractor of an annotated handler", &rejecting, keyed),
        ("a layer, without a key", &layered, keyless),
        ("an annotated handler, without a key", &annotated, keyless),
    ] {
        let (app, charges) = charging(inner, mail);
        for _ in 0..3 {
            let answer = send(&app, post("/order", "k", "")).await;
            assert_eq!(answer.text(), "the mail server is busy", "{what}");
        }
        assert_eq!(charges.count(), 1, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_a_mark_that_the_outer_handler_sets_on_an_inner_answer_is_its_own() {
    let inner =
        Router::new().route("/mail", on_post(|| async { "sent" }).layer(filter().guard(MAIL)));
    let runs = Runs::default();
    let order = {
        let runs = runs.clone();
        move || async move {
            runs.run();
            let Ok(answer) = inner.oneshot(post("/mail", "m", "")).await;
            Release.mark(answer)
        }
    };
    let app = Router::new().route("/order", on_post(order).layer(filter().guard(STD)));
    for _ in 0..2 {
        let Ok(answer) = app.clone().oneshot(post("/order", "k", "")).await;
        // The `Recorded` of the inner response does not apply to the outer response, whose key was
        // released (CMP-4).
        assert_eq!(answer.extensions().get::<Recorded>(), None);
        assert_eq!(answer.extensions().get::<AnswerFate>(), None, "the mark was read");
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn http_7_http_15_a_mark_of_the_handler_reaches_the_guard_outside_of_its_own() {
    let filter = filter();
    let handler = Annotated(&MAIL, |_: String| async { busy(Release) });
    let runs = Runs::default();
    let counted = {
        let runs = runs.clone();
        move |request: axum::extract::Request, next: axum::middleware::Next| {
            runs.run();
            next.run(request)
        }
    };
    let app = Router::new()
        .route("/mail", on_post(handler))
        .layer(axum::middleware::from_fn(counted))
        .layer(filter.guard(STD))
        .with_state(filter);
    for _ in 0..2 {
        assert!(!send(&app, post("/mail", "m", "")).await.is_replay());
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn ann_6_http_15_behind_a_layer_too_no_rejection_is_stored() {
    /// Authenticates by a header.
    struct User;
    impl<S: Sync> FromRequestParts<S> for User {
        type Rejection = StatusCode;
        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
            parts.headers.get("x-user").map(|_| Self).ok_or(StatusCode::UNAUTHORIZED)
        }
    }
    let (filter, runs) = (filter(), Runs::default());
    let handler = {
        let runs = runs.clone();
        Annotated(&MAIL, move |_: User, _: Json<Vec<u32>>| async move { runs.run().to_string() })
    };
    let guarded = on_post(handler).layer(filter.guard(STD));
    let app = Router::new().route("/mail", guarded).with_state(filter);
    let of_ann = |body: &'static str| {
        let fields =
            [("idempotency-key", "m"), ("x-user", "ann"), ("content-type", "application/json")];
        request(http::Method::POST, "/mail", &fields, body)
    };
    assert_eq!(send(&app, post("/mail", "m", "[1]")).await.status, StatusCode::UNAUTHORIZED);
    for _ in 0..2 {
        let refused = send(&app, of_ann("[nonsense")).await;
        assert_eq!((refused.status, refused.is_replay()), (StatusCode::BAD_REQUEST, false));
    }
    assert_eq!(send(&app, of_ann("[1]")).await.text(), "1");
    assert!(send(&app, of_ann("[1]")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn http_7_http_15_a_layer_inside_that_lets_the_method_pass_leaves_the_mark_to_the_one_outside()
 {
    let filter = filter();
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move {
            runs.run();
            busy(Release)
        }
    };
    let outside = filter.guard(STD.methods(Methods::All));
    let app = Router::new().route("/mail", any(handler).layer(filter.guard(MAIL))).layer(outside);
    for _ in 0..2 {
        let get = request(http::Method::GET, "/mail", &[("idempotency-key", "k")], "");
        assert!(!send(&app, get).await.is_replay());
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn acq_14_a_request_inside_the_handler_of_its_own_key_is_in_flight_at_once() {
    let filter = filter();
    let inner = Router::new().route("/order", on_post(|| async { "in" }).layer(filter.guard(STD)));
    let handler = move || async move {
        // The guard moves a handler that suspends to a separate task, so suspend it here.
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        let began = tokio::time::Instant::now();
        let answer = send(&inner, post("/order", "k", "")).await;
        assert!(began.elapsed().is_zero(), "{:?}", began.elapsed());
        (answer.status, answer.code().to_owned())
    };
    let app = Router::new().route("/order", on_post(handler).layer(filter.guard(STD)));
    let outer = send(&app, post("/order", "k", "")).await;
    assert_eq!((outer.status, outer.text()), (StatusCode::CONFLICT, "in-flight"));
}
