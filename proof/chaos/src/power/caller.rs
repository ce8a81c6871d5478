// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process that is killed. Until then, it makes calls with new keys, and writes down the
//! answers that it gets.
//!
//! `shim.c` records the writes to the file of these answers, and the store's writes and syncs, in
//! one sequence. So the journal shows exactly which answers came before a power loss.

use std::convert::Infallible;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use retryproof::sqlite::{SqliteConfig, SqliteStore, SqliteTx, SqliteTxSource};
use retryproof::{
    Acquisition, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, JoinedEngine, Outcome,
    Recorded,
};
use rusqlite::Connection;

use super::{LEASE, SCOPE, TOLD, TTL, value_of};
use crate::plan::Plan;
use crate::random::Random;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The number of callers that run at the same time.
const CALLERS: u64 = 6;
/// The number of calls that each caller makes before the store is closed and opened again.
const CALLS: u64 = 60;

/// Writes lines to the file of answers, each with a single `write`.
#[derive(Clone)]
struct Told(Arc<File>);

impl Told {
    fn line(&self, line: &str) -> Result<(), AnyError> {
        (&*self.0).write_all(format!("{line}\n").as_bytes())?;
        Ok(())
    }
}

/// What all callers of a round share.
struct Round {
    engine: IdempotencyEngine,
    joined: JoinedEngine<SqliteTx>,
    told: Told,
    path: std::path::PathBuf,
    prefix: String,
    next: AtomicU64,
}

/// Works until the process is killed. The supervisor shows an error.
pub(crate) fn run(plan: &Plan) -> Result<(), Box<dyn std::error::Error>> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let folder = plan.out.clone().unwrap_or_default();
    let known = std::fs::read_to_string(folder.with_extension("known"))?;
    let config = SqliteConfig::from_url(plan.url.as_deref().unwrap_or_default())?;
    let told = Told(Arc::new(File::create(folder.join(TOLD))?));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime
        .block_on(work(plan, &folder, &config, &told, &known))
        .map_err(|error| error.to_string())?;
    Ok(())
}

async fn work(
    plan: &Plan,
    folder: &Path,
    config: &SqliteConfig,
    told: &Told,
    known: &str,
) -> Result<(), AnyError> {
    let mut number = 0;
    loop {
        let mut settings = IdempotencyConfig::default();
        settings.purge.enabled = false;
        let store = SqliteStore::open_with(config.clone())?.into_shared();
        let engine = IdempotencyEngine::builder(store).config(settings).build()?;
        let joined = engine.joined(SqliteTxSource::open_with(config)?)?;
        let round = Arc::new(Round {
            engine,
            joined,
            told: told.clone(),
            path: folder.join(super::FILE),
            prefix: format!("{}-{number}", plan.incarnation),
            next: AtomicU64::new(0),
        });
        if number == 0 {
            for key in known.lines() {
                round.again(key).await?;
            }
        }
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let round = Arc::clone(&round);
                let random = Random::of(plan.seed, number * CALLERS + caller);
                tokio::spawn(async move { round.calls(random).await })
            })
            .collect();
        for caller in callers {
            caller.await??;
        }
        // Here, the store is dropped, which closes the file, empties the write-ahead log and
        // removes it.
        number += 1;
    }
}

impl Round {
    async fn calls(&self, mut random: Random) -> Result<(), AnyError> {
        for _ in 0..CALLS {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let kind = ["p", "p", "p", "j", "j", "h", "f"][usize::try_from(random.within(0..7))?];
            let key = format!("{}-{number}-{kind}", self.prefix);
            self.told.line(&format!("began {key}"))?;
            match kind {
                "p" => self.plain(&key).await?,
                "j" => self.joined(&key).await?,
                _ => self.lease(&key, kind == "f").await?,
            }
            if random.percent(2) {
                self.checkpoint(&mut random)?;
            }
        }
        Ok(())
    }

    async fn plain(&self, key: &str) -> Result<(), AnyError> {
        let report = self.engine.call(context(key)?).report(|_| self.action(key)).await?;
        self.done(key, report.recorded)
    }

    async fn joined(&self, key: &str) -> Result<(), AnyError> {
        let action = async |tx: &mut SqliteTx| {
            tx.execute("INSERT INTO ledger VALUES (?1)", [key])?;
            Ok::<_, rusqlite::Error>(value_of(key))
        };
        let report = self.joined.call(context(key)?).report(action).await?;
        self.done(key, report.recorded)
    }

    /// Acquires a lease, and releases it or lets it run out.
    async fn lease(&self, key: &str, frees: bool) -> Result<(), AnyError> {
        let Acquisition::Granted(held) = self.engine.try_acquire(&context(key)?).await? else {
            return Err(format!("{key} was not granted").into());
        };
        let token = held.lease().token();
        if frees {
            held.release().await?;
            return self.told.line(&format!("freed {key} {token}"));
        }
        self.told.line(&format!("held {key} {token}"))?;
        held.hold();
        Ok(())
    }

    /// Calls with a key whose result an earlier process recorded before the power loss.
    async fn again(&self, key: &str) -> Result<(), AnyError> {
        let outcome = self.engine.call(context(key)?).execute(|| self.action(key)).await?;
        match outcome {
            Outcome::Replayed(value) if value == value_of(key) => Ok(()),
            Outcome::Executed(_) => self.told.line(&format!("twice {key}")),
            _ => self.told.line(&format!("changed {key}")),
        }
    }

    async fn action(&self, key: &str) -> Result<String, Infallible> {
        Ok(value_of(key))
    }

    fn done(&self, key: &str, recorded: Recorded) -> Result<(), AnyError> {
        match recorded {
            Recorded::Yes => self.told.line(&format!("done {key}")),
            _ => Err(format!("the result of {key} was not recorded").into()),
        }
    }

    /// Copies the write-ahead log into the database while calls run, as an application might.
    fn checkpoint(&self, random: &mut Random) -> Result<(), AnyError> {
        let mode = ["PASSIVE", "RESTART", "TRUNCATE"][usize::try_from(random.within(0..3))?];
        let conn = Connection::open(&self.path)?;
        conn.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))?;
        Ok(())
    }
}

fn context(key: &str) -> retryproof::Result<IdempotencyContext> {
    let wait = Duration::ZERO;
    IdempotencyContext::builder(SCOPE, key).lease(LEASE).ttl(TTL).wait_timeout(wait).build()
}
