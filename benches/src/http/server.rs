// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server that the benchmark loads: a plain route and guarded routes in one process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use bytes::Bytes;
use retryproof::http::{IdempotencyFilter, Policy};
use retryproof::{IdempotencyEngine, MemoryStore, idempotent};

/// The response of each handler. It does not echo the request, because the cost of an echo would
/// make the guard look cheaper.
pub(crate) static ANSWER: [u8; 180] = [b'a'; 180];

async fn plain(body: Bytes) -> (StatusCode, &'static [u8]) {
    std::hint::black_box(body);
    (StatusCode::CREATED, &ANSWER)
}

#[idempotent(http, scope = "bench")]
async fn annotated(body: Bytes) -> (StatusCode, &'static [u8]) {
    std::hint::black_box(body);
    (StatusCode::CREATED, &ANSWER)
}

/// Returns a filter that requires keys and one that does not, over one memory store that is never
/// full.
pub(crate) fn filters() -> Result<(IdempotencyFilter, IdempotencyFilter), String> {
    let store = MemoryStore::builder().max_records(50_000_000).max_bytes(16 << 30).build();
    let engine = IdempotencyEngine::new(store);
    let filter = |required: bool| {
        let mut web = engine.config().web.clone();
        web.required = required;
        IdempotencyFilter::builder(engine.clone()).config(web).callers_share_keys().build()
    };
    let strict = filter(true).map_err(|error| error.to_string())?;
    let optional = filter(false).map_err(|error| error.to_string())?;
    Ok((strict, optional))
}

/// Returns a router with all routes. Routes that begin with `/optional` accept requests without a
/// key.
pub(super) fn router() -> Result<Router, String> {
    let (strict, optional) = filters()?;
    let policy = Policy::new("bench.layered");
    // All routes have the same depth, because the cost of a nested router would be counted as the
    // guard's.
    let guarded = |[annotated_at, layered_at]: [&str; 2], filter: IdempotencyFilter| {
        Router::new()
            .route(annotated_at, post(annotated))
            .route(layered_at, post(plain).layer(filter.guard(policy)))
            .with_state(filter)
    };
    Ok(Router::new()
        .route("/plain", post(plain))
        .merge(guarded(["/annotated", "/layered"], strict))
        .merge(guarded(["/optional-annotated", "/optional-layered"], optional)))
}

/// Runs the server, on one thread or on one for each core, until its process is killed.
pub(super) fn serve(listen: SocketAddr, cores: Cores) -> Result<(), String> {
    let mut runtime = match cores {
        Cores::One => tokio::runtime::Builder::new_current_thread(),
        Cores::All => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let listener =
            tokio::net::TcpListener::bind(listen).await.map_err(|error| error.to_string())?;
        println!("{}", listener.local_addr().map_err(|error| error.to_string())?);
        axum::serve(listener, router()?).await.map_err(|error| error.to_string())
    })
}

/// The cores that a server runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cores {
    /// A core that the client does not use, if the machine has two.
    One,
    /// All cores, which the server shares with the client.
    All,
}

/// The server as a child process.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn start(suite: &str, cores: Cores) -> Result<Self, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("cannot find this program's path: {error}"))?;
        // Pin this process, in which the load generator runs, to core 1. The server gets core 0.
        let own = std::process::id().to_string();
        let pin = || Command::new("taskset").args(["-a", "-p", "-c", "1", &own]).output();
        let pinned = cores == Cores::One && pin().is_ok_and(|output| output.status.success());
        if cores == Cores::One && !pinned {
            println!(
                "NOT PINNED: `taskset` is missing or there is only one core, so the figures vary \
                 more"
            );
        }
        let mut command = if pinned {
            let mut command = Command::new("taskset");
            command.args(["-c", "0"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        let mut child = command
            .args(["child", suite, if cores == Cores::One { "serve" } else { "serve-all" }])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the server: {error}"))?;
        let stdout = child.stdout.take().ok_or("the server has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
        let address = line.trim().parse().map_err(|_| "the server did not start")?;
        Ok(Self { child, address })
    }

    /// Returns the CPU time of the server's threads so far, as the kernel counts it.
    pub(super) fn cpu_micros(&self) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let nanos: u64 = tasks
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
            .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
            .sum();
        nanos as f64 / 1_000.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Let this process use both cores again.
        let own = std::process::id().to_string();
        let _ = Command::new("taskset").args(["-a", "-p", "-c", "0-1", &own]).output();
    }
}
