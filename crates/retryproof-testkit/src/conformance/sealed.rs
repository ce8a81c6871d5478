// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store keeps a sealed result like any other, and an engine opens it only in the record that it
//! was sealed for.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::seal::DataSubject;
use retryproof_core::store::{Completion, FencedWrite, Peeked, SharedStore};
use retryproof_core::{
    BytesCodec, ErrorKind, ExecuteError, Fingerprint, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore as _, Identity, IdentitySecret, Outcome,
};

use super::caller::{LONG, StoreCaller, granted};
use crate::keys::TestKeys;
use crate::subject::{StoreSetup, Subject};

const ANSWER: &[u8] = b"canary answer";

fn secret() -> IdentitySecret {
    IdentitySecret::new("s".repeat(32)).expect("32 bytes are enough")
}

/// Returns two handles on a store with hashed identities.
async fn handles(s: &Subject) -> [SharedStore; 2] {
    let open = async |migrates| {
        let setup = StoreSetup { name: s.store_name("s"), secret: Some(secret()), migrates };
        let opened =
            s.opened(setup).await.expect("the store under test should offer hashed identities");
        opened.expect("the store should open")
    };
    [open(true).await, open(false).await]
}

fn engine(store: &SharedStore, keys: &TestKeys) -> IdempotencyEngine {
    let sealed = store.clone().sealed_by(Arc::new(keys.clone()));
    IdempotencyEngine::new(sealed.expect("the store should have hashed identities"))
}

async fn call(engine: &IdempotencyEngine, id: &Identity) -> Result<Outcome<Vec<u8>>, ErrorKind> {
    let ctx = IdempotencyContext::builder(id.scope().clone(), id.key().expose())
        .subject("ada")
        .fingerprint(Fingerprint::tagged(1, &[7; 32]))
        .wait_timeout(Duration::ZERO)
        .build()
        .expect("the context should be valid");
    let call = engine.call(ctx).codec(BytesCodec);
    match call.execute(|| async { Ok::<_, ErrorKind>(ANSWER.to_vec()) }).await {
        Ok(outcome) => Ok(outcome),
        Err(ExecuteError::Store(error)) => Err(error.kind()),
        other => panic!("expected an outcome or an error of the store, got {other:?}"),
    }
}

async fn completion(store: &SharedStore, id: &Identity) -> Completion {
    match store.peek(id).await.expect("the peek should succeed") {
        Peeked::Complete(stored) => {
            let envelope = stored.sealed().expect("the result should be sealed").clone();
            Completion::new(envelope, LONG, stored.fingerprint().copied())
        }
        other => panic!("expected a result, got {other:?}"),
    }
}

/// The stored result is sealed. Every engine with the keys replays the result, and an engine
/// without the keys returns an error.
pub async fn seal_1_a_sealed_result_is_replayed_through_every_handle(s: &Subject) {
    let ([one, two], keys, id) = (handles(s).await, TestKeys::new(), s.id("canary"));
    let executed = call(&engine(&one, &keys), &id).await;
    assert_eq!(executed, Ok(Outcome::Executed(ANSWER.to_vec())));
    let replayed = call(&engine(&two, &keys), &id).await;
    assert_eq!(replayed, Ok(Outcome::Replayed(ANSWER.to_vec())));
    let stored = completion(&two, &id).await;
    assert!(!stored.value.windows(6).any(|part| part == b"canary"), "the answer should be hidden");
    let fingerprint = stored.fingerprint.expect("the fingerprint should be kept");
    assert!(!fingerprint.as_bytes().windows(8).any(|part| part == [7; 8]));
    let without = IdempotencyEngine::new(two);
    assert_eq!(call(&without, &id).await, Err(ErrorKind::Corrupt));
}

/// A sealed result that was moved to another record is unreadable there, and nothing runs.
pub async fn seal_5_a_moved_result_fails_closed(s: &Subject) {
    let ([one, two], keys) = (handles(s).await, TestKeys::new());
    let (from, to) = (s.id("from"), s.id("to"));
    let engine = engine(&one, &keys);
    assert!(call(&engine, &from).await.expect("the call should succeed").is_executed());
    let thief = StoreCaller::new(&two, &to);
    granted(thief.acquire(LONG).await);
    let mut moved = completion(&two, &from).await;
    moved.fingerprint = None;
    let written = two.complete(&to, thief.owner, &moved).await;
    assert_eq!(written.expect("the completion should succeed"), FencedWrite::Applied);
    assert_eq!(call(&engine, &to).await, Err(ErrorKind::Corrupt));
    assert!(call(&engine, &from).await.expect("the call should succeed").is_replayed());
}

/// After a subject's key is destroyed, its results are tombstones, and nothing runs again.
pub async fn seal_4_a_destroyed_key_leaves_tombstones(s: &Subject) {
    let ([one, two], keys, id) = (handles(s).await, TestKeys::new(), s.id("k"));
    let first = call(&engine(&one, &keys), &id).await;
    assert!(first.expect("the call should succeed").is_executed());
    keys.destroy(&DataSubject::named(&secret(), "ada"));
    for store in [&one, &two] {
        let engine = engine(store, &keys);
        let ctx = IdempotencyContext::builder(id.scope().clone(), id.key().expose());
        // Do not wait: with a defective store, which never replays, the call would otherwise wait
        // until the timeout.
        let ctx = ctx.wait_timeout(Duration::ZERO);
        let call = engine.call(ctx.build().expect("the context should be valid")).codec(BytesCodec);
        let answer = call.execute(|| async { Ok::<Vec<u8>, ErrorKind>(b"twice".to_vec()) }).await;
        assert!(
            matches!(answer, Err(ExecuteError::NotReplayable(_))),
            "the erased result should not be replayed, got {answer:?}"
        );
    }
}
