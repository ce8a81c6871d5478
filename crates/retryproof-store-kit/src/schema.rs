// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Schema`]: a store's migrations, and the table versions that a program can use (STO-3, REC-1,
//! ID-5).
//!
//! This file is over 400 lines long because it contains the message and the test for each reason to
//! refuse tables.

use retryproof_core::config::is_store_name;
use retryproof_core::store::StoreFinding;
use retryproof_core::{Error, ErrorKind, IdentitySecret, Result};

use crate::diagnose::unusable_schema;

/// The schema of an SQL store. Its version is the number of its migrations.
///
/// During a rolling deployment and after a roll-back, the programs of a fleet and their tables can
/// have different versions. A program starts if the tables allow its version, and if it can use the
/// version of the tables (REC-1).
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// The shipped migrations, oldest first. A migration's index is the version that it upgrades
    /// from. Each script writes both numbers of [`TableVersions`] and lowers neither, so running an
    /// old script again is harmless.
    pub migrations: &'static [&'static str],
    /// The oldest version of the tables that the store can use.
    pub reads_from: i64,
    /// The script that creates the audit table. The table belongs to no version: programs that do
    /// not audit work without it (OPS-10).
    pub audit: &'static str,
    /// The function that applies the migrations, as messages name it: `SomeConfig::migrate()`.
    pub migrate: &'static str,
}

/// The versions stored in the tables of an SQL store, and whether the record table exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableVersions {
    /// The version of the tables: the number of migrations that were applied.
    pub schema: i64,
    /// The version of the oldest program that may use the tables. A migration raises this number if
    /// it removes something that older programs use.
    pub compatible_from: i64,
    /// Whether the record table exists. The table can be dropped, or lost in a restore, while the
    /// versions remain.
    pub has_records: bool,
}

impl TableVersions {
    /// Combines the rows `schema` and `compatible_from` of the meta table. Returns `None` if there
    /// is no `schema` row. Without a `compatible_from` row, only programs with the tables' version
    /// or a newer version may use the tables.
    #[must_use]
    pub fn from_rows(
        schema: Option<i64>,
        compatible_from: Option<i64>,
        has_records: bool,
    ) -> Option<Self> {
        let schema = schema?;
        let compatible_from = compatible_from.unwrap_or(schema);
        Some(Self { schema, compatible_from, has_records })
    }
}

/// The rows of a meta table that decide whether a program can use the tables. A missing table has
/// none of these rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetaRows {
    /// The versions of the tables; `None` if there is no `schema` row.
    pub versions: Option<TableVersions>,
    /// The [mark](IdentitySecret::mark) in the `identity` row (ID-5).
    pub mark: Option<i64>,
}

impl MetaRows {
    /// Fails if the tables were set up with an identity secret other than the program's (ID-5).
    /// Tables without a `schema` row and without an `identity` row are not set up yet, and the
    /// check succeeds.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], as in [`IdentitySecret::check`].
    pub fn check_secret(&self, secret: Option<&IdentitySecret>) -> Result<()> {
        if self.versions.is_none() && self.mark.is_none() {
            return Ok(());
        }
        IdentitySecret::check(secret, self.mark)
    }
}

impl Schema {
    /// Returns the version of the tables that the migrations create.
    #[must_use]
    pub fn version(&self) -> i64 {
        i64::try_from(self.migrations.len()).unwrap_or(i64::MAX)
    }

    /// Returns the SQL of all tables, in the order in which it has to run.
    #[must_use]
    pub fn sql(&self) -> String {
        let scripts: Vec<_> = self.migrations.iter().copied().chain([self.audit]).collect();
        scripts.join("\n")
    }

