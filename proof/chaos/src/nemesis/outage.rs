// SPDX-License-Identifier: MIT OR Apache-2.0
//! Outages: the server is killed or shut down, and starts again with its data. In a group, this
//! happens to the primary, and a replica takes its place. Other faults go on during an outage, and
//! one of them strikes while the server is down.

use std::io;

use history::{Event, Fun, LOSS, Phase};

use super::{Due, Made, Nemesis, begin};
use crate::mono::{self, MS};
use crate::server::{End, FailOver, SHARDS, Server};

/// An outage under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outage {
    /// The operation of the fault, which lasts until clients have reconnected.
    op: u64,
    name: &'static str,
    /// The operation that marks the part of the outage in which no server serves.
    down: Option<u64>,
    /// The operation that marks the time from which writes may be lost, until the primary is dead.
    loss: Option<u64>,
    /// Whether the fault has ended, although the group is not whole yet.
    calm: bool,
    /// When the outage began.
    began: u64,
    stage: Stage,
    /// When another fault strikes.
    strike: Option<u64>,
}

impl Outage {
    /// Returns whether it disturbs no client any more.
    pub(super) fn is_calm(&self) -> bool {
        self.calm
    }

    /// Returns whether a server or a primary is away.
    pub(super) fn is_down(&self) -> bool {
        self.down.is_some()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The server shuts down.
    Ending,
    /// The server starts again at this time.
    Away(u64),
    Starting,
    /// The group fails over. Its state was last checked at this time.
    FailingOver(u64),
}

/// The time between two checks whether a group is whole again.
const ASK_MS: u64 = 300;

fn name(end: End, killed: &'static str) -> &'static str {
    match end {
        End::Killed => killed,
        End::ShutDown => "shutdown",
        End::HandedOver => "handover",
        End::Frozen => "freeze",
        End::Crashed => "restart",
    }
}

impl Nemesis<'_> {
    /// Ends the store's server. It starts again later, with its data.
    pub(super) fn restart(&mut self, end: End) -> io::Result<bool> {
        let (Some(server), None) = (self.server.as_deref_mut(), self.outage) else {
            return Ok(false);
        };
        let name = name(end, "restart");
        let op = begin(&self.log, name, None);
        server.end(end)?;
        let stage = if end == End::ShutDown { Stage::Ending } else { self.away() };
        self.go_down(op, name, stage, 400);
        Ok(true)
    }

    /// Lets a shard of a cluster fail over. If slots are to move too, a failover interrupts a move,
    /// mostly at its source.
    pub(super) fn fail_over_shard(&mut self) -> io::Result<bool> {
        let moves = self.next.iter().any(|(kind, _)| *kind == "slots");
        if moves && !self.slots.are_moving() {
            return Ok(false);
        }
        let any = self.random.next();
        let shard = match self.slots.way(any) {
            Some((from, to)) => {
                if self.random.percent(60) {
                    from
                } else {
                    to
                }
            }
            None => usize::try_from(any % SHARDS as u64).unwrap_or(0),
        };
        let Made { failovers, shutdowns, handovers, .. } = self.made;
        let end = match (failovers + shutdowns + handovers) % 3 {
            0 => End::Killed,
            1 => End::HandedOver,
            _ => End::ShutDown,
        };
        self.fail_over(end, shard)
    }

    /// Lets a group fail over. Every second primary shuts down in order. With Patroni, a host is
    /// lost, frozen or shut down, a primary hands over, or a server alone crashes.
    pub(super) fn fail_over_group(&mut self) -> io::Result<bool> {
        let Made { failovers, shutdowns, handovers, freezes, restarts, .. } = self.made;
        let has_patroni = self.server.as_deref().is_some_and(Server::has_patroni);
        let end = match (failovers + shutdowns + handovers + freezes + restarts) % 5 {
            _ if !has_patroni && failovers > shutdowns => End::ShutDown,
            _ if !has_patroni => End::Killed,
            0 => End::Killed,
            1 => End::HandedOver,
            2 => End::Frozen,
            3 => End::ShutDown,
            _ => End::Crashed,
        };
        self.fail_over(end, 0)
    }

    /// Ends the primary, of a cluster's shard or of another group; a replica takes its place,
    /// without the writes that had not reached it. A primary that hands over loses nothing, unless
    /// the failover interrupts the move of a slot.
    pub(super) fn fail_over(&mut self, end: End, shard: usize) -> io::Result<bool> {
        let (Some(server), None) = (self.server.as_deref_mut(), self.outage) else {
            return Ok(false);
        };
        let op = self.log.number();
        let place = self.log.event(op, Fun::Fault, Phase::Invoke);
        let name = name(end, "failover");
        let lossy = server.loses_writes() && end != End::HandedOver;
        // A primary that is shut down first waits for its replicas. One that is killed does not:
        // writes that were acknowledged just before may not have left it.
        let before = if lossy && end == End::Killed { 1_000 * MS } else { 0 };
        let mono_ns = place.mono_ns.saturating_sub(before);
        self.log.write(&Event { note: Some(name.into()), lossy, mono_ns, ..place });
        let loss = server.loses_ms(end).map(|ms| {
            let op = self.log.number();
            let place = self.log.event(op, Fun::Fault, Phase::Invoke);
            let mono_ns = place.mono_ns.saturating_sub(ms * MS);
            self.log.write(&Event { note: Some(LOSS.into()), lossy: true, mono_ns, ..place });
            op
        });
        server.begin_fail_over(end, shard)?;
        self.made.interrupted += self.slots.strike(shard, mono_ns);
        self.go_down(op, name, Stage::FailingOver(mono::now()), 1_000);
        self.outage = self.outage.map(|outage| Outage { loss, ..outage });
        Ok(true)
    }

    fn away(&mut self) -> Stage {
        Stage::Away(mono::now() + self.random.within(50..500) * MS)
    }

    /// Begins an outage, in which no server serves. Another fault strikes within `within_ms`.
    fn go_down(&mut self, op: u64, name: &'static str, stage: Stage, within_ms: u64) {
        let now = mono::now();
        let most = if let Stage::Away(until) = stage { until } else { now + within_ms * MS };
        // A primary that hands over is replaced at once.
        let is_down = name != "handover";
        let strike = (is_down && !self.strikes.is_empty()).then(|| self.random.within(now..most));
        let down = is_down.then(|| begin(&self.log, "down", None));
        self.broke(op);
        let (loss, calm, began) = (None, false, now);
        self.outage = Some(Outage { op, name, down, loss, calm, began, stage, strike });
    }

    /// Continues the outage with whatever step is due.
    pub(super) fn go_on_with_outage(&mut self) -> io::Result<()> {
        let Some(mut outage) = self.outage else { return Ok(()) };
        if outage.down.is_some() && outage.strike.is_some_and(|at| mono::now() >= at) {
            let at = self.random.within(0..self.strikes.len() as u64);
            let kind = usize::try_from(at).ok().and_then(|at| self.strikes.get(at).copied());
            // A strike can fail, for example because its victim is already stopped. Then the next
            // step chooses another kind.
            if let Some(kind) = kind
                && self.make(kind)?
            {
                outage.strike = None;
            }
        }
        let Some(server) = self.server.as_deref_mut() else { return Ok(()) };
        let now = mono::now();
        match outage.stage {
            Stage::Ending => {
                if server.has_ended()? {
                    outage.stage = self.away();
                }
            }
            Stage::Away(until) if now >= until => {
                server.begin_again()?;
                outage.stage = Stage::Starting;
            }
            Stage::Starting => {
                if server.is_ready()? {
                    self.came_back(outage, 500);
                    return Ok(());
                }
            }
            Stage::FailingOver(asked) if now >= asked + ASK_MS * MS => {
                let (how_far, died) = (server.go_on_failing_over()?, server.died());
                let moved_ns = server.moved_ns();
                if let (Some(mono_ns), Some(op)) = (died, outage.loss) {
                    outage.loss = None;
                    let place = self.log.event(op, Fun::Fault, Phase::Ok);
                    self.log.write(&Event { note: Some(LOSS.into()), mono_ns, ..place });
                }
                if how_far != FailOver::Away
                    && let Some(down) = outage.down.take()
                {
                    self.end(down, "down");
                }
                if matches!(how_far, FailOver::Calm | FailOver::Whole) && !outage.calm {
                    outage.calm = true;
                    self.moved(outage.began, moved_ns);
                    self.calm_down(outage, 1_000);
                }
                if how_far == FailOver::Whole {
                    self.came_back(outage, 1_000);
                    return Ok(());
                }
                outage.stage = Stage::FailingOver(now);
            }
            Stage::Away(_) | Stage::FailingOver(_) => {}
        }
        self.outage = Some(outage);
        Ok(())
    }

    /// Ends the outage, but not its effects: for a while, clients reconnect, or give up their
    /// connections to an old primary.
    pub(super) fn came_back(&mut self, outage: Outage, for_ms: u64) {
        if let Some(down) = outage.down {
            self.end(down, "down");
        }
        let made = &mut self.made;
        *match outage.name {
            "shutdown" => &mut made.shutdowns,
            "failover" => &mut made.failovers,
            "handover" => &mut made.handovers,
            "freeze" => &mut made.freezes,
            _ => &mut made.restarts,
        } += 1;
        if !outage.calm {
            self.calm_down(outage, for_ms);
        }
        self.outage = None;
        // A group needs up to 15 s to recover, and acknowledged writes may be lost in this time.
        // Without a rest, most of the run would be excused.
        let every = self.every("failover");
        if self.server.as_ref().is_some_and(|server| server.loses_writes()) {
            for (_, next) in self.next.iter_mut().filter(|(kind, _)| *kind == "failover") {
                *next = (*next).max(mono::now() + every * MS);
            }
        }
    }

    /// Notes that the new primary's clock, which now decides when leases end, is ahead of the old
    /// one's by so much. Until now, either primary may have answered.
    fn moved(&self, began: u64, moved_ns: i64) {
        if moved_ns != 0 {
            let op = self.log.number();
            let place = self.log.event(op, Fun::Fault, Phase::Invoke);
            let moved_us = Some(moved_ns / 1_000);
            let note = Some("jump".into());
            self.log.write(&Event { note, moved_us, mono_ns: began, ..place });
            let place = self.log.event(op, Fun::Fault, Phase::Ok);
            self.log.write(&Event { note: Some("jump".into()), ..place });
        }
    }

    /// Ends the fault, but not its effects, which show for a while.
    fn calm_down(&mut self, outage: Outage, for_ms: u64) {
        self.mended(outage.op);
        self.due.push((mono::now() + for_ms * MS, Due::End(outage.op, outage.name)));
    }
}
