// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every statement as constant text, with its bind order.
//!
//! Bound values are blobs and integers only. Times are in microseconds, read from the host's clock
//! while the lock is held (ACQ-7).

use crate::config::DEFAULT_TABLE;

/// The statements. In [`text`](Self::text), a comment above each statement lists the rules that the
/// statement serves, its parameters in order, and its result columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Statement {
    Read,
    Peek,
    Grant,
    Extend,
    Complete,
    PurgeEarlier,
    JoinedComplete,
    Release,
    Purge,
    Fence,
    SetFence,
    Summary,
    Stats,
    Scan,
    ForceDelete,
    ForceResolve,
    ForceErase,
}

impl Statement {
    pub(crate) const COUNT: usize = Self::ForceErase as usize + 1;

    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::Read,
        Self::Peek,
        Self::Grant,
        Self::Extend,
        Self::Complete,
        Self::PurgeEarlier,
        Self::JoinedComplete,
        Self::Release,
        Self::Purge,
        Self::Fence,
        Self::SetFence,
        Self::Summary,
        Self::Stats,
        Self::Scan,
        Self::ForceDelete,
        Self::ForceResolve,
        Self::ForceErase,
    ];

    const fn text(self) -> &'static str {
        match self {
            // ACQ-8: point lookup. Binds: ?1 scope, ?2 key. Returns: state, owner, token,
            // expires_at, takeovers, holder, fp, result.
            Self::Read => {
                "SELECT state,owner,token,expires_at,takeovers,holder,fp,result FROM \
                 retryproof_records WHERE scope=?1 AND key=?2"
            }
            // ACQ-4: reads only the first columns of `Read`, for waiters. Binds: ?1 scope, ?2 key.
            // Returns: state, owner, token, expires_at.
            Self::Peek => {
                "SELECT state,owner,token,expires_at FROM retryproof_records WHERE scope=?1 AND key=?2"
            }
            // ACQ-2, ACQ-7, ACQ-9: a new lease, a takeover or a repeated acquire by the owner. The
            // write itself compares the expiry with the clock once more. Binds: ?1 scope, ?2 key,
            // ?3 owner, ?4 token, ?5 expires_at, ?6 purge_after, ?7 fp, ?8 now, ?9 takeovers, ?10
            // holder.
            Self::Grant => {
                "INSERT INTO retryproof_records (scope,key,state,owner,token,takeovers,\
                 expires_at,purge_after,holder,fp,result,log) \
                 VALUES (?1,?2,0,?3,?4,?9,?5,?6,?10,?7,NULL,NULL) \
                 ON CONFLICT (scope,key) DO UPDATE SET \
                 state=0,owner=excluded.owner,token=excluded.token,\
                 takeovers=excluded.takeovers,expires_at=excluded.expires_at,\
                 purge_after=excluded.purge_after,holder=excluded.holder,fp=excluded.fp,\
                 result=NULL,log=NULL \
                 WHERE expires_at<=?8 OR state=2 OR (state=0 AND owner=excluded.owner)"
            }
            // RUN-1, CMP-2: the statement is fenced by owner, never by time. Binds: ?1 scope, ?2
            // key, ?3 owner, ?4 expires_at.
            Self::Extend => {
                "UPDATE retryproof_records SET expires_at=?4 WHERE scope=?1 AND key=?2 AND \
                 state=0 AND owner=?3"
            }
            // CMP-1, CMP-2. Binds: ?1 scope, ?2 key, ?3 owner, ?4 expires_at, ?5 fp, ?6 result.
            Self::Complete => {
                "UPDATE retryproof_records SET state=1,expires_at=?4,fp=?5,result=?6 \
                 WHERE scope=?1 AND key=?2 AND state=0 AND owner=?3"
            }
            // STO-4: changes the row only if the completion's ttl ends before the acquire's ttl.
            // Binds: ?1 scope, ?2 key, ?3 purge_after.
            Self::PurgeEarlier => {
                "UPDATE retryproof_records SET purge_after=?3 WHERE scope=?1 AND key=?2 AND purge_after>?3"
            }
            // CMP-7: `Complete` and `PurgeEarlier` as one statement, for the application's
            // transaction. Takes the same parameters as `Complete`.
            Self::JoinedComplete => {
                "UPDATE retryproof_records SET \
                 state=1,expires_at=?4,purge_after=min(purge_after,?4),fp=?5,result=?6 WHERE \
                 scope=?1 AND key=?2 AND state=0 AND owner=?3"
            }
            // RUN-4. Binds: ?1 scope, ?2 key, ?3 owner.
            Self::Release => {
                "DELETE FROM retryproof_records WHERE scope=?1 AND key=?2 AND state=0 AND owner=?3"
            }
            // STO-4, REC-3. A row with an unknown state stays (CMP-8). Binds: ?1 now, ?2 limit.
            Self::Purge => {
                "DELETE FROM retryproof_records WHERE rowid IN \
                 (SELECT rowid FROM retryproof_records WHERE purge_after<=?1 AND \
                 (state=2 OR state IN (0,1) AND expires_at<=?1) LIMIT ?2)"
            }
            // ACQ-10: the last token that was drawn.
            Self::Fence => "SELECT value FROM retryproof_records_meta WHERE name='fence'",
            // ACQ-10: written once for all grants of a transaction. Binds: ?1 token.
            Self::SetFence => "UPDATE retryproof_records_meta SET value=?1 WHERE name='fence'",
            // For operators. Binds: ?1 scope, ?2 key. Returns: state, owner, token, expires_at,
            // takeovers, holder, has fp, bytes.
            Self::Summary => {
                "SELECT state,owner,token,expires_at,takeovers,holder,fp IS NOT \
                 NULL,ifnull(length(result),0) FROM retryproof_records WHERE scope=?1 AND key=?2"
            }
            // For operators. The statement scans the whole table. A record that was released with a
            // log is not counted (REC-3). The constant estimates the size of the fixed columns and
            // the index entries.
            Self::Stats => {
                "SELECT count(*),ifnull(sum(state=0),0),ifnull(sum(2*length(scope)+2*length(key)+80\
                 +ifnull(length(holder),0)+ifnull(length(fp),0)+ifnull(length(result),0)),0) \
                 FROM retryproof_records WHERE state<>2"
            }
            // OPS-1: one page in the order of the primary key, whose index the comparison of rows
            // uses. Binds: ?1 scope, ?2 key, ?3 limit. Returns: the columns of `Summary`, scope,
            // key.
            Self::Scan => {
                "SELECT state,owner,token,expires_at,takeovers,holder,fp IS NOT \
                 NULL,ifnull(length(result),0),scope,key FROM retryproof_records WHERE \
                 (scope,key)>(?1,?2) ORDER BY scope,key LIMIT ?3"
            }
            // OPS-3, OPS-4: the transaction that runs one of these three statements has read the
            // record, and has held the write lock since then. The statements compare the token once
            // more. Binds: ?1 scope, ?2 key, ?3 token.
            Self::ForceDelete => {
                "DELETE FROM retryproof_records WHERE scope=?1 AND key=?2 AND token=?3 AND state<>2"
            }
            // Binds: ?1 scope, ?2 key, ?3 token, ?4 owner, ?5 expires_at, ?6 fp, ?7 result.
            Self::ForceResolve => {
                "UPDATE retryproof_records SET \
                 state=1,owner=?4,expires_at=?5,purge_after=min(purge_after,?5),holder=NULL,\
                 fp=ifnull(?6,fp),result=?7 WHERE scope=?1 AND key=?2 AND token=?3 AND state=0"
            }
            // Binds: ?1 scope, ?2 key, ?3 token, ?4 result.
            Self::ForceErase => {
                "UPDATE retryproof_records SET result=?4,log=NULL WHERE scope=?1 AND key=?2 AND token=?3 AND \
                 state=1"
            }
        }
    }
}

/// The texts of the statements for one table.
#[derive(Debug)]
pub(crate) struct StatementTexts([String; Statement::COUNT]);

impl StatementTexts {
    /// Builds the texts for a validated table name.
    pub(crate) fn new(table: &str) -> Self {
        Self(Statement::ALL.map(|statement| statement.text().replace(DEFAULT_TABLE, table)))
    }

    pub(crate) fn get(&self, statement: Statement) -> &str {
        &self.0[statement as usize]
    }
}
