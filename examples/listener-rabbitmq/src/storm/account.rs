// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of a storm: compares the bookings with the published orders, and checks for runs
//! without an end and for messages that loop.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use super::Plan;
use crate::broker::Broker;
use crate::shop::Shop;
use crate::{BoxError, ledger};

/// A message that is delayed more often than this is in a loop. Without a loop, delays are few,
/// because each delay lasts for the rest of a lease, and the lease then ends with a completion or
/// after a kill.
const LOOP: usize = 10;

/// The result of a storm.
#[derive(Debug, Default)]
pub(crate) struct Account {
    orders: usize,
    poison: usize,
    kills: usize,
    cuts: usize,
    bookings: usize,
    begun: usize,
    /// The number of the listeners' answers, by the reason of the verdict, such as `executed` or
    /// `in-flight`.
    answers: HashMap<String, usize>,
    dead: usize,
    put_off_messages: usize,
    most_put_off: usize,
    missing: usize,
    doubled: usize,
    wrong: usize,
    loops: usize,
    unexplained: usize,
    poison_lost: usize,
    strange_dead: usize,
    left: u32,
}

impl Account {
    pub(crate) async fn draw(
        plan: &Plan,
        shop: &Shop,
        broker: &Broker,
        journal: &Path,
        killed: &HashSet<u32>,
    ) -> Result<Self, BoxError> {
        let mut account = Self {
            orders: plan.orders,
            poison: plan.poison(),
            kills: killed.len(),
            cuts: plan.cuts,
            left: broker.ready_or_put_off(&shop.ledger_queue()).await?,
            ..Self::default()
        };
        account.read_ledger(shop)?;
        account.read_journal(&std::fs::read_to_string(journal)?, killed);
        account.read_dead(broker.take_all(&format!("{}.dead", shop.ledger_queue())).await?);
        Ok(account)
    }

    fn read_ledger(&mut self, shop: &Shop) -> Result<(), BoxError> {
        let books = ledger::open(&shop.db)?;
        let mut rows = books.prepare("SELECT id, cents FROM bookings")?;
        let mut by_id: HashMap<String, usize> = HashMap::new();
        let all =
            rows.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
        for row in all {
            let (id, cents) = row?;
            self.wrong += usize::from(id != format!("o-{cents}"));
            self.bookings += 1;
            *by_id.entry(id).or_default() += 1;
        }
        self.missing = (0..self.orders).filter(|n| !by_id.contains_key(&format!("o-{n}"))).count();
        self.doubled = by_id.values().filter(|count| **count > 1).count();
        Ok(())
    }

    /// Counts the journal's lines, which have the form `PROCESS ledger WHAT ORDER`.
    fn read_journal(&mut self, journal: &str, killed: &HashSet<u32>) {
        let mut put_off: HashMap<&str, usize> = HashMap::new();
        // Counts the runs that have begun but not ended, by process and order.
        let mut open: HashMap<(u32, &str), usize> = HashMap::new();
        for line in journal.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [process, "ledger", what, id] = words[..] else { continue };
            let Ok(process) = process.parse::<u32>() else { continue };
            if what == "begun" {
                self.begun += 1;
                *open.entry((process, id)).or_default() += 1;
                continue;
            }
            *self.answers.entry(what.to_owned()).or_default() += 1;
            match what {
                "in-flight" => *put_off.entry(id).or_default() += 1,
                "executed" | "failed" | "lease-lost" | "not-recorded" | "store" => {
                    open.entry((process, id)).and_modify(|runs| *runs = runs.saturating_sub(1));
                }
                _ => {}
            }
        }
        self.put_off_messages = put_off.len();
        self.most_put_off = put_off.values().copied().max().unwrap_or(0);
        self.loops = put_off.values().filter(|count| **count > LOOP).count();
        // Ignore the runs of killed processes, because a killed process cannot log the ends of its
        // runs.
        let by_the_living =
            open.iter().filter(|((process, _), runs)| **runs > 0 && !killed.contains(process));
        self.unexplained = by_the_living.count();
    }

    fn read_dead(&mut self, dead: Vec<(Vec<u8>, String)>) {
        self.dead = dead.len();
        let bodies: HashSet<Vec<u8>> =
            dead.iter().filter(|(_, why)| why == "no-key").map(|(body, _)| body.clone()).collect();
        self.strange_dead = dead.iter().filter(|(_, why)| why != "no-key").count();
        self.poison_lost =
            (0..self.poison).filter(|n| !bodies.contains(format!("poison {n}").as_bytes())).count();
    }

    fn must_be_zero(&self) -> [(&'static str, usize); 9] {
        [
            ("orders never booked", self.missing),
            ("orders booked more than once", self.doubled),
            ("bookings with a wrong amount", self.wrong),
            ("runs that neither ended nor were killed", self.unexplained),
            ("messages put off in a loop", self.loops),
            ("messages left in the queues", usize::try_from(self.left).unwrap_or(usize::MAX)),
            ("poison messages lost", self.poison_lost),
            ("orders among the dead letters", self.strange_dead),
            ("bookings without an order", self.bookings.saturating_sub(self.orders)),
        ]
    }

    /// Returns whether every promise was kept.
    pub(crate) fn holds(&self) -> bool {
        self.must_be_zero().iter().all(|(_, count)| *count == 0)
    }

    pub(crate) fn print(&self, took: Duration) {
        let answers = |what: &str| self.answers.get(what).copied().unwrap_or(0);
        let failures = ["failed", "lease-lost", "not-recorded", "store", "panicked"];
        println!("\nWhat was published");
        row("orders", self.orders);
        row("messages", self.orders * 2 + self.poison);
        println!("What was done to the listeners");
        row("killed by SIGKILL", self.kills);
        row("connections cut, all at once", self.cuts);
        println!("What the listeners answered");
        row("executed", answers("executed"));
        row("replayed: acknowledged, not run", answers("replayed"));
        row("in flight: put off", answers("in-flight"));
        row("orders put off at least once", self.put_off_messages);
        row("most put-offs of one order", self.most_put_off);
        row("failed, to be delivered again", failures.iter().map(|what| answers(what)).sum());
        row("dead letters", self.dead);
        println!("What the ledger holds");
        row("bookings", self.bookings);
        row("runs begun", self.begun);
        row("runs undone by a kill or a failure", self.begun.saturating_sub(self.bookings));
        println!("What must be zero");
        self.must_be_zero().iter().for_each(|(name, count)| row(name, *count));
        println!(
            "\n{} s; {}",
            took.as_secs(),
            if self.holds() { "every promise held" } else { "A PROMISE DID NOT HOLD" }
        );
    }
}

fn row(name: &str, count: usize) {
    println!("  {name:<36}{count:>8}");
}
