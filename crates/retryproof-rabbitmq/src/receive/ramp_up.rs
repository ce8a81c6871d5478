// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Window`]: how many messages a connection is handed, after one before it was lost.
//!
//! A message that the driver cannot read ends the connection, and the broker counts that against
//! all that was handed over with it. So after a loss they come one at a time, until as many are
//! answered as might have been the cause; then twice as many, and so on.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A message whose work takes longer was read, at any rate: it holds up the others no more than
/// this.
const WIDENS_AFTER: Duration = Duration::from_secs(10);

pub(crate) struct Window {
    most: u16,
    now: u16,
    /// How many were handed over with the one that broke the connection, if one did.
    suspects: u64,
    /// Answers, counted from the start of the consumer, after which it is opened further; or this
    /// instant.
    enough: u64,
    late: Instant,
}

impl Window {
    pub(crate) fn new(most: u16) -> Self {
        Self { most, now: most, suspects: 0, enough: 0, late: Instant::now() }
    }

    /// The prefetch of the first consumer, which begins when so many messages are answered.
    pub(crate) fn begin(&mut self, answered: u64) -> u16 {
        self.enough = answered + self.suspects;
        self.late = Instant::now() + WIDENS_AFTER;
        self.now
    }

    /// Resolves when it is time for more; never while it is open as far as it goes.
    pub(crate) async fn due(&self, answered: &watch::Sender<u64>) {
        if self.now == self.most {
            return pending().await;
        }
        let mut answered = answered.subscribe();
        tokio::select! {
            () = async { drop(answered.wait_for(|answered| *answered >= self.enough).await) } => {}
            () = sleep_until(self.late) => {}
        }
    }

    /// Opens it up to twice as far; gives the prefetch of the consumer that is added.
    pub(crate) fn widen(&mut self, answered: u64) -> u16 {
        let more = self.now.min(self.most - self.now);
        self.now += more;
        self.begin(answered);
        more
    }

    /// The connection is lost.
    pub(crate) fn lost(&mut self) {
        (self.suspects, self.now) = (self.now.into(), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lst_2_after_a_loss_messages_come_one_at_a_time_until_the_suspects_are_answered() {
        let answered = watch::Sender::new(5);
        let is_due = async |window: &Window| {
            tokio::time::timeout(WIDENS_AFTER / 2, window.due(&answered)).await.is_ok()
        };
        let mut window = Window::new(6);
        assert_eq!(window.begin(5), 6);
        assert!(!is_due(&window).await);
        window.lost();
        assert_eq!(window.begin(5), 1);
        answered.send_replace(10);
        assert!(!is_due(&window).await, "one of the six is left");
        answered.send_replace(11);
        assert!(is_due(&window).await);
        let added = [(); 3].map(|()| window.widen(11));
        assert_eq!((added, window.now), ([1, 2, 2], 6));
        assert!(!is_due(&window).await, "open as far as it goes");
    }

    #[tokio::test(start_paused = true)]
    async fn lst_2_slow_work_after_a_loss_does_not_hold_up_the_queue() {
        let mut window = Window::new(100);
        window.lost();
        assert_eq!(window.begin(0), 1);
        window.due(&watch::Sender::new(0)).await;
    }
}
