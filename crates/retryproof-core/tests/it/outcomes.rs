// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each call logs its outcome once, at the level DEBUG.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::{
    Acquisition, CodecId, Fingerprint, HeldLease, IdempotencyContext, IdempotencyEngine, OnDrop,
    Payload, SharedStore, Tombstone,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{FaultStore, Faults, Outage};
use tokio::time::{sleep, timeout};
use tracing::subscriber::DefaultGuard;

const MS: Duration = Duration::from_millis(1);

/// What was logged under `retryproof::outcome`.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<u8>>>);

impl Told {
    /// Collects what this thread logs, until the guard is dropped.
    pub(crate) fn listen() -> (Self, DefaultGuard) {
        let told = Self::default();
        let writer = told.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter("debug,retryproof::call=off")
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (told, tracing::subscriber::set_default(subscriber))
    }

    /// Returns the outcomes since the last call, with the fields between the outcome and the
    /// durations.
    pub(crate) fn outcomes(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.contains(" DEBUG retryproof::outcome: a call has ended "));
        lines.map(Self::fields).collect()
    }

    /// Returns how many lines with this text were logged since the last call.
    pub(crate) fn lines(&self, text: &str) -> usize {
        let logged = String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap();
        logged.lines().filter(|line| line.contains(text)).count()
    }

    fn fields(line: &str) -> String {
        assert!(!line.contains("canary"), "ID-4: {line}");
        let fields = line.split_once("a call has ended ").unwrap().1;
        let named = |name: &str| {
            fields.split(' ').find_map(|field| field.strip_prefix(name)).map(str::to_owned)
        };
        assert_eq!(named("scope=").as_deref(), Some("told"), "{line}");
        assert!(named("identity=").unwrap().starts_with("told#"), "{line}");
        let seconds = named("held=").or_else(|| named("took=")).unwrap();
        assert!(seconds.parse::<f64>().unwrap() >= 0.0, "{line}");
        let rest = fields.split(' ').filter(|field| {
            !["scope=", "identity=", "held=", "took="].iter().any(|name| field.starts_with(name))
        });
        rest.map(|field| field.replace('"', "").replace("outcome=", ""))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn of(key: &str, fingerprint: u8) -> IdempotencyContext {
    IdempotencyContext::builder("told", format!("canary-{key}"))
        .lease(100 * MS)
        .wait_timeout(Duration::ZERO)
        .fingerprint(Fingerprint::new(&[1, fingerprint]).unwrap())
        .build()
        .unwrap()
}

async fn held(engine: &IdempotencyEngine, key: &str) -> HeldLease {
    match engine.try_acquire(&of(key, 1)).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    }
}

async fn succeed() -> Result<u32, &'static str> {
    Ok(1)
}

async fn fail() -> Result<u32, &'static str> {
    Err("declined")
}

#[tokio::test(start_paused = true)]
async fn run_7_each_call_of_the_engine_tells_its_outcome_once() {
    let (told, _listening) = Told::listen();
    let faults = Faults::none();
    let engine = IdempotencyEngine::new(SharedStore::new(FaultStore::new(
        MemoryStore::new(),
        faults.clone(),
    )));
    for (fingerprint, expected) in
        [(1, "executed attempt=first recorded=yes"), (1, "replayed"), (2, "mismatch")]
    {
        let _ = engine.execute(of("k", fingerprint), succeed).await;
        assert_eq!(told.outcomes(), [expected]);
    }
    let _ = engine.spawn(of("spawned", 1), succeed).await;
    assert_eq!(told.outcomes(), ["executed attempt=first recorded=yes"]);
    let _ = engine.execute(of("f", 1), fail).await;
    assert_eq!(told.outcomes(), ["failed attempt=first phase=Action"]);
    held(&engine, "f").await.release().await.unwrap();
    assert_eq!(told.outcomes(), ["released attempt=first"]);
    let _ = held(&engine, "t").await.complete_tombstone(Tombstone::new()).await;
    let _ = engine.execute(of("t", 1), succeed).await;
    assert_eq!(told.outcomes(), ["executed attempt=first recorded=tombstone", "not_replayable"]);
    let holder = held(&engine, "b").await;
    let _ = engine.execute(of("b", 1), succeed).await;
    assert_eq!(told.outcomes(), ["in_flight"]);
    drop(holder);
    assert_eq!(told.outcomes(), ["failed attempt=first phase=Dropped"]);
    sleep(200 * MS).await;
    let _ = engine.execute(of("b", 1), succeed).await;
    assert_eq!(told.outcomes(), ["executed attempt=takeover recorded=yes"]);
    let hang = std::future::pending::<Result<u32, &str>>;
    let dropped = engine.call(of("d", 1)).on_drop(OnDrop::Release).execute(hang);
    assert!(timeout(10 * MS, dropped).await.is_err());
    assert_eq!(told.outcomes(), ["released attempt=first"]);
    faults.begin_outage(Outage::Refuse);
    let _ = engine.execute(of("away", 1), succeed).await;
    assert_eq!(told.outcomes(), ["refused error.type=Unavailable"]);
}

#[tokio::test(start_paused = true)]
async fn run_7_a_refused_completion_is_one_outcome_and_so_is_its_answer() {
    let (told, _listening) = Told::listen();
    let store = SharedStore::from(MemoryStore::new());
    let mut config = retryproof_core::IdempotencyConfig::default();
    config.max_hold = 10 * MS;
    let hung = IdempotencyEngine::builder(store.clone()).config(config).build().unwrap();
    let other = IdempotencyEngine::new(store);
    let late = hung.execute(of("k", 1), || async {
        sleep(200 * MS).await;
        let taker = held(&other, "k").await;
        let _ = taker.complete(Payload::new(CodecId::JSON, 0, b"9")).await;
        assert_eq!(told.outcomes(), ["executed attempt=takeover recorded=yes"], "the taker's");
        succeed().await
    });
    assert_eq!(late.await.unwrap().into_value(), Some(9));
    assert_eq!(told.outcomes(), ["lost attempt=first"]);
}

#[cfg(feature = "blocking")]
#[test]
fn run_7_a_blocking_call_tells_its_outcome_once() {
    let (told, _listening) = Told::listen();
    let engine = retryproof_core::blocking::Engine::new(MemoryStore::new()).unwrap();
    for expected in ["executed attempt=first recorded=yes", "replayed"] {
        let _ = engine.execute(of("k", 1), || Ok::<_, &str>(1)).unwrap();
        assert_eq!(told.outcomes(), [expected]);
    }
}
