// SPDX-License-Identifier: MIT OR Apache-2.0
//! A full disk (STO-1, CMP-3): the store's files are on a small file system that belongs to the
//! run. The run fills it up while a holder works, and then frees the space. It checks that errors
//! are typed, nothing is half done, the holder's result is recorded as soon as there is space, and
//! the store works again without help.
//!
//! The program starts itself again in a separate mount namespace, so that no other process sees the
//! file system, and the file system disappears when the run ends.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use retryproof::store::{AcquireRequest, FencedWrite, Peeked};
use retryproof::{
    Acquisition, CodecId, CompletionResult, ErrorKind, ExecuteError, IdempotencyStore as _,
    Outcome, OwnerId, Payload, Recorded, SharedStore,
};
use rusqlite::Connection;

use crate::mono::{self, MS};
use crate::plan::Plan;
use crate::server::{End, Server};
use crate::{open, supervisor};

mod calls;

use calls::{LEASE, completion, context, engine, grant, identity, large, request, value};

/// The length of the lease that has to survive while the disk is full.
const BEATEN: Duration = Duration::from_secs(6);
/// How soon a store has to work again after the space is freed.
const AGAIN_MS: u64 = 30_000;

/// Starts this program again in a namespace in which it can mount its file system.
pub(crate) fn run(plan: &Plan) -> Result<bool, Box<dyn Error>> {
    let folder = supervisor::data_folder()?;
    let itself = std::env::current_exe()?;
    let ways: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let works = |way: &&&[&str]| {
        let probe = Command::new("unshare")
            .args(**way)
            .args(["mount", "-t", "tmpfs", "-o", "size=64k", "none"])
            .arg(&folder)
            .output();
        probe.is_ok_and(|output| output.status.success())
    };
    let Some(way) = ways.iter().find(works) else {
        let _ = fs::remove_dir_all(&folder);
        return Err("a full disk needs a small file system, and none can be mounted: neither \
                    `unshare --mount` nor `unshare --user --map-root-user --mount` works here; run \
                    the test as root, or allow user namespaces"
            .into());
    };
    let mut command = Command::new("unshare");
    command.args(*way).arg(itself).args(["full-inside", "--store", &plan.store, "--out"]);
    let status = command.arg(&folder).status()?;
    let _ = fs::remove_dir_all(&folder);
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err("the run on the small file system failed".into()),
    }
}

/// Makes the run, in the namespace in which the program can mount its file system.
pub(crate) fn inside(plan: &Plan) -> Result<bool, Box<dyn Error>> {
    let folder = plan.out.clone().ok_or("full-inside needs --out")?;
    let size = match plan.store.as_str() {
        "sqlite" => "4m",
        "postgres" => "96m",
        "mariadb" => "320m",
        other => return Err(format!("{other} keeps nothing on a disk of the run's own").into()),
    };
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={size},mode=0755"), "none"]).arg(&folder);
    if !mount.status()?.success() {
        return Err("the small file system could not be mounted".into());
    }
    let server = Server::start(plan, &folder, None)?;
    let url = match &server {
        Some(server) => server.url().to_owned(),
        None => format!("sqlite:{}", folder.join("records.db").display()),
    };
    supervisor::prepare(&url)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let store = runtime.block_on(open::connect(&url))?;
    let mut full = Full { folder, server, store, met: BTreeSet::new(), restarts: 0 };
    let held = runtime.block_on(async {
        full.each_call().await?;
        full.a_result().await?;
        full.a_heartbeat().await
    });
    let met: Vec<_> = full.met.iter().map(String::as_str).collect();
    println!("met on a full disk: {}; {} restarts", met.join(", "), full.restarts);
    match held {
        Ok(()) => println!("nothing was lost or half done, and the store served again"),
        Err(error) => {
            println!("WRONG: {error}");
            return Ok(false);
        }
    }
    Ok(true)
}

type Done<T = ()> = Result<T, Box<dyn Error>>;

/// A run, with its small file system.
struct Full {
    folder: PathBuf,
    server: Option<Server>,
    store: SharedStore,
    /// The errors that calls returned, and the number of beats that failed.
    met: BTreeSet<String>,
    restarts: u64,
}

