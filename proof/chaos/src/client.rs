// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an engine gets besides its store: a wrong clock, and an observer that records its events.

use std::sync::Arc;
use std::time::Duration;

use history::{Fun, Phase, Said};
use retryproof::clock::{Clock, Instant};
use retryproof::observe::{LeaseEvent, Loss, Phase as Ended};
use retryproof::{Observer, Recorded};

use crate::log::Log;

/// A client's clock that is wrong by this duration for the whole life of its process. If the flag
/// is true, the clock is behind; otherwise, it is ahead.
#[derive(Debug)]
pub(crate) struct Ahead(pub(crate) Duration, pub(crate) bool);

impl Clock for Ahead {
    fn now(&self) -> Instant {
        let now = Instant::now();
        let wrong = if self.1 { now.checked_sub(self.0) } else { now.checked_add(self.0) };
        wrong.unwrap_or(now)
    }
}

/// An observer that writes its events into the history.
pub(crate) struct Telling(pub(crate) Arc<Log>);

impl Telling {
    fn tell(&self, said: Said, lease: LeaseEvent<'_>) {
        let mut event = self.0.of(0, Fun::Told, Phase::Ok, lease.identity);
        (event.said, event.token) = (Some(said), Some(lease.token.get()));
        self.0.write(&event);
    }
}

impl Observer for Telling {
    fn acquired(&self, event: LeaseEvent<'_>) {
        self.tell(Said::Granted, event);
    }

    fn loss_noticed(&self, event: LeaseEvent<'_>, _: Loss) {
        self.tell(Said::LossNoticed, event);
    }

    fn completed(&self, event: LeaseEvent<'_>, _: Recorded) {
        self.tell(Said::Completed, event);
    }

    fn failed(&self, event: LeaseEvent<'_>, _: Ended) {
        self.tell(Said::Failed, event);
    }

    fn lost(&self, event: LeaseEvent<'_>) {
        self.tell(Said::LeaseLost, event);
    }
}
