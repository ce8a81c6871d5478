// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a store shows of sealed answers: no key, no answer and no subject, neither in a dump nor in
//! its files (SEAL-1, SEAL-3). Then the master key is rotated while calls run (SEAL-7), and a
//! subject is erased (SEAL-4). Finally, the same answers are stored unsealed, and the same search
//! finds them: a search that never finds anything proves nothing.

use std::collections::HashSet;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retryproof::seal::{DataSubject, Destruction};
use retryproof::{
    ExecuteError, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, IdentitySecret,
    Outcome, Scope, connect_with, migrate_with, seals_with,
};

use crate::call::Picky;
use crate::erased::dump;
use crate::mono::{self, MS};
use crate::plan::Plan;
use crate::random::Random;
use crate::server::Server;
use crate::supervisor;

const ANSWERS: usize = 100;
const SUBJECTS: usize = 10;
/// The beginning of every secret text.
const SECRET: &str = "canary-";
/// The beginning of the scope, which is stored in plain text. A file can split a text, as
/// PostgreSQL's log does at the end of a page, so no part that begins like the scope may count as a
/// secret.
const PLAIN: &str = "stored-plain";
const MARK: usize = 28;
/// How many unsealed keys and answers the search has to find in files: not all of them, because the
/// end of a page can split one.
const ENOUGH: usize = 2 * ANSWERS - 10;
/// How long a client caches a key.
const CACHE_MS: u64 = 1_000;

type Failure = Box<dyn Error>;

/// One call with its answer. The key, the answer and the subject can be recognised anywhere.
struct Canary {
    key: String,
    subject: String,
    answer: Vec<u8>,
}

