// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every SQL statement of the store as constant text, with its bind order.
//!
//! A duration is bound as microseconds, which the statement adds to the time of the server's clock
//! (ACQ-7). `UTC_TIMESTAMP(6)` is fixed when a statement begins: after a wait for a row lock, that
//! time is in the past, so a takeover comes late rather than early. `SYSDATE` would not be fixed,
//! but is unsafe for statement-based replication.
//!
//! Each statement that writes, except the DELETE of a purge, touches one row by its primary key and
//! commits by itself, so two of them cannot deadlock.
//!
//! This file has over 400 lines because each statement's text stands beside its rules, and the
//! texts share their conditions.

mod bound;

use std::sync::Arc;

pub(crate) use self::bound::{arguments, completion_params, key_of, micros, size};
use crate::config::DEFAULT_TABLE;

/// The part of a packet, in bytes, that is reserved for the SQL text, for the columns other than
/// the value, and for their lengths.
pub(crate) const PACKET_OVERHEAD: usize = 4_096;

/// The statements. The comment before each text gives its rules, its bind order and its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Statement {
    Enter,
    Grant,
    GrantPortable,
    Replay,
    Find,
    Peek,
    Extend,
    Complete,
    Release,
    PurgeKeys,
    Summary,
    Stats,
    Scan,
    ForceRelease,
    ForceResolve,
    ForceForget,
    ForceErase,
}

/// The owner id that a release writes into the row.
macro_rules! no_owner {
    () => {
        "X'00000000000000000000000000000000'"
    };
}

/// Whether an existing row can be granted to any caller, because its lease or its ttl has ended, or
/// because it was released and kept for its log (REC-3). A row with an unknown state is left alone
/// (CMP-8).
macro_rules! free {
    () => {
        "(state=2 OR (expires_at<=UTC_TIMESTAMP(6) AND state IN (0,1)))"
    };
}

/// Whether the row is in progress and its owner is the caller.
macro_rules! own {
    () => {
        "state=0 AND owner=VALUES(owner)"
    };
}

/// The value `$own` if the row is in progress and its owner is the caller, `$free` if the row is
/// free, and `$other` otherwise.
macro_rules! choose {
    ($own:literal, $free:expr, $other:literal) => {
        concat!("IF(", own!(), ",", $own, ",IF(", free!(), ",", $free, ",", $other, "))")
    };
}

/// Assigns `$value` to a column if the row has been granted; otherwise the column keeps its value.
macro_rules! granted {
    ($column:literal, $value:literal) => {
        concat!(",", $column, "=IF(", own!(), ",", $value, ",", $column, ")")
    };
}

/// The count of takeovers after a free row has been granted: one more if the last holder neither
/// completed nor released the record, otherwise 0.
macro_rules! counted {
    () => {
        concat!("IF(state=0 AND owner<>", no_owner!(), ",LEAST(ABS(takeovers),32766)+1,0)")
    };
}

/// The assignments that turn a row into a released record, which counts as absent and keeps only
/// its token, so that no later token is smaller (ACQ-10).
macro_rules! released {
    () => {
        concat!(
            "owner=",
            no_owner!(),
            ",takeovers=0,expires_at='1970-01-01',\
             purge_after=UTC_TIMESTAMP(6)+INTERVAL 1 HOUR,fp=NULL,holder=NULL"
        )
    };
}

/// Whether the row is a record in progress with the bound token, and its lease is over or may
/// be ended. Binds: scope, key, token, even if live.
macro_rules! abandoned {
    () => {
        concat!(
            " WHERE scope=? AND k=? AND token=? AND state=0 AND owner<>",
            no_owner!(),
            " AND (? OR expires_at<=UTC_TIMESTAMP(6))"
        )
    };
}

/// The INSERT of an upsert; `$first` is the token of a new row.
macro_rules! insert {
    ($first:literal) => {
        concat!(
            "INSERT INTO `retryproof_records` \
             (scope,k,state,owner,token,takeovers,expires_at,purge_after,fp,holder,result,log) \
             VALUES (?,?,0,?,",
            $first,
            ",0,UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND,UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND,\
             ?,?,NULL,NULL)"
        )
    };
}

