// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Call`]: a statement with its values, ready to run.
//!
//! Values are bytes and integers only, so that any driver can carry them, and so that they can be
//! written as literals out of hex digits where nothing can be prepared: behind a pooler that gives
//! each transaction another connection, the driver's unnamed statements go astray too, for it
//! parses and runs them in two transactions.

use std::fmt::Write as _;
use std::sync::Arc;

use sqlx_core::arguments::Arguments as _;
use sqlx_core::executor::Executor as _;
use sqlx_core::query::query_with;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::{PgArguments, PgConnection, PgRow};

/// What is bound to a statement.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Bytes(Option<&'a [u8]>),
    Int(i64),
}

/// The same of many records.
pub(crate) enum List<'a> {
    Bytes(Vec<Option<&'a [u8]>>),
    Int(Vec<i64>),
}

/// A statement with its values. Not `Debug`: they are keys and results (ID-4).
pub(crate) struct Call<'a> {
    sql: Arc<str>,
    has_rows: bool,
    values: Vec<Value<'a>>,
    /// Bound after the values.
    lists: Vec<List<'a>>,
    /// Goes before the text with literals, in the same transaction.
    ahead: &'static str,
}

/// What a statement answered.
#[derive(Default)]
pub(crate) struct Reply {
    pub(crate) row: Option<PgRow>,
    pub(crate) changed: u64,
}

impl<'a> Call<'a> {
    pub(crate) fn new(sql: Arc<str>, has_rows: bool, values: Vec<Value<'a>>) -> Self {
        Self { sql, has_rows, values, lists: Vec::new(), ahead: "" }
    }

    /// A statement on many records; it answers with a row.
    pub(crate) fn on_many(sql: Arc<str>, lists: Vec<List<'a>>) -> Self {
        Self { sql, has_rows: true, values: Vec::new(), lists, ahead: "" }
    }

    /// The same with settings for its own transaction, where the connection has none of ours.
    pub(crate) fn ahead(mut self, settings: &'static str) -> Self {
        self.ahead = settings;
        self
    }

    /// The text, with places `$1` and so on: what another driver would run, in a caller's
    /// transaction (CMP-7).
    #[cfg(test)]
    pub(crate) fn sql(&self) -> &str {
        &self.sql
    }

    /// The same, for the transaction of a caller (CMP-7).
    pub(crate) fn into_values(self) -> Vec<Value<'a>> {
        self.values
    }

    /// How many places are bound.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.values.len() + self.lists.len()
    }

    /// Runs it: prepared and kept so by the connection, or as one text with literals. One round
    /// trip each, but for the first use of a prepared statement on its connection.
    pub(crate) async fn run(
        &self,
        conn: &mut PgConnection,
        prepared: bool,
    ) -> Result<Reply, sqlx_core::Error> {
        let mut reply = Reply::default();
        if prepared {
            let query = query_with(AssertSqlSafe(Arc::clone(&self.sql)), self.arguments()?);
            match self.has_rows {
                true => reply.row = conn.fetch_optional(query).await?,
                false => reply.changed = conn.execute(query).await?.rows_affected(),
            }
        } else {
            let text = raw_sql(AssertSqlSafe(self.literally()));
            match self.has_rows {
                true => reply.row = conn.fetch_optional(text).await?,
                false => reply.changed = conn.execute(text).await?.rows_affected(),
            }
        }
        Ok(reply)
    }

    fn arguments(&self) -> Result<PgArguments, sqlx_core::Error> {
        let mut arguments = PgArguments::default();
        // Each value comes after its length.
        arguments
            .reserve(self.values.len(), self.values.iter().map(|value| 4 + value.size()).sum());
        for value in &self.values {
            match *value {
                Value::Bytes(bytes) => arguments.add(bytes),
                Value::Int(int) => arguments.add(int),
            }
            .map_err(sqlx_core::Error::Encode)?;
        }
        for list in &self.lists {
            match list {
                List::Bytes(list) => arguments.add(list),
                List::Int(list) => arguments.add(list),
            }
            .map_err(sqlx_core::Error::Encode)?;
        }
        Ok(arguments)
    }

    /// The text with its values written in: digits and hex digits only, so that nothing in them can
    /// end a literal, whatever the settings of the connection.
    fn literally(&self) -> String {
        let hex: usize = self.values.iter().map(Value::len).sum();
        let mut text = String::with_capacity(self.sql.len() + hex);
        text.push_str(self.ahead);
        let mut parts = self.sql.split('$');
        text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            // Numbers have one digit: there are at most 9 values.
            let (at, rest) = part.split_at(1);
            let at = at.parse::<usize>().unwrap_or_default().wrapping_sub(1);
            if let Some(value) = self.values.get(at) {
                value.write(&mut text);
            } else if let Some(list) = self.lists.get(at.wrapping_sub(self.values.len())) {
                list.write(&mut text);
            }
            text.push_str(rest);
        }
        text
    }
}

impl Value<'_> {
    fn size(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.map_or(0, <[u8]>::len),
            Self::Int(_) => 8,
        }
    }

    /// About how long it is as a literal.
    fn len(&self) -> usize {
        match self {
            Self::Bytes(_) => 24 + 2 * self.size(),
            Self::Int(_) => 20,
        }
    }

    fn write(&self, text: &mut String) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        match *self {
            Self::Bytes(None) => text.push_str("NULL::bytea"),
            Self::Bytes(Some(bytes)) => {
                text.push_str("decode('");
                for byte in bytes {
                    text.push(char::from(HEX[usize::from(byte >> 4)]));
                    text.push(char::from(HEX[usize::from(byte & 15)]));
                }
                text.push_str("','hex')");
            }
            // Into a `String`, which takes everything.
            Self::Int(int) => drop(write!(text, "({int})")),
        }
    }
}

impl List<'_> {
    fn write(&self, text: &mut String) {
        let (values, kind): (Vec<Value<'_>>, _) = match self {
            Self::Bytes(list) => {
                (list.iter().map(|bytes| Value::Bytes(*bytes)).collect(), "]::bytea[]")
            }
            Self::Int(list) => (list.iter().map(|int| Value::Int(*int)).collect(), "]::bigint[]"),
        };
        for (at, value) in values.iter().enumerate() {
            text.push_str(if at == 0 { "ARRAY[" } else { "," });
            value.write(text);
        }
        text.push_str(kind);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use retryproof_core::store::Completion;
    use retryproof_core::{Identity, OwnerId};

    use crate::execute::batch::Waiting;
    use crate::statement::Statement;

    #[test]
    fn sto_3_literals_are_hex_and_digits_only() {
        let sql = crate::statement::Sql::new("t");
        let id = Identity::of("a'; DROP TABLE t; --", "\\'$1$$ {} é").unwrap();
        let owner = OwnerId::new();
        let done = Completion::new(b"'$3\\".to_vec().into(), Duration::from_secs(1), None);
        let text = sql.complete(Statement::Complete, &id, &owner, &done).literally();
        assert!(
            text.contains("decode('2724335c','hex')") && text.contains("fp=NULL::bytea"),
            "{text}"
        );
        is_plain(&text);
        // Many at once: lists of the same literals.
        let many = [Waiting::of(&id, owner, &done), Waiting::of(&id, owner, &done)];
        let text = sql.complete_many(&many).literally();
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
