// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Schema`]: a store's migrations, and which tables its program can use (STO-3, REC-1).

use retryproof_core::config::is_store_name;
use retryproof_core::{Error, ErrorKind, Result};

/// The schema of an SQL store. Its version is the number of its migrations.
///
/// During a rolling deployment and after a roll-back, the programs of a fleet and their tables have
/// different versions. A program starts if the tables allow its version, and if it can use the
/// version of the tables (REC-1).
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// The shipped migrations, oldest first. The index of each migration is the version that it
    /// upgrades from. Each script writes both numbers of [`TableVersions`] and lowers neither, so
    /// that running an old script again is harmless.
    pub migrations: &'static [&'static str],
    /// The oldest version of the tables that the store can use.
    pub reads_from: i64,
    /// How messages name the function of the store's crate that applies the migrations:
    /// `SomeConfig::migrate()`.
    pub migrate: &'static str,
}

/// The versions that are recorded in the tables of an SQL store, and whether the records are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableVersions {
    /// The version of the tables: how many migrations were applied.
    pub schema: i64,
    /// The version of the oldest program that may use the tables. A migration raises this number if
    /// it removes something that older programs use.
    pub compatible_from: i64,
    /// Whether the table of the records exists. It may have been dropped, or lost in a restore,
    /// while the versions were kept.
    pub has_records: bool,
}

impl TableVersions {
    /// Combines the rows `schema` and `compatible_from` of the meta table. Returns `None` if there
    /// is no `schema` row. Without a `compatible_from` row, only programs of the tables' version or
    /// newer may use the tables.
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

impl Schema {
    /// The version of the tables that the migrations create.
    #[must_use]
    pub fn version(&self) -> i64 {
        i64::try_from(self.migrations.len()).unwrap_or(i64::MAX)
    }

    /// The migrations that the tables lack; none if the tables are newer and allow this version.
    /// `found` is `None` if there is no version row. If the records are missing, all migrations are
    /// pending.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the tables do not allow this version, or if the records are missing
    /// and only a newer version can create their table.
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
    /// Call this only once for each connected store, because it logs a warning if a migration is
    /// pending.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the tables are missing, too old for this version, or need a newer
    /// one.
    pub fn check(&self, found: Option<TableVersions>, table: &str) -> Result<()> {
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

    /// The error if tables, or other parts of the schema, are missing.
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
        // The message does not suggest another table, because without the records every retry would
        // run again.
        let message = "the store's tables need a newer version of retryproof; upgrade this program";
        self.incompatible(found, message.to_owned())
    }

    /// Returns the error if this version would create the table of the records in an older form
    /// than the recorded versions require.
    fn newer_records_missing(&self, found: TableVersions) -> Error {
        let message = "the store's record table is missing, and the version recorded for it is \
                       newer than this program's; restore the table from a backup, or create it by \
                       calling `retryproof::migrate(url)` of the newer version of retryproof";
        self.incompatible(found, message.to_owned())
    }

    fn incompatible(&self, found: TableVersions, message: String) -> Error {
        Error::new(ErrorKind::Schema, message)
            .with("found", found.schema)
            .with("compatible_from", found.compatible_from)
            .with("expected", self.version())
    }
}

/// Returns `name` if it is a valid table name, the only dynamic part of a store's SQL (STO-3).
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
        Schema { migrations, reads_from, migrate: "A::migrate()" }
    }

    /// Three releases: the second adds to the tables, the third removes from them.
    const FIRST: Schema = program(&["create"], 1);
    const ADDING: Schema = program(&["create", "add"], 1);
    const REMOVING: Schema = program(&["create", "add", "remove"], 2);

    /// The tables that the three releases create.
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

    /// The result of a check, and the lines that it logs at `INFO` and above.
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
        assert_eq!(FIRST.pending(Some(CREATED)).unwrap(), NONE);
        assert_eq!(ADDING.pending(None).unwrap(), ["create", "add"]);
        assert_eq!(ADDING.pending(Some(CREATED)).unwrap(), ["add"]);
        assert_eq!(ADDING.pending(Some(ADDED_TO)).unwrap(), NONE);
        assert_eq!(REMOVING.pending(Some(CREATED)).unwrap(), ["add", "remove"]);
        assert_eq!(REMOVING.pending(Some(CONTRACTED)).unwrap(), NONE);
        // A roll-back whose old release migrates at its start.
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

    /// A program creates a missing record table only in the form that the versions state.
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

    /// Numbers that no migration writes neither panic nor start a program.
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
