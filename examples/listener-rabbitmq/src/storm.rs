// SPDX-License-Identifier: MIT OR Apache-2.0
//! `listener-rabbitmq storm`: publishes every order twice, kills the listeners with SIGKILL and
//! cuts their connections, then accounts for every order, message and run.

mod account;

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use retryproof::OwnerId;
use retryproof_testkit::wire::WireProxy;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::broker::{self, Broker, Message};
use crate::ledger::{self, OrderPaid};
use crate::shop::Shop;
use crate::{BROKER, BoxError};

/// How long a lease lasts in the storm: longer than the pauses of a busy machine, but short enough
/// for many kills.
const LEASE: Duration = Duration::from_secs(2);
/// After this time without progress, the storm counts a message as lost and fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// The settings of a storm.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) orders: usize,
    pub(crate) kills: usize,
    pub(crate) cuts: usize,
    pub(crate) listeners: usize,
    pub(crate) keep: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { orders: 10_000, kills: 20, cuts: 20, listeners: 3, keep: false }
    }
}

impl Plan {
    /// Returns the number of messages without a key: one for each hundred orders.
    fn poison(&self) -> usize {
        self.orders.div_ceil(100)
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
            std::env::temp_dir().join(format!("retryproof-listener-{name}-{}", std::process::id()));
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

/// Returns a short unique name.
pub(crate) fn name(id: &OwnerId) -> String {
    id.as_bytes().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Runs the storm. Returns `false` if a promise was broken.
pub(crate) async fn run(plan: Plan) -> Result<bool, BoxError> {
    let mut folder = Folder::new("storm")?;
    folder.keep = plan.keep;
    let shop = Shop {
        db: folder.path().join("orders.db"),
        prefix: format!("storm-{}", name(&OwnerId::new())),
        lease: LEASE,
        receipts: false,
        die_after: None,
    };
    let url = broker::url()?;
    broker::declare(&url, &shop).await?;
    ledger::migrate(&shop.db)?;
    let broker = Broker::connect(&url).await?;
    let began = Instant::now();
    broker.publish(&broker::exchange(&shop), &messages(&plan)?).await?;
    println!(
        "storm: {} orders, each published twice, and {} messages without a key, for {} \
         listeners; {} kills and {} cuts on the way",
        plan.orders,
        plan.poison(),
        plan.listeners,
        plan.kills,
        plan.cuts
    );

    let proxy = Proxy::to(&url).await?;
    let mut listeners = Listeners::start(plan.listeners, &shop, &proxy.url, folder.path())?;
    let killed = disturb(&plan, &shop, &proxy, &mut listeners, began).await?;
    settle(&plan, &shop, &broker, &mut listeners, began).await?;

    let account =
        account::Account::draw(&plan, &shop, &broker, &folder.path().join("journal"), &killed)
            .await?;
    account.print(began.elapsed());
    broker.remove(&shop).await?;
    broker.close().await;
    if plan.keep {
        println!("\nkept: {}", folder.path().display());
    }
    Ok(account.holds())
}

/// Returns every order twice, with poison messages in between. Half of the second copies directly
/// follow the first, so that both copies are handled at the same time. The other second copies
/// follow about a thousand messages later.
fn messages(plan: &Plan) -> Result<Vec<Message>, BoxError> {
    let mut placed = Vec::with_capacity(plan.orders * 2 + plan.poison());
    for n in 0..plan.orders {
        let id = format!("o-{n}");
        let order = OrderPaid {
            id: id.clone(),
            customer: format!("c-{}", n % 97),
            cents: i64::try_from(n)?,
        };
        let body = serde_json::to_vec(&order)?;
        let behind = if n % 2 == 0 { 1 } else { 1_000 };
        placed.push((n * 2, Some(id.clone()), body.clone()));
        placed.push((n * 2 + behind, Some(id), body));
    }
    for n in 0..plan.poison() {
        placed.push((n * 200, None, format!("poison {n}").into_bytes()));
    }
    placed.sort_by_key(|(place, _, _)| *place);
    Ok(placed.into_iter().map(|(_, key, body)| (key, body)).collect())
}

/// Kills listeners and cuts connections. Each kill or cut waits for its share of the progress, so
/// it hits running work on a machine of any speed. Returns the killed processes.
async fn disturb(
    plan: &Plan,
    shop: &Shop,
    proxy: &Proxy,
    listeners: &mut Listeners,
    began: Instant,
) -> Result<HashSet<u32>, BoxError> {
    let events = plan.kills + plan.cuts;
    let (mut kills, mut cuts, mut killed) = (0, 0, HashSet::new());
    for event in 0..events {
        progress(shop, plan.orders * (event + 1) / (events + 2)).await?;
        // Alternate between kills and cuts while some of both are left.
        if (kills * plan.cuts <= cuts * plan.kills && kills < plan.kills) || cuts == plan.cuts {
            killed.insert(listeners.kill(kills).await?);
            kills += 1;
        } else {
            proxy.wire.cut();
            cuts += 1;
        }
        if (event + 1) % 10 == 0 {
            println!(
                "  {} s: {} booked, {kills} kills, {cuts} cuts",
                began.elapsed().as_secs(),
                booked(shop)?
            );
        }
    }
    Ok(killed)
}

/// Waits until every order is booked and the queues are empty, then stops the listeners. If a
/// listener returned messages to the queue when it stopped, starts the listeners again and repeats.
async fn settle(
    plan: &Plan,
    shop: &Shop,
    broker: &Broker,
    listeners: &mut Listeners,
    began: Instant,
) -> Result<(), BoxError> {
    progress(shop, plan.orders).await?;
    let queue = shop.ledger_queue();
    let patience = Instant::now() + PATIENCE;
    loop {
        while broker.ready_or_put_off(&queue).await? > 0 {
            if Instant::now() > patience {
                return Err("messages are left in the queue, but no consumer takes them".into());
            }
            sleep(Duration::from_millis(100)).await;
        }
        listeners.stop().await?;
        if broker.ready_or_put_off(&queue).await? == 0 {
            println!("  {} s: all queues empty, listeners stopped", began.elapsed().as_secs());
            return Ok(());
        }
        listeners.again()?;
    }
}

/// Waits until `wanted` orders are booked.
async fn progress(shop: &Shop, wanted: usize) -> Result<(), BoxError> {
    let (mut seen, mut moved) = (0, Instant::now());
    loop {
        let now = booked(shop)?;
        if now >= wanted {
            return Ok(());
        }
        if now > seen {
            (seen, moved) = (now, Instant::now());
        }
        if moved.elapsed() > PATIENCE {
            return Err(format!("no progress: {now} of {wanted} expected orders are booked").into());
        }
        sleep(Duration::from_millis(10)).await;
    }
}

fn booked(shop: &Shop) -> Result<usize, BoxError> {
    let count = "SELECT count(DISTINCT id) FROM bookings";
    let count: i64 = ledger::open(&shop.db)?.query_row(count, [], |row| row.get(0))?;
    Ok(usize::try_from(count)?)
}

/// The proxy between the listeners and the broker.
struct Proxy {
    wire: WireProxy,
    url: String,
}

impl Proxy {
    async fn to(url: &str) -> Result<Self, BoxError> {
        let (login, server) =
            url.rsplit_once('@').ok_or("the storm needs a URL with a user and a port")?;
        let (server, vhost) =
            server.split_once('/').map_or((server, None), |(server, vhost)| (server, Some(vhost)));
        let address = tokio::net::lookup_host(server)
            .await?
            .next()
            .ok_or("the host of the broker is unknown")?;
        let wire = WireProxy::to(address).await?;
        let vhost = vhost.map(|vhost| format!("/{vhost}")).unwrap_or_default();
        let url = format!("{login}@{}{vhost}", wire.addr());
        Ok(Self { wire, url })
    }
}

/// The listeners' processes, which all append their lines to one journal.
pub(crate) struct Listeners {
    running: Vec<Child>,
    count: usize,
    shop: Shop,
    url: String,
    folder: PathBuf,
}

impl Listeners {
    pub(crate) fn start(
        count: usize,
        shop: &Shop,
        url: &str,
        folder: &Path,
    ) -> Result<Self, BoxError> {
        let (shop, url, folder) = (shop.clone(), url.to_owned(), folder.to_owned());
        let mut listeners = Self { running: Vec::new(), count, shop, url, folder };
        listeners.again()?;
        Ok(listeners)
    }

    fn again(&mut self) -> Result<(), BoxError> {
        while self.running.len() < self.count {
            self.running.push(self.spawn()?);
        }
        Ok(())
    }

    /// Waits until a listener ends on its own.
    pub(crate) async fn ended(&mut self) -> Result<ExitStatus, BoxError> {
        let mut child = self.running.pop().ok_or("no listener is running")?;
        Ok(child.wait().await?)
    }

    fn spawn(&self) -> Result<Child, BoxError> {
        let append =
            |name: &str| File::options().create(true).append(true).open(self.folder.join(name));
        let child = Command::new(std::env::current_exe()?)
            .args(["listen", "--no-receipts", "--prefix", &self.shop.prefix])
            .args(["--lease", &self.shop.lease.as_secs().to_string()])
            .args(self.shop.die_after.map(|after| format!("--die-after={after}")))
            .arg("--db")
            .arg(&self.shop.db)
            .env(BROKER, &self.url)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(append("journal")?)
            .stderr(append("log")?)
            .kill_on_drop(true)
            .spawn()?;
        Ok(child)
    }

    /// Kills a listener with SIGKILL, each time another one, and starts a new listener. Returns the
    /// killed process.
    async fn kill(&mut self, turn: usize) -> Result<u32, BoxError> {
        let mut victim = self.running.remove(turn % self.running.len());
        let process = victim.id().ok_or("a listener ended unexpectedly; see its log")?;
        victim.kill().await?;
        self.again()?;
        Ok(process)
    }

    /// Stops all listeners with SIGTERM and waits until they have answered their running messages.
    pub(crate) async fn stop(&mut self) -> Result<(), BoxError> {
        for child in &self.running {
            let process = child.id().ok_or("a listener ended unexpectedly; see its log")?;
            let pid = Pid::from_raw(i32::try_from(process)?).ok_or("no process")?;
            kill_process(pid, Signal::TERM)?;
        }
        for mut child in self.running.drain(..) {
            let status = timeout(PATIENCE, child.wait()).await??;
            // A listener that has just started does not handle signals yet, so SIGTERM may kill it.
            if !status.success() && status.signal() != Some(Signal::TERM.as_raw()) {
                let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default();
                return Err(format!("a stopped listener ended with {status}: {last}").into());
            }
        }
        Ok(())
    }
}
