// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every SQL statement of the store as constant text, with its bind order.
//!
//! Durations are bound in microseconds. A statement adds them to the server's current time (ACQ-7).
//! `UTC_TIMESTAMP(6)` returns the time at which the statement began. If the statement then waits
//! for a row lock, this time is slightly old, so a takeover can come late but never early.
//! `SYSDATE(6)` would return the current time, but is unsafe with statement-based replication.
//!
//! Every write except the DELETE of a purge changes one row, which it finds by primary key, and
//! commits immediately. Two such writes therefore cannot deadlock.
//!
//! This file is over 400 lines long because the statements share their conditions, and each
//! statement's rules are next to its text.

mod bound;

use std::sync::Arc;

pub(crate) use self::bound::{arguments, completion_params, key_of, length, micros, size};
use crate::config::DEFAULT_TABLE;

/// How many bytes of a packet are reserved for the SQL text, the columns other than the value, and
/// the lengths of the columns.
pub(crate) const PACKET_OVERHEAD: usize = 4_096;

/// The store's statements. In [`text`](Self::text), the comment above each statement lists the
/// rules that the statement serves, its parameters in bind order, and its result columns.
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
    ClaimPurge,
    FirstClaim,
    Summary,
    Stats,
    Scan,
    ForceRelease,
    ForceResolve,
    ForceForget,
    ForceErase,
}

/// The server's time in microseconds since 1970.
macro_rules! now_us {
    () => {
        "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))"
    };
}

/// The owner id that a release writes into the row.
macro_rules! no_owner {
    () => {
        "X'00000000000000000000000000000000'"
    };
}

/// Whether any caller can be granted an existing row: the row's lease or ttl has ended, or the row
/// was released but kept for its log (REC-3). A row with an unknown state is never granted (CMP-8).
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

/// Evaluates to `$own` if the row is in progress and the caller owns it, to `$free` if the row is
/// free, and to `$other` otherwise.
macro_rules! choose {
    ($own:literal, $free:expr, $other:literal) => {
        concat!("IF(", own!(), ",", $own, ",IF(", free!(), ",", $free, ",", $other, "))")
    };
}

/// Assigns `$value` to a column if the caller has been granted the row. Otherwise, the column keeps
/// its value.
macro_rules! granted {
    ($column:literal, $value:literal) => {
        concat!(",", $column, "=IF(", own!(), ",", $value, ",", $column, ")")
    };
}

/// The takeover count that a free row gets with a grant. If the last holder left the record in
/// progress, the count grows by one. Otherwise, the count is 0.
macro_rules! counted {
    () => {
        concat!("IF(state=0 AND owner<>", no_owner!(), ",LEAST(ABS(takeovers),32766)+1,0)")
    };
}

/// The assignments that release a record. A released record counts as absent. Its row keeps the
/// token, so every later token is larger (ACQ-10).
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

/// The WHERE clause for an operator's change to a record in progress. The clause matches the row
/// with the bound token if the row's lease has ended or `even_if_live` is true. Binds scope, key,
/// token and `even_if_live`, in this order.
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

/// The upsert of an acquire. The server runs the assignments from left to right, and each
/// assignment sees the values that the earlier ones have set. Their order therefore matters:
///
/// 1. `takeovers` and `token` come first, while the row still has its old owner and state. If the
///    caller already owns the lease, both columns keep their values (ACQ-9). If the row is free,
///    the caller is granted the row with a new token. The grant is a takeover if another owner left
///    the row in progress.
/// 2. `owner` and then `state` follow. From here on, `own!()` is true exactly if the caller has
///    been granted the row, so the remaining assignments check only `own!()`.
/// 3. `expires_at` comes last, because earlier assignments read its old value.
///
/// If every column repeated the whole condition, a replay would be a fifth slower. Even in this
/// form, the assignments take a third of the statement's time, whether or not they change the row.
/// The store therefore usually tries `Enter` first, and runs this upsert only if a row has to
/// change.
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

/// The first part of `head!()`: the owner's 16 bytes, then the numbers as decimal text.
macro_rules! numbers {
    () => {
        "owner,state,',',token,',',takeovers,',',\
         TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),expires_at)"
    };
}

/// The second part of `head!()`: the length of the fingerprint (-1 if there is none), then the
/// bytes of the fingerprint and of the holder note (REC-2).
macro_rules! details {
    () => {
        "IFNULL(LENGTH(fp),-1),';',IFNULL(fp,''),IFNULL(holder,'')"
    };
}

/// The head: a record's small columns, combined into one column. For every result, the driver
/// spends more than a microsecond on the description of each column.
macro_rules! head {
    () => {
        concat!("CONCAT(", numbers!(), ",',',", details!(), ")")
    };
}

