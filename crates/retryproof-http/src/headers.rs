// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which fields of an answer are stored, and what a replay adds (HTTP-8, HTTP-9).
//!
//! Names are lower case throughout. The order that HTTP-8 promises is kept by whoever walks the
//! fields: it takes them in the order of the first answer and never removes one from a map (which
//! may reorder the rest).

use std::borrow::Cow;

/// Marks a replay (HTTP-8). A handler cannot set it.
pub(crate) const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";

/// Not stored unless switched on: a stored one would hand one client's session or challenge to
/// another (HTTP-9).
pub(crate) const SENSITIVE: [&str; 4] =
    ["set-cookie", "www-authenticate", "authentication-info", "clear-site-data"];

/// What becomes of one field of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Stored and replayed.
    Store,
    /// Belongs to the connection or the moment, or was switched off: sent with the first answer,
    /// not stored.
    Drop,
    /// One of [`SENSITIVE`]: as `Drop`, and worth a warning.
    Sensitive,
    /// Never sent and never stored: the handler tried to mark its answer as a replay.
    Forged,
}

/// The answer's kind, for the one field whose fate depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// To a HEAD request: the length of a body that is not there is kept.
    Head,
    /// To any other: the length is made anew.
    Other,
}

/// The switches of HTTP-9: fields stored though sensitive, and fields not stored though harmless.
#[derive(Debug, Clone, Default)]
pub(crate) struct FieldPolicy {
    stored: Vec<Cow<'static, str>>,
    skipped: Vec<Cow<'static, str>>,
}

impl FieldPolicy {
    /// Stores a field of [`SENSITIVE`] from now on. Hop-by-hop fields stay unstored.
    pub(crate) fn store(&mut self, name: impl Into<Cow<'static, str>>) {
        let name = lower(name.into());
        self.skipped.retain(|skipped| *skipped != name);
        self.stored.push(name);
    }

    /// Stores a field no more, without a warning.
    pub(crate) fn skip(&mut self, name: impl Into<Cow<'static, str>>) {
        let name = lower(name.into());
        self.stored.retain(|stored| *stored != name);
        self.skipped.push(name);
    }

    /// Judges one field by its lower-case name.
    pub(crate) fn judge(
        &self,
        name: &str,
        connection: &ConnectionNames,
        exchange: Exchange,
    ) -> Verdict {
        if name == IDEMPOTENT_REPLAYED {
            Verdict::Forged
        } else if is_hop_by_hop(name)
            || matches!(name, "date" | "trailer")
            || (name == "content-length" && exchange == Exchange::Other)
            || connection.names(name)
            || self.skipped.iter().any(|skipped| skipped == name)
        {
            Verdict::Drop
        } else if SENSITIVE.contains(&name) && !self.stored.iter().any(|stored| stored == name) {
            Verdict::Sensitive
        } else {
            Verdict::Store
        }
    }
}

fn lower(name: Cow<'static, str>) -> Cow<'static, str> {
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        name.to_ascii_lowercase().into()
    } else {
        name
    }
}

/// Fields that speak of the connection and not of the answer (RFC 9110 section 7.6.1, and what
/// older peers send).
fn is_hop_by_hop(name: &str) -> bool {
    matches!(name, "connection" | "keep-alive" | "te" | "transfer-encoding" | "upgrade")
        || name.starts_with("proxy-")
}

/// The fields that an answer's `Connection` lines name, lower case. Nothing is allocated for an
/// answer without.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectionNames(Vec<String>);

impl ConnectionNames {
    pub(crate) fn parse<'a>(values: impl Iterator<Item = &'a [u8]>) -> Self {
        let options = values.flat_map(|value| value.split(|b| *b == b','));
        let names = options.filter_map(|option| str::from_utf8(option).ok());
        Self(
            names
                .map(|name| name.trim().to_ascii_lowercase())
                .filter(|name| !name.is_empty())
                .collect(),
        )
    }

    fn names(&self, name: &str) -> bool {
        self.0.iter().any(|named| named == name)
    }
}

/// The value of the `Trailer` field of a replay: each name once, in order. Without it HTTP/1.1
/// sends no trailers.
pub(crate) fn trailer_field<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for name in names {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    unique.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(policy: &FieldPolicy, name: &str) -> Verdict {
        policy.judge(name, &ConnectionNames::default(), Exchange::Other)
    }

    #[test]
    fn http_9_connection_bound_fields_are_never_stored() {
        let mut policy = FieldPolicy::default();
        for name in [
            "connection",
            "keep-alive",
            "proxy-authenticate",
            "proxy-connection",
            "te",
            "transfer-encoding",
            "upgrade",
            "date",
            "trailer",
            "content-length",
        ] {
            policy.store(name);
            assert_eq!(judge(&policy, name), Verdict::Drop, "{name}");
        }
        for name in
            ["content-type", "cache-control", "age", "expires", "pragma", "location", "x-date"]
        {
            assert_eq!(judge(&policy, name), Verdict::Store, "{name}");
        }
    }

    #[test]
    fn http_9_fields_named_by_connection_are_not_stored() {
        let connection =
            ConnectionNames::parse([&b"close, X-Hop"[..], b" , x-other\t,\xff"].into_iter());
        for (name, verdict) in [
            ("x-hop", Verdict::Drop),
            ("x-other", Verdict::Drop),
            ("close", Verdict::Drop),
            ("x", Verdict::Store),
        ] {
            assert_eq!(
                FieldPolicy::default().judge(name, &connection, Exchange::Other),
                verdict,
                "{name}"
            );
        }
    }

    #[test]
    fn http_9_content_length_is_kept_for_head_alone() {
        let judge = |exchange| {
            FieldPolicy::default().judge("content-length", &ConnectionNames::default(), exchange)
        };
        assert_eq!(judge(Exchange::Head), Verdict::Store);
        assert_eq!(judge(Exchange::Other), Verdict::Drop);
    }

    #[test]
    fn http_9_sensitive_fields_have_one_switch_each_way() {
        let mut policy = FieldPolicy::default();
        for name in SENSITIVE {
            assert_eq!(judge(&policy, name), Verdict::Sensitive, "{name}");
        }
        policy.store("Set-Cookie");
        assert_eq!(judge(&policy, "set-cookie"), Verdict::Store);
        policy.skip("Set-Cookie");
        policy.skip("X-Request-Id");
        assert_eq!(judge(&policy, "set-cookie"), Verdict::Drop);
        assert_eq!(judge(&policy, "x-request-id"), Verdict::Drop);
        policy.store("x-request-id");
        assert_eq!(judge(&policy, "x-request-id"), Verdict::Store);
    }

    #[test]
    fn http_8_a_handler_cannot_mark_its_answer_as_a_replay() {
        let mut policy = FieldPolicy::default();
        policy.store("Idempotent-Replayed");
        assert_eq!(judge(&policy, "idempotent-replayed"), Verdict::Forged);
    }

    #[test]
    fn http_9_the_trailer_field_is_made_anew() {
        assert_eq!(trailer_field(["x-a", "x-b", "x-a"].into_iter()), "x-a, x-b");
        assert_eq!(trailer_field(std::iter::empty()), "");
    }
}
