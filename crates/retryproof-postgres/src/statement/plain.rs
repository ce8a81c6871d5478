// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statements whose text differs in the plain dialect (STO-9). They use no function of the
//! schema, no notification, no advisory lock, and no system column or setting of PostgreSQL.

use super::Statement;

/// The settings of each connection in the plain dialect. Each of them is left out if the server
/// refuses it. The first one limits how long a statement waits for a row that an open transaction
/// has locked; the others are those of PostgreSQL's dialect.
pub(crate) const SESSION_SETTINGS: [&str; 4] =
    ["lock_timeout='250ms'", "enable_seqscan=off", "enable_bitmapscan=off", "jit=off"];

/// Returns the settings that a statement's own transaction gets on a connection without
/// [`SESSION_SETTINGS`]. A completion waits for a locked row for as long as its call may take.
pub(super) const fn settings(statement: Statement) -> &'static str {
    match statement {
        Statement::Acquire
        | Statement::Extend
        | Statement::Release
        | Statement::Purge
        | Statement::ForceRelease
        | Statement::ForceResolve
        | Statement::ForceForget
        | Statement::ForceErase => "SET LOCAL lock_timeout='250ms';",
        _ => "",
    }
}

/// Returns the text, or `None` if it is the same as in PostgreSQL's dialect.
pub(super) const fn text(statement: Statement) -> Option<&'static str> {
    Some(match statement {
        // ACQ-2, ACQ-7 to ACQ-10. The statement reads the record, and inserts or replaces it only
        // if it found no live record of another owner, so a busy answer and a replay write and lock
        // nothing. What it found may be out of date when it writes. Therefore the upsert alone
        // decides: it locks the row that it conflicts with, and checks the condition on the newest
        // version of that row, as it is after all earlier changes (READ COMMITTED), or fails
        // with 40001 if that version is not the one that was read (the higher levels). The
        // remaining time is computed before `taken`. An answer with no remaining time therefore
        // means that a grant was tried. Binds: 1 scope, 2 key, 3 owner, 4 lease, 5 ttl, 6
        // granularity, 7 fp, 8 note. Returns: state, owner, token, remaining, fp, result, holder,
        // granted (NULL: not tried; 0: another caller was faster; else the token, negative for a
        // takeover).
        Statement::Acquire => concat!(
            "WITH found AS (SELECT state,owner,token,",
            remaining_us!(),
            " AS remaining,fp,CASE WHEN expires_at>clock_timestamp() THEN result END AS \
             result,holder,(expires_at>clock_timestamp() AND state<>2 AND NOT (state=0 AND \
             owner=$3)) AS taken FROM \"retryproof_records\" WHERE scope=$1 AND key=$2),granted \
             AS (INSERT INTO \"retryproof_records\" AS r \
             (scope,key,state,owner,token,takeovers,expires_at,purge_bucket,fp,holder) SELECT \
             $1::bytea,$2::bytea,0,$3::bytea,c.clock,0,clock_timestamp()+$4::bigint*interval '1 \
             microsecond',c.latest-c.latest%$6::bigint,$7::bytea,$8::bytea FROM (SELECT n.clock,\
             n.clock+$5::bigint+$6::bigint-1 AS latest FROM (SELECT ",
            now_us!(),
            " AS clock) AS n) AS c WHERE NOT EXISTS (SELECT 1 FROM found WHERE taken) \
             ON CONFLICT (key,scope) DO UPDATE SET \
             state=0,owner=excluded.owner,token=CASE WHEN r.state=0 AND r.owner=excluded.owner \
             THEN r.token ELSE greatest(excluded.token,r.token+1) END,takeovers=CASE WHEN \
             r.state<>0 OR r.owner=",
            no_owner!(),
            " THEN 0 WHEN r.owner=excluded.owner THEN r.takeovers ELSE \
             least(r.takeovers+1,32767) END,expires_at=clock_timestamp()+$4::bigint*interval '1 \
             microsecond',purge_bucket=excluded.purge_bucket,fp=excluded.fp,result=NULL,\
             holder=excluded.holder,log=NULL WHERE r.state IN (0,1,2) AND \
             (r.expires_at<=clock_timestamp() OR r.state=2 OR (r.state=0 AND \
             r.owner=excluded.owner)) RETURNING CASE WHEN r.takeovers>0 THEN -r.token ELSE r.token \
             END AS granted) SELECT \
             f.state,f.owner,f.token,f.remaining,f.fp,f.result,f.holder,CASE WHEN f.taken IS NOT \
             TRUE THEN coalesce(g.granted,0) END FROM (SELECT 1) AS one LEFT JOIN found AS f ON \
             true LEFT JOIN granted AS g ON true"
        ),
        // Completions share no statement, so there is no text.
        Statement::CompleteMany => "",
        // CMP-1, CMP-2, CMP-7: the same text on the store's connection and on the application's.
        // Elsewhere, the quotient of two integers may be a fraction, so the bucket is rounded with
        // the remainder. Binds: 1 scope, 2 key, 3 owner, 4 ttl, 5 granularity, 6 fp, 7 result.
        Statement::Complete | Statement::Join => concat!(
            "UPDATE \"retryproof_records\" SET \
             state=1,expires_at=clock_timestamp()+$4::bigint*interval '1 \
             microsecond',purge_bucket=least(purge_bucket,(SELECT \
             c.latest-c.latest%$5::bigint FROM (SELECT ",
            now_us!(),
            "+$4::bigint+$5::bigint-1 AS latest) AS c)),fp=$6,result=$7 WHERE scope=$1 AND key=$2 \
             AND state=0 AND owner=$3"
        ),
        // STO-4, REC-3: the deletion checks its conditions again on the newest version of each row,
        // which another caller may have acquired since it was read. Binds: 1 limit, 2 first
        // bucket. Returns: the number of deleted rows, their last bucket.
        Statement::Purge => concat!(
            "WITH gone AS (DELETE FROM \"retryproof_records\" WHERE (key,scope) IN (SELECT \
             key,scope FROM \"retryproof_records\" WHERE purge_bucket>=$2::bigint AND \
             purge_bucket<=(SELECT ",
            now_us!(),
            ") AND (expires_at<clock_timestamp() OR state=2) AND state IN (0,1,2) ORDER BY \
             purge_bucket LIMIT $1::bigint) AND purge_bucket<=",
            now_us!(),
            " AND (expires_at<clock_timestamp() OR state=2) AND state IN (0,1,2) RETURNING \
             purge_bucket) SELECT count(*),coalesce(max(purge_bucket),0) FROM gone"
        ),
        // Scans the whole table to count the records for operators. The bytes are those of the
        // columns of varying length. Returns: records, in progress, bytes.
        Statement::Stats => concat!(
            "SELECT count(*),count(CASE WHEN state=0 THEN 1 END),\
             coalesce(sum(octet_length(scope)+octet_length(key)+coalesce(octet_length(result),0)\
             +coalesce(octet_length(fp),0)+coalesce(octet_length(holder),0)),0)::bigint \
             FROM \"retryproof_records\" WHERE state<>2 AND owner<>",
            no_owner!()
        ),
        _ => return None,
    })
}
