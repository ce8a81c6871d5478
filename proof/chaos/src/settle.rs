// SPDX-License-Identifier: MIT OR Apache-2.0
//! After the last fault, makes one more call for every identity that was left in progress, and logs
//! the state of every record.

use std::sync::Arc;
use std::time::Duration;

use history::{Event, Fun, Phase, Said, hash};
use retryproof::store::{Peeked, RecordState};
use retryproof::{
    ErrorKind, ExecuteError, IdempotencyContext, IdempotencyEngine, Identity, Outcome, Result,
    SharedStore,
};

use crate::call::Picky;
use crate::log::Log;
use crate::recording::CALL;
use crate::world;

/// How many identities are settled at once.
const AT_ONCE: u64 = 16;

/// Settles the identities up to the number `newest`. A holder has the time `wait` to answer or to
/// be replaced.
pub(crate) async fn settle(
    (newest, wait): (u64, Duration),
    log: &Arc<Log>,
    engine: &IdempotencyEngine,
    store: &SharedStore,
) -> Result<()> {
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|first| {
            let (log, engine, store) = (Arc::clone(log), engine.clone(), store.clone());
            tokio::spawn(async move {
                for number in (first..=newest).step_by(usize::try_from(AT_ONCE).unwrap_or(1)) {
                    one(&log, &engine, &store, &world::identity(number)?, wait).await?;
                }
                Ok::<(), retryproof::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap_or(Ok(()))?;
    }
    Ok(())
}

async fn one(
    log: &Arc<Log>,
    engine: &IdempotencyEngine,
    store: &SharedStore,
    identity: &Identity,
    wait: Duration,
) -> Result<()> {
    // Peek by way of the engine's store, which records the peek in the history; `store` does not.
    let look = || engine.store().as_dyn().dyn_peek(identity.clone());
    let standing = patiently(look).await?;
    if matches!(standing, Peeked::Busy(_)) {
        // Repeat the claim if its answer was lost.
        for _ in 0..10 {
            if claim(log, engine, identity, wait).await? {
                break;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }
    let Some(found) = patiently(|| store.get(identity)).await? else { return Ok(()) };
    let said = match found.state {
        RecordState::InProgress => Said::InProgress,
        RecordState::Complete => Said::Complete,
    };
    log.write(&Event {
        said: Some(said),
        token: Some(found.token.get()),
        remaining_us: found
            .remaining
            .map(|left| u64::try_from(left.as_micros()).unwrap_or(u64::MAX)),
        value_hash: Some(found.value_bytes as u64),
        ..log.of(0, Fun::Dump, Phase::Ok, identity)
    });
    Ok(())
}

/// Repeats a call, because a server that was killed at the very end may still be restarting.
async fn patiently<T, F: Future<Output = Result<T>>>(ask: impl Fn() -> F) -> Result<T> {
    let mut left = 40;
    loop {
        match tokio::time::timeout(Duration::from_secs(5), ask()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if error.kind() != ErrorKind::Unavailable || left == 0 => {
                return Err(error);
            }
            Err(_) if left == 0 => {
                return Err(retryproof::Error::unavailable("the store did not answer"));
            }
            Ok(Err(_)) | Err(_) => left -= 1,
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Calls for an identity that was left in progress: its holder has to answer, or the call takes
/// over. Returns whether the store answered.
async fn claim(
    log: &Arc<Log>,
    engine: &IdempotencyEngine,
    identity: &Identity,
    wait: Duration,
) -> Result<bool> {
    let op = log.number();
    log.write(&Event {
        note: Some("settle".into()),
        wait_us: u64::try_from(wait.as_micros()).ok(),
        ..log.of(op, Fun::Respond, Phase::Invoke, identity)
    });
    let scope = identity.scope().clone();
    let ctx = IdempotencyContext::builder(scope, identity.key().expose())
        .lease(Duration::from_secs(2))
        .ttl(Duration::from_secs(3_600))
        .wait_timeout(wait)
        .build()?;
    let action = |lease: retryproof::Lease| {
        let (log, identity) = (Arc::clone(log), identity.clone());
        async move {
            let token = lease.token().get();
            let at = |fun, said| {
                let place = log.of(0, fun, Phase::Ok, &identity);
                log.write(&Event { call: Some(op), token: Some(token), said, ..place });
            };
            at(Fun::ActStart, None);
            at(Fun::ActEnd, Some(Said::Returned));
            Ok::<_, std::convert::Infallible>(world::value(&identity, token, "settler", 1))
        }
    };
    let answer = CALL.scope(op, engine.call(ctx).codec(Picky).report(action)).await;
    let (said, value, recorded) = match answer {
        Ok(report) => {
            let recorded = if report.recorded == retryproof::Recorded::Yes { "yes" } else { "no" };
            match report.outcome {
                Outcome::Executed(value) => (Said::Executed, Some(value), Some(recorded)),
                Outcome::Replayed(value) => (Said::Replayed, Some(value), None),
                Outcome::InFlight(_) => (Said::InFlight, None, None),
            }
        }
        Err(ExecuteError::NotReplayable(_)) => (Said::NotReplayable, None, None),
        Err(ExecuteError::Mismatch) => (Said::Mismatch, None, None),
        Err(ExecuteError::Completion(_)) => (Said::CompletionError, None, None),
        Err(_) => (Said::StoreError, None, None),
    };
    log.write(&Event {
        said: Some(said),
        recorded: recorded.map(str::to_owned),
        value_hash: value.as_deref().map(hash),
        bears: value.as_deref().and_then(world::bears),
        note: Some("settle".into()),
        ..log.of(op, Fun::Respond, Phase::Ok, identity)
    });
    Ok(said != Said::StoreError)
}
