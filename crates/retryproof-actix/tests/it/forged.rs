// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a handler cannot do: pass its own fields for the guard's, or free the key of another call.

use std::future::{Ready, ready};

use actix_web::dev::Payload;
use actix_web::test;
use actix_web::web::{self, Bytes};
use actix_web::{App, FromRequest, HttpRequest, HttpResponse, error};
use retryproof_actix::WithFate as _;
use retryproof_http::{AnswerFate, IdempotencyFilter};

use crate::endpoint::guarded;
use crate::world::{Runs, app, engine, filter, post, send};

#[actix_web::test]
async fn http_8_http_21_no_field_of_the_handler_passes_for_a_field_of_the_guard() {
    let engine = engine();
    let mut web = engine.config().web.clone();
    web.publish_window = true;
    let filter =
        IdempotencyFilter::builder(engine).config(web).callers_share_keys().build().unwrap();
    // The guard removes the handler's field and adds `Idempotency-Expires`, so the number of lines
    // stays the same.
    for forged in [
        ("idempotent-replayed", "true"),
        ("idempotency-expires", "never"),
        ("transfer-encoding", "chunked"),
    ] {
        let app =
            app!(&filter, move || async move { HttpResponse::Ok().insert_header(forged).body("") });
        let first = send(&app, post("/orders", forged.0).to_request()).await;
        assert_ne!(first.field(forged.0), Some(forged.1), "{first:?}");
        let expires = first.field("idempotency-expires");
        assert!(expires.is_some_and(|date| date.ends_with(" GMT")), "{first:?}");
        let again = send(&app, post("/orders", forged.0).to_request()).await;
        assert_eq!(again.field("idempotency-expires"), expires);
    }
}

fn busy() -> HttpResponse {
    HttpResponse::BadGateway().finish().with_fate(AnswerFate::Release)
}

#[actix_web::test]
async fn http_7_a_mark_of_an_inner_extractor_frees_no_outer_key() {
    struct Busy;
    impl FromRequest for Busy {
        type Error = error::Error;
        type Future = Ready<Result<Self, error::Error>>;

        fn from_request(_: &HttpRequest, _: &mut Payload) -> Self::Future {
            ready(Err(error::InternalError::from_response("busy", busy()).into()))
        }
    }
    let runs = Runs::default();
    let order = {
        let runs = runs.clone();
        move || {
            runs.next();
            async {
                let mail = guarded(&filter(), |_: Busy, _: Bytes| async { "sent" });
                let inner = App::new().route("/mail", web::post().to(mail));
                let inner = test::init_service(inner).await;
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