/// The upsert of an acquire. Assignments run from left to right and see the values assigned before
/// them, so their order matters:
///
/// 1. `takeovers` and `token` are assigned while the row still has its old owner and state. If the
///    lease is the caller's own, it is renewed and keeps both values (ACQ-9). If the row is free,
///    it is granted, and the grant is a takeover if another owner left the row in progress;
/// 2. `owner` and then `state` are assigned: from here on, "own and in progress" means that the row
///    was granted, and the remaining assignments check only that;
/// 3. `expires_at` comes last, because the other assignments read its old value.
///
/// Repeating the whole condition for each column would make a replay a fifth slower. Even in this
/// form, the server spends a third of the statement's time on the assignments, whether or not they
/// apply. Therefore ENTER comes first, and this upsert runs only if a row has to change.
macro_rules! upsert {
    ($first:literal, $kept:literal, $next:literal, $other:literal) => {
        concat!(
            insert!($first),
            " ON DUPLICATE KEY UPDATE takeovers=",
            choose!("takeovers", counted!(), "takeovers"),
            ",token=",
            choose!($kept, $next, $other),
            ",owner=IF(",
            free!(),
            ",VALUES(owner),owner),state=IF(",
            free!(),
            ",0,state)",
            granted!("fp", "VALUES(fp)"),
            granted!("holder", "VALUES(holder)"),
            granted!("result", "NULL"),
            granted!("log", "NULL"),
            granted!("purge_after", "VALUES(purge_after)"),
            granted!("expires_at", "VALUES(expires_at)"),
        )
    };
}

/// The beginning of a row's first column: the owner's 16 bytes, then numbers as decimal text.
macro_rules! numbers {
    () => {
        "owner,state,',',token,',',takeovers,',',\
         TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),expires_at)"
    };
}

/// The end of a row's first column: the length of the fingerprint, -1 if there is none, and then
/// the bytes of the fingerprint and of the note about the holder (REC-2).
macro_rules! details {
    () => {
        "IFNULL(LENGTH(fp),-1),';',IFNULL(fp,''),IFNULL(holder,'')"
    };
}

/// A record's small columns combined into one, because the driver spends more than a microsecond on
/// each column description of each result.
macro_rules! head {
    () => {
        concat!("CONCAT(", numbers!(), ",',',", details!(), ")")
    };
}

/// Whether the row holds a record. A row that was released, with a log (REC-3) or without, holds
/// none.
macro_rules! present {
    () => {
        concat!("state<>2 AND (state<>0 OR owner<>", no_owner!(), ")")
    };
}

impl Statement {
    pub(crate) const COUNT: usize = Self::ForceErase as usize + 1;

    const ALL: [Self; Self::COUNT] = [
        Self::Enter,
        Self::Grant,
        Self::GrantPortable,
        Self::Replay,
        Self::Find,
        Self::Peek,
        Self::Extend,
        Self::Complete,
        Self::Release,
        Self::PurgeKeys,
        Self::Summary,
        Self::Stats,
        Self::Scan,
        Self::ForceRelease,
        Self::ForceResolve,
        Self::ForceForget,
        Self::ForceErase,
    ];

