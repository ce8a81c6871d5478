// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RawValue`]: a value from a file or a variable, and its conversions.

use std::time::Duration;

use toml::de::DeValue;

use crate::identity::IdentitySecret;

use super::super::{
    CompletionFailurePolicy, FingerprintMode, Pooler, SqlDialect, StoredStatuses, Synchronous,
};

/// A value before it is parsed.
pub(super) enum RawValue<'a> {
    /// A value in the TOML file.
    Toml(&'a DeValue<'a>),
    /// The text of an environment variable.
    Variable(&'a str),
}

/// The parsed value, or a message that says what was expected.
type Parsed<T> = Result<T, String>;

impl RawValue<'_> {
    pub(super) fn duration(&self) -> Parsed<Duration> {
        let text = self.text_or("expected a duration as text, for example `\"PT30S\"`")?;
        retryproof_duration::parse(text).map_err(|error| error.to_string())
    }

    pub(super) fn count(&self) -> Parsed<usize> {
        let refuse = || "expected a whole number of 0 or more".to_owned();
        let (digits, radix) = match self {
            Self::Variable(text) => (*text, 10),
            Self::Toml(DeValue::Integer(number)) => (number.as_str(), number.radix()),
            Self::Toml(_) => return Err(refuse()),
        };
        // Refuse a leading `+`, which `from_str_radix` would accept.
        if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Err(refuse());
        }
        usize::from_str_radix(digits, radix).map_err(|_| refuse())
    }

    pub(super) fn status(&self) -> Parsed<u16> {
        // A number too large for `u16` becomes 0, which the bounds check refuses.
        Ok(u16::try_from(self.count()?).unwrap_or(0))
    }

    pub(super) fn flag(&self) -> Parsed<bool> {
        match self {
            Self::Toml(DeValue::Boolean(flag)) => Ok(*flag),
            Self::Variable("true") => Ok(true),
            Self::Variable("false") => Ok(false),
            _ => Err("expected `true` or `false`".to_owned()),
        }
    }

    pub(super) fn text(&self) -> Parsed<String> {
        match self.text_or("expected text")? {
            "" => Err("expected text, but the value is empty".to_owned()),
            text => Ok(text.to_owned()),
        }
    }

    pub(super) fn identity_secret(&self) -> Parsed<IdentitySecret> {
        let refuse =
            "expected 32 random bytes or more as text, for example from `openssl rand -hex 32`";
        IdentitySecret::new(self.text_or(refuse)?).map_err(|_| refuse.to_owned())
    }

    pub(super) fn policy(&self) -> Parsed<CompletionFailurePolicy> {
        self.one_of(&[
            ("log-and-return", CompletionFailurePolicy::LogAndReturn),
            ("propagate", CompletionFailurePolicy::Propagate),
        ])
    }

    pub(super) fn fingerprint(&self) -> Parsed<FingerprintMode> {
        self.one_of(&[
            ("request", FingerprintMode::Request),
            ("body", FingerprintMode::Body),
            ("json", FingerprintMode::Json),
        ])
    }

    pub(super) fn synchronous(&self) -> Parsed<Synchronous> {
        self.one_of(&[("full", Synchronous::Full), ("normal", Synchronous::Normal)])
    }

    pub(super) fn pooler(&self) -> Parsed<Pooler> {
        self.one_of(&[("session", Pooler::Session), ("transaction", Pooler::Transaction)])
    }

    pub(super) fn dialect(&self) -> Parsed<SqlDialect> {
        self.one_of(&[("postgres", SqlDialect::Postgres), ("plain", SqlDialect::Plain)])
    }

    pub(super) fn statuses(&self) -> Parsed<StoredStatuses> {
        let refuse = "expected `2xx`, optionally with `4xx` and `5xx`, for example `\"2xx,4xx\"`";
        StoredStatuses::parse(self.text_or(refuse)?).ok_or_else(|| refuse.to_owned())
    }

    /// Reads a list of texts. `ScopeConfig::check` checks that each text is a JSON pointer.
    pub(super) fn pointers(&self) -> Parsed<Vec<String>> {
        let refuse =
            || "expected a list of JSON pointers, for example `[\"/timestamp\"]`".to_owned();
        let Self::Toml(DeValue::Array(items)) = self else { return Err(refuse()) };
        let pointers = items.iter().map(|item| match item.get_ref() {
            DeValue::String(pointer) => Ok(pointer.to_string()),
            _ => Err(refuse()),
        });
        let pointers = pointers.collect::<Parsed<Vec<_>>>()?;
        if pointers.is_empty() { Err(refuse()) } else { Ok(pointers) }
    }

    fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Parsed<T> {
        let words =
            choices.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        let refuse = format!("expected one of {words}");
        let text = self.text_or(&refuse)?;
        choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice).ok_or(refuse)
    }

    fn text_or(&self, refuse: &str) -> Parsed<&str> {
        match self {
            Self::Variable(text) => Ok(text),
            Self::Toml(DeValue::String(text)) => Ok(text),
            Self::Toml(_) => Err(refuse.to_owned()),
        }
    }
}

/// Formats a value for an error message, short and on one line. Hides a text that looks like a
/// store URL, because someone may have assigned the URL to the wrong setting (ID-4).
pub(super) fn shown(value: &RawValue<'_>) -> String {
    const MAX_CHARS: usize = 60;
    let quoted = |text: &str| {
        if text.contains("://") || text.contains('@') {
            return "(hidden)".to_owned();
        }
        match text.char_indices().nth(MAX_CHARS) {
            Some((cut, _)) => format!("{:?} (shortened)", &text[..cut]),
            None => format!("{text:?}"),
        }
    };
    match value {
        RawValue::Variable(text) => quoted(text),
        RawValue::Toml(DeValue::String(text)) => quoted(text),
        RawValue::Toml(DeValue::Integer(number)) => number.to_string(),
        RawValue::Toml(DeValue::Float(number)) => number.to_string(),
        RawValue::Toml(DeValue::Boolean(flag)) => flag.to_string(),
        RawValue::Toml(DeValue::Datetime(when)) => when.to_string(),
        RawValue::Toml(DeValue::Array(_)) => "(an array)".to_owned(),
        RawValue::Toml(DeValue::Table(_)) => "(a table)".to_owned(),
    }
}
