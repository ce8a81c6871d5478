// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks what is left of an erased answer (OPS-4): a logical dump of the store contains nothing of
//! it, and still no retry runs the work again.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use retryproof::store::{ForceRequest, Forced};
use retryproof::{
    ExecuteError, IdempotencyContext, IdempotencyEngine, Identity, Outcome, SharedStore,
};

use crate::call::Picky;
use crate::plan::Plan;
use crate::random::Random;
use crate::server::Server;
use crate::{open, supervisor};

pub(crate) mod dump;

/// How many answers are erased.
const ANSWERS: u64 = 100;
/// How many retries run at the same time.
const AT_ONCE: u64 = 16;
const SCOPE: &str = "erased";
/// The beginning of each answer, and the length of an answer's part that no other bytes can match
/// by chance.
const BEGIN: &str = "canary-";
const MARK: usize = 28;

/// Erases, searches and retries; returns whether nothing was found and nothing ran.
pub(crate) fn run(plan: &Plan) -> Result<bool, Box<dyn Error>> {
    let data = supervisor::data_folder()?;
    let server = Server::start(plan, &data, None)?;
    let url = match &server {
        Some(server) => server.url().to_owned(),
        None if plan.store == "sqlite" => format!("sqlite:{}", data.join("records.db").display()),
        None => plan.store.clone(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = supervisor::prepare(&url).and_then(|()| runtime.block_on(erase(plan, &url, &data)));
    drop(server);
    let _ = fs::remove_dir_all(&data);
    done
}

/// Returns an answer that can be recognised anywhere and contains its number.
fn canary(random: &mut Random, number: u64) -> Vec<u8> {
    // Some answers are so short that a store keeps them next to the key, and some so long that it
    // keeps them in separate pages.
    let long = 16 << (number % 7 * 2);
    let mut text = format!("{BEGIN}{number:04}-{:016x}", random.next());
    while text.len() < long {
        text += &format!("-{:016x}", random.next());
    }
    text.into_bytes()
}

async fn erase(plan: &Plan, url: &str, data: &Path) -> Result<bool, Box<dyn Error>> {
    let store = open::connect(url).await?;
    let engine = IdempotencyEngine::new(store.clone());
    let mut random = Random::of(plan.seed, 0xe2a5e);
    let canaries: Vec<_> = (0..ANSWERS).map(|number| canary(&mut random, number)).collect();
    for (number, canary) in (0..).zip(&canaries) {
        let first = call(&engine, number, canary.clone(), Arc::default()).await?;
        if !first {
            return Err(format!("the work of key {number} did not run").into());
        }
    }
    let before = found(url, data, &canaries).await?;
    for number in 0..ANSWERS {
        erase_one(&store, &identity(number)?).await?;
    }
    let after = found(url, data, &canaries).await?;
    let runs = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|first| {
            let (engine, runs, retries) = (engine.clone(), Arc::clone(&runs), plan.retries);
            tokio::spawn(async move {
                for retry in (first..retries).step_by(usize::try_from(AT_ONCE).unwrap_or(1)) {
                    call(&engine, retry % ANSWERS, Vec::new(), Arc::clone(&runs)).await?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let runs = runs.load(Ordering::Relaxed);
    let searched = match (before, after) {
        (Some(before), Some(after)) => {
            format!("the dump had {before} answers before, {after} after")
        }
        _ => "the store has no dump".into(),
    };
    println!("erased {ANSWERS} answers: {searched}; {} retries ran {runs} actions", plan.retries);
    // The search must find all answers before the erasure, or it proves nothing.
    let seen = before.is_none_or(|before| before == ANSWERS);
    Ok(seen && after.unwrap_or(0) == 0 && runs == 0)
}

fn identity(number: u64) -> retryproof::Result<Identity> {
    Identity::of(SCOPE, format!("key-{number}"))
}

async fn erase_one(store: &SharedStore, id: &Identity) -> Result<(), Box<dyn Error>> {
    let seen = store.get(id).await?.ok_or("the record to erase does not exist")?;
    match store.force(id, &ForceRequest::erase(seen.token)).await? {
        Forced::Applied => Ok(()),
        other => Err(format!("the erase failed with {other:?}").into()),
    }
}

/// Returns how many of the answers a dump contains, or `None` for a store that cannot be dumped.
async fn found(
    url: &str,
    data: &Path,
    canaries: &[Vec<u8>],
) -> Result<Option<u64>, Box<dyn Error>> {
    let Some(dump) = dump::of(url, data).await? else { return Ok(None) };
    let marks = dump.marks(BEGIN.as_bytes(), MARK);
    let found = canaries.iter().filter(|canary| marks.contains(&canary[..MARK])).count();
    Ok(Some(found as u64))
}

/// Makes a call, and returns whether the work ran in it.
async fn call(
    engine: &IdempotencyEngine,
    number: u64,
    value: Vec<u8>,
    runs: Arc<AtomicU64>,
) -> Result<bool, String> {
    let ctx = IdempotencyContext::builder(SCOPE, format!("key-{number}"))
        .ttl(Duration::from_secs(3_600))
        .build()
        .map_err(|error| error.to_string())?;
    let action = |_| async move {
        runs.fetch_add(1, Ordering::Relaxed);
        Ok::<_, std::convert::Infallible>(value)
    };
    match engine.call(ctx).codec(Picky).report(action).await {
        Ok(report) => match report.outcome {
            Outcome::Executed(_) => Ok(true),
            Outcome::Replayed(_) => Err(format!("the answer of key {number} was replayed")),
            Outcome::InFlight(_) => Err(format!("key {number} is in flight")),
        },
        Err(ExecuteError::NotReplayable(_)) => Ok(false),
        Err(error) => Err(format!("key {number}: {error}")),
    }
}
