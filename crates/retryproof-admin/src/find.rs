// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the record of a key, or of the digest that logs print for a key (OPS-9).

use std::future::Future;
use std::time::Duration;

use retryproof_core::clock::{Clock as _, SystemClock};
use retryproof_core::store::RecordSummary;
use retryproof_core::{Error, ErrorKind, IdempotencyEngine, Identity, Result, Scope};
use retryproof_http::adapter::{stored_key, stored_key_of_absent_caller};
use tokio::time::timeout;

/// The maximum number of records on one page of a scan.
pub(crate) const PAGE: usize = 1_000;

/// The time limit for reading records in a search by digest.
const SEARCH: Duration = Duration::from_secs(5);

pub(crate) const CANNOT_INSPECT: &str =
    "this store cannot show its records: it was built without `with_inspect()`";

/// The number of hex digits in a masked key.
const DIGEST: usize = 16;

/// The fields of the form.
pub(crate) struct Wanted {
    pub(crate) scope: String,
    key: String,
    pub(crate) caller: String,
}

/// The result of a search.
pub(crate) struct MatchedRecords {
    pub(crate) records: Vec<MatchedRecord>,
    /// How far the search got, if it was a search by digest.
    pub(crate) search: Option<Search>,
}

pub(crate) struct MatchedRecord {
    pub(crate) id: Identity,
    pub(crate) summary: RecordSummary,
    /// The kind of key under which the record is stored.
    pub(crate) stored_as: &'static str,
}

/// How far a search by digest got.
#[derive(Clone, Copy)]
pub(crate) struct Search {
    pub(crate) read: u64,
    /// Whether all records were read.
    pub(crate) is_whole: bool,
}

impl Wanted {
    /// Reads the fields of the form. A missing field is empty, and unknown fields are ignored.
    pub(crate) fn from_fields(fields: Vec<(String, String)>) -> Self {
        let mut wanted = Self { scope: String::new(), key: String::new(), caller: String::new() };
        for (name, value) in fields {
            match name.as_str() {
                "scope" => wanted.scope = value,
                "key" => wanted.key = value,
                "caller" => wanted.caller = value,
                _ => {}
            }
        }
        wanted
    }

    /// Returns the identities under which a record of this key may be stored.
    fn identities(&self) -> Result<Vec<(&'static str, Identity)>> {
        let scope = Scope::new(self.scope.as_str())?;
        // Check the key as given, because the filter's prefix would make an empty key valid.
        let as_given = Identity::of(&scope, &self.key)?;
        let of = |key| Identity::of(&scope, key);
        if !self.caller.is_empty() {
            let id = of(stored_key(Some(&self.caller), &self.key))?;
            return Ok(vec![("an HTTP request of this caller", id)]);
        }
        let mut identities = vec![("the key as given", as_given)];
        let shared = stored_key(None, &self.key);
        let absent = stored_key_of_absent_caller(&self.key);
        for (stored_as, key) in [
            ("an HTTP request, with keys that all callers share", shared),
            ("an HTTP request without a caller", absent),
        ] {
            // A key of almost the maximum length leaves no room for the prefix, so no filter stores
            // it.
            if let Ok(id) = of(key) {
                identities.push((stored_as, id));
            }
        }
        Ok(identities)
    }

    /// Returns the scope, if one is given, and the masked key. Returns `None` unless the key looks
    /// like `payments#0123456789abcdef` or like the part of it after `#`.
    fn digest(&self) -> Option<(Option<&str>, String)> {
        let text = self.key.trim();
        let (before, digits) = text.rsplit_once('#').unwrap_or(("", text));
        let is_digest = digits.len() == DIGEST && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let scope = [before, self.scope.as_str()].into_iter().find(|scope| !scope.is_empty());
        is_digest.then(|| (scope, format!("#{}", digits.to_ascii_lowercase())))
    }
}

