// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`pauses`]: for how long a store did not answer, because its server was gone.

use crate::event::Fun;
use crate::story::Run;

/// The faults that end, freeze or replace a server or a primary.
const OUTAGES: [&str; 5] = ["restart", "shutdown", "failover", "handover", "freeze"];

/// Returns, for each outage, the longest time without any successful answer of the store that
/// overlaps the outage. The times are in nanoseconds and sorted.
pub(crate) fn pauses(run: &Run) -> Vec<u64> {
    let ops = run.stories.iter().flat_map(|story| &story.ops);
    let answered = ops.filter(|op| op.fun != Fun::Wait && !op.failed);
    let mut answers: Vec<u64> = answered.filter_map(|op| op.answer).collect();
    answers.sort_unstable();
    let outages = run.faults.iter().filter(|fault| OUTAGES.contains(&fault.name.as_str()));
    let longest = |from: u64, to: u64| {
        let first = answers.partition_point(|answer| *answer < from).saturating_sub(1);
        let gaps = answers[first..].windows(2).take_while(|pair| pair[0] <= to);
        gaps.map(|pair| pair[1] - pair[0]).max()
    };
    let mut pauses: Vec<u64> =
        outages.filter_map(|fault| longest(fault.from, fault.to.unwrap_or(run.last))).collect();
    pauses.sort_unstable();
    pauses
}
