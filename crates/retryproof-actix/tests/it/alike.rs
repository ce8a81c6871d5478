// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two frameworks implement one protocol: each replays the records of the other, and their refusals
//! have the same bytes.

use actix_web::dev::{Service, ServiceResponse};
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::test::{self, TestRequest};
use actix_web::{App, HttpResponse, web};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::routing::any;
use bytes::Bytes;
use http_body::Frame;
use retryproof_actix::Idempotency;
use retryproof_core::IdempotencyEngine;
use retryproof_http::{IdempotencyFilter, Methods, Policy};
use tower::ServiceExt as _;

use crate::world::{Answer, engine, read};

const LIMIT: usize = 64;
const NAMED: Policy = Policy::new("orders");
const ROUTED: Policy = Policy::unnamed().methods(Methods::All);

fn filter(engine: &IdempotencyEngine) -> IdempotencyFilter {
    let mut web = engine.config().web.clone();
    web.max_body_bytes = LIMIT;
    IdempotencyFilter::builder(engine.clone())
        .config(web)
        .caller(|request: &axum::http::request::Parts| {
            request.headers.get("x-tenant").and_then(|name| name.to_str().ok()).map(str::to_owned)
        })
        .build()
        .unwrap()
}

/// A request that is sent to either framework.
#[derive(Clone, Copy)]
struct Ask {
    method: &'static str,
    path: &'static str,
    fields: &'static [(&'static str, &'static [u8])],
    body: &'static [u8],
}

const ASK: Ask = Ask {
    method: "POST",
    path: "/orders/17?a=b",
    fields: &[("idempotency-key", b"k"), ("x-tenant", b"a")],
    body: b"{}",
};

/// Sends a request to the axum app.
async fn ask_axum(app: &Router, ask: Ask) -> Answer {
    let mut request = Request::builder().method(ask.method).uri(ask.path);
    for (name, value) in ask.fields {
        request = request.header(*name, *value);
    }
    // Declare the length, as a client on a socket does.
    let request =
        request.header("content-length", ask.body.len()).body(Body::from(ask.body)).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let lines = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    Answer::new(parts.status.as_u16(), lines, body)
}

async fn ask_actix<S, R>(app: &S, ask: Ask, into: impl Fn(TestRequest) -> R) -> Answer
where
    S: Service<R, Response = ServiceResponse, Error = actix_web::Error>,
{
    let mut request =
        TestRequest::with_uri(ask.path).method(ask.method.parse().unwrap()).set_payload(ask.body);
    for (name, value) in ask.fields {
        let value = HeaderValue::from_bytes(value).unwrap();
        request = request.append_header((HeaderName::from_static(name), value));
    }
    let request = request.insert_header(("content-length", ask.body.len()));
    read(test::call_service(app, into(request)).await).await
}

/// Removes the length that axum's router adds, because actix's server adds it later.
fn unframed(mut answer: Answer) -> Answer {
    answer.lines.retain(|(name, _)| name != "content-length");
    answer
}

/// The header fields that the handlers of both apps set.
const FIELDS: [(&str, &[u8]); 5] = [
    ("content-type", b"application/octet-stream"),
    ("x-line", b"1"),
    ("x-line", b"2"),
    ("x-byte", b"\xe9"),
    ("location", b"/orders/17"),
];
const BODY: &[u8] = b"\x00\xff made by ";

fn axum_app(filter: &IdempotencyFilter) -> Router {
    let answer = |by: &'static str| {
        let mut response = Response::new(Body::from([BODY, by.as_bytes()].concat()));
        *response.status_mut() = StatusCode::CREATED;
        for (name, value) in FIELDS {
            let value = axum::http::HeaderValue::from_bytes(value).unwrap();
            response.headers_mut().append(name, value);
        }
        response
    };
    let handler = move || async move { answer("axum") };
    Router::new()
        .route("/named", any(handler).layer(filter.guard(NAMED)))
        .route("/orders/{id}", any(handler).layer(filter.guard(ROUTED)))
}

macro_rules! actix_app {
    ($filter:expr) => {{
        async fn handler() -> HttpResponse {
            let mut response = HttpResponse::Created().body([BODY, b"actix"].concat());
            for (name, value) in FIELDS {
                let value = HeaderValue::from_bytes(value).unwrap();
                response.headers_mut().append(HeaderName::from_static(name), value);
            }
            response
        }
        let guarded = |path: &str, policy| {
            web::resource(path).wrap(Idempotency::new($filter, policy)).to(handler)
        };
        test::init_service(
            App::new()
                .service(guarded("/named", NAMED))
                .service(guarded("/orders/{order}", ROUTED))
                .wrap(actix_web::middleware::from_fn(boxed)),
        )
        .await
    }};
}

/// A middleware that boxes the body, so that all answers have one type.
async fn boxed(
    request: actix_web::dev::ServiceRequest,
    next: actix_web::middleware::Next<impl actix_web::body::MessageBody + 'static>,
) -> actix_web::Result<ServiceResponse> {
    next.call(request).await.map(ServiceResponse::map_into_boxed_body)
}