    const fn text(self) -> &'static str {
        match self {
            // ACQ-2, ACQ-7: inserts a new row, or leaves an existing one unchanged, and returns the
            // row. If the existing row's lease has ended, or is the caller's own, the store then
            // runs `Self::Grant`, which can change the row. Binds: 1 scope, 2 key, 3 owner, 4
            // lease, 5 ttl, 6 fp, 7 note. Returns: the head, result.
            Self::Enter => concat!(
                insert!("TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))"),
                " ON DUPLICATE KEY UPDATE state=state RETURNING ",
                head!(),
                ",result"
            ),
            // ACQ-2, ACQ-7, ACQ-9, ACQ-10, ACQ-12: inserts a new row, or renews an existing one,
            // takes it over or leaves it unchanged, and returns the row. Binds: 1 scope, 2 key, 3
            // owner, 4 lease, 5 ttl, 6 fp, 7 note. Returns: the head, result.
            Self::Grant => concat!(
                upsert!(
                    "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))",
                    "token",
                    "GREATEST(VALUES(token),token+1)",
                    "token"
                ),
                " RETURNING ",
                head!(),
                ",result"
            ),
            // GRANT for servers without RETURNING: the insert id of the result is twice the token,
            // plus one for a takeover, or zero if nothing was granted. Binds the same values in the
            // same order as GRANT. Returns no rows.
            Self::GrantPortable => upsert!(
                "LAST_INSERT_ID(2*TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))) DIV 2",
                "LAST_INSERT_ID(2*token+(takeovers>0)) DIV 2",
                "LAST_INSERT_ID(2*GREATEST(VALUES(token),token+1)+(takeovers>0)) DIV 2",
                "token+LAST_INSERT_ID(0)"
            ),
            // ACQ-8: locks and writes nothing. It returns no row if the record is absent, not
            // complete or expired, or if its token or takeover count is negative, which the store
            // never writes. Binds: 1 scope, 2 key. Returns: the owner with details, result.
            Self::Replay => {
                concat!(
                    "SELECT CONCAT(owner,",
                    details!(),
                    "),result FROM `retryproof_records` WHERE scope=? AND k=? AND state=1 AND \
                     token>=0 AND takeovers>=0 AND expires_at>UTC_TIMESTAMP(6)"
                )
            }
            // ACQ-8: like REPLAY, but for a record in any state. Binds: 1 scope, 2 key. Returns:
            // the head, result.
            Self::Find => {
                concat!(
                    "SELECT ",
                    head!(),
                    ",result FROM `retryproof_records` WHERE scope=? AND k=?"
                )
            }
            // ACQ-4: like FIND, but without the details and the value; for waiters. Binds: 1 scope,
            // 2 key. Returns: the head.
            Self::Peek => {
                concat!(
                    "SELECT CONCAT(",
                    numbers!(),
                    ") FROM `retryproof_records` WHERE scope=? AND k=?"
                )
            }
            // RUN-1, CMP-2: the statement is fenced by owner, never by time. Binds: 1 lease, 2
            // scope, 3 key, 4 owner.
            Self::Extend => {
                "UPDATE `retryproof_records` SET expires_at=UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND \
                 WHERE scope=? AND k=? AND state=0 AND owner=?"
            }
            // CMP-1, CMP-2. `purge_after` moves only if the completion's ttl ends before the
            // acquire's (STO-4). The state always changes, so drivers that count changed rows
            // instead of matched ones count the row too. Binds: 1 ttl, 2 ttl, 3 fp, 4 result, 5
            // scope, 6 key, 7 owner.
            Self::Complete => {
                "UPDATE `retryproof_records` SET state=1,\
                 purge_after=LEAST(purge_after,UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND),\
                 expires_at=UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND,fp=?,result=? \
                 WHERE scope=? AND k=? AND state=0 AND owner=?"
            }
            // RUN-4, ACQ-10: every call treats the released record as absent, but the row keeps its
            // token. A purge deletes the row an hour later at the earliest, when no statement that
            // has computed an older token can still be running. Binds: 1 scope, 2 key, 3 owner.
            Self::Release => {
                concat!(
                    "UPDATE `retryproof_records` SET ",
                    released!(),
                    " WHERE scope=? AND k=? AND state=0 AND owner=?"
                )
            }
            // STO-4, REC-3. The SELECT needs no lock, because the DELETE checks each row again. The
            // lower bound skips the index entries of deleted rows, which the server would otherwise
            // scan as long as a transaction might still see the rows. Binds: 1 microseconds since
            // 1970, 2 limit. Returns: scope, key, microseconds since 1970.
            Self::PurgeKeys => {
                concat!(
                    "SELECT scope,k,TIMESTAMPDIFF(MICROSECOND,TIMESTAMP'1970-01-01 \
                     00:00:00',purge_after) FROM `retryproof_records` WHERE \
                     purge_after>=TIMESTAMPADD(MICROSECOND,?,TIMESTAMP'1970-01-01 00:00:00') AND \
                     purge_after<=UTC_TIMESTAMP(6) AND ",
                    free!(),
                    " ORDER BY purge_after LIMIT ?"
                )
            }
            // For operators. Binds: 1 scope, 2 key. Returns: the head, bytes, the
            // server's clock in microseconds since 1970.
            Self::Summary => {
                concat!(
                    "SELECT ",
                    head!(),
                    ",IFNULL(LENGTH(result),0),\
                     TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) \
                     FROM `retryproof_records` WHERE scope=? AND k=? AND ",
                    present!()
                )
            }
            // For operators. The statement scans the whole table. The constant 100 is an estimate
            // of the size of a row's fixed columns and index entries. Returns three counts.
            Self::Stats => {
                concat!(
                    "SELECT COUNT(*),CAST(IFNULL(SUM(state=0),0) AS SIGNED),\
                     CAST(IFNULL(SUM(LENGTH(scope)+LENGTH(k)+100+IFNULL(LENGTH(fp),0)\
                     +IFNULL(LENGTH(holder),0)+IFNULL(LENGTH(result),0)),0) AS SIGNED) \
                     FROM `retryproof_records` WHERE ",
                    present!()
                )
            }
            // OPS-1: one page in the order of the primary key. The server reads a range of the key
            // for each side of the OR, but would read the whole key for `(scope,k)>(?,?)`. Binds: 1
            // scope, 2 key, 3 scope, 4 limit. Returns: the columns of SUMMARY, then scope and key.
            Self::Scan => {
                concat!(
                    "SELECT ",
                    head!(),
                    ",IFNULL(LENGTH(result),0),\
                     TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)),scope,k \
                     FROM `retryproof_records` WHERE ((scope=? AND k>?) OR scope>?) AND ",
                    present!(),
                    " ORDER BY scope,k LIMIT ?"
                )
            }
            // OPS-3, OPS-4: like RELEASE, but fenced by the token. Binds: 1 scope, 2 key, 3 token,
            // 4 even if live.
            Self::ForceRelease => {
                concat!("UPDATE `retryproof_records` SET ", released!(), abandoned!())
            }
            // OPS-3, OPS-4: like COMPLETE, but for another owner. Without a fingerprint, the row
            // keeps the grant's fingerprint. Binds: 1 owner, 2 ttl, 3 ttl, 4 fp, 5 result, 6 scope,
            // 7 key, 8 token, 9 even if live.
            Self::ForceResolve => concat!(
                "UPDATE `retryproof_records` SET state=1,owner=?,\
                 purge_after=LEAST(purge_after,UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND),\
                 expires_at=UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND,fp=IFNULL(?,fp),holder=NULL,\
                 result=?",
                abandoned!()
            ),
            // OPS-3, OPS-4. Binds: 1 scope, 2 key, 3 token.
            Self::ForceForget => concat!(
                "UPDATE `retryproof_records` SET state=0,result=NULL,",
                released!(),
                " WHERE scope=? AND k=? AND token=? AND state=1"
            ),
            // OPS-3, OPS-4. Binds: 1 result, 2 scope, 3 key, 4 token.
            Self::ForceErase => {
                "UPDATE `retryproof_records` SET result=?,log=NULL \
                 WHERE scope=? AND k=? AND token=? AND state=1"
            }
        }
    }
}

