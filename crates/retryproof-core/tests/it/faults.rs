// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine on a store that fails: at every n-th call, with lost answers, with drops at every
//! await point, and with outages. All tests use paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use retryproof_core::observe::Counters;
use retryproof_core::store::FencedWrite;
use retryproof_core::{
    ExecuteError, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, Outcome, Recorded,
    Report, SharedStore,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{CallLog, FaultStore, Faults, Operation, Recorder, Said};
use tokio::time::{Instant, sleep};

mod drops;
mod fenced;
mod long;
mod lost;
mod outage;
mod panics;
mod slow;
mod sweep;
mod trips;

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(1);
/// The `operation-timeout` of these tests.
const OPERATION: Duration = Duration::from_millis(200);

/// An engine on a store that fails as planned, with a log of the calls that reached the store.
struct Lab {
    engine: IdempotencyEngine,
    /// The store itself, as another process would use it while this engine's store is unavailable.
    store: SharedStore,
    faults: Faults,
    log: CallLog,
    counters: Arc<Counters>,
    /// The number of runs of the action, in all calls.
    runs: Arc<AtomicU32>,
}

/// How an action ends, and after how long.
#[derive(Debug, Clone, Copy)]
enum Does {
    Succeeds(Duration),
    Fails(Duration),
}

/// The end of one call.
#[derive(Debug)]
struct Ended {
    result: Result<Report<u32>, ExecuteError<&'static str>>,
    /// The number of runs of the action in this call.
    runs: u32,
    took: Duration,
}

impl Lab {
    fn new() -> Self {
        let mut config = IdempotencyConfig::default();
        config.operation_timeout = OPERATION;
        config.purge.enabled = false;
        Self::with(config)
    }

    fn with(config: IdempotencyConfig) -> Self {
        let store = SharedStore::from(MemoryStore::new());
        let (faults, log, counters) = (Faults::none(), CallLog::new(), Counters::new());
        let faulty = FaultStore::new(Recorder::new(store.clone(), log.clone()), faults.clone());
        let engine = IdempotencyEngine::builder(SharedStore::new(faulty))
            .config(config)
            .observer(Arc::clone(&counters))
            .build()
            .unwrap();
        Self { engine, store, faults, log, counters, runs: Arc::default() }
    }

    /// Creates an engine of another process, on the same records, with a store that does not fail.
    fn elsewhere(&self) -> IdempotencyEngine {
        IdempotencyEngine::new(self.store.clone())
    }

    /// Makes one call, whose action returns the number of its run.
    async fn call(&self, ctx: IdempotencyContext, does: Does) -> Ended {
        call(&self.engine, &self.runs, ctx, does).await
    }

    /// Like [`call`](Self::call), but makes the call in a separate task.
    fn start(&self, ctx: IdempotencyContext, does: Does) -> tokio::task::JoinHandle<Ended> {
        let (engine, runs) = (self.engine.clone(), Arc::clone(&self.runs));
        tokio::spawn(async move { call(&engine, &runs, ctx, does).await })
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    /// Returns the number of completions that took effect.
    fn completions(&self) -> usize {
        self.log.count_of(|call| {
            call.operation == Operation::Complete && call.said == Said::Fenced(FencedWrite::Applied)
        })
    }

    /// Checks that nothing is left running after every call has ended.
    async fn is_at_rest(&self) {
        self.faults.clear();
        // Background work ends within the length of a lease.
        sleep(2 * LEASE).await;
        let activity = self.engine.activity();
        assert_eq!((activity.running, activity.waiting, activity.beating), (0, 0, 0));
        let counts = self.counters.read();
        assert_eq!(
            counts.acquired,
            counts.completed + counts.failed + counts.lost,
            "each lease has one terminal event: {counts:?}"
        );
    }
}

async fn call(
    engine: &IdempotencyEngine,
    runs: &Arc<AtomicU32>,
    ctx: IdempotencyContext,
    does: Does,
) -> Ended {
    let started = Instant::now();
    let mut own = 0;
    let action = |_| {
        own += 1;
        let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            match does {
                Does::Succeeds(after) => {
                    sleep(after).await;
                    Ok(run)
                }
                Does::Fails(after) => {
                    sleep(after).await;
                    Err("declined")
                }
            }
        }
    };
    let result = engine.call(ctx).report(action).await;
    Ended { result, runs: own, took: started.elapsed() }
}

impl Ended {
    fn value(&self) -> Option<u32> {
        match &self.result {
            Ok(report) => report.outcome.clone().into_value(),
            Err(_) => None,
        }
    }

    fn is_executed(&self) -> bool {
        matches!(&self.result, Ok(Report { outcome: Outcome::Executed(_), .. }))
    }

    fn is_replayed(&self) -> bool {
        matches!(&self.result, Ok(Report { outcome: Outcome::Replayed(_), .. }))
    }

    fn is_in_flight(&self) -> bool {
        matches!(&self.result, Ok(Report { outcome: Outcome::InFlight(_), .. }))
    }

    fn recorded(&self) -> Option<Recorded> {
        self.result.as_ref().ok().map(|report| report.recorded)
    }

    /// Checks that the outcome is true (S10 of the history checker). For `Executed`, this call ran
    /// the action once. For `Replayed` and `InFlight`, it did not run the action, unless its
    /// completion was refused. If the store failed before the action, this call ran nothing.
    #[track_caller]
    fn is_true(&self, what: &str) {
        let runs = match &self.result {
            Ok(Report { fenced: true, .. })
            | Err(ExecuteError::Action(_) | ExecuteError::Completion(_)) => 1,
            Ok(Report { outcome: Outcome::Executed(_), .. }) => 1,
            Ok(_) | Err(_) => 0,
        };
        assert_eq!(self.runs, runs, "{what}: {self:?}");
    }
}

fn ctx(key: &str, wait: Duration) -> IdempotencyContext {
    IdempotencyContext::builder("faults", key).lease(LEASE).wait_timeout(wait).build().unwrap()
}

const NOW: Does = Does::Succeeds(Duration::ZERO);
