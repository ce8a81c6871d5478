// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PostgresConfig::diagnose`] finds what endangers the store: settings of the server, the state
//! of the tables, and missing privileges of the user (OPS-5).

mod hosts;

use std::time::Duration;

use retryproof_core::clock::wall_clock_micros;
use retryproof_core::config::{Pooler, SqlDialect};
use retryproof_core::store::StoreFinding;
use retryproof_core::{Error, ErrorKind, Result};
use retryproof_store_kit::{clock_skew, lacks_privileges, unpurged};
use sqlx_core::connection::Connection as _;
use sqlx_core::decode::Decode;
use sqlx_core::row::Row as _;
use sqlx_core::types::Type;
use sqlx_postgres::{PgConnection, PgRow, Postgres};
use tokio::time::timeout;

use crate::config::PostgresConfig;
use crate::connection::hosts::HostSelector;
use crate::connection::{are_direct, execute_text, fetch_row, not_postgres};
use crate::error::{Failure, classify};
use crate::schema;

/// The time limit for all checks together, without the time for opening connections.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The table size, in bytes, above which huge pages matter.
const LARGE: i64 = 1 << 30;
/// The number of dead rows up to which a table needs no attention.
const FEW_DEAD: i64 = 10_000;

const CLOCK: &str = "SELECT (date_part('epoch',clock_timestamp())*1000000)::bigint";

/// The settings, as they apply to this user and database.
const SETTINGS: &str = "SELECT current_setting('server_version_num')::bigint,\
     pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,\
     current_setting('fsync')::boolean,current_setting('full_page_writes')::boolean,\
     current_setting('synchronous_commit'),current_setting('synchronous_standby_names')='',\
     (SELECT count(*) FROM pg_stat_replication),current_setting('autovacuum')::boolean,\
     current_setting('huge_pages')='off' OR \
     coalesce(current_setting('huge_pages_status',true),'')='off'";

