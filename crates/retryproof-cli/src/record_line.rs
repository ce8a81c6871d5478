// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RecordLine`]: a record as a line of JSON, which `export` prints and `import` reads.
//!
//! | field | content |
//! |---|---|
//! | `retryproof_record` | the version of this format, 1 |
//! | `scope`, `key` | the identity, as it is stored |
//! | `identity_mark` | the mark of the identity secret as text, if `key` is a digest (ID-5) |
//! | `state` | `complete` or `in_progress` |
//! | `token` | the token of the last grant |
//! | `granted_at_ms`, `expires_at_ms` | when the lease was granted, and when the record or its lease expires: milliseconds since 1970, or null if unknown |
//! | `fingerprint` | base64, or null |
//! | `result` | the envelope of the result, base64; null while the work is in progress |

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use retryproof::store::{RecordState, RecordSummary};
use retryproof::{Blob, Fingerprint, Identity, IdentitySecret, Opened, Scope, StoredResult};
use serde_json::{Value, json};

use crate::time::millis;

/// The version of the line's format. If a change could mislead an older reader, increase the
/// version.
const VERSION: u64 = 1;

/// A record that was read from a line.
#[derive(Debug)]
pub(crate) struct RecordLine {
    pub(crate) id: Identity,
    /// The mark of the identity secret with which the exporting store hashed the key.
    mark: Option<i64>,
    /// The result, or `None` for a record in progress.
    pub(crate) result: Option<Blob>,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// When the record expires, in milliseconds since 1970.
    pub(crate) expires_at: Option<u64>,
}

/// Returns the record as a line, without a newline. `secret` is the store's identity secret, and
/// `now` is in milliseconds since 1970.
pub(crate) fn written(
    id: &Identity,
    secret: Option<&IdentitySecret>,
    summary: &RecordSummary,
    stored: Option<(&Blob, Option<&Fingerprint>)>,
    now: u64,
) -> String {
    let (result, fingerprint) = stored.unzip();
    let state = match summary.state {
        RecordState::InProgress => "in_progress",
        RecordState::Complete => "complete",
    };
    let mut line = json!({
        "retryproof_record": VERSION,
        "scope": id.scope().as_str(),
        "key": id.key().expose(),
        "state": state,
        "token": summary.token.get(),
        "granted_at_ms": summary.granted_ago.map(|ago| now.saturating_sub(millis(ago))),
        "expires_at_ms": summary.remaining.map(|left| now.saturating_add(millis(left))),
        "fingerprint": fingerprint.flatten().map(|f| STANDARD.encode(f.as_bytes())),
        "result": result.map(|result| STANDARD.encode(result)),
    });
    if let (Some(secret), Value::Object(fields)) = (secret, &mut line) {
        // Write the mark as text, because many readers of JSON round large numbers.
        fields.insert("identity_mark".to_owned(), secret.mark().to_string().into());
    }
    line.to_string()
}

/// Returns the envelope of a stored result, or `None` if this version cannot read the result
/// (CMP-8). A sealed result stays sealed (SEAL-5).
pub(crate) fn envelope(stored: &StoredResult) -> Option<Blob> {
    if let Some(sealed) = stored.sealed() {
        return Some(sealed.clone());
    }
    match stored.open(None).ok()? {
        Opened::Value(payload) => Some(payload.into_envelope()),
        Opened::Tombstone(tombstone) => Some(tombstone.into_envelope()),
        Opened::Mismatch => None,
    }
}

