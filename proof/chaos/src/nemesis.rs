// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Nemesis`]: makes the faults, and ends them.
//!
//! This file is over 400 lines long because the order in which faults are drawn, made and ended is
//! one story, which a reader of a run needs in one place.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use history::{Event, Fun, Phase};

use crate::aim::wait_for_call;
use crate::clocks::WallClock;
use crate::log::Log;
use crate::mono::{self, MS};
use crate::plan::Plan;
use crate::proxy::{Mood, Proxy};
use crate::random::Random;
use crate::server::{End, Server};
use crate::workers::{Skew, Workers};
use crate::world::World;

mod clock;
mod link;
mod outage;
mod slots;

use outage::Outage;
use slots::Slots;

/// Every kind of fault that is made again and again.
const KINDS: [&str; 11] = [
    "kill",
    "stop",
    "cut",
    "one-way",
    "half-open",
    "restart",
    "shutdown",
    "failover",
    "slots",
    "clock",
    "jump",
];

/// Mean time between two faults of a kind, in milliseconds.
const KILL_EVERY: u64 = 330;
const STOP_EVERY: u64 = 650;
const CUT_EVERY: u64 = 1_000;
const ONE_WAY_EVERY: u64 = 12_000;
const HALF_OPEN_EVERY: u64 = 12_000;
const RESTART_EVERY: u64 = 14_000;
const SHUTDOWN_EVERY: u64 = 18_000;
const FAILOVER_EVERY: u64 = 30_000;
/// The mean time between two failovers that lose nothing.
const SAFE_FAILOVER_EVERY: u64 = 6_000;
/// The same between clocks that are apart. After such a failover, leases end early or late, and
/// more calls are repeated.
const APART_FAILOVER_EVERY: u64 = 12_000;
/// A MariaDB primary has one replica. After a failover, calls get no answer until the old primary
/// is its replica.
const REPLICA_FAILOVER_EVERY: u64 = 12_000;
/// A shard of a cluster is complete again sooner than a group behind Sentinel.
const SHARD_FAILOVER_EVERY: u64 = 10_000;
const SLOTS_EVERY: u64 = 1_200;
const CLOCK_EVERY: u64 = 2_500;
const JUMP_EVERY: u64 = 5_000;

/// A fault that cannot happen now is tried again after this many milliseconds.
const AGAIN: u64 = 100;

/// How often each fault was made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Made {
    pub(crate) kills: u32,
    pub(crate) stops: u32,
    pub(crate) cuts: u32,
    pub(crate) one_way: u32,
    pub(crate) half_open: u32,
    pub(crate) restarts: u32,
    pub(crate) shutdowns: u32,
    pub(crate) failovers: u32,
    /// Failovers in which the primary handed over.
    pub(crate) handovers: u32,
    /// Failovers whose primary was frozen.
    pub(crate) freezes: u32,
    /// Slots that moved.
    pub(crate) slots: u32,
    /// Moves of slots that a failover interrupted.
    pub(crate) interrupted: u32,
    pub(crate) skews: u32,
    pub(crate) jumps: u32,
    pub(crate) died: u32,
    /// Half-open connections that clients used for too long.
    pub(crate) stuck: u64,
}

