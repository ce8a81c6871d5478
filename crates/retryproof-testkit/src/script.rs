// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`script`]: calls each method of a store at least once, and returns the answers.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, DynStore, FencedWrite, IdempotencyStore, Peeked,
};
use retryproof_core::{Fingerprint, Identity, OwnerId};

use crate::values::{DAY, LONG, body, envelope, fingerprint};

/// The answers to the script's calls, without the parts that differ between runs.
pub(crate) type Transcript = Vec<String>;

fn acquired(answer: retryproof_core::Result<Acquired>) -> String {
    match answer {
        Ok(Acquired::Granted(grant)) => format!("granted, takeover {}", grant.took_over),
        Ok(Acquired::Busy(_)) => "busy".to_owned(),
        Ok(Acquired::Complete(stored)) => {
            format!(
                "complete {:?} {:?}",
                body(&stored),
                stored.fingerprint().map(Fingerprint::as_bytes)
            )
        }
        Err(error) => format!("{:?}", error.kind()),
    }
}

fn stands(answer: retryproof_core::Result<Peeked>) -> String {
    match answer {
        Ok(Peeked::Absent) => "absent".to_owned(),
        Ok(Peeked::Busy(_)) => "busy".to_owned(),
        Ok(Peeked::Complete(stored)) => format!("complete {:?}", body(&stored)),
        Err(error) => format!("{:?}", error.kind()),
    }
}

fn fenced(answer: retryproof_core::Result<FencedWrite>) -> String {
    format!("{:?}", answer.map_err(|error| error.kind()))
}

/// Calls each method at least once for each of its usual answers.
pub(crate) async fn script<S: IdempotencyStore>(store: &S, id: &Identity) -> Transcript {
    let (owner, other) = (OwnerId::new(), OwnerId::new());
    let ask = |owner| AcquireRequest::new(owner, LONG, DAY).with_fingerprint(Some(fingerprint(3)));
    let done = Completion::new(envelope(b"both"), DAY, Some(fingerprint(4)));
    let mut said = vec![
        stands(store.peek(id).await),
        fenced(store.extend(id, owner, LONG).await),
        fenced(store.complete(id, owner, &done).await),
        fenced(store.release(id, owner).await),
    ];
    let grant = store.acquire(id, &ask(owner)).await;
    let token = match &grant {
        Ok(Acquired::Granted(grant)) => grant.token,
        other => panic!("expected a grant, got {other:?}"),
    };
    said.push(acquired(grant));
    said.push(acquired(store.acquire(id, &ask(other)).await));
    said.push(stands(store.peek(id).await));
    said.push(format!("{:?}", store.wait_for_change(id, token, Duration::ZERO).await.is_ok()));
    for owner in [owner, other] {
        said.push(fenced(store.extend(id, owner, LONG).await));
    }
    said.push(fenced(store.release(id, other).await));
    for owner in [owner, owner, other] {
        said.push(fenced(store.complete(id, owner, &done).await));
    }
    said.push(format!("{:?}", store.wait_for_change(id, token, LONG).await.is_ok()));
    said.push(acquired(store.acquire(id, &ask(other)).await));
    said.push(stands(store.peek(id).await));
    said.push(fenced(store.release(id, owner).await));
    let profile = store.profile();
    said.push(format!("{profile:?}"));
    said
}

/// Like [`script`], but through the boxed form of the store.
pub(crate) async fn dyn_script(store: Arc<dyn DynStore>, id: &Identity) -> Transcript {
    let (owner, other) = (OwnerId::new(), OwnerId::new());
    let store = || Arc::clone(&store);
    let ask = |owner| AcquireRequest::new(owner, LONG, DAY).with_fingerprint(Some(fingerprint(3)));
    let done = Completion::new(envelope(b"both"), DAY, Some(fingerprint(4)));
    let mut said = vec![
        stands(store().dyn_peek(id.clone()).await),
        fenced(store().dyn_extend(id.clone(), owner, LONG).await),
        fenced(store().dyn_complete(id.clone(), owner, done.clone()).await),
        fenced(store().dyn_release(id.clone(), owner).await),
    ];
    let grant = store().dyn_acquire(id.clone(), ask(owner)).await;
    let token = match &grant {
        Ok(Acquired::Granted(grant)) => grant.token,
        other => panic!("expected a grant, got {other:?}"),
    };
    said.push(acquired(grant));
    said.push(acquired(store().dyn_acquire(id.clone(), ask(other)).await));
    said.push(stands(store().dyn_peek(id.clone()).await));
    said.push(format!(
        "{:?}",
        store().dyn_wait_for_change(id.clone(), token, Duration::ZERO).await.is_ok()
    ));
    for owner in [owner, other] {
        said.push(fenced(store().dyn_extend(id.clone(), owner, LONG).await));
    }
    said.push(fenced(store().dyn_release(id.clone(), other).await));
    for owner in [owner, owner, other] {
        said.push(fenced(store().dyn_complete(id.clone(), owner, done.clone()).await));
    }
    said.push(format!("{:?}", store().dyn_wait_for_change(id.clone(), token, LONG).await.is_ok()));
    said.push(acquired(store().dyn_acquire(id.clone(), ask(other)).await));
    said.push(stands(store().dyn_peek(id.clone()).await));
    said.push(fenced(store().dyn_release(id.clone(), owner).await));
    let profile = store().dyn_profile();
    said.push(format!("{profile:?}"));
    said
}
