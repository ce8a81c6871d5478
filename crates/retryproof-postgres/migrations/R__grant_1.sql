-- SPDX-License-Identifier: MIT OR Apache-2.0
-- retryproof, PostgreSQL: the function that grants leases, generation 1. Safe to run again. Run it again whenever its revision rises: the
-- parameters and the meaning of a generation never change, and a correction raises the revision. `migrate` never replaces a higher revision
-- (REC-1). To use another table name, replace every `retryproof_records`. The function belongs in the schema of the table.

-- Grants a record that is new, expired, released or kept, or the caller's own record once more (ACQ-2, ACQ-7 to ACQ-10), unless another caller
-- was faster. The statement of an acquire calls the function only if it has read no live record, so a replay starts no statement that could write.
-- Returns the fencing token, negative if the grant took over an expired lease, or 0 if another caller was faster. Times are in microseconds.
-- `a_holder`: the note about the caller (REC-2). `a_there`: whether the statement found a record. `a_patience`: how many milliseconds the function
-- may wait for a row that an open transaction has locked. The function runs with the caller's privileges.
CREATE OR REPLACE FUNCTION "retryproof_records_grant_1"(
    a_scope bytea, a_key bytea, a_owner bytea, a_lease bigint, a_ttl bigint, a_step bigint, a_fp bytea, a_holder bytea,
    a_there boolean, a_patience bigint
) RETURNS bigint LANGUAGE plpgsql AS $grant_1$
DECLARE
    -- `migrate` and `connect` compare this number (REC-1). It is code, because a migrator may remove comments.
    revision CONSTANT integer := 1;
    clock   bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
    bucket  bigint := (clock + a_ttl + a_step - 1) / a_step * a_step;
    -- Both settings last until the transaction ends. They are expressions, because a separate statement or a SET clause takes the server twice as
    -- long. The second one matters because a connection keeps its plans: one made for a nearly empty table would always read the whole table.
    bound   text   := set_config('lock_timeout', a_patience::text, true);
    plan    text   := set_config('enable_seqscan', 'off', true);
    granted bigint;
BEGIN
    IF NOT a_there THEN
        INSERT INTO "retryproof_records" (scope, key, state, owner, token, takeovers, expires_at, purge_bucket, fp, holder)
        VALUES (
            a_scope, a_key, 0, a_owner, clock, 0, clock_timestamp() + a_lease * interval '1 microsecond', bucket, a_fp, a_holder
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
        takeovers = CASE
            WHEN r.state <> 0 OR r.owner = decode('00000000000000000000000000000000', 'hex') THEN 0
            -- A repeated acquire of the same owner returns the same answer as its first one.
            WHEN r.owner = a_owner THEN r.takeovers
            ELSE least(r.takeovers + 1, 32767)
        END,
        expires_at = clock_timestamp() + a_lease * interval '1 microsecond',
        purge_bucket = bucket,
        fp = a_fp,
        result = NULL,
        holder = a_holder,
        log = NULL
    WHERE r.scope = a_scope AND r.key = a_key AND r.state IN (0, 1, 2)
        AND (r.expires_at <= clock_timestamp() OR r.state = 2 OR (r.state = 0 AND r.owner = a_owner))
    RETURNING CASE WHEN r.takeovers > 0 THEN -r.token ELSE r.token END INTO granted;
    RETURN coalesce(granted, 0);
END
$grant_1$;
