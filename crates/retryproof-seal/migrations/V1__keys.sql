-- SPDX-License-Identifier: MIT OR Apache-2.0
-- The data keys of sealed results, one for each subject (SEAL-3). Keep this table apart from the
-- store's tables, and back it up separately.
CREATE TABLE IF NOT EXISTS retryproof_keys (
    -- 16 random bytes. Each sealed result contains the id of its key.
    id BLOB NOT NULL PRIMARY KEY,
    -- HMAC-SHA-256 of the subject under the identity secret.
    subject BLOB NOT NULL UNIQUE,
    -- The id of the master key that wraps the key; NULL after the key was destroyed.
    master TEXT,
    -- Nonce, ciphertext and tag: 60 bytes; NULL after the key was destroyed.
    wrapped BLOB,
    -- Seconds since 1970.
    created_at INTEGER NOT NULL,
    destroyed_at INTEGER,
    CHECK (length(id) = 16 AND length(subject) = 32 AND (master IS NULL) = (wrapped IS NULL))
) WITHOUT ROWID;
