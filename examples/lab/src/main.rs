// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab: guarded endpoints with known durations. Their handlers follow the script in the
//! request's `x-lab` header.
//!
//! The project's end-to-end, load and kill tests call the lab over real sockets, and so can anyone
//! who evaluates the library. No other example lets a request script its handler. For a program to
//! copy, see `examples/payments`.

#[cfg(feature = "actix")]
mod actix;
mod body;
mod endpoints;
mod run;
mod runs;
mod script;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use retryproof::{Error, IdempotencyConfig, IdempotencyEngine, WebConfig};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// How long tracked work may take to end after SIGTERM.
const DRAIN: Duration = Duration::from_secs(10);

const USAGE: &str = "usage: lab [--listen 127.0.0.1:PORT] [--store URL] [--config FILE] [--framework axum|actix]\n\
    the store: --store, else IDEMPOTENCY_STORE, else the file, else memory:\n\
    its URL: memory:, sqlite:FILE, postgres://USER:PASSWORD@HOST:PORT/DATABASE, mysql://USER:PASSWORD@HOST:PORT/DATABASE,\n\
    redis://HOST:PORT, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE, redis+cluster://HOST:PORT,HOST:PORT\n";

#[derive(Debug)]
struct Options {
    listen: SocketAddr,
    store: Option<String>,
    config: Option<PathBuf>,
    framework: Framework,
}

/// The framework that serves the lab.
#[derive(Debug, Clone, Copy)]
enum Framework {
    Axum,
    #[cfg(feature = "actix")]
    Actix,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let listen = SocketAddr::from(([127, 0, 0, 1], 4808));
    let mut options = Options { listen, store: None, config: None, framework: Framework::Axum };
    while let Some(option) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{option} needs a value"));
        match option.as_str() {
            "--listen" => {
                let address = value()?;
                options.listen = address.parse().map_err(|_| {
                    format!("{address:?} is not a valid value for --listen; expected IP:PORT")
                })?;
            }
            "--store" => options.store = Some(value()?),
            "--config" => options.config = Some(value()?.into()),
            "--framework" => {
                options.framework = match value()?.as_str() {
                    "axum" => Framework::Axum,
                    #[cfg(feature = "actix")]
                    "actix" => Framework::Actix,
                    other => return Err(format!("{other:?} is not a valid value for --framework")),
                }
            }
            _ => return Err(format!("unknown argument {option:?}")),
        }
    }
    Ok(options)
}

/// Why the lab did not start.
enum Failure {
    Usage(String),
    Start(String),
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let started = match parse(std::env::args().skip(1)) {
        Ok(options) => serve(options).await,
        Err(problem) => Err(Failure::Usage(problem)),
    };
    match started {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(problem)) => {
            eprint!("lab: {problem}\n{USAGE}");
            ExitCode::from(2)
        }
        Err(Failure::Start(problem)) => {
            // Print one line, even if the error contains a server's answer of several lines.
            eprintln!("lab: {}", problem.replace(['\r', '\n'], " "));
            ExitCode::FAILURE
        }
    }
}

/// Returns the scheme and the host of a store's URL. The rest can contain a password: before an
/// `@`, or in the query. A file's URL has no password, so it is returned whole.
fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once(':') else { return url.to_owned() };
    if matches!(scheme, "memory" | "sqlite") {
        return url.to_owned();
    }
    let Some(rest) = rest.strip_prefix("//") else { return format!("{scheme}:***") };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        // If the path contains an `@`, the text before the `@` may be a password with a `/` in it.
        _ if path.contains('@') => format!("{scheme}://***"),
        Some((_, host)) => format!("{scheme}://***@{host}"),
        None => format!("{scheme}://{authority}"),
    }
}

/// Adds the causes of the error, from the server or its driver, because they may be clearer. No
/// store puts a password into them (ID-4).
fn with_sources(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = inner.source();
    }
    text
}

