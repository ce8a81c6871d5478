// SPDX-License-Identifier: MIT OR Apache-2.0
//! How each answer was served, as a middleware outside of the guard sees it (HTTP-18).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceResponse};
use actix_web::http::Method;
use actix_web::test::{self, TestRequest};
use actix_web::web::{self, Bytes};
use actix_web::{App, Error, HttpResponse};
use retryproof_actix::{Idempotency, WithFate as _};
use retryproof_core::observe::{CallEvent, LeaseEvent, Observer, Phase};
use retryproof_core::store::HolderNote;
use retryproof_core::{IdempotencyConfig, IdempotencyEngine, Recorded, SharedStore};
use retryproof_http::{AnswerFate, Code, IdempotencyFilter, Served};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{Fault, FaultStore, Faults, Operation};

use crate::endpoint::{User, guarded};
use crate::world::{POLICY, post};

/// The outcomes that an observer has received.
#[derive(Debug, Default)]
struct Heard(Mutex<Vec<&'static str>>);

impl Observer for Heard {
    fn completed(&self, _: LeaseEvent<'_>, _: Recorded) {
        self.0.lock().unwrap().push("executed");
    }

    fn failed(&self, _: LeaseEvent<'_>, phase: Phase) {
        self.0.lock().unwrap().push(phase.outcome());
    }

    fn replayed(&self, _: CallEvent<'_>, _: Option<&HolderNote>) {
        self.0.lock().unwrap().push("replayed");
    }

    fn mismatch(&self, _: CallEvent<'_>) {
        self.0.lock().unwrap().push("mismatch");
    }

    fn not_replayable(&self, _: CallEvent<'_>) {
        self.0.lock().unwrap().push("not_replayable");
    }
}

fn world() -> (IdempotencyFilter, Arc<Heard>) {
    let heard = Arc::<Heard>::default();
    let engine = IdempotencyEngine::builder(MemoryStore::new())
        .observer(Arc::clone(&heard))
        .build()
        .unwrap();
    let mut web = engine.config().web.clone();
    web.required = false;
    let filter = IdempotencyFilter::builder(engine).config(web).callers_share_keys();
    (filter.build().unwrap(), heard)
}

async fn answer(body: Bytes) -> HttpResponse {
    let response = HttpResponse::Ok().body("done");
    match &body[..] {
        b"release" => response.with_fate(AnswerFate::Release),
        b"hold" => response.with_fate(AnswerFate::Hold),
        b"stream" => response.with_fate(AnswerFate::Stream),
        _ => response,
    }
}

async fn served<S, R, B>(app: &S, request: R) -> Option<Served>
where
    S: Service<R, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody,
{
    let response = test::call_service(app, request).await;
    let extensions = response.response().extensions();
    extensions.get().copied()
}

#[actix_web::test]
async fn http_18_run_8_each_answer_of_the_middleware_says_how_it_was_served() {
    let (filter, heard) = world();
    let app = test::init_service(
        App::new()
            .service(web::resource("/orders").wrap(Idempotency::new(&filter, POLICY)).to(answer)),
    )
    .await;
    for (key, body, expected) in [
        ("k", "", Served::Executed),
        ("k", "", Served::Replayed),
        ("k", "2", Served::Mismatch),
        ("r", "release", Served::Released),
        ("h", "hold", Served::Failed),
        ("s", "stream", Served::Executed),
        ("s", "stream", Served::NotReplayable),
    ] {
        let request = post("/orders", key).set_payload(body);
        assert_eq!(served(&app, request.to_request()).await, Some(expected), "{key}");
        assert_eq!(std::mem::take(&mut *heard.0.lock().unwrap()), [expected.as_str()], "{key}");
    }
    for (request, expected) in [
        (post("/orders", "a,b"), Served::Refused(Code::KeyInvalid)),
        (post("/orders", "k").method(Method::GET), Served::Unguarded),
        (TestRequest::post().uri("/orders"), Served::Unguarded),
    ] {
        assert_eq!(served(&app, request.to_request()).await, Some(expected));
    }
    assert_eq!(*heard.0.lock().unwrap(), Vec::<&str>::new());
}

/// The store accepts no completion, so a retry may run the handler again.
#[actix_web::test]
async fn http_18_cmp_4_an_unconfirmed_completion_has_its_own_value() {
    let faults = Faults::none();
    faults.fail_next(Operation::Complete, u64::MAX, Fault::Refused);
    let store = SharedStore::new(FaultStore::new(MemoryStore::new(), faults));
    let mut config = IdempotencyConfig::default();
    config.operation_timeout = Duration::from_secs(2);
    let engine = IdempotencyEngine::builder(store).config(config).build().unwrap();
    let filter = IdempotencyFilter::builder(engine).callers_share_keys().build().unwrap();
    let app = test::init_service(
        App::new()
            .service(web::resource("/layered").wrap(Idempotency::new(&filter, POLICY)).to(answer))
            .route("/annotated", web::post().to(guarded(&filter, answer))),
    )
    .await;
    for path in ["/layered", "/annotated"] {
        let request = post(path, path).to_request();
        assert_eq!(served(&app, request).await, Some(Served::Unconfirmed), "{path}");
    }
}

#[actix_web::test]
async fn http_18_each_answer_of_an_annotated_handler_says_how_it_was_served() {
    let (filter, _) = world();
    let nobody = |_: User, _: Bytes| async { HttpResponse::Ok().finish() };
    let json = |_: web::Json<u32>| async { HttpResponse::Ok().finish() };
    let app = test::init_service(
        App::new()
            .route("/orders", web::post().to(guarded(&filter, answer)))
            .route("/nobody", web::post().to(guarded(&filter, nobody)))
            .route("/json", web::post().to(guarded(&filter, json))),
    )
    .await;
    let json = ("content-type", "application/json");
    for (request, expected) in [
        (post("/orders", "k"), Served::Executed),
        (post("/orders", "k"), Served::Replayed),
        (post("/orders", "k").set_payload("2"), Served::Mismatch),
        (post("/orders", "a,b"), Served::Refused(Code::KeyInvalid)),
        (TestRequest::post().uri("/orders"), Served::Unguarded),
        // The handler's arguments reject the next three requests: the first before its key is
        // looked up, the second after the grant, and the third without a key.
        (post("/nobody", "n"), Served::Unguarded),
        (post("/json", "j").insert_header(json).set_payload("no json"), Served::Released),
        (TestRequest::post().uri("/nobody"), Served::Unguarded),
    ] {
        assert_eq!(served(&app, request.to_request()).await, Some(expected));
    }
}

#[actix_web::test]
async fn http_18_a_middleware_outside_counts_answers_by_how_they_were_served() {
    let (filter, _) = world();
    let counts = Rc::<RefCell<Vec<&'static str>>>::default();
    let seen = Rc::clone(&counts);
    let app = test::init_service(
        App::new()
            .wrap_fn(move |request, service| {
                let (seen, answering) = (Rc::clone(&seen), service.call(request));
                async move {
                    let response = answering.await?;
                    let served = response.response().extensions().get::<Served>().copied();
                    seen.borrow_mut().push(served.map_or("no guard", Served::as_str));
                    Ok(response)
                }
            })
            .route("/open", web::post().to(answer))
            .service(web::resource("/orders").wrap(Idempotency::new(&filter, POLICY)).to(answer)),
    )
    .await;
    for (path, key) in [("/orders", "k"), ("/orders", "k"), ("/open", "k"), ("/orders", "a,b")] {
        drop(test::call_service(&app, post(path, key).to_request()).await);
    }
    assert_eq!(*counts.borrow(), ["executed", "replayed", "no guard", "refused"]);
}
