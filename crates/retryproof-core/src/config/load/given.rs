// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Given`]: a value as one of the sources spells it, and what can be made of it.

use std::time::Duration;

use toml::de::DeValue;

use super::super::{CompletionFailurePolicy, FingerprintMode, Pooler, Synchronous};

/// A value, not yet understood.
pub(super) enum Given<'a> {
    /// Of the file.
    Value(&'a DeValue<'a>),
    /// Of a variable: always text.
    Variable(&'a str),
}

/// What the value is, or what it should be.
type Read<T> = Result<T, String>;

impl Given<'_> {
    pub(super) fn duration(&self) -> Read<Duration> {
        let text = self.text_or("it takes a duration as text, for example `\"PT30S\"`")?;
        retryproof_duration::parse(text).map_err(|error| error.to_string())
    }

    pub(super) fn count(&self) -> Read<usize> {
        let refuse = || "it takes a whole number of 0 or more".to_owned();
        let (digits, radix) = match self {
            Self::Variable(text) => (*text, 10),
            Self::Value(DeValue::Integer(number)) => (number.as_str(), number.radix()),
            Self::Value(_) => return Err(refuse()),
        };
        // `from_str_radix` alone would take a sign.
        if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Err(refuse());
        }
        usize::from_str_radix(digits, radix).map_err(|_| refuse())
    }

    pub(super) fn status(&self) -> Read<u16> {
        // What no status can be is refused as one that is out of bounds.
        Ok(u16::try_from(self.count()?).unwrap_or(0))
    }

    pub(super) fn flag(&self) -> Read<bool> {
        match self {
            Self::Value(DeValue::Boolean(flag)) => Ok(*flag),
            Self::Variable("true") => Ok(true),
            Self::Variable("false") => Ok(false),
            _ => Err("it takes `true` or `false`".to_owned()),
        }
    }

    pub(super) fn text(&self) -> Read<String> {
        match self.text_or("it takes text")? {
            "" => Err("it is empty".to_owned()),
            text => Ok(text.to_owned()),
        }
    }

    pub(super) fn policy(&self) -> Read<CompletionFailurePolicy> {
        self.one_of(&[
            ("log-and-return", CompletionFailurePolicy::LogAndReturn),
            ("propagate", CompletionFailurePolicy::Propagate),
        ])
    }

    pub(super) fn fingerprint(&self) -> Read<FingerprintMode> {
        self.one_of(&[
            ("request", FingerprintMode::Request),
            ("body", FingerprintMode::Body),
            ("json", FingerprintMode::Json),
        ])
    }

    pub(super) fn synchronous(&self) -> Read<Synchronous> {
        self.one_of(&[("full", Synchronous::Full), ("normal", Synchronous::Normal)])
    }

    pub(super) fn pooler(&self) -> Read<Pooler> {
        self.one_of(&[("session", Pooler::Session), ("transaction", Pooler::Transaction)])
    }

    fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Read<T> {
        let words =
            choices.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        let refuse = format!("it takes one of {words}");
        let text = self.text_or(&refuse)?;
        choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice).ok_or(refuse)
    }

    fn text_or(&self, refuse: &str) -> Read<&str> {
        match self {
            Self::Variable(text) => Ok(text),
            Self::Value(DeValue::String(text)) => Ok(text),
            Self::Value(_) => Err(refuse.to_owned()),
        }
    }
}

/// A value as a message shows it: short, on one line, and hidden where it looks like the URL of a
/// store that stands under the wrong key (ID-4).
pub(super) fn shown(given: &Given<'_>) -> String {
    const MOST: usize = 60;
    let quoted = |text: &str| {
        if text.contains("://") || text.contains('@') {
            return "(hidden)".to_owned();
        }
        match text.char_indices().nth(MOST) {
            Some((cut, _)) => format!("{:?} and more", &text[..cut]),
            None => format!("{text:?}"),
        }
    };
    match given {
        Given::Variable(text) => quoted(text),
        Given::Value(DeValue::String(text)) => quoted(text),
        Given::Value(DeValue::Integer(number)) => number.to_string(),
        Given::Value(DeValue::Float(number)) => number.to_string(),
        Given::Value(DeValue::Boolean(flag)) => flag.to_string(),
        Given::Value(DeValue::Datetime(when)) => when.to_string(),
        Given::Value(DeValue::Array(_)) => "(an array)".to_owned(),
        Given::Value(DeValue::Table(_)) => "(a table)".to_owned(),
    }
}
