// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`run`]: tests a store with one case, on a new runtime.

use std::future::Future;
use std::io::Write as _;
use std::time::Duration;

use super::{Case, Need, cases, summary};
use crate::subject::Subject;

/// The clock of a case's runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// The runtime's own clock, paused.
    Paused,
    /// The host's clock.
    Real,
}

/// The time limit of a case. A case that runs longer is stuck, and fails. A paused clock needs a
/// longer limit, because it advances as soon as nothing else can run, and one case lets ten years
/// pass.
const PATIENCE: Duration = Duration::from_secs(120);
const PATIENCE_WHILE_PAUSED: Duration = Duration::from_secs(20 * 365 * 86_400);

/// Tests a store with one case, on a new runtime.
///
/// # Panics
/// If the store fails the case, or if the factory returns `None` and `RETRYPROOF_REQUIRE_STORES` is
/// `1`.
pub fn run<F, Fut, T>(case: Case, time: Time, factory: F)
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = T>,
    T: Into<Option<Subject>>,
{
    // Only a single-threaded runtime allows a case to shift its clock.
    let shifts = case.needs.contains(&Need::ClockApart);
    let runtime = if shifts { single_threaded(time) } else { runtime(time) };
    runtime.block_on(async {
        let Some(subject) = made(time, factory).await else {
            eprintln!("skipped: the factory returned no store");
            return;
        };
        if let Some(need) = case.needs.iter().find(|need| !subject.offers(**need)) {
            eprintln!("skipped: the store does not offer {need}");
            return;
        }
        let patience = match time {
            Time::Paused => PATIENCE_WHILE_PAUSED,
            // The case shifts the clock that measures its time limit, so the limit must be longer.
            Time::Real if shifts => PATIENCE_WHILE_PAUSED,
            // If the environment sets the number of sequences, the case gets the longer limit,
            // because many sequences take a long time.
            Time::Real if std::env::var_os("RETRYPROOF_SEQUENCES").is_some() => {
                PATIENCE_WHILE_PAUSED
            }
            Time::Real => PATIENCE,
        };
        let judged = tokio::time::timeout(patience, (case.run)(&subject)).await;
        assert!(judged.is_ok(), "the case did not finish within {patience:?}");
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
}

fn runtime(time: Time) -> tokio::runtime::Runtime {
    match time {
        Time::Paused => single_threaded(time),
        Time::Real => {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            runtime.worker_threads(2).enable_all().build().expect("the runtime should build")
        }
    }
}

fn single_threaded(time: Time) -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.start_paused(time == Time::Paused);
    runtime.enable_all().build().expect("the runtime should build")
}

async fn made<F, Fut, T>(time: Time, factory: F) -> Option<Subject>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = T>,
    T: Into<Option<Subject>>,
{
    let mut made = factory().await.into();
    let required = std::env::var_os("RETRYPROOF_REQUIRE_STORES").is_some_and(|value| value == "1");
    assert!(
        made.is_some() || !required,
        "the factory returned no store, but RETRYPROOF_REQUIRE_STORES is 1"
    );
    if let (Some(subject), Time::Paused) = (&mut made, time) {
        subject.pause();
    }
    made
}

/// Writes the [`summary`] of a subject to standard error; `place` is the module of the subject's
/// tests.
pub fn say<F, Fut, T>(place: &str, time: Time, factory: F)
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = T>,
    T: Into<Option<Subject>>,
{
    let runtime = runtime(time);
    let line = runtime.block_on(async {
        made(time, factory).await.map_or_else(
            || format!("0 of {} cases run: the factory returned no store", cases().len()),
            |subject| summary(&subject),
        )
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    // Do not use `eprintln!`: the harness captures its output and shows it only for failed tests.
    let _ = writeln!(std::io::stderr(), "{place} {line}");
}
