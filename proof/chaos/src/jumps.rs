// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jumps of the wall clock, forward and back, while leases are held (ACQ-7, ACQ-10, STO-4).
//!
//! The run starts itself again with a library that moves the wall clock (`clocks/preload.c`). The
//! server inherits the library from the run, so the clocks of the store and of the calling process
//! jump together. Monotonic clocks do not jump.

use std::convert::Infallible;
use std::error::Error;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use defects::{Defect, Defective};
use retryproof::clock::wall_clock_micros;
use retryproof::store::{AcquireRequest, Acquired, Completion, FencedWrite, Grant, Peeked};
use retryproof::{
    CodecId, IdempotencyContext, IdempotencyEngine, IdempotencyStore as _, Identity, Opened,
    Outcome, OwnerId, Payload, SharedStore,
};

use crate::plan::Plan;
use crate::server::Server;
use crate::{open, preload, supervisor};

const SCOPE: &str = "jumps";
const OFFSET: &str = "offset";
const LEASE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
/// An hour, in seconds.
const HOUR: i64 = 3_600;
const MINUTE: i64 = 60;

type Done<T = ()> = Result<T, Box<dyn Error>>;

/// Starts the run again with a clock that can be moved.
pub(crate) fn run(plan: &Plan) -> Done<bool> {
    let folder = supervisor::data_folder()?;
    let done = start(plan, &folder);
    let _ = fs::remove_dir_all(&folder);
    done
}

fn start(plan: &Plan, folder: &Path) -> Done<bool> {
    let library = preload::library("clock", include_str!("clocks/preload.c"), folder)?;
    let offset = folder.join(OFFSET);
    fs::write(&offset, [0; 16])?;
    for file in [&library, &offset] {
        // The server runs as another user, which must be able to read both files.
        fs::set_permissions(file, Permissions::from_mode(0o755))?;
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["jumps-inside", "--store", &plan.store, "--out"]).arg(folder);
    if let Some(defect) = &plan.plant {
        command.args(["--plant", defect]);
    }
    let status =
        command.env("LD_PRELOAD", library).env("RETRYPROOF_CHAOS_CLOCK", offset).status()?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err("the run with its own clock failed".into()),
    }
}

/// Makes the run, in the process whose clock can be moved.
pub(crate) fn inside(plan: &Plan) -> Done<bool> {
    let folder = plan.out.clone().ok_or("jumps-inside needs --out")?;
    let server = Server::start(plan, &folder, None)?;
    let url = match &server {
        Some(server) => server.url().to_owned(),
        None => format!("sqlite:{}", folder.join("records.db").display()),
    };
    supervisor::prepare(&url)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut store = runtime.block_on(open::connect(&url))?;
    if let Some(defect) = plan.plant.as_deref().and_then(Defect::named) {
        store = SharedStore::builder(Defective::new(store, Some(defect))).with_purge().build();
    }
    let offset = File::options().write(true).open(folder.join(OFFSET))?;
    let mut jumps = Jumps { store, offset, made: 0, tokens: 0 };
    let done = runtime.block_on(async {
        jumps.the_clock_jumps().await?;
        jumps.forward().await?;
        jumps.back().await?;
        jumps.tokens().await?;
        let purged = jumps.purge().await?;
        jumps.beats().await?;
        Ok::<_, Box<dyn Error>>((purged, jumps.beside_a_waiter().await?))
    });
    drop(server);
    match done {
        Ok((purged, runs)) => {
            println!(
                "{} jumps of the clock, {} tokens that grew; a result whose ttl ended during a jump \
                 was {}; a waiter and its holder ran the work {runs} times, with one result",
                jumps.made,
                jumps.tokens,
                if purged { "gone after it" } else { "there again after it" }
            );
            Ok(true)
        }
        Err(error) => {
            println!("WRONG: {error}");
            Ok(false)
        }
    }
}

/// A store whose clock can be moved.
struct Jumps {
    store: SharedStore,
    offset: File,
    made: u64,
    tokens: u64,
}

impl Jumps {
    /// Sets the clock to `seconds` ahead of the right time.
    fn jump(&mut self, seconds: i64) -> Done {
        let bytes = (seconds * 1_000_000_000).to_ne_bytes();
        self.offset.write_all_at(&bytes, 0)?;
        self.offset.write_all_at(&bytes, 8)?;
        self.made += 1;
        Ok(())
    }

    /// Checks that the clocks of the store and of this process can be moved. Otherwise, the run
    /// would prove nothing.
    async fn the_clock_jumps(&mut self) -> Done {
        let before = wall_clock_micros();
        self.grant("the clock", OwnerId::new(), false).await?;
        self.jump(HOUR)?;
        // This grant succeeds only if the lease has ended by the store's clock.
        self.grant("the clock", OwnerId::new(), true).await?;
        let moved = wall_clock_micros() - before;
        self.jump(0)?;
        match moved / 1_000_000 >= HOUR.unsigned_abs() {
            true => Ok(()),
            false => Err("the clock of the calling process did not jump".into()),
        }
    }

