// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `actix`: compares the server CPU per request of guarded endpoints with that of a plain
//! actix-web handler in the same server, as suite `http` does for axum.

use std::net::TcpListener;

use actix_web::http::StatusCode;
use actix_web::web::{self, Bytes, ServiceConfig};
use actix_web::{App, HttpServer};
use retryproof::actix::{Idempotency, idempotent};
use retryproof::http::{IdempotencyFilter, Policy};

use crate::callgrind;
use crate::heap::{HeapCounter, counted};
use crate::http::load::{Idle, Keys, Load};
use crate::http::server::{ANSWER, Cores, Server, filters};
use crate::http::{CONNECTIONS, Way, how, latency, per_request, plot};
use crate::report::{Report, Row};

mod inside;

const PLAIN: &str = "plain actix-web";

const KEYED: [Way; 5] = [
    (PLAIN, "/plain", Keys::Fresh),
    ("first execution, annotated", "/annotated", Keys::Fresh),
    ("first execution, middleware", "/wrapped", Keys::Fresh),
    ("replay, annotated", "/annotated", Keys::Same),
    ("replay, middleware", "/wrapped", Keys::Same),
];
const KEYLESS: [Way; 3] = [
    ("plain actix-web, keyless", "/optional-plain", Keys::None),
    ("keyless, annotated", "/optional-annotated", Keys::None),
    ("keyless, middleware", "/optional-wrapped", Keys::None),
];

pub(crate) fn run() -> Result<Report, String> {
    let server = Server::start("actix", Cores::One)?;
    let load = Load::new(server.address, CONNECTIONS, Idle::Spins)?;
    let mut report = Report::new("actix", "actix-web: server CPU per request");
    per_request(&mut report, plot("x plain actix-web"), &server, &load, &[&KEYED, &KEYLESS])?;
    latency(&mut report, &load, PLAIN)?;
    inside_rows(&mut report)?;
    report.note(format!(
        "{}Plain actix-web gets the same requests as the rows below it, with a key or without. \
         The server has one worker. Times are the user and system time of the server process, \
         which is pinned to one core. The annotated handler takes its body as `Bytes`, which a \
         replay does not read. If a handler takes `Json` or a form, the body is read before the \
         key is looked up, and replays take longer.",
        how()
    ));
    Ok(report)
}

/// Adds the figures that are counted inside one process, without a socket. The instruction counts
/// leave out SHA-256, because valgrind runs it in software.
fn inside_rows(report: &mut Report) -> Result<(), String> {
    let counts = counted(&["actix", "inside"])?;
    let mut plain = None;
    for (number, (name, ..)) in inside::WAYS.iter().enumerate() {
        let number = number.to_string();
        let allocations =
            counts.get(&number).ok_or_else(|| format!("the child did not count {name}"))?;
        report.row(Row::new(format!("allocations in the app: {name}"), *allocations, ""));
        let what = format!("instructions in the app, SHA-256 left out: {name}");
        callgrind::row(report, what, &["actix", "call", &number], (PLAIN, &mut plain))?;
    }
    Ok(())
}

pub(crate) fn child(args: &[String], heap: HeapCounter) -> Result<(), String> {
    match args.first().map(String::as_str) {
        Some("serve") => serve(),
        Some("inside") => inside::count(heap),
        Some("call") => inside::repeat(&args[1..]),
        _ => Err("actix: the child takes `serve`, `inside` or `call`".into()),
    }
}

async fn plain(body: Bytes) -> (&'static [u8], StatusCode) {
    std::hint::black_box(body);
    (&ANSWER, StatusCode::CREATED)
}

#[idempotent(http, scope = "bench")]
async fn annotated(body: Bytes) -> (&'static [u8], StatusCode) {
    std::hint::black_box(body);
    (&ANSWER, StatusCode::CREATED)
}

/// Returns a function that adds all routes to an app. Each worker builds its own app.
fn routes(
    (strict, optional): (IdempotencyFilter, IdempotencyFilter),
) -> impl Fn(&mut ServiceConfig) + Clone {
    let policy = Policy::new("bench.layered");
    move |config| {
        let wrapped = |path: &str, filter| {
            web::resource(path).wrap(Idempotency::new(filter, policy)).route(web::post().to(plain))
        };
        // The router tries the routes in turn, so each plain route stands between two guarded
        // routes: no route gains from its place.
        config
            .route("/annotated", web::post().to(annotated(strict.clone())))
            .route("/plain", web::post().to(plain))
            .service(wrapped("/wrapped", &strict))
            .route("/optional-annotated", web::post().to(annotated(optional.clone())))
            .route("/optional-plain", web::post().to(plain))
            .service(wrapped("/optional-wrapped", &optional));
    }
}

/// Runs the server, with one worker, until its process is killed.
fn serve() -> Result<(), String> {
    let routes = routes(filters()?);
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    actix_web::rt::System::new().block_on(async {
        let server = HttpServer::new(move || App::new().configure(&routes));
        let server = server.workers(1).listen(listener).map_err(|error| error.to_string())?;
        println!("{address}");
        server.run().await.map_err(|error| error.to_string())
    })
}
