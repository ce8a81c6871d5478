// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of MariaDB.

use std::time::Duration;

use retryproof::store::AcquireRequest;
use retryproof::{Identity, OwnerId, Result};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::{query, query_scalar};

use super::door::{Seen, broken, bytes, micros};

const USURP: &str = "UPDATE retryproof_records SET owner=? WHERE scope=? AND k=? AND state=0 AND \
     owner<>REPEAT(X'00',16)";
const HURRY: &str = "UPDATE retryproof_records SET expires_at=UTC_TIMESTAMP(6) WHERE scope=? AND \
     k=? AND state=0 AND owner<>? AND expires_at<UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND";
/// All zero is the owner of what a release left.
const EXPIRED: &str = "SELECT token FROM retryproof_records WHERE scope=? AND k=? AND state=0 \
                       AND expires_at<=UTC_TIMESTAMP(6) AND owner<>REPEAT(X'00',16)";
const CLOCK: &str = "SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";
const OVERWRITE: &str = "UPDATE retryproof_records SET \
     owner=?,expires_at=UTC_TIMESTAMP(6)+INTERVAL ? \
     MICROSECOND,token=?,state=0,takeovers=1,result=NULL WHERE scope=? AND k=?";

pub(super) struct Mariadb(MySqlPool);

impl Mariadb {
    pub(super) fn open(url: &str) -> Result<Self> {
        MySqlPoolOptions::new().max_connections(4).connect_lazy(url).map(Self).map_err(broken)
    }

    pub(super) async fn usurp(&self, id: &Identity, owner: OwnerId) -> Result<()> {
        let (scope, key) = bytes(id);
        let usurp = query(USURP).bind(&owner.as_bytes()[..]).bind(scope).bind(key);
        usurp.execute(&self.0).await.map(drop).map_err(broken)
    }

    pub(super) async fn hurry(&self, id: &Identity, owner: OwnerId, left: Duration) -> Result<()> {
        let (scope, key) = bytes(id);
        let hurry =
            query(HURRY).bind(scope).bind(key).bind(&owner.as_bytes()[..]).bind(micros(left));
        hurry.execute(&self.0).await.map(drop).map_err(broken)
    }

    pub(super) async fn expired(&self, id: &Identity) -> Result<Option<Seen>> {
        let (scope, key) = bytes(id);
        let token = query_scalar(EXPIRED).bind(scope).bind(key).fetch_optional(&self.0).await;
        Ok(token.map_err(broken)?.map(|token| Seen { token, rest: Vec::new() }))
    }

    pub(super) async fn overwrite(
        &self,
        id: &Identity,
        req: &AcquireRequest,
        seen: &Seen,
    ) -> Result<i64> {
        let (scope, key) = bytes(id);
        let now: i64 = query_scalar(CLOCK).fetch_one(&self.0).await.map_err(broken)?;
        let token = now.max(seen.token + 1);
        let write =
            query(OVERWRITE).bind(&req.owner.as_bytes()[..]).bind(micros(req.lease)).bind(token);
        write.bind(scope).bind(key).execute(&self.0).await.map_err(broken)?;
        Ok(token)
    }
}
