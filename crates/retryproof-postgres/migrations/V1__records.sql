-- SPDX-License-Identifier: MIT OR Apache-2.0
-- retryproof, PostgreSQL, schema version 1. Safe to run twice. To use another table name, replace every
-- `retryproof_records`. Run it inside a transaction.

-- Compared byte for byte (ID-2), so bytea: no encoding and no collation touches it. Times are the server's (ACQ-7).
-- The key comes first in the index, because keys differ where scopes are alike.
-- The free room in each page lets beats and completions stay in it (HOT), so that they touch no index.
CREATE TABLE IF NOT EXISTS "retryproof_records" (
    scope        bytea       NOT NULL,
    key          bytea       NOT NULL,
    state        smallint    NOT NULL, -- 0 in progress, 1 complete (CMP-5)
    owner        bytea       NOT NULL, -- 16 bytes, kept after completion (CMP-3); all zero: released
    token        bigint      NOT NULL, -- fencing token (ACQ-10)
    taken        boolean     NOT NULL, -- whether the last grant took over an expired lease (ACQ-12)
    expires_at   timestamptz NOT NULL, -- lease end while in progress, retention end once complete
    purge_bucket bigint      NOT NULL, -- acquire + ttl in microseconds, rounded up; no beat and no completion moves it (STO-4)
    fp           bytea,                -- fingerprint (FP-1)
    result       bytea,                -- the value's envelope (CMP-8)
    PRIMARY KEY (key, scope)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- Values come encoded: no use in compressing them.
ALTER TABLE "retryproof_records" ALTER COLUMN result SET STORAGE EXTERNAL;

CREATE INDEX IF NOT EXISTS "retryproof_records_purge" ON "retryproof_records" (purge_bucket);

-- Grants a record that is new, expired or released, or the caller's own once more (ACQ-2, ACQ-7 to ACQ-10), unless another was quicker.
-- The statement of an acquire calls it only where it has read no live record: so a replay starts no statement that could write.
-- Answers with the fencing token, negative when it took over an expired lease; 0: another was quicker. Times are in microseconds.
-- `a_there`: a record was seen, so an open transaction may hold it, and the wait for it is bounded. The caller's own rights apply.
CREATE OR REPLACE FUNCTION "retryproof_records_grant"(
    a_scope bytea, a_key bytea, a_owner bytea, a_lease bigint, a_ttl bigint, a_step bigint, a_fp bytea, a_there boolean
) RETURNS bigint LANGUAGE plpgsql AS $grant$
DECLARE
    clock   bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
    bucket  bigint := (clock + a_ttl + a_step - 1) / a_step * a_step;
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
    PERFORM set_config('lock_timeout', '250ms', true);
    UPDATE "retryproof_records" AS r SET
        state = 0,
        owner = a_owner,
        token = CASE WHEN r.state = 0 AND r.owner = a_owner THEN r.token ELSE greatest(clock, r.token + 1) END,
        taken = r.state = 0 AND r.owner <> a_owner
            AND r.owner <> decode('00000000000000000000000000000000', 'hex'),
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

-- One row: the version of this schema.
CREATE TABLE IF NOT EXISTS "retryproof_records_meta" (
    name  text   NOT NULL PRIMARY KEY,
    value bigint NOT NULL
);

INSERT INTO "retryproof_records_meta" (name, value) VALUES ('schema', 1)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
