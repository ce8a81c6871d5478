// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of PostgreSQL.

use std::time::Duration;

use retryproof::store::AcquireRequest;
use retryproof::{Identity, OwnerId, Result};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{query, query_scalar};

use super::door::{Seen, broken, bytes, micros};

const USURP: &str = "UPDATE retryproof_records SET owner=$3 WHERE scope=$1 AND key=$2 AND state=0 \
                     AND owner<>decode(repeat('00',16),'hex')";
const HURRY: &str = "UPDATE retryproof_records SET expires_at=clock_timestamp() WHERE scope=$1 \
     AND key=$2 AND state=0 AND owner<>$3 AND expires_at-clock_timestamp()<$4*interval '1 \
     microsecond'";
/// All zero is the owner of what a release left.
const EXPIRED: &str = "SELECT token FROM retryproof_records WHERE scope=$1 AND key=$2 AND state=0 \
                       AND expires_at<=clock_timestamp() AND owner<>decode(repeat('00',16),'hex')";
const OVERWRITE: &str = "UPDATE retryproof_records SET \
     owner=$3,expires_at=clock_timestamp()+$4*interval '1 \
     microsecond',token=greatest((extract(epoch FROM \
     clock_timestamp())*1000000)::bigint,$5),state=0,takeovers=1,result=NULL WHERE scope=$1 AND \
     key=$2 RETURNING token";

pub(super) struct Postgres(PgPool);

impl Postgres {
    pub(super) fn open(url: &str) -> Result<Self> {
        PgPoolOptions::new().max_connections(4).connect_lazy(url).map(Self).map_err(broken)
    }

    pub(super) async fn usurp(&self, id: &Identity, owner: OwnerId) -> Result<()> {
        let (scope, key) = bytes(id);
        let usurp = query(USURP).bind(scope).bind(key).bind(&owner.as_bytes()[..]);
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
        let write = query_scalar(OVERWRITE).bind(scope).bind(key).bind(&req.owner.as_bytes()[..]);
        write.bind(micros(req.lease)).bind(seen.token + 1).fetch_one(&self.0).await.map_err(broken)
    }
}
