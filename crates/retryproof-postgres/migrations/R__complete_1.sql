-- SPDX-License-Identifier: MIT OR Apache-2.0
-- retryproof, PostgreSQL: the function that completes many records at once, generation 1. Safe to run again. Run it again whenever its revision
-- rises: the parameters and the meaning of a generation never change, and a correction raises the revision. `migrate` never replaces a higher
-- revision (REC-1). To use another table name, replace every `retryproof_records`. The function belongs in the schema of the table.

-- Completes each record for its own owner, even after the lease has ended (CMP-1, CMP-2), with one commit for all. The store calls the function
-- when many callers complete at the same time, and an application's transaction calls it for the record that joins it (CMP-7). Returns the
-- positions of the completions that took effect, counted from 1. Times are in microseconds. The function finds each row by its key, because the
-- plan of a join could read the whole table. It runs with the caller's privileges.
CREATE OR REPLACE FUNCTION "retryproof_records_complete_1"(
    a_scope bytea[], a_key bytea[], a_owner bytea[], a_ttl bigint[], a_step bigint[], a_fp bytea[], a_result bytea[]
) RETURNS bigint[] LANGUAGE plpgsql
-- A connection keeps its plans, and a plan that was made for a nearly empty table would always read the whole table.
SET enable_seqscan = off
AS $complete_1$
DECLARE
    -- `migrate` and `connect` compare this number (REC-1). It is code, because a migrator may remove comments.
    revision CONSTANT integer := 1;
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
$complete_1$;
