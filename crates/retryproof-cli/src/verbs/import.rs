// SPDX-License-Identifier: MIT OR Apache-2.0
//! `import`: adds the complete records that `export` has printed (OPS-7). The import acquires and
//! completes each record under a separate owner id, so the store fences the record like any other
//! completion.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Read};
use std::path::Path;
use std::time::Duration;

use retryproof::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, ForceRequest, Forced, HolderNote,
    RecordState, RecordSummary,
};
use retryproof::{
    Error, ErrorKind, IdempotencyConfig, IdempotencyStore as _, Identity, OwnerId, SharedStore,
    Tombstone, connect_with,
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::audit::Trail;
use super::confirm::confirm;
use crate::arguments::ImportArguments;
use crate::exit::{self, VerbError};
use crate::interrupt::Interrupt;
use crate::output::{Printer, remark};
use crate::record_line::RecordLine;
use crate::time::now_millis;
use counts::{ImportCounts, Imported};

mod counts;

/// How many records are written at the same time.
const AT_ONCE: usize = 16;
/// The largest line that an import accepts, in bytes.
const MAX_LINE: u64 = 1 << 30;
/// How many lines are read between two lines of progress.
const LINES_PER_REMARK: u64 = 100_000;
/// How long a key stays taken if the import ends between the acquire and the completion of its
/// record.
const LEASE: Duration = Duration::from_secs(10);
/// The holder's label in imported records.
const HOLDER: &str = "retryproof import";

type Lines = mpsc::Receiver<io::Result<Vec<u8>>>;

/// Imports the lines of a file, or of stdin.
pub(crate) async fn import(
    arguments: &ImportArguments,
    config: &IdempotencyConfig,
    print: &Printer,
) -> Result<u8, VerbError> {
    let file = arguments.file.as_deref().filter(|file| *file != Path::new("-"));
    let source: Box<dyn Read + Send> = match file {
        Some(file) => Box::new(File::open(file).map_err(|error| {
            VerbError::usage(format!("{} cannot be read: {error}", file.display()))
        })?),
        None if io::stdin().is_terminal() => {
            return Err(VerbError::usage("name a file, or pipe the output of `export` to stdin"));
        }
        None => Box::new(io::stdin()),
    };
    let store = connect_with(config).await?;
    let name = store.profile().name;
    if !store.can_inspect() {
        let message = format!("the {name} store does not show which records it has");
        return Err(VerbError::new(exit::REFUSED, message));
    }
    let trail = Trail::new(&store, "import", arguments.operator.as_deref(), &arguments.reason)?;
    let interrupt = Interrupt::new();
    if !arguments.yes {
        confirm(
            &interrupt,
            &format!(
                "import into the {name} store? Calls with the imported keys then get the imported \
             results, and their work does not run. [y/N] "
            ),
        )
        .await?;
    }
    trail.request("nothing was imported").await?;
    let mut counts = ImportCounts::default();
    let end = all(&store, lines(source), &interrupt, &mut counts).await;
    let outcome = if end.is_ok() { "applied" } else { "incomplete" };
    trail.outcome(outcome, json!({ "records": counts.as_json() })).await;
    let rows = counts.rows().map(|(name, count)| (name, count.to_string()));
    print.one(&rows, &counts.as_json())?;
    counts.remark_rest();
    end?;
    Ok(if counts.refused > 0 { exit::REFUSED } else { exit::OK })
}

/// Imports all lines. An error of the store ends the import; a line that cannot be imported does
/// not.
async fn all(
    store: &SharedStore,
    mut lines: Lines,
    interrupt: &Interrupt,
    counts: &mut ImportCounts,
) -> Result<(), VerbError> {
    let shows_progress = io::stderr().is_terminal();
    let secret = store.profile().identity_secret;
    let (mut number, mut batch) = (0, ImportBatch::default());
    loop {
        let mut some = Vec::with_capacity(AT_ONCE);
        if interrupt.or(lines.recv_many(&mut some, AT_ONCE)).await? == 0 {
            return Ok(());
        }
        for line in some {
            number += 1;
            let line = match line {
                Ok(line) if line.trim_ascii().is_empty() => continue,
                Ok(line) => line,
                Err(error) => {
                    batch.finish(counts).await?;
                    return Err(VerbError::usage(format!("line {number} cannot be read: {error}")));
                }
            };
            match RecordLine::parse(&line).and_then(|record| record.fitted(secret.as_ref())) {
                Ok(record) => {
                    // A scan of Redis can return a record twice. Finish the batch, so that the
                    // second line finds the record that the first line has created.
                    if batch.ids.contains(&record.id) {
                        batch.finish(counts).await?;
                    }
                    batch.start(store, record, number);
                }
                Err(why) => counts.add(Imported::Refused(why), number),
            }
            if shows_progress && number % LINES_PER_REMARK == 0 {
                remark(format_args!("{number} lines read"));
            }
        }
        batch.finish(counts).await?;
    }
}

/// Records that are written at the same time, with the numbers of their lines.
#[derive(Default)]
struct ImportBatch {
    ids: HashSet<Identity>,
    writing: Vec<(u64, JoinHandle<Result<Imported, Error>>)>,
}

impl ImportBatch {
    fn start(&mut self, store: &SharedStore, record: RecordLine, number: u64) {
        self.ids.insert(record.id.clone());
        self.writing.push((number, tokio::spawn(one(store.clone(), record))));
    }

    /// Waits for all records of the batch, and returns the first error.
    async fn finish(&mut self, counts: &mut ImportCounts) -> Result<(), VerbError> {
        self.ids.clear();
        let mut end = Ok(());
        for (number, written) in self.writing.drain(..) {
            let failed = match written.await {
                Ok(Ok(imported)) => {
                    counts.add(imported, number);
                    continue;
                }
                Ok(Err(error)) => VerbError::from(error),
                Err(error) => VerbError::other(error.to_string()),
            };
            end = end.and(Err(failed.about(&format!("line {number}"))));
        }
        end
    }
}

/// Imports one record. An error means that the store does not work.
async fn one(store: SharedStore, record: RecordLine) -> Result<Imported, Error> {
    let RecordLine { id, result, fingerprint, expires_at, .. } = record;
    let Some(result) = result else { return Ok(Imported::Unfinished) };
    let left = expires_at.unwrap_or(0).saturating_sub(now_millis());
    if left == 0 {
        return Ok(Imported::Expired);
    }
    let ttl = Duration::from_millis(left);
    let done = Completion::new(result, ttl, fingerprint);
    if done.ttl > store.profile().max_duration {
        return Ok(Imported::Refused(
            "it expires later than this store can keep a record".to_owned(),
        ));
    }
    let created = match create_sealed(&store, &id, done).await {
        // The key was destroyed, so no result may be stored under it. The work of the record is
        // done all the same, and must not run again.
        Err(error) if error.kind() == ErrorKind::Codec => {
            let gone = Completion::new(Tombstone::new().into_envelope(), ttl, fingerprint);
            create_sealed(&store, &id, gone).await.map(Imported::without_result)
        }
        created => created,
    };
    match created {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Corrupt | ErrorKind::TooLarge | ErrorKind::Invalid
            ) =>
        {
            Ok(Imported::Refused(error.to_string()))
        }
        imported => imported,
    }
}

