// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory store under the conformance kit (STO-2): on tokio's paused clock, on a separate clock
//! beside it, and on the host's clock with threads that race.

use std::sync::Arc;

use retryproof_core::clock::ManualClock;
use retryproof_memory::MemoryStore;
use retryproof_testkit::{Subject, conformance};

mod on_the_runtimes_clock {
    use super::*;

    async fn subject() -> Subject {
        Subject::of(MemoryStore::new())
            .with_wake_ups()
            .with_purge()
            .with_inspect()
            .with_force()
            .build()
    }

    conformance! { time = paused, factory = subject }
}

mod on_its_own_clock {
    use super::*;

    async fn subject() -> Subject {
        let clock = ManualClock::new();
        Subject::of(MemoryStore::with_clock(Arc::new(clock.clone())))
            .with_wake_ups()
            .with_purge()
            .with_inspect()
            .with_force()
            .with_clock(move |by| clock.advance(by))
            .build()
    }

    conformance! { time = paused, factory = subject }
}

mod on_the_hosts_clock {
    use super::*;

    async fn subject() -> Subject {
        let subject = Subject::of(MemoryStore::new())
            .with_wake_ups()
            .with_purge()
            .with_inspect()
            .with_force();
        subject.build()
    }

    conformance! { time = real, factory = subject }
}
