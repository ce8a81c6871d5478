// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every statement as constant text, with its bind order. In PostgreSQL's dialect, three statements
//! call functions, whose bodies are in `migrations/`. [`plain`] has the texts of the plain dialect
//! that differ (STO-9).
//!
//! This file is over 400 lines long because each statement's text is beside its rules, and many of
//! the statements share the SQL that reads the clock.

pub(crate) mod bound;

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::config::SqlDialect;
use retryproof_core::store::{AcquireRequest, Completion, ForceAction, ForceRequest, Param};
use retryproof_core::{Identity, OwnerId};

use crate::config::DEFAULT_TABLE;

use bound::{BoundStatement, ParamList, Returns};

/// The server's time when this expression is evaluated, in microseconds since 1970 (ACQ-7). `now()`
/// would instead return the time at which the transaction began. `date_part` returns a double,
/// which distinguishes microseconds until 2106; `extract` would compute in decimal numbers.
macro_rules! now_us {
    () => {
        "(date_part('epoch',clock_timestamp())*1000000)::bigint"
    };
}

/// The time left in a row's lease or ttl, in microseconds.
macro_rules! remaining_us {
    () => {
        "(date_part('epoch',expires_at-clock_timestamp())*1000000)::bigint"
    };
}

/// Limits how long one statement waits for a row that an open transaction has locked. The setting
/// ends with the statement's own transaction, even behind a pooler. The text is the last part of a
/// statement's condition.
const BOUNDED: &str = " AND set_config('lock_timeout','250ms',true) IS NOT NULL";

/// The owner id of a released record. The record stays for at least an hour, to keep its token
/// (ACQ-10).
macro_rules! no_owner {
    () => {
        "decode('00000000000000000000000000000000','hex')"
    };
}

// The module uses the macros above, so it is declared below them.
pub(crate) mod plain;

/// The statements. In [`text`](Self::text), a comment before each statement gives its rules, its
/// bind order and the columns of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Statement {
    Acquire,
    Read,
    Peek,
    Extend,
    Complete,
    CompleteMany,
    Join,
    Release,
    Purge,
    ClaimPurge,
    Summary,
    Stats,
    Scan,
    ForceRelease,
    ForceResolve,
    ForceForget,
    ForceErase,
}

impl Statement {
    const COUNT: usize = Self::ForceErase as usize + 1;

    const ALL: [Self; Self::COUNT] = [
        Self::Acquire,
        Self::Read,
        Self::Peek,
        Self::Extend,
        Self::Complete,
        Self::CompleteMany,
        Self::Join,
        Self::Release,
        Self::Purge,
        Self::ClaimPurge,
        Self::Summary,
        Self::Stats,
        Self::Scan,
        Self::ForceRelease,
        Self::ForceResolve,
        Self::ForceForget,
        Self::ForceErase,
    ];

    /// What the statement returns.
    const fn returns(self) -> Returns {
        match self {
            Self::Extend
            | Self::Complete
            | Self::Release
            | Self::ClaimPurge
            | Self::ForceRelease
            | Self::ForceResolve
            | Self::ForceForget
            | Self::ForceErase => Returns::Count,
            Self::Scan => Returns::Rows,
            _ => Returns::Row,
        }
    }

    /// Returns the text in a dialect.
    fn text(self, dialect: SqlDialect) -> String {
        let text = self.common_text();
        match (dialect, self) {
            (SqlDialect::Plain, _) => plain::text(self).unwrap_or(text).to_owned(),
            (_, Self::Extend | Self::Release | Self::ForceForget | Self::ForceErase) => {
                format!("{text}{BOUNDED}")
            }
            (_, Self::ForceRelease) => announced(text, 5),
            (_, Self::ForceResolve) => announced(text, 9),
            _ => text.to_owned(),
        }
    }

