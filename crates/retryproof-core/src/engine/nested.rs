// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recognises a call that is made inside the action that already holds the call's key, in the same
//! task (ACQ-14). Such a call would wait for itself, because its holder cannot end before the call
//! does.
//!
//! Each poll of an action pushes the action's lease onto a stack of the thread, and pops it
//! afterwards. The stack therefore has the leases of all actions whose polls enclose the running
//! code. Another action in the same task, as in a `join!`, is not being polled at that moment, so
//! its lease is not on the stack. An action can also poll other tasks, through a `LocalSet` or
//! another runtime. These tasks are told apart by their ids.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use tokio::task;

use super::lease::Lease;
use super::span;
use super::store_client::StoreClient;
use crate::identity::Identity;
use crate::owner::FencingToken;

thread_local! {
    static RUNNING: RefCell<Vec<RunningAction>> = const { RefCell::new(Vec::new()) };
}

/// An action that is being polled, or a blocking action that is running.
struct RunningAction {
    lease: Lease,
    /// The task that polls the action; `None` outside of tasks.
    task: Option<task::Id>,
}

/// Pops the action from the stack when dropped, even during a panic.
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
        // Drop the action and its lease only after the borrow of `RUNNING` has ended, because
        // dropping the lease can run code that borrows `RUNNING` too.
        let left = RUNNING.try_with(|running| running.borrow_mut().pop());
        drop(left);
    }
}

/// Runs code of an action while the action's lease is on the stack.
pub(super) fn run_inside<T>(lease: &Lease, action: impl FnOnce() -> T) -> T {
    let _entered = Entered::new(lease);
    action()
}

/// Polls an action inside its span (RUN-10), with its lease on the stack. The engine's own calls
/// and the adapters use this function. The caller pins the action, so that this function does not
/// store the action a second time.
pub fn poll_inside<F: Future>(
    lease: Lease,
    mut action: Pin<&mut F>,
) -> impl Future<Output = F::Output> {
    let span = span::of_action();
    poll_fn(move |cx| span.in_scope(|| run_inside(&lease, || action.as_mut().poll(cx))))
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
