// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `http`: server CPU per request of guarded endpoints beside a plain axum handler of the same server.
//!
//! One server process on one core, one load generator on another. The cost of a request is what the server's threads
//! spent on a CPU, by the kernel's account, so it does not depend on how loaded the machine is.

use std::net::SocketAddr;

use crate::compare::{Contender, Median, interleave};
use crate::heap::{HeapCounter, counted};
use crate::report::{Plot, Report, Row};

mod inside;
mod load;
mod server;

use load::{Keys, Load};
use server::Server;

/// Requests of one batch, over this many connections.
const BATCH: u64 = 20_000;
const CONNECTIONS: usize = 64;
const ROUNDS: usize = 9;

/// One way of asking: a name, the path, which keys.
const WAYS: [(&str, &str, Keys); 7] = [
    ("plain axum", "/plain", Keys::None),
    ("first execution, annotated", "/annotated", Keys::Fresh),
    ("first execution, layer", "/layered", Keys::Fresh),
    ("replay, annotated", "/annotated", Keys::Same),
    ("replay, layer", "/layered", Keys::Same),
    ("keyless, annotated", "/optional-annotated", Keys::None),
    ("keyless, layer", "/optional-layered", Keys::None),
];

pub(crate) fn run() -> Result<Report, String> {
    let server = Server::start()?;
    let load = Load::new(server.address, CONNECTIONS)?;
    let failure = std::cell::RefCell::new(None);
    let contenders = WAYS.map(|(name, path, keys)| {
        let (server, load, failure) = (&server, &load, &failure);
        Contender::new(name, move || {
            let before = server.cpu_micros();
            if let Err(problem) = load.batch(path, keys, BATCH) {
                failure.borrow_mut().get_or_insert(problem);
            }
            (server.cpu_micros() - before) / BATCH as f64
        })
    });
    let medians = interleave(ROUNDS, contenders.into());
    if let Some(problem) = failure.into_inner() {
        return Err(problem);
    }
    let mut report = Report::new("http", "HTTP: server CPU per request");
    for median in &medians {
        report.row(goal(row(median), median.name));
    }
    latency(&mut report, &load)?;
    inside_rows(&mut report)?;
    let bars =
        medians.iter().skip(1).fold(Plot::new("Server CPU per request", "x plain axum"), |plot, median| {
            plot.bar(median.name, median.ratio)
        });
    report.plot(bars.bar("plain axum", 1.0));
    report.note(format!(
        "POST with a 180-byte body, the answer is 180 bytes of the handler's own; {CONNECTIONS} connections, HTTP/1.1, memory store; \
         {ROUNDS} rounds of {BATCH} requests each, in turn; user and system time of the server process, pinned to one core."
    ));
    Ok(report)
}

fn row(median: &Median) -> Row {
    Row::new(median.name, median.cost, "us").beside("plain axum", median.ratio)
}

fn goal(row: Row, name: &str) -> Row {
    match name {
        name if name.starts_with("first") => row.ratio_at_most(1.7),
        name if name.starts_with("replay") => row.ratio_at_most(1.15),
        name if name.starts_with("keyless") => row.ratio_at_most(1.05),
        _ => row,
    }
}

/// The 99th percentile over a connection's eyes, guarded beside plain.
fn latency(report: &mut Report, load: &Load) -> Result<(), String> {
    let mut ratios = Vec::new();
    let mut p99 = 0.0;
    for _ in 0..5 {
        let plain = load.batch("/plain", Keys::None, BATCH)?;
        let first = load.batch("/annotated", Keys::Fresh, BATCH)?;
        p99 = first.p99_micros;
        ratios.push(first.p99_micros / plain.p99_micros);
    }
    let row = Row::new("p99 latency of a first execution", p99, "us");
    report.row(row.beside("plain axum", crate::compare::median(ratios)).ratio_at_most(3.0));
    Ok(())
}

/// Counted inside one process, without a socket.
fn inside_rows(report: &mut Report) -> Result<(), String> {
    let counts = counted(&["http", "inside"])?;
    let get = |name: &str| counts.get(name).copied().ok_or_else(|| format!("the child did not count {name}"));
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

pub(crate) fn child(args: &[String], heap: HeapCounter) -> Result<(), String> {
    match args.first().map(String::as_str) {
        Some("serve") => server::serve(SocketAddr::from(([127, 0, 0, 1], 0))),
        Some("inside") => inside::count(heap),
        Some("call") => inside::repeat(&args[1..]),
        _ => Err("http: the child serves, counts or calls".into()),
    }
}