impl PostgresConfig {
    /// Looks for what endangers the store: the server's role and settings, the roles of all hosts,
    /// missing or old tables and functions, another identity secret, missing privileges, a pooler,
    /// vacuum, expired records that were not purged, and a clock that differs from this machine's
    /// (OPS-5). The checks change nothing. They take at most 20 s and three times the
    /// [connect timeout](Self::with_connect_timeout).
    ///
    /// # Errors
    /// The errors of [`PostgresStore::connect`](crate::PostgresStore::connect), if the server
    /// cannot be reached or does not answer the checks. A problem of the server's settings, the
    /// tables or the user's privileges is a finding, not an error.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn diagnose(&self) -> Result<Vec<StoreFinding>> {
        let late = || {
            Error::unavailable(
                "the server did not answer the checks in time; check whether it is overloaded",
            )
        };
        // Two steps of `try_diagnose` wait for connections: twice the limit, and once.
        let limit = TIMEOUT.saturating_add(self.connect_timeout.saturating_mul(3));
        let found = timeout(limit, self.try_diagnose()).await;
        found.unwrap_or_else(|_| Err(late())).map_err(|error| error.during("diagnose"))
    }

    async fn try_diagnose(&self) -> Result<Vec<StoreFinding>> {
        let table = self.table()?;
        let mut findings = Vec::new();
        let selector = HostSelector::new(self);
        // The hosts are asked twice: for the primary, and for what each of them is.
        let limit = self.connect_timeout.saturating_mul(2);
        let mut conn = hosts::in_time(limit, hosts::examine(&selector, &mut findings)).await?;
        let settings = match row(&mut conn, SETTINGS).await {
            Err(error) if self.may_lack(&error) => {
                findings.push(StoreFinding::note(
                    "dialect",
                    "The server does not report the settings of PostgreSQL, so this diagnosis does \
                     not cover how it keeps commits, its replication and its vacuum.",
                    "Check in the server's documentation that a commit survives the failures that \
                     matter to you.",
                ));
                None
            }
            found => Some(found?),
        };
        if let Some(settings) = &settings {
            check_settings(settings, &mut findings)?;
        }
        let sent = wall_clock_micros();
        let clock: i64 = get(&row(&mut conn, CLOCK).await?, 0)?;
        findings.extend(clock_skew(sent, clock.unsigned_abs(), wall_clock_micros()));
        self.check_pooler(&selector, &mut conn, &mut findings).await?;
        // Without the privilege to read the versions, the schema cannot be checked.
        let reads_versions = match self.dialect {
            SqlDialect::Postgres => check_privileges(&mut conn, table, &mut findings).await?,
            SqlDialect::Plain => check_plain_privileges(&mut conn, table, &mut findings).await?,
        };
        if reads_versions {
            let secret = self.identity_secret.as_ref();
            findings.extend(schema::findings(&mut conn, table, secret, self.dialect).await?);
        }
        let exists = schema::plain::exists(&mut conn, table).await;
        if exists.map_err(|error| classify(&error))? {
            if let Some(settings) = &settings {
                let server: (bool, bool) = (get(settings, 7)?, get(settings, 8)?);
                check_table(&mut conn, table, server, &mut findings).await?;
            }
            let oldest = oldest_expired(&mut conn, table, self.dialect).await?;
            findings.extend(oldest.and_then(unpurged));
        }
        // Ignore any error: the findings are complete even if the connection does not close
        // cleanly.
        let _ = conn.close().await;
        Ok(findings)
    }

    /// Whether the error means that a server of the plain dialect lacks a function or a setting of
    /// PostgreSQL, or does not let the user read it.
    fn may_lack(&self, error: &Error) -> bool {
        self.dialect == SqlDialect::Plain && error.kind() != ErrorKind::Unavailable
    }

    async fn check_pooler(
        &self,
        hosts: &HostSelector,
        conn: &mut PgConnection,
        findings: &mut Vec<StoreFinding>,
    ) -> Result<()> {
        // Without a primary, that is the finding.
        let connecting = async { hosts.connect().await.map_err(Failure::at_connect) };
        let mut other = match hosts::in_time(self.connect_timeout, connecting).await {
            Ok(opened) => opened.conn,
            Err(_) if hosts.can_move() => return Ok(()),
            Err(error) => return Err(error),
        };
        let is_direct = are_direct(conn, &mut other).await;
        let _ = other.close().await;
        let is_direct = match is_direct {
            Err(error) if self.may_lack(&error) && self.pooler != Pooler::Detect => return Ok(()),
            is_direct => is_direct.map_err(|error| self.undetected(error))?,
        };
        if is_direct {
            return Ok(());
        }
        findings.push(match self.pooler {
            Pooler::Session => StoreFinding::error(
                "pooler",
                "`pooler=session` is configured, but a pooler runs the transactions of one \
                 connection in different server processes, so prepared statements fail and \
                 notifications do not arrive.",
                "Set `pooler=transaction`, or point the URL at the server.",
            ),
            Pooler::Transaction | Pooler::Detect => StoreFinding::note(
                "pooler",
                "The store reaches the server through a pooler in transaction mode, so it does not \
                 prepare statements, and waiters poll.",
                "Point the URL at the server, or at a pool in session mode, if calls are too slow.",
            ),
        });
        Ok(())
    }
}

fn check_settings(settings: &PgRow, findings: &mut Vec<StoreFinding>) -> Result<()> {
    if get::<i64>(settings, 0)? < 120_000 {
        findings.push(StoreFinding::error(
            "version",
            "The server is older than PostgreSQL 12, which the store needs.",
            "Upgrade the server.",
        ));
    }
    if get(settings, 1)? {
        findings.push(StoreFinding::error(
            "role",
            "Nothing new can run, because the server is read-only: it is a standby, or it is set \
             to read-only.",
            "Point the URL at the primary.",
        ));
    }
    if !get::<bool>(settings, 2)? {
        findings.push(StoreFinding::error(
            "fsync",
            "`fsync` is off: after a power loss or a crash of the system, the database may be lost.",
            "Set `fsync = on`.",
        ));
    }
    if !get::<bool>(settings, 3)? {
        findings.push(StoreFinding::warning(
            "full_page_writes",
            "`full_page_writes` is off: a power loss may damage pages of the table.",
            "Set `full_page_writes = on`, unless the file system always writes whole pages.",
        ));
    }
    let commit: String = get(settings, 4)?;
    let (has_no_sync_standby, standbys) = (get::<bool>(settings, 5)?, get::<i64>(settings, 6)?);
    if commit == "off" {
        findings.push(StoreFinding::warning(
            "synchronous_commit",
            "`synchronous_commit` is off: a crash of the server loses the last commits, so work \
             that was recorded as done may run again.",
            "Set `synchronous_commit = on`, at least for the store's user: `ALTER ROLE … SET \
             synchronous_commit = on`.",
        ));
    } else if has_no_sync_standby && standbys > 0 {
        findings.push(StoreFinding::warning(
            "replication",
            format!(
                "The server has {standbys} standby connections, and commits wait for none of them: \
                 a failover may lose the last commits, so work that was recorded as done may run \
                 again."
            ),
            "Set `synchronous_standby_names`, and promote only a standby that every commit waited \
             for.",
        ));
    } else if !has_no_sync_standby && matches!(commit.as_str(), "local" | "remote_write") {
        findings.push(StoreFinding::warning(
            "replication",
            format!(
                "`synchronous_commit` is `{commit}`, so a commit does not wait until a standby has \
                 written it to disk, although `synchronous_standby_names` names a standby: a \
                 failover may lose the last commits."
            ),
            "Set `synchronous_commit = on`.",
        ));
    }
    Ok(())
}

