-- The audit table: what operators requested, and with which outcome (OPS-10). Only the command's verbs that change records, and
-- `retryproof audit`, use it, so it belongs to no schema version. No purge deletes its rows.
CREATE TABLE IF NOT EXISTS retryproof_records_audit (
    id           INTEGER PRIMARY KEY AUTOINCREMENT, -- grows; with gaps after deletions only
    written_at   INTEGER NOT NULL, -- microseconds since 1970 by the host's clock
    scope        BLOB,             -- of the record, as its own row has it; NULL: about the whole store
    key          BLOB,
    token        INTEGER,          -- which the operator named
    verb         TEXT    NOT NULL, -- such as release
    outcome      TEXT    NOT NULL, -- requested, then what came of it
    operator     TEXT    NOT NULL,
    reason       TEXT    NOT NULL
);
