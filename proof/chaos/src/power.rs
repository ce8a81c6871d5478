// SPDX-License-Identifier: MIT OR Apache-2.0
//! Power losses on a SQLite file: some or all of the writes that were not synced are lost.
//!
//! A process works on the file and is killed. `shim.c` has recorded which bytes the process wrote
//! and what it synced. From this journal, the run creates the files that a power loss may leave, at
//! the moment of the kill and at earlier moments. It opens a store on these files, and checks that
//! every answer that a caller got still holds. The next process begins with the files of the moment
//! of the kill.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use retryproof::sqlite::SqliteConfig;
use rusqlite::Connection;

use crate::mono::{self, MS};
use crate::plan::Plan;
use crate::random::Random;
use crate::{preload, supervisor};

mod caller;
mod check;
mod disk;

pub(crate) use caller::run as call;

use check::{Facts, Found, Told};
use disk::{Disk, Journal, Left};

const SCOPE: &str = "power";
const FILE: &str = "records.db";
/// The file in which a process writes down the answers that it got.
const TOLD: &str = "told";
/// Longer than any process lives, and shorter than the hour by which the checks set their clock
/// forward.
const LEASE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(86_400);
/// How many power losses are checked for each process.
const MOMENTS: u64 = 16;
/// A process is killed once it has written down a random number of bytes below this limit. The
/// limit stands for some 300 calls.
const WORK: u64 = 16_000;
/// How many power losses that broke a promise are shown in full.
const SHOWN: u64 = 5;
/// How many keys of earlier processes each check reads.
const EARLIER: usize = 60;

/// Returns the result of a key's work, which is the same in every process.
fn value_of(key: &str) -> String {
    let mut random = Random::of(key.bytes().fold(7, |sum, byte| sum * 31 + u64::from(byte)), 0);
    let words = random.spread(1..400);
    (0..words).map(|_| format!("{:016x}", random.next())).collect()
}

/// Makes the power losses, and returns whether the store kept its promises.
pub(crate) fn run(plan: &Plan) -> Result<bool, Box<dyn Error>> {
    let data = supervisor::data_folder()?;
    let done = losses(plan, &data);
    let _ = fs::remove_dir_all(&data);
    done
}

fn losses(plan: &Plan, data: &Path) -> Result<bool, Box<dyn Error>> {
    let folder = data.join("files");
    fs::create_dir(&folder)?;
    let url = format!("sqlite:{}?synchronous={}", folder.join(FILE).display(), plan.synchronous);
    SqliteConfig::from_url(&url)?.migrate()?;
    Connection::open(folder.join(FILE))?
        .execute_batch("CREATE TABLE ledger (key TEXT NOT NULL)")?;
    let mut losses = Losses {
        plan,
        shim: preload::library("power", include_str!("power/shim.c"), data)?,
        journal: data.join("journal"),
        image: data.join("image"),
        folder,
        url,
        random: Random::of(plan.seed, 0x70_77_72),
        earlier: Vec::new(),
        found: Found::default(),
        made: 0,
        lives: 0,
        told: 0,
        changes: 0,
        broken: 0,
        wrong: 0,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    while losses.made < plan.losses && losses.found.damaged == 0 {
        runtime.block_on(losses.life())?;
    }
    let Losses { found, made, lives, told, changes, broken, .. } = losses;
    println!(
        "{made} power losses of {lives} processes, synchronous={}: {told} records told, {changes} \
         changes of files; {} lost, {} out of order, {} changed, {} halves, {} damaged files, {} \
         tokens that did not grow, {broken} wrong replays",
        plan.synchronous,
        found.lost,
        found.reordered,
        found.changed,
        found.halves,
        found.damaged,
        found.tokens,
    );
    Ok(!found.is_wrong() && broken == 0 && (found.lost == 0 || !losses.plan.is_durable()))
}

/// A run, and what it has seen so far.
struct Losses<'a> {
    plan: &'a Plan,
    shim: PathBuf,
    journal: PathBuf,
    /// The folder with the files that the present power loss leaves.
    image: PathBuf,
    /// The folder with the files on which processes work.
    folder: PathBuf,
    url: String,
    random: Random,
    /// The answers that earlier processes got, as far as they have survived the power losses.
    earlier: Vec<(String, Told)>,
    found: Found,
    made: u64,
    lives: u32,
    told: usize,
    changes: usize,
    broken: usize,
    /// The number of power losses that broke a promise.
    wrong: u64,
}

