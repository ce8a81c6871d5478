// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drops each method at each of its await points, through the concrete store and through
//! `SharedStore`.

use retryproof_core::store::{Acquired, FencedWrite, LiveLease, Peeked, SharedStore};

use super::caller::{LONG, MS, StoreCaller, body, granted, is_busy, is_complete};
use crate::doom::{Doomed, doom};
use crate::subject::Subject;

/// The number of await points after which a case gives up. No method has that many await points, so
/// a call that is still pending is stuck.
const MOST: u32 = 1_000;

#[derive(Debug, Clone, Copy)]
enum Form {
    Concrete,
    Shared,
}

/// Drops the call at each of its await points, each time on a fresh identity that `prepare` sets
/// up. Then `check` inspects what is left. Returns as soon as a call ends before its drop.
async fn at_every_await<P, F>(
    s: &Subject,
    prepare: impl Fn(StoreCaller) -> P,
    check: impl Fn(StoreCaller, SharedStore) -> F,
) where
    P: Future<Output = Doomed>,
    F: Future<Output = ()>,
{
    for form in [Form::Concrete, Form::Shared] {
        let mut done = false;
        for times in 0..MOST {
            let caller = s.caller(&s.id(&format!("{form:?} {times}")));
            let call = prepare(caller.clone()).await;
            done = match form {
                Form::Concrete => s.doom(caller.id.clone(), call, times).await,
                Form::Shared => doom(s.store(), &caller.id, &call, times).await,
            };
            check(caller, s.store().clone()).await;
            if done {
                break;
            }
        }
        assert!(done, "the call should end within {MOST} awaits, but did not");
    }
}

/// A dropped acquire leaves at most one lease, which is no longer than requested.
pub async fn acq_11_a_dropped_acquire_leaves_at_most_one_lease(s: &Subject) {
    let short = s.short();
    let prepare = |caller: StoreCaller| async move { Doomed::Acquire(caller.request(short)) };
    at_every_await(s, prepare, |caller, store| async move {
        let next = StoreCaller::new(&store, &caller.id);
        for _ in 0..2_000 {
            match next.acquire(LONG).await {
                Acquired::Granted(_) => {
                    assert_eq!(next.complete(b"next").await, FencedWrite::Applied);
                    return;
                }
                Acquired::Busy(LiveLease { remaining, .. }) => {
                    assert!(
                        remaining <= short,
                        "a dropped acquire left a lease with {remaining:?}, which is longer than \
                         requested"
                    )
                }
                Acquired::Complete(_) => panic!("no caller completed"),
            }
            s.pass(short / 4).await;
            if !s.is_paused() {
                tokio::time::sleep(MS).await;
            }
        }
        panic!("a dropped acquire still blocks its key");
    })
    .await;
}

/// A dropped peek or wait leaves nothing behind.
pub async fn acq_8_a_dropped_look_leaves_nothing(s: &Subject) {
    for changed in [false, true] {
        let prepare = |caller: StoreCaller| async move {
            let token = granted(caller.acquire(LONG).await).token;
            if changed { Doomed::Changed(token, 40 * MS) } else { Doomed::Look }
        };
        at_every_await(s, prepare, |caller, _| async move {
            is_busy(caller.peek().await);
            // Release the key, because the next round uses it again.
            assert_eq!(caller.release().await, FencedWrite::Applied);
        })
        .await;
    }
}

/// A dropped heartbeat may or may not have taken effect. In both cases, the next heartbeat still
/// finds the lease.
pub async fn run_1_a_dropped_beat_may_be_repeated(s: &Subject) {
    let prepare = |caller: StoreCaller| async move {
        granted(caller.acquire(LONG).await);
        Doomed::Extend(caller.owner, LONG)
    };
    at_every_await(s, prepare, |caller, _| async move {
        is_busy(caller.peek().await);
        assert_eq!(caller.extend(LONG).await, FencedWrite::Applied);
        assert_eq!(caller.release().await, FencedWrite::Applied);
    })
    .await;
}

/// A dropped completion may or may not have taken effect, and can be repeated.
pub async fn cmp_3_a_dropped_completion_may_be_repeated(s: &Subject) {
    let prepare = |caller: StoreCaller| async move {
        granted(caller.acquire(LONG).await);
        Doomed::Complete(caller.owner, caller.completion(b"done"))
    };
    at_every_await(s, prepare, |caller, store| async move {
        match caller.peek().await {
            Peeked::Busy(_) => {}
            Peeked::Complete(stored) => assert_eq!(body(&stored), b"done"),
            Peeked::Absent => panic!("a dropped completion removed the record"),
        }
        let again = caller.complete(b"done").await;
        assert!(
            matches!(again, FencedWrite::Applied | FencedWrite::AlreadyApplied),
            "the repeated call should return `Applied` or `AlreadyApplied`, got {again:?}"
        );
        assert_eq!(body(&is_complete(StoreCaller::new(&store, &caller.id).peek().await)), b"done");
    })
    .await;
}

/// A dropped release may or may not have taken effect. The release can be repeated, and never
/// affects the next holder.
pub async fn run_4_a_dropped_release_may_be_repeated(s: &Subject) {
    let prepare = |caller: StoreCaller| async move {
        granted(caller.acquire(LONG).await);
        Doomed::Release(caller.owner)
    };
    at_every_await(s, prepare, |caller, store| async move {
        let again = caller.release().await;
        assert!(
            matches!(again, FencedWrite::Applied | FencedWrite::AlreadyApplied),
            "the repeated call should return `Applied` or `AlreadyApplied`, got {again:?}"
        );
        let next = StoreCaller::new(&store, &caller.id);
        assert!(!granted(next.acquire(LONG).await).took_over);
        if !s.is_paused() {
            tokio::time::sleep(MS).await;
        }
        is_busy(next.peek().await);
        assert_eq!(next.complete(b"next").await, FencedWrite::Applied);
    })
    .await;
}
