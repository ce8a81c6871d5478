-- SPDX-License-Identifier: MIT OR Apache-2.0
-- retryproof, PostgreSQL: the function that grants. Safe to run again, and to be run again whenever it changes. To use another table name,
-- replace every `retryproof_records`. It belongs into the schema of the table.

-- Grants a record that is new, expired or released, or the caller's own once more (ACQ-2, ACQ-7 to ACQ-10), unless another was quicker.
-- The statement of an acquire calls it only where it has read no live record: so a replay starts no statement that could write.
-- Answers with the fencing token, negative when it took over an expired lease; 0: another was quicker. Times are in microseconds.
-- `a_there`: a record was seen. `a_patience`: milliseconds that it may wait for the lock of an open transaction. The caller's own rights apply.
CREATE OR REPLACE FUNCTION "retryproof_records_grant"(
    a_scope bytea, a_key bytea, a_owner bytea, a_lease bigint, a_ttl bigint, a_step bigint, a_fp bytea, a_there boolean,
    a_patience bigint
) RETURNS bigint LANGUAGE plpgsql AS $grant$
DECLARE
    clock   bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
    bucket  bigint := (clock + a_ttl + a_step - 1) / a_step * a_step;
    -- Until the transaction ends. As expressions: a statement of its own, or a SET clause, takes the server twice as long. A plan is kept for as
    -- long as the connection lives: made while the table is nearly empty, it would read all of it ever after.
    bound   text   := set_config('lock_timeout', a_patience::text, true);
    plan    text   := set_config('enable_seqscan', 'off', true);
    granted bigint;
BEGIN
    IF NOT a_there THEN
        INSERT INTO "retryproof_records" (scope, key, state, owner, token, taken, expires_at, purge_bucket, fp)
        VALUES (
            a_scope, a_key, 0, a_owner, clock, false, clock_timestamp() + a_lease * interval '1 microsecond', bucket, a_fp
        )
        ON CONFLICT (scope, key) DO NOTHING;
        IF FOUND THEN
            RETURN clock;
        END IF;
        RETURN 0;
    END IF;
    UPDATE "retryproof_records" AS r SET
        state = 0,
        owner = a_owner,
        token = CASE WHEN r.state = 0 AND r.owner = a_owner THEN r.token ELSE greatest(clock, r.token + 1) END,
        -- An owner that asks again is told what its grant was.
        taken = r.state = 0 AND CASE WHEN r.owner = a_owner THEN r.taken
            ELSE r.owner <> decode('00000000000000000000000000000000', 'hex') END,
        expires_at = clock_timestamp() + a_lease * interval '1 microsecond',
        purge_bucket = bucket,
        fp = a_fp,
        result = NULL
    WHERE r.scope = a_scope AND r.key = a_key AND r.state IN (0, 1)
        AND (r.expires_at <= clock_timestamp() OR (r.state = 0 AND r.owner = a_owner))
    RETURNING CASE WHEN r.taken THEN -r.token ELSE r.token END INTO granted;
    RETURN coalesce(granted, 0);
END
$grant$;