impl RecordLine {
    /// Reads a line. The error says what is wrong with the line, and contains no part of the line
    /// (ID-4).
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        let value: Value =
            serde_json::from_slice(line).map_err(|error| format!("it is not JSON: {error}"))?;
        match value["retryproof_record"].as_u64() {
            Some(VERSION) => {}
            Some(version) => {
                return Err(format!(
                    "a newer version of `retryproof export` wrote it (format {version}); upgrade \
                     this program"
                ));
            }
            None => return Err("`retryproof export` did not write it".to_owned()),
        }
        let text = |name: &str| value[name].as_str().ok_or_else(|| format!("it has no {name:?}"));
        let (scope, key) = (text("scope")?.to_owned(), text("key")?);
        let id = Scope::new(scope)
            .and_then(|scope| Identity::of(scope, key))
            .map_err(|error| format!("its scope or key is not valid: {error}"))?;
        let fingerprint = match &value["fingerprint"] {
            Value::Null => None,
            _ => Some(decoded(text("fingerprint")?, "fingerprint")?),
        };
        let fingerprint = fingerprint
            .map(|bytes| Fingerprint::new(&bytes))
            .transpose()
            .map_err(|error| format!("its fingerprint is not valid: {error}"))?;
        let result = match text("state")? {
            "complete" => Some(decoded(text("result")?, "result")?.into()),
            "in_progress" => None,
            _ => return Err("its state is unknown".to_owned()),
        };
        if let Some(result) = &result
            && envelope(&StoredResult::new(Blob::clone(result), None)).is_none()
        {
            return Err("its result cannot be read by this version".to_owned());
        }
        let mark = match &value["identity_mark"] {
            Value::Null => None,
            mark => Some(
                mark.as_str()
                    .and_then(|digits| digits.parse().ok())
                    .ok_or_else(|| "its identity mark is not valid".to_owned())?,
            ),
        };
        let expires_at = value["expires_at_ms"].as_u64();
        if result.is_some() && expires_at.is_none() {
            return Err("it has no \"expires_at_ms\"".to_owned());
        }
        Ok(Self { id, mark, result, fingerprint, expires_at })
    }

    /// Adapts the identity to a store with the identity secret `secret`. A plain key fits every
    /// store. A digest fits only a store with the secret that produced the digest (ID-5).
    pub(crate) fn fitted(mut self, secret: Option<&IdentitySecret>) -> Result<Self, String> {
        let Some(mark) = self.mark else { return Ok(self) };
        let Some(secret) = secret.filter(|secret| secret.mark() == mark) else {
            return Err(
                "its key is a digest under a different identity secret than this store's; \
                 import it into a store with that secret"
                    .to_owned(),
            );
        };
        self.id = secret
            .identity_of_digest(self.id.scope().clone(), self.id.key().expose())
            .map_err(|error| format!("its key is not valid: {error}"))?;
        Ok(self)
    }
}

fn decoded(text: &str, what: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|_| format!("its {what} is not base64"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use retryproof::{CodecId, FencingToken, Payload, Tombstone};

    use super::*;

    fn line(result: &Blob, fingerprint: Option<&Fingerprint>) -> String {
        let id = Identity::of("pay", "canary").unwrap();
        let left = Some(Duration::from_secs(60));
        let summary =
            RecordSummary::new(RecordState::Complete, FencingToken::new(7), left, 0, false)
                .with_grant(Some(Duration::from_secs(1)), None, None);
        written(&id, None, &summary, Some((result, fingerprint)), 10_000)
    }

    #[test]
    fn ops_6_a_line_is_read_as_it_was_written() {
        let value = Payload::new(CodecId::BYTES, 3, b"\xff\0").into_envelope();
        let fingerprint = Fingerprint::new(&[1, 2, 3]).unwrap();
        for (result, fingerprint) in
            [(value, Some(&fingerprint)), (Tombstone::new().into_envelope(), None)]
        {
            let read = RecordLine::parse(line(&result, fingerprint).as_bytes()).unwrap();
            assert_eq!(read.id, Identity::of("pay", "canary").unwrap());
            assert_eq!(read.result, Some(result));
            assert_eq!(read.fingerprint.as_ref(), fingerprint);
            assert_eq!(read.expires_at, Some(70_000));
        }
    }

    #[test]
    fn ops_6_a_line_that_cannot_be_read_says_why_and_shows_nothing() {
        let good = line(&Tombstone::new().into_envelope(), None);
        let changed = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}: {good}");
            good.replace(from, to)
        };
        for (line, why) in [
            ("{".to_owned(), "not JSON"),
            ("{\"key\":\"canary\"}".to_owned(), "did not write it"),
            (changed("_record\":1", "_record\":2"), "upgrade this program"),
            (changed("\"complete\"", "\"canary\""), "state is unknown"),
            (changed("\"pay\"", "\"\""), "scope or key is not valid"),
            (changed("\"UlAB", "\"!"), "result is not base64"),
            (changed("\"UlAB", "\"UlAC"), "cannot be read by this version"),
            (changed("\"fingerprint\":null", "\"fingerprint\":\"\""), "fingerprint is not valid"),
            (changed("70000", "null"), "expires_at_ms"),
            (changed("\"pay\"", "\"pay\",\"identity_mark\":7"), "identity mark"),
        ] {
            let error = RecordLine::parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(why) && !error.contains("canary"), "{line}: {error}");
        }
    }
}
