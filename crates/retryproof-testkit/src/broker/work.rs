// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handlers for messages. Their work counts its runs, waits until a test lets it continue, or
//! fails.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use retryproof_core::listener::Verdict;
use retryproof_core::{Attempt, IdempotencyContext, IdempotencyEngine, Lease};
use tokio::sync::Semaphore;

/// Counts the runs that arrive, and holds each run until a test lets it continue.
#[derive(Debug)]
pub struct Gate {
    begun: AtomicUsize,
    open: Semaphore,
}

impl Gate {
    /// Creates a closed gate.
    #[must_use]
    pub fn closed() -> Self {
        Self { begun: AtomicUsize::new(0), open: Semaphore::new(0) }
    }

    /// Returns how many times work has begun.
    #[must_use]
    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Lets `runs` runs continue: those that already wait, and then those that arrive later.
    pub fn let_go(&self, runs: usize) {
        self.open.add_permits(runs);
    }

    /// Counts one run, and waits until the gate lets it continue.
    ///
    /// # Cancel safety
    /// If the future is dropped, the run stays counted but does not use up a turn.
    pub async fn pass(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        // `acquire` always succeeds, because the semaphore is never closed.
        if let Ok(turn) = self.open.acquire().await {
            turn.forget();
        }
    }
}

/// Handles a message with an engine. The work counts its runs and does nothing else.
pub async fn counted(
    engine: &IdempotencyEngine,
    ctx: IdempotencyContext,
    runs: &AtomicUsize,
) -> Verdict {
    let work = async || {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok::<(), Infallible>(())
    };
    Verdict::of(&engine.execute(ctx, work).await)
}

/// Handles a message with an engine. The work passes the gate and does nothing else.
pub async fn gated(engine: &IdempotencyEngine, ctx: IdempotencyContext, gate: &Gate) -> Verdict {
    let work = async || {
        gate.pass().await;
        Ok::<(), Infallible>(())
    };
    Verdict::of(&engine.execute(ctx, work).await)
}

/// Handles one message. The first run of its work fails with an unknown effect (RUN-4). The next
/// run, after a takeover, succeeds.
pub async fn unsure(engine: &IdempotencyEngine, ctx: IdempotencyContext) -> Verdict {
    let work = |lease: Lease| async move {
        match lease.attempt() {
            Attempt::First => {
                lease.hold_on_error();
                Err("sent, but not answered")
            }
            Attempt::Takeover => Ok(()),
        }
    };
    Verdict::of(&engine.execute_with(ctx, work).await)
}
