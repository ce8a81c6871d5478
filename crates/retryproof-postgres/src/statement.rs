// SPDX-License-Identifier: MIT OR Apache-2.0
//! The SQL: every statement as constant text, bound to its values as a [`Call`].

pub(crate) mod bound;

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Completion};
use retryproof_core::{Identity, OwnerId};

use crate::config::DEFAULT_TABLE;
use crate::execute::batch::Waiting;
use crate::statement::bound::{Call, List, Value};

/// The server's clock as it acts, in microseconds since 1970 (ACQ-7); `now()` would stand still in
/// a transaction. `extract` would count in decimal numbers; a double keeps microseconds apart until 2106.
macro_rules! now_us {
    () => {
        "(date_part('epoch',clock_timestamp())*1000000)::bigint"
    };
}

/// What is left of a row's lease or retention, in microseconds.
macro_rules! rest_us {
    () => {
        "(date_part('epoch',expires_at-clock_timestamp())*1000000)::bigint"
    };
}

/// Bounds the wait for a row that an open transaction holds, for one statement alone: it goes with
/// the statement's own transaction, also behind a pooler.
macro_rules! bounded {
    () => {
        "set_config('lock_timeout','250ms',true)"
    };
}

/// The owner of a residue: a released record that stays for a while as the memory of its token
/// (ACQ-10).
macro_rules! nobody {
    () => {
        "decode('00000000000000000000000000000000','hex')"
    };
}

/// The statements. Each text comes after the rules that it serves and its bind order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Statement {
    Acquire,
    Find,
    Peeked,
    Extend,
    Complete,
    CompleteMany,
    Join,
    Release,
    Purge,
    Summary,
    Stats,
}

impl Statement {
    const COUNT: usize = Self::Stats as usize + 1;

    const ALL: [Self; Self::COUNT] = [
        Self::Acquire,
        Self::Find,
        Self::Peeked,
        Self::Extend,
        Self::Complete,
        Self::CompleteMany,
        Self::Join,
        Self::Release,
        Self::Purge,
        Self::Summary,
        Self::Stats,
    ];

    /// Whether it answers with a row, and not with how many it changed.
    const fn has_rows(self) -> bool {
        !matches!(self, Self::Extend | Self::Complete | Self::Release)
    }