/// The texts of all statements, for one table.
#[derive(Debug)]
pub(crate) struct StatementTexts {
    texts: [Arc<str>; Statement::COUNT],
    table: String,
}

impl StatementTexts {
    /// The texts for a validated table name, the only dynamic part of the SQL (STO-3).
    pub(crate) fn new(table: &str) -> Self {
        let text = |statement: Statement| Arc::from(statement.text().replace(DEFAULT_TABLE, table));
        Self { texts: Statement::ALL.map(text), table: table.to_owned() }
    }

    pub(crate) fn of(&self, statement: Statement) -> &Arc<str> {
        &self.texts[statement as usize]
    }

    /// STO-4: deletes `rows` records by their keys, each only if it is still expired. The
    /// parameters are each record's scope and key.
    pub(crate) fn purge(&self, rows: usize) -> Arc<str> {
        let keys = vec!["(scope=? AND k=?)"; rows.max(1)].join(" OR ");
        Arc::from(format!(
            "DELETE FROM `{}` WHERE ({keys}) AND purge_after<=UTC_TIMESTAMP(6) AND {}",
            self.table,
            free!()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_3_the_table_name_is_the_only_dynamic_part() {
        let sql = StatementTexts::new("other");
        for statement in Statement::ALL {
            let text = sql.of(statement);
            assert!(text.contains("`other`") && !text.contains(DEFAULT_TABLE), "{text}");
        }
        assert_eq!(sql.purge(2).matches('?').count(), 4);
    }
}
