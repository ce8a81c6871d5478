// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Planted`]: the SQLite store with a defect, made by writing to its file behind its back. The same run that shows no
//! violation on the store has to show one here.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use retryproof::clock::wall_clock_micros;
use retryproof::store::{AcquireRequest, Acquired, Completion, Fenced, Grant, Standing, StoreProfile};
use retryproof::{Error, ErrorKind, FencingToken, IdempotencyStore, Identity, OwnerId, Result, SharedStore};
use rusqlite::{Connection, OptionalExtension};

/// What can be planted.
pub(crate) const NAMES: [&str; 3] = ["no-owner-check", "early-takeover", "get-then-set"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    /// A completion, an extension or a release is taken from whoever sends it.
    NoOwnerCheck,
    /// A lease is taken over when half of it is left.
    EarlyTakeover,
    /// An expired lease is read, and then written, as if nobody could come in between.
    GetThenSet,
}

/// A store with a defect.
pub(crate) struct Planted {
    inner: SharedStore,
    defect: Defect,
    file: Mutex<Connection>,
}

impl Planted {
    pub(crate) fn new(inner: SharedStore, defect: &str, url: &str) -> Result<Self> {
        let path = url.strip_prefix("sqlite:").and_then(|path| path.split('?').next());
        let path = path.ok_or_else(|| Error::new(ErrorKind::Config, "defects are planted in SQLite"))?;
        let file = Connection::open(path).map_err(broken)?;
        file.busy_timeout(Duration::from_secs(1)).map_err(broken)?;
        let defect = match defect {
            "no-owner-check" => Defect::NoOwnerCheck,
            "early-takeover" => Defect::EarlyTakeover,
            _ => Defect::GetThenSet,
        };
        Ok(Self { inner, defect, file: Mutex::new(file) })
    }

    fn write(&self, sql: &str, params: impl rusqlite::Params) -> Result<usize> {
        let file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.execute(sql, params).map_err(broken)
    }

    /// Makes the caller the owner of whatever is in progress.
    fn usurp(&self, id: &Identity, owner: OwnerId) -> Result<()> {
        if self.defect == Defect::NoOwnerCheck {
            let sql = "UPDATE retryproof_records SET owner=?3 WHERE scope=?1 AND key=?2 AND state=0";
            let (scope, key) = bytes(id);
            self.write(sql, (scope, key, owner.as_bytes()))?;
        }
        Ok(())
    }

    /// Half of a lease is enough.
    fn hurry(&self, id: &Identity, req: &AcquireRequest) -> Result<()> {
        let sql = "UPDATE retryproof_records SET expires_at=?3 WHERE scope=?1 AND key=?2 AND state=0 \
                   AND owner<>?4 AND expires_at-?3<?5";
        let (scope, key) = bytes(id);
        let half = i64::try_from(req.lease.as_micros() / 2).unwrap_or(i64::MAX);
        self.write(sql, (scope, key, now(), req.owner.as_bytes(), half)).map(drop)
    }

    /// The token of an expired lease, which the caller goes on to overwrite whatever happens in between.
    fn expired(&self, id: &Identity) -> Result<Option<i64>> {
        let file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let sql =
            "SELECT token FROM retryproof_records WHERE scope=?1 AND key=?2 AND state=0 AND expires_at<=?3";
        let (scope, key) = bytes(id);
        file.query_row(sql, (scope, key, now()), |row| row.get(0)).optional().map_err(broken)
    }

    fn set(&self, id: &Identity, req: &AcquireRequest, seen: i64) -> Result<Acquired> {
        let sql = "UPDATE retryproof_records SET owner=?3,token=?4,expires_at=?5,state=0,result=NULL \
                   WHERE scope=?1 AND key=?2";
        let (scope, key) = bytes(id);
        let now = now();
        let token = now.max(seen + 1);
        let until = now.saturating_add(i64::try_from(req.lease.as_micros()).unwrap_or(i64::MAX));
        self.write(sql, (scope, key, req.owner.as_bytes(), token, until))?;
        let token = FencingToken::new(u64::try_from(token).unwrap_or(0));
        Ok(Acquired::Granted(Grant::new(token, req.lease, true)))
    }
}

fn now() -> i64 {
    i64::try_from(wall_clock_micros()).unwrap_or(i64::MAX)
}

fn bytes(id: &Identity) -> (&[u8], &[u8]) {
    (id.scope().as_str().as_bytes(), id.key().expose().as_bytes())
}

fn broken(error: rusqlite::Error) -> Error {
    Error::unavailable("the planted defect cannot reach the file").because(error)
}

impl fmt::Debug for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planted").field("defect", &self.defect).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Planted {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        match self.defect {
            Defect::NoOwnerCheck => {}
            Defect::EarlyTakeover => self.hurry(id, req)?,
            Defect::GetThenSet => {
                if let Some(seen) = self.expired(id)? {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    return self.set(id, req, seen);
                }
            }
        }
        self.inner.acquire(id, req).await
    }

    async fn look(&self, id: &Identity) -> Result<Standing> {
        self.inner.look(id).await
    }

    async fn changed(&self, id: &Identity, seen: FencingToken, at_most: Duration) -> Result<()> {
        self.inner.changed(id, seen, at_most).await
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<Fenced> {
        self.usurp(id, owner)?;
        self.inner.extend(id, owner, lease).await
    }

    async fn complete(&self, id: &Identity, owner: OwnerId, done: &Completion) -> Result<Fenced> {
        self.usurp(id, owner)?;
        self.inner.complete(id, owner, done).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<Fenced> {
        self.usurp(id, owner)?;
        self.inner.release(id, owner).await
    }

    fn profile(&self) -> StoreProfile {
        self.inner.profile()
    }
}
