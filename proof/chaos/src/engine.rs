// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process's engine: the real one, on the real store, with its calls written down.

use std::sync::Arc;
use std::time::Duration;

use retryproof::{Error, ErrorKind, IdempotencyConfig, IdempotencyEngine, Result, SharedStore};

use crate::client::{Ahead, Telling};
use crate::forms::{Behind, Newer};
use crate::log::Log;
use crate::plan::{OPERATION_TIMEOUT_MS, Plan};
use crate::planted::{Planted, UNFENCED_OPERATOR};
use crate::recording::Recording;

/// Opens the plan's store and builds the engine on it.
pub(crate) async fn build(plan: &Plan, log: &Arc<Log>) -> Result<(IdempotencyEngine, SharedStore)> {
    let url = plan.url.as_deref().unwrap_or_default();
    if plan.forms.is_some() {
        crate::open::migrate(url).await?;
    }
    let store = crate::open::connect(url).await?;
    let planted = plan.plant.as_deref().filter(|defect| *defect != UNFENCED_OPERATOR);
    let shared = match planted {
        None if plan.forms.is_some() && plan.proc.is_multiple_of(2) => {
            let newer = Newer { inner: store.clone(), behind: Behind::open(url).await? };
            recorded(newer, &store, log)
        }
        None => recorded(store.clone(), &store, log),
        Some(defect) => recorded(Planted::new(store.clone(), defect, url).await?, &store, log),
    };
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

fn recorded(
    inner: impl retryproof::IdempotencyStore,
    store: &SharedStore,
    log: &Arc<Log>,
) -> SharedStore {
    SharedStore::builder(Recording::new(inner, store.clone(), Arc::clone(log))).with_purge().build()
}

/// Retries what a store that is being restarted cannot answer.
pub(crate) async fn build_patiently(
    plan: &Plan,
    log: &Arc<Log>,
) -> Result<(IdempotencyEngine, SharedStore)> {
    for _ in 0..600 {
        match build(plan, log).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => return other,
        }
    }
    Err(Error::unavailable("the store did not come back within 30 s"))
}
