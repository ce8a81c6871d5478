// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MysqlConfig::diagnose`]: finds problems with the server, the tables and the account that
//! endanger the store (OPS-5).

mod replication;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::clock::wall_clock_micros;
use retryproof_core::store::StoreFinding;
use retryproof_core::{Error, Result};
use retryproof_store_kit::{clock_skew, lacks_privileges, unpurged, unreadable};
use sqlx_core::row::Row as _;
use sqlx_mysql::MySqlRow;
use tokio::time::timeout;

use crate::config::{DEFAULT_TABLE, MysqlConfig};
use crate::connection::{Connection, ResultKind};
use crate::error::{classify, number};
use crate::record::integer;
use crate::schema;

/// How long all checks together may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The server's error numbers for a missing privilege on a table, on a column or on the database.
const DENIED: [u16; 3] = [1142, 1143, 1044];

const CLOCK: &str = "SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";

/// Reads the session's settings, which include the server's.
const SETTINGS: &str = "SHOW VARIABLES WHERE Variable_name IN \
     ('read_only','super_read_only','innodb_read_only','innodb_flush_log_at_trx_commit',\
     'innodb_doublewrite','log_bin','binlog_format','sync_binlog','transaction_isolation',\
     'tx_isolation','wsrep_on','rpl_semi_sync_master_enabled','rpl_semi_sync_source_enabled',\
     'rpl_semi_sync_master_wait_point','rpl_semi_sync_source_wait_point')";

/// Reads whether commits wait for a replica now; a server without the plugin has no such row.
const WAITS: &str = "SHOW GLOBAL STATUS WHERE Variable_name IN \
     ('Rpl_semi_sync_master_status','Rpl_semi_sync_source_status')";

/// One statement for each privilege. No statement changes a row, whatever the table contains. The
/// server checks the privileges first.
const PRIVILEGES: [(&str, &str); 5] = [
    ("SELECT on the table", "SELECT state FROM `retryproof_records` WHERE FALSE"),
    (
        "INSERT on the table",
        "INSERT INTO `retryproof_records` (scope) SELECT '' FROM DUAL WHERE FALSE",
    ),
    ("UPDATE on the table", "UPDATE `retryproof_records` SET takeovers=0 WHERE FALSE"),
    ("DELETE on the table", "DELETE FROM `retryproof_records` WHERE FALSE"),
    ("SELECT on the `_meta` table", "SELECT value FROM `retryproof_records_meta` WHERE FALSE"),
];

/// Finds the record that a purge would delete first, and returns how long ago it expired.
const OLDEST_EXPIRED: &str = "SELECT \
     TIMESTAMPDIFF(MICROSECOND,GREATEST(purge_after,expires_at),UTC_TIMESTAMP(6)) FROM \
     `retryproof_records` WHERE purge_after<=UTC_TIMESTAMP(6) AND (state=2 OR \
     (expires_at<=UTC_TIMESTAMP(6) AND state IN (0,1))) ORDER BY purge_after LIMIT 1";

impl MysqlConfig {
    /// Looks for problems that endanger the store: a wrong role or setting of the server, missing
    /// or old tables, another identity secret, missing privileges, expired records that were not
    /// purged, and a clock that differs from this machine's (OPS-5). Changes nothing.
    ///
    /// # Errors
    /// The errors of [`MysqlStore::connect`](crate::MysqlStore::connect), if the checks cannot run.
    /// A problem that a check detects is a finding, not an error.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn diagnose(&self) -> Result<Vec<StoreFinding>> {
        let late = || {
            Error::unavailable(
                "the server did not answer the checks in time; check whether it is overloaded",
            )
        };
        let found = timeout(TIMEOUT, self.try_diagnose()).await;
        found.unwrap_or_else(|_| Err(late())).map_err(|error| error.during("diagnose"))
    }

    async fn try_diagnose(&self) -> Result<Vec<StoreFinding>> {
        let table = self.table()?;
        let mut connection = Connection::open_first(self).await?;
        let mut findings = Vec::new();
        let settings = settings(&mut connection).await?;
        check_settings(&settings, &mut findings);
        if settings.get("log_bin").is_some_and(|value| is_on(value)) {
            let exemptions = pairs(&mut connection, replication::EXEMPTIONS).await?;
            findings.extend(replication::check_account(&exemptions));
        }
        let sent = wall_clock_micros();
        let clock = rows(&mut connection, CLOCK, table).await?;
        let clock = clock.first().map_or(Ok(0), |row| integer(row, 0, "clock"))?;
        findings.extend(clock_skew(sent, clock.unsigned_abs(), wall_clock_micros()));
        let missing = missing_privileges(&mut connection, table).await?;
        findings.extend(lacks_privileges(
            &missing,
            "GRANT SELECT, INSERT, UPDATE and DELETE on both tables to the account of the URL.",
        ));
        if !missing.iter().any(|privilege| privilege.starts_with("SELECT")) {
            let secret = self.identity_secret.as_ref();
            let [schema, identities] = schema::findings(&mut connection, table, secret).await?;
            let is_usable = schema.is_none();
            findings.extend(schema.into_iter().chain(identities));
            if is_usable {
                let oldest = rows(&mut connection, OLDEST_EXPIRED, table).await?;
                let ago = oldest.first().map(|row| integer(row, 0, "expires_at")).transpose()?;
                let ago = ago.and_then(|ago| u64::try_from(ago).ok());
                findings.extend(ago.map(Duration::from_micros).and_then(unpurged));
            }
        }
        connection.close().await;
        Ok(findings)
    }
}

