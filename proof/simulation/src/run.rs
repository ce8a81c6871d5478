// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Simulation`]: the run of one seed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, io};

use defects::Defect;
use history::{Event, Fun, Journal, Judgement, Line, Manifest, Phase, Run, hash, judge};
use retryproof::MemoryStore;
use retryproof::SharedStore;
use retryproof::clock::{Clock as _, SystemClock};
use tokio::time::{sleep, sleep_until};

use crate::link::Weather;
use crate::log::{Events, Log};
use crate::mono;
use crate::numbered::Numbered;
use crate::process::{Ground, Process};
use crate::random::Random;
use crate::resource::Resource;
use crate::setting::{OPERATION_TIMEOUT_MS, Setting, Strike};
use crate::settle::settle;

/// The number of the process that completes the keys that the others leave unfinished.
const SETTLER: u32 = 99;

/// What happened in the world of a seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    manifest: Manifest,
    /// The history, in the order in which it happened.
    pub events: Vec<Event>,
}

impl Simulation {
    /// Runs the world of a seed, with a defect if one is planted.
    ///
    /// # Panics
    /// If a caller or the store fails for a reason that no fault explains: that is a defect of the
    /// simulation.
    #[must_use]
    pub fn run(seed: u64, plant: Option<Defect>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime should be built");
        runtime.block_on(async {
            mono::begin();
            let setting = Setting::draw(&mut Random::of(seed, 0));
            let manifest = manifest(seed, &setting, plant);
            let events = Arc::new(Events::default());
            run(seed, setting, plant, &events).await.expect("the store should answer in the end");
            Self { manifest, events: events.take() }
        })
    }

    /// Judges the history.
    ///
    /// # Panics
    /// If the history is malformed: that is a defect of the simulation.
    #[must_use]
    pub fn judge(&self) -> (Run, Judgement) {
        let mut run = Run::new(self.manifest.clone());
        for (number, event) in (0..).zip(&self.events) {
            run.take(event.clone(), Line { file: 0, number }).expect("an event should be whole");
        }
        run.close();
        let judgement = judge(&run);
        (run, judgement)
    }

    /// Returns a hash of the whole history.
    #[must_use]
    pub fn digest(&self) -> u64 {
        hash(format!("{:?}", self.events).as_bytes())
    }

    /// Writes the history into a folder, as the judge of the kill tests reads it.
    ///
    /// # Errors
    /// Fails if the folder cannot be written.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
        fs::write(folder.join("run.json"), serde_json::to_vec_pretty(&self.manifest)?)?;
        let journal = Journal::open(folder.join("events.jsonl"))?;
        self.events.iter().try_for_each(|event| journal.write(event))
    }
}

fn manifest(seed: u64, setting: &Setting, plant: Option<Defect>) -> Manifest {
    Manifest {
        run: format!("simulation-{seed}"),
        seed,
        revision: String::new(),
        store: "simulated".into(),
        secs: 1,
        workers: u32::try_from(setting.processes).unwrap_or(0),
        lease_ms: setting.lease_ms,
        faults: Vec::new(),
        operation_timeout_ms: OPERATION_TIMEOUT_MS,
        slack_ms: setting.slack_ms,
        share: 1.0,
        poll_ms: setting.slack_ms,
        wake_ms: setting.slack_ms,
        pushes: true,
        races: 0,
        guard: "token".into(),
        planted: plant.map(|plant| plant.name().into()),
    }
}

async fn run(
    seed: u64,
    setting: Setting,
    plant: Option<Defect>,
    events: &Arc<Events>,
) -> retryproof::Result<()> {
    let memory = SharedStore::builder(MemoryStore::new()).with_purge().with_inspect().build();
    let numbered = Numbered::new(memory);
    let numbered = SharedStore::builder(numbered).with_purge().with_inspect().build();
    let mut ground = Ground {
        seed,
        setting,
        events: Arc::clone(events),
        store: numbered,
        weather: Arc::new(Weather::default()),
        resource: Resource::new(),
        over: Arc::new(AtomicBool::new(false)),
        plant,
    };
    let strikes = std::mem::take(&mut ground.setting.strikes);
    let mut nemesis = Nemesis::new(&ground)?;
    let began = SystemClock.now();
    for (at, strike) in strikes {
        sleep_until(began + Duration::from_millis(at)).await;
        nemesis.strike(&ground, strike).await?;
    }
    sleep_until(began + Duration::from_millis(ground.setting.length_ms)).await;
    nemesis.rest(&ground).await
}

