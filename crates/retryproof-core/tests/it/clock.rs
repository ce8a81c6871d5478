// SPDX-License-Identifier: MIT OR Apache-2.0
//! An application's clock that calls the engine whenever the engine reads the clock.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use retryproof_core::clock::{Clock, Instant, SystemClock};
use retryproof_core::{Acquisition, IdempotencyContext, IdempotencyEngine, Lease};
use retryproof_memory::MemoryStore;

/// A clock that calls a lease's `remaining` the next time the clock is read.
#[derive(Debug, Clone, Default)]
struct CuriousClock(Arc<Mutex<Option<Lease>>>);

impl Clock for CuriousClock {
    fn now(&self) -> Instant {
        let lease = self.0.lock().unwrap().take();
        if let Some(lease) = lease {
            assert!(!lease.remaining().is_zero());
        }
        SystemClock.now()
    }
}

#[tokio::test]
async fn run_2_a_clock_can_ask_the_lease_that_reads_it() {
    let clock = CuriousClock::default();
    let engine =
        IdempotencyEngine::builder(MemoryStore::new()).clock(clock.clone()).build().unwrap();
    let ctx = IdempotencyContext::builder("clock", "k").build().unwrap();
    let Ok(Acquisition::Granted(held)) = engine.try_acquire(&ctx).await else { panic!("granted") };
    let (answer, answers) = mpsc::channel();
    // The thread owns the lease, so that a hanging thread cannot block the test with a lock.
    std::thread::spawn(move || {
        let lease = held.lease();
        let asks = || *clock.0.lock().unwrap() = Some(lease.clone());
        asks();
        answer.send(lease.believed_held()).unwrap();
        asks();
        answer.send(!lease.remaining().is_zero()).unwrap();
    });
    for what in ["believed_held", "remaining"] {
        assert_eq!(answers.recv_timeout(Duration::from_secs(10)), Ok(true), "{what}");
    }
}
