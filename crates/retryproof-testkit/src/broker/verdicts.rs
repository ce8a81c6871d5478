// SPDX-License-Identifier: MIT OR Apache-2.0
//! Verdicts that a listener has to distinguish, but that are hard to produce in a test.

use retryproof_core::listener::Verdict;
use retryproof_core::{
    CompletionFailurePolicy, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, Rejected,
    SharedStore,
};
use retryproof_memory::MemoryStore;

use crate::{Fault, FaultStore, Faults, Operation};

/// Returns the verdict on work that ran but lost its lease to another owner (CMP-7).
pub fn lease_lost() -> Verdict {
    Verdict::of_rejected(&Rejected::LeaseLost)
}

/// Returns the verdict on work that ran but could not be recorded, because the store refused the
/// completion (CMP-4).
///
/// # Panics
/// Never.
pub async fn not_recorded() -> Verdict {
    let faults = Faults::none();
    faults.fail_next(Operation::Complete, u64::MAX, Fault::Refused);
    let mut config = IdempotencyConfig::default();
    config.completion_failure_policy = CompletionFailurePolicy::Propagate;
    let store = SharedStore::new(FaultStore::new(MemoryStore::new(), faults));
    let engine =
        IdempotencyEngine::builder(store).config(config).build().expect("the engine should build");
    let ctx =
        IdempotencyContext::builder("broker.tests", "k").build().expect("the context should build");
    Verdict::of(&engine.execute(ctx, async || Ok::<_, std::io::Error>(())).await)
}
