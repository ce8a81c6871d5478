// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of annotated functions that need an engine.

use std::time::Duration;

use retryproof_core::annotated::AnnotatedCall;
use retryproof_core::{ErrorKind, IdempotencyEngine, Rejected};
use retryproof_memory::MemoryStore;

struct Orders;

/// The path of a generic type is known only at run time, so a path that is too long makes the call
/// fail.
#[tokio::test]
async fn ann_4_id_3_a_path_longer_than_a_scope_is_an_error() {
    let long = "p".repeat(256);
    let call = AnnotatedCall::method::<Orders, _, _>(&long, "k", || ());
    let answer: Result<u8, Rejected> = call
        .run(IdempotencyEngine::new(MemoryStore::new()), |_| false, async |_| unreachable!())
        .await;
    let Err(Rejected::Store(error)) = answer else { panic!("an error of the call") };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("name a shorter scope"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn ann_1_ctx_3_the_durations_of_an_attribute_are_those_of_the_call() {
    let lease = Duration::from_secs(7);
    let call = AnnotatedCall::method::<Orders, _, _>("place", "k", || ()).lease(lease);
    let answer: Result<Duration, Rejected> = call
        .run(
            IdempotencyEngine::new(MemoryStore::new()),
            |_| false,
            async |lease| Ok(lease.remaining()),
        )
        .await;
    assert_eq!(answer.ok(), Some(lease));
}
