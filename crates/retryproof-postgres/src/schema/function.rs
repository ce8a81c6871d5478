// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Function`]: a function of the schema, its generation and its revision (REC-1).
//!
//! The name of a function ends with its generation, and the parameters and the meaning of a
//! generation never change. If two versions of a program run on one table, each version therefore
//! calls the function that it was tested with. `migrate` does not change functions of other
//! generations. To correct a generation, raise its revision, which is a constant in the function's
//! body. A program replaces only a lower revision, so two releases that both migrate when they
//! start do not undo each other's correction.

use retryproof_core::Result;
use sqlx_core::row::Row as _;
use sqlx_postgres::PgConnection;

use crate::config::DEFAULT_TABLE;
use crate::connection::fetch_row;

/// A function of the schema.
pub(super) struct Function {
    /// The suffix that follows the table name and ends with the generation. The suffix is also the
    /// tag of the dollar quotes around the body.
    pub(super) suffix: &'static str,
    parameters: &'static str,
    /// The function's `SET` clauses, as the catalogue stores them.
    settings: &'static str,
    script: &'static str,
}

pub(super) const FUNCTIONS: [Function; 2] = [
    Function {
        suffix: "grant_1",
        parameters: "bytea,bytea,bytea,bigint,bigint,bigint,bytea,bytea,boolean,bigint",
        settings: "",
        script: include_str!("../../migrations/R__grant_1.sql"),
    },
    Function {
        suffix: "complete_1",
        parameters: "bytea[],bytea[],bytea[],bigint[],bigint[],bytea[],bytea[]",
        settings: "{enable_seqscan=off}",
        script: include_str!("../../migrations/R__complete_1.sql"),
    },
];

/// A function as it exists in the database.
#[derive(Debug)]
pub(super) struct StoredFunction {
    pub(super) revision: u32,
    settings: String,
}

impl Function {
    /// Returns the name and parameters by which the server finds the function.
    pub(super) fn signature(&self, table: &str) -> String {
        format!("\"{table}_{}\"({})", self.suffix, self.parameters)
    }

    /// Returns the SQL that creates or replaces the function.
    pub(super) fn sql(&self, table: &str) -> String {
        self.script.replace(DEFAULT_TABLE, table)
    }

    /// Returns the revision that this program ships.
    pub(super) fn revision(&self) -> u32 {
        revision(self.body())
    }

    fn body(&self) -> &'static str {
        let quote = format!("${}$", self.suffix);
        self.script.split(quote.as_str()).nth(1).unwrap_or_default()
    }

    /// Reads the function from the database, if it exists.
    pub(super) async fn find(
        &self,
        conn: &mut PgConnection,
        table: &str,
    ) -> Result<Option<StoredFunction>, sqlx_core::Error> {
        let sql = format!(
            "SELECT coalesce(proconfig::text,''),prosrc FROM pg_proc WHERE oid=to_regprocedure('{}')",
            self.signature(table)
        );
        let Some(row) = fetch_row(conn, sql).await? else { return Ok(None) };
        let body: String = row.try_get(1)?;
        Ok(Some(StoredFunction { revision: revision(&body), settings: row.try_get(0)? }))
    }

    /// Whether `migrate` has to create or replace the function. Settings belong to a revision, so
    /// the settings of a higher revision are not compared.
    pub(super) fn is_pending(&self, found: Option<&StoredFunction>) -> bool {
        let own = self.revision();
        found.is_none_or(|found| {
            found.revision < own || (found.revision == own && found.settings != self.settings)
        })
    }
}

/// Returns the revision that a body declares, such as 3 in `revision CONSTANT integer := 3;`. The
/// declaration is code, because some migrators remove comments. A body without a readable number
/// counts as 0, which is lower than every revision that was shipped.
fn revision(body: &str) -> u32 {
    let body = body.to_ascii_lowercase();
    body.split("revision").skip(1).find_map(declared).unwrap_or(0)
}

/// Reads the number from the part of a declaration that follows the name. White space can be
/// anywhere between the words.
fn declared(after_name: &str) -> Option<u32> {
    let mut rest = after_name;
    for word in ["constant", "integer", ":="] {
        rest = rest.trim_start().strip_prefix(word)?;
    }
    let (number, _) = rest.split_once(';')?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::hash::pair_hash;

    /// The shipped functions with a hash of their settings and body. If a body changes, raise its
    /// revision and update this list.
    const SHIPPED: [(&str, u32, u64); 2] =
        [("grant_1", 1, 2_238_454_049_616_952_679), ("complete_1", 1, 4_697_182_148_775_493_865)];

    #[test]
    fn rec_1_a_changed_body_has_a_higher_revision() {
        let shipped = FUNCTIONS.map(|function| {
            let hash = pair_hash(function.settings.as_bytes(), function.body().as_bytes());
            (function.suffix, function.revision(), hash)
        });
        assert_eq!(shipped, SHIPPED);
    }

    #[test]
    fn rec_1_a_body_without_a_readable_revision_is_the_lowest() {
        let readable = [
            "\nDECLARE\n    revision CONSTANT integer := 12;\nBEGIN",
            "DECLARE a int; revision CONSTANT integer:=12; BEGIN",
            "declare\r\n\trevision\tconstant  integer\r\n:= 12 ;\r\nbegin",
            "-- a new revision\nDECLARE REVISION CONSTANT INTEGER := 12; BEGIN",
        ];
        for body in readable {
            assert_eq!(revision(body), 12, "{body}");
        }
        let unreadable = [
            "",
            "BEGIN",
            "-- revision 1",
            "revision",
            "revision CONSTANT integer",
            "revision CONSTANT integer := 1",
            "revision CONSTANT integer := -1;",
            "revision CONSTANT integer := 1.2;",
            "revision CONSTANT integer := 99999999999;",
            "revision integer := 1;",
        ];
        for body in unreadable {
            assert_eq!(revision(body), 0, "{body}");
        }
    }

    #[test]
    fn rec_1_only_a_lower_revision_or_other_settings_of_the_same_one_are_replaced() {
        let [_, complete] = FUNCTIONS;
        let own = complete.revision();
        let stored =
            |revision, settings: &str| StoredFunction { revision, settings: settings.to_owned() };
        assert!(complete.is_pending(None));
        assert!(complete.is_pending(Some(&stored(own - 1, complete.settings))));
        assert!(complete.is_pending(Some(&stored(own, ""))));
        assert!(!complete.is_pending(Some(&stored(own, complete.settings))));
        assert!(!complete.is_pending(Some(&stored(own + 1, ""))));
    }
}
