// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Process`]: an engine, its callers, and its connection to the store.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use defects::{Defect, Defective};
use history::{Fun, Phase};
use parking_lot::Mutex;
use retryproof::{IdempotencyConfig, IdempotencyEngine, Result, SharedStore};
use retryproof_testkit::{Call, Fault, FaultStore, Faults};
use tokio::task::JoinHandle;

use crate::call::Caller;
use crate::client::{Ahead, Telling};
use crate::link::{Delays, Link, Weather};
use crate::log::{Events, Log};
use crate::random::Random;
use crate::recording::Recording;
use crate::resource::{Guard, Resource};
use crate::setting::{OPERATION_TIMEOUT_MS, Setting};

/// What all processes of a run share.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) seed: u64,
    pub(crate) setting: Setting,
    pub(crate) events: Arc<Events>,
    pub(crate) store: SharedStore,
    pub(crate) weather: Arc<Weather>,
    pub(crate) resource: Arc<Resource>,
    pub(crate) over: Arc<AtomicBool>,
    /// The planted defect, in the engines or in the store as each engine sees it.
    pub(crate) plant: Option<Defect>,
}

/// One life of a process, until it dies or ends.
pub(crate) struct Process {
    pub(crate) log: Arc<Log>,
    pub(crate) faults: Faults,
    pub(crate) engine: IdempotencyEngine,
    pub(crate) callers: Vec<JoinHandle<()>>,
}

/// Plans which calls of a process fail, and how.
fn plan(per_mille: u64, mut random: Random) -> impl FnMut(&Call) -> Option<Fault> + Send {
    const FAULTS: [Fault; 6] = [
        Fault::Refused,
        Fault::AnswerLost,
        Fault::Swallowed,
        Fault::AnswerSwallowed,
        Fault::Panicked,
        Fault::AnswerPanicked,
    ];
    move |_| {
        let drawn = random.within(0..1_000);
        let at = drawn.checked_div(per_mille)?;
        FAULTS.get(usize::try_from(at).unwrap_or(usize::MAX)).copied()
    }
}

/// Returns the store, with the defect if the defect belongs at this level. A defect of the engine
/// is planted above the wrapper that records calls, and a defect of the store below that wrapper.
fn defective(store: SharedStore, plant: Option<Defect>, is_of_engine: bool) -> SharedStore {
    match plant.filter(|defect| defect.is_of_engine() == is_of_engine) {
        None => store,
        defect => SharedStore::new(Defective::new(store, defect)),
    }
}

impl Process {
    /// Builds the engine of a process, without callers. A process without a network has no faults.
    fn build(
        ground: &Ground,
        (proc, life): (u32, u32),
        delays: Option<Delays>,
        faults: u64,
    ) -> Result<Self> {
        let log = Arc::new(Log::new(&ground.events, (proc, life)));
        let stream = |part: u64| Random::of(ground.seed, place(proc, life) + part);
        let link = Link {
            store: defective(ground.store.clone(), ground.plant, false),
            delays,
            random: Mutex::new(stream(1)),
            weather: Arc::clone(&ground.weather),
            log: Arc::clone(&log),
        };
        let failing = Faults::none();
        let recorded = |store: SharedStore| {
            let inner = Recording::new(store, ground.store.clone(), Arc::clone(&log), false);
            defective(SharedStore::new(inner), ground.plant, true)
        };
        let store = if delays.is_some() {
            failing.plan(plan(faults, stream(2)));
            recorded(SharedStore::new(FaultStore::new(link, failing.clone())))
        } else {
            recorded(SharedStore::new(link))
        };
        let mut config = IdempotencyConfig::default();
        config.operation_timeout = Duration::from_millis(OPERATION_TIMEOUT_MS);
        let is_fast = ground.setting.fast >> (proc % 64) & 1 == 1;
        let ahead = Duration::from_secs(if is_fast { 3_600 } else { 0 });
        let engine = IdempotencyEngine::builder(store)
            .config(config)
            .observer(Telling(Arc::clone(&log)))
            .clock(Ahead(ahead, false))
            .build()?;
        log.write(&log.event(0, Fun::Proc, Phase::Invoke));
        Ok(Self { log, faults: failing, engine, callers: Vec::new() })
    }

    /// Starts a process without faults and without callers.
    pub(crate) fn quiet(ground: &Ground, proc: u32) -> Result<Self> {
        Self::build(ground, (proc, 1), None, 0)
    }

    /// Starts a process with callers and faults.
    pub(crate) fn start(ground: &Ground, proc: u32, life: u32) -> Result<Self> {
        let setting = &ground.setting;
        let mut process = Self::build(ground, (proc, life), setting.delays, setting.faults)?;
        for number in 0..setting.callers {
            let caller = Caller {
                log: Arc::clone(&process.log),
                engine: process.engine.clone(),
                resource: Arc::clone(&ground.resource),
                guard: Guard,
                world: setting.world,
                lease_ms: setting.lease_ms,
                random: Random::of(ground.seed, place(proc, life) + 8 + number),
                by: format!("{proc}-{life}-{number}"),
            };
            process.callers.push(tokio::spawn(caller.run(Arc::clone(&ground.over))));
        }
        Ok(process)
    }

    /// Kills the process. Calls that were already sent may still arrive.
    pub(crate) fn kill(self) {
        self.log.die();
        self.callers.iter().for_each(JoinHandle::abort);
    }

    /// Ends the process in an orderly way, and logs its end. Returns whether a caller panicked.
    pub(crate) async fn end(self) -> bool {
        let mut panicked = false;
        for caller in self.callers {
            panicked |= caller.await.is_err_and(|error| error.is_panic());
        }
        if self.engine.shutdown(Duration::from_secs(5)).await == 0 {
            self.log.write(&self.log.event(0, Fun::Proc, Phase::Ok));
        }
        panicked
    }
}

/// Returns where the streams of random numbers of this life of the process begin.
fn place(proc: u32, life: u32) -> u64 {
    u64::from(proc) << 32 | u64::from(life) << 16
}
