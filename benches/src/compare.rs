// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs contenders in turn, so that their ratios are stable on a shared machine.

use std::time::Instant;

/// One way to do the work. Each call of `batch` runs some operations and returns the cost of one,
/// in the unit that the suite compares, such as nanoseconds, microseconds of a server's CPU, or
/// bytes.
pub struct Contender<'a> {
    name: &'static str,
    batch: Box<dyn FnMut() -> f64 + 'a>,
}

impl<'a> Contender<'a> {
    /// Creates a contender.
    pub fn new(name: &'static str, batch: impl FnMut() -> f64 + 'a) -> Self {
        Self { name, batch: Box::new(batch) }
    }
}

impl std::fmt::Debug for Contender<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contender").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The result of a contender.
#[derive(Debug, Clone)]
pub struct Median {
    /// The contender's name.
    pub name: &'static str,
    /// The median cost of one operation.
    pub cost: f64,
    /// The median, over the rounds, of this contender's cost divided by the first contender's.
    pub ratio: f64,
    costs: Vec<f64>,
}

impl Median {
    /// Returns the median, over the rounds, of this contender's cost divided by `other`'s.
    #[must_use]
    pub fn times(&self, other: &Self) -> f64 {
        median(self.costs.iter().zip(&other.costs).map(|(mine, others)| mine / others).collect())
    }
}

/// Runs a round to warm up, and then `rounds` rounds. In each round, every contender runs one
/// batch. Each round begins with the next contender, so that a drift of the machine's speed affects
/// all contenders alike. The contenders always follow each other in the same order, so none runs
/// twice in a row with caches that it has warmed itself. The first contender is the floor.
pub fn interleave(rounds: usize, mut contenders: Vec<Contender<'_>>) -> Vec<Median> {
    let mut costs = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..=rounds {
        let count = contenders.len();
        for at in (0..count).map(|at| (at + round) % count) {
            let cost = (contenders[at].batch)();
            if round > 0 {
                costs[at].push(cost);
            }
        }
    }
    let floor = costs.first().cloned().unwrap_or_default();
    let ratio = |costs: &[f64]| {
        median(costs.iter().zip(&floor).map(|(cost, floor)| cost / floor).collect())
    };
    let names = contenders.iter().map(|contender| contender.name);
    names
        .zip(costs)
        .map(|(name, costs)| Median {
            name,
            ratio: ratio(&costs),
            cost: median(costs.clone()),
            costs,
        })
        .collect()
}

/// Returns the nanoseconds per operation of `operations` calls of `work`, which gets the number of
/// each call.
pub fn nanos(operations: u64, mut work: impl FnMut(u64)) -> f64 {
    let start = now();
    for n in 0..operations {
        work(n);
    }
    per_operation(start, operations)
}

/// Returns the nanoseconds since `start`, divided by `operations`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
pub fn per_operation(start: Instant, operations: u64) -> f64 {
    start.elapsed().as_nanos() as f64 / operations.max(1) as f64
}

/// Returns the current time, for measurements.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the median of the values, or NaN if there are none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let (mut a, mut b) = (0.0, 0.0);
        // The machine slows down steadily, but the second contender always costs twice as much as
        // the first.
        let medians = interleave(
            9,
            vec![
                Contender::new("floor", || {
                    a += 1.0;
                    a
                }),
                Contender::new("other", || {
                    b += 2.0;
                    b
                }),
            ],
        );
        assert!((medians[0].ratio - 1.0).abs() < 1e-9);
        assert!((medians[1].ratio - 2.0).abs() < 1e-9);
        assert!((medians[0].times(&medians[1]) - 0.5).abs() < 1e-9);
        assert!(
            (medians[1].cost - 12.0).abs() < 1e-9,
            "the warm-up round is left out: {medians:?}"
        );
    }
}
