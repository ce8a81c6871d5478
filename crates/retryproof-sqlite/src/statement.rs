// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every SQL statement of the store as constant text, with its bind order.
//!
//! These statements bind only blobs, integers and NULL. Times are in microseconds since 1970. A
//! write reads the clock while it holds the write lock (ACQ-7).

use crate::config::DEFAULT_TABLE;

/// The store's statements. In [`text`](Self::text), the comment above each statement lists the
/// rules that the statement serves, its parameters in bind order, and its result columns.
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
    ClaimPurge,
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
        Self::ClaimPurge,
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
            // ACQ-8: reads one record by its primary key. Binds scope and key, in this order.
            // Returns `state`, `owner`, `token`, `expires_at`, `takeovers`, `holder`, `fp` and
            // `result`.
            Self::Read => {
                "SELECT state,owner,token,expires_at,takeovers,holder,fp,result FROM \
                 retryproof_records WHERE scope=?1 AND key=?2"
            }
            // ACQ-4: like `Read`, but returns only the columns that a waiter needs. Binds scope and
            // key, in this order. Returns `state`, `owner`, `token` and `expires_at`.
            Self::Peek => {
                "SELECT state,owner,token,expires_at FROM retryproof_records WHERE scope=?1 AND key=?2"
            }
            // ACQ-2, ACQ-7, ACQ-9: writes the lease for a first grant, a takeover or a repeated
            // acquire by the owner. The store has already checked the record, but the statement
            // compares the record's expiry with the current time again. Binds scope, key, owner,
            // token, `expires_at`, `purge_after`, fingerprint, current time, takeovers and holder
            // note as ?1 to ?10.
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
            // RUN-1, CMP-2: extends the lease if the caller still owns the record, even if the
            // lease has ended. Binds scope, key, owner and `expires_at` as ?1 to ?4.
            Self::Extend => {
                "UPDATE retryproof_records SET expires_at=?4 WHERE scope=?1 AND key=?2 AND \
                 state=0 AND owner=?3"
            }
            // CMP-1, CMP-2: completes the record if the caller still owns it. Binds scope, key,
            // owner, `expires_at`, fingerprint and result as ?1 to ?6.
            Self::Complete => {
                "UPDATE retryproof_records SET state=1,expires_at=?4,fp=?5,result=?6 \
                 WHERE scope=?1 AND key=?2 AND state=0 AND owner=?3"
            }
            // STO-4: moves `purge_after` if the completion's ttl ends before the acquire's ttl.
            // Binds scope, key and the new `purge_after` as ?1 to ?3.
            Self::PurgeEarlier => {
                "UPDATE retryproof_records SET purge_after=?3 WHERE scope=?1 AND key=?2 AND purge_after>?3"
            }
            // CMP-7: does the work of `Complete` and `PurgeEarlier` in one statement, which runs in
            // the application's transaction. Binds the same values as `Complete`, in the same
            // order.
            Self::JoinedComplete => {
                "UPDATE retryproof_records SET \
                 state=1,expires_at=?4,purge_after=min(purge_after,?4),fp=?5,result=?6 WHERE \
                 scope=?1 AND key=?2 AND state=0 AND owner=?3"
            }
            // RUN-4: deletes the record if the caller still owns it. Binds scope, key and owner as
            // ?1 to ?3.
            Self::Release => {
                "DELETE FROM retryproof_records WHERE scope=?1 AND key=?2 AND state=0 AND owner=?3"
            }
            // STO-4, REC-3: deletes expired records, but no row with an unknown state (CMP-8).
            // Binds the current time and the limit as ?1 and ?2.
            Self::Purge => {
                "DELETE FROM retryproof_records WHERE rowid IN \
                 (SELECT rowid FROM retryproof_records WHERE purge_after<=?1 AND \
                 (state=2 OR state IN (0,1) AND expires_at<=?1) LIMIT ?2)"
            }
            // STO-6: claims the purge if there is no claim or the last claim has ended. If the end
            // of that claim is more than two claim lengths ahead, the clock was set back, so the
            // statement replaces that claim too. Binds the current time and the length of the new
            // claim as ?1 and ?2.
            Self::ClaimPurge => {
                "INSERT INTO retryproof_records_meta (name,value) VALUES ('purge',?1+?2) \
                 ON CONFLICT (name) DO UPDATE SET value=excluded.value \
                 WHERE value<=?1 OR value>?1+2*?2"
            }
            // ACQ-10: reads the last token that was issued.
            Self::Fence => "SELECT value FROM retryproof_records_meta WHERE name='fence'",
            // ACQ-10: stores the last token, once for all grants of a transaction. Binds the token.
            Self::SetFence => "UPDATE retryproof_records_meta SET value=?1 WHERE name='fence'",
            // Reads one record for operators. Binds scope and key, in this order. Returns `state`,
            // `owner`, `token`, `expires_at`, `takeovers`, `holder`, whether there is a
            // fingerprint, and the length of the result.
            Self::Summary => {
                "SELECT state,owner,token,expires_at,takeovers,holder,fp IS NOT \
                 NULL,ifnull(length(result),0) FROM retryproof_records WHERE scope=?1 AND key=?2"
            }
            // Scans the whole table to count the records for operators, except those that were
            // released with a log (REC-3). The constant 80 estimates how many bytes a row's fixed
            // columns and index entries occupy. Returns the number of records, the number in
            // progress, and the total size in bytes.
            Self::Stats => {
                "SELECT count(*),ifnull(sum(state=0),0),ifnull(sum(2*length(scope)+2*length(key)+80\
                 +ifnull(length(holder),0)+ifnull(length(fp),0)+ifnull(length(result),0)),0) \
                 FROM retryproof_records WHERE state<>2"
            }
            // OPS-1: reads one page in primary-key order. SQLite uses the primary key's index for
            // the comparison `(scope,key)>(?1,?2)`. Binds scope, key and limit as ?1 to ?3. Returns
            // the columns of `Summary`, then `scope` and `key`.
            Self::Scan => {
                "SELECT state,owner,token,expires_at,takeovers,holder,fp IS NOT \
                 NULL,ifnull(length(result),0),scope,key FROM retryproof_records WHERE \
                 (scope,key)>(?1,?2) ORDER BY scope,key LIMIT ?3"
            }
            // OPS-3, OPS-4: deletes a record for an operator. Before this statement and the two
            // below, the transaction takes the write lock and reads the record. The statements
            // still check the token. Binds scope, key and token as ?1 to ?3.
            Self::ForceDelete => {
                "DELETE FROM retryproof_records WHERE scope=?1 AND key=?2 AND token=?3 AND state<>2"
            }
            // OPS-3, OPS-4: completes a record in progress for an operator. Binds scope, key,
            // token, the new owner, `expires_at`, fingerprint and result as ?1 to ?7.
            Self::ForceResolve => {
                "UPDATE retryproof_records SET \
                 state=1,owner=?4,expires_at=?5,purge_after=min(purge_after,?5),holder=NULL,\
                 fp=ifnull(?6,fp),result=?7 WHERE scope=?1 AND key=?2 AND token=?3 AND state=0"
            }
            // OPS-3, OPS-4: replaces the result of a complete record. Binds scope, key, token and
            // the new result as ?1 to ?4.
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
