// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Fault`]: what a run did to its processes, its connections and its server.

use super::Run;

/// A fault's window.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "they say it")]
pub struct Fault {
    pub name: String,
    /// When the fault was ordered.
    pub from: u64,
    /// When everything was as before the fault.
    pub to: Option<u64>,
    /// The process that the fault struck or whose connections it disturbed; `None` for all
    /// processes.
    pub victim: Option<u32>,
    pub lossy: bool,
    /// When something was really wrong, if anything was: a process was dead or stopped, a
    /// connection was disturbed, or a server was unavailable.
    pub real: Option<(u64, u64)>,
    /// By how much the fault moved the store's clock.
    pub moved_ns: i64,
}

/// A move of an identity's slot between nodes of a cluster, and the time in which it shows.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "they say it")]
pub struct SlotMove {
    pub from: u64,
    pub to: u64,
    /// Whether a failover interrupted the move, so that records of any age may be lost.
    pub lossy: bool,
}

impl SlotMove {
    /// Returns whether the move shows at some instant of the interval.
    #[must_use]
    pub fn meets(&self, from: u64, to: u64) -> bool {
        self.from <= to && from <= self.to
    }
}

impl Fault {
    /// Returns whether the fault disturbed connections of that process. A server that is
    /// unavailable also counts. A node that does not serve a slot any more refuses calls, but
    /// breaks no connection.
    #[must_use]
    pub fn cuts(&self, proc: u32) -> bool {
        let of_process = matches!(self.name.as_str(), "kill" | "stop" | "clock" | "leap" | "slots");
        !of_process
            && !self.is_loss()
            && self.moved_ns == 0
            && self.victim.is_none_or(|victim| victim == proc)
    }
}

impl Run {
    /// Corrects the ends of faults: a killed process is dead until its next life begins, and a
    /// stopped process is not stopped any more when it is killed.
    pub(super) fn bound_faults(&mut self) {
        let struck = |fault: &Fault| Some((fault.victim?, fault.real?.0));
        let kills = self.faults.iter().filter(|fault| fault.name == "kill");
        let kills: Vec<(u32, u64)> = kills.filter_map(struck).collect();
        for fault in &mut self.faults {
            let (Some(victim), Some((from, to))) = (fault.victim, &mut fault.real) else {
                continue;
            };
            match fault.name.as_str() {
                "kill" => {
                    let lives = self.begun.get(&victim).into_iter().flatten();
                    let next = lives.copied().filter(|begun| begun > from).min();
                    *to = next.unwrap_or(self.last);
                }
                "stop" => {
                    let own = kills.iter().filter(|(proc, at)| *proc == victim && at > from);
                    *to = own.map(|(_, at)| *at).min().map_or(*to, |killed| killed.min(*to));
                }
                _ => {}
            }
        }
    }
}
