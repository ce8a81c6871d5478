// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answers that callers got, and the check that they still hold in the files that a power loss
//! leaves.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::path::Path;

use retryproof::clock::wall_clock_micros;
use retryproof::sqlite::{SqliteConfig, SqliteStore};
use retryproof::store::{AcquireRequest, Acquired};
use retryproof::{
    CodecId, FencingToken, IdempotencyStore as _, Identity, Opened, OwnerId, SharedStore,
    StoredResult,
};
use rusqlite::Connection;

use super::{FILE, LEASE, SCOPE, TTL, value_of};

/// An hour in microseconds.
const HOUR: u64 = 3_600_000_000;

/// The answer that a caller got about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// The result of the key's work is recorded.
    Done,
    /// The caller has the lease with this token.
    Held(u64),
    /// The lease with this token is released.
    Freed(u64),
}

impl Told {
    fn token(&self) -> Option<u64> {
        match self {
            Self::Held(token) | Self::Freed(token) => Some(*token),
            Self::Done => None,
        }
    }

    fn held(&self) -> Option<u64> {
        self.token().filter(|_| matches!(self, Self::Held(_)))
    }
}

/// The answers that one process got, in their order.
#[derive(Default)]
pub(crate) struct Facts {
    /// The number of each key's first line.
    began: HashMap<String, usize>,
    pub(crate) told: Vec<(usize, String, Told)>,
    /// Keys whose work was done, but ran again or had a different result.
    pub(crate) broken: Vec<String>,
}

impl Facts {
    /// Reads the lines of a process. A line that the kill cut off does not count.
    pub(crate) fn read(text: &str) -> Result<Self, Box<dyn Error>> {
        let mut facts = Self::default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for (at, line) in whole.lines().enumerate() {
            let mut words = line.split(' ');
            let (what, key) = (words.next().unwrap_or(""), words.next().unwrap_or("").to_owned());
            let token = words.next().map_or(Ok(0), str::parse);
            match what {
                "began" => {
                    facts.began.insert(key, at);
                }
                "done" => facts.told.push((at, key, Told::Done)),
                "held" => facts.told.push((at, key, Told::Held(token?))),
                "freed" => facts.told.push((at, key, Told::Freed(token?))),
                _ => facts.broken.push(line.to_owned()),
            }
        }
        Ok(facts)
    }
}

/// How often a store broke each promise.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Found {
    /// Records that a caller knew of and that are missing, so their work would run again.
    pub(crate) lost: u64,
    /// Surviving records that began after a lost one, and lost records that had survived an earlier
    /// power loss.
    pub(crate) reordered: u64,
    /// Records that cannot be read, or whose result is not the one that was written.
    pub(crate) changed: u64,
    /// Joined writes without their record, records without their joined write, and keys with two
    /// writes.
    pub(crate) halves: u64,
    /// Files that fail SQLite's own check, or cannot be opened.
    pub(crate) damaged: u64,
    /// Tokens that did not grow.
    pub(crate) tokens: u64,
}

impl Found {
    pub(crate) fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.changed += other.changed;
        self.halves += other.halves;
        self.damaged += other.damaged;
        self.tokens += other.tokens;
    }

    /// Returns whether a promise was broken that holds with every durability setting.
    pub(crate) fn is_wrong(&self) -> bool {
        self.reordered + self.changed + self.halves + self.damaged + self.tokens > 0
    }
}

/// Opens the files that a power loss left in `folder`, and compares them with the answers that the
/// killed process got (`facts`) and those of earlier processes (`earlier`). Returns the broken
/// promises, and the answers that still hold.
pub(crate) async fn check(
    folder: &Path,
    is_durable: bool,
    facts: &Facts,
    earlier: &[(String, Told)],
) -> Result<(Found, Vec<(String, Told)>), Box<dyn Error>> {
    let mut found = Found::default();
    // Open the file with a clock that is an hour behind, so that only the file can keep a new token
    // larger than earlier ones.
    let fresh = match draw_token(folder).await {
        Ok(token) => token,
        Err(error) => {
            eprintln!("a store on the files that a power loss left: {error}");
            found.damaged = 1;
            return Ok((found, Vec::new()));
        }
    };
    // By this clock, which is an hour ahead, all leases of the killed process are over.
    let store = open(folder, || wall_clock_micros() + HOUR)?;
    let conn = Connection::open(folder.join(FILE))?;
    let said: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if said != "ok" {
        eprintln!("integrity_check: {said}");
        found.damaged = 1;
        return Ok((found, Vec::new()));
    }
    let mut kept = Vec::new();
    let mut oldest_lost = usize::MAX;
    let mut survivors = Vec::new();
    for (at, key, told) in &facts.told {
        if look(&store, key, *told, &mut found).await? {
            kept.push((key.clone(), *told));
            // A free key proves nothing: its record may have been released or lost.
            if !matches!(told, Told::Freed(_)) {
                survivors.push(key);
            }
        } else {
            oldest_lost = oldest_lost.min(*at);
        }
    }
    found.reordered += survivors
        .iter()
        .filter(|key| facts.began.get(**key).is_some_and(|began| *began > oldest_lost))
        .count() as u64;
    for (key, told) in earlier {
        let before = found.lost;
        if look(&store, key, *told, &mut found).await? {
            kept.push((key.clone(), *told));
        }
        found.reordered += found.lost - before;
    }
    found.halves += halves(&conn, &store, facts, earlier).await?;
    // With full durability, every token counts. Otherwise, only the tokens of leases that are still
    // held count, because a lost release leaves no trace.
    let told =
        facts.told.iter().map(|(_, _, told)| told).chain(earlier.iter().map(|(_, told)| told));
    let tokens: Vec<u64> = match is_durable {
        true => told.filter_map(Told::token).collect(),
        false => kept.iter().filter_map(|(_, told)| told.held()).collect(),
    };
    found.tokens += u64::from(tokens.into_iter().max().is_some_and(|newest| fresh <= newest));
    Ok((found, kept))
}

