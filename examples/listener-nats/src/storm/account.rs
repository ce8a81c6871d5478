// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of a storm: compares the orders with the invoices, and counts the redeliveries.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::Context;

use super::{Plan, ack_monitor::AckMonitor, order};
use crate::{BoxError, app, invoices};

/// The result of a storm.
#[derive(Debug)]
pub(crate) struct Account {
    orders: usize,
    invoices: usize,
    lost: usize,
    doubled: usize,
    dead_letters: u64,
    unanswered: u64,
    executed: usize,
    replayed: usize,
    /// Deliveries that failed: the database was busy for too long, or the lease was lost.
    failed: usize,
    /// Deliveries whose key was in flight.
    parked: usize,
    /// Messages whose key was in flight in at least one delivery.
    in_flight: usize,
    deliveries: u64,
    given_back: usize,
    /// The most deliveries of any message. `most_in_flight` counts only messages whose key was in
    /// flight.
    most: u64,
    most_in_flight: u64,
    bound: u64,
}

impl Account {
    pub(crate) async fn draw(
        plan: &Plan,
        db: &Path,
        log: &Path,
        acks: &AckMonitor,
        jetstream: &Context,
        name: &str,
    ) -> Result<Self, BoxError> {
        let booked: HashMap<String, usize> =
            invoices::booked(&invoices::open(db)?)?.into_iter().collect();
        let log = std::fs::read_to_string(log)?;
        // Callers include the log level in `words`, so that "not booked" does not count as
        // "booked".
        let said = |words: &str| {
            log.lines().filter(|line| line.contains(&format!("{words} sequence="))).count()
        };
        let found: HashSet<u64> = log.lines().filter_map(in_flight).collect();
        let heard = acks.messages();
        let most = |of: &dyn Fn(&u64) -> bool| {
            heard
                .iter()
                .filter(|(sequence, _)| of(sequence))
                .map(|(_, heard)| heard.deliveries)
                .max()
                .unwrap_or(0)
        };
        let consumer = app::consumer(jetstream, name).await?;
        let info = consumer.cached_info();
        let dead = jetstream.get_stream(app::dead(name).0).await?;
        Ok(Self {
            orders: plan.orders,
            invoices: booked.values().sum(),
            lost: (0..plan.orders).filter(|n| !booked.contains_key(&order(*n))).count(),
            doubled: booked.values().filter(|times| **times > 1).count(),
            dead_letters: dead.cached_info().state.messages,
            unanswered: info.num_pending + u64::try_from(info.num_ack_pending)?,
            executed: said("INFO booked"),
            replayed: said("INFO booked before"),
            failed: said("WARN not booked"),
            parked: said("INFO in flight"),
            in_flight: found.len(),
            deliveries: info.delivered.consumer_sequence,
            given_back: heard.values().map(|heard| heard.given_back).sum(),
            most: most(&|_| true),
            most_in_flight: most(&|sequence| found.contains(sequence)),
            // Each kill and each cut may cause one more delivery of a message. Nothing else causes
            // another delivery, unless too many messages were parked and some were given back.
            bound: u64::try_from(1 + plan.kills + plan.cuts)?,
        })
    }

    /// Returns whether every promise was kept.
    pub(crate) fn holds(&self) -> bool {
        self.lost + self.doubled == 0
            && self.dead_letters + self.unanswered == 0
            && self.most <= self.bound
    }

    pub(crate) fn print(&self, killed: usize, cut: usize, messages: u64, took: Duration) {
        println!("What was done to the consumers");
        row("messages published", messages);
        row("consumers killed by SIGKILL", killed as u64);
        row("times all connections were cut", cut as u64);
        println!("What the consumers did");
        row("booked", self.executed as u64);
        row("skipped: booked before", self.replayed as u64);
        row("not booked, to be delivered again", self.failed as u64);
        row("messages found in flight, and parked", self.in_flight as u64);
        row("times that a message was parked", self.parked as u64);
        println!("What the server did");
        row("deliveries", self.deliveries);
        row("redeliveries", self.deliveries.saturating_sub(messages));
        row("given back by a consumer", self.given_back as u64);
        row("most deliveries of one message", self.most);
        row("most times that one was parked", self.most_in_flight);
        println!("What the database holds");
        row("orders", self.orders as u64);
        row("invoices", self.invoices as u64);
        println!("What must be zero");
        row("orders without an invoice", self.lost as u64);
        row("orders with more than one invoice", self.doubled as u64);
        row("dead letters", self.dead_letters);
        row("messages not answered", self.unanswered);
        row("messages in a hot loop", u64::from(self.most > self.bound));
        println!("\nIt took {:.1} s.", took.as_secs_f64());
        println!("{}", if self.holds() { "every promise held" } else { "A PROMISE DID NOT HOLD" });
    }
}

/// Returns the number of the message that a log line reports as in flight.
fn in_flight(line: &str) -> Option<u64> {
    line.split_once(" in flight sequence=")?.1.split_whitespace().next()?.parse().ok()
}

fn row(name: &str, count: u64) {
    println!("  {name:<38}{count:>8}");
}
