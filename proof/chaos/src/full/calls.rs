// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls that a run on a full disk makes.

use std::sync::Arc;
use std::time::Duration;

use retryproof::observe::Counters;
use retryproof::store::{AcquireRequest, Acquired, Completion};
use retryproof::{
    CodecId, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, IdempotencyStore as _,
    Identity, Opened, OwnerId, Payload, SharedStore,
};

use super::Done;

const SCOPE: &str = "full";
const DAY: Duration = Duration::from_secs(86_400);
/// Longer than the run takes.
pub(super) const LEASE: Duration = Duration::from_secs(60);

/// Builds an engine, and the counters of its events.
pub(super) fn engine(store: &SharedStore) -> Done<(IdempotencyEngine, Arc<Counters>)> {
    let mut config = IdempotencyConfig::default();
    config.operation_timeout = Duration::from_secs(1);
    let counters = Counters::new();
    let builder = IdempotencyEngine::builder(store.clone()).config(config);
    Ok((builder.observer(Arc::clone(&counters)).build()?, counters))
}

/// Builds the context of a call.
pub(super) fn context(key: &str, lease: Duration) -> retryproof::Result<IdempotencyContext> {
    IdempotencyContext::builder(SCOPE, key).lease(lease).ttl(DAY).build()
}

/// Returns the identity of a key.
pub(super) fn identity(key: &str) -> retryproof::Result<Identity> {
    Identity::of(SCOPE, key)
}

/// Returns an acquire of a lease that is longer than the run takes.
pub(super) fn request(owner: OwnerId) -> AcquireRequest {
    AcquireRequest::new(owner, LEASE, DAY)
}

/// Returns a text that is too long for the space that is left in a page or in a log.
pub(super) fn large(text: &str) -> String {
    format!("{text}{}", "-".repeat(60_000))
}

/// Returns a result that is so long that the store needs more space for it.
pub(super) fn completion(text: &str) -> Completion {
    let payload = Payload::new(CodecId::BYTES, 1, large(text).as_bytes());
    Completion::new(payload.envelope().clone(), DAY, None)
}

/// Acquires a key, which must be free or held by the owner.
pub(super) async fn grant(store: &SharedStore, id: &Identity, owner: OwnerId) -> Done {
    match store.acquire(id, &request(owner)).await? {
        Acquired::Granted(_) => Ok(()),
        other => Err(format!("a key was not granted: {other:?}").into()),
    }
}

/// Returns the result that a duplicate gets, without the text that makes it long.
pub(super) async fn value(store: &SharedStore, key: &str) -> retryproof::Result<Option<String>> {
    let Acquired::Complete(stored) =
        store.acquire(&identity(key)?, &request(OwnerId::new())).await?
    else {
        return Ok(None);
    };
    let Opened::Value(payload) = stored.open(None)? else { return Ok(None) };
    let text = String::from_utf8_lossy(payload.body()).into_owned();
    let short = text.trim_end_matches('-').to_owned();
    Ok((large(&short) == text).then_some(short))
}
