// SPDX-License-Identifier: MIT OR Apache-2.0
//! Integration tests: an engine on the memory store, with results that are sealed under the keys of
//! a table.

mod cache;
#[cfg(feature = "sqlite")]
mod file;
mod rotation;
mod table;
mod wrong;

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::seal::DataSubject;
use retryproof_core::{
    ExecuteError, IdempotencyContext, IdempotencyEngine, IdentitySecret, Outcome, SharedStore,
};
use retryproof_memory::MemoryStore;
use retryproof_seal::{MasterKeys, Seals};

type Answer = Result<Outcome<String>, ExecuteError<&'static str>>;

fn secret() -> IdentitySecret {
    IdentitySecret::new("s".repeat(32)).unwrap()
}

fn store() -> SharedStore {
    SharedStore::from(MemoryStore::builder().identity_secret(secret()).build())
}

/// Returns master keys with these ids. Each key is derived from the length of its id.
fn master(ids: &[&str]) -> MasterKeys {
    let line = |id: &&str| format!("{id}:{}\n", format!("{:02x}", id.len()).repeat(32));
    MasterKeys::parse(&ids.iter().map(line).collect::<String>()).unwrap()
}

fn engine(store: &SharedStore, seals: &Seals) -> IdempotencyEngine {
    IdempotencyEngine::new(store.clone().sealed_by(Arc::new(seals.clone())).unwrap())
}

fn ada() -> DataSubject {
    DataSubject::named(&secret(), "ada")
}

async fn call(engine: &IdempotencyEngine, subject: &str, key: &str) -> Answer {
    let ctx = IdempotencyContext::builder("pay", key).subject(subject).wait_timeout(Duration::ZERO);
    let answer = format!("canary {subject} {key}");
    engine.execute(ctx.build().unwrap(), || async { Ok::<_, &str>(answer) }).await
}

fn is_tombstone(answer: &Answer) -> bool {
    matches!(answer, Err(ExecuteError::NotReplayable(_)))
}

fn is_replayed(answer: &Answer, subject: &str, key: &str) -> bool {
    matches!(answer, Ok(Outcome::Replayed(found)) if *found == format!("canary {subject} {key}"))
}
