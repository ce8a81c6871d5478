// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Partitions`]: a record table that is divided by the hash of the key (STO-3). The store's
//! statements and functions are the same for both forms of the table.

use retryproof_core::config::{PARTITION_BOUNDS, SqlDialect};
use retryproof_core::{Error, ErrorKind, Result};
use retryproof_store_kit::table_name;
use sqlx_core::row::Row as _;
use sqlx_postgres::PgConnection;

use super::{migration_error, plain, plain_schema_sql, schema_sql};
use crate::config::{DEFAULT_TABLE, PostgresConfig};
use crate::connection::fetch_row;

/// The end of the columns in the statement that creates the record table. The table's options
/// follow, up to the semicolon.
const END_OF_COLUMNS: &str = "PRIMARY KEY (key, scope)\n)";

impl PostgresConfig {
    /// Sets into how many hash partitions, from 2 to 128, [`migrate`](Self::migrate) divides a new
    /// record table. By default, the table has no partitions. The setting has no effect on
    /// [`connect`](crate::PostgresStore::connect).
    ///
    /// PostgreSQL cannot change the number of partitions of a table that exists. `migrate`
    /// therefore fails if the table has no partitions or another number of them, and changes
    /// nothing. Without this setting, `migrate` accepts both forms. The section *Tables at size*
    /// in the documentation of this crate says when partitions help.
    ///
    /// ```
    /// use retryproof_postgres::PostgresConfig;
    ///
    /// # fn main() -> retryproof_core::Result<()> {
    /// let url = "postgres://app@db.internal/shop";
    /// let config = PostgresConfig::from_url(url)?.with_partitions(16);
    /// // The same as:
    /// let config = PostgresConfig::from_url("postgres://app@db.internal/shop?partitions=16")?;
    /// # let _ = config;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_partitions(mut self, partitions: usize) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// Returns the configured partitions, if their number is within the bounds.
    pub(super) fn checked_partitions(&self) -> Result<Option<Partitions>> {
        self.partitions.map(Partitions::new).transpose()
    }
}

/// Returns the schema as plain SQL, as [`schema_sql`] or [`plain_schema_sql`] does, with a record
/// table that is divided into hash partitions. The SQL does not check whether a table that exists
/// has these partitions.
///
/// # Errors
/// [`ErrorKind::Config`] if the name does not match `[A-Za-z_][A-Za-z0-9_]{0,47}`, or if the number
/// of partitions is not from 2 to 128.
pub fn partitioned_schema_sql(
    table: &str,
    dialect: SqlDialect,
    partitions: usize,
) -> Result<String> {
    let partitions = Partitions::new(partitions)?;
    let sql = match dialect {
        SqlDialect::Postgres => schema_sql(DEFAULT_TABLE)?,
        SqlDialect::Plain => plain_schema_sql(DEFAULT_TABLE)?,
    };
    Ok(partitions.divide(&sql).replace(DEFAULT_TABLE, table_name(table)?))
}

/// A number of hash partitions within the bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Partitions(usize);

impl Partitions {
    fn new(partitions: usize) -> Result<Self> {
        if PARTITION_BOUNDS.contains(&partitions) {
            return Ok(Self(partitions));
        }
        let message = "the number of `partitions` of a record table must be from 2 to 128";
        Err(Error::new(ErrorKind::Config, message).with("partitions", partitions))
    }

    /// Returns the script with a record table that is divided. Each partition gets the options of
    /// the table, because PostgreSQL refuses them for the table itself. No empty line is between
    /// the statements, so the plain dialect sends them as one.
    pub(super) fn divide(self, script: &str) -> String {
        let divided = script.split_once(END_OF_COLUMNS).and_then(|(columns, rest)| {
            let (options, rest) = rest.split_once(';')?;
            let partitions: String = (0..self.0)
                .map(|part| {
                    format!(
                        ";\nCREATE TABLE IF NOT EXISTS \"{DEFAULT_TABLE}_p{part}\" PARTITION OF \
                         \"{DEFAULT_TABLE}\"\n    FOR VALUES WITH (MODULUS {}, REMAINDER \
                         {part}){options}",
                        self.0
                    )
                })
                .collect();
            Some(format!("{columns}{END_OF_COLUMNS} PARTITION BY HASH (key){partitions};{rest}"))
        });
        divided.unwrap_or_else(|| script.to_owned())
    }

    /// Fails if the record table exists in another form.
    pub(super) async fn check_before(
        self,
        conn: &mut PgConnection,
        table: &str,
        dialect: SqlDialect,
    ) -> Result<()> {
        match found(conn, table, dialect).await? {
            Some(found) => self.check(table, found),
            None => Ok(()),
        }
    }