/// Seals, searches, rotates and erases; returns whether nothing was found, lost or run again.
pub(crate) fn run(plan: &Plan) -> Result<bool, Failure> {
    let data = supervisor::data_folder()?;
    let apart = data.with_extension("keys");
    fs::create_dir_all(&apart)?;
    let server = Server::start(plan, &data, None)?;
    let url = match &server {
        Some(server) => server.url().to_owned(),
        None => format!("sqlite:{}", data.join("records.db").display()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(seal(plan, &url, &data, &apart));
    drop(server);
    let _ = (fs::remove_dir_all(&data), fs::remove_dir_all(&apart));
    done
}

async fn seal(plan: &Plan, url: &str, data: &Path, apart: &Path) -> Result<bool, Failure> {
    let mut random = Random::of(plan.seed, 0x5ea1);
    let mut text = |what: &str| format!("{what}-{:016x}", random.next());
    let subjects: Vec<_> = (0..SUBJECTS).map(|_| text("canary-person")).collect();
    let canaries: Vec<_> = (0..ANSWERS)
        .map(|at| Canary {
            key: text("canary-thekey"),
            subject: subjects[at % SUBJECTS].clone(),
            answer: text("canary-answer").repeat(1 + at % 20).into_bytes(),
        })
        .collect();
    let canaries = Arc::new(canaries);
    // The scope is stored in plain text, so the search has to find it.
    let scope = Scope::new(text(PLAIN))?;
    let config = configured(url, apart)?;
    masters(&config, &["old"])?;
    prepared(&config).await?;

    let clients = [client(&config).await?, client(&config).await?];
    for canary in canaries.iter() {
        expect(call(&clients[0], &scope, canary).await?, Said::Ran, "the first call")?;
        expect(call(&clients[1], &scope, canary).await?, Said::Replayed, "the other client")?;
    }
    let control = &scope.as_str().as_bytes()[..MARK];
    let plain = search(url, data, PLAIN).await?;
    if !plain.iter().all(|marks| marks.contains(control)) {
        return Err("the search does not find what is stored plain".into());
    }
    let found = search(url, data, SECRET).await?;
    for mark in found.iter().flatten() {
        eprintln!("found: {}", mark.escape_ascii());
    }
    let found = found.map(|marks| marks.len());

    let (keys, lost) = rotate(&config, &scope, &canaries, &clients[0]).await?;
    // From here on, the file contains only the new master key.
    masters(&config, &["newer"])?;
    let clients = [client(&config).await?, client(&config).await?];
    let mut lost = lost;
    for canary in canaries.iter() {
        for client in &clients {
            lost += usize::from(call(client, &scope, canary).await? != Said::Replayed);
        }
    }

    let secret = config.identity_secret.as_ref().ok_or("no secret")?;
    let destroyed =
        seals_with(&config).await?.destroy(&DataSubject::named(secret, &subjects[0])).await?;
    let began = mono::now();
    let gone = || canaries.iter().filter(|canary| canary.subject == subjects[0]);
    let mut tombstones = 0;
    for client in &clients {
        for canary in gone() {
            let until = began + (CACHE_MS + plan.slack_ms) * MS;
            while call(client, &scope, canary).await? != Said::Tombstone {
                if mono::now() > until {
                    return Err("an erased subject's answer is still replayed".into());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            tombstones += 1;
        }
        for canary in canaries.iter().filter(|canary| canary.subject != subjects[0]) {
            lost += usize::from(call(client, &scope, canary).await? != Said::Replayed);
        }
    }
    println!(
        "{ANSWERS} sealed answers: {} canaries in a dump, {} in files; {keys} keys rotated; \
         {tombstones} tombstones; {lost} lost",
        found[0], found[1]
    );
    let shown = unsealed(url, data, &scope, &canaries).await?;
    println!(
        "{ANSWERS} unsealed answers and their keys: {} canaries in a dump, {} in files",
        shown[0], shown[1]
    );
    let erased = destroyed == Destruction::Destroyed && tombstones == 2 * ANSWERS / SUBJECTS;
    let able = shown[0] == 2 * ANSWERS && shown[1] >= ENOUGH;
    Ok(found == [0, 0] && able && keys >= SUBJECTS && erased && lost == 0)
}

/// Returns the parts that begin with `begin`, in a dump and in the files.
async fn search(url: &str, data: &Path, begin: &str) -> Result<[HashSet<Vec<u8>>; 2], Failure> {
    let dumped = dump::of(url, data).await?.ok_or("a store without a dump")?;
    Ok([dumped.marks(begin.as_bytes(), MARK), marks_of(data, begin)?])
}

/// Stores the same answers again, unsealed and under their plain keys, in other tables of the same
/// store. Returns how many keys and answers the search finds in a dump and in the files.
async fn unsealed(
    url: &str,
    data: &Path,
    scope: &Scope,
    canaries: &[Canary],
) -> Result<[usize; 2], Failure> {
    let mut config = IdempotencyConfig::default();
    config.store = Some(url.to_owned());
    let name = || Some("unsealed".to_owned());
    config.sqlite.table_name = name();
    config.postgres.table_name = name();
    config.mysql.table_name = name();
    config.redis.prefix = name();
    migrate_with(&config).await?;
    let client = client(&config).await?;
    for canary in canaries {
        expect(call(&client, scope, canary).await?, Said::Ran, "an unsealed call")?;
    }
    let found = search(url, data, SECRET).await?;
    Ok(found.map(|marks| {
        let texts = canaries.iter().flat_map(|canary| [canary.key.as_bytes(), &canary.answer]);
        texts.filter(|text| marks.contains(&text[..MARK])).count()
    }))
}

/// Rotates the master key while calls with known and new keys run. Returns how many keys were
/// wrapped and how many calls failed.
async fn rotate(
    config: &IdempotencyConfig,
    scope: &Scope,
    canaries: &Arc<Vec<Canary>>,
    old: &IdempotencyEngine,
) -> Result<(usize, usize), Failure> {
    masters(config, &["old", "newer"])?;
    let both = client(config).await?;
    masters(config, &["newer", "old"])?;
    let rotating = seals_with(config).await?;
    let new = client(config).await?;
    let ends = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = [both, new]
        .into_iter()
        .map(|client| {
            let (scope, canaries, ends) = (scope.clone(), Arc::clone(canaries), Arc::clone(&ends));
            tokio::spawn(async move {
                let (mut lost, mut round) = (0, 0);
                while !ends.load(Ordering::Relaxed) || round < 2 {
                    for canary in canaries.iter() {
                        lost +=
                            usize::from(call(&client, &scope, canary).await != Ok(Said::Replayed));
                    }
                    round += 1;
                }
                lost
            })
        })
        .collect();
    let mut keys = 0;
    for _ in 0..5 {
        keys += rotating.rotate().await?;
        tokio::time::sleep(Duration::from_millis(CACHE_MS / 2)).await;
    }
    ends.store(true, Ordering::Relaxed);
    let mut lost = 0;
    for caller in callers {
        lost += caller.await?;
    }
    // A program without the new master key can open no answer once its cached keys have expired.
    for canary in canaries.iter().take(SUBJECTS) {
        if call(old, scope, canary).await.is_ok() {
            return Err("a program without the master key has opened an answer".into());
        }
    }
    Ok((keys, lost))
}

fn configured(url: &str, apart: &Path) -> Result<IdempotencyConfig, Failure> {
    let mut config = IdempotencyConfig::default();
    config.store = Some(url.to_owned());
    config.identity_secret = Some(IdentitySecret::new("5d3c9a1f0b7e4c2d8a6f1e3b5c7d9e0f")?);
    config.seal.keys = Some(format!("sqlite:{}", apart.join("keys.db").display()));
    config.seal.master = Some(apart.join("master").display().to_string());
    config.seal.cache = Duration::from_millis(CACHE_MS);
    Ok(config)
}

/// Writes the file of master keys. Each key is derived from its id.
fn masters(config: &IdempotencyConfig, ids: &[&str]) -> Result<(), Failure> {
    let line = |id: &&str| format!("{id}:{}\n", format!("{:02x}", id.len()).repeat(32));
    let file = config.seal.master.as_deref().ok_or("no file")?;
    Ok(fs::write(file, ids.iter().map(line).collect::<String>())?)
}

/// Creates the tables, as soon as the server is ready.
async fn prepared(config: &IdempotencyConfig) -> Result<(), Failure> {
    let until = mono::now() + 30_000 * MS;
    loop {
        match migrate_with(config).await {
            Ok(()) => return Ok(()),
            Err(error) if mono::now() > until => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Builds an engine with separate connections and a separate cache, like one in another process.
async fn client(config: &IdempotencyConfig) -> Result<IdempotencyEngine, Failure> {
    Ok(IdempotencyEngine::new(connect_with(config).await?))
}

#[derive(Debug, PartialEq, Eq)]
enum Said {
    Ran,
    Replayed,
    Tombstone,
}

async fn call(engine: &IdempotencyEngine, scope: &Scope, canary: &Canary) -> Result<Said, String> {
    let ctx = IdempotencyContext::builder(scope, &canary.key)
        .subject(canary.subject.as_str())
        .ttl(Duration::from_secs(3_600))
        .build()
        .map_err(|error| error.to_string())?;
    let answer = canary.answer.clone();
    let action = || async { Ok::<_, std::convert::Infallible>(answer) };
    match engine.call(ctx).codec(Picky).execute(action).await {
        Ok(Outcome::Executed(_)) => Ok(Said::Ran),
        Ok(Outcome::Replayed(answer)) if answer == canary.answer => Ok(Said::Replayed),
        Err(ExecuteError::NotReplayable(_)) => Ok(Said::Tombstone),
        Ok(other) => Err(format!("a call was answered {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

fn expect(said: Said, expected: Said, what: &str) -> Result<(), Failure> {
    if said == expected {
        return Ok(());
    }
    Err(format!("{what} was answered {said:?}").into())
}

/// Returns the parts that begin with `begin` in the files below a folder.
fn marks_of(folder: &Path, begin: &str) -> Result<HashSet<Vec<u8>>, Failure> {
    let mut marks = HashSet::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            marks.extend(marks_of(&path, begin)?);
        } else if path.is_file() {
            let content = fs::read(&path)?;
            let parts = content.windows(MARK).filter(|part| part.starts_with(begin.as_bytes()));
            marks.extend(parts.map(<[u8]>::to_vec));
        }
    }
    Ok(marks)
}
