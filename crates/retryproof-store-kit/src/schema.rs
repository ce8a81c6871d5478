// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Schema`]: a store's migrations, and which version of its tables it accepts (STO-3).

use retryproof_core::config::is_store_name;
use retryproof_core::{Error, ErrorKind, Result};

/// The schema of an SQL store. Its version is the number of its migrations; a row in the database
/// holds the number of applied migrations.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// The shipped migrations, oldest first. The index of each migration is the version from which
    /// it upgrades.
    pub migrations: &'static [&'static str],
    /// The function of the store's crate that applies the migrations, as messages name it:
    /// `SomeConfig::migrate()`.
    pub migrate: &'static str,
}

impl Schema {
    /// The version that the store reads and writes.
    #[must_use]
    pub fn version(&self) -> i64 {
        i64::try_from(self.migrations.len()).unwrap_or(i64::MAX)
    }

    /// The migrations that a database at version `found` lacks. `found` is `None` if there is no
    /// version row.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the tables have a newer version.
    pub fn pending(&self, found: Option<i64>) -> Result<&'static [&'static str]> {
        let found = found.unwrap_or(0);
        if found > self.version() {
            return Err(self.newer(found));
        }
        let applied = usize::try_from(found).unwrap_or(0);
        Ok(self.migrations.get(applied..).unwrap_or_default())
    }

    /// Fails for tables that the store cannot work with. `found` is the number in the version row,
    /// or `None` if there is no row.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the tables are missing or have another version.
    pub fn check(&self, found: Option<i64>, table: &str) -> Result<()> {
        match found {
            None => Err(self.missing(table)),
            Some(found) if found > self.version() => Err(self.newer(found)),
            Some(found) if found < self.version() => Err(self.older(found)),
            Some(_) => Ok(()),
        }
    }

    /// The error for missing tables or other missing parts of the schema.
    #[must_use]
    #[cold]
    pub fn missing(&self, table: &str) -> Error {
        let message = format!(
            "the store's tables, or parts of them, are missing in the database; call \
             `retryproof::migrate(url)` once (`{}` if only this crate is used), or apply the \
             shipped SQL",
            self.migrate
        );
        Error::new(ErrorKind::Schema, message).with("table", table)
    }

    fn older(&self, found: i64) -> Error {
        let message = format!(
            "the store's schema has an older version; call `retryproof::migrate(url)` (`{}` if \
             only this crate is used), or apply the shipped SQL",
            self.migrate
        );
        self.of_version(found, message)
    }

    fn newer(&self, found: i64) -> Error {
        let message = "a newer retryproof created the store's schema; run that version, or name \
                       another table and call `retryproof::migrate(url)`";
        self.of_version(found, message.to_owned())
    }

    fn of_version(&self, found: i64, message: String) -> Error {
        Error::new(ErrorKind::Schema, message).with("found", found).with("expected", self.version())
    }
}

/// Returns `name` if it is a valid table name, the only dynamic part of a store's SQL (STO-3).
///
/// # Errors
/// [`ErrorKind::Config`] if it does not match `[A-Za-z_][A-Za-z0-9_]{0,47}`.
pub fn table_name(name: &str) -> Result<&str> {
    if is_store_name(name) {
        return Ok(name);
    }
    let message = "the table name must match [A-Za-z_][A-Za-z0-9_]{0,47}";
    Err(Error::new(ErrorKind::Config, message).with("table", format_args!("{name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: Schema = Schema { migrations: &["one", "two"], migrate: "A::migrate()" };

    #[test]
    fn sto_3_a_schema_of_another_version_is_refused() {
        assert_eq!(SCHEMA.pending(None).unwrap(), ["one", "two"]);
        assert_eq!(SCHEMA.pending(Some(1)).unwrap(), ["two"]);
        assert!(SCHEMA.pending(Some(2)).unwrap().is_empty());
        assert!(SCHEMA.check(Some(2), "t").is_ok());
        for (found, text) in [(None, "missing"), (Some(1), "older"), (Some(3), "newer")] {
            let error = SCHEMA.check(found, "t").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Schema);
            assert!(error.to_string().contains(text), "{error}");
        }
        assert_eq!(SCHEMA.pending(Some(3)).unwrap_err().kind(), ErrorKind::Schema);
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
