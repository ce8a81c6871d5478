// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-6: the fingerprints of a store with sealed results.

use retryproof_core::config::ScopeConfig;
use retryproof_core::store::{Completion, ForceRequest, Forced};
use retryproof_core::{
    Acquisition, ErrorKind, ExecuteError, FencingToken, Fingerprint, IdempotencyConfig,
    MAX_FINGERPRINT_BYTES, Tombstone,
};

use super::{MINUTE, SCOPE, World, ctx, id, kind, of};

#[tokio::test(start_paused = true)]
async fn seal_6_fingerprints_are_stored_hidden_and_compared_as_before() {
    let world = World::new();
    let with = |key: &str, algorithm, byte| {
        let fingerprint = Fingerprint::tagged(algorithm, &[byte; 32]);
        ctx(key).fingerprint(fingerprint).build().unwrap()
    };
    assert!(world.run(with("k", 1, 7)).await.unwrap().is_executed());
    assert!(world.run(with("l", 1, 7)).await.unwrap().is_executed());
    let hidden = async |key: &str| *world.stored(key).await.fingerprint().unwrap();
    let (one, two) = (hidden("k").await, hidden("l").await);
    assert_ne!(one, two, "the same request looks different in each record");
    assert!(!one.as_bytes().windows(4).any(|part| part == [7; 4]));
    assert!(world.run(with("k", 1, 7)).await.unwrap().is_replayed());
    for (algorithm, byte) in [(1, 8), (2, 7)] {
        let answer = world.run(with("k", algorithm, byte)).await;
        assert!(matches!(answer, Err(ExecuteError::Mismatch)), "{answer:?}");
    }
    // An adapter gets the fingerprint in the form in which the adapter computed it (FP-3).
    let acquired = world.engine.try_acquire(&of("k")).await.unwrap();
    let Acquisition::Complete(stored) = acquired else { panic!("{acquired:?}") };
    assert_eq!(stored.fingerprint(), Some(&Fingerprint::tagged(1, &[7; 32])));
}

/// Finding a mismatch needs no sealing key, because fingerprints are compared before anything is
/// opened (FP-2).
#[tokio::test(start_paused = true)]
async fn seal_6_another_request_is_refused_before_the_result_is_opened() {
    let world = World::new();
    let with = |byte| ctx("k").fingerprint(Fingerprint::tagged(1, &[byte; 32])).build().unwrap();
    assert!(world.run(with(7)).await.unwrap().is_executed());
    let sealed = world.stored("k").await;
    let damaged = [&sealed.sealed().unwrap()[..8], b"damaged"].concat();
    let done = Completion::new(damaged.into(), MINUTE, sealed.fingerprint().copied());
    let forget = ForceRequest::forget(token(&world, "k").await);
    assert!(matches!(world.raw.force(&id("k"), &forget).await.unwrap(), Forced::Applied));
    world.put("k", done).await;
    assert!(matches!(world.run(with(8)).await, Err(ExecuteError::Mismatch)));
    assert_eq!(kind(world.run(with(7)).await), ErrorKind::Corrupt);
}

async fn token(world: &World, key: &str) -> FencingToken {
    world.raw.get(&id(key)).await.unwrap().unwrap().token
}

#[tokio::test(start_paused = true)]
async fn seal_6_fingerprints_are_compared_in_flight() {
    let mut config = IdempotencyConfig::default();
    let early = ScopeConfig { fingerprint_while_in_flight: Some(true), ..ScopeConfig::default() };
    config.scopes.insert(SCOPE.to_owned(), early);
    let world = World::with(config);
    let with = |algorithm, byte| {
        let fingerprint = Fingerprint::tagged(algorithm, &[byte; 32]);
        ctx("k").fingerprint(fingerprint).build().unwrap()
    };
    let _held = world.engine.try_acquire(&with(1, 7)).await.unwrap();
    for (algorithm, byte, is_other) in [(1, 7, false), (1, 8, true), (2, 8, false)] {
        let answer = world.engine.try_acquire(&with(algorithm, byte)).await.unwrap();
        assert_eq!(matches!(answer, Acquisition::Mismatch), is_other, "{answer:?}");
    }
}

