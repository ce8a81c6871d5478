// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run from its beginning to its judgement.

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use history::{Fun, Judgement, Manifest, Phase};
use retryproof::{ErrorKind, IdempotencyEngine};

use crate::address::{authority, through};
use crate::clocks::{Clocks, WallClock};
use crate::forms::Behind;
use crate::log::Log;
use crate::mono::{self, MS};
use crate::nemesis::{Made, Nemesis};
use crate::open;
use crate::plan::{LOSE_NTH, OPERATION_TIMEOUT_MS, Plan};
use crate::proxy::{PATIENCE, Proxy, Stranded};
use crate::server::Server;
use crate::workers::{WorkerClocks, Workers};

/// How a run ended.
pub(crate) struct Ended {
    /// Whether it was green.
    pub(crate) green: bool,
    pub(crate) judgement: Judgement,
}

/// Makes a run.
pub(crate) fn make(mut plan: Plan) -> Result<Ended, Box<dyn Error>> {
    let keep = plan.out.is_some();
    let out = match &plan.out {
        Some(out) => out.clone(),
        None => std::env::temp_dir().join(format!(
            "retryproof-chaos-{}-{}",
            std::process::id(),
            plan.seed
        )),
    };
    fs::create_dir_all(&out)?;
    let out = out.canonicalize()?;
    if fs::read_dir(&out)?.next().is_some() {
        return Err(format!("{} is not empty", out.display()).into());
    }
    if plan.store == "memory" {
        // The records of the memory store belong to one process.
        plan.workers = 1;
    }
    let faults = faults(&plan)?;
    let data = data_folder()?;
    let result = with_server(&mut plan, &out, &data, &faults);
    let _ = fs::remove_dir_all(&data);
    let ended = result?;
    if ended.green && !keep {
        fs::remove_dir_all(&out)?;
    } else {
        println!("the history is kept; to judge it again: history {}", out.display());
    }
    Ok(ended)
}

/// Creates the folder of the store's own files, and returns its path. Servers that run as other
/// users must be able to reach this folder.
pub(crate) fn data_folder() -> std::io::Result<PathBuf> {
    let data = std::env::temp_dir().join(format!("retryproof-chaos-data-{}", std::process::id()));
    fs::create_dir_all(&data)?;
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755))?;
    data.canonicalize()
}

/// Returns the faults that a run can make with this store.
fn possible(store: &str) -> &'static [&'static str] {
    match store {
        // A kill would delete the records of the memory store.
        "memory" => &["stop", "lose", "clock"],
        "sqlite" => &["kill", "stop", "clock", "jump", "lose"],
        "sentinel" => &["kill", "stop", "cut", "one-way", "half-open", "clock", "jump", "failover"],
        "standby" | "standby-async" | "patroni" | "mariadb-standby" | "mariadb-standby-async" => {
            &["kill", "stop", "cut", "one-way", "half-open", "clock", "failover"]
        }
        "cluster" => &["kill", "stop", "clock", "failover", "slots"],
        "postgres" | "postgres-plain" | "mariadb" | "redis" => {
            &["kill", "stop", "cut", "one-way", "half-open", "restart", "shutdown", "clock", "jump"]
        }
        url if url.starts_with("sqlite:") => &["kill", "stop", "clock"],
        url if url.contains("+sentinel") => &["kill", "stop", "clock"],
        // The run does not restart a server that it did not start.
        _ => &["kill", "stop", "cut", "one-way", "half-open", "clock"],
    }
}

/// Returns the faults that the run makes.
fn faults(plan: &Plan) -> Result<Vec<String>, String> {
    let can = possible(&plan.store);
    let faults = plan
        .faults
        .clone()
        .unwrap_or_else(|| can.iter().map(|fault| (*fault).to_owned()).collect());
    if let Some(other) = faults.iter().find(|fault| !can.contains(&fault.as_str())) {
        return Err(format!(
            "{} does not support the fault `{other}`: use {}",
            plan.store,
            can.join(", ")
        ));
    }
    Ok(faults)
}

fn with_server(
    plan: &mut Plan,
    out: &Path,
    data: &Path,
    faults: &[String],
) -> Result<Ended, Box<dyn Error>> {
    let asked = |name: &str| faults.iter().any(|fault| fault == name);
    // SQLite compares times with the host's clock (ACQ-7), so all processes must have the same
    // clock, which is the store's.
    let is_sqlite = plan.store.starts_with("sqlite");
    let own = asked("clock") && !is_sqlite;
    let apart = i64::try_from(plan.apart_ms * MS)?;
    let clocks = (own || asked("jump") || apart > 0).then(|| Clocks::build(data)).transpose()?;
    let of = |name: &str| clocks.as_ref().map(|clocks| clocks.clock(name)).transpose();
    let mut clock = if asked("jump") { of("store")? } else { None };
    let shared = clock.as_ref().map(|clock| clock.preload().clone());
    let worker_clocks = match shared.clone().filter(|_| is_sqlite) {
        Some(shared) => WorkerClocks::Shared(shared),
        None if own => {
            let all = (1..=plan.workers).map(|proc| of(&format!("worker-{proc}")));
            WorkerClocks::Own(all.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        }
        None => WorkerClocks::Right,
    };
    let mut ahead = if apart > 0 { of("node")? } else { None };
    ahead.as_mut().map_or(Ok(()), |clock| clock.set(apart))?;
    let mut server = match Server::group(&plan.store, data, ahead.as_ref())? {
        Some(group) => Some(group),
        None => Server::start(plan, data, shared.as_ref())?,
    };
    let times = Times { worker_clocks, clock: clock.as_mut() };
    with_store(plan, (out, data), faults, server.as_mut(), times)
}

/// The clocks that a run moves.
struct Times<'a> {
    worker_clocks: WorkerClocks,
    clock: Option<&'a mut WallClock>,
}