#[actix_web::test]
async fn http_8_http_17_a_record_of_one_framework_is_replayed_by_the_other() {
    let other_caller = Ask { fields: &[("idempotency-key", b"k"), ("x-tenant", b"b")], ..ASK };
    let quoted = Ask { fields: &[("x-tenant", b"a"), ("idempotency-key", b" \"k\" ")], ..ASK };
    let named = Ask { path: "/named?x", method: "PUT", ..ASK };
    for ask in [ASK, other_caller, named] {
        let engine = engine();
        let filter = filter(&engine);
        let (axum, actix) = (axum_app(&filter), actix_app!(&filter));
        let first = ask_axum(&axum, ask).await;
        assert_eq!((first.status, first.is_replay()), (201, false));
        let again = ask_actix(&actix, ask, |request| request.to_request()).await;
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.clone().repeated(), first.repeated());
        assert_eq!(again, unframed(ask_axum(&axum, ask).await), "the same replay");
    }
    for ask in [ASK, other_caller, named] {
        let engine = engine();
        let filter = filter(&engine);
        let (axum, actix) = (axum_app(&filter), actix_app!(&filter));
        let first = ask_actix(&actix, ask, |request| request.to_request()).await;
        assert_eq!((first.status, first.is_replay()), (201, false));
        assert!(first.body.ends_with(b"actix"));
        let again = ask_axum(&axum, ask).await;
        assert!(again.is_replay(), "{again:?}");
        assert_eq!(again.repeated(), first.clone().repeated());
        if ask.path == ASK.path && ask.fields == ASK.fields {
            assert!(
                ask_axum(&axum, quoted).await.is_replay(),
                "HTTP-2: the same key in its other form"
            );
        }
    }
}

#[actix_web::test]
async fn http_2_http_4_http_11_refusals_are_the_same_to_the_byte() {
    const KEY: &str = "idempotency-key";
    let refused: &[(Ask, u16)] = &[
        (Ask { fields: &[], ..ASK }, 400),
        (Ask { fields: &[(KEY, b"")], ..ASK }, 400),
        (Ask { fields: &[(KEY, b"a,b")], ..ASK }, 400),
        (Ask { fields: &[(KEY, b"\"open")], ..ASK }, 400),
        (Ask { fields: &[(KEY, b"\xe9")], ..ASK }, 400),
        (Ask { fields: &[(KEY, &[b'k'; 256])], ..ASK }, 400),
        (Ask { fields: &[(KEY, b"a"), (KEY, b"a")], ..ASK }, 400),
        (Ask { body: &[b'x'; LIMIT + 1], ..ASK }, 413),
        (Ask { body: b"another", ..ASK }, 422),
        (Ask { method: "HEAD", fields: &[], body: b"", ..ASK }, 400),
        (Ask { fields: &[(KEY, b"nobody")], ..ASK }, 403),
    ];
    let engine = engine();
    let filter = filter(&engine);
    let (axum, actix) = (axum_app(&filter), actix_app!(&filter));
    assert_eq!(ask_axum(&axum, ASK).await.status, 201);
    for &(ask, status) in refused {
        let (mut one, other) = (
            ask_axum(&axum, ask).await,
            ask_actix(&actix, ask, |request| request.to_request()).await,
        );
        assert_eq!(one.status, status, "{one:?}");
        // actix keeps the value of `connection` outside the header fields until it writes the
        // response; axum's server reads the value from the field.
        one.lines.retain(|(name, _)| name != "connection");
        match ask.method {
            "HEAD" => assert_eq!(one, other, "also the length of the omitted body"),
            _ => assert_eq!(unframed(one), other),
        }
    }
    assert_eq!(
        ask_axum(
            &axum,
            Ask { body: &[b'x'; LIMIT], fields: &[(KEY, b"exact"), ("x-tenant", b"a")], ..ASK }
        )
        .await
        .status,
        201
    );
}

/// A body with a trailer.
struct Trailed(Option<Bytes>, bool);

impl http_body::Body for Trailed {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = match self.0.take() {
            Some(data) => Some(Frame::data(data)),
            None if std::mem::take(&mut self.1) => {
                let trailers = [("x-sum", "1")]
                    .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
                Some(Frame::trailers(trailers.into_iter().collect()))
            }
            None => None,
        };
        std::task::Poll::Ready(frame.map(Ok))
    }
}

#[actix_web::test]
async fn http_9_trailers_of_a_record_have_no_place_in_actix_and_are_not_announced() {
    let engine = engine();
    let filter = filter(&engine);
    let trailed = || async { Response::new(Body::new(Trailed(Some("data".into()), true))) };
    let axum = Router::new().route("/named", any(trailed).layer(filter.guard(NAMED)));
    let ask = Ask { path: "/named", ..ASK };
    assert_eq!(ask_axum(&axum, ask).await.status, 200);
    assert_eq!(ask_axum(&axum, ask).await.field("trailer"), Some("x-sum"));
    let replay = ask_actix(&actix_app!(&filter), ask, |request| request.to_request()).await;
    assert!(replay.is_replay());
    assert_eq!((replay.text(), replay.field("trailer")), ("data", None));
}
