-- SPDX-License-Identifier: MIT OR Apache-2.0
-- retryproof, PostgreSQL: the function that completes many records at once. Safe to run again, and to be run again whenever it changes. To
-- use another table name, replace every `retryproof_records`. It belongs into the schema of the table.

-- Completes each record by its own owner, in time or late (CMP-1, CMP-2), with one commit for all. The store calls it where many callers
-- complete at once, and an application's transaction calls it for the record that joins it (CMP-7). Answers with the places of those that
-- took effect, counted from 1. Times are in microseconds. One row after the other by its key: no join, whose plan could read the whole table.
-- The caller's own rights apply.
CREATE OR REPLACE FUNCTION "retryproof_records_complete"(
    a_scope bytea[], a_key bytea[], a_owner bytea[], a_ttl bigint[], a_step bigint[], a_fp bytea[], a_result bytea[]
) RETURNS bigint[] LANGUAGE plpgsql
-- A plan is kept for as long as the connection lives: made while the table is nearly empty, it would read all of it ever after.
SET enable_seqscan = off
AS $complete$
DECLARE
    done bigint[] := '{}';
    one  record;
BEGIN
    FOR one IN
        SELECT * FROM unnest(a_scope, a_key, a_owner, a_ttl, a_step, a_fp, a_result)
            WITH ORDINALITY AS b (scope, key, owner, ttl, step, fp, result, place)
    LOOP
        UPDATE "retryproof_records" AS r SET
            state = 1,
            expires_at = clock_timestamp() + one.ttl * interval '1 microsecond',
            purge_bucket = least(
                r.purge_bucket,
                ((date_part('epoch', clock_timestamp()) * 1000000)::bigint + one.ttl + one.step - 1) / one.step * one.step
            ),
            fp = one.fp,
            result = one.result
        WHERE r.scope = one.scope AND r.key = one.key AND r.state = 0 AND r.owner = one.owner;
        IF FOUND THEN
            done := done || one.place;
        END IF;
    END LOOP;
    RETURN done;
END
$complete$;
