// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`assert_runs_once!`](crate::assert_runs_once) checks that many concurrent calls run the action
//! once.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Barrier;

/// Counts the runs of an action. Clones share their count.
#[derive(Debug, Clone, Default)]
pub struct Runs(Arc<AtomicUsize>);

impl Runs {
    /// Counts one run. The action under test calls this method.
    pub fn note(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of runs so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Makes `calls` concurrent calls, each on a separate task. Returns the number of runs and all
/// answers. [`assert_runs_once!`](crate::assert_runs_once) uses this function.
///
/// # Panics
/// If a call panics.
pub async fn count_runs<F, Fut>(calls: usize, call: F) -> (usize, Vec<Fut::Output>)
where
    F: Fn(Runs) -> Fut,
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    let runs = Runs::default();
    let start = Arc::new(Barrier::new(calls));
    let tasks: Vec<_> = (0..calls)
        .map(|_| {
            let (start, call) = (Arc::clone(&start), call(runs.clone()));
            tokio::spawn(async move {
                start.wait().await;
                call.await
            })
        })
        .collect();
    let mut answers = Vec::with_capacity(calls);
    for task in tasks {
        match task.await {
            Ok(answer) => answers.push(answer),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    (runs.count(), answers)
}

/// Makes many concurrent calls and asserts that the action ran once. Returns all answers for
/// further assertions.
///
/// The first argument is the number of calls. The second argument is a closure that makes one call.
/// The action of that call must call `runs.note()`. Use the macro inside an async function on a
/// tokio runtime.
///
/// ```
/// use retryproof_core::{IdempotencyContext, IdempotencyEngine};
/// use retryproof_memory::MemoryStore;
/// use retryproof_testkit::{Runs, assert_runs_once};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let engine = IdempotencyEngine::new(MemoryStore::new());
/// let outcomes = assert_runs_once!(50, |runs: Runs| {
///     let engine = engine.clone();
///     async move {
///         let ctx = IdempotencyContext::builder("payments", "order-17").build()?;
///         let charge = || async move {
///             runs.note();
///             Ok::<_, std::io::Error>("receipt".to_owned())
///         };
///         engine.execute(ctx, charge).await.map_err(Box::<dyn std::error::Error + Send + Sync>::from)
///     }
/// });
/// assert!(outcomes.into_iter().all(|outcome| outcome.unwrap().into_value().unwrap() == "receipt"));
/// # });
/// ```
#[macro_export]
macro_rules! assert_runs_once {
    ($calls:expr, $call:expr $(,)?) => {{
        let (runs, answers) = $crate::count_runs($calls, $call).await;
        assert_eq!(runs, 1, "the action ran {runs} times in {} concurrent calls", answers.len());
        answers
    }};
}
