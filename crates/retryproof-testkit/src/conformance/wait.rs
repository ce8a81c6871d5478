// SPDX-License-Identifier: MIT OR Apache-2.0
//! `wait_for_change` returns after every change and loses no wake-up.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use retryproof_core::store::{FencedWrite, LiveLease, Peeked};
use retryproof_core::{FencingToken, Identity};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::caller::{ASLEEP, LONG, MS, StoreCaller, body, completed, granted, is_busy};
use crate::subject::Subject;

/// Waits as an engine does until the record has changed. Each round calls `wait_for_change`, which
/// may return without a change, and then peeks.
async fn until_changed(caller: &StoreCaller, seen: FencingToken) {
    for _ in 0..100_000 {
        caller.wait_for_change(seen, ASLEEP).await;
        match caller.peek().await {
            Peeked::Busy(LiveLease { token, .. }) if token == seen => {
                tokio::task::yield_now().await
            }
            _ => return,
        }
    }
    panic!("`wait_for_change` keeps returning without a change");
}

/// Fails if `waiter` does not end in time, because the wake-up was then lost. A store that only
/// polls passes if it polls as often as its profile says.
async fn woken(s: &Subject, what: &str, waiter: impl Future<Output = ()>) {
    let limit = s.woken_within();
    assert!(
        timeout(limit, waiter).await.is_ok(),
        "the wait ({what}) should end, but did not end within {limit:?}"
    );
}

/// Starts a waiter and lets it fall asleep.
async fn asleep(s: &Subject, caller: StoreCaller, seen: FencingToken) -> JoinHandle<()> {
    let waiter = tokio::spawn(async move { until_changed(&caller, seen).await });
    if s.is_paused() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    } else {
        tokio::time::sleep(20 * MS).await;
    }
    waiter
}

/// Starts 64 waiters that wait until the lease with the token `seen` ends.
fn sixty_four_waiters(s: &Subject, id: &Identity, seen: FencingToken) -> Vec<JoinHandle<()>> {
    let waiter = |_| {
        let caller = s.caller(id);
        tokio::spawn(async move { until_changed(&caller, seen).await })
    };
    (0..64).map(waiter).collect()
}

/// A caller can wait without an end. The wait then ends with the record.
pub async fn acq_4_a_wait_can_be_without_end(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let token = granted(holder.acquire(LONG).await).token;
    let waiter = s.caller(&id);
    let waiter = tokio::spawn(async move { waiter.wait_for_change(token, Duration::MAX).await });
    tokio::time::sleep(20 * MS).await;
    assert_eq!(holder.release().await, FencedWrite::Applied);
    woken(s, "a wait without end", async { waiter.await.expect("no panic") }).await;
}

/// A wait returns immediately if the record is absent, released, expired, taken over or complete.
pub async fn acq_4_changed_returns_at_once_when_there_is_nothing_to_wait_for(s: &Subject) {
    let id = s.id("k");
    let at_once = async |what: &str, seen: FencingToken| {
        let started = Instant::now();
        woken(s, what, s.caller(&id).wait_for_change(seen, ASLEEP)).await;
        let most = if s.is_paused() { 10 * MS } else { s.woken_within() };
        assert!(
            started.elapsed() <= most,
            "the wait ({what}) should return immediately, but took {:?}",
            started.elapsed()
        );
    };
    at_once("absent", FencingToken::new(1)).await;
    let holder = s.caller(&id);
    let seen = granted(holder.acquire(LONG).await).token;
    at_once("a different token", FencingToken::new(seen.get() - 1)).await;
    assert_eq!(holder.release().await, FencedWrite::Applied);
    at_once("released", seen).await;
    let dead = granted(s.caller(&id).acquire(s.short()).await).token;
    s.expire(&id, s.short()).await;
    at_once("expired", dead).await;
    let taker = s.caller(&id);
    let seen = granted(taker.acquire(LONG).await).token;
    at_once("taken over", dead).await;
    assert_eq!(taker.complete(b"done").await, FencedWrite::Applied);
    at_once("complete", seen).await;
}

/// When the holder completes, a waiting duplicate wakes up and can read the result.
pub async fn acq_4_completion_wakes_a_waiter(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let seen = granted(holder.acquire(LONG).await).token;
    let waiter = asleep(s, s.caller(&id), seen).await;
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    woken(s, "completed", async { waiter.await.expect("the waiter should not panic") }).await;
    assert_eq!(body(&completed(s.caller(&id).acquire(LONG).await)), b"done");
}