/// An exported tombstone without detail has a hidden fingerprint, but nothing sealed. An import
/// does not hide the fingerprint again.
#[tokio::test(start_paused = true)]
async fn seal_6_a_hidden_fingerprint_is_not_hidden_again() {
    let world = World::new();
    let with = |byte| ctx("k").fingerprint(Fingerprint::tagged(1, &[byte; 32])).build().unwrap();
    let Acquisition::Granted(held) = world.engine.try_acquire(&with(7)).await.unwrap() else {
        panic!("expected a lease")
    };
    let _ = held.complete_tombstone(Tombstone::new()).await;
    let fingerprint = world.stored("k").await.fingerprint().copied();
    let forget = ForceRequest::forget(token(&world, "k").await);
    assert!(matches!(world.raw.force(&id("k"), &forget).await.unwrap(), Forced::Applied));

    let exported = Completion::new(Tombstone::new().into_envelope(), MINUTE, fingerprint);
    let imported = world.engine.store().seal(&id("k"), None, exported).await.unwrap();
    world.put("k", imported).await;
    assert!(matches!(world.run(with(7)).await, Err(ExecuteError::NotReplayable(_))));
    assert!(matches!(world.run(with(8)).await, Err(ExecuteError::Mismatch)));
}

#[tokio::test(start_paused = true)]
async fn seal_6_the_fingerprint_of_an_imported_result_is_hidden() {
    let world = World::new();
    let with = |byte| ctx("k").fingerprint(Fingerprint::tagged(1, &[byte; 32])).build().unwrap();
    let plain = Some(Fingerprint::tagged(1, &[7; 32]));
    let exported = Completion::new(Tombstone::new().into_envelope(), MINUTE, plain);
    let imported = world.engine.store().seal(&id("k"), None, exported).await.unwrap();
    assert!(imported.fingerprint.is_some() && imported.fingerprint != plain);
    world.put("k", imported).await;
    assert!(matches!(world.run(with(7)).await, Err(ExecuteError::NotReplayable(_))));
    assert!(matches!(world.run(with(8)).await, Err(ExecuteError::Mismatch)));
}

#[tokio::test(start_paused = true)]
async fn seal_6_a_fingerprint_that_is_too_long_is_refused() {
    let world = World::new();
    let longest = Fingerprint::new(&[1; MAX_FINGERPRINT_BYTES]).unwrap();
    let ctx = ctx("k").fingerprint(longest).build().unwrap();
    assert_eq!(kind(world.run(ctx).await), ErrorKind::Invalid);
    assert_eq!(world.runs(), 0);
}

/// A result that was moved to another record together with its fingerprint cannot be opened either.
/// By chance, about one in 256 of these fingerprints begins with the request's algorithm, and then
/// counts as the fingerprint of another request.
#[tokio::test(start_paused = true)]
async fn seal_5_a_result_that_was_moved_with_its_fingerprint_is_never_replayed() {
    const MOVED: usize = 2_048;
    let world = World::new();
    let with = |key: &str| ctx(key).fingerprint(Fingerprint::tagged(1, &[7; 32])).build().unwrap();
    assert!(world.run(with("k")).await.unwrap().is_executed());
    let stored = world.stored("k").await;
    let (sealed, hidden) = (stored.sealed().unwrap(), stored.fingerprint().copied());
    let mut refused = 0;
    for at in 0..MOVED {
        let key = format!("moved {at}");
        world.put(&key, Completion::new(sealed.clone(), MINUTE, hidden)).await;
        match world.run(with(&key)).await {
            Err(ExecuteError::Mismatch) => refused += 1,
            answer => assert_eq!(kind(answer), ErrorKind::Corrupt, "{key}"),
        }
    }
    assert!((2..=MOVED / 256 * 4).contains(&refused), "{refused} of {MOVED}");
    assert_eq!(world.runs(), 1, "nothing runs");
}
