// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dialect of the store's SQL (STO-9), and the options that do not fit the plain one.

use retryproof_core::config::SqlDialect;
use retryproof_core::{Error, ErrorKind, Result};

use crate::config::PostgresConfig;

impl PostgresConfig {
    /// Sets which SQL the store sends (STO-9). Default [`SqlDialect::Postgres`].
    ///
    /// [`SqlDialect::Plain`] is for servers that speak PostgreSQL's protocol but lack its functions
    /// and notifications, and for users who may not create functions. `migrate` then creates only
    /// tables and an index, waiters poll, and a statement that conflicts with others is repeated
    /// until [the time limit of the call](Self::with_call_timeout) ends. The plain dialect needs
    /// exactly one host, because the search for the primary uses PostgreSQL's own functions:
    /// `connect`, `migrate` and `diagnose` refuse several.
    ///
    /// ```
    /// use retryproof_postgres::{PostgresConfig, SqlDialect};
    ///
    /// # fn main() -> retryproof_core::Result<()> {
    /// let config = PostgresConfig::from_url("postgres://app@db.internal/shop")?
    ///     .with_dialect(SqlDialect::Plain);
    /// // The same as:
    /// let config = PostgresConfig::from_url("postgres://app@db.internal/shop?dialect=plain")?;
    /// # let _ = config;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_dialect(mut self, dialect: SqlDialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Fails if an option does not fit the dialect.
    pub(crate) fn check_dialect(&self) -> Result<()> {
        if self.dialect == SqlDialect::Plain && self.source.count() > 1 {
            return Err(Error::new(
                ErrorKind::Config,
                "`dialect=plain` does not support several hosts, because the store finds the \
                 primary by functions of PostgreSQL; name one host, or remove `dialect=plain`",
            )
            .with("parameter", "dialect")
            .with("hosts", self.source.count()));
        }
        Ok(())
    }

    /// Returns the error of a check for a pooler. A server with the plain dialect may lack the
    /// function that the check calls.
    pub(crate) fn undetected(&self, error: Error) -> Error {
        if self.dialect == SqlDialect::Postgres || error.kind() == ErrorKind::Unavailable {
            return error;
        }
        Error::new(
            ErrorKind::Config,
            "the store cannot find out whether a pooler is in front of the server; add \
             `pooler=session` to the URL if each connection keeps its session, and otherwise \
             `pooler=transaction`",
        )
        .with("parameter", "pooler")
        .because(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<PostgresConfig> {
        PostgresConfig::from_url(&format!("postgres://u:canary-4711@h{query}"))
    }

    #[test]
    fn sto_9_cfg_1_the_url_names_the_dialect() {
        for (query, dialect) in [
            ("/d", SqlDialect::Postgres),
            ("/d?dialect=postgres", SqlDialect::Postgres),
            ("/d?dialect=plain", SqlDialect::Plain),
            ("/d?pooler=transaction&dialect=plain&table=t", SqlDialect::Plain),
        ] {
            assert_eq!(parsed(query).expect(query).dialect, dialect, "{query}");
        }
        let shown = format!("{:?}", parsed("/d?dialect=plain").expect("valid"));
        assert!(shown.contains("dialect: Plain"), "{shown}");
    }

    #[test]
    fn sto_9_cfg_1_an_unknown_dialect_is_refused_by_name() {
        for query in ["/d?dialect=", "/d?dialect=canary-4711", "/d?dialect=PLAIN", "/d?dialect"] {
            let error = parsed(query).expect_err(query);
            assert_eq!(error.kind(), ErrorKind::Config, "{query}");
            let text = format!("{error} {error:?}");
            assert!(text.contains("`dialect` must be `postgres` or `plain`"), "{text}");
            assert!(text.contains("dialect") && !text.contains("canary"), "{text}");
        }
    }

    #[test]
    fn sto_9_cfg_1_several_hosts_are_refused_by_the_name_of_the_option() {
        let error = parsed(",i/d?dialect=plain").expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("`dialect=plain`"), "{error}");
        let several = parsed(",i/d").expect("valid").with_dialect(SqlDialect::Plain);
        let error = several.table().expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
    }
}
