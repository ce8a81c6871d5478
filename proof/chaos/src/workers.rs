// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Workers`]: the processes that the supervisor starts, and what it may do to them.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::clocks::{Preload, WallClock};
use crate::log;
use crate::mono::{self, MS};

/// How long, in milliseconds, the run waits until its workers have begun.
const BEGUN_MS: u64 = 60_000;

/// One worker: its present process, and the number of its life.
struct Slot {
    child: Child,
    incarnation: u32,
    stopped: bool,
}

/// All workers of a run.
pub(crate) struct Workers {
    slots: Vec<Slot>,
    options: Vec<String>,
    /// The URL for each worker, if it differs from the URL in the options.
    urls: Vec<String>,
    out: PathBuf,
    clocks: WorkerClocks,
}

/// The wall clocks of the workers.
#[derive(Debug)]
pub(crate) enum WorkerClocks {
    /// All workers have the machine's clock.
    Right,
    /// Each worker has its own clock. The clocks are in the order of the workers' numbers.
    Own(Vec<WallClock>),
    /// All workers share one clock, which is also the store's.
    Shared(Preload),
}

/// The error of a worker's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Skew {
    /// Seconds.
    pub(crate) ahead: i64,
}

impl Workers {
    /// Starts the workers.
    pub(crate) fn start(
        (count, urls): (u32, Vec<String>),
        options: Vec<String>,
        out: PathBuf,
        clocks: WorkerClocks,
    ) -> io::Result<Self> {
        let mut workers = Self { slots: Vec::new(), options, urls, out, clocks };
        for proc in 1..=count {
            let child = workers.spawn(proc, 1, Skew::default())?;
            workers.slots.push(Slot { child, incarnation: 1, stopped: false });
        }
        Ok(workers)
    }

    pub(crate) fn count(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Returns whether each worker has a wall clock of its own.
    pub(crate) fn has_own_clocks(&self) -> bool {
        matches!(self.clocks, WorkerClocks::Own(_))
    }

    /// Moves the wall clock of a worker while it runs.
    pub(crate) fn leap(&mut self, proc: u32, by_ns: i64) -> io::Result<()> {
        match self.own_clock(proc) {
            Some(clock) => clock.set(clock.ahead_ns() + by_ns),
            None => Ok(()),
        }
    }

    fn own_clock(&mut self, proc: u32) -> Option<&mut WallClock> {
        match &mut self.clocks {
            WorkerClocks::Own(clocks) => clocks.get_mut(place(proc)),
            _ => None,
        }
    }

    fn command(&self, role: &str, proc: u32, incarnation: u32) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        let log = self.out.join(format!("{role}-{proc:03}.log"));
        let log = OpenOptions::new().append(true).create(true).open(log)?;
        command
            .arg(role)
            .args(&self.options)
            .args(["--proc", &proc.to_string(), "--incarnation", &incarnation.to_string()])
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(url) = self.urls.get(place(proc)) {
            command.args(["--url", url]);
        }
        if let WorkerClocks::Shared(clock) = &self.clocks {
            clock.apply(&mut command);
        }
        Ok(command)
    }

    fn spawn(&mut self, proc: u32, incarnation: u32, skew: Skew) -> io::Result<Child> {
        let mut command = self.command("worker", proc, incarnation)?;
        if skew.ahead != 0 {
            command.args(["--ahead", &skew.ahead.to_string()]);
        }
        if let Some(clock) = self.own_clock(proc) {
            clock.set(skew.ahead * 1_000_000_000)?;
            clock.preload().apply(&mut command);
        }
        command.stdin(Stdio::piped()).spawn()
    }

    fn slot(&mut self, proc: u32) -> io::Result<&mut Slot> {
        self.slots.get_mut(place(proc)).ok_or_else(|| io::Error::other("the worker does not exist"))
    }

    pub(crate) fn is_stopped(&mut self, proc: u32) -> bool {
        self.slot(proc).is_ok_and(|slot| slot.stopped)
    }

    /// Returns the file in which the worker records its calls.
    pub(crate) fn journal(&mut self, proc: u32) -> io::Result<PathBuf> {
        let incarnation = self.slot(proc)?.incarnation;
        Ok(self.out.join(log::name(proc, incarnation)))
    }

