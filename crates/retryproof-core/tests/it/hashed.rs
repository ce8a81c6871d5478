// SPDX-License-Identifier: MIT OR Apache-2.0
//! ID-5: an engine on a store with hashed identities.

use std::time::Duration;

use retryproof_core::store::SharedStore;
use retryproof_core::{
    Acquisition, IdempotencyContext, IdempotencyEngine, IdempotencyStore as _, Identity,
    IdentitySecret, OnDrop,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{FaultStore, Faults};

use crate::redaction::Sink;

const KEY: &str = "canary-key";
const LEASE: Duration = Duration::from_millis(100);

fn memory() -> MemoryStore {
    let secret = IdentitySecret::new("s".repeat(32)).unwrap();
    MemoryStore::builder().identity_secret(secret).build()
}

fn id() -> Identity {
    Identity::of("scope", KEY).unwrap()
}

fn ctx() -> IdempotencyContext {
    let ctx = IdempotencyContext::builder("scope", KEY).lease(LEASE);
    ctx.wait_timeout(Duration::ZERO).build().unwrap()
}

async fn keys(store: &SharedStore) -> Vec<String> {
    let page = store.scan(None, 100).await.unwrap().unwrap();
    page.records.iter().map(|record| record.id.key().expose().to_owned()).collect()
}

/// Whichever method acquires the lease, logs show the digest that the store keeps, and nothing that
/// is printed contains the key.
#[tokio::test(start_paused = true)]
async fn id_5_logs_and_debug_output_show_the_digest_that_the_store_keeps() {
    let store = SharedStore::builder(memory()).with_inspect().build();
    let engine = IdempotencyEngine::new(store.clone());
    let shown = store.identify(id()).to_string();
    let held = || async {
        match engine.try_acquire(&ctx()).await.unwrap() {
            Acquisition::Granted(held) => held,
            other => panic!("{other:?}"),
        }
    };
    held().await.hold();
    assert_eq!(shown, format!("scope#{}", &keys(&store).await[0][..16]));
    for way in 0..4 {
        tokio::time::sleep(2 * LEASE).await;
        let (sink, _guard) = Sink::start();
        // Each call takes over the dead lease of the call before, and the takeover is logged.
        let printed = match way {
            0 => format!("{:?}", held().await),
            1 => format!("{:?}", engine.try_acquire_tracked(&ctx()).await.unwrap()),
            2 => {
                let call = engine.call(ctx()).on_drop(OnDrop::Expire);
                let debug = format!("{call:?}");
                let run = call.execute_with(|lease| async move {
                    tokio::time::sleep(LEASE / 4).await;
                    lease.hold_on_error();
                    Err::<(), _>(format!("{lease:?}"))
                });
                format!("{debug} {:?}", run.await.unwrap_err())
            }
            _ => format!("{:?}", engine.spawn(ctx(), || async { Ok::<_, &str>(1) }).await),
        };
        let logged = sink.take();
        assert!(logged.contains("took over") && logged.contains(&shown), "{way}: {logged}");
        for text in [logged, printed] {
            assert!(!text.contains("canary") && !text.contains(&id().to_string()), "{way}: {text}");
        }
    }
}

/// The action sees its key in plain form, and the keys of its downstream calls do not depend on the
/// secret: a service that moves to a new store with hashed identities still protects these calls.
#[tokio::test(start_paused = true)]
async fn id_5_an_action_sees_its_key() {
    let derived = async |store: SharedStore| {
        let engine = IdempotencyEngine::new(store);
        let run = engine.execute_with(ctx(), |lease| async move {
            assert_eq!(lease.identity().key().expose(), KEY);
            Ok::<_, &str>(lease.downstream_key("charge"))
        });
        run.await.unwrap().into_value()
    };
    let plain = derived(SharedStore::new(MemoryStore::new())).await;
    assert_eq!(derived(SharedStore::new(memory())).await, plain);
}

/// A wrapper forwards the profile, so a wrapped store hashes too, and hashes only once.
#[tokio::test(start_paused = true)]
async fn id_5_a_wrapped_store_keeps_digests_too() {
    let wrapped = FaultStore::new(memory(), Faults::none());
    let inner = SharedStore::builder(wrapped).with_inspect().build();
    let store = SharedStore::new(inner.clone());
    let run = || async {
        let engine = IdempotencyEngine::new(store.clone());
        engine.execute(ctx(), || async { Ok::<_, &str>(7) }).await.unwrap()
    };
    assert!(run().await.is_executed() && run().await.is_replayed());
    let keys = keys(&inner).await;
    assert!(keys.len() == 1 && IdentitySecret::is_digest(&keys[0]), "{keys:?}");
    let digest = Identity::of("scope", &keys[0]).unwrap();
    assert!(inner.get(&digest).await.unwrap().is_none(), "a digest is no key");
    for peeked in [inner.peek(&id()).await, inner.as_dyn().dyn_peek(id()).await] {
        assert!(matches!(peeked.unwrap(), retryproof_core::store::Peeked::Complete(_)));
    }
}
