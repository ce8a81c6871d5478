// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`doom`]: drops a store call at one of its await points.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Completion, IdempotencyStore};
use retryproof_core::{FencingToken, Identity, OwnerId};

/// A store call that is going to be dropped.
#[derive(Debug, Clone)]
pub(crate) enum Doomed {
    Acquire(AcquireRequest),
    Look,
    Changed(FencingToken, Duration),
    Extend(OwnerId, Duration),
    Complete(OwnerId, Completion),
    Release(OwnerId),
}

/// Makes the call, and drops it after it has been pending `times` times. Returns whether the call
/// ended before the drop.
pub(crate) async fn doom<S: IdempotencyStore>(
    store: &S,
    id: &Identity,
    call: &Doomed,
    times: u32,
) -> bool {
    match call {
        Doomed::Acquire(request) => until_pending(store.acquire(id, request), times).await,
        Doomed::Look => until_pending(store.peek(id), times).await,
        Doomed::Changed(seen, at_most) => {
            until_pending(store.wait_for_change(id, *seen, *at_most), times).await
        }
        Doomed::Extend(owner, lease) => {
            until_pending(store.extend(id, *owner, *lease), times).await
        }
        Doomed::Complete(owner, done) => {
            until_pending(store.complete(id, *owner, done), times).await
        }
        Doomed::Release(owner) => until_pending(store.release(id, *owner), times).await,
    }
}

/// Polls the call, and drops it after it has been pending `times` times. Returns whether the call
/// ended before the drop.
pub(crate) async fn until_pending<T>(call: impl Future<Output = T>, times: u32) -> bool {
    let mut call = pin!(call);
    let mut pending = 0;
    poll_fn(|cx| {
        if pending == times {
            return Poll::Ready(false);
        }
        match call.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending => {
                pending += 1;
                if pending == times { Poll::Ready(false) } else { Poll::Pending }
            }
        }
    })
    .await
}
