// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the suites of the server stores share: the servers' addresses, keys, concurrent tasks, and
//! the cost per operation as the table grows.
//!
//! One thread runs the client's tasks, so that neither the floor nor the store pays for waking
//! another thread. The floor is then as cheap as possible. During a measurement, [`awake`] keeps
//! the cores awake.

use std::cell::RefCell;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use retryproof::store::{AcquireRequest, Acquired, Completion, FencedWrite};
use retryproof::{Blob, IdempotencyStore, Identity, OwnerId};
use tokio::runtime::Runtime;

use crate::compare::{Contender, Median, interleave, now, per_operation};
use crate::report::{Report, Row};

pub(crate) mod across;
pub(crate) mod awake;
pub(crate) mod long;
pub(crate) mod pages;

pub(crate) const SCOPE: &str = "payments.created";
pub(crate) const TTL: Duration = Duration::from_secs(86_400);
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// The value that each execution stores.
pub(crate) const VALUE: [u8; 200] = [7; 200];

/// Returns a variable of the environment, or else of the file that `cargo xtask services up` wrote.
pub(crate) fn variable(name: &str) -> Option<String> {
    let file = crate::root().join("target/services/env");
    let written = || {
        let text = std::fs::read_to_string(file).ok()?;
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    };
    std::env::var(name).ok().filter(|value| !value.is_empty()).or_else(written)
}

/// Returns the URL of a service.
pub(crate) fn url(service: &str) -> Result<String, String> {
    let name = format!("RETRYPROOF_TEST_{}", service.to_uppercase());
    variable(&name).ok_or_else(|| {
        format!(
            "cannot find {service}: run `cargo xtask services up {service}`, or give a URL in \
             the variable {name}"
        )
    })
}

/// Returns a name for tables and keys that no other run uses.
pub(crate) fn own_name() -> String {
    let random = OwnerId::new();
    let random = random.as_bytes();
    format!("bench_{}_{:02x}{:02x}", std::process::id(), random[0], random[1])
}

pub(crate) fn text(error: impl Display) -> String {
    error.to_string()
}

pub(crate) fn runtime() -> Result<Runtime, String> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(text)
}

/// Returns the key for a number: 36 bytes in the form of a UUID, and as scattered as UUIDs are.
pub(crate) fn key(number: u64) -> String {
    let [a, b] = [mixed(number), mixed(number ^ 0xA5A5_A5A5_0000_0000)];
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        a >> 32,
        a >> 16 & 0xFFFF,
        a & 0xFFFF,
        b >> 48,
        b & 0xFFFF_FFFF_FFFF
    )
}

/// SplitMix64's last step. It is a bijection, so no two numbers share a key.
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the keys of the numbers below `records`, sorted, because an index is filled faster in
/// order.
pub(crate) fn sorted_keys(records: u64) -> Vec<String> {
    let mut keys: Vec<String> = (0..records).map(key).collect();
    keys.sort_unstable();
    keys
}

/// Returns the first of `count` numbers for new keys, above the numbers that tables are filled
/// with.
fn fresh(count: u64) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    NEXT.fetch_add(count, Ordering::Relaxed)
}

pub(crate) fn identity(number: u64) -> Result<Identity, String> {
    Identity::of(SCOPE, key(number)).map_err(text)
}

pub(crate) fn request() -> AcquireRequest {
    AcquireRequest::new(OwnerId::new(), LEASE, TTL)
}

/// Acquires and completes, as an execution does.
pub(crate) async fn execution(store: &impl IdempotencyStore, number: u64) -> Result<(), String> {
    let (id, request) = (identity(number)?, request());
    let acquired = store.acquire(&id, &request).await.map_err(text)?;
    let done = Completion::new(Blob::from(VALUE.to_vec()), TTL, None);
    let completed = store.complete(&id, request.owner, &done).await.map_err(text)?;
    match (acquired, completed) {
        (Acquired::Granted(_), FencedWrite::Applied) => Ok(()),
        other => Err(format!("expected a first execution, got {other:?}")),
    }
}

/// Acquires and finds the result, as a replay does.
pub(crate) async fn replay(store: &impl IdempotencyStore, number: u64) -> Result<(), String> {
    match store.acquire(&identity(number)?, &request()).await.map_err(text)? {
        Acquired::Complete(_) => Ok(()),
        other => Err(format!("expected a replay, got {other:?}")),
    }
}

/// Identifies an operation by its task and a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) task: usize,
    pub(crate) number: u64,
}

type Asked = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// One way to run an operation. The floor is also a way, so it pays for the same boxed future.
pub(crate) struct Way {
    name: &'static str,
    work: Arc<dyn Fn(Turn) -> Asked + Send + Sync>,
}

impl Way {
    pub(crate) fn new<F, Fut>(name: &'static str, work: F) -> Self
    where
        F: Fn(Turn) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        Self { name, work: Arc::new(move |turn| Box::pin(work(turn))) }
    }

    /// Creates the way that executes through a store.
    pub(crate) fn executions<S: IdempotencyStore>(name: &'static str, store: &Arc<S>) -> Self {
        let store = Arc::clone(store);
        Self::new(name, move |turn| {
            let store = Arc::clone(&store);
            async move { execution(&*store, turn.number).await }
        })
    }