    /// Returns the text in PostgreSQL's dialect, without the limit of the wait for a locked row,
    /// and without the notification.
    const fn common_text(self) -> &'static str {
        match self {
            // ACQ-2, ACQ-7 to ACQ-10. The statement reads the record. If the record is absent,
            // expired, released or kept only for its log, or is the caller's own, the statement
            // also calls the function that inserts or replaces the record. Any other record is
            // neither locked nor written. For such a record, the statement does not even call the
            // function, because starting the function costs as much as reading the record. The
            // remaining time is computed before the condition that decides on the call. An answer
            // with no remaining time therefore means that the function was called. The value of an
            // expired record is not sent, because the value can be large. Binds: 1 scope, 2 key, 3
            // owner, 4 lease, 5 ttl, 6 granularity, 7 fp, 8 note, 9 lock timeout in ms. Returns:
            // state, owner, token, remaining, fp, result, holder, granted (NULL: not tried; 0:
            // another caller was faster; else the token, negative for a takeover).
            Self::Acquire => concat!(
                "SELECT t.state,t.owner,t.token,",
                remaining_us!(),
                ",t.fp,CASE WHEN t.expires_at>clock_timestamp() THEN t.result END,t.holder,CASE \
                 WHEN (t.expires_at>clock_timestamp() AND t.state<>2) IS NOT TRUE OR (t.state=0 AND \
                 t.owner=$3) THEN \"retryproof_records_grant_1\"($1,$2,$3,$4,$5,$6,$7,$8,t.state IS \
                 NOT NULL,$9) END FROM (SELECT 1) AS one LEFT JOIN \"retryproof_records\" AS t ON \
                 t.scope=$1 AND t.key=$2"
            ),
            // ACQ-8: reads one record. Binds: 1 scope, 2 key. Returns: state, owner, token,
            // remaining, fp, result, holder.
            Self::Read => concat!(
                "SELECT state,owner,token,",
                remaining_us!(),
                ",fp,result,holder FROM \"retryproof_records\" WHERE scope=$1 AND key=$2"
            ),
            // ACQ-4: reads a record for a waiter. Like `Read`, but returns no fingerprint, no value
            // and no note. Binds: 1 scope, 2 key. Returns: state, owner, token, remaining.
            Self::Peek => concat!(
                "SELECT state,owner,token,",
                remaining_us!(),
                " FROM \"retryproof_records\" WHERE scope=$1 AND key=$2"
            ),
            // RUN-1, CMP-2: extends the lease if the caller still owns the record, even if the
            // lease has ended. The lock timeout keeps a locked row from delaying the other
            // heartbeats (RUN-2). Binds: 1 scope, 2 key, 3 owner, 4 lease.
            Self::Extend => {
                "UPDATE \"retryproof_records\" SET \
                 expires_at=clock_timestamp()+$4::bigint*interval '1 microsecond' WHERE scope=$1 \
                 AND key=$2 AND state=0 AND owner=$3"
            }
            // CMP-1, CMP-2: completes the record if the caller still owns it. The purge bucket
            // changes only if the completion's ttl ends before the acquire's ttl. Otherwise, the
            // bucket and its index entry stay unchanged. Binds: 1 scope, 2 key, 3 owner, 4 ttl, 5
            // granularity, 6 fp, 7 result.
            Self::Complete => concat!(
                "UPDATE \"retryproof_records\" SET \
                 state=1,expires_at=clock_timestamp()+$4::bigint*interval '1 \
                 microsecond',purge_bucket=least(purge_bucket,(",
                now_us!(),
                "+$4::bigint+$5::bigint-1)/$5::bigint*$5::bigint),fp=$6,result=$7 \
                 WHERE scope=$1 AND key=$2 AND state=0 AND owner=$3"
            ),
            // Like `Complete`, but for many records. Each record is fenced by its owner. If one row
            // stays locked, the whole statement fails, and each completion is then sent alone.
            // Binds: 1 scopes, 2 keys, 3 owners, 4 ttls, 5 granularities, 6 fps, 7 results.
            // Returns: the positions of the completions that took effect.
            Self::CompleteMany => {
                "SELECT \"retryproof_records_complete_1\"($1,$2,$3,$4,$5,$6,$7) \
                 WHERE set_config('lock_timeout','50ms',true) IS NOT NULL"
            }
            // CMP-7: like `Complete`, but runs on the application's connection. The statement calls
            // `complete_1`, which sets `enable_seqscan = off`. The function's plans therefore
            // depend neither on that connection's settings nor on the number of rows that the table
            // had when the plans were made. The statement returns a row if it took effect. Binds
            // the same values in the same order as `Complete`.
            Self::Join => {
                "SELECT 1 FROM \
                 unnest(\"retryproof_records_complete_1\"(ARRAY[$1::bytea],ARRAY[$2::bytea],ARRAY[$3::bytea],ARRAY[$4::bigint],ARRAY[$5::bigint],ARRAY[$6::bytea],ARRAY[$7::bytea])) AS done"
            }
            // RUN-4, ACQ-10: releases the record if the caller still owns it. The released record
            // stays for at least an hour, but every call treats it as absent. Binds: 1 scope, 2
            // key, 3 owner.
            Self::Release => concat!(
                "UPDATE \"retryproof_records\" SET owner=",
                no_owner!(),
                ",takeovers=0,holder=NULL,expires_at=to_timestamp(0),purge_bucket=",
                now_us!(),
                "+3600000000,fp=NULL WHERE scope=$1 AND key=$2 AND state=0 AND owner=$3"
            ),
            // STO-4, REC-3: deletes expired records, but no row with an unknown state (CMP-8). The
            // upper bound is a subquery, so that the server can use the index. The lower bound lets
            // the server skip the index entries of deleted rows. Without this bound, the server
            // would keep scanning these entries for as long as a transaction might still see the
            // rows. A ctid finds each row without an index, but rows of different partitions can
            // have the same ctid, so the deletion compares the key too. A key is in one partition
            // only, and the server reads no other. Binds: 1 limit, 2 first bucket. Returns: the
            // number of deleted rows, their last bucket.
            Self::Purge => concat!(
                "WITH old AS MATERIALIZED (SELECT ctid AS place,key FROM \"retryproof_records\" \
                 WHERE purge_bucket>=$2::bigint AND purge_bucket<=(SELECT ",
                now_us!(),
                ") AND (expires_at<clock_timestamp() OR state=2) AND state IN (0,1,2) \
                 ORDER BY purge_bucket LIMIT $1::bigint FOR UPDATE SKIP LOCKED),gone AS (DELETE \
                 FROM \"retryproof_records\" AS r USING old WHERE r.ctid=old.place AND \
                 r.key=old.key RETURNING r.purge_bucket) \
                 SELECT count(*),coalesce(max(purge_bucket),0) FROM gone"
            ),
            // STO-6: claims the purge if there is no claim or the last claim has ended. If the end
            // of that claim is more than two claim lengths ahead, the clock was set back, so the
            // statement replaces that claim too. Binds: 1 length of the claim.
            Self::ClaimPurge => concat!(
                "INSERT INTO \"retryproof_records_meta\" AS m (name,value) VALUES ('purge',",
                now_us!(),
                "+$1::bigint) ON CONFLICT (name) DO UPDATE SET value=excluded.value WHERE m.value<=",
                now_us!(),
                " OR m.value>",
                now_us!(),
                "+2*$1::bigint"
            ),
            // Reads one record for operators. Binds: 1 scope, 2 key. Returns: state, owner, token,
            // remaining, bytes, has fp, holder, takeovers, microseconds since the grant.
            Self::Summary => concat!(
                "SELECT state,owner,token,",
                remaining_us!(),
                ",coalesce(octet_length(result),0)::bigint,(fp IS NOT NULL),holder,takeovers,",
                now_us!(),
                "-token FROM \"retryproof_records\" WHERE scope=$1 AND key=$2"
            ),
            // Scans the whole table to count the records for operators. Returns: records, in
            // progress, bytes on disk (of the partitions, too).
            Self::Stats => concat!(
                "SELECT count(*),count(*) FILTER (WHERE \
                 state=0),(SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE \
                 oid='\"retryproof_records\"'::regclass OR oid IN (SELECT relid FROM \
                 pg_partition_tree('\"retryproof_records\"'::regclass)))::bigint \
                 FROM \"retryproof_records\" WHERE state<>2 AND owner<>",
                no_owner!()
            ),
            // OPS-1: reads one page in the order of the primary key. The server uses the primary
            // key's index for the comparison of rows. Binds: 1 scope, 2 key, 3 limit. Returns: the
            // columns of `Summary`, scope, key.
            Self::Scan => concat!(
                "SELECT state,owner,token,",
                remaining_us!(),
                ",coalesce(octet_length(result),0)::bigint,(fp IS NOT NULL),holder,takeovers,",
                now_us!(),
                "-token,scope,key FROM \"retryproof_records\" WHERE (key,scope)>($2::bytea,$1::bytea) \
                 ORDER BY key,scope LIMIT $3::bigint"
            ),
            // OPS-3, OPS-4: like `Release`, but fenced by the token. The statement changes nothing
            // while the lease is live, unless the operator allows this. Binds: 1 scope, 2 key, 3
            // token, 4 `even_if_live`, 5 message (not in the plain dialect).
            Self::ForceRelease => concat!(
                "UPDATE \"retryproof_records\" SET owner=",
                no_owner!(),
                ",takeovers=0,holder=NULL,expires_at=to_timestamp(0),purge_bucket=",
                now_us!(),
                "+3600000000,fp=NULL WHERE scope=$1 AND key=$2 AND token=$3::bigint AND state=0 \
                 AND owner<>",
                no_owner!(),
                " AND ($4::boolean OR expires_at<=clock_timestamp())"
            ),
            // OPS-3, OPS-4: like `Complete`, but sets a new owner, and is fenced like
            // `ForceRelease`. If no fingerprint is bound, the row keeps the grant's fingerprint.
            // The purge bucket is not rounded, because operators resolve few records. Binds: 1
            // scope, 2 key, 3 token, 4 `even_if_live`, 5 owner, 6 ttl, 7 fp, 8 result, 9 message
            // (not in the plain dialect).
            Self::ForceResolve => concat!(
                "UPDATE \"retryproof_records\" SET \
                 state=1,owner=$5,holder=NULL,expires_at=clock_timestamp()+$6::bigint*interval '1 \
                 microsecond',purge_bucket=least(purge_bucket,",
                now_us!(),
                "+$6::bigint),fp=coalesce($7::bytea,fp),result=$8 WHERE scope=$1 AND key=$2 AND \
                 token=$3::bigint AND state=0 AND owner<>",
                no_owner!(),
                " AND ($4::boolean OR expires_at<=clock_timestamp())"
            ),
            // OPS-3, OPS-4, ACQ-10: forgetting a result leaves a released record, which keeps the
            // token. Binds: 1 scope, 2 key, 3 token.
            Self::ForceForget => concat!(
                "UPDATE \"retryproof_records\" SET state=0,owner=",
                no_owner!(),
                ",takeovers=0,holder=NULL,expires_at=to_timestamp(0),purge_bucket=",
                now_us!(),
                "+3600000000,fp=NULL,result=NULL WHERE scope=$1 AND key=$2 AND token=$3::bigint \
                 AND state=1"
            ),
            // OPS-3, OPS-4: replaces the result of a complete record. Binds: 1 scope, 2 key, 3
            // token, 4 result.
            Self::ForceErase => {
                "UPDATE \"retryproof_records\" SET result=$4,log=NULL WHERE scope=$1 AND key=$2 AND \
                 token=$3::bigint AND state=1"
            }
        }
    }
}