    const fn text(self) -> &'static str {
        match self {
            // ACQ-2, ACQ-7 to ACQ-10: reads, and calls the function that inserts or replaces only
            // where there is nothing live: what is expired, released, or the caller's own. A live
            // record is neither locked nor written, and the part that could is not even started,
            // which costs as much again as the look. The clock is read for the rest first: what has
            // no rest was tried. A value that is over is not sent: it may be large. 1 scope, 2 key,
            // 3 owner, 4 lease, 5 ttl, 6 granularity, 7 fp, 8 patience -> state, owner, token,
            // rest, fp, result, granted (NULL: not tried; 0: another was quicker; else the token,
            // negative for a takeover).
            Self::Acquire => concat!(
                "SELECT t.state,t.owner,t.token,",
                rest_us!(),
                ",t.fp,CASE WHEN t.expires_at>clock_timestamp() THEN t.result END,CASE WHEN \
                 (t.expires_at>clock_timestamp()) IS NOT TRUE OR (t.state=0 AND t.owner=$3) THEN \
                 \"retryproof_records_grant\"($1,$2,$3,$4,$5,$6,$7,t.state IS NOT NULL,$8) END \
                 FROM (SELECT 1) AS one LEFT JOIN \"retryproof_records\" AS t ON t.scope=$1 AND \
                 t.key=$2"
            ),
            // ACQ-8: point look-up. 1 scope, 2 key -> state, owner, token, rest, fp, result.
            Self::Find => concat!(
                "SELECT state,owner,token,",
                rest_us!(),
                ",fp,result FROM \"retryproof_records\" WHERE scope=$1 AND key=$2"
            ),
            // ACQ-4: the same without the value, for waiters. 1 scope, 2 key -> state, owner,
            // token, rest.
            Self::Peeked => concat!(
                "SELECT state,owner,token,",
                rest_us!(),
                " FROM \"retryproof_records\" WHERE scope=$1 AND key=$2"
            ),
            // RUN-1, CMP-2: by owner, never by time. A row that is locked holds back no other beat
            // (RUN-2). 1 scope, 2 key, 3 owner, 4 lease.
            Self::Extend => concat!(
                "UPDATE \"retryproof_records\" SET \
                 expires_at=clock_timestamp()+$4::bigint*interval '1 microsecond' WHERE scope=$1 \
                 AND key=$2 AND state=0 AND owner=$3 AND ",
                bounded!(),
                " IS NOT NULL"
            ),
            // CMP-1, CMP-2. The bucket moves only for a ttl shorter than the
            // acquire's: else its value, and with it the index, stays as it is.
            // 1 scope, 2 key, 3 owner, 4 ttl, 5 granularity, 6 fp, 7 result.
            Self::Complete => concat!(
                "UPDATE \"retryproof_records\" SET \
                 state=1,expires_at=clock_timestamp()+$4::bigint*interval '1 \
                 microsecond',purge_bucket=least(purge_bucket,(",
                now_us!(),
                "+$4::bigint+$5::bigint-1)/$5::bigint*$5::bigint),fp=$6,result=$7 \
                 WHERE scope=$1 AND key=$2 AND state=0 AND owner=$3"
            ),
            // The same for many records at once, each by its own owner. A row that is locked for
            // longer fails them all, and each is then asked for alone. 1 scopes, 2 keys, 3 owners,
            // 4 ttls, 5 granularities, 6 fps, 7 results -> the places of those that took effect.
            Self::CompleteMany => {
                "SELECT \"retryproof_records_complete\"($1,$2,$3,$4,$5,$6,$7) \
                 WHERE set_config('lock_timeout','50ms',true) IS NOT NULL"
            }
            // CMP-7: as Complete, on a connection of the application's. By the function, whose
            // plans are the same whatever that connection is set to, and whenever they were made.
            // Answers with a row when it took effect. Values as for Complete.
            Self::Join => {
                "SELECT 1 FROM \
                 unnest(\"retryproof_records_complete\"(ARRAY[$1::bytea],ARRAY[$2::bytea],ARRAY[$3::bytea],ARRAY[$4::bigint],ARRAY[$5::bigint],ARRAY[$6::bytea],ARRAY[$7::bytea])) AS done"
            }
            // RUN-4, ACQ-10: the row stays for an hour as a residue that every call takes for
            // absent. 1 scope, 2 key, 3 owner.
            Self::Release => concat!(
                "UPDATE \"retryproof_records\" SET owner=",
                nobody!(),
                ",taken=false,expires_at=to_timestamp(0),purge_bucket=",
                now_us!(),
                "+3600000000,fp=NULL WHERE scope=$1 AND key=$2 AND state=0 AND owner=$3 AND ",
                bounded!(),
                " IS NOT NULL"
            ),
            // STO-4; a state that we never wrote stays (CMP-8). The upper bound is a sub-query so
            // that the index serves it, the lower one spares the entries of what is deleted: the
            // server walks over them as long as some transaction might still see the rows. 1 limit,
            // 2 first bucket -> how many went, their last bucket.
            Self::Purge => concat!(
                "WITH gone AS (DELETE FROM \"retryproof_records\" WHERE ctid=ANY(ARRAY(SELECT \
                 ctid FROM \"retryproof_records\" WHERE purge_bucket>=$2::bigint AND \
                 purge_bucket<=(SELECT ",
                now_us!(),
                ") AND expires_at<clock_timestamp() AND state IN (0,1) \
                 ORDER BY purge_bucket LIMIT $1::bigint FOR UPDATE SKIP LOCKED)) RETURNING purge_bucket) \
                 SELECT count(*),coalesce(max(purge_bucket),0) FROM gone"
            ),
            // For an operator. 1 scope, 2 key -> state, owner, token, rest, bytes, has fp.
            Self::Summary => concat!(
                "SELECT state,owner,token,",
                rest_us!(),
                ",coalesce(octet_length(result),0)::bigint,(fp IS NOT NULL) \
                 FROM \"retryproof_records\" WHERE scope=$1 AND key=$2"
            ),
            // For an operator; a scan. -> records, in progress, bytes on the disk.
            Self::Stats => concat!(
                "SELECT count(*),count(*) FILTER (WHERE \
                 state=0),pg_total_relation_size('\"retryproof_records\"'::regclass)::bigint \
                 FROM \"retryproof_records\" WHERE owner<>",
                nobody!()
            ),
        }
    }
}

/// The statements' texts for one table.
#[derive(Debug)]
pub(crate) struct Sql([Arc<str>; Statement::COUNT]);

impl Sql {
    /// The texts for a validated name.
    pub(crate) fn new(table: &str) -> Self {
        Self(Statement::ALL.map(|statement| statement.text().replace(DEFAULT_TABLE, table).into()))
    }

    pub(crate) fn text(&self, statement: Statement) -> &str {
        &self.0[statement as usize]
    }