    /// Creates the way that replays the first `keys` numbers in turn, through a store.
    pub(crate) fn replays<S: IdempotencyStore>(
        name: &'static str,
        store: &Arc<S>,
        keys: u64,
    ) -> Self {
        let store = Arc::clone(store);
        Self::new(name, move |turn| {
            let store = Arc::clone(&store);
            async move { replay(&*store, turn.number % keys).await }
        })
    }
}

/// How much is measured: rounds, concurrent tasks, and operations of each task in a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) rounds: usize,
    pub(crate) tasks: usize,
    pub(crate) each: u64,
}

/// Measures the microseconds of an operation in each way: the time of a round divided by its
/// operations. The first way is the floor.
pub(crate) fn measure(
    runtime: &Runtime,
    shape: Shape,
    ways: Vec<Way>,
) -> Result<Vec<Median>, String> {
    // Keep the cores awake only for a single task. With many tasks, no core has time to sleep.
    let _awake = (shape.tasks == 1).then(awake::Awake::start);
    measured(runtime, shape, ways)
}

fn measured(runtime: &Runtime, shape: Shape, ways: Vec<Way>) -> Result<Vec<Median>, String> {
    let failure = RefCell::new(None);
    let contenders = ways.into_iter().map(|way| {
        let failure = &failure;
        Contender::new(way.name, move || {
            let count = shape.tasks as u64 * shape.each;
            let from = fresh(count);
            let begin = now();
            if let Err(problem) = runtime.block_on(all(&way.work, shape, from)) {
                failure.borrow_mut().get_or_insert(format!("{}: {problem}", way.name));
            }
            per_operation(begin, count) / 1_000.0
        })
    });
    let medians = interleave(shape.rounds, contenders.collect());
    failure.into_inner().map_or(Ok(medians), Err)
}

async fn all(
    work: &Arc<dyn Fn(Turn) -> Asked + Send + Sync>,
    shape: Shape,
    from: u64,
) -> Result<(), String> {
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..shape.tasks {
        let (work, first) = (Arc::clone(work), from + task as u64 * shape.each);
        tasks.spawn(async move {
            for number in first..first + shape.each {
                work(Turn { task, number }).await?;
            }
            Ok::<_, String>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(text)??;
    }
    Ok(())
}

/// Creates a row with the operations per second and their ratio to the floor's.
pub(crate) fn rate(what: String, median: &Median, floor: &Median) -> Row {
    Row::new(what, 1e6 / median.cost, "/s").beside(floor.name, 1.0 / median.times(floor))
}

/// A table or a database with a certain number of records, and the operations on it.
pub(crate) struct Filled {
    pub(crate) writes: Way,
    pub(crate) execution: Way,
    pub(crate) read: Way,
    pub(crate) replay: Way,
    /// Like `read`, but on only [`HOT`] keys; `again` is the same for `replay`.
    pub(crate) read_again: Way,
    pub(crate) again: Way,
}

/// The number of keys that are replayed again and again.
pub(crate) const HOT: u64 = 500;

/// Compares the cost of an operation with many records to that with few, measured in turn. The same
/// figures of the bare driver show the server's share.
pub(crate) fn growth(
    report: &mut Report,
    runtime: &Runtime,
    many: &str,
    [few_filled, many_filled]: [Filled; 2],
) -> Result<(), String> {
    let shape = Shape { rounds: 61, tasks: 1, each: 20 };
    let [few, all] = [few_filled, many_filled];
    let writes =
        measure(runtime, shape, vec![few.writes, few.execution, all.writes, all.execution])?;
    let shape = Shape { each: 100, ..shape };
    let again =
        measure(runtime, shape, vec![few.read_again, few.again, all.read_again, all.again])?;
    let any = measure(runtime, shape, vec![few.read, few.replay, all.read, all.replay])?;
    for (medians, bare, ours) in [
        (&writes, "two bare writes", "execution"),
        (&again, "bare read of 500 keys", "replay of 500 keys"),
        (&any, "bare read of any key", "replay of any key"),
    ] {
        let of = |name: &str, at: usize, from: usize| {
            Row::new(format!("{name} at {many} records"), medians[at].cost, "us")
                .beside("at 10 k", medians[at].times(&medians[from]))
        };
        report.row(of(bare, 2, 0));
        report.row(of(ours, 3, 1).ratio_at_most(1.3));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_look_like_uuids_and_do_not_meet() {
        let keys = sorted_keys(1_000);
        assert!(keys.iter().all(|key| key.len() == 36));
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn every_operation_of_a_round_has_a_number_of_its_own() {
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let way = Way::new("counts", {
            let seen = Arc::clone(&seen);
            move |turn| {
                seen.lock().expect("unpoisoned").push(turn.number);
                async { Ok(()) }
            }
        });
        let shape = Shape { rounds: 3, tasks: 4, each: 5 };
        measured(&runtime().expect("a runtime"), shape, vec![way]).expect("measured");
        let mut seen = seen.lock().expect("unpoisoned").clone();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 80, "one round warms up");
    }
}