fn with_store(
    plan: &mut Plan,
    (out, data): (&Path, &Path),
    faults: &[String],
    server: Option<&mut Server>,
    times: Times<'_>,
) -> Result<Ended, Box<dyn Error>> {
    let direct = match &server {
        Some(server) => server.url().to_owned(),
        None if plan.store == "sqlite" => format!("sqlite:{}", data.join("records.db").display()),
        None => plan.store.clone(),
    };
    prepare(&direct)?;
    if plan.forms.as_deref() == Some("down") {
        change(&direct, false)?;
    }
    let tables = direct.clone();
    let targets = match &server {
        Some(server) => server.targets(),
        None => authority(&direct).into_iter().collect(),
    };
    // Each worker has a separate proxy, so that its connections can be disturbed while those of the
    // other workers are not.
    let is_disturbed = |kind: &&str| faults.iter().any(|fault| fault == kind);
    let count =
        if ["cut", "one-way", "half-open"].iter().any(is_disturbed) { plan.workers } else { 0 };
    let proxies: Vec<Proxy> =
        (0..count).map(|_| Proxy::start(&targets)).collect::<Result<_, _>>()?;
    let urls = proxies.iter().map(|proxy| through(&direct, &targets, &proxy.ports)).collect();
    let revision = revision();
    write_manifest(plan, out, faults, &revision)?;
    let log = Arc::new(Log::open(out, 0, 1)?);
    plan.lose = faults.iter().any(|fault| fault == "lose").then_some(LOSE_NTH);
    plan.began = mono::now();
    let (options, folder) = (plan.options(&direct, out), out.to_path_buf());
    let mut workers = Workers::start((plan.workers, urls), options, folder, times.worker_clocks)?;
    println!(
        "seed {}: {} workers on {} for {} s, faults {}",
        plan.seed,
        plan.workers,
        plan.store,
        plan.secs,
        faults.join(",")
    );
    workers.until_begun()?;
    let nemesis =
        Nemesis::new(plan, faults, Arc::clone(&log), &mut workers, server, &proxies, times.clock);
    let made = rage(plan, out, &tables, nemesis)?;
    let hung = workers.end(plan.lease_ms.1 + 30_000)?;
    log.write(&log.event(0, Fun::Settle, Phase::Ok));
    // A worker with the memory store settles its own records.
    let settled = plan.store == "memory" || workers.settle()?;
    drop(workers);
    if plan.forms.is_some() {
        refused(&tables)?;
    }
    if hung > 0 || made.died > 0 || !settled {
        println!(
            "workers that did not end: {hung}; workers that ended unexpectedly: {}; settled: \
             {settled}; \
             see the logs in {}",
            made.died,
            out.display()
        );
    }
    if faults.iter().any(|fault| fault == "half-open") {
        let add = |all: Stranded, proxy: &Proxy| all.and(proxy.stranded());
        let Stranded { left, stuck } = proxies.iter().fold(Stranded::default(), add);
        println!(
            "half-open connections: {left} given up by clients, {stuck} used for more than {PATIENCE:?}"
        );
    }
    let ended = hung == 0 && made.died == 0 && made.stuck == 0 && settled;
    let judgement = judge(out)?;
    Ok(Ended { green: ended && judgement.is_green(), judgement })
}

/// Makes faults until the time is over, and prints a line for each second.
fn rage(
    plan: &Plan,
    out: &Path,
    tables: &str,
    mut nemesis: Nemesis<'_>,
) -> Result<Made, Box<dyn Error>> {
    let (began, mut said) = (mono::now(), 0);
    let mut is_due = plan.forms.as_deref() == Some("up");
    while mono::now() < began + plan.secs * 1_000 * MS {
        nemesis.step()?;
        if is_due && mono::now() > began + plan.secs * 500 * MS {
            is_due = false;
            change(tables, false)?;
        }
        mono::rest(3);
        let second = (mono::now() - began) / (1_000 * MS);
        if second > said {
            said = second;
            let Made { kills, stops, cuts, restarts, failovers, skews, jumps, .. } = nemesis.made;
            let Made { one_way, half_open, shutdowns, handovers, freezes, .. } = nemesis.made;
            let Made { slots, interrupted, .. } = nemesis.made;
            println!(
                "{second:>4} s  {kills} kills, {stops} pauses, {cuts} cuts, {one_way} one-way, \
                 {half_open} half-open, {restarts} restarts, {shutdowns} shutdowns, {failovers} \
                 fail-overs, {handovers} handovers, {freezes} freezes, {slots} slots moved, \
                 {interrupted} moves \
                 interrupted, {skews} wrong clocks, {jumps} jumps, {:.1} MB of events",
                size(out)
            );
        }
    }
    Ok(nemesis.finish()?)
}

