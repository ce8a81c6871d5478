// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `http`: compares the server CPU per request of guarded endpoints with that of a plain axum
//! handler in the same server.
//!
//! One server process runs on one core, and one load generator on another. The cost of a request is
//! the CPU time of the server's threads, as the kernel counts it, so it does not depend on the load
//! of the machine.

use std::net::SocketAddr;

use crate::callgrind;
use crate::compare::{Contender, Median, interleave};
use crate::heap::{HeapCounter, counted};
use crate::report::{Plot, Report, Row};

mod inside;
pub(crate) mod load;
pub(crate) mod server;

use load::{Idle, Keys, Load};
use server::{Cores, Server};

/// The number of requests in one batch. Batches are short and rounds are many, so that a neighbour
/// on a shared machine spoils only a few ratios, which do not change the median.
pub(crate) const BATCH: u64 = 4_000;
/// The number of connections over which a batch is sent.
pub(crate) const CONNECTIONS: usize = 64;
pub(crate) const ROUNDS: usize = 61;

const PLAIN: &str = "plain axum";
const PLAIN_KEYLESS: &str = "plain axum, keyless";

/// One way to send requests: its name, the path, and which keys are sent. Each way is compared with
/// plain axum, which gets the same request with the same key header, because reading that header is
/// not the guard's work.
pub(crate) type Way = (&'static str, &'static str, Keys);

const KEYED: [Way; 5] = [
    (PLAIN, "/plain", Keys::Fresh),
    ("first execution, annotated", "/annotated", Keys::Fresh),
    ("first execution, layer", "/layered", Keys::Fresh),
    ("replay, annotated", "/annotated", Keys::Same),
    ("replay, layer", "/layered", Keys::Same),
];
const KEYLESS: [Way; 3] = [
    (PLAIN_KEYLESS, "/plain", Keys::None),
    ("keyless, annotated", "/optional-annotated", Keys::None),
    ("keyless, layer", "/optional-layered", Keys::None),
];

/// The ways with a key in a set-up as in production, for comparison: all cores, and a client that
/// sleeps.
const THREADS_KEYED: [Way; 3] = [
    ("plain axum, threads", "/plain", Keys::Fresh),
    ("first execution, threads", "/annotated", Keys::Fresh),
    ("replay, threads", "/annotated", Keys::Same),
];
const THREADS_KEYLESS: [Way; 2] = [
    ("plain axum, keyless, threads", "/plain", Keys::None),
    ("keyless, threads", "/optional-annotated", Keys::None),
];

pub(crate) fn run() -> Result<Report, String> {
    let mut report = Report::new("http", "HTTP: server CPU per request");
    {
        let server = Server::start("http", Cores::One)?;
        let load = Load::new(server.address, CONNECTIONS, Idle::Spins)?;
        per_request(&mut report, plot("x plain axum"), &server, &load, &[&KEYED, &KEYLESS])?;
        latency(&mut report, &load, PLAIN)?;
    }
    let server = Server::start("http", Cores::All)?;
    let load = Load::new(server.address, CONNECTIONS, Idle::Sleeps)?;
    let plot = Plot::new("The same with all cores and a client that sleeps", "x plain axum");
    per_request(&mut report, plot, &server, &load, &[&THREADS_KEYED, &THREADS_KEYLESS])?;
    inside_rows(&mut report)?;
    instruction_rows(&mut report)?;
    report.note(format!(
        "{}Plain axum gets the same requests as the rows below it, with a key or without. Times \
         are the user and system time of the server process, which is pinned to one core. In the \
         rows *threads*, the set-up is the usual one of a service: a runtime with one thread for \
         each core, which the server shares with the client, and a client that sleeps until a \
         socket is readable. Waking threads is then part of the time of every row.",
        how()
    ));
    Ok(report)
}

/// Describes how a batch is measured, for the note of a report.
pub(crate) fn how() -> String {
    format!(
        "Each request is a POST with a body of 180 bytes, and the handler answers with 180 bytes \
         of its own. The server uses the memory store, and the client sends the requests over \
         {CONNECTIONS} connections (HTTP/1.1). The client polls its sockets and never sleeps. \
         Waking a sleeping client would cost CPU time of the server, and the client would sleep \
         more often with a slower server. The contenders take turns in {ROUNDS} rounds, each with \
         {BATCH} requests for each contender. "
    )
}

/// Creates the plot of a server's CPU, without bars.
pub(crate) fn plot(unit: &'static str) -> Plot {
    Plot::new("Server CPU per request", unit)
}

