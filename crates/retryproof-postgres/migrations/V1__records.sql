-- SPDX-License-Identifier: MIT OR Apache-2.0
-- retryproof, PostgreSQL, schema version 1. Safe to run twice, even while the service works. To use another table name, replace every
-- `retryproof_records`. Run it inside a transaction, and then run R__grant_1.sql and R__complete_1.sql.

-- Identities are compared byte for byte (ID-2), so their columns are bytea, which no encoding or collation affects. Times are the server's (ACQ-7).
-- The key comes first in the index, because many records share a scope, but few share a key.
-- Each page keeps free space (fillfactor), so a heartbeat or a completion can write the row's new version to the same page (HOT) and change no index.
CREATE TABLE IF NOT EXISTS "retryproof_records" (
    scope        bytea       NOT NULL,
    key          bytea       NOT NULL,
    state        smallint    NOT NULL, -- 0 in progress, 1 complete (CMP-5), 2 kept: released with a log, counts as absent (REC-3)
    owner        bytea       NOT NULL, -- 16 bytes, kept after completion (CMP-3); all zero: released
    token        bigint      NOT NULL, -- fencing token (ACQ-10)
    takeovers    smallint    NOT NULL, -- takeovers since the key was last free (ACQ-12, REC-2)
    expires_at   timestamptz NOT NULL, -- lease end while in progress, retention end once complete
    purge_bucket bigint      NOT NULL, -- acquire + ttl in microseconds, rounded up; no heartbeat changes it, a completion can only lower it (STO-4)
    fp           bytea,                -- fingerprint (FP-1)
    result       bytea,                -- the value's envelope (CMP-8)
    holder       bytea,                -- the note of the last grant, up to 64 bytes (REC-2)
    log          bytea,                -- opaque; this version only clears it (REC-3)
    PRIMARY KEY (key, scope)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- Both statements lock the table even if there is nothing to change, and the lock would wait for open transactions. Each statement therefore runs
-- only if it changes something.
DO $tables_1$
BEGIN
    -- These columns hold encoded bytes, which compression would not shrink.
    IF EXISTS (
        SELECT FROM pg_attribute
        WHERE attrelid = '"retryproof_records"'::regclass AND attname IN ('result', 'log') AND attstorage <> 'e'
    ) THEN
        ALTER TABLE "retryproof_records" ALTER COLUMN result SET STORAGE EXTERNAL, ALTER COLUMN log SET STORAGE EXTERNAL;
    END IF;
    IF NOT EXISTS (
        SELECT FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
        WHERE indrelid = '"retryproof_records"'::regclass AND relname = 'retryproof_records_purge'
    ) THEN
        CREATE INDEX IF NOT EXISTS "retryproof_records_purge" ON "retryproof_records" (purge_bucket);
    END IF;
END
$tables_1$;

-- `schema`: the version of these tables. `compatible_from`: the oldest version of the program that can work with them (REC-1).
-- `identity`: the mark of the identity secret (ID-5).
-- The first purge adds `purge`: the time until which a process has claimed the purge, in microseconds since 1970 (STO-6).
CREATE TABLE IF NOT EXISTS "retryproof_records_meta" (
    name  text   NOT NULL PRIMARY KEY,
    value bigint NOT NULL
);

-- If this file runs again on newer tables, their numbers stay unchanged. A missing `compatible_from` is first written with the value of `schema`.
INSERT INTO "retryproof_records_meta" (name, value) SELECT 'compatible_from', value FROM "retryproof_records_meta" WHERE name = 'schema'
ON CONFLICT (name) DO NOTHING;
-- 0: the records contain the keys themselves. For hashed identities, `migrate` writes another number here.
INSERT INTO "retryproof_records_meta" (name, value) VALUES ('identity', 0) ON CONFLICT (name) DO NOTHING;
INSERT INTO "retryproof_records_meta" AS m (name, value) VALUES ('schema', 1), ('compatible_from', 1)
ON CONFLICT (name) DO UPDATE SET value = greatest(m.value, excluded.value);
