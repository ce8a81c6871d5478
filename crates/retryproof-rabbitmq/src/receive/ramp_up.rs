// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PrefetchRamp`]: decides how many messages a connection prefetches after the previous
//! connection was lost.
//!
//! A message that the driver cannot decode ends the connection, and the broker counts that as a
//! delivery of every message that was prefetched with it. After a loss, the prefetch is therefore
//! one message, until as many messages are answered as were prefetched before the loss; then the
//! prefetch doubles.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How long the prefetch waits for answers before it rises without them: a message that is still
/// being handled was decoded, so it did not break the connection.
const RAISED_AFTER: Duration = Duration::from_secs(10);

pub(crate) struct PrefetchRamp {
    max: u16,
    current: u16,
    /// How many messages were prefetched when the connection was lost.
    suspects: u64,
    /// The prefetch rises at this number of answers, counted from the start of the listener, or at
    /// the deadline.
    answers_needed: u64,
    deadline: Instant,
}

impl PrefetchRamp {
    pub(crate) fn new(max: u16) -> Self {
        Self { max, current: max, suspects: 0, answers_needed: 0, deadline: Instant::now() }
    }

    /// Returns the prefetch of a connection's first consumer, and sets when the prefetch rises.
    /// `answered` is the number of answers so far.
    pub(crate) fn begin(&mut self, answered: u64) -> u16 {
        self.answers_needed = answered + self.suspects;
        self.deadline = Instant::now() + RAISED_AFTER;
        self.current
    }

    /// Resolves when the prefetch can rise. If the prefetch is at its maximum, the future never
    /// resolves.
    pub(crate) async fn due(&self, answered: &watch::Sender<u64>) {
        if self.current == self.max {
            return pending().await;
        }
        let mut answered = answered.subscribe();
        tokio::select! {
            () = async { drop(answered.wait_for(|answered| *answered >= self.answers_needed).await) } => {}
            () = sleep_until(self.deadline) => {}
        }
    }

    /// Doubles the prefetch, up to its maximum. Returns the prefetch for the consumer to add.
    pub(crate) fn raise(&mut self, answered: u64) -> u16 {
        let more = self.current.min(self.max - self.current);
        self.current += more;
        self.begin(answered);
        more
    }

    /// Records that the connection was lost, so that the next connection begins with a prefetch of
    /// 1.
    pub(crate) fn connection_lost(&mut self) {
        (self.suspects, self.current) = (self.current.into(), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lst_2_after_a_loss_messages_come_one_at_a_time_until_the_suspects_are_answered() {
        let answered = watch::Sender::new(5);
        let is_due = async |ramp: &PrefetchRamp| {
            tokio::time::timeout(RAISED_AFTER / 2, ramp.due(&answered)).await.is_ok()
        };
        let mut ramp = PrefetchRamp::new(6);
        assert_eq!(ramp.begin(5), 6);
        assert!(!is_due(&ramp).await);
        ramp.connection_lost();
        assert_eq!(ramp.begin(5), 1);
        answered.send_replace(10);
        assert!(!is_due(&ramp).await, "one of the six is left");
        answered.send_replace(11);
        assert!(is_due(&ramp).await);
        let added = [(); 3].map(|()| ramp.raise(11));
        assert_eq!((added, ramp.current), ([1, 2, 2], 6));
        assert!(!is_due(&ramp).await, "at its maximum");
    }

    #[tokio::test(start_paused = true)]
    async fn lst_2_slow_work_after_a_loss_does_not_hold_up_the_queue() {
        let mut ramp = PrefetchRamp::new(100);
        ramp.connection_lost();
        assert_eq!(ramp.begin(0), 1);
        ramp.due(&watch::Sender::new(0)).await;
    }
}
