// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Nemesis`]: makes the faults, and ends them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use history::{Event, Fun, Phase};

use crate::aim::wait_for_call;
use crate::log::Log;
use crate::mono::{self, MS};
use crate::plan::Plan;
use crate::proxy::{Mood, Proxy};
use crate::random::Random;
use crate::server::Server;
use crate::workers::{Skew, Workers};

/// Mean time between two faults of a kind, in milliseconds.
const KILL_EVERY: u64 = 330;
const STOP_EVERY: u64 = 650;
const CUT_EVERY: u64 = 1_000;
const RESTART_EVERY: u64 = 12_000;
const FAILOVER_EVERY: u64 = 30_000;
const CLOCK_EVERY: u64 = 2_500;

/// The percentage of cuts that disturb the connections of all workers. The others disturb those of
/// one worker.
const ALL_CUT_PERCENT: u64 = 20;

/// How often each fault was made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Made {
    pub(crate) kills: u32,
    pub(crate) stops: u32,
    pub(crate) cuts: u32,
    pub(crate) restarts: u32,
    pub(crate) failovers: u32,
    pub(crate) skews: u32,
    pub(crate) died: u32,
}

/// What has to be done later to undo a fault. A `u64` is the fault's operation, and a `u32` is a
/// worker.
enum Due {
    GoOn(u32, u64),
    Quiet(u64, Option<u32>),
    /// The proxy is calm, but still has to close the connections that it has spoilt.
    Closed(u64, Option<u32>),
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
    /// A fail-over that has not finished yet, and when its state was last checked.
    failing: Option<(u64, u64)>,
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
    ) -> Self {
        let kinds = ["kill", "stop", "cut", "restart", "failover", "clock"];
        let now = mono::now();
        let next = kinds
            .into_iter()
            .filter(|kind| faults.iter().any(|fault| fault == kind))
            .map(|kind| (kind, now + first(kind) * MS))
            .collect();
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
            failing: None,
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
                let every = self.every(kind);
                self.next[at].1 = mono::now() + self.random.within(every / 4..every * 7 / 4) * MS;
                self.make(kind)?;
            }
        }
        self.made.died += self.workers.tend()?;
        self.tell_away();
        self.go_on_failing_over()
    }

    /// Logs the intervals in which no connection of a worker led to the server. What the worker
    /// sent in these intervals has not arrived.
    fn tell_away(&self) {
        for (proc, proxy) in (1..).zip(self.proxies) {
            for (since, until) in proxy.away() {
                let place = self.log.event(0, Fun::Away, Phase::Ok);
                let since_ns = Some(since);
                self.log.write(&Event { victim: Some(proc), since_ns, mono_ns: until, ..place });
            }
        }
    }

    /// During a fail-over, checks at intervals whether the group of servers is complete again.
    fn go_on_failing_over(&mut self) -> io::Result<()> {
        let (Some((op, asked)), Some(server)) = (self.failing, self.server.as_deref_mut()) else {
            return Ok(());
        };
        let now = mono::now();
        if now < asked + 300 * MS {
            return Ok(());
        }
        self.failing = Some((op, now));
        if server.go_on_failing_over()? {
            self.failing = None;
            self.made.failovers += 1;
            self.mended(op);
            // The fault ends a second later, because clients first have to give up their
            // connections to the old primary.
            self.due.push((now + 1_000 * MS, Due::End(op, "failover")));
        }
        Ok(())
    }

    fn every(&self, kind: &str) -> u64 {
        match kind {
            // A worker is stopped for about as long as a lease. If leases are short, stops can
            // therefore be more frequent.
            "stop" => STOP_EVERY.min(self.lease_ms.1).max(150),
            kind => every(kind),
        }
    }

    /// Undoes all faults at the end of the run.
    pub(crate) fn finish(mut self) -> io::Result<Made> {
        let until = mono::now() + 90_000 * MS;
        while self.failing.is_some() {
            self.go_on_failing_over()?;
            mono::rest(20);
            if mono::now() > until {
                return Err(io::Error::other("the fail-over did not finish in time"));
            }
        }
        while !self.due.is_empty() {
            self.undo(u64::MAX)?;
            mono::rest(3);
        }
        self.tell_away();
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

    /// The proxies of that worker's connections, or of all.
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
                    self.end(op, "stop");
                }
                Due::Quiet(op, victim) => {
                    self.proxies(victim).for_each(|proxy| proxy.set(Mood::Calm));
                    self.due.push((now, Due::Closed(op, victim)));
                }
                Due::Closed(op, victim) if self.proxies(victim).any(Proxy::is_closing) => {
                    self.due.push((now, Due::Closed(op, victim)));
                }
                Due::Closed(op, victim) => {
                    if let Some(since) = self.proxies(victim).filter_map(Proxy::harmed_since).min()
                    {
                        self.real.insert(op, (since, None));
                    }
                    self.end(op, "cut");
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

    fn make(&mut self, kind: &str) -> io::Result<()> {
        match kind {
            "kill" => {
                let victim = self.victim();
                self.replace(victim, Skew::default())
            }
            "clock" => {
                let ahead = if self.random.percent(50) { 3_600 } else { -3_600 };
                self.made.skews += 1;
                // The wrong clock lasts until the process is killed.
                let victim = self.victim();
                let op = begin(&self.log, "clock", Some(victim));
                self.end(op, "clock");
                self.replace(victim, Skew { ahead })
            }
            "stop" => self.stop(),
            "cut" => {
                self.cut();
                Ok(())
            }
            "restart" => self.restart(),
            _ => self.fail_over(),
        }
    }

    /// Kills a worker without warning, in half of the cases in the middle of a store call, and
    /// starts it again at once. The fault lasts as long as a lease of the dead process can.
    fn replace(&mut self, victim: u32, skew: Skew) -> io::Result<()> {
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
        Ok(())
    }

    /// Stops a worker, mostly for longer than its shorter leases, and sometimes for longer than its
    /// longest lease.
    fn stop(&mut self) -> io::Result<()> {
        let victim = self.victim();
        if self.workers.is_stopped(victim) {
            return Ok(());
        }
        let (shortest, longest) = self.lease_ms;
        let ms = if self.random.percent(8) {
            longest + longest / 10
        } else {
            self.random.spread(shortest + shortest / 2..(shortest * 16).min(longest))
        };
        let op = begin(&self.log, "stop", Some(victim));
        self.workers.stop(victim)?;
        self.broke(op);
        self.made.stops += 1;
        self.due.push((mono::now() + ms * MS, Due::GoOn(victim, op)));
        Ok(())
    }

    /// Disturbs the connections of one worker, or sometimes of all workers, for a while, in a way
    /// that is drawn at random. If all connections were disturbed for most of the time, most calls
    /// would have no answer, and the judge could decide little.
    fn cut(&mut self) {
        let is_cutting = |due: &Due| matches!(due, Due::Quiet(..) | Due::Closed(..));
        if self.proxies.is_empty() || self.due.iter().any(|(_, due)| is_cutting(due)) {
            return;
        }
        let victim = if self.random.percent(ALL_CUT_PERCENT) { None } else { Some(self.victim()) };
        let mood = match self.random.within(0..6) {
            // Cut all connections at once, at any point of each call.
            0 => Mood::Cut,
            // Cut after a number of bytes to or from the server: within a request, or between a
            // request and its answer.
            1 => Mood::CutAfterRequest(self.random.spread(1..400)),
            2 => Mood::CutAfterReply(self.random.spread(1..200)),
            // The request arrives, but its answer does not.
            3 => Mood::DropReplies,
            4 => Mood::Delay(self.random.spread(5..300)),
            // No data passes, and neither side gets an error.
            _ => Mood::Stall,
        };
        let ms = self.random.spread(20..400);
        let op = begin(&self.log, "cut", victim);
        self.made.cuts += 1;
        self.proxies(victim).for_each(|proxy| proxy.set(mood));
        self.due.push((mono::now() + ms * MS, Due::Quiet(op, victim)));
    }

    /// Kills the store's server and starts it again with its data.
    fn restart(&mut self) -> io::Result<()> {
        let Some(server) = self.server.as_deref_mut() else { return Ok(()) };
        let op = begin(&self.log, "restart", None);
        server.kill()?;
        let since = mono::now();
        mono::rest(self.random.within(0..300));
        server.start_again()?;
        self.real.insert(op, (since, Some(mono::now())));
        self.made.restarts += 1;
        // The fault ends half a second later, because clients first have to reconnect.
        self.due.push((mono::now() + 500 * MS, Due::End(op, "restart")));
        Ok(())
    }

    /// Kills the primary; a replica takes its place, without the writes that had not reached it.
    fn fail_over(&mut self) -> io::Result<()> {
        if self.failing.is_some() {
            return Ok(());
        }
        let Some(server) = self.server.as_deref_mut() else { return Ok(()) };
        let op = self.log.number();
        let place = self.log.event(op, Fun::Fault, Phase::Invoke);
        // The fault begins a second earlier, because the replicas may lack writes that the primary
        // acknowledged in that second.
        let mono_ns = place.mono_ns.saturating_sub(1_000 * MS);
        self.log.write(&Event { note: Some("failover".into()), lossy: true, mono_ns, ..place });
        server.begin_fail_over()?;
        self.broke(op);
        self.failing = Some((op, mono::now()));
        Ok(())
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
        "clock" => CLOCK_EVERY,
        "restart" => RESTART_EVERY,
        _ => FAILOVER_EVERY,
    }
}

/// When the first fault of a kind happens: so early that short runs contain one.
fn first(kind: &str) -> u64 {
    match kind {
        "restart" | "failover" => 4_000,
        kind => every(kind),
    }
}