/// Checks the user's privileges. Returns whether the user may read the versions of the tables.
/// Missing tables and functions are a separate finding.
async fn check_privileges(
    conn: &mut PgConnection,
    table: &str,
    findings: &mut Vec<StoreFinding>,
) -> Result<bool> {
    const ON_TABLE: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

    let mut needed: Vec<(String, String)> = ON_TABLE
        .iter()
        .map(|privilege| {
            let check = format!("has_table_privilege(to_regclass('\"{table}\"'),'{privilege}')");
            (format!("{privilege} on {table}"), check)
        })
        .collect();
    needed.push((
        format!("SELECT on {table}_meta"),
        format!("has_table_privilege(to_regclass('\"{table}_meta\"'),'SELECT')"),
    ));
    for signature in schema::signatures(table) {
        let name = signature.split('"').nth(1).unwrap_or_default();
        let check = format!("has_function_privilege(to_regprocedure('{signature}'),'EXECUTE')");
        needed.push((format!("EXECUTE on {name}"), check));
    }
    let checks: Vec<_> = needed.iter().map(|(_, check)| check.as_str()).collect();
    let held = row(conn, &format!("SELECT {}", checks.join(","))).await?;
    let mut missing = Vec::new();
    for (at, (name, _)) in needed.iter().enumerate() {
        if get::<Option<bool>>(&held, at)? == Some(false) {
            missing.push(name.as_str());
        }
    }
    let reads_versions = !missing.iter().any(|name| name.ends_with("_meta"));
    findings.extend(lacks_privileges(
        &missing,
        "Grant them to the user in the URL; run the `GRANT` as the owner of the tables.",
    ));
    Ok(reads_versions)
}

/// Checks the user's privileges in the plain dialect. Returns whether the user may read the
/// versions of the tables. That the server accepts no writes is a finding too.
async fn check_plain_privileges(
    conn: &mut PgConnection,
    table: &str,
    findings: &mut Vec<StoreFinding>,
) -> Result<bool> {
    let missing = match schema::plain::missing_privileges(conn, table).await {
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            // On PostgreSQL, the settings have shown this already.
            if !findings.iter().any(|finding| finding.id == "role") {
                findings.push(StoreFinding::error(
                    "role",
                    format!("Nothing new can run, because the server accepts no writes ({error})."),
                    "Point the URL at a server that accepts writes.",
                ));
            }
            return Ok(true);
        }
        missing => missing?,
    };
    let names: Vec<_> = missing.iter().map(String::as_str).collect();
    let reads_versions = !names.iter().any(|name| name.ends_with("_meta"));
    findings.extend(lacks_privileges(
        &names,
        "Grant them to the user in the URL; run the `GRANT` as the owner of the tables.",
    ));
    Ok(reads_versions)
}

