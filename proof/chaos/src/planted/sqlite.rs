// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file of SQLite.

use std::sync::Mutex;
use std::time::Duration;

use retryproof::clock::wall_clock_micros;
use retryproof::store::AcquireRequest;
use retryproof::{Error, ErrorKind, Identity, OwnerId, Result};
use rusqlite::{Connection, OptionalExtension};

use super::door::{Seen, broken, bytes, micros};

const USURP: &str = "UPDATE retryproof_records SET owner=?3 WHERE scope=?1 AND key=?2 AND state=0";
const HURRY: &str = "UPDATE retryproof_records SET expires_at=?3 WHERE scope=?1 AND key=?2 AND \
     state=0 AND owner<>?4 AND expires_at-?3<?5";
const EXPIRED: &str =
    "SELECT token FROM retryproof_records WHERE scope=?1 AND key=?2 AND state=0 AND expires_at<=?3";
const OVERWRITE: &str = "UPDATE retryproof_records SET \
     owner=?3,token=?4,takeovers=1,expires_at=?5,state=0,result=NULL WHERE scope=?1 AND key=?2";

pub(super) struct Sqlite(Mutex<Connection>);

impl Sqlite {
    pub(super) fn open(url: &str) -> Result<Self> {
        let path = url.strip_prefix("sqlite:").and_then(|path| path.split('?').next());
        let path =
            path.ok_or_else(|| Error::new(ErrorKind::Config, "the URL does not name a file"))?;
        let file = Connection::open(path).map_err(broken)?;
        file.busy_timeout(Duration::from_secs(1)).map_err(broken)?;
        Ok(Self(Mutex::new(file)))
    }

    fn with<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        work(&self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)).map_err(broken)
    }

    pub(super) fn usurp(&self, id: &Identity, owner: OwnerId) -> Result<()> {
        let (scope, key) = bytes(id);
        self.with(|file| file.execute(USURP, (scope, key, owner.as_bytes()))).map(drop)
    }

    pub(super) fn hurry(&self, id: &Identity, owner: OwnerId, left: Duration) -> Result<()> {
        let (scope, key) = bytes(id);
        self.with(|file| file.execute(HURRY, (scope, key, now(), owner.as_bytes(), micros(left))))
            .map(drop)
    }

    pub(super) fn expired(&self, id: &Identity) -> Result<Option<Seen>> {
        let (scope, key) = bytes(id);
        let token = |row: &rusqlite::Row<'_>| row.get(0);
        let token =
            self.with(|file| file.query_row(EXPIRED, (scope, key, now()), token).optional())?;
        Ok(token.map(|token| Seen { token, rest: Vec::new() }))
    }

    pub(super) fn overwrite(
        &self,
        id: &Identity,
        req: &AcquireRequest,
        seen: &Seen,
    ) -> Result<i64> {
        let (scope, key) = bytes(id);
        let now = now();
        let token = now.max(seen.token + 1);
        let until = now.saturating_add(micros(req.lease));
        self.with(|file| {
            file.execute(OVERWRITE, (scope, key, req.owner.as_bytes(), token, until))
        })?;
        Ok(token)
    }
}

fn now() -> i64 {
    i64::try_from(wall_clock_micros()).unwrap_or(i64::MAX)
}
