// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plays one payment as a client: sends it once or twice, perhaps drops a connection, and retries
//! until it gets an answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::time::{Instant, sleep};

use crate::client::{self, Answer, Delivery};
use crate::ledger::Order;

/// How long one payment is retried before it counts as unanswered.
const GIVE_UP: Duration = Duration::from_secs(60);

/// Counters for the progress line and the account.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: AtomicUsize,
    pub(crate) replayed: AtomicUsize,
    pub(crate) refused: AtomicUsize,
    pub(crate) in_flight: AtomicUsize,
    pub(crate) unavailable: AtomicUsize,
    /// Connections that the client cut on purpose.
    pub(crate) cut: AtomicUsize,
    /// Connections that broke or were refused because the server was killed.
    pub(crate) broken: AtomicUsize,
    pub(crate) settled: AtomicUsize,
    pub(crate) kills: AtomicUsize,
    /// Requests that are waiting for their answer.
    pub(crate) open: AtomicUsize,
}

/// The result of one payment.
#[derive(Debug)]
pub(crate) struct Payment {
    pub(crate) reference: String,
    /// All final answers to this payment. Answers to the changed amount are not included.
    pub(crate) answers: Vec<Answer>,
    /// Whether a request with the same key and a different amount was not refused.
    pub(crate) let_through: bool,
}

/// How a client behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Once,
    /// Sends the payment twice at the same time.
    Twice,
    /// Retries after an answer.
    Again,
    /// Drops the first connection, then retries.
    Cut,
    /// After the answer, sends a different amount with the same key.
    Changed,
}

pub(crate) async fn play(server: SocketAddr, run: &str, number: usize, tally: &Tally) -> Payment {
    let mut dice = Dice::new(number as u64 + 1);
    let manner = match dice.below(10) {
        0 | 1 => Manner::Once,
        2 | 3 => Manner::Twice,
        4 | 5 => Manner::Again,
        6..=8 => Manner::Cut,
        _ => Manner::Changed,
    };
    let reference = format!("{}{number}", prefix(run));
    let order = Order {
        account: format!("customer {}", number % 97),
        amount: 100 + number as i64,
        reference,
    };
    let key = format!("storm-{run}-{number}");
    let mut answers = Vec::new();
    let mut let_through = false;
    if manner == Manner::Cut {
        let after = Duration::from_millis(1 + dice.below(45));
        match ask(server, &key, &order, Some(after), tally).await {
            Some(delivery) if is_final(&delivery) => answers.push(delivery.answer),
            Some(_) => {}
            None => {
                tally.cut.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    if manner == Manner::Twice {
        let (one, two) = tokio::join!(
            until_answered(server, &key, &order, tally),
            until_answered(server, &key, &order, tally)
        );
        answers.extend(one);
        answers.extend(two);
    } else {
        answers.extend(until_answered(server, &key, &order, tally).await);
    }
    if manner == Manner::Again {
        answers.extend(until_answered(server, &key, &order, tally).await);
    }
    if manner == Manner::Changed {
        let changed = Order { amount: order.amount + 1, ..order.clone() };
        let answer = until_answered(server, &key, &changed, tally).await;
        let_through = answer.is_none_or(|answer| answer.status != StatusCode::UNPROCESSABLE_ENTITY);
    }
    Payment { reference: order.reference, answers, let_through }
}

/// Returns the prefix of all references of one storm.
pub(crate) fn prefix(run: &str) -> String {
    format!("order {run}-")
}

/// Retries like a good client, with the same key and the same bytes, and waits as long as
/// `Retry-After` says.
async fn until_answered(
    server: SocketAddr,
    key: &str,
    order: &Order,
    tally: &Tally,
) -> Option<Answer> {
    let begin = Instant::now();
    let mut rest = Duration::from_millis(20);
    while begin.elapsed() < GIVE_UP {
        match ask(server, key, order, None, tally).await {
            Some(delivery) if is_final(&delivery) => return Some(delivery.answer),
            Some(delivery) => sleep(delivery.retry_after.unwrap_or(rest)).await,
            None => {
                tally.broken.fetch_add(1, Ordering::Relaxed);
                sleep(rest).await;
                rest = (rest * 2).min(Duration::from_millis(400));
            }
        }
    }
    None
}

/// Returns whether an answer is final. Only "in flight" and "unavailable" call for a retry.
fn is_final(delivery: &Delivery) -> bool {
    !matches!(delivery.answer.status, StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE)
}

async fn ask(
    server: SocketAddr,
    key: &str,
    order: &Order,
    cut_after: Option<Duration>,
    tally: &Tally,
) -> Option<Delivery> {
    let count = |counter: &AtomicUsize| counter.fetch_add(1, Ordering::Relaxed);
    count(&tally.requests);
    count(&tally.open);
    let delivery = client::pay(server, key, order, cut_after).await.ok();
    tally.open.fetch_sub(1, Ordering::Relaxed);
    let delivery = delivery?;
    match delivery.answer.status {
        StatusCode::CONFLICT => count(&tally.in_flight),
        StatusCode::SERVICE_UNAVAILABLE => count(&tally.unavailable),
        StatusCode::UNPROCESSABLE_ENTITY => count(&tally.refused),
        _ if delivery.replayed => count(&tally.replayed),
        _ => 0,
    };
    Some(delivery)
}

/// A splitmix generator: its numbers look random, but are the same in every run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.below(1_000) as f64 / 1_000.0
    }
}
