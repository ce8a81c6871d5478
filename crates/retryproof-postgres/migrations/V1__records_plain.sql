-- SPDX-License-Identifier: MIT OR Apache-2.0
-- retryproof, the plain dialect of the PostgreSQL store (STO-9), schema version 1: the same tables as V1__records.sql, from statements that any
-- server with PostgreSQL's protocol should know. Each statement can run in a transaction of its own. Safe to run twice, even while the service
-- works. To use another table name, replace every `retryproof_records`. V1__records.sql explains the columns.

CREATE TABLE IF NOT EXISTS "retryproof_records" (
    scope        bytea       NOT NULL,
    key          bytea       NOT NULL,
    state        smallint    NOT NULL,
    owner        bytea       NOT NULL,
    token        bigint      NOT NULL,
    takeovers    smallint    NOT NULL,
    expires_at   timestamptz NOT NULL,
    purge_bucket bigint      NOT NULL,
    fp           bytea,
    result       bytea,
    holder       bytea,
    log          bytea,
    PRIMARY KEY (key, scope)
);

CREATE INDEX IF NOT EXISTS "retryproof_records_purge" ON "retryproof_records" (purge_bucket);

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
