// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a call, such as the behaviour on a drop and the hook for a refused value.

use std::fmt;

use crate::config::CompletionFailurePolicy;

/// What dropping a running execution does to its lease (RUN-5).
/// # When to use
/// Keep the default if the action changes anything outside this process. An immediate retry could
/// repeat the effect of a run that was cut off. Choose `Release` for work that can safely be
/// repeated at any time. A retry then need not wait for the lease to run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDrop {
    /// The lease runs out, as if its owner had died, because the action's effect is unknown.
    #[default]
    Expire,
    /// The key is freed immediately, unless the action called
    /// [`Lease::hold_on_error`](crate::Lease::hold_on_error). Use this only for actions whose
    /// unfinished work leaves no trace.
    Release,
}

/// Receives the value that a refused completion could not store, so that the caller can compensate
/// for the work (CMP-2).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the `on_fenced` hook of a call with the value `{T}`",
    label = "this hook does not take the value of the call",
    note = "`on_fenced` takes a closure with the value of the action as its argument: `|value: \
            {T}| ..`"
)]
pub trait OnFenced<T> {
    /// Receives the value. The engine calls this method at most once, when it knows that the call
    /// gets another answer or an error, just before the call gets it. If the call is dropped while
    /// it waits for that answer, the drop calls this method.
    fn fenced(self, value: T);
}

/// The default hook, which drops the refused value.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHook;

impl<T> OnFenced<T> for NoHook {
    fn fenced(self, _: T) {}
}

/// A closure as a hook, created by [`Call::on_fenced`](crate::Call::on_fenced).
pub struct Hook<F>(pub(super) F);

impl<F> fmt::Debug for Hook<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

impl<T, F: FnOnce(T)> OnFenced<T> for Hook<F> {
    fn fenced(self, value: T) {
        (self.0)(value);
    }
}

/// The options of one call.
#[derive(Debug)]
pub(in crate::engine) struct Options<C, H> {
    pub(in crate::engine) codec: C,
    pub(in crate::engine) hook: H,
    pub(in crate::engine) on_drop: OnDrop,
    pub(in crate::engine) policy: CompletionFailurePolicy,
}