    /// Returns the migrations that the tables lack; none if the tables are newer and allow this
    /// version. `found` is `None` if there is no version row. If the record table is missing, all
    /// migrations are pending.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the tables do not allow this version, or if the record table is
    /// missing and only a newer version can create it.
    pub fn pending(&self, found: Option<TableVersions>) -> Result<&'static [&'static str]> {
        let applied = match found {
            Some(found) if found.compatible_from > self.version() => return Err(self.newer(found)),
            Some(found) if found.has_records => usize::try_from(found.schema).unwrap_or(0),
            Some(found) if found.schema > self.version() => {
                return Err(self.newer_records_missing(found));
            }
            _ => 0,
        };
        Ok(self.migrations.get(applied..).unwrap_or_default())
    }

    /// Fails for tables that the store cannot use. `found` is `None` if there is no version row.
    /// Call this method only once for each connected store: it logs a warning if a migration is
    /// pending.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the tables are missing, are too old for this version, or need a
    /// newer version.
    pub fn check(&self, found: Option<TableVersions>, table: &str) -> Result<()> {
        let (found, version) = (self.usable(found, table)?, self.version());
        if found.schema < version {
            tracing::warn!(
                table,
                found = found.schema,
                expected = version,
                "the store's tables are older than this version of retryproof, so some features \
                 are off; call `retryproof::migrate(url)`"
            );
        } else if found.schema > version {
            tracing::debug!(
                table,
                found = found.schema,
                expected = version,
                "the store's tables are newer than this version of retryproof, but compatible with \
                 it"
            );
        }
        Ok(())
    }

    /// Describes what is wrong with the tables; `None` if nothing is wrong (OPS-5).
    #[must_use]
    pub fn finding(&self, found: Option<TableVersions>, table: &str) -> Option<StoreFinding> {
        match self.usable(found, table) {
            Err(unusable) => Some(unusable_schema(&unusable)),
            Ok(found) if found.schema < self.version() => Some(StoreFinding::warning(
                "schema",
                format!(
                    "The tables have version {}, and this program knows version {}, so some \
                     features are off.",
                    found.schema,
                    self.version()
                ),
                "Run `retryproof migrate`, if possible before you start programs of the new \
                 version.",
            )),
            Ok(_) => None,
        }
    }

    /// Returns the versions of the tables, or the reason why the store cannot use the tables.
    fn usable(&self, found: Option<TableVersions>, table: &str) -> Result<TableVersions> {
        let Some(found) = found else { return Err(self.missing(table)) };
        let version = self.version();
        if found.compatible_from > version {
            return Err(self.newer(found));
        }
        if !found.has_records {
            let is_newer = found.schema > version;
            return Err(if is_newer {
                self.newer_records_missing(found)
            } else {
                self.missing(table)
            });
        }
        if found.schema < self.reads_from {
            return Err(self.older(found));
        }
        Ok(found)
    }

    /// Returns the error for missing tables, or for other missing parts of the schema.
    #[must_use]
    #[cold]
    pub fn missing(&self, table: &str) -> Error {
        let message = format!(
            "the store's tables, or parts of them, are missing from the database; call \
             `retryproof::migrate(url)` once (`{}` if only this crate is used), or apply the \
             shipped SQL",
            self.migrate
        );
        Error::new(ErrorKind::Schema, message).with("table", table)
    }

    fn older(&self, found: TableVersions) -> Error {
        let message = format!(
            "the store's tables are too old for this version of retryproof; upgrade the tables: \
             call `retryproof::migrate(url)` (`{}` if only this crate is used), or apply the \
             shipped SQL",
            self.migrate
        );
        self.incompatible(found, message)
    }

    fn newer(&self, found: TableVersions) -> Error {
        // The message does not suggest a different table name, because a new table has no records,
        // so every retry would run its work again.
        let message = "the store's tables need a newer version of retryproof; upgrade this program";
        self.incompatible(found, message.to_owned())
    }

    /// Returns the error for a missing record table that only a newer version can create, because
    /// the recorded version is newer than this program's.
    fn newer_records_missing(&self, found: TableVersions) -> Error {
        let message = "the store's record table is missing, and the version recorded for it is \
                       newer than this program's; restore the table from a backup, or create it by \
                       calling `retryproof::migrate(url)` in the newer version of retryproof";
        self.incompatible(found, message.to_owned())
    }

    fn incompatible(&self, found: TableVersions, message: String) -> Error {
        Error::new(ErrorKind::Schema, message)
            .with("found", found.schema)
            .with("compatible_from", found.compatible_from)
            .with("expected", self.version())
    }
}

