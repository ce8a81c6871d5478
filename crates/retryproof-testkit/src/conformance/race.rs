// SPDX-License-Identifier: MIT OR Apache-2.0
//! Concurrent calls give the same answers and the same record as if they had run one after another,
//! in some order.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use retryproof_core::store::{Acquired, FencedWrite, Grant, LiveLease};

use super::caller::{ASLEEP, LONG, StoreCaller, body, granted, is_absent, is_complete};
use crate::subject::Subject;

async fn all<T: Send + 'static>(
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("the call should not panic"));
    }
    answers
}

/// Sends eight acquires and `call` concurrently: first `at` of the acquires, then `call`, then the
/// other acquires. Returns the answer to `call`, the grants, and how many acquires got a result.
async fn beside_takers<T: Send + 'static>(
    s: &Subject,
    id: &retryproof_core::Identity,
    at: usize,
    call: impl Future<Output = T> + Send + 'static,
) -> (T, Vec<Grant>, usize) {
    let before: Vec<_> = (0..at).map(|_| s.caller(id)).collect();
    let after: Vec<_> = (at..8).map(|_| s.caller(id)).collect();
    let acquire = |caller: StoreCaller| async move { caller.acquire(LONG).await };
    let before: Vec<_> = before.into_iter().map(|caller| tokio::spawn(acquire(caller))).collect();
    let call = tokio::spawn(call);
    let after: Vec<_> = after.into_iter().map(|caller| tokio::spawn(acquire(caller))).collect();
    let answer = call.await.expect("the call should not panic");
    let (mut grants, mut results) = (Vec::new(), 0);
    for taker in before.into_iter().chain(after) {
        match taker.await.expect("the competing caller should not panic") {
            Acquired::Granted(grant) => grants.push(grant),
            Acquired::Complete(_) => results += 1,
            Acquired::Busy(_) => {}
        }
    }
    (answer, grants, results)
}

/// Of a hundred callers that acquire a fresh key, one gets a grant. All others see this caller as
/// the holder.
pub async fn acq_1_a_herd_gets_one_grant(s: &Subject) {
    let id = s.id("k");
    let answers = all((0..100).map(|_| {
        let caller = s.caller(&id);
        async move { caller.acquire(LONG).await }
    }))
    .await;
    let (mut grants, mut seen) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Acquired::Granted(grant) => grants.push(grant.token),
            Acquired::Busy(LiveLease { token, .. }) => seen.push(token),
            Acquired::Complete(_) => panic!("no caller completed"),
        }
    }
    assert_eq!(
        (grants.len(), seen.len()),
        (1, 99),
        "one caller should get a grant, and 99 callers should get busy"
    );
    assert!(seen.iter().all(|token| *token == grants[0]));
}

/// Repeated acquires by one owner may overtake each other, but all of them get the same lease.
pub async fn acq_9_acquires_of_one_owner_at_once_get_one_lease(s: &Subject) {
    let holder = s.caller(&s.id("k"));
    let tokens = all((0..10).map(|_| {
        let holder = holder.clone();
        async move { granted(holder.acquire(LONG).await) }
    }))
    .await;
    assert!(
        tokens.iter().all(|grant| grant.token == tokens[0].token && !grant.took_over),
        "all acquires of one owner should get the same grant, and none a takeover: {tokens:?}"
    );
}

/// If an owner completes several times concurrently, one completion takes effect. The others report
/// that the record is already complete.
pub async fn cmp_3_completions_of_one_owner_at_once_count_once(s: &Subject) {
    let holder = s.caller(&s.id("k"));
    granted(holder.acquire(LONG).await);
    let answers = all((0..10).map(|_| {
        let holder = holder.clone();
        async move { holder.complete(b"once").await }
    }))
    .await;
    assert_eq!(
        answers.iter().filter(|answer| **answer == FencedWrite::Applied).count(),
        1,
        "exactly one completion should be applied: {answers:?}"
    );
    assert!(
        !answers.contains(&FencedWrite::NotOwner),
        "no completion of the owner should be refused: {answers:?}"
    );
    assert_eq!(body(&is_complete(holder.peek().await)), b"once");
}

/// A late completion races with takeovers. Either the completion counts and no takeover is granted,
/// or one takeover is granted and the completion is refused.
pub async fn cmp_2_a_late_completion_meets_takeovers(s: &Subject) {
    for round in 0..18 {
        let id = s.id(&format!("k{round}"));
        let holder = s.caller(&id);
        granted(holder.acquire(s.short()).await);
        s.expire(&id, s.short()).await;
        let late = async move { holder.complete(b"late").await };
        match beside_takers(s, &id, round % 9, late).await {
            (FencedWrite::Applied, grants, 8) if grants.is_empty() => {}
            (FencedWrite::NotOwner, grants, 0) if grants.len() == 1 && grants[0].took_over => {}
            other => panic!(
                "either the completion or one takeover should win, got (completion, grants, \
                 replays) = {other:?}"
            ),
        }
    }
}

/// A late heartbeat races with takeovers. Either the heartbeat saves the lease, or one caller takes
/// over and the heartbeat is refused.
pub async fn run_2_a_late_beat_meets_takeovers(s: &Subject) {
    for round in 0..18 {
        let id = s.id(&format!("k{round}"));
        let holder = s.caller(&id);
        granted(holder.acquire(s.short()).await);
        s.expire(&id, s.short()).await;
        let late = async move { holder.extend(LONG).await };
        match beside_takers(s, &id, round % 9, late).await {
            (FencedWrite::Applied, grants, 0) if grants.is_empty() => {}
            (FencedWrite::NotOwner, grants, 0) if grants.len() == 1 && grants[0].took_over => {}
            other => panic!(
                "either the heartbeat or one takeover should win, got (extend, grants, replays) = \
                 {other:?}"
            ),
        }
    }
}