/// Adds rows and a plot of the server's CPU per request. The first way of each group is the floor
/// of the others.
pub(crate) fn per_request(
    report: &mut Report,
    mut plot: Plot,
    server: &Server,
    load: &Load,
    groups: &[&[Way]],
) -> Result<(), String> {
    let plain = groups.first().and_then(|ways| ways.first()).map_or(PLAIN, |(name, ..)| *name);
    for &ways in groups {
        let medians = measure(server, load, ways)?;
        let floor = medians.first().map_or(plain, |floor| floor.name);
        for median in &medians {
            let row = Row::new(median.name, median.cost, "us").beside(floor, median.ratio);
            report.row(goal(row, median.name));
        }
        plot =
            medians.iter().skip(1).fold(plot, |plot, median| plot.bar(median.name, median.ratio));
    }
    report.plot(plot.bar(plain, 1.0));
    Ok(())
}

/// Measures the server's CPU for each way, in turn.
fn measure(server: &Server, load: &Load, ways: &[Way]) -> Result<Vec<Median>, String> {
    let failure = std::cell::RefCell::new(None);
    let contenders = ways.iter().map(|&(name, path, keys)| {
        let failure = &failure;
        Contender::new(name, move || {
            let before = server.cpu_micros();
            if let Err(problem) = load.batch(path, keys, BATCH) {
                failure.borrow_mut().get_or_insert(problem);
            }
            (server.cpu_micros() - before) / BATCH as f64
        })
    });
    let medians = interleave(ROUNDS, contenders.collect());
    failure.into_inner().map_or(Ok(medians), Err)
}

fn goal(row: Row, name: &str) -> Row {
    match name {
        name if name.starts_with("first") => row.ratio_at_most(1.7),
        name if name.starts_with("replay") => row.ratio_at_most(1.15),
        name if name.starts_with("keyless") => row.ratio_at_most(1.05),
        _ => row,
    }
}

/// Adds the 99th percentile of the latency that a connection sees, with the guard and without.
pub(crate) fn latency(report: &mut Report, load: &Load, plain: &'static str) -> Result<(), String> {
    let mut ratios = Vec::new();
    let mut p99 = 0.0;
    for _ in 0..5 {
        let plain = load.batch("/plain", Keys::Fresh, BATCH)?;
        let first = load.batch("/annotated", Keys::Fresh, BATCH)?;
        p99 = first.p99_micros;
        ratios.push(first.p99_micros / plain.p99_micros);
    }
    let row = Row::new("p99 latency of a first execution", p99, "us");
    report.row(row.beside(plain, crate::compare::median(ratios)).ratio_at_most(3.0));
    Ok(())
}

/// Adds the figures that are counted inside one process, without a socket.
fn inside_rows(report: &mut Report) -> Result<(), String> {
    let counts = counted(&["http", "inside"])?;
    let get = |name: &str| {
        counts.get(name).copied().ok_or_else(|| format!("the child did not count {name}"))
    };
    let held = Row::new("kept for a 180-byte response", get("held_bytes")?, "bytes");
    report.row(held.value_at_most(700.0));
    for (what, name) in [
        ("allocations of a plain call", "plain_allocations"),
        ("allocations of a replay", "replay_allocations"),
        ("allocations of a first execution", "first_allocations"),
        ("allocations of a keyless call through the layer", "keyless_allocations"),
    ] {
        report.row(Row::new(what, get(name)?, ""));
    }
    Ok(())
}

/// Adds the instructions of a call straight into the router, without a socket: a figure that does
/// not vary with the machine. SHA-256 is left out, because valgrind runs it in software.
fn instruction_rows(report: &mut Report) -> Result<(), String> {
    let mut plain = None;
    for way in ["plain", "first", "replay", "keyless"] {
        let what = format!("instructions in the router, SHA-256 left out: {way}");
        callgrind::row(report, what, &["http", "call", way], (PLAIN, &mut plain))?;
    }
    Ok(())
}

pub(crate) fn child(args: &[String], heap: HeapCounter) -> Result<(), String> {
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    match args.first().map(String::as_str) {
        Some("serve") => server::serve(anywhere, Cores::One),
        Some("serve-all") => server::serve(anywhere, Cores::All),
        Some("inside") => inside::count(heap),
        Some("call") => inside::repeat(&args[1..]),
        Some("load") => load::one(&args[1..]),
        _ => Err("http: the child takes `serve`, `serve-all`, `inside`, `call` or `load`".into()),
    }
}