impl Full {
    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// Fills the disk to the last byte, and uses up the space that the store has reserved in
    /// advance.
    async fn fill(&mut self) -> Done {
        if self.server.is_none() {
            // Empty the write-ahead log, so that each write needs new space in it.
            let conn = Connection::open(self.folder.join("records.db"))?;
            conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        }
        let mut file = File::create(self.filler())?;
        for block in [1 << 20, 4_096] {
            let bytes = vec![7; block];
            while file.write_all(&bytes).is_ok() {}
        }
        for number in 0..2_000 {
            let (id, owner) = (identity(&format!("filler {number}"))?, OwnerId::new());
            let written = match self.store.acquire(&id, &request(owner)).await {
                Ok(_) => self.store.complete(&id, owner, &completion("filler")).await.map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                return self.refused("a new key", &error);
            }
        }
        Err("the disk is full, and the store still takes new keys".into())
    }

    /// Frees the space, and waits until the store works again. If the server has ended because it
    /// had no space for its log, starts it again, as an operator would.
    async fn empty(&mut self) -> Done {
        fs::remove_file(self.filler())?;
        let began = mono::now();
        while let Err(error) =
            self.store.acquire(&identity("again")?, &request(OwnerId::new())).await
        {
            let waited = mono::now() - began;
            if waited > AGAIN_MS * MS {
                return Err(
                    format!("there is space again, and the store still fails: {error}").into()
                );
            }
            if waited > 3_000 * MS
                && self.restarts == 0
                && let Some(server) = &mut self.server
            {
                self.restarts += 1;
                server.end(End::Killed)?;
                server.start_again()?;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Notes an error. It must be of the kind `Full` or `Unavailable`.
    fn refused(&mut self, what: &str, error: &retryproof::Error) -> Done {
        let kind = error.kind();
        self.met.insert(format!("{what}: {kind:?}"));
        match kind {
            ErrorKind::Full | ErrorKind::Unavailable => Ok(()),
            _ => Err(format!("{what} on a full disk: {error}").into()),
        }
    }

    /// Notes the answer to a call on a full disk. Returns whether the call was refused.
    fn note<T>(&mut self, what: &str, answer: retryproof::Result<T>) -> Done<bool> {
        match answer {
            Ok(_) => Ok(false),
            Err(error) => self.refused(what, &error).map(|()| true),
        }
    }

    /// Makes each kind of store call on a full disk, and again when there is space.
    async fn each_call(&mut self) -> Done {
        let store = self.store.clone();
        let owners: Vec<_> = (0..4).map(|_| OwnerId::new()).collect();
        for (number, owner) in owners.iter().enumerate() {
            grant(&store, &identity(&format!("held {number}"))?, *owner).await?;
            let done = identity(&format!("done {number}"))?;
            grant(&store, &done, *owner).await?;
            let result = completion(&format!("done {number}"));
            match store.complete(&done, *owner, &result).await? {
                FencedWrite::Applied => {}
                other => {
                    return Err(format!("a completion before the full disk is {other:?}").into());
                }
            }
        }
        let [beaten, completed, released, untouched] =
            ["held 0", "held 1", "held 2", "held 3"].map(identity);
        let (beaten, completed, released, untouched) = (beaten?, completed?, released?, untouched?);
        let (old, brief) = (identity("old")?, Duration::from_millis(1));
        let expiring = AcquireRequest::new(owners[0], brief, brief);
        drop(store.acquire(&old, &expiring).await?);
        self.fill().await?;

        let fresh = identity("fresh")?;
        let acquired = self.note("acquire", store.acquire(&fresh, &request(owners[0])).await)?;
        let _ = self.note("extend", store.extend(&beaten, owners[0], LEASE).await)?;
        let result = completion("completed");
        let completes =
            self.note("complete", store.complete(&completed, owners[1], &result).await)?;
        let releases = self.note("release", store.release(&released, owners[2]).await)?;
        let purges = self.note("purge", store.purge(1_000).await)?;
        let strict = self.server.is_none();
        if strict && !(acquired && completes && releases && purges) {
            return Err(format!("a call needed no space: {:?}", self.met).into());
        }
        // The existing results can still be read, and the refused calls have changed nothing.
        for number in 0..4 {
            match value(&store, &format!("done {number}")).await {
                Ok(found) if found == Some(format!("done {number}")) => {}
                Err(error) => self.refused("replay", &error)?,
                other => return Err(format!("a result on a full disk is {other:?}").into()),
            }
        }
        if strict {
            for id in [&beaten, &completed, &released, &untouched] {
                let there = store.peek(id).await?;
                if !matches!(there, Peeked::Busy(_)) {
                    return Err(format!("a refused call left {there:?}").into());
                }
            }
            let there = store.peek(&fresh).await?;
            if !matches!(there, Peeked::Absent) {
                return Err(format!("a refused acquire left {there:?}").into());
            }
        }

        self.empty().await?;
        let applied = |what, answer| match answer {
            FencedWrite::Applied => Ok(()),
            // While the disk was full, a server may have applied the call, and crashed before it
            // answered.
            FencedWrite::AlreadyApplied if !strict => Ok(()),
            other => Err(format!("{what} after a full disk is {other:?}")),
        };
        grant(&store, &fresh, owners[0]).await?;
        applied("extend", store.extend(&beaten, owners[0], LEASE).await?)?;
        applied("complete", store.complete(&completed, owners[1], &result).await?)?;
        applied("release", store.release(&released, owners[2]).await?)?;
        applied("release", store.release(&untouched, owners[3]).await?)?;
        store.purge(1_000).await?;
        if store.get(&old).await?.is_some() {
            return Err("a purge after a full disk left an expired record".into());
        }
        for key in ["done 0", "done 1", "done 2", "done 3"] {
            if value(&store, key).await?.as_deref() != Some(key) {
                return Err(format!("the result of {key} is gone").into());
            }
        }
        match value(&store, "held 1").await?.as_deref() {
            Some("completed") => Ok(()),
            other => Err(format!("the completed result is {other:?}").into()),
        }
    }

    /// Checks that the result of work that ends while the disk is full is recorded when there is
    /// space (CMP-3).
    async fn a_result(&mut self) -> Done {
        let (engine, _) = engine(&self.store)?;
        let (runs, go) = (Arc::new(AtomicU64::new(0)), Arc::new(tokio::sync::Notify::new()));
        let call = tokio::spawn({
            let (engine, runs, go) = (engine.clone(), Arc::clone(&runs), Arc::clone(&go));
            let ctx = context("a result", LEASE)?;
            async move {
                let action = |_| async move {
                    runs.fetch_add(1, Ordering::SeqCst);
                    go.notified().await;
                    Ok::<_, Infallible>(large("a result"))
                };
                engine.call(ctx).report(action).await
            }
        });
        while runs.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.fill().await?;
        go.notify_one();
        let report = call.await?.map_err(|error| error.to_string())?;
        if self.server.is_none() && report.recorded != Recorded::No {
            return Err(format!("a result was recorded on a full disk: {report:?}").into());
        }
        let call = async || Ok::<_, Infallible>(large("another result"));
        match engine.execute(context("another result", LEASE)?, call).await {
            Err(ExecuteError::Store(error)) => self.refused("call", &error)?,
            // A server can still have enough space for a new key in an existing page.
            Ok(Outcome::Executed(_)) if self.server.is_some() => {}
            other => return Err(format!("a new key on a full disk: {other:?}").into()),
        }
        self.empty().await?;
        let again = engine.execute(context("a result", LEASE)?, async || {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Infallible>(String::new())
        });
        match again.await {
            Ok(Outcome::Replayed(value)) if value == large("a result") => {}
            other => return Err(format!("a retry after a full disk: {other:?}").into()),
        }
        match runs.load(Ordering::SeqCst) {
            1 => Ok(()),
            runs => Err(format!("the work ran {runs} times").into()),
        }
    }

    /// Checks that a lease survives if the disk is full for less than 0.4 of the lease (RUN-1).
    async fn a_heartbeat(&mut self) -> Done {
        let (engine, counters) = engine(&self.store)?;
        let Acquisition::Granted(held) = engine.try_acquire(&context("a lease", BEATEN)?).await?
        else {
            return Err("a new key was not granted".into());
        };
        // The disk is full when the first heartbeat is due, at half of the lease.
        tokio::time::sleep(BEATEN.mul_f64(0.45)).await;
        self.fill().await?;
        tokio::time::sleep(BEATEN.mul_f64(0.15)).await;
        self.empty().await?;
        tokio::time::sleep(BEATEN.mul_f64(0.6)).await;
        if !held.lease().believed_held() || !held.lease().confirm().await? {
            return Err("a lease was lost while the disk was full for less than 0.4 of it".into());
        }
        let failed = counters.read().beat_failed;
        if self.server.is_none() && failed == 0 {
            return Err("no heartbeat failed while the disk was full".into());
        }
        self.met.insert(format!("beats that failed: {failed}"));
        match held.complete(Payload::new(CodecId::BYTES, 1, &b"kept"[..])).await {
            CompletionResult::Recorded => Ok(()),
            other => Err(format!("the completion of a lease that was kept: {other:?}").into()),
        }
    }
}
