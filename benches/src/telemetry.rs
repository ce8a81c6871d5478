// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `telemetry`: what metrics and spans add to a call of the engine, on a store in memory.
//!
//! Each contender runs in a separate process, because recorders and subscribers stay installed, and
//! even a removed subscriber makes every later call slower.

use std::cell::Cell;
use std::convert::Infallible;
use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder};
use metrics::{SharedString, Unit};
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use retryproof::{
    IdempotencyConfig, IdempotencyContext, IdempotencyEngine, MemoryStore, Outcome, Scope,
};

use crate::callgrind;
use crate::compare::{Contender, interleave, now, per_operation};
use crate::heap::{self, HeapCounter};
use crate::report::{Plot, Report, Row};

/// The contenders, the floor first, with their names in the table.
const WHO: [(&str, &str); 5] = [
    ("off", "off"),
    ("metrics", "metrics"),
    ("otel", "OpenTelemetry metrics"),
    ("spans", "spans"),
    ("both", "OpenTelemetry metrics and spans"),
];
/// The most that telemetry may cost while it is off. The allocations are those of a build without
/// spans, events and observers: 8.04 in a first execution and 2.00 in a replay. One of these
/// allocations is the value that the loop creates, and the fractions come from the growing store.
/// In that build, a first execution has 15,430 to 15,540 instructions and a replay 8,420 to 8,610.
/// With telemetry that is off, they have 15,640 to 15,810 and 8,500 to 8,710: the checks cost a
/// first execution 300 instructions. They cost a replay less than the difference between two runs
/// of one build. The goals are 1 % above 15,735 and 8,700.
const WORKS: [Work; 2] = [
    Work { work: "execute", what: "first execution", allocations: 8.05, instructions: 15_890.0 },
    Work { work: "replay", what: "replay", allocations: 2.01, instructions: 8_790.0 },
];
/// The number of keys that a replay repeats.
const KEYS: u64 = 256;
const CALLS: u64 = 40_000;
const ROUNDS: usize = 15;
const DAY: Duration = Duration::from_secs(86_400);

/// The measured operations, each with the most that it may cost while telemetry is off.
#[derive(Clone, Copy)]
struct Work {
    work: &'static str,
    what: &'static str,
    allocations: f64,
    instructions: f64,
}

pub(crate) fn run() -> Result<Report, String> {
    let mut report = Report::new("telemetry", "Metrics and spans");
    for Work { work, what, instructions: goal, .. } in WORKS {
        let mut plain = None;
        let mut plot = Plot::new(format!("{what}, instructions"), "per call");
        for (who, name) in WHO {
            let row = format!("{what}, instructions: {name}");
            let Some(own) = callgrind::instructions(&["telemetry", work, who], 2_000, 20_000)?
            else {
                report.row(Row::missing(row, "valgrind is not installed"));
                continue;
            };
            let row = Row::new(row, own, "").beside("off", own / *plain.get_or_insert(own));
            report.row(if who == "off" { row.value_at_most(goal) } else { row });
            plot = plot.bar(name, own);
        }
        if plain.is_some() {
            report.plot(plot);
        }
    }
    for Work { work, what, allocations: goal, .. } in WORKS {
        for (who, name) in WHO {
            let told = heap::counted(&["telemetry", "allocations", work, who])?;
            let own = told.get("allocations").ok_or("the counting child did not answer")?;
            let row = Row::new(format!("{what}, allocations: {name}"), *own, "");
            report.row(if who == "off" { row.value_at_most(goal) } else { row });
        }
    }
    for Work { work, what, .. } in WORKS {
        times(&mut report, work, what)?;
    }
    report.note(format!(
        "Each call is an `execute` of an engine on the memory store, in place, with a value of 200 \
         bytes, a key of 36 bytes and a context that was built beforehand. *Off*: no observer and \
         no subscriber. *Metrics*: the observer of `retryproof-metrics`, with a recorder that has \
         one atomic for each counter and gauge, and 16 for each histogram. *OpenTelemetry*: the \
         observer of `retryproof-otel`, with the SDK. *Spans*: a subscriber of \
         `tracing-subscriber` at INFO, which formats the fields of each span and writes nothing. \
         The span of a call is at INFO, and the spans of its phases are at DEBUG. The goal of the \
         allocations is what a build without any telemetry allocates, including one allocation for \
         the value that the loop creates. *The cost of telemetry that is off*: no allocation. A \
         build without spans, events and observers needs 15,430 to 15,540 instructions for a first \
         execution, and 8,420 to 8,610 for a replay. The checks therefore cost a first execution \
         300 instructions (2 %), and a replay less than the difference between two runs of one \
         build. There are {ROUNDS} rounds of {CALLS} calls, each in a separate process."
    ));
    Ok(report)
}

/// Measures the nanoseconds of all contenders, in turn.
fn times(report: &mut Report, work: &str, what: &str) -> Result<(), String> {
    let problem = Cell::new(None);
    let contender = |(who, name): (&'static str, &'static str)| {
        let problem = &problem;
        Contender::new(name, move || {
            timed(work, who).unwrap_or_else(|error| {
                problem.set(Some(error));
                f64::NAN
            })
        })
    };
    let medians = interleave(ROUNDS, WHO.map(contender).into());
    if let Some(problem) = problem.into_inner() {
        return Err(problem);
    }
    let mut plot = Plot::new(format!("{what}, time"), "ns");
    for median in medians {
        let row = Row::new(format!("{what}: {}", median.name), median.cost, "ns");
        report.row(row.beside("off", median.ratio));
        plot = plot.bar(median.name, median.cost);
    }
    report.plot(plot);
    Ok(())
}

