// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store that becomes unavailable while an action runs. If the outage lasts 0.4 times as long as
//! a lease, nothing is lost. If it lasts twice as long as a lease, the action is notified that its
//! lease is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::observe::Loss;
use retryproof_core::{ErrorKind, ExecuteError, Outcome, Recorded};
use retryproof_testkit::Outage;
use tokio::time::{Instant, sleep, timeout};

use super::{Does, LEASE, Lab, MS, NOW, OPERATION, ctx};

const MODES: [Outage; 3] = [Outage::Refuse, Outage::Swallow, Outage::Stall];

#[tokio::test(start_paused = true)]
async fn run_1_an_outage_of_four_tenths_of_a_lease_loses_nothing_whenever_it_begins() {
    for mode in MODES {
        // Let the outage begin at 81 different moments within the length of two leases after the
        // grant, so that it coincides with every phase of the first beats and of later beats.
        for phase in 0..=80 {
            let begins = LEASE * phase / 40;
            let what = format!("{mode:?} from {begins:?} on");
            let lab = Lab::new();
            let holder = lab.start(ctx("k", LEASE), Does::Succeeds(5 * LEASE));
            sleep(MS).await;
            let waiter = lab.start(ctx("k", 20 * LEASE), NOW);
            // Let the waiter begin its wait before the outage begins.
            sleep(MS).await;
            sleep(begins).await;
            lab.faults.begin_outage(mode);
            sleep(LEASE * 4 / 10).await;
            lab.faults.end_outage();
            let (holder, waiter) = (holder.await.unwrap(), waiter.await.unwrap());
            assert!(
                holder.is_executed() && holder.recorded() == Some(Recorded::Yes),
                "{what}: {holder:?}"
            );
            // A waiter whose acquire falls into the outage may fail because the store is
            // unavailable (ACQ-9); its action never runs.
            let away = matches!(&waiter.result, Err(ExecuteError::Store(e)) if e.kind() == ErrorKind::Unavailable);
            assert!(waiter.is_replayed() || away, "{what}: {waiter:?}");
            assert!(lab.call(ctx("k", LEASE), NOW).await.is_replayed(), "{what}");
            let counts = lab.counters.read();
            assert_eq!((lab.runs(), counts.taken_over, counts.loss_noticed), (1, 0, 0), "{what}");
            lab.is_at_rest().await;
        }
    }
}

/// The loss that an action noticed, and when.
#[derive(Debug, Default)]
struct Seen(Mutex<Option<(Loss, Instant)>>);

/// An action that takes five times as long as its lease. It records the loss of its lease, and
/// continues.
async fn stubborn(
    lab: &Lab,
    seen: Arc<Seen>,
    fenced: Arc<AtomicU32>,
) -> Result<retryproof_core::Report<u32>, ExecuteError<&'static str>> {
    let runs = Arc::clone(&lab.runs);
    lab.engine
        .call(ctx("k", 20 * LEASE))
        .on_fenced(move |value: u32| fenced.store(value, Ordering::SeqCst))
        .report(|lease| async move {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            let work = sleep(5 * LEASE);
            tokio::pin!(work);
            tokio::select! {
                () = &mut work => {}
                loss = lease.lost() => {
                    *seen.0.lock() = Some((loss, Instant::now()));
                    assert!(!lease.believed_held() && lease.remaining().is_zero());
                    work.await;
                }
            }
            Ok(run)
        })
        .await
}

