// SPDX-License-Identifier: MIT OR Apache-2.0
//! `payments storm`: tests the service under load and failures. Many clients pay, send twice, lose
//! answers and retry, while the server is killed with SIGKILL and started again. The storm then
//! accounts for every charge.

mod account;
mod play;

use std::collections::HashSet;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retryproof::OwnerId;
use tokio::time::{Instant, interval, sleep, sleep_until};

use crate::BoxError;
use crate::server::Server;
use play::{Payment, Tally};

/// The average time between two kills, which also sets the pace of the payments.
const BETWEEN_KILLS: Duration = Duration::from_millis(3_500);

/// The settings of a storm.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) keys: usize,
    pub(crate) clients: usize,
    pub(crate) kills: usize,
    /// The URL of a database. By default, the storm creates a SQLite file.
    pub(crate) store: Option<String>,
    /// The URL of another store for the records, on which no transaction of the ledger can join.
    pub(crate) records: Option<String>,
    /// Distinguishes the keys and references of this storm from those of others on the same
    /// database.
    pub(crate) run: String,
    /// Whether charges and records commit separately, which shows what a joined transaction
    /// prevents.
    pub(crate) apart: bool,
    /// The servers' address for operators and Prometheus.
    pub(crate) operate: Option<SocketAddr>,
    pub(crate) keep: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let run =
            OwnerId::new().as_bytes().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Self {
            keys: 3_000,
            clients: 48,
            kills: 8,
            store: None,
            records: None,
            run,
            apart: false,
            operate: None,
            keep: false,
        }
    }
}

/// A new folder in the system's temporary folder. It is removed at the end unless `keep` is set.
pub(crate) struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    pub(crate) fn new(name: &str) -> Result<Self, BoxError> {
        let path =
            std::env::temp_dir().join(format!("retryproof-payments-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self { path, keep: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Runs the storm. Returns `false` if a promise was broken.
pub(crate) async fn run(plan: Plan) -> Result<bool, BoxError> {
    let mut folder = Folder::new("storm")?;
    folder.keep = plan.keep;
    let log = folder.path().join("server.log");
    let own = || format!("sqlite:{}", folder.path().join("payments.db").display());
    let store = plan.store.clone().unwrap_or_else(own);
    let server = Server::start(([127, 0, 0, 1], 0).into(), &store, &plan, &log).await?;
    let address = server.address;
    println!(
        "storm: {} payments from {} clients against http://{address}, with {} kills on the way",
        plan.keys, plan.clients, plan.kills
    );

    let tally = Arc::new(Tally::default());
    let lasts = BETWEEN_KILLS * u32::try_from(plan.kills + 1)?;
    let clients = start_clients(&plan, address, lasts, &tally);
    let progress = tokio::spawn(show_progress(plan.clone(), Arc::clone(&tally)));
    let killed = tokio::spawn(kill_and_restart(
        plan.clone(),
        server,
        store.clone(),
        log.clone(),
        Arc::clone(&tally),
    ));

    let mut payments = Vec::with_capacity(plan.keys);
    for client in clients {
        payments.extend(client.await?);
    }
    let (last, killed) = killed.await??;
    progress.abort();
    println!();
    last.kill().await?;

    let account = account::Account::draw(&payments, &plan, &store, &log, &killed).await?;
    account.print(&tally);
    if plan.keep {
        println!("\nkept: {}", folder.path().display());
    }
    Ok(account.holds())
}

/// Starts the clients. Each plays one payment after the other. The payments are spread over the
/// length of the storm.
fn start_clients(
    plan: &Plan,
    address: SocketAddr,
    lasts: Duration,
    tally: &Arc<Tally>,
) -> Vec<tokio::task::JoinHandle<Vec<Payment>>> {
    let next = Arc::new(AtomicUsize::new(0));
    let begin = Instant::now();
    (0..plan.clients)
        .map(|_| {
            let (next, tally, keys) = (Arc::clone(&next), Arc::clone(tally), plan.keys);
            let run = plan.run.clone();
            tokio::spawn(async move {
                let mut played = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= keys {
                        return played;
                    }
                    // Payments begin in bursts of 100, so that a kill interrupts many payments at
                    // once.
                    let share = lasts.mul_f64((number / 100 * 100) as f64 / keys as f64);
                    sleep_until(begin + share).await;
                    played.push(play::play(address, &run, number, &tally).await);
                    tally.settled.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect()
}

/// Kills the server with SIGKILL and starts it again on the same port, `plan.kills` times. Returns
/// the last server and the killed processes.
async fn kill_and_restart(
    plan: Plan,
    mut server: Server,
    store: String,
    log: PathBuf,
    tally: Arc<Tally>,
) -> Result<(Server, HashSet<u32>), BoxError> {
    let mut killed = HashSet::new();
    let mut dice = play::Dice::new(plan.keys as u64);
    for _ in 0..plan.kills {
        sleep(BETWEEN_KILLS.mul_f64(0.5 + dice.unit())).await;
        // Kill in the middle of a burst: wait until handlers are running.
        let patience = Instant::now() + BETWEEN_KILLS;
        while tally.open.load(Ordering::Relaxed) < 8 && Instant::now() < patience {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(15 + dice.below(30))).await;
        killed.insert(server.process);
        let address = server.address;
        server.kill().await?;
        tally.kills.fetch_add(1, Ordering::Relaxed);
        server = Server::start(address, &store, &plan, &log).await?;
    }
    Ok((server, killed))
}

async fn show_progress(plan: Plan, tally: Arc<Tally>) {
    let begin = Instant::now();
    let live = std::io::stdout().is_terminal();
    let mut tick = interval(Duration::from_millis(if live { 250 } else { 3_000 }));
    loop {
        tick.tick().await;
        let get = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let settled = get(&tally.settled);
        let bar = "#".repeat(30 * settled / plan.keys.max(1));
        let line = format!(
            "[{bar:<30}] {settled}/{} paid  {} requests  {} replayed  {} connections lost  {}/{} kills  {} s",
            plan.keys,
            get(&tally.requests),
            get(&tally.replayed),
            get(&tally.cut) + get(&tally.broken),
            get(&tally.kills),
            plan.kills,
            begin.elapsed().as_secs()
        );
        if live {
            print!("\r{line}\x1b[K");
            let _ = std::io::stdout().flush();
        } else {
            println!("{line}");
        }
    }
}
