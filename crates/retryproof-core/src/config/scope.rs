// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ScopeConfig`]: the settings of one scope.

use std::fmt;
use std::time::Duration;

use super::{LEASE_BOUNDS, OutOfBounds, TTL_BOUNDS, WAIT_BOUNDS, refused, within};

/// The largest number of JSON members that a scope can leave out of its fingerprints.
const MAX_POINTERS: usize = 32;
/// The length of the longest JSON pointer, in bytes.
const MAX_POINTER_BYTES: usize = 255;

/// `scope."NAME".*`: the settings of one scope (CTX-3). A setting that is `None`, or an empty list,
/// overrides nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScopeConfig {
    /// `ttl`: how long results are kept after completion.
    pub ttl: Option<Duration>,
    /// `lease`: how long a key stays held after its holder's last heartbeat.
    pub lease: Option<Duration>,
    /// `wait`: how long a duplicate waits for the holder.
    pub wait_timeout: Option<Duration>,
    /// `enabled`. With `false`, every call of the scope runs unguarded: nothing is replayed,
    /// nothing is recorded, and the store is not called (CTX-5). Default: true.
    pub enabled: Option<bool>,
    /// `store`: which answers the HTTP filter stores (HTTP-19). Default: all.
    pub stored: Option<StoredStatuses>,
    /// `mismatch-status`: the status for a key that was used with a different request, 409 or 422
    /// (HTTP-20). Default: 422.
    pub mismatch_status: Option<u16>,
    /// `fingerprint-ignore`: JSON pointers to members that may differ in a retry (FP-5). The
    /// pointers need `web.fingerprint = "json"`.
    pub fingerprint_ignore: Vec<String>,
    /// `fingerprint-while-in-flight`. With `true`, a duplicate with another fingerprint is refused
    /// immediately, even while the first call still runs (FP-6). Default: false.
    pub fingerprint_while_in_flight: Option<bool>,
    /// `shadow`. With `true`, every call of the scope runs unguarded, and the engine counts what
    /// the guard would have done (CTX-6). Default: false.
    pub shadow: Option<bool>,
}

impl ScopeConfig {
    /// Replaces each setting that `new` sets with the value from `new`.
    #[cfg(feature = "config")]
    pub(super) fn take_from(&mut self, new: Self) {
        self.ttl = new.ttl.or(self.ttl);
        self.lease = new.lease.or(self.lease);
        self.wait_timeout = new.wait_timeout.or(self.wait_timeout);
        self.enabled = new.enabled.or(self.enabled);
        self.stored = new.stored.or(self.stored);
        self.mismatch_status = new.mismatch_status.or(self.mismatch_status);
        self.fingerprint_while_in_flight =
            new.fingerprint_while_in_flight.or(self.fingerprint_while_in_flight);
        self.shadow = new.shadow.or(self.shadow);
        if !new.fingerprint_ignore.is_empty() {
            self.fingerprint_ignore = new.fingerprint_ignore;
        }
    }

    /// Checks the settings. `scope` is the scope's name for messages.
    pub(super) fn check(&self, scope: &str) -> Result<(), OutOfBounds> {
        let key = |part: &str| format!("scope.{scope:?}.{part}");
        for (part, value, bounds) in [
            ("ttl", self.ttl, &TTL_BOUNDS),
            ("lease", self.lease, &LEASE_BOUNDS),
            ("wait", self.wait_timeout, &WAIT_BOUNDS),
        ] {
            if let Some(value) = value {
                within(key(part), value, bounds)?;
            }
        }
        if self.shadow == Some(true) && self.enabled == Some(false) {
            return Err(refused(
                key("shadow"),
                true,
                "no `shadow = true` in a scope with `enabled = false`; remove one of the two \
                 settings",
            ));
        }
        if let Some(status) = self.mismatch_status
            && !matches!(status, 409 | 422)
        {
            return Err(refused(key("mismatch-status"), status, "409 or 422"));
        }
        let pointers = &self.fingerprint_ignore;
        if pointers.len() > MAX_POINTERS {
            let expected = format!("at most {MAX_POINTERS} JSON pointers");
            let given = format!("({} JSON pointers)", pointers.len());
            return Err(refused(key("fingerprint-ignore"), given, &expected));
        }
        match pointers.iter().find(|pointer| !is_pointer(pointer)) {
            Some(pointer) => {
                let expected = format!(
                    "JSON pointers such as `/meta/sent-at`, each 2 to {MAX_POINTER_BYTES} bytes \
                     long, that begin with `/` and contain `~` only as `~0` or `~1`; {pointer:?} \
                     is not such a pointer"
                );
                Err(refused(key("fingerprint-ignore"), format!("{pointers:?}"), &expected))
            }
            None => Ok(()),
        }
    }
}

