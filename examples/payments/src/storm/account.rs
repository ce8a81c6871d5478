// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of a storm: compares every payment with the ledger, and finds the reason for every
//! double charge.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;

use super::Plan;
use super::play::{Payment, Tally, prefix};
use crate::BoxError;
use crate::ledger::{Charge, Ledger, Receipt};

/// A key that was charged more than once.
#[derive(Debug)]
struct Doubled {
    reference: String,
    /// The processes that made the charges, in order.
    processes: Vec<u32>,
    /// Whether every process except the last was killed, which explains the double charge: the
    /// process died after its charge and before its completion.
    explained: bool,
}

/// The result of a storm.
#[derive(Debug)]
pub(crate) struct Account {
    /// Whether charges and records committed separately.
    apart: bool,
    keys: usize,
    executed: usize,
    replayed: usize,
    waited: usize,
    taken_over: usize,
    charges: usize,
    /// Ledger writes that were never committed.
    undone: usize,
    unanswered: usize,
    refused_payments: usize,
    lost: usize,
    unequal: usize,
    let_through: usize,
    doubled: Vec<Doubled>,
}

impl Account {
    pub(crate) async fn draw(
        payments: &[Payment],
        plan: &Plan,
        store: &str,
        log: &Path,
        killed: &HashSet<u32>,
    ) -> Result<Self, BoxError> {
        let charges = Ledger::open(store).await?.all(&prefix(&plan.run)).await?;
        let mut by_reference: HashMap<&str, Vec<&Charge>> = HashMap::new();
        for charge in &charges {
            by_reference.entry(&charge.receipt.reference).or_default().push(charge);
        }
        let log = std::fs::read_to_string(log)?;
        let said =
            |word: &str| log.lines().filter(|line| line.contains(&format!(" {word} id="))).count();
        let written = log.lines().filter(|line| line.contains(" charged payment=")).count();
        let mut account = Self {
            apart: plan.apart,
            keys: payments.len(),
            executed: said("executed"),
            replayed: said("replayed"),
            waited: said("waiting"),
            taken_over: said("taken over"),
            charges: charges.len(),
            undone: written.saturating_sub(charges.len()),
            unanswered: 0,
            refused_payments: 0,
            lost: 0,
            unequal: 0,
            let_through: payments.iter().filter(|payment| payment.let_through).count(),
            doubled: Vec::new(),
        };
        for payment in payments {
            let made = by_reference.get(payment.reference.as_str()).map_or(&[][..], Vec::as_slice);
            account.judge(payment, made, killed);
        }
        Ok(account)
    }

    fn judge(&mut self, payment: &Payment, made: &[&Charge], killed: &HashSet<u32>) {
        let Some(first) = payment.answers.first() else {
            self.unanswered += 1;
            return;
        };
        if payment.answers.iter().any(|answer| answer != first) {
            self.unequal += 1;
        }
        if first.status != StatusCode::CREATED {
            self.refused_payments += 1;
            return;
        }
        let receipt: Option<Receipt> = serde_json::from_slice(&first.body).ok();
        if !made.iter().any(|charge| Some(&charge.receipt) == receipt.as_ref()) {
            self.lost += 1;
        }
        if let [earlier @ .., _last] = made
            && !earlier.is_empty()
        {
            self.doubled.push(Doubled {
                reference: payment.reference.clone(),
                processes: made.iter().map(|charge| charge.process).collect(),
                explained: earlier.iter().all(|charge| killed.contains(&charge.process)),
            });
        }
    }

    /// Returns whether every promise was kept.
    pub(crate) fn holds(&self) -> bool {
        let broken =
            self.lost + self.unequal + self.unanswered + self.refused_payments + self.let_through;
        // If a charge commits together with its record, no double charge is allowed.
        broken == 0 && self.doubled.iter().all(|doubled| self.apart && doubled.explained)
    }

    pub(crate) fn print(&self, tally: &Tally) {
        let get = |counter: &std::sync::atomic::AtomicUsize| counter.load(Ordering::Relaxed);
        let unexplained = self.doubled.iter().filter(|doubled| !doubled.explained).count();
        println!("\nWhat the clients did");
        row("keys (payments)", self.keys);
        row("requests", get(&tally.requests));
        row("connections cut by the client", get(&tally.cut));
        row("connections broken by a kill", get(&tally.broken));
        println!("What the server did");
        row("killed by SIGKILL", get(&tally.kills));
        row("executed", self.executed);
        row("replayed", self.replayed);
        row("waited for the holder", self.waited);
        row("taken over from a dead process", self.taken_over);
        row("refused: another amount (422)", get(&tally.refused));
        row("refused: in flight (409)", get(&tally.in_flight));
        row("refused: unavailable (503)", get(&tally.unavailable));
        println!("What the ledger says");
        row("charges", self.charges);
        row("ledger writes undone by a kill", self.undone);
        row("keys charged more than once", self.doubled.len());
        println!("What must be zero");
        row("payments lost", self.lost);
        row("payments never answered", self.unanswered);
        row("payments refused", self.refused_payments);
        row("keys with different answers", self.unequal);
        row("changed amounts let through", self.let_through);
        row("double charges without a known cause", unexplained);
        if !self.doubled.is_empty() {
            println!("\nCharged more than once, and why");
        }
        for doubled in &self.doubled {
            let chain: Vec<_> = doubled.processes.iter().map(ToString::to_string).collect();
            let why = if doubled.explained {
                "killed after its ledger write and before its completion; a retry took over"
            } else {
                "NOT EXPLAINED: no killed process caused it"
            };
            let (first, rest) =
                chain.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
            println!("  {}: process {first}, then {}: {why}", doubled.reference, rest.join(", "));
        }
        println!("\n{}", if self.apart { APART } else { JOINED });
        println!(
            "\n{}",
            if self.holds() { "every promise held" } else { "A PROMISE DID NOT HOLD" }
        );
    }
}

const JOINED: &str = "The ledger write and the record are one commit here (a joined transaction), so a process that dies before
that commit leaves neither, and the retry charges once. `storm --apart` shows what two commits do.";

const APART: &str = "The ledger write and the record are two commits here (--apart), so a process that dies between them leaves a charge
without a record, and the retry charges again. One commit for both (a joined transaction, the default) prevents this.";

fn row(name: &str, count: usize) {
    println!("  {name:<34}{count:>8}");
}
