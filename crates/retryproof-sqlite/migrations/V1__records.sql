-- SPDX-License-Identifier: MIT OR Apache-2.0
-- retryproof, SQLite, schema version 1. Safe to run twice. To use another table name, replace every
-- `retryproof_records`. Run it inside a transaction; the file must be in WAL mode (`PRAGMA journal_mode = WAL`).

-- Identities are compared byte for byte (ID-2). Times are microseconds since 1970 by the host's clock (ACQ-7).
CREATE TABLE IF NOT EXISTS retryproof_records (
    scope        BLOB    NOT NULL,
    key          BLOB    NOT NULL,
    state        INTEGER NOT NULL, -- 0 in progress, 1 complete (CMP-5), 2 released with a log (REC-3)
    owner        BLOB    NOT NULL, -- 16 bytes, kept after completion (CMP-3)
    token        INTEGER NOT NULL, -- fencing token (ACQ-10)
    takeovers    INTEGER NOT NULL, -- takeovers since the key was last free, at most 32767 (ACQ-12)
    expires_at   INTEGER NOT NULL, -- lease end while in progress, retention end once complete
    purge_after  INTEGER NOT NULL, -- acquire + ttl; a heartbeat leaves it and its index unchanged, a completion can only lower it (STO-4)
    holder       BLOB,             -- note about the holder of the last grant (REC-2)
    fp           BLOB,             -- fingerprint (FP-1)
    result       BLOB,             -- the value's envelope (CMP-8)
    log          BLOB,             -- reserved for a later version; every grant clears it (REC-3)
    PRIMARY KEY (scope, key)
);

CREATE INDEX IF NOT EXISTS retryproof_records_purge ON retryproof_records (purge_after);

-- Four rows: the last fencing token of all records, the version of these tables, the version of the oldest
-- program that may use the tables (REC-1), and the mark of the identity secret (ID-5). The first
-- purge adds a fifth, `purge`: the time until which a process has claimed the purge (STO-6).
CREATE TABLE IF NOT EXISTS retryproof_records_meta (
    name  TEXT    NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

-- Running this script again on newer tables changes none of the four numbers. A missing
-- `compatible_from` is first written with the value of `schema`.
INSERT OR IGNORE INTO retryproof_records_meta (name, value)
    SELECT 'compatible_from', value FROM retryproof_records_meta WHERE name = 'schema';
-- 0: the records contain the keys themselves. For hashed identities, `migrate` writes another number here.
INSERT OR IGNORE INTO retryproof_records_meta (name, value) VALUES ('identity', 0);
INSERT INTO retryproof_records_meta (name, value)
    VALUES ('fence', 0), ('schema', 1), ('compatible_from', 1)
    ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value);
