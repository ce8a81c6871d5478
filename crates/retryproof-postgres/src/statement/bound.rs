// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`BoundStatement`]: a statement with its values, ready to run. Values are only bytes, integers
//! and booleans, which any driver can bind. Where no statement can be prepared, the values are
//! written as literals. A pooler that can run each transaction on a different connection breaks
//! even the driver's unnamed statements, because the driver parses and runs them in two
//! transactions.

use std::fmt::Write as _;
use std::sync::Arc;

use retryproof_core::store::Param;

/// One column of many records, bound as an array.
pub(crate) enum ParamList<'a> {
    Bytes(Vec<Option<&'a [u8]>>),
    Int(Vec<i64>),
}

/// What a statement returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returns {
    /// The number of rows that the statement changed.
    Count,
    /// At most one row.
    Row,
    /// Any number of rows.
    Rows,
}

/// A statement with its values. The type does not implement `Debug`, because the values include
/// keys and results (ID-4).
pub(crate) struct BoundStatement<'a> {
    pub(crate) sql: Arc<str>,
    pub(crate) returns: Returns,
    pub(crate) params: Vec<Param<'a>>,
    /// The lists, which are bound after the parameters.
    pub(crate) lists: Vec<ParamList<'a>>,
    /// Settings that are sent in the same transaction, before the text with literals.
    settings: &'static str,
    /// Whether the statement is sent again if a row stays locked, as after other conflicts.
    pub(crate) is_patient: bool,
}

impl<'a> BoundStatement<'a> {
    pub(crate) fn new(sql: Arc<str>, returns: Returns, params: Vec<Param<'a>>) -> Self {
        Self { sql, returns, params, lists: Vec::new(), settings: "", is_patient: false }
    }

    /// Creates a statement that changes many records and returns a row.
    pub(crate) fn on_many(sql: Arc<str>, lists: Vec<ParamList<'a>>) -> Self {
        Self { lists, ..Self::new(sql, Returns::Row, Vec::new()) }
    }

    /// Adds settings that the statement's own transaction gets on a connection without the store's
    /// settings.
    pub(crate) fn with_settings(mut self, settings: &'static str) -> Self {
        self.settings = settings;
        self
    }

    /// Lets the plain dialect send the statement again while an open transaction has locked the
    /// row.
    pub(crate) fn with_patience(mut self) -> Self {
        self.is_patient = true;
        self
    }

    /// Returns the text with each value written as a literal. Bytes are written as hex digits, so
    /// no value can end its literal, whatever the connection's settings are.
    pub(crate) fn with_literals(&self) -> String {
        let mut text = self.settings.to_owned();
        let mut parts = self.sql.split('$');
        text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            // Placeholders have one digit, because there are at most 9 values.
            let (at, rest) = part.split_at(1);
            let at = at.parse::<usize>().unwrap_or_default().wrapping_sub(1);
            if let Some(param) = self.params.get(at) {
                write_literal(param, &mut text);
            } else if let Some(list) = self.lists.get(at.wrapping_sub(self.params.len())) {
                list.write_literal(&mut text);
            }
            text.push_str(rest);
        }
        text
    }
}

fn write_literal(param: &Param<'_>, text: &mut String) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match *param {
        Param::Bytes(bytes) => {
            text.push_str("decode('");
            for byte in bytes {
                text.push(char::from(HEX[usize::from(byte >> 4)]));
                text.push(char::from(HEX[usize::from(byte & 15)]));
            }
            text.push_str("','hex')");
        }
        Param::NoBytes => text.push_str("NULL::bytea"),
        // Writing into a `String` cannot fail.
        Param::Int(number) => drop(write!(text, "({number})")),
        Param::Bool(truth) => drop(write!(text, "({truth})")),
        // The store's statements bind no other type. If a statement bound another type, its value
        // would be missing, and the text would not parse.
        _ => {}
    }
}

impl ParamList<'_> {
    fn write_literal(&self, text: &mut String) {
        let (params, array): (Vec<Param<'_>>, _) = match self {
            Self::Bytes(list) => (list.iter().copied().map(Param::from).collect(), "]::bytea[]"),
            Self::Int(list) => (list.iter().copied().map(Param::Int).collect(), "]::bigint[]"),
        };
        for (at, param) in params.iter().enumerate() {
            text.push_str(if at == 0 { "ARRAY[" } else { "," });
            write_literal(param, text);
        }
        text.push_str(array);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use retryproof_core::config::SqlDialect;
    use retryproof_core::store::Completion;
    use retryproof_core::{Identity, OwnerId};

    use crate::statement::{OwnedCompletion, Statement, StatementTexts};

    #[test]
    fn sto_3_literals_are_hex_and_digits_only() {
        let statements = StatementTexts::new("t", SqlDialect::Postgres);
        let id = Identity::of("a'; DROP TABLE t; --", "\\'$1$$ {} é").unwrap();
        let owner = OwnerId::new();
        let done = Completion::new(b"'$3\\".to_vec().into(), Duration::from_secs(1), None);
        let text = statements.complete(Statement::Complete, &id, &owner, &done).with_literals();
        assert!(
            text.contains("decode('2724335c','hex')") && text.contains("fp=NULL::bytea"),
            "{text}"
        );
        is_plain(&text);
        // A statement on many records contains the same literals in lists.
        let one = OwnedCompletion { id: &id, owner: &owner, done: &done };
        let text = statements.complete_many([one, one].into_iter()).with_literals();
        let values = "ARRAY[decode('2724335c','hex'),decode('2724335c','hex')]::bytea[]";
        assert!(
            text.contains(values) && text.contains("ARRAY[NULL::bytea,NULL::bytea]::bytea[]"),
            "{text}"
        );
        assert!(text.contains("ARRAY[(1000000),(1000000)]::bigint[]"), "{text}");
        is_plain(&text);
    }

    fn is_plain(text: &str) {
        assert!(!text.contains('$') && !text.contains('\\') && !text.contains("DROP"), "{text}");
        let quoted: Vec<_> = text.split('\'').skip(1).step_by(2).collect();
        let plain = |part: &&str| {
            part.bytes().all(|b| b.is_ascii_hexdigit())
                || ["hex", "1 microsecond", "epoch", "lock_timeout", "50ms"].contains(part)
        };
        assert!(quoted.iter().all(plain), "{quoted:?}");
    }
}
