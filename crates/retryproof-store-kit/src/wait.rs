// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`wait_for_change`] reads and sleeps until a record changes; [`jitter`] varies a pause.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use retryproof_core::Backoff;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Returns the end of a wait of `at_most` from now. A wait that is too long for an [`Instant`] ends
/// in 30 years.
#[must_use]
pub fn wait_end(at_most: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    Instant::now() + at_most.min(LONGEST)
}

/// Waits until `woken` is notified, the lease that the caller saw is over, or `until` is reached
/// (ACQ-4).
///
/// The function subscribes, then reads, then sleeps, so it misses no change between the read and
/// the sleep.
///
/// - `until` is the end of the wait ([`wait_end`]). If no time is left, the record is read once.
/// - `poll` returns the pauses between reads. If the pauses change, for example because the server
///   no longer sends notifications, the waiter starts again at the shortest pause.
/// - `remaining_lease` reads the record and returns the time left in the lease, or `None` to end
///   the wait. The next read happens at the latest when that time has passed. Return
///   [`Duration::MAX`] to read only after the pauses of `poll`.
///
/// ```
/// # use std::time::Duration;
/// # use retryproof_core::{Backoff, Error, Identity};
/// # use retryproof_store_kit::{WaiterRegistry, wait_end, wait_for_change};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let registry = WaiterRegistry::new();
/// let poll = Backoff::new(Duration::from_millis(2), Duration::from_millis(50));
///
/// let subscription = registry.subscribe(Identity::of("payments", "order-17")?);
/// let until = wait_end(Duration::from_secs(5));
/// let mut reads = 0;
/// let remaining_lease = || {
///     reads += 1; // A store would run a statement here. The third read finds no lease.
///     std::future::ready(Ok::<_, Error>((reads < 3).then_some(Duration::from_secs(30))))
/// };
/// wait_for_change(subscription.woken(), until, || poll, remaining_lease).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The first error of `remaining_lease`.
///
/// # Cancel safety
/// Dropping the future ends the wait and has no other effect.
pub async fn wait_for_change<F, E>(
    woken: &Notify,
    until: Instant,
    poll: impl Fn() -> Backoff,
    mut remaining_lease: impl FnMut() -> F,
) -> Result<(), E>
where
    F: Future<Output = Result<Option<Duration>, E>>,
{
    let mut woken = pin!(woken.notified());
    woken.as_mut().enable();
    let (mut pauses, mut reads) = (poll(), 0);
    while let Some(left) = remaining_lease().await? {
        if poll() != pauses {
            (pauses, reads) = (poll(), 0);
        }
        reads += 1;
        let now = Instant::now();
        // The sleep never outlasts the lease, because the waiter can take over when the lease ends
        // (ACQ-2).
        let pause = jitter(pauses.after(reads)).min(left);
        let next = now.checked_add(pause).map_or(until, |next| next.min(until));
        if next <= now || timeout_at(next, woken.as_mut()).await.is_ok() || next == until {
            break;
        }
    }
    Ok(())
}

/// Returns a duration within 20 % of `pause`. Callers that start to pause together therefore do not
/// retry together.
#[must_use]
pub fn jitter(pause: Duration) -> Duration {
    static STEPS: AtomicU32 = AtomicU32::new(0);
    // A Weyl sequence is evenly spread and needs no source of random numbers.
    let step = STEPS.fetch_add(0x9e37_79b9, Ordering::Relaxed);
    pause.saturating_mul(80 + step.rotate_left(16) % 41) / 100
}

/// Returns the longest pause between two reads of a waiter that polls with `poll`, including
/// [`jitter`]. It is the `max_poll` of a store's profile.
#[must_use]
pub fn max_pause(poll: Backoff) -> Duration {
    poll.after(u32::MAX).saturating_mul(120) / 100
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use super::*;

    const POLL: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(40));

    /// Returns the milliseconds between the reads of a wait that ends at its time limit. `poll`
    /// receives the number of reads so far.
    async fn rhythm(at_most: u64, poll: impl Fn(usize) -> Backoff, left: u64) -> Vec<u128> {
        let start = Instant::now();
        let reads = RefCell::new(Vec::new());
        let read = || async {
            reads.borrow_mut().push(start.elapsed().as_millis());
            Ok::<_, Infallible>(Some(Duration::from_millis(left)))
        };
        let poll = || poll(reads.borrow().len());
        let until = start + Duration::from_millis(at_most);
        let Ok(()) = wait_for_change(&Notify::new(), until, poll, read).await;
        assert_eq!(start.elapsed().as_millis(), u128::from(at_most));
        reads.take().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn is_near(pauses: &[u128], expected: &[u128]) -> bool {
        let near = |(pause, around): (&u128, &u128)| pause.abs_diff(*around) <= around / 5 + 1;
        pauses.len() == expected.len() && pauses.iter().zip(expected).all(near)
    }

    #[tokio::test(start_paused = true)]
    async fn acq_4_pauses_double_up_to_their_limit() {
        let pauses = rhythm(150, |_| POLL, u64::MAX).await;
        assert!(is_near(&pauses[..4], &[10, 20, 40, 40]), "{pauses:?}");
        // If `poll` returns a different `Backoff`, the waiter starts again with the first pause of
        // that `Backoff`.
        let long = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let poll = |reads| if reads > 2 { long } else { POLL };
        let pauses = rhythm(500, poll, u64::MAX).await;
        assert!(is_near(&pauses[..4], &[10, 20, 100, 200]), "{pauses:?}");
        // The lease ends before the pause does, so the waiter reads the record when the lease ends.
        let pauses = rhythm(30, |_| long, 5).await;
        assert!(pauses.len() >= 4 && pauses.iter().all(|&pause| pause <= 6), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn acq_4_a_wait_ends_by_a_notification_a_lost_lease_or_an_error() {
        let notify = Notify::new();
        let until = Instant::now() + Duration::from_secs(60);
        // This notification arrives after the read and before the sleep.
        let read = || async {
            notify.notify_waiters();
            Ok::<_, ()>(Some(Duration::MAX))
        };
        assert_eq!(wait_for_change(&notify, until, || POLL, read).await, Ok(()));
        let read = || async { Ok::<_, ()>(None) };
        assert_eq!(wait_for_change(&notify, until, || POLL, read).await, Ok(()));
        let read = || async { Err(7) };
        assert_eq!(wait_for_change(&notify, until, || POLL, read).await, Err(7));
        assert_eq!(until - Instant::now(), Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn acq_4_without_time_a_wait_reads_once() {
        assert_eq!(rhythm(0, |_| POLL, u64::MAX).await, [0; 0]);
    }

    #[test]
    fn jitter_spreads_over_a_fifth_to_either_side() {
        let pause = Duration::from_millis(100);
        let pauses: Vec<_> = (0..1_000).map(|_| jitter(pause)).collect();
        let (least, most) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
        assert_eq!((least.as_millis(), most.as_millis()), (80, 120));
    }

    #[tokio::test(start_paused = true)]
    async fn acq_4_a_pause_without_end_lasts_until_the_wait_ends() {
        let endless = Backoff::new(Duration::MAX, Duration::MAX);
        let until = Instant::now() + Duration::from_secs(1);
        let read = || async { Ok::<_, Infallible>(Some(Duration::MAX)) };
        let Ok(()) = wait_for_change(&Notify::new(), until, || endless, read).await;
        assert_eq!(Instant::now(), until);
    }
}
