// SPDX-License-Identifier: MIT OR Apache-2.0
//! The audit table (OPS-10). The calls of a service never touch it, so the service's database user
//! needs no privilege on it.

use retryproof_core::store::{Audit, AuditEntry, AuditPage, Param, ScanCursor};
use retryproof_core::{Error, Result};
use retryproof_store_kit::{AuditRows, CallPriority, audit_columns, audit_entry, audit_refused};
use sqlx_postgres::PgRow;

use crate::config::DEFAULT_TABLE;
use crate::connection::StatementResult;
use crate::error::lacks_privilege;
use crate::record::column;
use crate::statement::bound::{BoundStatement, Returns};
use crate::store::PostgresStore;

/// Appends an entry. Binds scope, key, token, verb, outcome, operator and reason, in this order.
const APPEND: &str = "INSERT INTO \"retryproof_records_audit\" \
     (written_at,scope,key,token,verb,outcome,operator,reason) VALUES \
     (clock_timestamp(),$1,$2,nullif($3::bigint,0),convert_from($4,'UTF8'),\
     convert_from($5,'UTF8'),convert_from($6,'UTF8'),convert_from($7,'UTF8'))";
/// Reads one page by the primary key, newest first. Binds the number before which the page starts,
/// and the limit.
const ENTRIES: &str = "SELECT id,(date_part('epoch',written_at)*1000000)::bigint,scope,key,token,\
     verb,outcome,operator,reason FROM \"retryproof_records_audit\" WHERE id<$1 ORDER BY id DESC \
     LIMIT $2";

impl Audit for PostgresStore {
    async fn append(&self, entry: &AuditEntry) -> Result<()> {
        let (scope, key, token) = audit_columns(entry);
        let AuditEntry { verb, outcome, operator, reason, .. } = entry;
        let mut params = vec![Param::from(scope), Param::from(key), Param::Int(token)];
        params.extend([verb, outcome, operator, reason].map(|text| Param::Bytes(text.as_bytes())));
        let appended = self.run_audit(APPEND, Returns::Count, params).await;
        appended.map(drop).map_err(|error| error.during("append_audit"))
    }

    async fn entries(&self, after: Option<&ScanCursor>, limit: usize) -> Result<AuditPage> {
        self.try_entries(after, limit).await.map_err(|error| error.during("audit_entries"))
    }
}

impl PostgresStore {
    async fn try_entries(&self, after: Option<&ScanCursor>, limit: usize) -> Result<AuditPage> {
        let mut page = AuditRows::new(limit);
        let params = vec![Param::Int(AuditRows::start(after)?), Param::Int(page.limit())];
        for row in &self.run_audit(ENTRIES, Returns::Rows, params).await?.rows {
            page.add(column(row, 0, "id")?, entry_of(row))?;
        }
        Ok(page.finish())
    }

    async fn run_audit(
        &self,
        sql: &str,
        returns: Returns,
        params: Vec<Param<'_>>,
    ) -> Result<StatementResult, Error> {
        let table = self.config.table()?;
        let sql = sql.replace(DEFAULT_TABLE, table).into();
        let statement = BoundStatement::new(sql, returns, params);
        self.executor.run(CallPriority::Normal, &statement).await.map_err(|failure| {
            let is_denied = lacks_privilege(&failure);
            audit_refused(failure.into_error(), is_denied, table)
        })
    }
}

fn entry_of(row: &PgRow) -> Result<AuditEntry> {
    let bytes = |at, name| column::<Option<Vec<u8>>>(row, at, name);
    let text = |at, name| column::<String>(row, at, name);
    let (scope, key) = (bytes(2, "scope")?, bytes(3, "key")?);
    audit_entry(
        column(row, 1, "written_at")?,
        (scope.as_deref(), key.as_deref(), column(row, 4, "token")?),
        [text(5, "verb")?, text(6, "outcome")?, text(7, "operator")?, text(8, "reason")?],
    )
}
