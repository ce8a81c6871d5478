// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process's engine: the real one, on the real store, with a record of its calls.

use std::sync::Arc;
use std::time::Duration;

use defects::{Defect, Defective};
use retryproof::{Error, ErrorKind, IdempotencyConfig, IdempotencyEngine, Result, SharedStore};
use retryproof_testkit::{Fault, FaultStore, Faults};

use crate::client::{Ahead, Telling};
use crate::forms::{Behind, Newer};
use crate::log::Log;
use crate::mono::{self, MS};
use crate::plan::{OPERATION_TIMEOUT_MS, Plan, Role};
use crate::recording::Recording;

/// Opens the plan's store and builds the engine on it.
pub(crate) async fn build(plan: &Plan, log: &Arc<Log>) -> Result<(IdempotencyEngine, SharedStore)> {
    let url = plan.url.as_deref().unwrap_or_default();
    if plan.forms.is_some() {
        crate::open::migrate(url).await?;
    }
    // Half of the workers with several threads write on the caller's thread, which stops while a
    // write waits for the disk.
    let store = if plan.proc % 4 == 1 {
        crate::open::connect_in_place(url).await?
    } else {
        crate::open::connect(url).await?
    };
    let defect = plan.plant.as_deref().and_then(Defect::named);
    let (sent, stored) = match defect {
        Some(defect) if defect.is_of_engine() => (Some(defect), None),
        stored => (None, stored),
    };
    let mut inner = store.clone();
    if let Some(nth) = plan.lose.filter(|_| plan.role == Role::Worker) {
        let faults = Faults::none();
        faults.fail_every(nth, Fault::AnswerLost);
        inner = SharedStore::new(FaultStore::new(inner, faults));
    }
    if plan.forms.is_some() && plan.proc.is_multiple_of(2) {
        inner = SharedStore::new(Newer { inner, behind: Behind::open(url).await? });
    }
    // The memory store still answers at once if some of its answers are lost, although the wrapper
    // that loses them does not say so.
    let answers_at_once = url == "memory" && stored.is_none();
    if stored.is_some() {
        inner = SharedStore::new(Defective::new(inner, stored));
    }
    let recording = Recording::new(inner, store.clone(), Arc::clone(log), answers_at_once);
    let mut shared = SharedStore::builder(recording).with_purge().build();
    if sent.is_some() {
        shared = SharedStore::builder(Defective::new(shared, sent)).with_purge().build();
    }
    let mut config = IdempotencyConfig::default();
    config.operation_timeout = Duration::from_millis(OPERATION_TIMEOUT_MS);
    config.purge.interval = Duration::from_secs(1);
    let engine = IdempotencyEngine::builder(shared)
        .config(config)
        .observer(Telling(Arc::clone(log)))
        .clock(Ahead(Duration::from_secs(plan.ahead.unsigned_abs()), plan.ahead < 0))
        .build()?;
    Ok((engine, store))
}

/// Builds the engine, and retries while the store is being restarted.
pub(crate) async fn build_patiently(
    plan: &Plan,
    log: &Arc<Log>,
) -> Result<(IdempotencyEngine, SharedStore)> {
    // A failover by Patroni takes up to 40 s, and longer on a busy machine.
    let until = mono::now() + 120_000 * MS;
    while mono::now() < until {
        match build(plan, log).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => return other,
        }
    }
    Err(Error::unavailable("the store did not come back within 120 s"))
}