/// Returns the text of an operator's change that also wakes the waiters of all processes if the
/// change took effect. `message` is the number of the bound message. The server sends the message
/// when the statement commits, before it answers (ACQ-4).
fn announced(change: &str, message: u8) -> String {
    format!(
        "WITH forced AS ({change}{BOUNDED} RETURNING 1) SELECT \
         pg_notify('retryproof_records_wake',encode(${message},'escape')) FROM forced"
    )
}

/// Settings for statements that read an index in its order, on connections without the store's
/// settings. If the table was never analyzed, the planner would otherwise first collect and sort
/// all index entries.
const PLANNER_SETTINGS: &str = "SET LOCAL enable_seqscan=off;SET LOCAL enable_bitmapscan=off;";

/// The texts of the statements for one table, in one dialect.
#[derive(Debug)]
pub(crate) struct StatementTexts {
    texts: [Arc<str>; Statement::COUNT],
    dialect: SqlDialect,
}

/// A completion with its owner.
#[derive(Clone, Copy)]
pub(crate) struct OwnedCompletion<'a> {
    pub(crate) id: &'a Identity,
    pub(crate) owner: &'a OwnerId,
    pub(crate) done: &'a Completion,
}

impl StatementTexts {
    /// Creates the texts for a validated table name.
    pub(crate) fn new(table: &str, dialect: SqlDialect) -> Self {
        let text = |statement: Statement| statement.text(dialect).replace(DEFAULT_TABLE, table);
        Self { texts: Statement::ALL.map(|statement| text(statement).into()), dialect }
    }

