-- The audit table: what operators requested, and with which outcome (OPS-10). Only the verbs of the command `retryproof` that change records, and
-- `retryproof audit`, use it, so it belongs to no schema version, and the user of a service needs no privilege on it. No purge deletes its rows.
CREATE TABLE IF NOT EXISTS "retryproof_records_audit" (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- grows, with gaps
    written_at timestamptz NOT NULL,
    scope      bytea,                -- the scope in the record's row; NULL: the entry is about the whole store
    key        bytea,
    token      bigint,               -- the token that the operator named
    verb       text        NOT NULL, -- such as release
    outcome    text        NOT NULL, -- requested, in a second entry the outcome
    operator   text        NOT NULL,
    reason     text        NOT NULL
);