/// Looks for the records of a key. If there is none and the key looks like a digest, searches for
/// the digest.
pub(crate) async fn find(engine: &IdempotencyEngine, wanted: &Wanted) -> Result<MatchedRecords> {
    let (store, digest) = (engine.store(), wanted.digest());
    if !store.can_inspect() {
        return Err(Error::new(ErrorKind::Unsupported, CANNOT_INSPECT));
    }
    let identities = match wanted.identities() {
        // A digest such as `payments#0123456789abcdef` names the scope itself, so an empty or
        // invalid scope field is not an error.
        Err(_) if digest.is_some() => Vec::new(),
        identities => identities?,
    };
    let mut records = Vec::new();
    for (stored_as, id) in identities {
        if let Some(summary) = in_time(engine, store.get(&id)).await? {
            records.push(MatchedRecord { id, summary, stored_as });
        }
    }
    match digest {
        Some((scope, masked)) if records.is_empty() => search(engine, scope, &masked).await,
        _ => Ok(MatchedRecords { records, search: None }),
    }
}

async fn search(
    engine: &IdempotencyEngine,
    scope: Option<&str>,
    masked: &str,
) -> Result<MatchedRecords> {
    let began = SystemClock.now();
    let (mut after, mut read, mut records) = (None, 0, Vec::new());
    loop {
        let page = in_time(engine, engine.store().scan(after.as_ref(), PAGE)).await?;
        let Some(page) = page else { break };
        read += page.records.len() as u64;
        let is_wanted = |id: &Identity| {
            scope.is_none_or(|scope| scope == id.scope().as_str()) && id.key().to_string() == masked
        };
        let found = page.records.into_iter().filter(|record| is_wanted(&record.id));
        records.extend(found.map(|record| MatchedRecord {
            id: record.id,
            summary: record.summary,
            stored_as: "the key with this digest",
        }));
        after = page.next;
        let is_over = SystemClock.now().saturating_duration_since(began) >= SEARCH;
        if after.is_none() || !records.is_empty() || is_over {
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(MatchedRecords { records, search: Some(Search { read, is_whole: after.is_none() }) })
}

/// Awaits a call to the store for at most `operation-timeout` (STO-5).
pub(crate) async fn in_time<T>(
    engine: &IdempotencyEngine,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let limit = engine.config().operation_timeout;
    let late = || Error::unavailable("the store did not answer in time");
    timeout(limit, call).await.unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(scope: &str, key: &str, caller: &str) -> Wanted {
        let fields = [("scope", scope), ("key", key), ("caller", caller), ("other", "x")];
        Wanted::from_fields(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }

    #[test]
    fn ops_9_a_key_is_looked_for_as_every_adapter_stores_it() {
        let keys = |wanted: &Wanted| -> Vec<String> {
            let identities = wanted.identities().unwrap();
            identities.iter().map(|(_, id)| id.key().expose().to_owned()).collect()
        };
        assert_eq!(keys(&wanted("pay", "order-17", "")), ["order-17", "-:order-17", "a:order-17"]);
        assert_eq!(keys(&wanted("pay", "order-17", "alice")), ["5:alice:order-17"]);
        assert_eq!(keys(&wanted("pay", &"k".repeat(512), "")).len(), 1);
        assert!(wanted("", "order-17", "").identities().is_err());
        assert!(wanted("pay", "", "").identities().is_err());
        assert!(wanted("pay", "", "alice").identities().is_err());
    }

    #[test]
    fn ops_9_a_digest_is_recognised() {
        let masked = Some((None, "#72a90ea3da8b5dd0".to_owned()));
        assert_eq!(wanted("", "72A90ea3da8b5dd0", "").digest(), masked);
        assert_eq!(wanted("", " #72a90ea3da8b5dd0 ", "").digest(), masked);
        let in_scope = Some((Some("pay"), "#72a90ea3da8b5dd0".to_owned()));
        assert_eq!(wanted("pay", "72a90ea3da8b5dd0", "").digest(), in_scope);
        assert_eq!(wanted("other", "pay#72a90ea3da8b5dd0", "").digest(), in_scope);
        for other in ["72a90ea3da8b5dd", "72a90ea3da8b5dd0f", "g2a90ea3da8b5dd0", "order-17"] {
            assert_eq!(wanted("pay", other, "").digest(), None, "{other}");
        }
    }
}
