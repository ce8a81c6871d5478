// SPDX-License-Identifier: MIT OR Apache-2.0
//! STO-1, CFG-1: the blocking form takes the same URLs, and fails with the same errors.

use retryproof::blocking::{self, Engine};
use retryproof::{ErrorKind, IdempotencyConfig, IdempotencyContext, Outcome};

fn url(name: &str) -> String {
    let file =
        std::env::temp_dir().join(format!("retryproof-blocking-{name}-{}.db", std::process::id()));
    format!("sqlite:{}", file.display())
}

fn forget(url: &str) {
    for behind in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{behind}", url.trim_start_matches("sqlite:")));
    }
}

fn run(engine: &Engine, key: &str, value: u32) -> Outcome<u32> {
    let ctx = IdempotencyContext::builder("blocking", key).build().expect("a context");
    engine.execute(ctx, || Ok::<_, retryproof::Error>(value)).expect("it runs")
}

#[test]
fn sto_1_a_blocking_engine_is_connected_by_a_url() {
    let url = url("connected");
    let unmade = blocking::connect(&url).expect_err("no tables yet");
    assert_eq!(unmade.kind(), ErrorKind::Schema, "{unmade}");
    blocking::migrate(&url).expect("migrated");
    blocking::migrate(&url).expect("migrated again");
    let engine = blocking::connect(&url).expect("connected");
    assert_eq!(run(&engine, "k", 1), Outcome::Executed(1));
    let mut config = IdempotencyConfig::default();
    config.store = Some(url.clone());
    blocking::migrate_with(&config).expect("migrated");
    assert_eq!(blocking::diagnose_with(&config).expect("diagnosed"), []);
    let again = blocking::connect_with(&config).expect("connected");
    assert_eq!(run(&again, "k", 2), Outcome::Replayed(1));
    drop((engine, again));
    forget(&url);
}

/// The store's connections belong to the engine's own runtime, so they still work in later calls.
#[cfg(all(feature = "postgres", feature = "mysql", feature = "redis"))]
#[test]
fn sto_1_a_blocking_engine_keeps_the_connections_of_its_store() {
    let url = super::servers::variable("RETRYPROOF_TEST_REDIS");
    let engine = blocking::connect(&format!("{url}?prefix=blocking{}", std::process::id()))
        .expect("connected");
    for at in 0..20 {
        assert_eq!(run(&engine, &format!("k{at}"), at), Outcome::Executed(at));
        assert_eq!(run(&engine, &format!("k{at}"), 99), Outcome::Replayed(at));
    }
    engine.health().expect("it answers");
}

#[test]
fn cfg_1_the_blocking_form_fails_as_the_async_one_does() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for url in ["", "hello", "nosuch:x", "memory:x", "sqlite:", "sqlite:a.db?mode=ro"] {
        let said = |error: retryproof::Error| error.to_string();
        let (ours, theirs) = (
            blocking::connect(url).map(drop),
            runtime.block_on(retryproof::connect(url)).map(drop),
        );
        assert_eq!(ours.map_err(said).expect_err(url), theirs.map_err(said).expect_err(url));
        let (ours, theirs) = (blocking::migrate(url), runtime.block_on(retryproof::migrate(url)));
        assert_eq!(ours.map_err(said).expect_err(url), theirs.map_err(said).expect_err(url));
    }
    let mut config = IdempotencyConfig::default();
    config.store = Some("memory:".to_owned());
    config.max_waiting = 0;
    let ours = blocking::connect_with(&config).map(drop);
    assert_eq!(
        ours.is_err(),
        retryproof::IdempotencyEngine::builder(retryproof::MemoryStore::new())
            .config(config)
            .build()
            .is_err()
    );
}

#[tokio::test]
async fn run_5_inside_a_runtime_the_blocking_form_is_refused() {
    let url = url("refused");
    for error in
        [blocking::connect(&url).expect_err("inside"), blocking::migrate(&url).expect_err("inside")]
    {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(
            error.to_string().contains("retryproof::connect"),
            "it says what to use instead: {error}"
        );
    }
    assert!(!std::path::Path::new(url.trim_start_matches("sqlite:")).exists(), "nothing was made");
}