/// Returns `name` if it is a valid table name. The table name is the only dynamic part of a store's
/// SQL (STO-3).
///
/// # Errors
/// [`ErrorKind::Config`] if `name` does not match `[A-Za-z_][A-Za-z0-9_]{0,47}`.
pub fn table_name(name: &str) -> Result<&str> {
    if is_store_name(name) {
        return Ok(name);
    }
    let message = "the table name must match [A-Za-z_][A-Za-z0-9_]{0,47}";
    Err(Error::new(ErrorKind::Config, message).with("table", format_args!("{name:?}")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    const fn program(migrations: &'static [&'static str], reads_from: i64) -> Schema {
        Schema { migrations, reads_from, audit: "audit", migrate: "A::migrate()" }
    }

    /// Three releases: the second adds to the tables, the third removes from them.
    const FIRST: Schema = program(&["create"], 1);
    const ADDING: Schema = program(&["create", "add"], 1);
    const REMOVING: Schema = program(&["create", "add", "remove"], 2);

    /// The versions of the tables after the migration of each release.
    const CREATED: TableVersions = tables(1, 1);
    const ADDED_TO: TableVersions = tables(2, 1);
    const CONTRACTED: TableVersions = tables(3, 2);

    const fn tables(schema: i64, compatible_from: i64) -> TableVersions {
        TableVersions { schema, compatible_from, has_records: true }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Log {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    /// Returns the result of a check, and the lines that the check logs at `INFO` and above.
    fn check(program: &Schema, found: Option<TableVersions>) -> (Result<()>, String) {
        let log = Log::default();
        let subscriber =
            tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
        let checked =
            tracing::subscriber::with_default(subscriber, || program.check(found, "records"));
        let lines = String::from_utf8(log.0.lock().clone()).unwrap();
        (checked, lines)
    }

    fn starts_silently(program: &Schema, found: TableVersions) {
        let (checked, log) = check(program, Some(found));
        assert!(checked.is_ok() && log.is_empty(), "{checked:?} {log}");
    }

    fn starts_with_a_warning(program: &Schema, found: TableVersions) {
        let (checked, log) = check(program, Some(found));
        checked.unwrap();
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains("WARN") && log.contains("call `retryproof::migrate(url)`"), "{log}");
    }

    fn refused(program: &Schema, found: Option<TableVersions>) -> String {
        let (checked, log) = check(program, found);
        let error = checked.unwrap_err();
        assert_eq!((error.kind(), log.as_str()), (ErrorKind::Schema, ""), "{error}");
        error.to_string()
    }

    #[test]
    fn rec_1_a_program_starts_on_older_and_newer_tables_that_are_compatible() {
        starts_silently(&FIRST, CREATED);
        starts_silently(&FIRST, ADDED_TO);
        starts_with_a_warning(&ADDING, CREATED);
        starts_silently(&ADDING, ADDED_TO);
        starts_silently(&ADDING, CONTRACTED);
        starts_with_a_warning(&REMOVING, ADDED_TO);
        starts_silently(&REMOVING, CONTRACTED);
    }

    #[test]
    fn rec_1_a_refusal_says_which_side_to_upgrade() {
        let text = refused(&FIRST, Some(CONTRACTED));
        assert!(text.contains("upgrade this program"), "{text}");
        for field in ["found = 3", "compatible_from = 2", "expected = 1"] {
            assert!(text.contains(field), "{text}");
        }
        let text = refused(&REMOVING, Some(CREATED));
        assert!(text.contains("upgrade the tables") && text.contains("migrate(url)"), "{text}");
        for field in ["found = 1", "compatible_from = 1", "expected = 3"] {
            assert!(text.contains(field), "{text}");
        }
    }

    #[test]
    fn sto_3_missing_tables_are_refused() {
        let text = refused(&FIRST, None);
        assert!(text.contains("missing") && text.contains("records"), "{text}");
    }

    #[test]
    fn rec_1_migrate_adds_what_is_missing_and_leaves_newer_tables_alone() {
        const NONE: [&str; 0] = [];
        assert_eq!(FIRST.pending(None).unwrap(), ["create"]);
        assert_eq!(ADDING.sql(), "create\nadd\naudit");
        assert_eq!(FIRST.pending(Some(CREATED)).unwrap(), NONE);
        assert_eq!(ADDING.pending(None).unwrap(), ["create", "add"]);
        assert_eq!(ADDING.pending(Some(CREATED)).unwrap(), ["add"]);
        assert_eq!(ADDING.pending(Some(ADDED_TO)).unwrap(), NONE);
        assert_eq!(REMOVING.pending(Some(CREATED)).unwrap(), ["add", "remove"]);
        assert_eq!(REMOVING.pending(Some(CONTRACTED)).unwrap(), NONE);
        // After a program is rolled back, the old release finds newer tables. It runs no migration,
        // and it starts unless the tables exclude it.
        assert_eq!(FIRST.pending(Some(ADDED_TO)).unwrap(), NONE);
        assert_eq!(ADDING.pending(Some(CONTRACTED)).unwrap(), NONE);
        let error = FIRST.pending(Some(CONTRACTED)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains("upgrade this program"), "{error}");
    }

    #[test]
    fn rec_1_tables_without_a_lower_bound_accept_no_older_program() {
        let found = TableVersions::from_rows(Some(2), None, true);
        assert_eq!(found, Some(tables(2, 2)));
        assert!(refused(&FIRST, found).contains("upgrade this program"));
        starts_silently(&ADDING, found.unwrap());
        assert_eq!(TableVersions::from_rows(Some(2), Some(1), true), Some(ADDED_TO));
        assert_eq!(TableVersions::from_rows(None, Some(1), true), None);
    }

    /// A program does not create a missing record table if the recorded version is newer than the
    /// program's.
    #[test]
    fn rec_1_missing_records_are_created_by_no_older_version() {
        let lost = |found| TableVersions { has_records: false, ..found };
        for (program, found) in [(&FIRST, CREATED), (&ADDING, CREATED), (&ADDING, ADDED_TO)] {
            assert!(
                refused(program, Some(lost(found))).contains("call `retryproof::migrate(url)`")
            );
            assert_eq!(program.pending(Some(lost(found))).unwrap(), program.migrations);
        }
        for (program, found) in [(&FIRST, ADDED_TO), (&ADDING, CONTRACTED)] {
            let text = refused(program, Some(lost(found)));
            assert!(text.contains("record table is missing") && text.contains("backup"), "{text}");
            let error = program.pending(Some(lost(found))).unwrap_err();
            assert_eq!((error.kind(), error.to_string()), (ErrorKind::Schema, text));
        }
        assert!(refused(&FIRST, Some(lost(CONTRACTED))).contains("upgrade this program"));
        assert_eq!(TableVersions::from_rows(Some(2), Some(1), false), Some(lost(ADDED_TO)));
    }

    /// Version numbers that no migration writes cause an error: the store neither panics nor opens.
    #[test]
    fn rec_1_damaged_versions_are_refused() {
        for found in [tables(0, 0), tables(-1, -1), tables(i64::MIN, i64::MIN)] {
            assert!(refused(&FIRST, Some(found)).contains("upgrade the tables"));
            assert_eq!(FIRST.pending(Some(found)).unwrap(), ["create"]);
        }
        for found in [tables(1, 2), tables(i64::MAX, i64::MAX)] {
            assert!(refused(&FIRST, Some(found)).contains("upgrade this program"));
            assert!(FIRST.pending(Some(found)).is_err());
        }
    }

    #[test]
    fn sto_3_table_names_are_validated() {
        for good in ["r", "_", "Records_2", &"r".repeat(48)] {
            assert!(table_name(good).is_ok(), "{good}");
        }
        for bad in ["", "1r", "r-s", "r s", "r;", "r\"", "r`", "é", "a.b", &"r".repeat(49)] {
            assert_eq!(table_name(bad).unwrap_err().kind(), ErrorKind::Config, "{bad}");
        }
    }
}