    pub(crate) fn get(&self, statement: Statement) -> &str {
        &self.texts[statement as usize]
    }

    fn bind<'a>(&self, statement: Statement, params: Vec<Param<'a>>) -> BoundStatement<'a> {
        let text = Arc::clone(&self.texts[statement as usize]);
        let bound = BoundStatement::new(text, statement.returns(), params);
        match self.dialect {
            SqlDialect::Postgres => bound,
            SqlDialect::Plain => bound.with_settings(plain::settings(statement)),
        }
    }

    /// Adds settings for the planner, which the plain dialect does not need to be correct.
    fn planned<'a>(&self, bound: BoundStatement<'a>) -> BoundStatement<'a> {
        match self.dialect {
            SqlDialect::Postgres => bound.with_settings(PLANNER_SETTINGS),
            SqlDialect::Plain => bound,
        }
    }

    /// Binds a statement whose only parameters are scope and key.
    pub(crate) fn by_key<'a>(&self, statement: Statement, id: &'a Identity) -> BoundStatement<'a> {
        self.bind(statement, key_params(id).into())
    }

    /// Binds the acquire. `lock_timeout` limits the statement's wait for a row that an open
    /// transaction has locked. In the plain dialect, a setting of the connection does that.
    pub(crate) fn acquire<'a>(
        &self,
        id: &'a Identity,
        req: &'a AcquireRequest,
        lock_timeout: Duration,
    ) -> BoundStatement<'a> {
        let [scope, key] = key_params(id);
        let (lease, ttl) = (micros(req.lease), micros(req.ttl));
        let mut params = vec![
            scope,
            key,
            Param::Bytes(req.owner.as_bytes()),
            Param::Int(lease),
            Param::Int(ttl),
            Param::Int(granularity(ttl)),
            req.fingerprint.as_ref().map(|fp| fp.as_bytes()).into(),
            req.holder.as_ref().map(|note| note.as_bytes()).into(),
        ];
        if self.dialect == SqlDialect::Postgres {
            let millis = i64::try_from(lock_timeout.as_millis()).unwrap_or(i64::MAX);
            params.push(Param::Int(millis.max(1)));
        }
        self.bind(Statement::Acquire, params)
    }

    pub(crate) fn extend<'a>(
        &self,
        id: &'a Identity,
        owner: &'a OwnerId,
        lease: Duration,
    ) -> BoundStatement<'a> {
        let [scope, key] = key_params(id);
        let params = vec![scope, key, Param::Bytes(owner.as_bytes()), Param::Int(micros(lease))];
        self.bind(Statement::Extend, params)
    }

    /// Binds the fenced completion: [`Statement::Complete`], or [`Statement::Join`] on the
    /// connection of the application's transaction (CMP-7).
    pub(crate) fn complete<'a>(
        &self,
        statement: Statement,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> BoundStatement<'a> {
        let [scope, key] = key_params(id);
        let ttl = micros(done.ttl);
        let params = vec![
            scope,
            key,
            Param::Bytes(owner.as_bytes()),
            Param::Int(ttl),
            Param::Int(granularity(ttl)),
            done.fingerprint.as_ref().map(|fp| fp.as_bytes()).into(),
            Param::Bytes(&done.value),
        ];
        self.bind(statement, params).with_patience()
    }

    /// Binds many completions in one statement, which only PostgreSQL's dialect has.
    pub(crate) fn complete_many<'a>(
        &self,
        all: impl Iterator<Item = OwnedCompletion<'a>> + Clone,
    ) -> BoundStatement<'a> {
        let bytes = |column: fn(OwnedCompletion<'a>) -> Option<&'a [u8]>| {
            ParamList::Bytes(all.clone().map(column).collect())
        };
        let ttls: Vec<i64> = all.clone().map(|one| micros(one.done.ttl)).collect();
        let granularities = ttls.iter().map(|ttl| granularity(*ttl)).collect();
        let lists = vec![
            bytes(|one| Some(one.id.scope().as_str().as_bytes())),
            bytes(|one| Some(one.id.key().expose().as_bytes())),
            bytes(|one| Some(one.owner.as_bytes())),
            ParamList::Int(ttls),
            ParamList::Int(granularities),
            bytes(|one| one.done.fingerprint.as_ref().map(|fp| fp.as_bytes())),
            bytes(|one| Some(&one.done.value)),
        ];
        BoundStatement::on_many(Arc::clone(&self.texts[Statement::CompleteMany as usize]), lists)
    }

    pub(crate) fn release<'a>(&self, id: &'a Identity, owner: &'a OwnerId) -> BoundStatement<'a> {
        let [scope, key] = key_params(id);
        self.bind(Statement::Release, vec![scope, key, Param::Bytes(owner.as_bytes())])
    }

    /// Binds the read of a scan's next page, which begins after a scope and a key.
    pub(crate) fn scan<'a>(
        &self,
        (scope, key): (&'a [u8], &'a [u8]),
        limit: i64,
    ) -> BoundStatement<'a> {
        let params = vec![Param::Bytes(scope), Param::Bytes(key), Param::Int(limit)];
        self.planned(self.bind(Statement::Scan, params))
    }

    /// Binds an operator's change (OPS-3). `tombstone` replaces an erased value, and `message`
    /// wakes the waiters of a lease that ends (in the plain dialect, they poll).
    pub(crate) fn force<'a>(
        &self,
        id: &'a Identity,
        req: &'a ForceRequest,
        tombstone: &'a [u8],
        message: &'a str,
    ) -> BoundStatement<'a> {
        let mut params: Vec<_> = key_params(id).into();
        params.push(Param::Int(i64::try_from(req.token.get()).unwrap_or(i64::MAX)));
        if req.ends_a_lease() {
            params.push(Param::Bool(req.even_if_live));
        }
        let statement = match &req.action {
            ForceAction::Release => Statement::ForceRelease,
            ForceAction::Forget => Statement::ForceForget,
            ForceAction::Erase => {
                params.push(Param::Bytes(tombstone));
                Statement::ForceErase
            }
            ForceAction::Resolve { by, done } => {
                params.extend([
                    Param::Bytes(by.as_bytes()),
                    Param::Int(micros(done.ttl)),
                    done.fingerprint.as_ref().map(|fp| fp.as_bytes()).into(),
                    Param::Bytes(&done.value),
                ]);
                Statement::ForceResolve
            }
        };
        if req.ends_a_lease() && self.dialect == SqlDialect::Postgres {
            params.push(Param::Bytes(message.as_bytes()));
        }
        self.bind(statement, params)
    }

    pub(crate) fn purge(&self, limit: usize, first_bucket: i64) -> BoundStatement<'static> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = vec![Param::Int(limit), Param::Int(first_bucket)];
        self.planned(self.bind(Statement::Purge, params))
    }

    pub(crate) fn claim_purge(&self, at_most: Duration) -> BoundStatement<'static> {
        self.bind(Statement::ClaimPurge, vec![Param::Int(micros(at_most))])
    }

    pub(crate) fn stats(&self) -> BoundStatement<'static> {
        self.bind(Statement::Stats, Vec::new())
    }
}