async fn rows(connection: &mut Connection, sql: &str, table: &str) -> Result<Vec<MySqlRow>> {
    let sql = Arc::from(sql.replace(DEFAULT_TABLE, table));
    let found = connection.run(&sql, &[], ResultKind::Rows, false).await;
    Ok(found.map_err(classify)?.rows)
}

/// Reads rows of two texts.
async fn pairs(connection: &mut Connection, sql: &str) -> Result<Vec<(String, String)>> {
    let text = |row: &MySqlRow, at| row.try_get::<String, _>(at).map_err(|_| unreadable("setting"));
    let found = rows(connection, sql, DEFAULT_TABLE).await?;
    found.iter().map(|row| Ok((text(row, 0)?, text(row, 1)?))).collect()
}

async fn settings(connection: &mut Connection) -> Result<HashMap<String, String>> {
    let mut found = pairs(connection, SETTINGS).await?;
    found.extend(pairs(connection, WAITS).await?);
    Ok(found.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect())
}

/// Returns the privileges that the account lacks.
async fn missing_privileges(connection: &mut Connection, table: &str) -> Result<Vec<&'static str>> {
    let mut missing = Vec::new();
    for (name, sql) in PRIVILEGES {
        let sql = Arc::from(sql.replace(DEFAULT_TABLE, table));
        let done = connection.run(&sql, &[], ResultKind::Counts, false).await;
        // Any other error came after the server had accepted the privilege.
        match done.map_err(|error| (number(&error), error)) {
            Err((Some(number), _)) if DENIED.contains(&number) => missing.push(name),
            Err((None, error)) => return Err(classify(error).into()),
            _ => {}
        }
    }
    Ok(missing)
}

fn is_on(value: &str) -> bool {
    matches!(value, "1" | "ON" | "on")
}

fn check_settings(settings: &HashMap<String, String>, findings: &mut Vec<StoreFinding>) {
    let value = |name: &str| settings.get(name).map_or("", String::as_str);
    let is_on = |name: &str| is_on(value(name));
    let is = |name: &str, expected: &str| {
        settings.get(name).is_none_or(|value| value.eq_ignore_ascii_case(expected))
    };
    if ["read_only", "super_read_only", "innodb_read_only"].iter().any(|name| is_on(name)) {
        findings.push(StoreFinding::error(
            "role",
            "Nothing new can run, because the server is read-only: it is a replica, or it is set \
             to read-only.",
            "Point the URL at the primary.",
        ));
    }
    let flush = "innodb_flush_log_at_trx_commit";
    if !is(flush, "1") {
        findings.push(StoreFinding::warning(
            flush,
            format!(
                "`{flush}` is {}: a crash loses about the last second of commits, so work that was \
                 recorded as done may run again.",
                value(flush)
            ),
            format!("Set `{flush} = 1`."),
        ));
    }
    if value("innodb_doublewrite").eq_ignore_ascii_case("off") {
        findings.push(StoreFinding::warning(
            "innodb_doublewrite",
            "`innodb_doublewrite` is off: a power loss may damage pages of the tables.",
            "Turn it on, unless the file system always writes whole pages.",
        ));
    }
    // Older servers have only `tx_isolation`, and MySQL 8.0 has only `transaction_isolation`. If a
    // server has both settings, they have the same value.
    let isolation =
        ["transaction_isolation", "tx_isolation"].iter().find_map(|name| settings.get(*name));
    if let Some(isolation) = isolation.filter(|level| !level.eq_ignore_ascii_case("READ-COMMITTED"))
    {
        findings.push(StoreFinding::warning(
            "isolation",
            format!(
                "Calls wait for each other, because sessions use {isolation} and therefore also \
                 lock the gaps between rows. The store asked for READ COMMITTED, but a proxy drops \
                 the store's settings."
            ),
            "Point the URL at the server, or make the proxy pin sessions.",
        ));
    }
    if is_on("log_bin") {
        replication::check(&value, findings);
    }
    if is_on("wsrep_on") {
        findings.push(StoreFinding::warning(
            "galera",
            "The server is a node of a Galera cluster, on which the store is not tested: a commit \
             on two nodes may grant a key twice, and a crash of several nodes loses commits.",
            "Use one node for all services, or a server with semi-synchronous replicas.",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the finding about the isolation level of a session with these settings, if there is
    /// one.
    fn isolation(settings: &[(&str, &str)]) -> Option<String> {
        let settings =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut findings = Vec::new();
        check_settings(&settings.collect(), &mut findings);
        findings.into_iter().find(|found| found.id == "isolation").map(|found| found.problem)
    }

    #[test]
    fn ops_5_another_isolation_level_is_found_under_either_name() {
        for name in ["transaction_isolation", "tx_isolation"] {
            let problem = isolation(&[(name, "REPEATABLE-READ")]).expect(name);
            assert!(problem.contains("REPEATABLE-READ"), "{problem}");
            assert_eq!(isolation(&[(name, "READ-COMMITTED")]), None);
        }
        let both = |level| [("transaction_isolation", level), ("tx_isolation", level)];
        assert!(isolation(&both("SERIALIZABLE")).is_some());
        assert_eq!(isolation(&both("READ-COMMITTED")), None);
        assert_eq!(isolation(&[]), None, "a level that cannot be read is not judged");
    }
}