/// Seals a result if this store seals results and the result is not sealed yet, and creates its
/// record.
async fn create_sealed(
    store: &SharedStore,
    id: &Identity,
    done: Completion,
) -> Result<Imported, Error> {
    let done = store.seal(id, None, done).await?;
    create(store, id, &done).await
}

/// Creates a complete record, unless the store already has a record.
async fn create(store: &SharedStore, id: &Identity, done: &Completion) -> Result<Imported, Error> {
    // Read the record first, because an acquire would take over the key of a dead holder although
    // it is unknown how far that holder's work got.
    if let Some(record) = store.get(id).await? {
        match record.state {
            RecordState::InProgress if release_left_over(store, id, &record).await? => {}
            RecordState::InProgress => return Ok(Imported::Busy),
            RecordState::Complete if record.remaining.is_some() => return Ok(Imported::Existing),
            // An expired result counts as absent (CMP-6).
            RecordState::Complete => {}
        }
    }
    let owner = OwnerId::new();
    let request = AcquireRequest::new(owner, LEASE, done.ttl)
        .with_fingerprint(done.fingerprint)
        .with_holder(Some(HolderNote::new(owner, LEASE, None, HOLDER)));
    match repeated(|| store.acquire(id, &request)).await? {
        // Another holder acquired the key after the record was read, and then died. Leave the
        // record to the next call, which takes over the key when the import's lease ends.
        Acquired::Granted(grant) if grant.took_over => return Ok(Imported::Busy),
        Acquired::Granted(_) => {}
        Acquired::Complete(_) => return Ok(Imported::Existing),
        Acquired::Busy(_) => return Ok(Imported::Busy),
    }
    match repeated(|| store.complete(id, owner, done)).await {
        Ok(FencedWrite::Applied | FencedWrite::AlreadyApplied) => Ok(Imported::Created),
        Ok(FencedWrite::NotOwner) => Ok(Imported::Busy),
        Err(error) => {
            // If the release fails too, the key becomes free when the lease ends.
            let _ = store.release(id, owner).await;
            Err(error)
        }
    }
}

/// Deletes a record in progress that an interrupted import has left behind, if its lease is over.
/// No work has run under such a lease. The token fences the deletion (OPS-3).
async fn release_left_over(
    store: &SharedStore,
    id: &Identity,
    record: &RecordSummary,
) -> Result<bool, Error> {
    let holder = record.holder.as_ref().and_then(HolderNote::label);
    if record.remaining.is_some() || holder != Some(HOLDER) || !store.can_force() {
        return Ok(false);
    }
    let forced = store.force(id, &ForceRequest::release(record.token)).await?;
    Ok(matches!(forced, Forced::Applied))
}

/// Makes a store call, and repeats it once if its answer may be lost. The store recognises the
/// repeated call by its owner id (ACQ-9, CMP-3).
async fn repeated<T, F: Future<Output = Result<T, Error>>>(
    call: impl Fn() -> F,
) -> Result<T, Error> {
    match call().await {
        Err(error) if error.kind() == ErrorKind::Unavailable => call().await,
        answer => answer,
    }
}

/// Reads lines on a separate thread, so that waiting for input does not block the connections to
/// the store.
fn lines(source: impl Read + Send + 'static) -> Lines {
    let (sender, receiver) = mpsc::channel(AT_ONCE);
    std::thread::spawn(move || {
        let mut source = BufReader::new(source);
        loop {
            let mut line = Vec::new();
            let read = source.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
            let line = match read {
                Ok(0) => return,
                Ok(_) if line.len() as u64 == MAX_LINE => Err(io::Error::other("it is too long")),
                Ok(_) => Ok(line),
                Err(error) => Err(error),
            };
            let is_over = line.is_err();
            if sender.blocking_send(line).is_err() || is_over {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests;