    /// Waits until each worker has begun to call, for at most [`BEGUN_MS`]. Until then, a fault
    /// hits nothing, and a busy machine needs many seconds to start all workers.
    pub(crate) fn until_begun(&mut self) -> io::Result<()> {
        let until = mono::now() + BEGUN_MS * MS;
        for proc in (1..).take(self.slots.len()) {
            while !self.has_begun(proc)? && mono::now() < until {
                mono::rest(10);
            }
        }
        Ok(())
    }

    /// Returns how many workers are at work.
    pub(crate) fn count_at_work(&mut self) -> io::Result<u64> {
        let mut count = 0;
        for proc in (1..).take(self.slots.len()) {
            count += u64::from(self.is_at_work(proc)?);
        }
        Ok(count)
    }

    /// Returns whether a worker has begun to call, and is not stopped.
    pub(crate) fn is_at_work(&mut self, proc: u32) -> io::Result<bool> {
        Ok(!self.is_stopped(proc) && self.has_begun(proc)?)
    }

    /// Returns whether a worker has opened its store and begun to call.
    fn has_begun(&mut self, proc: u32) -> io::Result<bool> {
        Ok(std::fs::metadata(self.journal(proc)?).is_ok_and(|file| file.len() > 0))
    }

    /// Kills a worker without warning.
    pub(crate) fn kill(&mut self, proc: u32) -> io::Result<()> {
        let slot = self.slot(proc)?;
        // The process is an unreaped child, so no other process can have its id.
        slot.child.kill()?;
        slot.child.wait()?;
        Ok(())
    }

    /// Starts the worker again, as another incarnation.
    pub(crate) fn revive(&mut self, proc: u32, skew: Skew) -> io::Result<()> {
        let incarnation = self.slot(proc)?.incarnation + 1;
        let child = self.spawn(proc, incarnation, skew)?;
        *self.slot(proc)? = Slot { child, incarnation, stopped: false };
        Ok(())
    }

    pub(crate) fn stop(&mut self, proc: u32) -> io::Result<()> {
        let slot = self.slot(proc)?;
        slot.stopped = true;
        signal(&slot.child, Signal::STOP)
    }

    pub(crate) fn go_on(&mut self, proc: u32) -> io::Result<()> {
        let slot = self.slot(proc)?;
        slot.stopped = false;
        signal(&slot.child, Signal::CONT)
    }

    /// Restarts the workers that ended by themselves, and returns how many did. No worker should
    /// end during a run.
    pub(crate) fn tend(&mut self) -> io::Result<u32> {
        let mut ended = 0;
        for proc in 1..=u32::try_from(self.slots.len()).unwrap_or(0) {
            if self.slot(proc)?.child.try_wait()?.is_some() {
                ended += 1;
                self.revive(proc, Skew::default())?;
            }
        }
        Ok(ended)
    }

    /// Lets all workers end by themselves. A worker that does not end is killed and counted.
    pub(crate) fn end(&mut self, within_ms: u64) -> io::Result<u32> {
        for slot in &mut self.slots {
            if slot.stopped {
                slot.stopped = false;
                signal(&slot.child, Signal::CONT)?;
            }
            drop(slot.child.stdin.take());
        }
        let until = crate::mono::now() + within_ms * crate::mono::MS;
        let mut killed = 0;
        for slot in &mut self.slots {
            while slot.child.try_wait()?.is_none() {
                if crate::mono::now() > until {
                    slot.child.kill()?;
                    slot.child.wait()?;
                    killed += 1;
                    break;
                }
                crate::mono::rest(5);
            }
        }
        Ok(killed)
    }

    /// Completes what is left unfinished, and returns whether that succeeded.
    pub(crate) fn settle(&self) -> io::Result<bool> {
        let proc = u32::try_from(self.slots.len()).unwrap_or(0) + 1;
        Ok(self.command("settle", proc, 1)?.stdin(Stdio::null()).status()?.success())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            let _ = slot.child.kill();
            let _ = slot.child.wait();
        }
    }
}

/// Returns the index of the worker with this number.
fn place(proc: u32) -> usize {
    usize::try_from(proc).unwrap_or(0).wrapping_sub(1)
}

/// Sends a signal to a process that was started here and not yet waited for.
pub(crate) fn signal(child: &Child, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a child process has no process id"))?;
    kill_process(pid, signal).map_err(io::Error::from)
}