/// Measures the nanoseconds of a call in a child process.
fn timed(work: &str, who: &str) -> Result<f64, String> {
    let program = std::env::current_exe()
        .map_err(|error| format!("cannot find this program's path: {error}"))?;
    let calls = CALLS.to_string();
    let output = Command::new(program)
        .args(["child", "telemetry", "time", work, who, &calls])
        .output()
        .map_err(|error| format!("cannot run a child: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let answer = text.lines().find_map(|line| line.strip_prefix("answer ns ")?.parse().ok());
    answer.ok_or_else(|| {
        format!("the child `{work} {who}` failed: {}", String::from_utf8_lossy(&output.stderr))
    })
}

/// `WORK WHO COUNT` makes COUNT calls, for callgrind; `time WORK WHO COUNT` prints how long a call
/// took; `allocations WORK WHO` prints figures of the counting allocator.
pub(crate) fn child(args: &[String], heap: HeapCounter) -> Result<(), String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("`{text}`: {error}"));
    match args[..] {
        ["time", work, who, count] => {
            let count = number(count)?;
            // Run some calls first, to warm up.
            calls(work, who, count / 10, 1, heap)?;
            heap::answer("ns", calls(work, who, count, 2, heap)?.ns);
            Ok(())
        }
        ["allocations", work, who] => {
            let cost = calls(work, who, CALLS, 1, heap)?;
            let own = cost.allocations.ok_or("the counting allocator is not installed")?;
            heap::answer("allocations", own);
            Ok(())
        }
        [work, who, count] => calls(work, who, number(count)?, 1, heap).map(drop),
        _ => Err(format!("unknown arguments `{}`", args.join(" "))),
    }
}

fn context(round: u64, number: u64) -> Result<IdempotencyContext, String> {
    let scope = Scope::new("payments.created").map_err(|error| error.to_string())?;
    let key = format!("{round:04}{number:032}");
    let ctx = IdempotencyContext::builder(scope, key).ttl(DAY).lease(DAY).build();
    ctx.map_err(|error| error.to_string())
}

/// The cost of a call.
struct Cost {
    ns: f64,
    /// The allocations of a call; `None` in the program whose time is measured.
    allocations: Option<f64>,
}

/// Makes calls, and returns what one of them cost.
fn calls(work: &str, who: &str, count: u64, round: u64, heap: HeapCounter) -> Result<Cost, String> {
    let engine = engine(who)?;
    let fresh = match work {
        "execute" => true,
        "replay" => false,
        other => return Err(format!("unknown work `{other}`")),
    };
    let number = |call: u64| if fresh { call } else { call % KEYS };
    let contexts = (0..count).map(|call| context(round, number(call)));
    let contexts: Vec<_> = contexts.collect::<Result<_, _>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    runtime.block_on(async {
        let one = async |ctx| {
            let value = "x".repeat(200);
            let outcome = engine.execute(ctx, || async move { Ok::<_, Infallible>(value) }).await;
            outcome.map_err(|error| error.to_string())
        };
        if !fresh {
            for number in 0..KEYS {
                let _ = one(context(round, number)?).await?;
            }
        }
        let (before, start) = (heap(), now());
        for ctx in contexts {
            let outcome = one(ctx).await?;
            if matches!(black_box(&outcome), Outcome::Executed(_)) != fresh {
                return Err("a call had an unexpected outcome".to_owned());
            }
        }
        let ns = per_operation(start, count);
        let allocations = heap().zip(before).map(|(after, before)| after.since(before, count).0);
        Ok(Cost { ns, allocations })
    })
}

/// Creates the engine of a contender. Its recorder and subscriber stay installed.
fn engine(who: &str) -> Result<IdempotencyEngine, String> {
    let config = IdempotencyConfig::default();
    let mut builder = IdempotencyEngine::builder(MemoryStore::new());
    if who == "metrics" {
        // Ignore the error: the first engine of this process has already installed the recorder.
        let _ = metrics::set_global_recorder(Atomics);
        builder = builder.observer(retryproof_metrics::observer(&config));
    }
    if matches!(who, "otel" | "both") {
        let reader = PeriodicReader::builder(InMemoryMetricExporter::default());
        let reader = reader.with_interval(DAY).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let observer = retryproof_otel::observer_with(&provider.meter("retryproof"), &config);
        builder = builder.observer(observer).current_trace(retryproof_otel::current_trace);
    }
    if matches!(who, "spans" | "both") {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
            .with_writer(std::io::sink)
            .finish();
        let _ = tracing::subscriber::set_global_default(subscriber);
    }
    builder.config(config).build().map_err(|error| error.to_string())
}

/// A recorder that does as little work as possible.
struct Atomics;

/// A histogram that counts values in 16 buckets.
#[derive(Default)]
struct Buckets([AtomicU64; 16]);

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let bounds = retryproof_metrics::SECONDS.iter();
        let at = bounds.take_while(|bound| **bound < value).count();
        self.0[at.min(self.0.len() - 1)].fetch_add(1, Ordering::Relaxed);
    }
}

impl Recorder for Atomics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(AtomicU64::new(0)))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(AtomicU64::new(0)))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Buckets::default()))
    }
}