/// What has to be done later to undo a fault. A `u64` is the fault's operation, and a `u32` is a
/// worker.
enum Due {
    GoOn(u32, u64),
    Quiet(u64, &'static str, Option<u32>),
    /// The proxy is calm, but still has to close the connections that it has spoilt.
    Closed(u64, &'static str, Option<u32>),
    End(u64, &'static str),
}

/// Makes faults.
pub(crate) struct Nemesis<'a> {
    pub(crate) made: Made,
    workers: &'a mut Workers,
    server: Option<&'a mut Server>,
    /// One proxy for each worker's connections, or no proxies at all.
    proxies: &'a [Proxy],
    log: Arc<Log>,
    random: Random,
    /// The kinds of faults, each with the time of the next one.
    next: Vec<(&'static str, u64)>,
    due: Vec<(u64, Due)>,
    lease_ms: (u64, u64),
    /// The clock that decides when leases end.
    clock: Option<&'a mut WallClock>,
    /// Whether the clocks of a group's nodes are apart.
    is_apart: bool,
    /// The furthest that `clock` has been ahead.
    furthest: i64,
    /// The restart of the server or the failover of its group that is under way.
    outage: Option<Outage>,
    slots: Slots,
    world: World,
    /// The kinds of faults that may strike during an outage.
    strikes: Vec<&'static str>,
    /// For each fault that has not ended, by its operation: the time since which something has
    /// really been wrong, and the time at which that ended, if it has.
    real: HashMap<u64, (u64, Option<u64>)>,
}

impl<'a> Nemesis<'a> {
    pub(crate) fn new(
        plan: &Plan,
        faults: &[String],
        log: Arc<Log>,
        workers: &'a mut Workers,
        server: Option<&'a mut Server>,
        proxies: &'a [Proxy],
        clock: Option<&'a mut WallClock>,
    ) -> Self {
        let now = mono::now();
        let is_asked = |kind: &&'static str| faults.iter().any(|fault| fault == kind);
        let kinds = KINDS.into_iter().filter(is_asked);
        let next = kinds.map(|kind| (kind, now + first(kind) * MS)).collect();
        let strikes = ["kill", "stop", "cut"].into_iter().filter(is_asked).collect();
        Self {
            made: Made::default(),
            workers,
            server,
            proxies,
            log,
            random: Random::of(plan.seed, 0xfa17),
            next,
            due: Vec::new(),
            lease_ms: plan.lease_ms,
            clock,
            is_apart: plan.apart_ms > 0,
            furthest: 0,
            outage: None,
            slots: Slots::default(),
            world: World { began: plan.began },
            strikes,
            real: HashMap::new(),
        }
    }

    /// Undoes the faults that are due, and makes the next ones.
    pub(crate) fn step(&mut self) -> io::Result<()> {
        let now = mono::now();
        self.undo(now)?;
        for at in 0..self.next.len() {
            let (kind, when) = self.next[at];
            if now >= when {
                let pause = if self.make(kind)? {
                    let every = self.every(kind);
                    self.random.within(every / 4..every * 7 / 4)
                } else {
                    AGAIN
                };
                self.next[at].1 = mono::now() + pause * MS;
            }
        }
        self.made.died += self.workers.tend()?;
        self.tell_away();
        self.go_on_with_outage()?;
        self.go_on_with_slots()
    }

    /// Logs the intervals in which a worker was cut off from the server. What the worker sent in
    /// these intervals has not arrived.
    fn tell_away(&self) {
        for (proc, proxy) in (1..).zip(self.proxies) {
            for (since, until) in proxy.away() {
                let place = self.log.event(0, Fun::Away, Phase::Ok);
                let since_ns = Some(since);
                self.log.write(&Event { victim: Some(proc), since_ns, mono_ns: until, ..place });
            }
        }
    }

    fn every(&self, kind: &str) -> u64 {
        match kind {
            // A stop mostly takes less than half of the longest lease. If leases are short, stops
            // are therefore more frequent, so that enough calls overlap one.
            "stop" => self.stop_every().min(self.lease_ms.1 / 2).max(150),
            "failover"
                if self.server.as_ref().is_some_and(|server| server.url().starts_with("mysql")) =>
            {
                REPLICA_FAILOVER_EVERY
            }
            "failover" if self.server.as_ref().is_some_and(|server| !server.loses_writes()) => {
                if self.is_apart {
                    APART_FAILOVER_EVERY
                } else {
                    SAFE_FAILOVER_EVERY
                }
            }
            "failover" if self.is_cluster() => SHARD_FAILOVER_EVERY,
            kind => every(kind),
        }
    }

    fn is_cluster(&self) -> bool {
        self.server.as_deref().is_some_and(Server::is_cluster)
    }

    /// Without connections that can be disturbed, or if only kills and stops are asked for, stops
    /// are almost the only fault that lasts. They are then twice as frequent, so that enough calls
    /// overlap one.
    fn stop_every(&self) -> u64 {
        let asked_for_no_other = self.next.iter().all(|(kind, _)| ["kill", "stop"].contains(kind));
        let only_stops_last =
            (self.proxies.is_empty() || asked_for_no_other) && self.workers.count() > 1;
        if only_stops_last { STOP_EVERY / 2 } else { STOP_EVERY }
    }

    /// Undoes all faults at the end of the run.
    pub(crate) fn finish(mut self) -> io::Result<Made> {
        let until = mono::now() + 90_000 * MS;
        // An old primary that is not a copy yet is not needed any more.
        while self.outage.is_some_and(|outage| !outage.is_calm()) || !self.slots.are_still() {
            self.undo(mono::now())?;
            self.go_on_with_outage()?;
            self.go_on_with_slots()?;
            mono::rest(20);
            if mono::now() > until {
                return Err(io::Error::other("the server did not come back in time"));
            }
        }
        if let Some(outage) = self.outage.take() {
            self.came_back(outage, 0);
        }
        self.end_leases()?;
        while !self.due.is_empty() {
            self.undo(u64::MAX)?;
            mono::rest(3);
        }
        self.tell_away();
        self.made.stuck = self.proxies.iter().map(|proxy| proxy.stranded().stuck).sum();
        Ok(self.made)
    }

    /// Notes that, from now on, something is really wrong.
    fn broke(&mut self, op: u64) {
        self.real.insert(op, (mono::now(), None));
    }

    /// Notes that nothing is wrong any more, although the effects of the fault may still show for a
    /// while.
    fn mended(&mut self, op: u64) {
        if let Some((_, until)) = self.real.get_mut(&op) {
            *until = Some(mono::now());
        }
    }

    fn end(&mut self, op: u64, name: &str) {
        let place = self.log.event(op, Fun::Fault, Phase::Ok);
        let real = self.real.remove(&op);
        let since_ns = real.map(|(since, _)| since);
        let until_ns = real.map(|(_, until)| until.unwrap_or(place.mono_ns));
        self.log.write(&Event { note: Some(name.into()), since_ns, until_ns, ..place });
    }

    /// Returns the proxies of that worker's connections, or of all.
    fn proxies(&self, victim: Option<u32>) -> impl Iterator<Item = &'a Proxy> + use<'a> {
        let own =
            (1..).zip(self.proxies).filter(move |(proc, _)| victim.is_none_or(|v| v == *proc));
        own.map(|(_, proxy)| proxy)
    }

    fn undo(&mut self, now: u64) -> io::Result<()> {
        let (due, later) =
            std::mem::take(&mut self.due).into_iter().partition(|(at, _)| *at <= now);
        self.due = later;
        let due: Vec<(u64, Due)> = due;
        for (_, due) in due {
            match due {
                Due::GoOn(proc, op) => {
                    if self.workers.is_stopped(proc) {
                        self.workers.go_on(proc)?;
                    }
                    self.proxies(Some(proc)).for_each(|proxy| proxy.client_stands(false));
                    self.end(op, "stop");
                }
                Due::Quiet(op, name, victim) => {
                    self.proxies(victim).for_each(|proxy| proxy.set(Mood::Calm));
                    self.due.push((now, Due::Closed(op, name, victim)));
                }
                Due::Closed(op, name, victim) if self.proxies(victim).any(Proxy::is_closing) => {
                    self.due.push((now, Due::Closed(op, name, victim)));
                }
                Due::Closed(op, name, victim) => {
                    if let Some(since) = self.proxies(victim).filter_map(Proxy::harmed_since).min()
                    {
                        self.real.insert(op, (since, None));
                    }
                    self.end(op, name);
                }
                Due::End(op, name) => self.end(op, name),
            }
        }
        Ok(())
    }

    fn victim(&mut self) -> u32 {
        let count = self.workers.count();
        u32::try_from(self.random.within(0..count)).unwrap_or(0) + 1
    }

    /// Makes a fault, if it can happen now.
    fn make(&mut self, kind: &'static str) -> io::Result<bool> {
        match kind {
            "kill" => {
                let victim = self.victim();
                self.replace(victim, Skew::default())
            }
            "stop" => self.stop(),
            "clock" => self.wrong_clock(),
            "jump" => self.jump(),
            "half-open" => Ok(self.sever()),
            "cut" | "one-way" => Ok(self.disturb(kind)),
            "restart" => self.restart(End::Killed),
            "shutdown" => self.restart(End::ShutDown),
            "slots" => Ok(self.move_slots()),
            _ if self.is_cluster() => self.fail_over_shard(),
            _ => self.fail_over_group(),
        }
    }

    /// Kills a worker without warning, in half of the cases in the middle of a store call, and
    /// starts it again at once. The fault lasts as long as a lease of the dead process can.
    fn replace(&mut self, victim: u32, skew: Skew) -> io::Result<bool> {
        if self.random.percent(50) {
            wait_for_call(&self.workers.journal(victim)?);
        }
        let op = begin(&self.log, "kill", Some(victim));
        self.workers.kill(victim)?;
        self.broke(op);
        self.made.kills += 1;
        self.workers.revive(victim, skew)?;
        let lease = self.random.spread(self.lease_ms.0..self.lease_ms.1);
        self.due.push((mono::now() + lease * MS, Due::End(op, "kill")));
        Ok(true)
    }

    /// Stops a worker, mostly for longer than its shorter leases, and sometimes for longer than its
    /// longest lease.
    fn stop(&mut self) -> io::Result<bool> {
        let victim = self.victim();
        if self.workers.is_stopped(victim) {
            return Ok(false);
        }
        let (shortest, longest) = self.lease_ms;
        let ms = if self.random.percent(8) {
            longest + longest / 10
        } else {
            self.random.spread(shortest + shortest / 2..(shortest * 16).min(longest))
        };
        let op = begin(&self.log, "stop", Some(victim));
        self.workers.stop(victim)?;
        self.proxies(Some(victim)).for_each(|proxy| proxy.client_stands(true));
        self.broke(op);
        self.made.stops += 1;
        self.due.push((mono::now() + ms * MS, Due::GoOn(victim, op)));
        Ok(true)
    }
}

fn begin(log: &Log, name: &str, victim: Option<u32>) -> u64 {
    let op = log.number();
    let place = log.event(op, Fun::Fault, Phase::Invoke);
    log.write(&Event { note: Some(name.into()), victim, ..place });
    op
}

fn every(kind: &str) -> u64 {
    match kind {
        "kill" => KILL_EVERY,
        "stop" => STOP_EVERY,
        "cut" => CUT_EVERY,
        "one-way" => ONE_WAY_EVERY,
        "half-open" => HALF_OPEN_EVERY,
        "clock" => CLOCK_EVERY,
        "jump" => JUMP_EVERY,
        "restart" => RESTART_EVERY,
        "shutdown" => SHUTDOWN_EVERY,
        "slots" => SLOTS_EVERY,
        _ => FAILOVER_EVERY,
    }
}

/// Returns when the first fault of a kind happens: early enough for short runs to contain one.
fn first(kind: &str) -> u64 {
    match kind {
        "jump" => 2_000,
        "one-way" => 3_000,
        "restart" | "failover" => 4_000,
        "half-open" => 6_000,
        "shutdown" => 8_000,
        kind => every(kind),
    }
}