impl Losses<'_> {
    /// Runs one process from its start to its kill, and checks power losses during its life.
    async fn life(&mut self) -> Result<(), Box<dyn Error>> {
        self.lives += 1;
        let known = self.some_earlier();
        let done = known.iter().filter(|(_, told)| *told == Told::Done);
        let done: Vec<_> = done.map(|(key, _)| key.as_str()).collect();
        fs::write(self.folder.with_extension("known"), done.join("\n"))?;
        let start = Disk::of(&self.folder)?;
        self.work_and_kill()?;
        let journal = Journal::read(&self.journal)?;
        let whole = journal.changes.len();
        self.changes += whole;
        for at in (0..MOMENTS.min(self.plan.losses - self.made)).rev() {
            self.made += 1;
            // The moment of the kill comes last, because the next process begins with the files of
            // this moment.
            let count = match at {
                0 => whole,
                _ => usize::try_from(self.random.within(0..whole as u64 + 1))?,
            };
            let left = Left::draw(&mut self.random);
            let mut disk = start.clone();
            disk.follow(&journal, count);
            let mut same = self.random.clone();
            fs::create_dir(&self.image)?;
            disk.lose_power(&journal, left, &mut self.random, &self.image)?;
            self.spoil_shared_memory()?;
            let facts = Facts::read(&journal.text_of(TOLD, count))?;
            let durable = self.plan.is_durable();
            let (found, kept) = check::check(&self.image, durable, &facts, &known).await?;
            fs::remove_dir_all(&self.image)?;
            let is_wrong = found.is_wrong() || found.lost > 0 && durable;
            self.wrong += u64::from(is_wrong);
            if is_wrong && self.wrong <= SHOWN {
                let seed = self.plan.seed;
                println!(
                    "seed {seed}, process {}, {left:?} after {count} of {whole} changes: {found:?}",
                    self.lives
                );
            }
            self.found.add(found);
            if at == 0 {
                fs::remove_dir_all(&self.folder)?;
                fs::create_dir(&self.folder)?;
                disk.lose_power(&journal, left, &mut same, &self.folder)?;
                self.told += facts.told.len();
                self.broken += facts.broken.len();
                facts.broken.iter().for_each(|line| println!("after a power loss: {line}"));
                self.earlier.retain(|one| !known.contains(one));
                self.earlier.extend(kept);
            }
        }
        Ok(())
    }

    /// Picks a random sample of the answers that earlier processes got.
    fn some_earlier(&mut self) -> Vec<(String, Told)> {
        let step = self.earlier.len().div_ceil(EARLIER).max(1);
        let from = usize::try_from(self.random.within(0..step as u64)).unwrap_or(0);
        self.earlier.iter().skip(from).step_by(step).cloned().collect()
    }

    /// Starts a process on the files, and kills it when it has worked for a while.
    fn work_and_kill(&mut self) -> Result<(), Box<dyn Error>> {
        let _ = fs::remove_file(&self.journal);
        let log = self.folder.with_extension("log");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["power-caller", "--url", &self.url, "--incarnation"]);
        command.args([self.lives.to_string(), "--seed".into(), self.random.next().to_string()]);
        command.arg("--out").arg(&self.folder).env("LD_PRELOAD", &self.shim);
        command.env("RETRYPROOF_POWER_DIR", &self.folder);
        command.env("RETRYPROOF_POWER_JOURNAL", &self.journal);
        command.env("RETRYPROOF_POWER_SWALLOW", self.plan.swallow.as_deref().unwrap_or(""));
        let mut child = command.stdin(Stdio::null()).stderr(fs::File::create(&log)?).spawn()?;
        let worked = self.wait_for_work(&mut child);
        child.kill()?;
        child.wait()?;
        if !worked? {
            let said = fs::read_to_string(&log)?;
            return Err(format!("the process that works on the file ended: {said}").into());
        }
        Ok(())
    }

    /// Waits until the process has written down a number of bytes. Returns whether it still runs.
    fn wait_for_work(&mut self, child: &mut Child) -> Result<bool, Box<dyn Error>> {
        let enough = self.random.spread(100..WORK);
        let until = mono::now() + 30_000 * MS;
        while fs::metadata(self.folder.join(TOLD)).map_or(0, |file| file.len()) < enough {
            if child.try_wait()?.is_some() || mono::now() > until {
                return Ok(false);
            }
            mono::rest(1);
        }
        Ok(child.try_wait()?.is_none())
    }

    /// In half of the cases, writes random bytes to the file of SQLite's shared memory, because
    /// this file may contain anything after a power loss.
    fn spoil_shared_memory(&mut self) -> std::io::Result<()> {
        if self.random.percent(50) {
            return Ok(());
        }
        let bytes: Vec<u8> = (0..4_096).flat_map(|_| self.random.next().to_ne_bytes()).collect();
        fs::write(self.image.join(format!("{FILE}-shm")), bytes)
    }
}
