// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spans in which a handler runs (RUN-10), and a warning that is logged once.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix_web::{App, HttpResponse, test, web};
use retryproof_actix::Idempotency;
use retryproof_core::config::StoredStatuses;
use retryproof_http::{AnswerFate, IdempotencyFilter};
use tracing::Level;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::endpoint::guarded;
use crate::world::{POLICY, app, engine, filter, post, send};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::DEBUG)
            .with_span_events(FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// Takes what was logged since the last call.
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }

    /// Takes the lines for spans that closed since the last call.
    fn closed(&self) -> Vec<String> {
        self.take().lines().filter(|line| line.contains(" close ")).map(str::to_owned).collect()
    }
}

/// A handler that opens the span `charge`.
async fn charge() -> HttpResponse {
    // This wait suspends the handler, which then continues in a task.
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(tracing::info_span!("charge"));
    HttpResponse::Ok().finish()
}

#[actix_web::test]
async fn run_10_a_handler_runs_in_the_span_of_an_action() {
    let (log, _guard) = Log::listen();
    let filter = filter();
    let expect_inside = |front_end: &str| {
        let lines = log.closed();
        let inside = |line: &String| line.contains("}:idempotency.action:charge: ");
        let charges: Vec<_> = lines.iter().filter(|line| line.contains(":charge: ")).collect();
        assert!(matches!(charges[..], [line] if inside(line)), "{front_end}: {lines:#?}");
        let actions = lines.iter().filter(|line| line.contains(":idempotency.action: "));
        assert_eq!(actions.count(), 1, "{front_end}: {lines:#?}");
    };
    let wrapped = app!(&filter, charge);
    assert_eq!(send(&wrapped, post("/orders", "wrapped").to_request()).await.status, 200);
    expect_inside("the middleware");
    let annotated = web::post().to(guarded(&filter, |_: web::Bytes| charge()));
    let annotated = test::init_service(App::new().route("/orders", annotated)).await;
    assert_eq!(send(&annotated, post("/orders", "annotated").to_request()).await.status, 200);
    expect_inside("an annotated handler");
}

#[actix_web::test]
async fn http_19_a_policy_that_the_hook_makes_void_is_warned_about_once() {
    let (log, _guard) = Log::listen();
    let filter = IdempotencyFilter::builder(engine()).callers_share_keys();
    let filter = filter.fate(|_| AnswerFate::Store).build().unwrap();
    for _worker in 0..2 {
        let guard = Idempotency::new(&filter, POLICY.with_stored(StoredStatuses::SUCCESSES));
        let _ = test::init_service(App::new().wrap(guard)).await;
    }
    let text = log.take();
    assert_eq!(text.matches("`Policy::with_stored` has no effect").count(), 1, "{text}");
}
