// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker process: callers that use the same keys as those of other workers, until its standard
//! input ends or it is killed.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use history::{CLOCK_MOVED, Event, Fun, Phase};
use retryproof::clock::wall_clock_micros;
use retryproof::{IdempotencyEngine, SharedStore};

use crate::call::Caller;
use crate::engine::build_patiently;
use crate::log::Log;
use crate::mono::{self, MS};
use crate::operator::Operator;
use crate::plan::{Plan, Role};
use crate::planted::UNFENCED_OPERATOR;
use crate::random::Random;
use crate::resource::{Guard, Resource};
use crate::settle;
use crate::world::World;

/// The time between two reads of the clock, which show whether the process has run.
const TICK_MS: u64 = 10;

/// If the advances of the wall clock and of the monotonic clock differ by more than this, the wall
/// clock was moved.
const MOVED_US: u64 = 500_000;

/// Runs until the supervisor ends it. The error is for the worker's log.
pub(crate) fn run(plan: &Plan) -> Result<(), Box<dyn std::error::Error>> {
    // Let the kernel kill this worker if the supervisor dies. The worker's standard input would end
    // too, but a stopped process does not read its input.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // Do not print panics, because some actions panic on purpose.
    std::panic::set_hook(Box::new(|_| ()));
    let out: PathBuf = plan.out.clone().unwrap_or_default();
    let log = Arc::new(Log::open(&out, plan.proc, plan.incarnation)?);
    let in_memory = plan.url.as_deref() == Some("memory");
    let threads = threads(plan, in_memory);
    let runtime = if threads > 1 {
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?
    } else {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?
    };
    runtime.block_on(async {
        let (engine, store) = build_patiently(plan, &log).await?;
        let note = (plan.role == Role::Worker).then(|| threads.to_string());
        log.write(&Event { note, ..log.event(0, Fun::Proc, Phase::Invoke) });
        let over = Arc::new(AtomicBool::new(false));
        if plan.role == Role::Settler {
            settle::settle(unsettled(plan), &log, &engine, &store).await?;
        } else {
            hear_the_end(Arc::clone(&over));
            work(plan, &out, &log, (&engine, &store), &over).await?;
            if in_memory {
                settle::settle(unsettled(plan), &log, &engine, &store).await?;
            }
        }
        end(&log, &engine, store).await;
        Ok(())
    })
}

/// Returns how many threads run a process's calls. Half of the workers have several threads. This
/// is not the same half as those that are newer programs.
fn threads(plan: &Plan, in_memory: bool) -> usize {
    match plan.role {
        // With one thread, no two calls of the only process would be in flight at once.
        _ if in_memory => 4,
        Role::Worker if [1, 2].contains(&(plan.proc % 4)) => 2,
        _ => 1,
    }
}

/// Returns the number of the newest identity, and how long its holder may take to end.
fn unsettled(plan: &Plan) -> (u64, Duration) {
    let wait = Duration::from_millis(plan.lease_ms.1 * 2 + 2_000);
    (World { began: plan.began }.newest(), wait)
}

/// Ends the work when standard input ends, because the supervisor has then closed it or is gone.
fn hear_the_end(over: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        over.store(true, Ordering::Relaxed);
    });
}

async fn work(
    plan: &Plan,
    out: &std::path::Path,
    log: &Arc<Log>,
    (engine, store): (&IdempotencyEngine, &SharedStore),
    over: &Arc<AtomicBool>,
) -> std::io::Result<()> {
    let resource = Arc::new(Resource::open(out)?);
    tokio::spawn(watch_lags(Arc::clone(log)));
    let mut callers = Vec::new();
    let stream = |task: u32| {
        u64::from(plan.proc) << 40 | u64::from(plan.incarnation) << 10 | u64::from(task)
    };
    let (world, by) = (World { began: plan.began }, format!("{}-{}", plan.proc, plan.incarnation));
    for number in 0..plan.operators {
        let operator = Operator {
            log: Arc::clone(log),
            store: store.clone(),
            world,
            random: Random::of(plan.seed, stream(512 + number)),
            is_unfenced: plan.plant.as_deref() == Some(UNFENCED_OPERATOR),
            by: by.clone(),
        };
        callers.push(tokio::spawn(operator.run(Arc::clone(over))));
    }
    for task in 0..plan.tasks {
        let caller = Caller {
            log: Arc::clone(log),
            engine: engine.clone(),
            resource: Arc::clone(&resource),
            guard: Guard::named(&plan.guard),
            world,
            lease_ms: plan.lease_ms,
            random: Random::of(plan.seed, stream(task)),
            by: by.clone(),
        };
        callers.push(tokio::spawn(caller.run(Arc::clone(over))));
    }
    for caller in callers {
        let _ = caller.await;
    }
    Ok(())
}

/// Logs when the process did not run, because it was stopped or the machine had no time for it, and
/// when its wall clock was moved.
async fn watch_lags(log: Arc<Log>) {
    let mut last = mono::now();
    let mut showed = wall_clock_micros();
    loop {
        tokio::time::sleep(Duration::from_millis(TICK_MS)).await;
        let now = mono::now();
        let shows = wall_clock_micros();
        if shows.abs_diff(showed + (now - last) / 1_000) > MOVED_US {
            let note = Some(CLOCK_MOVED.to_owned());
            log.write(&Event { note, ..log.event(0, Fun::Proc, Phase::Info) });
        }
        showed = shows;
        if now - last > 2 * TICK_MS * MS {
            let since_ns = Some(last + TICK_MS * MS);
            log.write(&Event { since_ns, ..log.event(0, Fun::Lag, Phase::Ok) });
        }
        last = now;
    }
}

/// Ends the process in an orderly way, and logs its end.
async fn end(log: &Log, engine: &IdempotencyEngine, store: SharedStore) {
    let left = engine.shutdown(Duration::from_secs(5)).await;
    drop(store);
    if left == 0 {
        log.write(&log.event(0, Fun::Proc, Phase::Ok));
    }
}