/// Whether the row holds a record. A released row, with or without a log (REC-3), holds no record.
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
        Self::ClaimPurge,
        Self::FirstClaim,
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
            // ACQ-2, ACQ-7: inserts a new row, or leaves an existing row unchanged, and returns the
            // row. If an existing row is free, or its lease belongs to the caller, the store then
            // runs `Grant`, which can change the row. Binds scope, key, owner, lease, ttl,
            // fingerprint and holder note, in this order. Returns `head!()` and `result`.
            Self::Enter => concat!(
                insert!("TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))"),
                " ON DUPLICATE KEY UPDATE state=state RETURNING ",
                head!(),
                ",result"
            ),
            // ACQ-2, ACQ-7, ACQ-9, ACQ-10, ACQ-12: inserts a new row, or renews, takes over or
            // keeps an existing row, and returns the row. Binds scope, key, owner, lease, ttl,
            // fingerprint and holder note, in this order. Returns `head!()` and `result`.
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
            // Like `Grant`, but for servers without RETURNING. If the caller was granted the row,
            // the insert id of the result is twice the token, plus one for a takeover. Otherwise,
            // the insert id is zero. Binds the same values as `Grant`, in the same order. Returns
            // no rows.
            Self::GrantPortable => upsert!(
                "LAST_INSERT_ID(2*TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))) DIV 2",
                "LAST_INSERT_ID(2*token+(takeovers>0)) DIV 2",
                "LAST_INSERT_ID(2*GREATEST(VALUES(token),token+1)+(takeovers>0)) DIV 2",
                "token+LAST_INSERT_ID(0)"
            ),
            // ACQ-8: reads the result of a complete record that has not expired, without locking or
            // writing. Skips a row with a negative token or takeover count, because the store never
            // writes such numbers. Binds scope and key, in this order. Returns the owner and
            // `details!()` in one column, then `result`.
            Self::Replay => {
                concat!(
                    "SELECT CONCAT(owner,",
                    details!(),
                    "),result FROM `retryproof_records` WHERE scope=? AND k=? AND state=1 AND \
                     token>=0 AND takeovers>=0 AND expires_at>UTC_TIMESTAMP(6)"
                )
            }
            // ACQ-8: like `Replay`, but reads a record in any state. Binds scope and key, in this
            // order. Returns `head!()` and `result`.
            Self::Find => {
                concat!(
                    "SELECT ",
                    head!(),
                    ",result FROM `retryproof_records` WHERE scope=? AND k=?"
                )
            }
            // ACQ-4: like `Find`, but omits the details and the value, which waiters do not need.
            // Binds scope and key, in this order. Returns `numbers!()` in one column.
            Self::Peek => {
                concat!(
                    "SELECT CONCAT(",
                    numbers!(),
                    ") FROM `retryproof_records` WHERE scope=? AND k=?"
                )
            }
            // RUN-1, CMP-2: extends the lease if the caller still owns the record, even if the
            // lease has ended. UTC_TIMESTAMP is the time at which the statement began, and SYSDATE
            // the time at which it got the row's lock. The statement adds their difference.
            // Otherwise, a heartbeat that waited for the lock would shorten a lease that a later
            // heartbeat, which did not wait, has already extended. The difference is limited to 2
            // s, because SYSDATE and NOW are local times, which differ by an hour if daylight
            // saving time begins in between. Binds lease, scope, key and owner, in this order.
            Self::Extend => {
                "UPDATE `retryproof_records` SET expires_at=UTC_TIMESTAMP(6)+INTERVAL ?+\
                 GREATEST(0,LEAST(2000000,TIMESTAMPDIFF(MICROSECOND,NOW(6),SYSDATE(6)))) \
                 MICROSECOND WHERE scope=? AND k=? AND state=0 AND owner=?"
            }
            // CMP-1, CMP-2: completes the record if the caller still owns it. `purge_after` changes
            // only if the completion's ttl ends before the acquire's ttl (STO-4). The state always
            // changes, so a driver that counts changed rows instead of matched rows also counts
            // this row. Binds ttl, ttl again, fingerprint, result, length of the result, scope, key
            // and owner, in this order.
            Self::Complete => {
                "UPDATE `retryproof_records` SET state=1,\
                 purge_after=LEAST(purge_after,UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND),\
                 expires_at=UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND,fp=?,result=?,\
                 bytes=? WHERE scope=? AND k=? AND state=0 AND owner=?"
            }
            // RUN-4, ACQ-10: releases the record if the caller still owns it. Every call then
            // treats the record as absent, but the row keeps its token. A purge deletes the row an
            // hour later at the earliest. By then, every statement that has computed an older token
            // has ended. Binds scope, key and owner, in this order.
            Self::Release => {
                concat!(
                    "UPDATE `retryproof_records` SET ",
                    released!(),
                    " WHERE scope=? AND k=? AND state=0 AND owner=?"
                )
            }
            // STO-4, REC-3: finds the keys of expired records. The SELECT needs no lock, because
            // the DELETE checks each row again. The lower bound on `purge_after` lets the server
            // skip the index entries of deleted rows. The server keeps such entries, and would
            // otherwise scan them, for as long as an open transaction can still see the rows. Binds
            // the lower bound, in microseconds since 1970, and the limit, in this order. Returns
            // `scope`, `k`, and `purge_after` in microseconds since 1970.
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
            // STO-6: claims the purge if the last claim has ended. If the end of that claim is more
            // than two claim lengths ahead, the clock was set back, so the statement replaces that
            // claim too. Binds the length of the new claim twice, in microseconds.
            Self::ClaimPurge => concat!(
                "UPDATE `retryproof_records_meta` SET value=",
                now_us!(),
                "+? WHERE name='purge' AND (value<=",
                now_us!(),
                " OR value>",
                now_us!(),
                "+2*?)"
            ),
            // STO-6: makes the first claim, which inserts the claim's row. Binds the length of the
            // claim, in microseconds.
            Self::FirstClaim => concat!(
                "INSERT IGNORE INTO `retryproof_records_meta` (name,value) VALUES ('purge',",
                now_us!(),
                "+?)"
            ),
            // Reads one record for operators. Binds scope and key, in this order. Returns
            // `head!()`, `bytes`, and the server's time in microseconds since 1970.
            Self::Summary => {
                concat!(
                    "SELECT ",
                    head!(),
                    ",IFNULL(bytes,0),TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) \
                     FROM `retryproof_records` WHERE scope=? AND k=?"
                )
            }
            // Scans the whole table to count the records for operators. The constant 100 estimates
            // how many bytes a row's fixed columns and index entries occupy. Returns the number of
            // records, the number in progress, and the total size in bytes.
            Self::Stats => {
                concat!(
                    "SELECT COUNT(*),CAST(IFNULL(SUM(state=0),0) AS SIGNED),\
                     CAST(IFNULL(SUM(LENGTH(scope)+LENGTH(k)+100+IFNULL(LENGTH(fp),0)\
                     +IFNULL(LENGTH(holder),0)+IF(state=1,IFNULL(bytes,0),0)),0) AS SIGNED) \
                     FROM `retryproof_records` WHERE ",
                    present!()
                )
            }
            // OPS-1: reads one page in primary-key order. For each side of the OR, the server reads
            // one range of the primary key. For `(scope,k)>(?,?)`, it would read the whole index.
            // The page includes released rows. If it excluded them, the server might have to read
            // the whole table to fill one page. Binds scope, key, scope again, and limit, in this
            // order. Returns the columns of `Summary`, then `scope` and `k`.
            Self::Scan => {
                concat!(
                    "SELECT ",
                    head!(),
                    ",IFNULL(bytes,0),TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)),\
                     scope,k FROM `retryproof_records` WHERE (scope=? AND k>?) OR scope>? \
                     ORDER BY scope,k LIMIT ?"
                )
            }
            // OPS-3, OPS-4: like `Release`, but checks the token instead of the owner. Binds scope,
            // key, token and `even_if_live`, in this order.
            Self::ForceRelease => {
                concat!("UPDATE `retryproof_records` SET ", released!(), abandoned!())
            }
            // OPS-3, OPS-4: like `Complete`, but sets a new owner, and checks the token instead of
            // the old owner. If the bound fingerprint is NULL, the row keeps the grant's
            // fingerprint. Binds the new owner, ttl, ttl again, fingerprint, result, length of the
            // result, scope, key, token and `even_if_live`, in this order.
            Self::ForceResolve => concat!(
                "UPDATE `retryproof_records` SET state=1,owner=?,\
                 purge_after=LEAST(purge_after,UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND),\
                 expires_at=UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND,fp=IFNULL(?,fp),holder=NULL,\
                 result=?,bytes=?",
                abandoned!()
            ),
            // OPS-3, OPS-4: turns a complete record into a released record. Binds scope, key and
            // token, in this order.
            Self::ForceForget => concat!(
                "UPDATE `retryproof_records` SET state=0,result=NULL,",
                released!(),
                " WHERE scope=? AND k=? AND token=? AND state=1"
            ),
            // OPS-3, OPS-4: replaces the result of a complete record. Binds the new result, its
            // length, scope, key and token, in this order.
            Self::ForceErase => {
                "UPDATE `retryproof_records` SET result=?,bytes=?,log=NULL \
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
    /// Builds the texts for a validated table name, which is the only dynamic part of the SQL
    /// (STO-3).
    pub(crate) fn new(table: &str) -> Self {
        let text = |statement: Statement| Arc::from(statement.text().replace(DEFAULT_TABLE, table));
        Self { texts: Statement::ALL.map(text), table: table.to_owned() }
    }

    pub(crate) fn of(&self, statement: Statement) -> &Arc<str> {
        &self.texts[statement as usize]
    }

    /// Returns a DELETE that takes the keys of `rows` records, and deletes the records that are
    /// still expired (STO-4). Binds the scope and the key of each record in turn.
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
            assert!(text.contains("`other") && !text.contains(DEFAULT_TABLE), "{text}");
        }
        assert_eq!(sql.purge(2).matches('?').count(), 4);
    }
}