async fn serve(options: Options) -> Result<(), Failure> {
    let mut config = IdempotencyConfig::load(options.config.as_deref())
        .map_err(|error| Failure::Usage(format!("bad configuration: {error}")))?;
    let store =
        options.store.or_else(|| config.store.take()).unwrap_or_else(|| "memory:".to_owned());
    let unusable = |error: Error| {
        let problem = format!("cannot use the store {}: {}", shown(&store), with_sources(&error));
        // An error without an operation comes from the URL or the settings, before any call of the
        // store.
        match error.operation() {
            None => Failure::Usage(problem),
            Some(_) => Failure::Start(problem),
        }
    };
    config.store = Some(store.clone());
    retryproof::migrate_with(&config).await.map_err(unusable)?;
    let shared = retryproof::connect_with(&config).await.map_err(unusable)?;
    let web = config.web.clone();
    let engine = IdempotencyEngine::builder(shared)
        .config(config)
        .build()
        .map_err(|error| Failure::Usage(format!("bad configuration: {error}")))?;
    let listener = TcpListener::bind(options.listen)
        .await
        .map_err(|error| Failure::Start(format!("cannot listen on {}: {error}", options.listen)))?;
    let address = listener.local_addr().map_err(|error| Failure::Start(error.to_string()))?;
    // Install the signal handler before printing the address, because the process that reads the
    // line may send SIGTERM at once.
    let stop = termination()
        .map_err(|error| Failure::Start(format!("cannot install the signal handler: {error}")))?;
    // Print one line and flush it, because a parent process waits for the line.
    println!("listening on http://{address}");
    std::io::Write::flush(&mut std::io::stdout())
        .map_err(|error| Failure::Start(error.to_string()))?;

    match options.framework {
        Framework::Axum => serve_axum(&engine, &web, listener, stop).await,
        #[cfg(feature = "actix")]
        Framework::Actix => serve_actix(&engine, &web, listener, stop).await,
    }
}

async fn serve_axum(
    engine: &IdempotencyEngine,
    web: &WebConfig,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    let (router, filter) = endpoints::router(engine, web)
        .map_err(|error| Failure::Start(format!("cannot create the filter: {error}")))?;
    let (stopping, mut stopped) = tokio::sync::watch::channel(false);
    let stop = async move {
        stop.await;
        let _ = stopping.send(true);
    };
    let server = axum::serve(listener, router).with_graceful_shutdown(stop);
    let drained = async {
        let _ = stopped.wait_for(|stopping| *stopping).await;
        let left = filter.shutdown(DRAIN).await;
        if left > 0 {
            tracing::warn!(left, "stopped while actions were running; their leases will expire");
        }
        // Wait a moment, so that the last answers can be sent.
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    // Do not let a connection that never ends, such as an open stream, delay the exit.
    tokio::select! {
        served = server => {
            served.map_err(|error| Failure::Start(error.to_string()))?;
            filter.shutdown(DRAIN).await;
        }
        () = drained => {}
    }
    Ok(())
}

/// Shuts the filter down before the server, because an actix worker drops its tasks when it ends.
/// During the shutdown, the server accepts no connections, and the filter grants nothing new on
/// open connections.
#[cfg(feature = "actix")]
async fn serve_actix(
    engine: &IdempotencyEngine,
    web: &WebConfig,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let failure = |error: std::io::Error| Failure::Start(error.to_string());
    let listener = listener.into_std().map_err(failure)?;
    let (server, filter) = actix::server(engine, web, listener)
        .map_err(|error| Failure::Start(format!("cannot start the server: {error}")))?;
    let handle = server.handle();
    let drained = async {
        stop.await;
        handle.pause().await;
        let left = filter.shutdown(DRAIN).await;
        if left > 0 {
            tracing::warn!(left, "stopped while actions were running; their leases will expire");
        }
        // Wait a moment, so that the last answers can be sent.
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    // Do not let a connection that never ends delay the exit.
    tokio::select! {
        served = server => served.map_err(failure)?,
        () = drained => handle.stop(false).await,
    }
    Ok(())
}

/// Resolves at SIGTERM or SIGINT, even if the signal arrives before the first poll.
fn termination() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