/// Applies the strikes to the run.
struct Nemesis {
    log: Log,
    processes: Vec<(u32, Option<Process>)>,
    outage: Option<(u64, Strike)>,
}

impl Nemesis {
    fn new(ground: &Ground) -> retryproof::Result<Self> {
        let log = Log::new(&ground.events, (0, 1));
        let start = |proc: usize| Ok((1, Some(Process::start(ground, number(proc), 1)?)));
        let processes = (0..ground.setting.processes).map(start).collect::<Result<_, _>>();
        Ok(Self {
            log,
            processes: processes.map_err(|error: retryproof::Error| error)?,
            outage: None,
        })
    }

    fn begin(&self, name: &str, victim: Option<u32>) -> u64 {
        let op = self.log.number();
        let place = self.log.event(op, Fun::Fault, Phase::Invoke);
        self.log.write(&Event { note: Some(name.into()), victim, ..place });
        op
    }

    fn end(&self, op: u64, name: &str) {
        let place = self.log.event(op, Fun::Fault, Phase::Ok);
        self.log.write(&Event { note: Some(name.into()), ..place });
    }

    async fn strike(&mut self, ground: &Ground, strike: Strike) -> retryproof::Result<()> {
        match strike {
            Strike::Begin(outage) => {
                self.outage = Some((self.begin("outage", None), strike));
                self.living().for_each(|process| process.faults.begin_outage(outage));
            }
            Strike::Stall(ms) => {
                self.outage = Some((self.begin("outage", None), strike));
                ground.weather.stall(SystemClock.now() + Duration::from_millis(ms));
            }
            Strike::End => self.end_outage(),
            Strike::Crash(proc) => {
                if let Some(process) = self.processes[proc].1.take() {
                    let op = self.begin("kill", Some(number(proc)));
                    process.kill();
                    self.end(op, "kill");
                }
            }
            Strike::Start(proc) => {
                let (life, process) = &mut self.processes[proc];
                if process.is_none() {
                    *life += 1;
                    let started = Process::start(ground, number(proc), *life)?;
                    if let Some((_, Strike::Begin(outage))) = self.outage {
                        started.faults.begin_outage(outage);
                    }
                    *process = Some(started);
                }
            }
            Strike::Purge => _ = ground.store.purge(3).await?,
        }
        Ok(())
    }

    fn living(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter_map(|(_, process)| process.as_ref())
    }

    fn end_outage(&mut self) {
        if let Some((op, _)) = self.outage.take() {
            self.living().for_each(|process| process.faults.end_outage());
            self.end(op, "outage");
        }
    }

    /// Ends all faults, waits for all calls, and completes the keys that are left unfinished.
    async fn rest(mut self, ground: &Ground) -> retryproof::Result<()> {
        self.end_outage();
        ground.weather.stall(SystemClock.now());
        self.living().for_each(|process| process.faults.clear());
        self.log.write(&self.log.event(0, Fun::Settle, Phase::Ok));
        ground.over.store(true, Ordering::Relaxed);
        for (_, process) in std::mem::take(&mut self.processes) {
            if let Some(process) = process {
                assert!(!process.end().await, "a caller should not panic");
            }
        }
        let newest = ground.setting.world.newest();
        // Give the calls that were sent earlier time to arrive.
        sleep(Duration::from_secs(2)).await;
        let settler = Process::quiet(ground, SETTLER)?;
        let wait = Duration::from_millis(ground.setting.lease_ms.1 * 2 + 2_000);
        settle((newest, wait), &settler.log, &settler.engine, &ground.store).await?;
        settler.end().await;
        Ok(())
    }
}

/// Returns a process's number in the history.
fn number(proc: usize) -> u32 {
    u32::try_from(proc).unwrap_or(0) + 1
}
