-- SPDX-License-Identifier: MIT OR Apache-2.0
-- retryproof, MySQL and MariaDB, schema version 1. Safe to run twice. To use another table name, replace every
-- `retryproof_records`. The account of the service needs SELECT, INSERT, UPDATE and DELETE on both tables.

-- Identities are binary, because text collations ignore case, accents or trailing spaces (ID-2). Times are UTC by the server's clock (ACQ-7),
-- and not of type TIMESTAMP, which follows the time zone of the connection. There is no other unique index, because its gaps would be locked.
CREATE TABLE IF NOT EXISTS `retryproof_records` (
    scope        VARBINARY(255) NOT NULL,
    k            VARBINARY(512) NOT NULL,
    state        TINYINT        NOT NULL, -- 0 in progress, 1 complete (CMP-5), 2 kept: released with a log, counts as absent (REC-3)
    owner        BINARY(16)     NOT NULL, -- kept after completion (CMP-3); all zero: released (ACQ-10)
    token        BIGINT         NOT NULL, -- fencing token (ACQ-10)
    takeovers    SMALLINT       NOT NULL, -- takeovers since the key was last free, at most 32767 (ACQ-12, REC-2)
    expires_at   DATETIME(6)    NOT NULL, -- lease end while in progress, retention end once complete
    purge_after  DATETIME(6)    NOT NULL, -- acquire + ttl; a heartbeat leaves it and its index unchanged, a completion can only lower it (STO-4)
    fp           VARBINARY(64)  NULL,     -- fingerprint (FP-1)
    holder       VARBINARY(64)  NULL,     -- note about the holder of the last grant (REC-2)
    result       LONGBLOB       NULL,     -- the value's envelope (CMP-8)
    bytes        BIGINT         NULL,     -- length of the result of a complete record; LENGTH(result) would read the whole result (OPS-1)
    log          LONGBLOB       NULL,     -- reserved for a later version; every grant clears it (REC-3)
    PRIMARY KEY (scope, k),
    KEY retryproof_purge (purge_after)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Three rows: the version of these tables, the version of the oldest program that may use the tables (REC-1, STO-3), and the mark of the
-- identity secret (ID-5). The first purge adds a fourth, `purge`: the time until which a process has claimed the purge, in microseconds
-- since 1970 (STO-6). The rows are written last, so an incomplete schema counts as missing.
CREATE TABLE IF NOT EXISTS `retryproof_records_meta` (
    name   VARBINARY(32) NOT NULL PRIMARY KEY,
    value  BIGINT        NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Running this script again on newer tables changes no number. A missing `compatible_from` is first written with the value of `schema`.
INSERT IGNORE INTO `retryproof_records_meta` (name, value)
    SELECT 'compatible_from', m.value FROM `retryproof_records_meta` AS m WHERE m.name = 'schema';
-- 0: the records contain the keys themselves. For hashed identities, `migrate` writes another number here.
INSERT IGNORE INTO `retryproof_records_meta` (name, value) VALUES ('identity', 0);
INSERT INTO `retryproof_records_meta` (name, value) VALUES ('schema', 1), ('compatible_from', 1)
    ON DUPLICATE KEY UPDATE value = GREATEST(value, VALUES(value));