/// A release races with a late acquire of the same owner, as can happen after a caller has given up
/// on its acquire. The release finds no record, or releases the record. It is not refused, because
/// no other owner has the key.
pub async fn run_4_a_release_meets_its_owners_late_acquire(s: &Subject) {
    let id = s.id("k");
    for round in 0..100 {
        let caller = s.caller(&id);
        let (acquired, released) = tokio::join!(caller.acquire(LONG), caller.release());
        granted(acquired);
        assert_ne!(
            released,
            FencedWrite::NotOwner,
            "round {round}: the release should not be refused, because no other owner has the key"
        );
        let again = caller.release().await;
        assert_ne!(again, released, "round {round}: one of the two releases should end the lease");
    }
    is_absent(s.caller(&id).peek().await);
}

/// A late release races with acquires. One acquire is granted. If the release is refused, this
/// grant is a takeover, and otherwise it is not.
pub async fn run_4_a_late_release_meets_acquires(s: &Subject) {
    for round in 0..18 {
        let id = s.id(&format!("k{round}"));
        let holder = s.caller(&id);
        granted(holder.acquire(s.short()).await);
        s.expire(&id, s.short()).await;
        let late = async move { holder.release().await };
        let (answer, grants, _) = beside_takers(s, &id, round % 9, late).await;
        assert_eq!(
            grants.len(),
            1,
            "one acquire should be granted, whether the release was applied or refused; the \
             release got {answer:?}"
        );
        assert_eq!(
            grants[0].took_over,
            answer == FencedWrite::NotOwner,
            "the grant should be a takeover if and only if the release was refused; the release \
             got {answer:?}, and the grants are {grants:?}"
        );
    }
}

/// If callers acquire and release one key concurrently, no two of them hold the key at the same
/// time.
pub async fn acq_2_one_holder_at_a_time(s: &Subject) {
    let id = s.id("k");
    let (inside, entered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    all((0..8).map(|_| {
        let (store, id) = (s.store().clone(), id.clone());
        let (inside, entered) = (Arc::clone(&inside), Arc::clone(&entered));
        async move {
            for _ in 0..25 {
                let caller = StoreCaller::new(&store, &id);
                if let Acquired::Granted(_) = caller.acquire(LONG).await {
                    assert_eq!(
                        inside.fetch_add(1, Ordering::SeqCst),
                        0,
                        "two callers hold the key at the same time"
                    );
                    entered.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(caller.release().await, FencedWrite::Applied);
                }
                tokio::task::yield_now().await;
            }
        }
    }))
    .await;
    assert!(entered.load(Ordering::SeqCst) > 0);
    is_absent(s.caller(&id).peek().await);
}

/// Many callers share a few keys. The work for each key runs once, and every caller of the key
/// reads its result.
pub async fn acq_1_everybody_reads_the_one_result(s: &Subject) {
    let runs = Arc::new(AtomicUsize::new(0));
    let ids: Vec<_> = (0..3).map(|at| s.id(&format!("k{at}"))).collect();
    let read = all((0..24_u32).map(|at| {
        let caller = s.caller(&ids[at as usize % 3]);
        let runs = Arc::clone(&runs);
        async move {
            for _ in 0..10_000 {
                match caller.acquire(LONG).await {
                    Acquired::Granted(_) => {
                        runs.fetch_add(1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        assert_eq!(caller.complete(&at.to_le_bytes()).await, FencedWrite::Applied);
                    }
                    Acquired::Busy(LiveLease { token, .. }) => {
                        caller.wait_for_change(token, ASLEEP).await
                    }
                    Acquired::Complete(stored) => return (caller.id, body(&stored)),
                }
                tokio::task::yield_now().await;
            }
            panic!("no result after 10,000 acquires");
        }
    }))
    .await;
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    for id in &ids {
        let mut results = read.iter().filter(|(of, _)| of == id).map(|(_, result)| result);
        let first = results.next().expect("a caller should have read the result");
        assert!(
            results.all(|result| result == first),
            "callers read different results for one key"
        );
    }
}

/// If many keys are used concurrently, no answer and no value goes to another key, even if the
/// store puts several calls into one batch.
pub async fn cmp_1_many_keys_at_once_keep_their_results(s: &Subject) {
    let callers: Vec<_> = (0..200).map(|at| s.caller(&s.id(&format!("k{at}")))).collect();
    all(callers.iter().cloned().enumerate().map(|(at, caller)| async move {
        let own = format!("value {at}");
        granted(caller.acquire(LONG).await);
        match at % 4 {
            0 => assert_eq!(caller.release().await, FencedWrite::Applied),
            1 => assert_eq!(caller.extend(LONG).await, FencedWrite::Applied),
            2 => assert_eq!(
                StoreCaller::new(&caller.store, &caller.id).complete(b"no").await,
                FencedWrite::NotOwner
            ),
            _ => {}
        }
        let expected = if at % 4 == 0 { FencedWrite::NotOwner } else { FencedWrite::Applied };
        assert_eq!(caller.complete(own.as_bytes()).await, expected, "key {at}");
    }))
    .await;
    for (at, caller) in callers.iter().enumerate() {
        if at % 4 == 0 {
            is_absent(caller.peek().await);
        } else {
            assert_eq!(body(&is_complete(caller.peek().await)), format!("value {at}").as_bytes());
        }
    }
}