/// Returns whether the answer that a caller got about a key still holds.
async fn look(
    store: &SharedStore,
    key: &str,
    told: Told,
    found: &mut Found,
) -> Result<bool, Box<dyn Error>> {
    let id = identity(key)?;
    let (there, acquired) = match (store.get(&id).await, acquire(store, &id).await) {
        (Ok(there), Ok(acquired)) => (there, acquired),
        // The record cannot be read, so it is no longer the one that was written.
        _ => {
            found.changed += 1;
            return Ok(false);
        }
    };
    let kept = match (told, acquired) {
        (Told::Done, Acquired::Complete(stored)) => {
            found.changed += u64::from(!is_value(key, &stored));
            true
        }
        (Told::Held(token), Acquired::Granted(grant)) => {
            let same = there.is_some_and(|there| there.token == FencingToken::new(token));
            found.tokens += u64::from(same && grant.token.get() <= token);
            same && grant.took_over
        }
        // A released record looks like one that never existed.
        (Told::Freed(token), Acquired::Granted(grant)) => {
            found.tokens += u64::from(there.is_some() && grant.token.get() <= token);
            !grant.took_over
        }
        _ => false,
    };
    found.lost += u64::from(!kept);
    Ok(kept)
}

/// Counts the joined calls whose write exists without a complete record, and those whose complete
/// record exists without the write.
async fn halves(
    conn: &Connection,
    store: &SharedStore,
    facts: &Facts,
    earlier: &[(String, Told)],
) -> Result<u64, Box<dyn Error>> {
    let mut statement = conn.prepare("SELECT key, count(*) FROM ledger GROUP BY key")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let rows: BTreeMap<String, i64> = rows.collect::<Result<_, _>>()?;
    let mut halves = rows.values().filter(|count| **count != 1).count() as u64;
    let joined = facts.began.keys().chain(earlier.iter().map(|(key, _)| key));
    for key in joined.filter(|key| key.ends_with('j')) {
        let complete = match acquire(store, &identity(key)?).await {
            Ok(Acquired::Complete(stored)) => is_value(key, &stored),
            _ => false,
        };
        halves += u64::from(complete != rows.contains_key(key));
    }
    Ok(halves)
}

fn open(
    folder: &Path,
    clock: impl Fn() -> u64 + Send + Sync + 'static,
) -> retryproof::Result<SharedStore> {
    let config = SqliteConfig::new(folder.join(FILE)).with_wall_clock(clock);
    Ok(SqliteStore::open_with(config)?.into_shared())
}

/// Acquires a key that was never used, and returns its token.
async fn draw_token(folder: &Path) -> Result<u64, Box<dyn Error>> {
    let store = open(folder, || wall_clock_micros() - HOUR)?;
    match acquire(&store, &identity("never used")?).await? {
        Acquired::Granted(grant) => Ok(grant.token.get()),
        other => Err(format!("a key that was never used is {other:?}").into()),
    }
}

async fn acquire(store: &SharedStore, id: &Identity) -> retryproof::Result<Acquired> {
    store.acquire(id, &AcquireRequest::new(OwnerId::new(), LEASE, TTL)).await
}

fn identity(key: &str) -> retryproof::Result<Identity> {
    Identity::of(SCOPE, key)
}

fn is_value(key: &str, stored: &StoredResult) -> bool {
    match stored.open(None) {
        Ok(Opened::Value(payload)) if payload.codec() == CodecId::JSON => {
            serde_json::from_slice(payload.body()).is_ok_and(|text: String| text == value_of(key))
        }
        _ => false,
    }
}