async fn check_table(
    conn: &mut PgConnection,
    table: &str,
    (autovacuum, lacks_huge_pages): (bool, bool),
    findings: &mut Vec<StoreFinding>,
) -> Result<()> {
    // A table that is divided has no rows, no size and no options of its own, so the figures are
    // those of its partitions, too.
    let statistics = format!(
        "SELECT coalesce(sum(s.n_live_tup),0)::bigint,coalesce(sum(s.n_dead_tup),0)::bigint,\
         coalesce(bool_or('autovacuum_enabled=false'=ANY(c.reloptions) OR \
         'autovacuum_enabled=off'=ANY(c.reloptions)),false),\
         coalesce(sum(pg_total_relation_size(c.oid)),0)::bigint FROM pg_class AS c LEFT JOIN \
         pg_stat_user_tables AS s ON s.relid=c.oid WHERE c.oid=to_regclass('\"{table}\"') OR \
         c.oid IN (SELECT relid FROM pg_partition_tree(to_regclass('\"{table}\"')))"
    );
    let found = row(conn, &statistics).await?;
    let (live, dead): (i64, i64) = (get(&found, 0)?, get(&found, 1)?);
    let (is_off_for_table, bytes): (bool, i64) = (get(&found, 2)?, get(&found, 3)?);
    if !autovacuum || is_off_for_table {
        let whose = if autovacuum { "for the table" } else { "on the server" };
        findings.push(StoreFinding::warning(
            "autovacuum",
            format!(
                "Autovacuum is off {whose}: the table and its indexes grow with every call, and \
                 calls slow down."
            ),
            "Switch autovacuum on.",
        ));
    } else if dead > FEW_DEAD && dead > live / 5 {
        findings.push(StoreFinding::warning(
            "autovacuum",
            format!(
                "The table has {dead} dead rows beside {live} live ones, so autovacuum does not \
                 keep up, and calls slow down."
            ),
            "End transactions that have been open for long (`xact_start` in `pg_stat_activity`) \
             and drop unused replication slots; raise `autovacuum_vacuum_cost_limit`.",
        ));
    }
    if bytes > LARGE && lacks_huge_pages {
        findings.push(StoreFinding::note(
            "huge_pages",
            format!(
                "The table takes {} MiB, and the server does not use huge pages, so looking up a \
                 record that was not used recently is slower.",
                bytes >> 20
            ),
            "Reserve huge pages (`vm.nr_hugepages`), and set `huge_pages = try`.",
        ));
    }
    Ok(())
}

/// Returns the time since the expiry of the record that a purge would delete first; `None` if there
/// is no such record, or if the user may not read the table. The missing privilege is a separate
/// finding.
async fn oldest_expired(
    conn: &mut PgConnection,
    table: &str,
    dialect: SqlDialect,
) -> Result<Option<Duration>> {
    let now = "(date_part('epoch',clock_timestamp())*1000000)::bigint";
    // Without these settings, an old plan or missing statistics could make the server read the
    // whole table. The settings end with the transaction, so they reach no other client of a
    // pooler.
    let sql = format!(
        "SELECT {now}-greatest(purge_bucket,(date_part('epoch',expires_at)*1000000)::bigint) FROM \
         \"{table}\" WHERE purge_bucket<=(SELECT {now}) AND (expires_at<clock_timestamp() OR \
         state=2) AND state IN (0,1,2) ORDER BY purge_bucket LIMIT 1"
    );
    let settings = match dialect {
        SqlDialect::Postgres => {
            "BEGIN READ ONLY;SET LOCAL enable_seqscan=off;SET LOCAL enable_bitmapscan=off"
        }
        SqlDialect::Plain => "BEGIN READ ONLY",
    };
    execute_text(conn, settings.to_owned()).await.map_err(|error| classify(&error))?;
    let oldest = fetch_row(conn, sql).await;
    execute_text(conn, "ROLLBACK".to_owned()).await.map_err(|error| classify(&error))?;
    match oldest {
        Ok(Some(row)) => Ok(u64::try_from(get::<i64>(&row, 0)?).ok().map(Duration::from_micros)),
        Ok(None) => Ok(None),
        Err(error) if classify(&error).kind() == ErrorKind::Unexpected => Ok(None),
        Err(error) => Err(classify(&error)),
    }
}

async fn row(conn: &mut PgConnection, sql: &str) -> Result<PgRow> {
    let found = fetch_row(conn, sql.to_owned()).await.map_err(|error| classify(&error))?;
    found.ok_or_else(not_postgres)
}

fn get<'r, T: Decode<'r, Postgres> + Type<Postgres>>(row: &'r PgRow, at: usize) -> Result<T> {
    row.try_get(at).map_err(|error| classify(&error))
}
