// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PrefetchRamp`]: decides how many messages a connection prefetches after the previous
//! connection was lost.
//!
//! A message that the driver cannot decode ends the connection. The broker then counts a delivery
//! of every message that was prefetched over the connection. After a loss, the prefetch therefore
//! starts at one message. The prefetch doubles each time the listener has answered as many messages
//! as were prefetched before the loss, or `RAISED_AFTER` has passed.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How long the prefetch waits for enough answers before it rises anyway. The driver has decoded
/// every message that is still being handled, so none of these messages broke the connection.
const RAISED_AFTER: Duration = Duration::from_secs(10);

pub(crate) struct PrefetchRamp {
    max: u16,
    current: u16,
    /// The prefetch when the connection was lost. One of the prefetched messages may have broken
    /// the connection.
    suspects: u64,
    /// How many answers the listener must have sent in total before the prefetch rises. At the
    /// deadline, the prefetch rises even with fewer answers.
    answers_needed: u64,
    deadline: Instant,
}

impl PrefetchRamp {
    pub(crate) fn new(max: u16) -> Self {
        Self { max, current: max, suspects: 0, answers_needed: 0, deadline: Instant::now() }
    }

    /// Returns the prefetch of a connection's first consumer, and sets when the prefetch can rise.
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

    /// Doubles the prefetch, up to its maximum. Returns the prefetch of the additional consumer.
    pub(crate) fn raise(&mut self, answered: u64) -> u16 {
        let more = self.current.min(self.max - self.current);
        self.current += more;
        self.begin(answered);
        more
    }

    /// Records a lost connection. The next connection then begins with a prefetch of 1.
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
        assert!(!is_due(&ramp).await, "one of the six messages is not answered yet");
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
