// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`StoreFinding`]: what a store's `diagnose` reports about its server and its tables (OPS-5).

use std::fmt;

/// How serious a [`StoreFinding`] is. The variants are ordered from least to most serious.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The finding is only information. Nothing has to change.
    Note,
    /// A crash, a failover or a higher load may lose records or delay calls.
    Warning,
    /// Calls fail, records may be lost without a crash, or a crash may lose all records.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// A finding about a store's server, settings, tables or user. A finding contains no key, value or
/// password (ID-4).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFinding {
    /// How serious the finding is.
    pub severity: Severity,
    /// The name of the check, such as `clock`. A name never changes its meaning.
    pub id: &'static str,
    /// A sentence that says what was found, and what follows from it.
    pub problem: String,
    /// A sentence that says what to do.
    pub advice: String,
}

impl StoreFinding {
    /// Creates a finding of the given severity.
    #[must_use]
    pub fn new(
        severity: Severity,
        id: &'static str,
        problem: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { severity, id, problem: problem.into(), advice: advice.into() }
    }

    /// Creates a finding of the severity [`Severity::Error`].
    #[must_use]
    pub fn error(id: &'static str, problem: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Severity::Error, id, problem, advice)
    }

    /// Creates a finding of the severity [`Severity::Warning`].
    #[must_use]
    pub fn warning(
        id: &'static str,
        problem: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::new(Severity::Warning, id, problem, advice)
    }

    /// Creates a finding of the severity [`Severity::Note`].
    #[must_use]
    pub fn note(id: &'static str, problem: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Severity::Note, id, problem, advice)
    }
}
