// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Role`]: what a server reports of itself. The role alone is not enough: an old primary that
//! comes back after a failover accepts writes like the new one. Each promotion begins a new
//! timeline with a higher number, so the timelines distinguish the two.

use std::fmt;
use std::time::Duration;

use sqlx_core::connection::ConnectOptions as _;
use sqlx_core::executor::Executor;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_postgres::{PgConnectOptions, PgConnection, Postgres};
use tokio::time::timeout;

use crate::error::public_text;

/// Queries a server's role. `pg_walfile_name` fails during recovery. The first eight hex digits
/// of a file's name are the timeline.
const ROLE: &str = "SELECT pg_is_in_recovery(),current_setting('transaction_read_only')::boolean,\
     CASE WHEN pg_is_in_recovery() THEN 0 ELSE \
     ('x'||substr(pg_walfile_name(pg_current_wal_lsn()),1,8))::bit(32)::bigint END,\
     (SELECT system_identifier FROM pg_control_system()),\
     (date_part('epoch',pg_postmaster_start_time())*1000000)::bigint";

/// The role of a server, and what distinguishes the server from its copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) is_standby: bool,
    /// Whether transactions are read-only by default. On a standby, they always are.
    pub(crate) is_read_only: bool,
    /// The timeline on which the server writes; 0 on a standby.
    pub(crate) timeline: i64,
    /// The number that a server shares with its copies, and with no other server.
    pub(crate) cluster: i64,
    /// When the server started, in microseconds since 1970. A server that has restarted may have
    /// missed a promotion.
    pub(crate) started: i64,
}

/// Why a host cannot be used.
#[derive(Debug)]
pub(crate) enum HostVerdict {
    Standby,
    ReadOnly,
    /// The host is on a lower timeline than the highest one that this process has seen.
    Outdated {
        timeline: i64,
        newest: i64,
    },
    /// The host is no copy of the server that this process has used.
    Unrelated,
    Silent(Duration),
    Failed(sqlx_core::Error),
}

impl Role {
    pub(crate) async fn query<'c, E>(server: E) -> Result<Self, sqlx_core::Error>
    where
        E: Executor<'c, Database = Postgres>,
    {
        let row = server.fetch_one(raw_sql(ROLE)).await?;
        Ok(Self {
            is_standby: row.try_get(0)?,
            is_read_only: row.try_get(1)?,
            timeline: row.try_get(2)?,
            cluster: row.try_get(3)?,
            started: row.try_get(4)?,
        })
    }

    /// Whether the server accepts writes.
    pub(crate) fn is_writable(&self) -> bool {
        !self.is_standby && !self.is_read_only
    }

    /// Whether the server may be the primary after one with the role `last`: it is a copy of that
    /// server, and on no lower timeline.
    pub(crate) fn may_follow(&self, last: &Self) -> bool {
        self.cluster == last.cluster && self.timeline >= last.timeline
    }
}

impl fmt::Display for HostVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standby => f.write_str("is a standby"),
            Self::ReadOnly => f.write_str("is set to read-only"),
            Self::Outdated { timeline, newest } => write!(
                f,
                "is an old primary: it is on timeline {timeline}, and timeline {newest} was seen"
            ),
            Self::Unrelated => f.write_str("is no copy of the other hosts' server"),
            Self::Silent(limit) => write!(f, "did not answer within {limit:?}"),
            Self::Failed(error) => write!(f, "failed: {}", public_text(error)),
        }
    }
}

/// Opens a connection to a host, and queries its role.
pub(crate) async fn dial(
    options: PgConnectOptions,
    limit: Duration,
) -> Result<(PgConnection, Role), HostVerdict> {
    let dialled = async {
        let mut conn = options.connect().await?;
        let role = Role::query(&mut conn).await?;
        Ok((conn, role))
    };
    timeout(limit, dialled)
        .await
        .map_err(|_| HostVerdict::Silent(limit))?
        .map_err(HostVerdict::Failed)
}