/// A waiting duplicate can be granted the key as soon as the holder releases it.
pub async fn acq_3_release_wakes_a_waiter(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let seen = granted(holder.acquire(LONG).await).token;
    let waiter = asleep(s, s.caller(&id), seen).await;
    assert_eq!(holder.release().await, FencedWrite::Applied);
    woken(s, "released", async { waiter.await.expect("the waiter should not panic") }).await;
    assert!(!granted(s.caller(&id).acquire(LONG).await).took_over);
}

/// A waiter is woken when another caller takes over from the dead holder.
pub async fn acq_4_a_takeover_wakes_a_waiter(s: &Subject) {
    let id = s.id("k");
    let lease = s.kept(if s.is_exact() { s.short() } else { 100 * MS });
    let seen = granted(s.caller(&id).acquire(lease).await).token;
    let waiter = asleep(s, s.caller(&id), seen).await;
    s.expire(&id, lease).await;
    granted(s.caller(&id).acquire(LONG).await);
    woken(s, "taken over", async { waiter.await.expect("the waiter should not panic") }).await;
}

/// A wake-up reaches every waiter.
pub async fn acq_4_every_waiter_is_woken(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let seen = granted(holder.acquire(LONG).await).token;
    let waiters = sixty_four_waiters(s, &id, seen);
    drop(asleep(s, s.caller(&id), seen).await);
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    woken(s, "64 waiters", async {
        for waiter in waiters {
            waiter.await.expect("the waiter should not panic");
        }
    })
    .await;
}

