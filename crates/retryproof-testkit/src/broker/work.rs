// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work on messages that counts its runs, and waits until a test lets it continue.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use retryproof_core::listener::Verdict;
use retryproof_core::{Attempt, IdempotencyContext, IdempotencyEngine, Lease};
use tokio::sync::Semaphore;

/// A gate that counts the work that arrives, and holds it until a test opens it.
#[derive(Debug)]
pub struct Gate {
    begun: AtomicUsize,
    open: Semaphore,
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn closed() -> Self {
        Self { begun: AtomicUsize::new(0), open: Semaphore::new(0) }
    }

    /// How often work has begun.
    #[must_use]
    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Lets this many continue, now or when they arrive.
    pub fn let_go(&self, runs: usize) {
        self.open.add_permits(runs);
    }

    /// Counts, and waits.
    ///
    /// # Cancel safety
    /// If dropped, it has been counted, and its turn passes to another.
    pub async fn pass(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        // Never closed.
        if let Ok(turn) = self.open.acquire().await {
            turn.forget();
        }
    }
}

/// Handles a message by an engine, with work that counts its runs and does nothing else.
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

/// Handles a message by an engine, with work that passes the gate and does nothing else.
pub async fn gated(engine: &IdempotencyEngine, ctx: IdempotencyContext, gate: &Gate) -> Verdict {
    let work = async || {
        gate.pass().await;
        Ok::<(), Infallible>(())
    };
    Verdict::of(&engine.execute(ctx, work).await)
}

/// Handles one message by work whose first run fails and does not know what it did (RUN-4), and
/// whose next one is a takeover that succeeds.
pub async fn unsure(engine: &IdempotencyEngine, ctx: IdempotencyContext) -> Verdict {
    let work = |lease: Lease| async move {
        match lease.attempt() {
            Attempt::First => {
                lease.hold_on_error();
                Err("sent, and no answer")
            }
            Attempt::Takeover => Ok(()),
        }
    };
    Verdict::of(&engine.execute_with(ctx, work).await)
}
