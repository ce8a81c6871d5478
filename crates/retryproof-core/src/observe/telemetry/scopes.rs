// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MeasuredScopes`]: the scopes that labels name, and how much time replays saved in each scope.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// The maximum number of scopes with a label of their own. The limit is needed because each scope
/// adds series to most instruments.
pub const MAX_SCOPES: usize = 64;

/// The label that all other scopes share.
pub const OTHER_SCOPES: &str = "_other";

const SECOND: u64 = 1_000_000_000;

/// The measured scopes. Lock poisoning is ignored, because the map is valid between any two
/// statements.
#[derive(Debug)]
pub(super) struct MeasuredScopes {
    named: RwLock<HashMap<Arc<str>, Arc<MeasuredScope>>>,
    other: Arc<MeasuredScope>,
}

/// One scope with a label of its own, or all other scopes together.
#[derive(Debug)]
pub(super) struct MeasuredScope {
    name: Arc<str>,
    executions: AtomicU64,
    /// The total time of all executions, in nanoseconds.
    nanos: AtomicU64,
    /// The total time that replays saved, in nanoseconds.
    saved_nanos: AtomicU64,
}

impl Default for MeasuredScopes {
    fn default() -> Self {
        Self {
            named: RwLock::default(),
            other: Arc::new(MeasuredScope::new(Arc::from(OTHER_SCOPES))),
        }
    }
}

impl MeasuredScopes {
    /// Returns the entry for all scopes without a label of their own.
    pub(super) fn other(&self) -> &MeasuredScope {
        &self.other
    }

    /// Returns the scope called `name`, or the entry for all other scopes if [`MAX_SCOPES`] other
    /// scopes already have entries of their own. The flag says whether this call added the scope.
    pub(super) fn get(&self, name: &str) -> (Arc<MeasuredScope>, bool) {
        if name == OTHER_SCOPES {
            return (Arc::clone(&self.other), false);
        }
        {
            let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(scope) = named.get(name) {
                return (Arc::clone(scope), false);
            }
            if named.len() >= MAX_SCOPES {
                return (Arc::clone(&self.other), false);
            }
        }
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        // Check again under the write lock, because another thread might have added this scope, or
        // filled the last free place, since the first check.
        if let Some(scope) = named.get(name) {
            return (Arc::clone(scope), false);
        }
        if named.len() >= MAX_SCOPES {
            return (Arc::clone(&self.other), false);
        }
        let name: Arc<str> = Arc::from(name);
        let scope = Arc::new(MeasuredScope::new(Arc::clone(&name)));
        named.insert(name, Arc::clone(&scope));
        (scope, true)
    }
}

impl MeasuredScope {
    fn new(name: Arc<str>) -> Self {
        Self {
            name,
            executions: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            saved_nanos: AtomicU64::new(0),
        }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Adds an execution whose completion was recorded.
    pub(super) fn executed(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.executions.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a replay, which saves the mean time of the executions. Returns the whole
    /// seconds of the total that no earlier call has returned, or `None` if there are none. The
    /// remainder counts towards later replays.
    pub(super) fn saved(&self) -> Option<u64> {
        let executions = self.executions.load(Ordering::Relaxed);
        let mean = self.nanos.load(Ordering::Relaxed).checked_div(executions)?;
        let before = self.saved_nanos.fetch_add(mean, Ordering::Relaxed);
        let seconds = before.wrapping_add(mean) / SECOND - before / SECOND;
        (seconds > 0).then_some(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_9_at_most_64_scopes_are_named_and_all_others_are_one() {
        let scopes = MeasuredScopes::default();
        for n in 0..MAX_SCOPES {
            assert!(scopes.get(&format!("scope-{n}")).1);
        }
        let (late, is_new) = scopes.get("late");
        assert_eq!((late.name().as_ref(), is_new), (OTHER_SCOPES, false));
        let (first, is_new) = scopes.get("scope-0");
        assert_eq!((first.name().as_ref(), is_new), ("scope-0", false));
        // A scope called `_other` does not count towards `MAX_SCOPES`.
        assert_eq!(MeasuredScopes::default().get(OTHER_SCOPES).0.name().as_ref(), OTHER_SCOPES);
    }

    #[test]
    fn run_9_replays_save_the_mean_of_the_executions_in_whole_seconds() {
        let scope = MeasuredScope::new(Arc::from("payments"));
        assert_eq!(scope.saved(), None, "nothing is known before the first execution");
        scope.executed(Duration::from_millis(200));
        scope.executed(Duration::from_millis(600));
        let saved: Vec<Option<u64>> = (0..6).map(|_| scope.saved()).collect();
        // The mean is 0.4 s, so the totals are 0.4, 0.8, 1.2, 1.6, 2.0 and 2.4 s. Each call returns
        // the whole seconds that no earlier call has returned.
        assert_eq!(saved, [None, None, Some(1), None, Some(1), None]);
        scope.executed(Duration::from_secs(10));
        assert_eq!(scope.saved(), Some(4), "the mean is 3.6 s, and 0.4 s were left");
    }
}
