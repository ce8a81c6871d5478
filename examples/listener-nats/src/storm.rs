// SPDX-License-Identifier: MIT OR Apache-2.0
//! `listener-nats storm`: publishes orders twice while it kills consumers with SIGKILL and cuts
//! their connections, and then accounts for every order.

mod account;
mod ack_monitor;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_nats::jetstream::Context;
use retryproof::OwnerId;
use retryproof_testkit::wire::WireProxy;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{BoxError, app, invoices};
use account::Account;
use ack_monitor::AckMonitor;

/// The time between two kills or cuts.
const FOR_EACH: Duration = Duration::from_millis(1_000);
/// Orders arrive in bursts, so that a kill affects many messages at once.
const BURST: usize = 50;
/// The lease: how long the orders of a killed consumer stay in flight.
const LEASE: &str = "2";
/// How long the answers to the last messages may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// The settings of a storm.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) orders: usize,
    pub(crate) workers: usize,
    pub(crate) kills: usize,
    pub(crate) cuts: usize,
    pub(crate) keep: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { orders: 10_000, workers: 3, kills: 20, cuts: 20, keep: false }
    }
}

/// The consumers, each in a separate process.
struct Workers {
    url: String,
    name: String,
    db: PathBuf,
    log: PathBuf,
    running: Vec<Child>,
}

impl Workers {
    fn start(&self) -> Result<Child, BoxError> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["listen", "--url", &self.url, "--name", &self.name, "--lease", LEASE, "--db"]);
        command.arg(&self.db).env("RUST_LOG", "info").env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        Ok(command.spawn()?)
    }

    /// Fails if a consumer ended unexpectedly. Starting it again would not help.
    fn all_live(&mut self) -> Result<(), BoxError> {
        for worker in &mut self.running {
            if let Some(status) = worker.try_wait()? {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default();
                return Err(format!("a consumer ended unexpectedly with {status}: {last}").into());
            }
        }
        Ok(())
    }

    /// Kills a consumer with SIGKILL and starts another one.
    async fn kill(&mut self, which: usize) -> Result<(), BoxError> {
        let at = which % self.running.len();
        self.all_live()?;
        self.running[at].kill().await?;
        self.running[at] = self.start()?;
        Ok(())
    }
}

/// Runs the storm. Returns `false` if a promise was broken.
pub(crate) async fn run(plan: Plan, url: &str) -> Result<bool, BoxError> {
    let run: String =
        OwnerId::new().as_bytes().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let name = format!("storm-{run}");
    let folder = std::env::temp_dir().join(format!("retryproof-listener-nats-{run}"));
    std::fs::create_dir_all(&folder)?;
    let played = play(&plan, url, &name, &folder).await;
    if plan.keep {
        println!("\nkept: {}", folder.display());
    } else {
        std::fs::remove_dir_all(&folder)?;
    }
    played
}

async fn play(plan: &Plan, url: &str, name: &str, folder: &Path) -> Result<bool, BoxError> {
    let jetstream = app::connect(url).await?;
    app::streams(&jetstream, name).await?;
    app::consumer(&jetstream, name).await?;
    let acks = AckMonitor::listen(&jetstream, name).await?;
    let proxy = WireProxy::to(address(url)?).await?;
    let mut workers = Workers {
        url: format!("nats://{}", proxy.addr()),
        name: name.to_owned(),
        db: folder.join("invoices.db"),
        log: folder.join("listeners.log"),
        running: Vec::new(),
    };
    drop(invoices::open(&workers.db)?);
    for _ in 0..plan.workers {
        let worker = workers.start()?;
        workers.running.push(worker);
    }
    println!(
        "storm: {} orders, each published twice, to {} consumers over {}; {} of them killed, \
         connections cut {} times",
        plan.orders, plan.workers, workers.url, plan.kills, plan.cuts
    );

    let began = Instant::now();
    let lasts = FOR_EACH * u32::try_from(plan.kills + plan.cuts + 1)?;
    let publishing =
        tokio::spawn(publish_all(jetstream.clone(), name.to_owned(), plan.orders, lasts));
    let (mut killed, mut cut) = (0, 0);
    let turns = plan.kills + plan.cuts;
    for turn in 0..turns {
        // Strike in the middle of a burst, just after some messages were answered.
        let before = acks.answers();
        let patience = sleep(FOR_EACH * 10);
        tokio::select! {
            () = acks.more_than(before + BURST / 4) => {}
            () = patience => {}
        }
        if (turn % 2 == 0 && killed < plan.kills) || cut == plan.cuts {
            workers.kill(turn / 2).await?;
            killed += 1;
        } else {
            proxy.cut();
            cut += 1;
        }
        let share = lasts.mul_f64((turn + 1) as f64 / (turns + 1) as f64);
        sleep_until(began + share).await;
    }
    publishing.await??;
    let all = jetstream.get_stream(name).await?.cached_info().state.messages;
    let done = timeout(PATIENCE, async {
        while !is_done(&jetstream, name).await? {
            workers.all_live()?;
            sleep(Duration::from_millis(200)).await;
        }
        Ok::<(), BoxError>(())
    });
    let done = done.await;
    let took = began.elapsed();
    if let Ok(died) = &done
        && let Err(why) = died
    {
        return Err(why.to_string().into());
    }
    for worker in &mut workers.running {
        worker.kill().await?;
    }
    let account = Account::draw(plan, &workers.db, &workers.log, &acks, &jetstream, name).await?;
    account.print(killed, cut, all, took);
    jetstream.delete_stream(name).await?;
    jetstream.delete_stream(app::dead(name).0).await?;
    Ok(account.holds() && done.is_ok())
}

/// Publishes each order twice. The second copy follows the first immediately, or a burst later.
async fn publish_all(
    jetstream: Context,
    name: String,
    orders: usize,
    lasts: Duration,
) -> Result<(), BoxError> {
    let begin = Instant::now();
    for first in (0..orders).step_by(BURST) {
        sleep_until(begin + lasts.mul_f64(first as f64 / orders as f64)).await;
        let burst = first..orders.min(first + BURST);
        let late = burst.clone().filter(|n| n % 2 == 1);
        for n in burst
            .clone()
            .flat_map(|n| std::iter::once(n).chain((n % 2 == 0).then_some(n)))
            .chain(late)
        {
            app::send(&jetstream, &name, &order(n), i64::try_from(n)?).await?;
        }
    }
    Ok(())
}

/// Returns the id of an order of the storm.
pub(crate) fn order(n: usize) -> String {
    format!("order-{n}")
}

async fn is_done(jetstream: &Context, name: &str) -> Result<bool, BoxError> {
    let consumer = app::consumer(jetstream, name).await?;
    let info = consumer.cached_info();
    Ok(info.num_pending == 0 && info.num_ack_pending == 0)
}

fn address(url: &str) -> Result<SocketAddr, BoxError> {
    let host = url.strip_prefix("nats://").unwrap_or(url);
    host.parse().map_err(|_| {
        "the storm needs the address of a server, such as nats://127.0.0.1:4222".into()
    })
}