#[tokio::test(start_paused = true)]
async fn run_2_cmp_2_after_two_leases_of_outage_the_action_was_told_and_its_late_completion_counts()
{
    for mode in MODES {
        let lab = Lab::new();
        let (seen, fenced) = (Arc::<Seen>::default(), Arc::<AtomicU32>::default());
        let away = async {
            sleep(LEASE).await;
            lab.faults.begin_outage(mode);
            sleep(2 * LEASE).await;
            lab.faults.end_outage();
        };
        let began = Instant::now();
        let (report, ()) =
            tokio::join!(stubborn(&lab, Arc::clone(&seen), Arc::clone(&fenced)), away);
        let report = report.unwrap();
        let (loss, at) = seen.0.lock().expect("the action should be notified");
        assert_eq!(loss, Loss::Expired, "{mode:?}");
        // The last beat before the outage was sent when half or all of the lease had passed since
        // the grant. The lease ends one full length after that beat.
        let told = at - began;
        assert!(told >= LEASE * 3 / 2 && told <= 2 * LEASE + MS, "{mode:?}: told after {told:?}");
        // No other owner took over, so the recorded owner may still complete (CMP-2).
        assert_eq!(report.outcome, Outcome::Executed(1), "{mode:?}");
        assert_eq!((report.recorded, report.fenced), (Recorded::Yes, false), "{mode:?}");
        assert_eq!(fenced.load(Ordering::SeqCst), 0);
        assert_eq!(lab.counters.read().loss_noticed, 1);
        assert!(lab.call(ctx("k", LEASE), NOW).await.is_replayed());
        lab.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn run_2_cmp_2_a_takeover_during_the_outage_fences_the_completion() {
    for mode in MODES {
        let lab = Lab::new();
        let (seen, fenced) = (Arc::<Seen>::default(), Arc::<AtomicU32>::default());
        let other = lab.elsewhere();
        let away = async {
            sleep(LEASE).await;
            lab.faults.begin_outage(mode);
            // Another process, whose store is available, takes over when the lease is over.
            let taken = other
                .execute(ctx("k", 10 * LEASE), || async { Ok::<_, &str>(77_u32) })
                .await
                .unwrap();
            assert_eq!(taken, Outcome::Executed(77), "{mode:?}");
            sleep(LEASE / 2).await;
            lab.faults.end_outage();
        };
        let (report, ()) =
            tokio::join!(stubborn(&lab, Arc::clone(&seen), Arc::clone(&fenced)), away);
        let report = report.unwrap();
        assert!(seen.0.lock().is_some(), "{mode:?}: the action should be notified (S19)");
        assert_eq!(
            report.outcome,
            Outcome::Replayed(77),
            "{mode:?}: all callers get the same answer"
        );
        assert!(report.fenced, "{mode:?}");
        assert_eq!(fenced.load(Ordering::SeqCst), 1, "{mode:?}: the hook gets the refused value");
        assert_eq!(lab.completions(), 0, "{mode:?}: and no store has it");
        assert_eq!(lab.counters.read().lost, 1);
        lab.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_2_a_fenced_caller_waits_for_the_taker_within_one_fresh_wait() {
    for (taker_works, replayed) in [(2 * LEASE, true), (30 * LEASE, false)] {
        let lab = Lab::new();
        let other = lab.elsewhere();
        let began = Instant::now();
        let holder = lab.start(ctx("k", 10 * LEASE), Does::Succeeds(3 * LEASE));
        sleep(MS).await;
        lab.faults.begin_outage(Outage::Refuse);
        let taker = tokio::spawn(async move {
            let work = || async move {
                sleep(taker_works).await;
                Ok::<_, &str>(77_u32)
            };
            other.execute(ctx("k", 10 * LEASE), work).await.unwrap()
        });
        sleep(2 * LEASE).await;
        lab.faults.end_outage();
        let ended = holder.await.unwrap();
        ended.is_true("fenced");
        let report = ended.result.unwrap();
        assert!(report.fenced);
        if replayed {
            assert_eq!(report.outcome, Outcome::Replayed(77));
        } else {
            assert!(matches!(report.outcome, Outcome::InFlight(_)), "{report:?}");
            let took = began.elapsed();
            assert!(
                took >= 13 * LEASE && took <= 13 * LEASE + 2 * OPERATION,
                "one fresh wait: {took:?}"
            );
        }
        assert_eq!(taker.await.unwrap(), Outcome::Executed(77));
    }
}

#[tokio::test(start_paused = true)]
async fn sto_5_a_failing_store_is_probed_by_one_call_while_the_others_fail_fast() {
    let lab = Lab::new();
    lab.faults.begin_outage(Outage::Swallow);
    for at in 0..5 {
        let ended = lab.call(ctx(&format!("first {at}"), LEASE), NOW).await;
        assert!(ended.took >= OPERATION && ended.took <= OPERATION + 2 * MS, "{:?}", ended.took);
    }
    let calls = lab.faults.calls();
    let began = Instant::now();
    let tasks: Vec<_> = (0..50).map(|at| lab.start(ctx(&format!("k{at}"), LEASE), NOW)).collect();
    let (mut fast, mut slow) = (0, 0);
    for task in tasks {
        let ended = task.await.unwrap();
        let Err(ExecuteError::Store(error)) = &ended.result else { panic!("{ended:?}") };
        assert_eq!((error.kind(), ended.runs), (ErrorKind::Unavailable, 0));
        if ended.took.is_zero() { fast += 1 } else { slow += 1 }
    }
    assert_eq!((fast, slow), (49, 1), "one probes");
    assert!(began.elapsed() <= OPERATION + 2 * MS);
    assert!(lab.faults.calls() - calls <= 2, "a probe and its repetition");
    lab.faults.end_outage();
    let back = lab.call(ctx("back", LEASE), NOW).await;
    assert!(back.is_executed(), "it recovers without a restart: {back:?}");
    let again = lab.call(ctx("back", LEASE), NOW).await;
    assert!(again.is_replayed() && again.took.is_zero());
}

#[tokio::test(start_paused = true)]
async fn sto_5_a_probe_that_nobody_polls_is_followed_by_another() {
    let lab = Lab::new();
    lab.faults.begin_outage(Outage::Swallow);
    for at in 0..5 {
        assert!(lab.call(ctx(&format!("first {at}"), LEASE), NOW).await.result.is_err());
    }
    // After its first poll, this probe is not polled again, as in a `buffer_unordered` whose
    // consumer is busy.
    let parked_ctx = ctx("parked", LEASE);
    let mut parked = Box::pin(lab.engine.try_acquire(&parked_ctx));
    assert!(timeout(Duration::ZERO, &mut parked).await.is_err(), "it probes");
    lab.faults.end_outage();
    let early = lab.call(ctx("early", LEASE), NOW).await;
    assert!(early.result.is_err() && early.took.is_zero(), "one call at a time: {early:?}");
    sleep(OPERATION).await;
    lab.faults.begin_outage(Outage::Swallow);
    let second = lab.start(ctx("second", LEASE), NOW);
    sleep(MS).await;
    // The first probe ends only here. It must not free the place of the second probe.
    drop(parked);
    let third = lab.call(ctx("third", LEASE), NOW).await;
    assert!(third.result.is_err() && third.took.is_zero(), "one call at a time: {third:?}");
    lab.faults.end_outage();
    let second = second.await.unwrap();
    assert!(!second.took.is_zero(), "it probed: {second:?}");
    assert!(lab.call(ctx("back", LEASE), NOW).await.is_executed(), "it recovers");
}

#[tokio::test(start_paused = true)]
async fn sto_5_holders_are_always_tried_while_new_calls_fail_fast() {
    let lab = Lab::new();
    let holder = lab.start(ctx("k", LEASE), Does::Succeeds(LEASE * 9 / 10));
    sleep(LEASE * 6 / 10).await;
    lab.faults.begin_outage(Outage::Refuse);
    for at in 0..10 {
        assert!(lab.call(ctx(&format!("new {at}"), Duration::ZERO), NOW).await.result.is_err());
    }
    sleep(LEASE / 10).await;
    lab.faults.end_outage();
    // The circuit is open for new calls until one of them probes, but the completion is sent
    // nevertheless.
    let ended = holder.await.unwrap();
    assert!(ended.is_executed() && ended.recorded() == Some(Recorded::Yes), "{ended:?}");
    assert!(ended.took < LEASE, "{:?}", ended.took);
}

#[tokio::test(start_paused = true)]
async fn acq_6_waiters_end_in_time_when_the_store_goes_away_for_good() {
    for mode in [Outage::Refuse, Outage::Swallow] {
        let lab = Lab::new();
        let held = lab.engine.try_acquire(&ctx("k", LEASE)).await.unwrap();
        let waits = [LEASE / 10, LEASE, 3 * LEASE];
        let waiters: Vec<_> =
            waits.iter().map(|wait| (wait, lab.start(ctx("k", *wait), NOW))).collect();
        sleep(MS).await;
        lab.faults.begin_outage(mode);
        for (wait, waiter) in waiters {
            let ended = waiter.await.unwrap();
            assert_eq!(ended.runs, 0);
            assert!(!ended.is_executed() && !ended.is_replayed(), "{mode:?}: {ended:?}");
            assert!(
                ended.took <= *wait + OPERATION + 2 * MS,
                "{mode:?}, {wait:?}: {:?}",
                ended.took
            );
        }
        assert_eq!(lab.engine.activity().waiting, 0);
        drop(held);
    }
}