fn key_params(id: &Identity) -> [Param<'_>; 2] {
    [id.scope().as_str(), id.key().expose()].map(|text| Param::Bytes(text.as_bytes()))
}

/// Converts a duration to microseconds, rounded up, so no lease ends early.
fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX / 4)
}

/// Returns the step, in microseconds, to which purge buckets are rounded up. With a longer step,
/// more records share an index entry. With a shorter step, records are deleted closer to the end of
/// their ttl, and the bucket in which a purge continues stays small.
fn granularity(ttl: i64) -> i64 {
    const SECOND: i64 = 1_000_000;
    match ttl / SECOND {
        3_600.. => 10 * SECOND,
        60.. => SECOND,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use retryproof_core::FencingToken;

    use super::*;

    #[test]
    fn sto_3_every_value_has_its_place() {
        let statements = StatementTexts::new("t", SqlDialect::Postgres);
        let (id, owner) = (Identity::of("s", "k").unwrap(), OwnerId::new());
        let done = Completion::new(Vec::new().into(), Duration::from_secs(1), None);
        let one = OwnedCompletion { id: &id, owner: &owner, done: &done };
        has_its_values(&statements.complete_many(std::iter::once(one)));
        every_statement(SqlDialect::Postgres, has_its_values);
        every_statement(SqlDialect::Plain, has_its_values);
    }

    fn has_its_values(statement: &BoundStatement<'_>) {
        let sql = &statement.sql;
        let bound = statement.params.len() + statement.lists.len();
        for at in 1..=9 {
            assert_eq!(sql.contains(&format!("${at}")), at <= bound, "${at} in {sql}");
        }
        // ACQ-7: `now()` and `current_timestamp` do not advance within a transaction.
        assert!(
            !sql.contains("now()") && !sql.to_lowercase().contains("current_timestamp"),
            "{sql}"
        );
        assert!(!sql.contains("retryproof_records"), "{sql}");
    }

    /// Everything that a server may lack, or that a user may not be allowed to use (STO-9).
    #[test]
    fn sto_9_the_plain_dialect_has_only_rows_and_tables() {
        let forbidden = [
            "_grant_1",
            "_complete_1",
            "notify",
            "listen",
            "advisory",
            "set_config",
            "unnest",
            "ctid",
            "regclass",
            "for update",
            "skip locked",
            "pg_",
        ];
        let missing = std::cell::RefCell::new(forbidden.to_vec());
        every_statement(SqlDialect::Postgres, |statement| {
            missing.borrow_mut().retain(|word| !statement.sql.to_lowercase().contains(word));
        });
        assert_eq!(*missing.borrow(), ["listen", "advisory"], "the words occur in the other texts");
        every_statement(SqlDialect::Plain, |statement| {
            let sql = statement.sql.to_lowercase();
            assert_eq!(forbidden.iter().find(|word| sql.contains(**word)), None, "{sql}");
        });
    }

    /// Binds every statement of a dialect, except the one that completes many records.
    fn every_statement(dialect: SqlDialect, check: impl Fn(&BoundStatement<'_>)) {
        let statements = StatementTexts::new("t", dialect);
        let (id, owner) = (Identity::of("s", "k").unwrap(), OwnerId::new());
        let req = AcquireRequest::new(owner, Duration::from_secs(1), Duration::from_secs(1));
        let done = Completion::new(Vec::new().into(), Duration::from_secs(1), None);
        let all = [
            statements.acquire(&id, &req, req.lease),
            statements.by_key(Statement::Read, &id),
            statements.by_key(Statement::Peek, &id),
            statements.extend(&id, &owner, req.lease),
            statements.complete(Statement::Complete, &id, &owner, &done),
            statements.complete(Statement::Join, &id, &owner, &done),
            statements.release(&id, &owner),
            statements.scan((b"s", b"k"), 1),
            statements.purge(1, 0),
            statements.claim_purge(req.lease),
            statements.by_key(Statement::Summary, &id),
            statements.stats(),
        ];
        let token = FencingToken::new(1);
        let forced = [
            ForceRequest::release(token),
            ForceRequest::resolve(&id, token, done.clone()),
            ForceRequest::forget(token),
            ForceRequest::erase(token),
        ];
        let forced = forced.iter().map(|req| statements.force(&id, req, b"tombstone", "message"));
        all.into_iter().chain(forced).for_each(|statement| check(&statement));
    }

    #[test]
    fn sto_4_buckets_are_coarse_for_long_ttls_only() {
        let of = |secs: i64| granularity(secs * 1_000_000) / 1_000_000;
        assert_eq!([of(86_400), of(3_600), of(3_599), of(60)], [10, 10, 1, 1]);
        assert_eq!(granularity(59_999_999), 1);
    }
}