    /// Jumps forward, past the ends of leases, and back.
    async fn forward(&mut self) -> Done {
        let [a, b] = [OwnerId::new(), OwnerId::new()];
        for key in ["taken", "kept", "late"] {
            self.grant(key, a, false).await?;
        }
        self.jump(HOUR)?;
        self.grant("taken", b, true).await?;
        self.is(
            "extend",
            self.store.extend(&id("taken")?, a, LEASE).await?,
            FencedWrite::NotOwner,
        )?;
        self.completed("taken", a, FencedWrite::NotOwner).await?;
        self.completed("taken", b, FencedWrite::Applied).await?;
        // The lease has ended, but no other owner took over, and a completion is fenced by owner,
        // not by time (CMP-2).
        self.completed("late", a, FencedWrite::Applied).await?;
        let _ = self.store.purge(1_000).await?;
        self.jump(0)?;
        match self.store.peek(&id("kept")?).await? {
            Peeked::Busy(lease) if lease.remaining <= LEASE => {}
            other => return Err(format!("a lease after a jump and back is {other:?}").into()),
        }
        self.completed("kept", a, FencedWrite::Applied).await?;
        for key in ["taken", "kept", "late"] {
            self.replayed(key).await?;
        }
        Ok(())
    }

    /// Jumps back, to a time before the starts of leases.
    async fn back(&mut self) -> Done {
        let [a, b] = [OwnerId::new(), OwnerId::new()];
        let first = self.grant("back", a, false).await?;
        self.jump(-HOUR)?;
        let busy = self.store.acquire(&id("back")?, &request(b)).await?;
        if !matches!(&busy, Acquired::Busy(lease) if lease.remaining > LEASE) {
            return Err(format!("a held key after a jump back is {busy:?}").into());
        }
        // After a heartbeat, the lease has its normal length again.
        self.is("extend", self.store.extend(&id("back")?, a, LEASE).await?, FencedWrite::Applied)?;
        match self.store.peek(&id("back")?).await? {
            Peeked::Busy(lease) if lease.remaining <= LEASE => {}
            other => return Err(format!("a beat after a jump back leaves {other:?}").into()),
        }
        self.is("release", self.store.release(&id("back")?, a).await?, FencedWrite::Applied)?;
        let second = self.grant("back", b, false).await?;
        self.grows(first, second)?;
        self.completed("back", a, FencedWrite::NotOwner).await?;
        self.completed("back", b, FencedWrite::Applied).await?;
        self.jump(0)?;
        self.replayed("back").await
    }

    /// Checks that tokens grow over releases, takeovers and jumps. All jumps together are shorter
    /// than the hour for which stores keep the token of a released key.
    async fn tokens(&mut self) -> Done {
        let mut last = self.grant("tokens", OwnerId::new(), false).await?;
        for step in 0..20 {
            self.jump([-20 * MINUTE, 15 * MINUTE, -5 * MINUTE, 20 * MINUTE, 0][step % 5])?;
            let owner = OwnerId::new();
            let next = match self.store.acquire(&id("tokens")?, &request(owner)).await? {
                Acquired::Granted(grant) => grant,
                Acquired::Busy(_) => continue,
                other => return Err(format!("a key that was never complete is {other:?}").into()),
            };
            self.grows(last, next)?;
            last = next;
            if step % 3 == 0 {
                let released = self.store.release(&id("tokens")?, owner).await?;
                self.is("release", released, FencedWrite::Applied)?;
            }
        }
        self.jump(0)
    }

    /// Purges while the clock is past the ends of the leases and of one ttl (STO-4). Returns
    /// whether the result with that ttl is still gone when the clock is right again.
    async fn purge(&mut self) -> Done<bool> {
        let owner = OwnerId::new();
        for key in ["done", "busy", "brief"] {
            self.grant(key, owner, false).await?;
        }
        self.completed("done", owner, FencedWrite::Applied).await?;
        let brief = Completion::new(payload("brief").envelope().clone(), LEASE, None);
        self.is(
            "complete",
            self.store.complete(&id("brief")?, owner, &brief).await?,
            FencedWrite::Applied,
        )?;
        self.jump(HOUR)?;
        while self.store.purge(1_000).await?.is_some_and(|purged| purged > 0) {}
        if !matches!(self.store.peek(&id("brief")?).await?, Peeked::Absent) {
            return Err("a result outlived its ttl by the store's clock (CMP-6)".into());
        }
        self.jump(0)?;
        self.replayed("done").await?;
        self.completed("busy", owner, FencedWrite::Applied).await?;
        self.replayed("busy").await?;
        Ok(matches!(self.store.peek(&id("brief")?).await?, Peeked::Absent))
    }

