// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-1 to SEAL-6: an engine on a store with sealed results.

mod failing;
mod fingerprints;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use retryproof_core::seal::DataSubject;
use retryproof_core::store::{
    AcquireRequest, Completion, FencedWrite, ForceAction, ForceRequest, Forced, Peeked, SharedStore,
};
use retryproof_core::{
    Acquisition, CodecId, CompletionFailurePolicy, CompletionResult, ErrorKind, ExecuteError,
    Fingerprint, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, IdempotencyStore as _,
    Identity, IdentitySecret, Opened, Outcome, OwnerId, Payload, Recorded, StoredResult, Tombstone,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::TestKeys;

const ANSWER: &str = "canary-answer";
const SCOPE: &str = "pay";
const MINUTE: Duration = Duration::from_secs(60);

fn secret() -> IdentitySecret {
    IdentitySecret::new("s".repeat(32)).unwrap()
}

struct World {
    /// The store without its sealer, which shows what is stored in sealed form.
    raw: SharedStore,
    keys: TestKeys,
    engine: IdempotencyEngine,
    runs: AtomicU32,
}

impl World {
    fn new() -> Self {
        Self::with(IdempotencyConfig::default())
    }

    fn with(config: IdempotencyConfig) -> Self {
        let memory = MemoryStore::builder().identity_secret(secret()).build();
        let raw = SharedStore::builder(memory).with_inspect().with_force().build();
        let keys = TestKeys::new();
        let sealed = raw.clone().sealed_by(Arc::new(keys.clone())).unwrap();
        let engine = IdempotencyEngine::builder(sealed).config(config).build().unwrap();
        Self { raw, keys, engine, runs: AtomicU32::new(0) }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    async fn run(
        &self,
        ctx: IdempotencyContext,
    ) -> Result<Outcome<String>, ExecuteError<&'static str>> {
        let action = || async {
            self.runs.fetch_add(1, Ordering::SeqCst);
            Ok::<_, &str>(ANSWER.to_owned())
        };
        self.engine.execute(ctx, action).await
    }

    async fn stored(&self, key: &str) -> StoredResult {
        match self.raw.peek(&id(key)).await.unwrap() {
            Peeked::Complete(stored) => stored,
            other => panic!("expected a result, got {other:?}"),
        }
    }

    /// Completes a record without the engine.
    async fn put(&self, key: &str, done: Completion) {
        let owner = OwnerId::new();
        let request = AcquireRequest::new(owner, MINUTE, MINUTE);
        let _ = self.raw.acquire(&id(key), &request).await.unwrap();
        let written = self.raw.complete(&id(key), owner, &done).await.unwrap();
        assert_eq!(written, FencedWrite::Applied);
    }
}

fn id(key: &str) -> Identity {
    Identity::of(SCOPE, key).unwrap()
}

fn ctx(key: &str) -> retryproof_core::ContextBuilder {
    IdempotencyContext::builder(SCOPE, key).subject("ada").wait_timeout(Duration::ZERO)
}

fn of(key: &str) -> IdempotencyContext {
    ctx(key).build().unwrap()
}

fn kind<T: std::fmt::Debug, E: std::fmt::Debug>(answer: Result<T, ExecuteError<E>>) -> ErrorKind {
    match answer {
        Err(ExecuteError::Store(error)) => error.kind(),
        other => panic!("expected an error of the store, got {other:?}"),
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[tokio::test(start_paused = true)]
async fn seal_1_a_result_is_sealed_in_the_store_and_opened_for_a_replay() {
    let world = World::new();
    assert!(world.run(of("k")).await.unwrap().is_executed());
    let stored = world.stored("k").await;
    assert!(!contains(stored.sealed().expect("a sealed result"), "canary"));
    assert_eq!(world.run(of("k")).await.unwrap(), Outcome::Replayed(ANSWER.to_owned()));
    assert_eq!(world.runs(), 1);
    // `spawn` and `try_acquire` open the result too.
    let spawned = world.engine.spawn(of("k"), || async { Ok::<String, &str>(String::new()) });
    assert_eq!(spawned.await.unwrap(), Outcome::Replayed(ANSWER.to_owned()));
    let acquired = world.engine.try_acquire(&of("k")).await.unwrap();
    let Acquisition::Complete(opened) = acquired else { panic!("{acquired:?}") };
    assert!(matches!(opened.open(None).unwrap(), Opened::Value(_)));
}

/// A holder finishes while a duplicate waits.
#[tokio::test(start_paused = true)]
async fn seal_1_a_waiter_gets_the_opened_result() {
    let world = World::new();
    let Acquisition::Granted(held) = world.engine.try_acquire(&of("k")).await.unwrap() else {
        panic!("expected a lease")
    };
    let engine = world.engine.clone();
    let waiter = tokio::spawn(async move {
        let ctx = ctx("k").wait_timeout(MINUTE).build().unwrap();
        engine.execute(ctx, || async { Ok::<_, &str>("twice".to_owned()) }).await.unwrap()
    });
    while world.engine.activity().waiting == 0 {
        tokio::task::yield_now().await;
    }
    let value = Payload::new(CodecId::JSON, 0, b"\"done\"");
    assert!(matches!(held.complete(value).await, CompletionResult::Recorded));
    assert_eq!(waiter.await.unwrap(), Outcome::Replayed("done".to_owned()));
}

/// A late holder whose key was taken over gets the opened result of the other holder (CMP-2).
#[tokio::test(start_paused = true)]
async fn seal_1_a_fenced_caller_gets_the_opened_result() {
    let world = World::new();
    let ctx = ctx("k").lease(Duration::from_secs(1)).build().unwrap();
    let report = world.engine.call(ctx).report(|lease| {
        let world = &world;
        async move {
            let token = lease.token();
            let release = ForceRequest::release(token).even_if_live();
            assert!(matches!(world.raw.force(&id("k"), &release).await.unwrap(), Forced::Applied));
            assert!(world.run(of("k")).await.unwrap().is_executed());
            Ok::<_, &str>("late".to_owned())
        }
    });
    let report = report.await.unwrap();
    assert_eq!((report.outcome, report.fenced), (Outcome::Replayed(ANSWER.to_owned()), true));
}

/// A result that was stored before results were sealed is still replayed.
#[tokio::test(start_paused = true)]
async fn seal_1_older_results_are_replayed() {
    let world = World::new();
    let fingerprint = Fingerprint::tagged(1, &[7; 32]);
    let value = Payload::new(CodecId::JSON, 0, b"\"old\"").into_envelope();
    world.put("old", Completion::new(value, MINUTE, Some(fingerprint))).await;
    let ctx = |byte| ctx("old").fingerprint(Fingerprint::tagged(1, &[byte; 32])).build().unwrap();
    assert_eq!(world.run(ctx(7)).await.unwrap(), Outcome::Replayed("old".to_owned()));
    assert!(matches!(world.run(ctx(8)).await, Err(ExecuteError::Mismatch)));
}

#[tokio::test(start_paused = true)]
async fn seal_1_a_program_without_the_sealer_is_told_what_to_configure() {
    let world = World::new();
    let with = |byte| ctx("k").fingerprint(Fingerprint::tagged(1, &[byte; 32])).build().unwrap();
    assert!(world.run(with(7)).await.unwrap().is_executed());
    let plain = IdempotencyEngine::new(world.raw.clone());
    for ctx in [of("k"), with(7), with(8)] {
        let answer = plain.execute(ctx, || async { Ok::<_, &str>(String::new()) }).await;
        let Err(ExecuteError::Store(error)) = answer else { panic!("{answer:?}") };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("this program has no keys to open it"), "{error}");
    }
}

#[test]
fn seal_1_a_store_with_plain_identities_cannot_seal() {
    let store = SharedStore::from(MemoryStore::new());
    let error = store.sealed_by(Arc::new(TestKeys::new())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("identity-secret"), "{error}");
}

/// A wrapper forwards the profile, so an engine on a wrapped store seals too.
#[tokio::test(start_paused = true)]
async fn seal_1_a_wrapped_store_seals_too() {
    let world = World::new();
    let wrapped = SharedStore::new(world.engine.store().clone());
    assert!(wrapped.seals());
    let engine = IdempotencyEngine::new(wrapped);
    let run = engine.execute(of("k"), || async { Ok::<_, &str>(ANSWER.to_owned()) });
    assert!(run.await.unwrap().is_executed());
    assert!(world.stored("k").await.sealed().is_some());
}

#[tokio::test(start_paused = true)]
async fn seal_2_nothing_runs_while_the_keys_are_away_or_wrong() {
    let world = World::new();
    assert!(world.run(of("done")).await.unwrap().is_executed());
    for failing in [ErrorKind::Unavailable, ErrorKind::Config] {
        world.keys.fail(Some(failing));
        for key in ["new", "done"] {
            assert_eq!(kind(world.run(of(key)).await), failing);
        }
        assert!(matches!(world.raw.peek(&id("new")).await.unwrap(), Peeked::Absent));
    }
    assert_eq!(world.runs(), 1);
    world.keys.fail(None);
    assert!(world.run(of("new")).await.unwrap().is_executed());
    assert!(world.run(of("done")).await.unwrap().is_replayed());
}

/// If the keys are unavailable, the store has not failed, so the circuit stays closed (STO-5).
#[tokio::test(start_paused = true)]
async fn seal_2_the_keys_open_no_circuit() {
    let world = World::new();
    world.keys.fail(Some(ErrorKind::Unavailable));
    for _ in 0..20 {
        assert_eq!(kind(world.run(of("k")).await), ErrorKind::Unavailable);
    }
    world.keys.fail(None);
    world.engine.health().await.unwrap();
    assert!(world.run(of("k")).await.unwrap().is_executed());
}

/// After the key of a subject is destroyed, the subject's results cannot be opened in any scope.
/// All other results can.
#[tokio::test(start_paused = true)]
async fn seal_3_each_subject_has_a_key() {
    let calls = [
        (SCOPE, "a", Some("ada")),
        ("refund", "a", Some("ada")),
        (SCOPE, "b", Some("bob")),
        (SCOPE, "c", None),
        ("refund", "c", None),
        (SCOPE, "d", Some(SCOPE)),
    ];
    let scope = id("any").scope().clone();
    for (subject, ended) in [
        (DataSubject::named(&secret(), "ada"), &calls[..2]),
        (DataSubject::of_scope(&secret(), &scope), &calls[3..4]),
    ] {
        let world = World::new();
        let run = async |(scope, key, subject): (&'static str, &str, Option<&'static str>)| {
            let ctx = IdempotencyContext::builder(scope, key);
            let ctx = match subject {
                Some(subject) => ctx.subject(subject),
                None => ctx,
            };
            world.run(ctx.build().unwrap()).await
        };
        for call in calls {
            assert!(run(call).await.unwrap().is_executed());
        }
        world.keys.destroy(&subject);
        for call in calls {
            let answer = run(call).await;
            let is_tombstone = matches!(answer, Err(ExecuteError::NotReplayable(_)));
            assert_eq!(is_tombstone, ended.contains(&call), "{call:?}: {answer:?}");
        }
        assert_eq!(world.runs(), 6);
    }
}

#[test]
fn seal_3_a_subject_prints_a_digest() {
    let shown = format!("{:?}", DataSubject::named(&secret(), "canary"));
    assert!(shown.starts_with("DataSubject(") && shown.len() == 29, "{shown}");
    let other = IdentitySecret::new("t".repeat(32)).unwrap();
    assert_ne!(DataSubject::named(&secret(), "canary"), DataSubject::named(&other, "canary"));
    let subject = DataSubject::named(&secret(), "canary");
    let digits: String = subject.digest()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(shown, format!("DataSubject({digits})"));
}

/// After the key of a subject is destroyed, the subject's old results are tombstones. A new call
/// runs once, and leaves a tombstone.
#[tokio::test(start_paused = true)]
async fn seal_4_a_destroyed_subject_gets_tombstones_and_nothing_runs_twice() {
    let world = World::new();
    assert!(world.run(of("old")).await.unwrap().is_executed());
    world.keys.destroy(&DataSubject::named(&secret(), "ada"));
    for _ in 0..2 {
        assert!(matches!(world.run(of("old")).await, Err(ExecuteError::NotReplayable(_))));
    }
    let report =
        world.engine.call(of("new")).report(|_| async { Ok::<_, &str>(ANSWER.to_owned()) });
    let report = report.await.unwrap();
    assert_eq!(report.recorded, Recorded::Tombstone);
    assert!(report.outcome.is_executed());
    assert!(world.stored("new").await.sealed().is_none());
    assert!(matches!(world.run(of("new")).await, Err(ExecuteError::NotReplayable(_))));
    assert_eq!(world.runs(), 1);

    let strict = world.engine.call(of("strict")).completion(CompletionFailurePolicy::Propagate);
    let failed = strict.execute(|| async { Ok::<_, &str>(ANSWER.to_owned()) }).await.unwrap_err();
    let ExecuteError::Completion(failed) = failed else { panic!("{failed:?}") };
    assert!(failed.to_string().contains("destroyed"), "{failed}");
}

/// A sealed result cannot be opened if it was damaged, or if it was stored in another record.
#[tokio::test(start_paused = true)]
async fn seal_5_a_moved_or_damaged_result_is_unreadable() {
    let world = World::new();
    assert!(world.run(of("k")).await.unwrap().is_executed());
    let sealed = world.stored("k").await.sealed().unwrap().clone();
    world.put("moved", Completion::new(sealed.clone(), MINUTE, None)).await;
    assert_eq!(kind(world.run(of("moved")).await), ErrorKind::Corrupt);
    // The first 24 bytes are the header, the number of the key, and the length of the binding.
    for at in 0..24 {
        let mut bytes = sealed.to_vec();
        bytes[at] ^= 0x41;
        let key = format!("damaged {at}");
        world.put(&key, Completion::new(bytes.into(), MINUTE, None)).await;
        assert_eq!(kind(world.run(of(&key)).await), ErrorKind::Corrupt, "byte {at}");
    }
    assert_eq!(world.runs(), 1, "nothing runs");
}

/// The detail of a tombstone is sealed too; without a detail there is nothing to seal.
#[tokio::test(start_paused = true)]
async fn seal_5_the_detail_of_a_tombstone_is_sealed() {
    let world = World::new();
    for (key, tombstone, seals) in [
        ("detail", Tombstone::with_detail(CodecId::HTTP, 1, b"canary-location"), true),
        ("bare", Tombstone::new(), false),
    ] {
        let Acquisition::Granted(held) = world.engine.try_acquire(&of(key)).await.unwrap() else {
            panic!("expected a lease")
        };
        let _ = held.complete_tombstone(tombstone.clone()).await;
        assert_eq!(world.stored(key).await.sealed().is_some(), seals);
        match world.run(of(key)).await {
            Err(ExecuteError::NotReplayable(found)) => assert_eq!(found, tombstone),
            other => panic!("expected a tombstone, got {other:?}"),
        }
    }
    assert!(!contains(world.stored("detail").await.sealed().unwrap(), "canary"));
}

/// The result with which an operator resolves a record is sealed, and a repeated resolve is
/// recognised (OPS-3).
#[tokio::test(start_paused = true)]
async fn seal_5_the_result_of_a_resolve_is_sealed() {
    let world = World::new();
    let store = world.engine.store();
    for subject in [Some("ada"), None] {
        let key = subject.unwrap_or("nobody");
        let Acquisition::Granted(held) = world.engine.try_acquire(&of(key)).await.unwrap() else {
            panic!("expected a lease")
        };
        let token = held.lease().token();
        held.hold();
        let value = Payload::new(CodecId::JSON, 0, b"\"canary\"").into_envelope();
        let done = Completion::new(value, MINUTE, None);
        let mut resolve = ForceRequest::resolve(&id(key), token, done).even_if_live();
        if let Some(subject) = subject {
            resolve = resolve.about(subject);
        }
        for _ in 0..2 {
            let forced = store.force(&id(key), &resolve).await.unwrap();
            assert!(matches!(forced, Forced::Applied), "{forced:?}");
        }
        assert!(!contains(world.stored(key).await.sealed().expect("sealed"), "canary"));
        // If the owner id in the store were a digest of the value, anyone who can read the store
        // could check a guess of the value.
        let ForceAction::Resolve { by, done } = &resolve.action else { panic!("{resolve:?}") };
        let guessed = world.raw.complete(&id(key), *by, done).await.unwrap();
        assert_eq!(guessed, FencedWrite::NotOwner);
        assert_eq!(world.run(of(key)).await.unwrap(), Outcome::Replayed("canary".to_owned()));
    }
    world.keys.destroy(&DataSubject::named(&secret(), "ada"));
    assert!(matches!(world.run(of("ada")).await, Err(ExecuteError::NotReplayable(_))));
    assert!(world.run(of("nobody")).await.unwrap().is_replayed());
}
