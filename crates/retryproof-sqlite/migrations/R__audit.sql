-- The audit table: what operators requested, and with which outcome (OPS-10). Only the verbs of the command `retryproof` that change records, and
-- `retryproof audit`, use it, so it belongs to no schema version. No purge deletes its rows.
CREATE TABLE IF NOT EXISTS retryproof_records_audit (
    id           INTEGER PRIMARY KEY AUTOINCREMENT, -- grows, with gaps only after deletions
    written_at   INTEGER NOT NULL, -- microseconds since 1970 by the host's clock
    scope        BLOB,             -- the scope in the record's row; NULL: the entry is about the whole store
    key          BLOB,
    token        INTEGER,          -- the token that the operator named
    verb         TEXT    NOT NULL, -- such as release
    outcome      TEXT    NOT NULL, -- requested, in a second entry the outcome
    operator     TEXT    NOT NULL,
    reason       TEXT    NOT NULL
);