fn size(out: &Path) -> f64 {
    let files = fs::read_dir(out).into_iter().flatten().flatten();
    let bytes: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    #[expect(clippy::cast_precision_loss, reason = "for a person")]
    let megabytes = bytes as f64 / 1e6;
    megabytes
}

/// Creates the tables. A server that has just begun to listen may not be ready yet.
pub(crate) fn prepare(url: &str) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let until = mono::now() + 30_000 * MS;
    loop {
        let ready = runtime.block_on(async {
            open::migrate(url).await?;
            let store = open::connect(url).await?;
            IdempotencyEngine::new(store).health().await
        });
        match ready {
            Ok(()) => return Ok(()),
            Err(error) if mono::now() > until || error.kind() == ErrorKind::Unsupported => {
                return Err(error.into());
            }
            Err(_) => mono::rest(100),
        }
    }
}

/// Brings the tables to the newer form, or to one that this program may not use.
fn change(url: &str, contracts: bool) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let behind = Behind::open(url).await?;
        if contracts { behind.contract().await } else { behind.add().await }
    })?;
    println!(
        "the tables {}",
        if contracts { "now exclude this program" } else { "have a new column" }
    );
    Ok(())
}

/// Checks that a program that the tables exclude is refused, with an error that says which side to
/// upgrade. Redis has no tables: there, each record has its own form.
fn refused(url: &str) -> Result<(), Box<dyn Error>> {
    if url.starts_with("redis") {
        return Ok(());
    }
    change(url, true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(open::connect(url)) {
        Err(error)
            if error.kind() == ErrorKind::Schema
                && error.to_string().contains("upgrade this program") =>
        {
            println!("the excluded program was refused: {error}");
            Ok(())
        }
        Err(error) => {
            Err(format!("the program was refused, but not because of the tables' version: {error}")
                .into())
        }
        Ok(_) => Err("a program that the tables exclude was not refused".into()),
    }
}

/// Returns the limit, in milliseconds, on the pause between two reads by a waiter that is not
/// notified (ACQ-4). The limit includes the jitter.
fn poll_ms(store: &str) -> u64 {
    match store.split(':').next().unwrap_or_default() {
        // No waiter has to poll, because every change happens in the waiter's own process.
        "memory" => 0,
        "sqlite" => 24,
        "mariadb" | "mariadb-standby" | "mariadb-standby-async" | "mysql" => 48,
        _ => 60,
    }
}

fn write_manifest(
    plan: &Plan,
    out: &Path,
    faults: &[String],
    revision: &str,
) -> std::io::Result<()> {
    let pushes = ["postgres", "standby", "patroni", "redis", "sentinel", "cluster"]
        .iter()
        .any(|store| plan.store.starts_with(store))
        && !plan.store.contains("plain");
    let manifest = Manifest {
        run: format!("{}-{}", plan.store.split([':', '/']).next().unwrap_or_default(), plan.seed),
        seed: plan.seed,
        revision: revision.to_owned(),
        // Keep only the scheme, because the rest of a URL may contain a password (ID-4).
        store: plan.store.split(':').next().unwrap_or_default().to_owned(),
        secs: plan.secs,
        workers: plan.workers,
        lease_ms: plan.lease_ms,
        faults: faults.to_vec(),
        operation_timeout_ms: OPERATION_TIMEOUT_MS,
        slack_ms: plan.slack_ms,
        share: plan.share,
        poll_ms: poll_ms(&plan.store),
        // On a shared machine, a server's notification takes longer than one inside a process.
        // The medians of healthy runs were up to 2 ms, and those of runs without notifications were
        // 9 and 12 ms.
        wake_ms: if pushes { 6 } else { 5 },
        pushes,
        races: plan.races,
        guard: plan.guard.clone(),
        planted: plan.plant.clone(),
    };
    fs::write(out.join("run.json"), serde_json::to_vec_pretty(&manifest)?)
}

/// Returns the source's revision, if git can report it.
pub(crate) fn revision() -> String {
    let asked =
        std::process::Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let text = asked.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    text.and_then(|text| String::from_utf8(text).ok())
        .map_or("unknown".into(), |text| text.trim().to_owned())
}

fn judge(out: &Path) -> Result<Judgement, Box<dyn Error>> {
    let (run, lines) = history::read(out)?;
    let judgement = history::judge(&run);
    let report = history::report(&run, &judgement, &lines);
    fs::write(out.join("report.txt"), &report)?;
    print!("\n{report}");
    Ok(judgement)
}
