// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recognises a call that is made inside the action that holds its key, in the same task (ACQ-14).
//! Such a call would wait for itself, because its holder cannot end before the call does.
//!
//! Each poll of an action puts its lease on a stack of the thread, and takes it off again. So the
//! stack has the leases of the actions below the running code. An action beside that code in the
//! same task, as in a `join!`, is not being polled, so its lease is not on the stack. An action may
//! also poll other tasks, by a `LocalSet` or another runtime. They have other task ids.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use tokio::task;

use super::lease::Lease;
use super::store_client::StoreClient;
use crate::identity::Identity;
use crate::owner::FencingToken;

thread_local! {
    static RUNNING: RefCell<Vec<RunningAction>> = const { RefCell::new(Vec::new()) };
}

/// An action that is being polled, or a blocking one that is running.
struct RunningAction {
    lease: Lease,
    /// The task that polls the action; `None` outside of tasks.
    task: Option<task::Id>,
}

/// Takes the action off the stack when dropped, also during a panic.
struct Entered;

impl Entered {
    fn new(lease: &Lease) -> Option<Self> {
        let action = RunningAction { lease: lease.clone(), task: task::try_id() };
        let entered = RUNNING.try_with(|running| running.borrow_mut().push(action));
        entered.is_ok().then_some(Self)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // The lease is dropped after the borrow has ended.
        let left = RUNNING.try_with(|running| running.borrow_mut().pop());
        drop(left);
    }
}

/// Runs code of an action inside its lease.
pub(super) fn run_inside<T>(lease: &Lease, action: impl FnOnce() -> T) -> T {
    let _entered = Entered::new(lease);
    action()
}

/// Polls an action inside its lease. The caller pins the action, so that it is not stored twice.
pub async fn poll_inside<F: Future>(lease: Lease, mut action: Pin<&mut F>) -> F::Output {
    poll_fn(|cx| run_inside(&lease, || action.as_mut().poll(cx))).await
}

/// Whether the running code is inside the action that holds this key under this token.
#[cold]
pub(super) fn is_inside(
    store: &Arc<StoreClient>,
    identity: &Identity,
    token: FencingToken,
) -> bool {
    let task = task::try_id();
    let found = RUNNING.try_with(|running| {
        running.borrow().iter().any(|action| {
            let state = &action.lease.0;
            action.task == task
                && Arc::ptr_eq(&state.store, store)
                && state.token == token
                && state.identity == *identity
        })
    });
    found.unwrap_or(false)
}
