// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Plan`]: the settings of a run.

use std::path::PathBuf;
use std::time::Duration;

/// The usage text.
pub(crate) const USAGE: &str = "\
usage: chaos [options]
       chaos erased [--store NAME] [--retries N]: searches for what is left of erased answers
       chaos sealed [--store NAME]: what a dump and the files show of sealed answers
       chaos power [--losses N] [--synchronous full|normal] [--swallow all|folders]: what a SQLite file
                   keeps when the power fails; swallowed syncs must be noticed
       chaos full [--store sqlite|postgres|mariadb]: what happens on a full disk
       chaos jumps [--store NAME]: what happens when the wall clock of a store jumps
  --store NAME|URL    sqlite (default), postgres, postgres-plain, mariadb, redis, sentinel, cluster: a server of
                      its own, which it may kill;
                      standby: a PostgreSQL primary with two synchronous standbys; standby-async: with an
                      asynchronous one, whose link is slow;
                      patroni: three PostgreSQL servers, which Patroni fails over, with synchronous commits;
                      mariadb-standby: a MariaDB primary with a semi-synchronous replica;
                      mariadb-standby-async: with an asynchronous one, whose link is slow;
                      memory: one worker, which is not killed; or the URL of a server that runs
  --secs N            how long the run makes faults (default 30)
  --workers N         worker processes (default 8)
  --tasks N           callers in each worker (default 8)
  --operators N       operators in each worker, who intervene in the callers' records (default 0)
  --races N           how many interventions have to race with a holder or a taker (default 0)
  --forms up|down     every other worker is a newer program, which adds to the tables half-way (up) or has
                      added before the start (down); each worker migrates when it starts
  --lease-ms A..B     leases of A to B milliseconds (default 40..2000)
  --faults LIST       some of kill,stop,cut,one-way,half-open,lose,restart,shutdown,clock,jump,failover,
                      slots (default: all of the store)
  --wait-replicas N   how many replicas each grant and completion waits for (redis, sentinel, cluster; default 0)
  --replica-delay-ms N   delays what a cluster's primaries send to their replicas
  --seed S            repeats the choices of an earlier run (default: random)
  --out DIR           keeps the history in DIR (default: a temporary folder)
  --failovers N       repeats the run until the green runs of this revision have made N failovers; the counts
                      are in target/chaos, so the command continues where it stopped
  --apart-ms N        every second server of a group that fails over has a clock that is N ms ahead; not on Redis
  --share F           the share of the minimum counts to reach (default 1: a dedicated machine)
  --slack-ms N        extra time that a shared machine may take (default 3000)
  --guard none|token|lease   what guards effects outside of the store (default token)
  --plant NAME        plants a defect; `--plant list` prints their names";

/// A worker's or a whole run's settings. A worker gets the same options as its supervisor, and a
/// number.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) role: Role,
    pub(crate) store: String,
    /// The URL that workers connect to. It differs from `store` if the run creates the file or
    /// starts the server, or if a proxy is between the workers and the server.
    pub(crate) url: Option<String>,
    pub(crate) secs: u64,
    pub(crate) workers: u32,
    pub(crate) tasks: u32,
    pub(crate) operators: u32,
    pub(crate) races: u64,
    pub(crate) retries: u64,
    pub(crate) forms: Option<String>,
    pub(crate) lease_ms: (u64, u64),
    pub(crate) faults: Option<Vec<String>>,
    pub(crate) seed: u64,
    pub(crate) out: Option<PathBuf>,
    /// How many failovers to make, in several runs.
    pub(crate) failovers: Option<u64>,
    /// How far, in milliseconds, the clocks of a group's nodes are apart.
    pub(crate) apart_ms: u64,
    pub(crate) share: f64,
    pub(crate) slack_ms: u64,
    pub(crate) guard: String,
    pub(crate) plant: Option<String>,
    /// The store loses every answer whose number is divisible by this.
    pub(crate) lose: Option<u64>,
    pub(crate) proc: u32,
    pub(crate) incarnation: u32,
    pub(crate) began: u64,
    /// How far the engine's clock is ahead, in seconds.
    pub(crate) ahead: i64,
    /// How many power losses to make.
    pub(crate) losses: u64,
    pub(crate) synchronous: String,
    /// Which syncs the disk acknowledges but does not make.
    pub(crate) swallow: Option<String>,
    /// The delay on the links between the primaries and replicas of a cluster.
    pub(crate) delay: Option<Duration>,
    /// How many replicas each grant and completion waits for (Redis).
    pub(crate) wait_replicas: u32,
}