    /// Checks that heartbeats keep the lease during jumps if there is no other caller (RUN-1).
    async fn beats(&mut self) -> Done {
        let engine = IdempotencyEngine::new(self.store.clone());
        let runs = Arc::new(AtomicU64::new(0));
        let call = tokio::spawn(work(engine.clone(), "beats", 3_000, Arc::clone(&runs)));
        for seconds in [HOUR, 0, -HOUR, HOUR, -HOUR, 0] {
            tokio::time::sleep(Duration::from_millis(450)).await;
            self.jump(seconds)?;
        }
        let first = call.await?;
        let again = work(engine, "beats", 0, Arc::clone(&runs)).await;
        match (first, again) {
            (Ok(Outcome::Executed(1)), Ok(Outcome::Replayed(1))) => Ok(()),
            other => Err(format!("a call whose beats met jumps, and its retry: {other:?}").into()),
        }
    }

    /// Makes the holder's lease end in a jump while another call waits, which may then take over.
    /// Checks that both calls get the same result. Returns how often the work ran.
    async fn beside_a_waiter(&mut self) -> Done<u64> {
        let runs = Arc::new(AtomicU64::new(0));
        let engines = [(); 2].map(|()| IdempotencyEngine::new(self.store.clone()));
        let [holder, waiter] = engines;
        let first = tokio::spawn(work(holder.clone(), "beside", 2_500, Arc::clone(&runs)));
        while runs.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let second = tokio::spawn(work(waiter, "beside", 0, Arc::clone(&runs)));
        tokio::time::sleep(Duration::from_millis(200)).await;
        self.jump(HOUR)?;
        let (first, second) = (first.await??, second.await??);
        self.jump(0)?;
        let again = work(holder, "beside", 0, Arc::clone(&runs)).await?;
        let value = |outcome: &Outcome<u64>| match outcome {
            Outcome::Executed(value) | Outcome::Replayed(value) => Some(*value),
            Outcome::InFlight(_) => None,
        };
        let runs = runs.load(Ordering::SeqCst);
        let same = value(&first).is_some() && value(&first) == value(&second);
        if !same || value(&again) != value(&first) || !again.is_replayed() || runs > 2 {
            return Err(format!(
                "a holder and a waiter, after {runs} runs: {first:?}, {second:?}, then {again:?}"
            )
            .into());
        }
        Ok(runs)
    }

    async fn grant(&self, key: &str, owner: OwnerId, takes_over: bool) -> Done<Grant> {
        match self.store.acquire(&id(key)?, &request(owner)).await? {
            Acquired::Granted(grant) if grant.took_over == takes_over => Ok(grant),
            other => Err(format!("`{key}`, takeover {takes_over}: {other:?}").into()),
        }
    }

    async fn completed(&self, key: &str, owner: OwnerId, expected: FencedWrite) -> Done {
        let done = Completion::new(payload(key).envelope().clone(), DAY, None);
        self.is("complete", self.store.complete(&id(key)?, owner, &done).await?, expected)
    }

    async fn replayed(&self, key: &str) -> Done {
        let acquired = self.store.acquire(&id(key)?, &request(OwnerId::new())).await?;
        if let Acquired::Complete(stored) = &acquired
            && let Opened::Value(found) = stored.open(None)?
            && found.body() == payload(key).body()
        {
            return Ok(());
        }
        Err(format!("the result of `{key}` after a jump is {acquired:?}").into())
    }

    fn is(&self, what: &str, answer: FencedWrite, expected: FencedWrite) -> Done {
        match answer == expected {
            true => Ok(()),
            false => Err(format!("{what} after a jump: {answer:?}, not {expected:?}").into()),
        }
    }

    fn grows(&mut self, last: Grant, next: Grant) -> Done {
        self.tokens += 1;
        match next.token > last.token {
            true => Ok(()),
            false => Err(format!("token {} after {}", next.token, last.token).into()),
        }
    }
}

/// Makes a call whose action takes `ms` milliseconds and returns the number of its run.
async fn work(
    engine: IdempotencyEngine,
    key: &'static str,
    ms: u64,
    runs: Arc<AtomicU64>,
) -> Result<Outcome<u64>, String> {
    let ctx = IdempotencyContext::builder(SCOPE, key).lease(Duration::from_millis(1_500));
    let ctx = ctx.ttl(DAY).wait_timeout(Duration::from_secs(20)).build();
    let action = async || {
        let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Ok::<_, Infallible>(run)
    };
    let ctx = ctx.map_err(|error| error.to_string())?;
    engine.execute(ctx, action).await.map_err(|error| error.to_string())
}

fn id(key: &str) -> retryproof::Result<Identity> {
    Identity::of(SCOPE, key)
}

fn request(owner: OwnerId) -> AcquireRequest {
    AcquireRequest::new(owner, LEASE, DAY)
}

fn payload(text: &str) -> Payload {
    Payload::new(CodecId::BYTES, 1, text.as_bytes())
}
