// SPDX-License-Identifier: MIT OR Apache-2.0
//! The worker on the memory store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apalis_worker::BoxError;
use apalis_worker::job::Invoice;
use apalis_worker::mail::Mailer;
use apalis_worker::patience::Patience;
use apalis_worker::worker::{Tally, work};
use retryproof::{
    Acquisition, IdempotencyContext, IdempotencyEngine, MemoryStore, Outcome, Rejected,
};

const PATIENCE: Duration = Duration::from_secs(60);
const TWICE: Patience = Patience { retries: 2, pause: Duration::from_millis(1) };

/// Counts the attempts to send each order's mail. An order's first attempts fail, one for each
/// 1,000 cents.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<HashMap<String, u64>>>);

impl Counted {
    fn tries(&self, order: &str) -> u64 {
        self.0.lock().unwrap().get(order).copied().unwrap_or_default()
    }
}

impl Mailer for Counted {
    async fn send(&self, invoice: &Invoice) -> Result<(), BoxError> {
        assert!(!invoice.message_id.is_empty(), "the run's downstream key");
        let tries = {
            let mut mails = self.0.lock().unwrap();
            let tries = mails.entry(invoice.order.clone()).or_default();
            *tries += 1;
            *tries
        };
        tokio::time::sleep(Duration::from_millis(5)).await;
        if tries <= invoice.cents / 1_000 { Err("the mail server is away".into()) } else { Ok(()) }
    }
}

fn invoice(order: &str, cents: u64) -> Invoice {
    Invoice { order: order.into(), customer: "alice".into(), cents, message_id: String::new() }
}

fn engine() -> IdempotencyEngine {
    IdempotencyEngine::new(MemoryStore::new())
}

async fn worked(engine: &IdempotencyEngine, mailer: &Counted, jobs: Vec<Invoice>) -> Tally {
    let work = work(engine.clone(), mailer.clone(), jobs, TWICE);
    tokio::time::timeout(PATIENCE, work).await.expect("in time").expect("the worker ends well")
}

#[tokio::test]
async fn lst_1_a_job_that_is_delivered_twice_or_again_later_runs_once() {
    let (engine, mailer) = (engine(), Counted::default());
    let jobs: Vec<_> = ["a", "b", "a", "c", "b", "a"].map(|order| invoice(order, 1)).into();
    for _ in 0..2 {
        assert_eq!(worked(&engine, &mailer, jobs.clone()).await, Tally { done: 6, failed: 0 });
        assert_eq!(["a", "b", "c"].map(|order| mailer.tries(order)), [1, 1, 1]);
    }
}

#[tokio::test]
async fn run_4_a_job_that_fails_is_tried_again_until_it_is_done_and_then_no_more() {
    let (engine, mailer) = (engine(), Counted::default());
    let tally = worked(&engine, &mailer, vec![invoice("a", 2_000)]).await;
    assert_eq!((tally, mailer.tries("a")), (Tally { done: 1, failed: 0 }, 3));
    let tally = worked(&engine, &mailer, vec![invoice("a", 2_000)]).await;
    assert_eq!((tally, mailer.tries("a")), (Tally { done: 1, failed: 0 }, 3));
}

#[tokio::test]
async fn run_4_a_job_that_is_given_up_leaves_its_key_unused_for_the_next_delivery() {
    let (engine, mailer) = (engine(), Counted::default());
    let tally = worked(&engine, &mailer, vec![invoice("a", 4_000), invoice("b", 1)]).await;
    assert_eq!((tally, mailer.tries("a")), (Tally { done: 1, failed: 1 }, 3));
    let tally = worked(&engine, &mailer, vec![invoice("a", 4_000)]).await;
    assert_eq!((tally, mailer.tries("a")), (Tally { done: 1, failed: 0 }, 5));
}

#[tokio::test]
async fn id_3_a_job_without_a_usable_key_is_given_up_at_once_and_never_runs() {
    let (engine, mailer) = (engine(), Counted::default());
    let tally =
        worked(&engine, &mailer, vec![invoice("", 1), invoice("a\nb", 1), invoice("a", 1)]).await;
    assert_eq!(tally, Tally { done: 1, failed: 2 });
    assert_eq!(["", "a\nb", "a"].map(|order| mailer.tries(order)), [0, 0, 1]);
}

#[tokio::test]
async fn ann_5_a_job_that_another_worker_is_at_waits_and_is_skipped() {
    let (engine, mailer) = (engine(), Counted::default());
    let ctx = IdempotencyContext::builder("invoices", "a").build().expect("a context");
    let Acquisition::Granted(held) = engine.try_acquire(&ctx).await.expect("the store answers")
    else {
        panic!("the key is unused");
    };
    let other = async {
        // The job with the other key does not wait for the job with the held key.
        while mailer.tries("b") == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(mailer.tries("a"), 0);
        held.release().await.expect("the store answers");
    };
    let jobs = vec![invoice("a", 1), invoice("b", 1)];
    let (tally, ()) = tokio::join!(worked(&engine, &mailer, jobs), other);
    assert_eq!(tally, Tally { done: 2, failed: 0 });
    assert_eq!(mailer.tries("a"), 1);
    // Any other caller with this key gets the result that the worker stored.
    let outcome =
        engine.execute(ctx, || async { Err::<serde_json::Value, _>("it does not run") }).await;
    assert_eq!(outcome.expect("a replay"), Outcome::Replayed(serde_json::json!({ "order": "a" })));
}

#[test]
fn ann_5_patience_heeds_the_word_of_a_refusal() {
    let mut patience = TWICE;
    let in_flight =
        || -> BoxError { Rejected::InFlight { retry_after: Duration::from_secs(7) }.into() };
    for _ in 0..5 {
        assert_eq!(patience.after(&in_flight()), Some(Duration::from_secs(7)), "it is no failure");
    }
    assert_eq!(patience.after(&Rejected::Mismatch.into()), None);
    assert_eq!(patience.after(&Rejected::NotReplayable.into()), None);
    for left in [true, true, false] {
        assert_eq!(patience.after(&"failed".into()).is_some(), left);
    }
}
