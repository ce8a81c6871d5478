// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suite `memory`: the memory store beside a bare map behind a mutex.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, Completion};
use retryproof_core::{Blob, IdempotencyStore, Identity, MemoryStore, OwnerId};

use crate::compare::{Contender, interleave, nanos};
use crate::heap::HeapCounter;
use crate::report::{Plot, Report, Row};

const TTL: Duration = Duration::from_secs(86_400);

/// A store call that never waits.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a memory store answers at once"),
    }
}

fn identity(n: u64) -> Identity {
    Identity::of("payments.created", format!("{n:036}")).expect("a valid identity")
}

pub(crate) fn run() -> Result<Report, String> {
    let store = MemoryStore::new();
    let id = identity(1);
    let request = AcquireRequest::new(OwnerId::new(), TTL, TTL);
    let done = Completion::new(Blob::from(vec![7; 200]), TTL, None);
    let _ = ready(store.acquire(&id, &request)).map_err(|error| error.to_string())?;
    let _ = ready(store.complete(&id, request.owner, &done)).map_err(|error| error.to_string())?;
    let map = Mutex::new(HashMap::from([(id.clone(), done.value.clone())]));
    let medians = interleave(
        101,
        vec![
            Contender::new("HashMap behind a mutex", || {
                nanos(10_000, |_| drop(map.lock().ok().and_then(|map| map.get(&id).cloned())))
            }),
            Contender::new("replay", || {
                nanos(10_000, |_| {
                    let answer = ready(store.acquire(&id, &request));
                    assert!(matches!(answer, Ok(Acquired::Complete(_))));
                })
            }),
        ],
    );
    let mut report = Report::new("memory", "The memory store");
    report.row(Row::new("replay, 1 thread", medians[1].cost, "ns").beside(medians[0].name, medians[1].ratio));
    report.plot(
        Plot::new("Replay, 1 thread", "ns")
            .bar("retryproof", medians[1].cost)
            .bar(medians[0].name, medians[0].cost),
    );
    Ok(report)
}

pub(crate) fn child(_args: &[String], _heap: HeapCounter) -> Result<(), String> {
    Err("the memory suite has no child yet".into())
}
