-- The audit table: what operators requested, and with which outcome (OPS-10). Only the verbs of the command `retryproof` that change records, and
-- `retryproof audit`, use it, so it belongs to no schema version, and the account of a service needs no privilege on it. No purge deletes its
-- rows.
CREATE TABLE IF NOT EXISTS `retryproof_records_audit` (
    id         BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY, -- grows, with gaps
    written_at DATETIME(6)    NOT NULL, -- UTC
    scope      VARBINARY(255) NULL,     -- the scope in the record's row; NULL: the entry is about the whole store
    k          VARBINARY(512) NULL,
    token      BIGINT         NULL,     -- the token that the operator named
    verb       VARCHAR(64)    NOT NULL, -- such as release
    outcome    VARCHAR(64)    NOT NULL, -- requested, in a second entry the outcome
    operator   VARCHAR(255)   NOT NULL,
    reason     VARCHAR(1024)  NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