/// Whether `text` is a JSON pointer (RFC 6901) of 2 to 255 bytes. Refuses the empty pointer, which
/// means the whole document: without the document, all bodies would be equal.
fn is_pointer(text: &str) -> bool {
    text.starts_with('/')
        && (2..=MAX_POINTER_BYTES).contains(&text.len())
        && text.split('~').skip(1).all(|after| after.starts_with(['0', '1']))
}

/// Which answers the HTTP filter stores, by status, unless the handler marks them (HTTP-19). If an
/// answer is not stored, its key becomes free, and **the next request runs the work again**.
///
/// A 4xx or 5xx is stored only if the value includes it. Every value includes the statuses below
/// 400, because an answer with such a status commits the handler's writes.
///
/// ```
/// use retryproof_core::config::StoredStatuses;
///
/// // `store = "2xx,4xx"`: a 5xx from the handlers of that scope proves that nothing happened.
/// const NO_SERVER_ERRORS: StoredStatuses = StoredStatuses::SUCCESSES.with_client_errors();
/// assert!(NO_SERVER_ERRORS.stores(201) && NO_SERVER_ERRORS.stores(404));
/// assert!(!NO_SERVER_ERRORS.stores(503));
/// assert_eq!(NO_SERVER_ERRORS.to_string(), "2xx,4xx");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredStatuses {
    client_errors: bool,
    server_errors: bool,
}

impl StoredStatuses {
    /// `"2xx"`: no errors.
    pub const SUCCESSES: Self = Self { client_errors: false, server_errors: false };

    /// Also stores responses with a 4xx status.
    #[must_use]
    pub const fn with_client_errors(self) -> Self {
        Self { client_errors: true, ..self }
    }

    /// Also stores responses with a 5xx status.
    #[must_use]
    pub const fn with_server_errors(self) -> Self {
        Self { server_errors: true, ..self }
    }

    /// Whether an answer with this status is stored.
    #[must_use]
    pub const fn stores(self, status: u16) -> bool {
        match status {
            0..400 => true,
            400..500 => self.client_errors,
            _ => self.server_errors,
        }
    }

    /// Reads `2xx,4xx`. Returns `None` if a word is unknown or repeated, or if `2xx` is missing.
    /// The word `3xx` is accepted and has no effect.
    #[cfg(feature = "config")]
    pub(super) fn parse(text: &str) -> Option<Self> {
        let words: Vec<_> = text.split(',').map(str::trim).collect();
        let has = |wanted: &str| words.contains(&wanted);
        let known = ["2xx", "3xx", "4xx", "5xx"].into_iter().filter(|word| has(word)).count();
        (known == words.len() && has("2xx"))
            .then(|| Self { client_errors: has("4xx"), server_errors: has("5xx") })
    }
}

impl fmt::Display for StoredStatuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("2xx")?;
        for (word, is_stored) in [(",4xx", self.client_errors), (",5xx", self.server_errors)] {
            if is_stored {
                f.write_str(word)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "config")]
    #[test]
    fn http_19_statuses_are_read_and_written_alike() {
        for (text, stored) in [
            ("2xx", [true, false, false]),
            ("2xx,4xx", [true, true, false]),
            ("2xx,5xx", [true, false, true]),
            ("2xx,4xx,5xx", [true, true, true]),
        ] {
            let statuses = StoredStatuses::parse(text).unwrap();
            assert_eq!([399, 400, 500].map(|status| statuses.stores(status)), stored, "{text}");
            assert_eq!([101, 499, 599].map(|status| statuses.stores(status)), stored, "{text}");
            assert_eq!(statuses.to_string(), text);
            let mut built = StoredStatuses::SUCCESSES;
            if stored[2] {
                built = built.with_server_errors();
            }
            if stored[1] {
                built = built.with_client_errors();
            }
            assert_eq!(statuses, built);
        }
        assert_eq!(StoredStatuses::parse(" 4xx , 2xx,3xx "), StoredStatuses::parse("2xx,4xx"));
        for wrong in ["", "4xx", "2xx,", "2xx,2xx", "2xx 4xx", "2XX", "200", "2xx,1xx", "all"] {
            assert_eq!(StoredStatuses::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn fp_5_a_pointer_names_a_member() {
        for good in ["/timestamp", "/meta/sent-at", "/a~1b", "/m~0n", "//", "/items/0/at"] {
            assert!(is_pointer(good), "{good}");
        }
        let long = format!("/{}", "x".repeat(255));
        for wrong in ["", "/", "timestamp", "#/a", "/a~", "/a~2", "/~b~0", &long] {
            assert!(!is_pointer(wrong), "{wrong}");
        }
    }
}