/// A dropped waiter does not use up another waiter's wake-up.
pub async fn acq_4_a_dropped_waiter_takes_no_wake_up_along(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let seen = granted(holder.acquire(LONG).await).token;
    let dropped = asleep(s, s.caller(&id), seen).await;
    let waiter = asleep(s, s.caller(&id), seen).await;
    dropped.abort();
    assert!(dropped.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    woken(s, "the other waiter", async { waiter.await.expect("the waiter should not panic") })
        .await;
}

/// Heartbeats of the holder and peeks by other callers do not cause a lost wake-up.
pub async fn acq_4_a_wake_up_survives_beats_in_between(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let seen = granted(holder.acquire(LONG).await).token;
    let waiter = asleep(s, s.caller(&id), seen).await;
    for _ in 0..5 {
        assert_eq!(holder.extend(LONG).await, FencedWrite::Applied);
        is_busy(s.caller(&id).peek().await);
        s.pass(10 * MS).await;
    }
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    woken(s, "after beats", async { waiter.await.expect("the waiter should not panic") }).await;
}

/// Polls a future up to `times` times, whether or not it was woken. Other tasks can run between the
/// polls.
pub(super) async fn poll_times<F: Future>(
    mut future: Pin<&mut F>,
    times: u32,
) -> Option<F::Output> {
    for _ in 0..times {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(answer) = polled {
            return Some(answer);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// A change between any two steps of `wait_for_change` (subscribe, read, sleep) is noticed.
pub async fn acq_4_no_wake_up_is_lost_between_look_and_sleep(s: &Subject) {
    for step in 0..8 {
        for release in [false, true] {
            let id = s.id(&format!("k{step}{release}"));
            let holder = s.caller(&id);
            let seen = granted(holder.acquire(LONG).await).token;
            let caller = s.caller(&id);
            let mut waiter = Box::pin(until_changed(&caller, seen));
            if poll_times(waiter.as_mut(), step).await.is_some() {
                continue;
            }
            let ended =
                if release { holder.release().await } else { holder.complete(b"done").await };
            assert_eq!(ended, FencedWrite::Applied);
            woken(s, &format!("a change after {step} polls"), waiter).await;
        }
    }
}

/// No wake-up is lost when threads race.
pub async fn acq_4_no_wake_up_is_lost_in_a_race(s: &Subject) {
    for round in 0..100_u32 {
        let id = s.id(&format!("k{round}"));
        let holder = s.caller(&id);
        let seen = granted(holder.acquire(LONG).await).token;
        let caller = s.caller(&id);
        let waiter = tokio::spawn(async move { until_changed(&caller, seen).await });
        let ending = tokio::spawn(async move {
            for _ in 0..round % 7 {
                tokio::task::yield_now().await;
            }
            if round % 2 == 0 { holder.complete(b"done").await } else { holder.release().await }
        });
        assert_eq!(ending.await.expect("the holder should not panic"), FencedWrite::Applied);
        woken(s, &format!("round {round}"), async {
            waiter.await.expect("the waiter should not panic")
        })
        .await;
    }
}

/// A waiter with another handle on the same data is woken too.
pub async fn acq_4_a_waiter_on_another_handle_is_woken(s: &Subject) {
    let other =
        s.another().await.expect("the store under test should offer a second handle on its data");
    for release in [false, true] {
        let id = s.id(&format!("k{release}"));
        let holder = s.caller(&id);
        let seen = granted(holder.acquire(LONG).await).token;
        let waiter = asleep(s, s.caller(&id).on(&other), seen).await;
        let ended = if release { holder.release().await } else { holder.complete(b"done").await };
        assert_eq!(ended, FencedWrite::Applied);
        woken(s, "on another handle", async { waiter.await.expect("the waiter should not panic") })
            .await;
    }
}

/// A change wakes the waiters of the same handle at once, before they would read the record again.
/// A store that only polls fails this case, but passes all others. The case passes if half of the
/// waiters wake in time: a busy machine can delay some wake-ups, and chance can make some polls
/// come in time.
pub async fn acq_4_a_change_wakes_a_waiter_before_its_next_read(s: &Subject) {
    const ROUNDS: u32 = 16;
    const AT_ONCE: Duration = Duration::from_millis(10);
    let mut at_once = 0;
    for round in 0..ROUNDS {
        let id = s.id(&format!("k{round}"));
        let (holder, caller) = (s.caller(&id), s.caller(&id));
        let seen = granted(holder.acquire(LONG).await).token;
        let waiter = tokio::spawn(async move {
            for _ in 0..100_000 {
                caller.wait_for_change(seen, ASLEEP).await;
                let ended = Instant::now();
                match caller.peek().await {
                    Peeked::Busy(LiveLease { token, .. }) if token == seen => {
                        tokio::task::yield_now().await
                    }
                    _ => return ended,
                }
            }
            panic!("`wait_for_change` keeps returning without a change");
        });
        tokio::task::yield_now().await;
        // After 100 ms, the pauses of a waiter that polls have reached their maximum.
        tokio::time::sleep((100 + 7 * round) * MS).await;
        assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
        let completed = Instant::now();
        let Ok(ended) = timeout(s.woken_within(), waiter).await else { continue };
        let late = ended.expect("the waiter should not panic").saturating_duration_since(completed);
        at_once += u32::from(late <= AT_ONCE);
    }
    assert!(
        2 * at_once >= ROUNDS,
        "of {ROUNDS} waiters, only {at_once} were woken within {AT_ONCE:?} after the completion"
    );
}

/// A wait ends at its limit if nothing happens. A wait with a limit of zero does not sleep.
pub async fn acq_6_changed_ends_by_its_bound(s: &Subject) {
    let id = s.id("k");
    let seen = granted(s.caller(&id).acquire(LONG).await).token;
    for at_most in [Duration::ZERO, MS, 100 * MS] {
        let started = Instant::now();
        let ended =
            timeout(at_most + s.woken_within(), s.caller(&id).wait_for_change(seen, at_most)).await;
        assert!(ended.is_ok(), "a wait with the limit {at_most:?} did not end in time");
        if s.is_paused() {
            assert!(
                started.elapsed() <= at_most + 10 * MS,
                "the wait took {:?}, but its limit is {at_most:?}",
                started.elapsed()
            );
        }
    }
}

/// While the holder works, `wait_for_change` sleeps. The call is allowed to return without a
/// change, but not in a hot loop.
pub async fn acq_4_changed_sleeps_while_the_holder_is_at_work(s: &Subject) {
    let id = s.id("k");
    let seen = granted(s.caller(&id).acquire(LONG).await).token;
    let caller = s.caller(&id);
    let started = Instant::now();
    let mut calls = 0;
    while started.elapsed() < 200 * MS {
        caller.wait_for_change(seen, 50 * MS).await;
        calls += 1;
        assert!(
            calls < 1_000,
            "{calls} calls returned without a change within {:?}",
            started.elapsed()
        );
    }
}

/// A sleeping waiter holds no lock and no connection that others need.
pub async fn acq_5_sleeping_waiters_hold_nothing_up(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id);
    let seen = granted(holder.acquire(LONG).await).token;
    let mut waiters = sixty_four_waiters(s, &id, seen);
    waiters.push(asleep(s, s.caller(&id), seen).await);
    let other = s.caller(&s.id("other"));
    let work = async {
        granted(other.acquire(LONG).await);
        assert_eq!(other.complete(b"other").await, FencedWrite::Applied);
        assert_eq!(holder.extend(LONG).await, FencedWrite::Applied);
        assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    };
    woken(s, "calls while 65 waiters are waiting", work).await;
    for waiter in waiters {
        woken(s, "a waiter", async { waiter.await.expect("the waiter should not panic") }).await;
    }
}
