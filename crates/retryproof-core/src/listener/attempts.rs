// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`AttemptRules`]: decides what a listener does with a message that is not done.

use std::time::Duration;

use super::{Backoff, Reason, Verdict};

/// Decides when an unfinished message is tried again, and when it becomes a dead letter (LST-2).
#[derive(Debug, Clone, Copy)]
pub struct AttemptRules {
    backoff: Backoff,
    max_attempts: Option<u64>,
    in_flight: Duration,
}

impl AttemptRules {
    /// Creates rules that allow any number of attempts, with the pauses of `backoff` between them.
    #[must_use]
    pub const fn new(backoff: Backoff) -> Self {
        Self { backoff, max_attempts: None, in_flight: Duration::ZERO }
    }

    /// Makes the message a dead letter after this many failed attempts.
    #[must_use]
    pub const fn max_attempts(mut self, attempts: u64) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Sets the minimum pause before a retry while another delivery is in flight. Set this pause in
    /// a listener that runs the handler again itself. Otherwise, a handler that keeps returning
    /// `InFlight` immediately would run in a hot loop.
    #[must_use]
    pub const fn in_flight(mut self, pause: Duration) -> Self {
        self.in_flight = pause;
        self
    }

    /// Returns the pauses between attempts.
    #[must_use]
    pub fn backoff(&self) -> Backoff {
        self.backoff
    }

    /// Applies the rules to a verdict. Delays a nack by at least the pause for its reason. If the
    /// message has no attempts left, turns the nack into a dead letter.
    ///
    /// `failures` counts the failed attempts, and `outages` counts how often in a row the store was
    /// unavailable. Both counts include this verdict. Nothing runs while the store is unavailable,
    /// so an outage does not use up an attempt. A count of outages that is too high only makes the
    /// pause longer.
    pub fn judge(&self, verdict: Verdict, failures: u64, outages: u32) -> Verdict {
        let Verdict::Nack { after, reason } = verdict else { return verdict };
        let pause = match reason {
            Reason::InFlight => self.in_flight,
            Reason::Store => self.backoff.after(outages),
            // Every other nack means that the work ran and no result was recorded, for example
            // because the work failed or the lease was lost.
            _ if self.max_attempts.is_some_and(|max| failures >= max) => return verdict.given_up(),
            _ => self.backoff.after(u32::try_from(failures).unwrap_or(u32::MAX)),
        };
        Verdict::Nack { after: after.max(pause), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn nack(reason: Reason) -> Verdict {
        Verdict::Nack { after: Duration::ZERO, reason }
    }

    fn delayed(seconds: u64, reason: Reason) -> Verdict {
        Verdict::Nack { after: Duration::from_secs(seconds), reason }
    }

    #[test]
    fn lst_2_only_work_that_ran_uses_up_attempts() {
        let rules = AttemptRules::new(Backoff::default()).max_attempts(3).in_flight(SECOND);
        for reason in [Reason::Failed, Reason::Held, Reason::LeaseLost, Reason::NotRecorded] {
            assert_eq!(rules.judge(nack(reason), 2, 0), delayed(2, reason));
            assert_eq!(rules.judge(nack(reason), 3, 0), Verdict::DeadLetter { reason });
        }
        assert_eq!(rules.judge(nack(Reason::Store), 9, 3), delayed(4, Reason::Store));
        assert_eq!(rules.judge(nack(Reason::InFlight), 9, 9), delayed(1, Reason::InFlight));
        let acked = Verdict::Ack { reason: Reason::Replayed };
        assert_eq!(rules.judge(acked, 9, 9), acked);
    }

    #[test]
    fn lst_2_no_pause_is_shorter_than_the_verdict_requires() {
        let rules = AttemptRules::new(Backoff::default());
        let held = delayed(30, Reason::Held);
        assert_eq!(rules.judge(held, u64::MAX, 0), delayed(60, Reason::Held));
        assert_eq!(rules.judge(held, 1, 0), held);
        assert_eq!(rules.judge(nack(Reason::InFlight), 0, 0), nack(Reason::InFlight));
    }
}