/// The role of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Supervisor,
    Worker,
    /// Completes what is left unfinished after the last fault.
    Settler,
    /// Erases answers, looks for them in a dump, and retries.
    Eraser,
    /// Seals answers, looks for them in a dump and in files, rotates, and erases a subject.
    Sealer,
    /// Makes power losses.
    PowerLoss,
    /// Works on a SQLite file until it is killed.
    PowerCaller,
    /// Starts this program again as `FullInside`, in a namespace in which it can mount a file
    /// system.
    Full,
    FullInside,
    /// Makes the wall clock jump, after this program has started itself again with a clock that can
    /// be moved.
    Jumps,
    JumpsInside,
}

/// `operation-timeout` of the workers' engines.
pub(crate) const OPERATION_TIMEOUT_MS: u64 = 1_000;

const FAULTS: [&str; 12] = [
    "kill",
    "stop",
    "cut",
    "one-way",
    "half-open",
    "lose",
    "restart",
    "shutdown",
    "clock",
    "jump",
    "failover",
    "slots",
];

/// One of this many answers that a worker gets is lost, if the fault `lose` is on.
pub(crate) const LOSE_NTH: u64 = 97;

impl Plan {
    /// Reads the command line.
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = args.peekable();
        let role = match args.peek().map(String::as_str) {
            Some("worker") => Role::Worker,
            Some("settle") => Role::Settler,
            Some("erased") => Role::Eraser,
            Some("sealed") => Role::Sealer,
            Some("power") => Role::PowerLoss,
            Some("power-caller") => Role::PowerCaller,
            Some("full") => Role::Full,
            Some("full-inside") => Role::FullInside,
            Some("jumps") => Role::Jumps,
            Some("jumps-inside") => Role::JumpsInside,
            _ => Role::Supervisor,
        };
        if role != Role::Supervisor {
            args.next();
        }
        let mut plan = Self {
            role,
            store: "sqlite".into(),
            url: None,
            secs: 30,
            workers: 8,
            tasks: 8,
            operators: 0,
            races: 0,
            retries: 10_000,
            forms: None,
            lease_ms: (40, 2_000),
            faults: None,
            seed: crate::mono::now(),
            out: None,
            failovers: None,
            apart_ms: 0,
            share: 1.0,
            slack_ms: 3_000,
            guard: "token".into(),
            plant: None,
            lose: None,
            proc: 0,
            incarnation: 0,
            began: 0,
            ahead: 0,
            losses: 200,
            synchronous: "full".into(),
            swallow: None,
            delay: None,
            wait_replicas: 0,
        };
        while let Some(option) = args.next() {
            let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
            if option == "--plant" && !crate::planted::is_known(&value) {
                return Err(format!("{option} can be: {}", crate::planted::names()));
            }
            plan.set(&option, &value).ok_or_else(|| format!("{option} cannot be {value:?}"))?;
        }
        let is_group = plan.store.contains("standby") || plan.store == "patroni";
        if plan.apart_ms > 0 && !is_group {
            return Err("--apart-ms needs a standby, a MariaDB replica or Patroni (--store)".into());
        }
        if let Some(unknown) =
            plan.faults.iter().flatten().find(|fault| !FAULTS.contains(&fault.as_str()))
        {
            return Err(format!("unknown fault `{unknown}`: use {}", FAULTS.join(", ")));
        }
        Ok(plan)
    }

    fn set(&mut self, option: &str, value: &str) -> Option<()> {
        match option {
            "--store" => self.store = value.into(),
            "--url" => self.url = Some(value.into()),
            "--secs" => self.secs = value.parse().ok().filter(|secs| *secs > 0)?,
            "--workers" => {
                self.workers = value.parse().ok().filter(|workers| (1..=64).contains(workers))?
            }
            "--tasks" => {
                self.tasks = value.parse().ok().filter(|tasks| (1..=256).contains(tasks))?
            }
            "--operators" => {
                self.operators = value.parse().ok().filter(|operators| *operators <= 256)?
            }
            "--forms" => {
                self.forms = Some(value.into());
                ["up", "down"].contains(&value).then_some(())?;
            }
            "--retries" => self.retries = value.parse().ok()?,
            "--races" => self.races = value.parse().ok()?,
            "--lease-ms" => {
                let (low, high) = value.split_once("..")?;
                let (low, high) = (low.parse().ok()?, high.parse().ok()?);
                self.lease_ms = (low, high);
                (10 <= low && low <= high && high <= 60_000).then_some(())?;
            }
            "--faults" => {
                let list = value.split(',').filter(|fault| !fault.is_empty() && *fault != "none");
                self.faults = Some(list.map(str::to_owned).collect());
            }
            "--seed" => self.seed = value.parse().ok()?,
            "--out" => self.out = Some(value.into()),
            "--failovers" => self.failovers = Some(value.parse().ok().filter(|all| *all > 0)?),
            "--share" => {
                self.share = value.parse().ok().filter(|share| (0.0..=1.0).contains(share))?
            }
            "--apart-ms" => self.apart_ms = value.parse().ok().filter(|ms| *ms <= 60_000)?,
            "--slack-ms" => self.slack_ms = value.parse().ok()?,
            "--guard" => {
                self.guard = value.into();
                ["none", "token", "lease"].contains(&value).then_some(())?;
            }
            "--plant" => self.plant = Some(value.into()),
            "--lose" => self.lose = Some(value.parse().ok().filter(|nth| *nth > 0)?),
            "--proc" => self.proc = value.parse().ok()?,
            "--incarnation" => self.incarnation = value.parse().ok()?,
            "--began" => self.began = value.parse().ok()?,
            "--ahead" => self.ahead = value.parse().ok()?,
            "--losses" => self.losses = value.parse().ok()?,
            "--replica-delay-ms" => {
                self.delay = Some(Duration::from_millis(value.parse().ok().filter(|ms| *ms > 0)?))
            }
            "--wait-replicas" => self.wait_replicas = value.parse().ok()?,
            "--synchronous" => {
                self.synchronous = value.into();
                ["full", "normal"].contains(&value).then_some(())?;
            }
            "--swallow" => {
                self.swallow = Some(value.into());
                ["all", "folders"].contains(&value).then_some(())?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Returns whether SQLite's commits survive a power loss.
    pub(crate) fn is_durable(&self) -> bool {
        self.synchronous == "full"
    }

    /// Returns the options for a process of this run.
    pub(crate) fn options(&self, url: &str, out: &std::path::Path) -> Vec<String> {
        let mut options = vec![
            "--store".into(),
            self.store.clone(),
            "--url".into(),
            url.into(),
            "--tasks".into(),
            self.tasks.to_string(),
            "--operators".into(),
            self.operators.to_string(),
            "--lease-ms".into(),
            format!("{}..{}", self.lease_ms.0, self.lease_ms.1),
            "--seed".into(),
            self.seed.to_string(),
            "--out".into(),
            out.display().to_string(),
            "--guard".into(),
            self.guard.clone(),
            "--began".into(),
            self.began.to_string(),
        ];
        if let Some(forms) = &self.forms {
            options.extend(["--forms".into(), forms.clone()]);
        }
        if let Some(nth) = self.lose {
            options.extend(["--lose".into(), nth.to_string()]);
        }
        if let Some(plant) = &self.plant {
            options.extend(["--plant".into(), plant.clone()]);
        }
        options
    }
}