    /// Fails if a partition is missing, for example because another table has its name.
    pub(super) async fn check_after(
        self,
        conn: &mut PgConnection,
        table: &str,
        dialect: SqlDialect,
    ) -> Result<()> {
        let found = found(conn, table, dialect).await?;
        self.check(table, found.unwrap_or(0))
    }

    fn check(self, table: &str, found: i64) -> Result<()> {
        if usize::try_from(found) == Ok(self.0) {
            return Ok(());
        }
        let what = match found {
            0 => "the record table exists and has no hash partitions",
            _ => "the record table has another number of hash partitions",
        };
        let message = format!(
            "{what}, and PostgreSQL cannot change that; leave out `partitions` to keep the table \
             as it is, or move its records to a new table (see the section *Tables at size* in the \
             documentation of `retryproof-postgres`)"
        );
        Err(Error::new(ErrorKind::Config, message)
            .with("table", table)
            .with("partitions", self.0)
            .with("found", found))
    }
}

/// Returns the number of hash partitions of the record table: `None` if there is no table, and 0 if
/// the table has no hash partitions. Hash partitions are a feature of PostgreSQL, so its catalogue
/// is read in both dialects, but the plain dialect calls no function.
async fn found(conn: &mut PgConnection, table: &str, dialect: SqlDialect) -> Result<Option<i64>> {
    let oid = match dialect {
        SqlDialect::Postgres => format!("to_regclass('\"{table}\"')"),
        SqlDialect::Plain if plain::exists(conn, table).await.map_err(migration_error)? => {
            format!("'\"{table}\"'::regclass")
        }
        SqlDialect::Plain => return Ok(None),
    };
    let count = format!(
        "SELECT (SELECT count(*) FROM pg_inherits AS i JOIN pg_partitioned_table AS p ON \
         p.partrelid=i.inhparent WHERE i.inhparent=c.oid AND p.partstrat='h') FROM pg_class AS c \
         WHERE c.oid={oid}"
    );
    let row = fetch_row(conn, count).await.map_err(migration_error)?;
    row.map(|row| row.try_get(0).map_err(migration_error)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_3_a_divided_table_has_its_options_on_each_partition() {
        let sql = partitioned_schema_sql("pay", SqlDialect::Postgres, 3).expect("within bounds");
        let whole = schema_sql("pay").expect("a valid name");
        let options = " WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)";
        assert_eq!(whole.matches(options).count(), 1);
        for part in 0..3 {
            let partition = format!(
                "CREATE TABLE IF NOT EXISTS \"pay_p{part}\" PARTITION OF \"pay\"\n    FOR VALUES \
                 WITH (MODULUS 3, REMAINDER {part}){options};\n"
            );
            assert_eq!(sql.matches(&partition).count(), 1, "{sql}");
        }
        assert_eq!(sql.matches(options).count(), 3, "the table itself has no options: {sql}");
        assert_eq!(sql.matches(") PARTITION BY HASH (key);\n").count(), 1, "{sql}");
        assert!(!sql.contains(DEFAULT_TABLE), "{sql}");
        // Everything after the tables is the same.
        let after = |sql: &str| sql.split("DO $tables_1$").nth(1).map(str::to_owned);
        assert_eq!(after(&sql), after(&whole));

        let plain = partitioned_schema_sql("pay", SqlDialect::Plain, 2).expect("within bounds");
        assert_eq!(plain.matches("PARTITION OF").count(), 2, "{plain}");
        assert!(!plain.contains("fillfactor") && !plain.contains("FUNCTION"), "{plain}");
    }

    #[test]
    fn sto_3_cfg_1_a_number_of_partitions_has_bounds() {
        for partitions in [0, 1, 129, usize::MAX] {
            let of = |dialect| partitioned_schema_sql("pay", dialect, partitions);
            for refused in [of(SqlDialect::Postgres), of(SqlDialect::Plain)] {
                let error = refused.expect_err("out of bounds");
                assert_eq!(error.kind(), ErrorKind::Config);
                let text = error.to_string();
                assert!(text.contains("from 2 to 128"), "{text}");
                assert!(text.contains(&partitions.to_string()), "{text}");
            }
        }
        for partitions in [2, 128] {
            partitioned_schema_sql("pay", SqlDialect::Postgres, partitions).expect("within bounds");
        }
        let name = partitioned_schema_sql("p;", SqlDialect::Plain, 2).expect_err("no name");
        assert_eq!(name.kind(), ErrorKind::Config);
    }
}