    fn call<'a>(&self, statement: Statement, values: Vec<Value<'a>>) -> Call<'a> {
        Call::new(Arc::clone(&self.0[statement as usize]), statement.has_rows(), values)
    }

    /// A statement on one record, by its key alone.
    pub(crate) fn by_key<'a>(&self, statement: Statement, id: &'a Identity) -> Call<'a> {
        self.call(statement, key(id).into())
    }

    /// `patience` bounds the wait for the lock of an open transaction.
    pub(crate) fn acquire<'a>(
        &self,
        id: &'a Identity,
        req: &'a AcquireRequest,
        patience: Duration,
    ) -> Call<'a> {
        let [scope, key] = key(id);
        let fp = req.fingerprint.as_ref().map(|fp| fp.as_bytes());
        let (lease, ttl) = (micros(req.lease), micros(req.ttl));
        let values = vec![
            scope,
            key,
            Value::Bytes(Some(req.owner.as_bytes())),
            Value::Int(lease),
            Value::Int(ttl),
            Value::Int(granularity(ttl)),
            Value::Bytes(fp),
            Value::Int(i64::try_from(patience.as_millis()).unwrap_or(i64::MAX).max(1)),
        ];
        self.call(Statement::Acquire, values)
    }

    pub(crate) fn extend<'a>(
        &self,
        id: &'a Identity,
        owner: &'a OwnerId,
        lease: Duration,
    ) -> Call<'a> {
        let [scope, key] = key(id);
        let values =
            vec![scope, key, Value::Bytes(Some(owner.as_bytes())), Value::Int(micros(lease))];
        self.call(Statement::Extend, values)
    }

    /// The fenced completion: by [`Statement::Complete`], or by [`Statement::Join`] on the
    /// connection of a caller's transaction (CMP-7).
    pub(crate) fn complete<'a>(
        &self,
        statement: Statement,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> Call<'a> {
        let [scope, key] = key(id);
        let ttl = micros(done.ttl);
        let values = vec![
            scope,
            key,
            Value::Bytes(Some(owner.as_bytes())),
            Value::Int(ttl),
            Value::Int(granularity(ttl)),
            Value::Bytes(done.fingerprint.as_ref().map(|fp| fp.as_bytes())),
            Value::Bytes(Some(&done.value)),
        ];
        self.call(statement, values)
    }

    /// The completions of many, in one statement.
    pub(crate) fn complete_many<'a>(&self, all: &'a [Waiting]) -> Call<'a> {
        let bytes =
            |of: fn(&'a Waiting) -> Option<&'a [u8]>| List::Bytes(all.iter().map(of).collect());
        let ttls: Vec<i64> = all.iter().map(|one| micros(one.done.ttl)).collect();
        let steps = ttls.iter().map(|ttl| granularity(*ttl)).collect();
        let lists = vec![
            bytes(|one| Some(one.id.scope().as_str().as_bytes())),
            bytes(|one| Some(one.id.key().expose().as_bytes())),
            bytes(|one| Some(one.owner.as_bytes())),
            List::Int(ttls),
            List::Int(steps),
            bytes(|one| one.done.fingerprint.as_ref().map(|fp| fp.as_bytes())),
            bytes(|one| Some(&one.done.value)),
        ];
        Call::on_many(Arc::clone(&self.0[Statement::CompleteMany as usize]), lists)
    }

    pub(crate) fn release<'a>(&self, id: &'a Identity, owner: &'a OwnerId) -> Call<'a> {
        let [scope, key] = key(id);
        self.call(Statement::Release, vec![scope, key, Value::Bytes(Some(owner.as_bytes()))])
    }

    pub(crate) fn purge(&self, limit: usize, from: i64) -> Call<'static> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        // Also where the table was never analyzed: gathering all entries first, to sort them, looks
        // cheap then.
        self.call(Statement::Purge, vec![Value::Int(limit), Value::Int(from)])
            .ahead("SET LOCAL enable_seqscan=off;SET LOCAL enable_bitmapscan=off;")
    }

    pub(crate) fn stats(&self) -> Call<'static> {
        self.call(Statement::Stats, Vec::new())
    }
}

fn key(id: &Identity) -> [Value<'_>; 2] {
    [id.scope().as_str(), id.key().expose()].map(|text| Value::Bytes(Some(text.as_bytes())))
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 4)
}

/// To what the purge bucket is rounded up: so that an index entry is shared by many records, none
/// stays for much longer than its ttl, and few are in the bucket that a purge goes on with.
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
    use super::*;

    #[test]
    fn sto_3_every_value_has_its_place() {
        let sql = Sql::new("t");
        let (id, owner) = (Identity::of("s", "k").unwrap(), OwnerId::new());
        let req = AcquireRequest::new(owner, Duration::from_secs(1), Duration::from_secs(1));
        let done = Completion::new(Vec::new().into(), Duration::from_secs(1), None);
        let many = [Waiting::of(&id, owner, &done)];
        let calls = [
            sql.acquire(&id, &req, req.lease),
            sql.by_key(Statement::Find, &id),
            sql.by_key(Statement::Peeked, &id),
            sql.extend(&id, &owner, req.lease),
            sql.complete(Statement::Complete, &id, &owner, &done),
            sql.complete(Statement::Join, &id, &owner, &done),
            sql.complete_many(&many),
            sql.release(&id, &owner),
            sql.purge(1, 0),
            sql.by_key(Statement::Summary, &id),
            sql.stats(),
        ];
        for call in calls {
            let sql = call.sql();
            for at in 1..=9 {
                assert_eq!(sql.contains(&format!("${at}")), at <= call.places(), "${at} in {sql}");
            }
            // ACQ-7: neither moves in a transaction.
            assert!(
                !sql.contains("now()") && !sql.to_lowercase().contains("current_timestamp"),
                "{sql}"
            );
            assert!(!sql.contains("retryproof_records"), "{sql}");
        }
    }

    #[test]
    fn sto_4_buckets_are_coarse_for_long_ttls_only() {
        let of = |secs: i64| granularity(secs * 1_000_000) / 1_000_000;
        assert_eq!([of(86_400), of(3_600), of(3_599), of(60)], [10, 10, 1, 1]);
        assert_eq!(granularity(59_999_999), 1);
    }
}
