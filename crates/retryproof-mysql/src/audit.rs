// SPDX-License-Identifier: MIT OR Apache-2.0
//! The audit table (OPS-10). The calls of a service never touch it, so the service's account needs
//! no privilege on it.

use std::sync::Arc;

use retryproof_core::Result;
use retryproof_core::store::{Audit, AuditEntry, AuditPage, Param, ScanCursor};
use retryproof_store_kit::{
    AuditRows, CallPriority, audit_columns, audit_entry, audit_refused, unreadable,
};
use sqlx_core::row::Row as _;
use sqlx_mysql::MySqlRow;

use crate::config::DEFAULT_TABLE;
use crate::connection::{ResultKind, StatementResult};
use crate::error::lacks_privilege;
use crate::record::integer;
use crate::store::MysqlStore;

/// Binds scope, key, token, verb, outcome, operator and reason, in this order.
const APPEND: &str = "INSERT INTO `retryproof_records_audit` \
     (written_at,scope,k,token,verb,outcome,operator,reason) \
     VALUES (UTC_TIMESTAMP(6),?,?,NULLIF(?,0),?,?,?,?)";
/// Reads one page by the primary key, newest first. Binds the number before which the page starts,
/// and the limit.
const ENTRIES: &str = "SELECT id,TIMESTAMPDIFF(MICROSECOND,'1970-01-01',written_at),scope,k,token,\
     verb,outcome,operator,reason FROM `retryproof_records_audit` WHERE id<? ORDER BY id DESC \
     LIMIT ?";

impl Audit for MysqlStore {
    async fn append(&self, entry: &AuditEntry) -> Result<()> {
        let (scope, key, token) = audit_columns(entry);
        let AuditEntry { verb, outcome, operator, reason, .. } = entry;
        let mut params = vec![Param::from(scope), Param::from(key), Param::Int(token)];
        params.extend([verb, outcome, operator, reason].map(|text| Param::Bytes(text.as_bytes())));
        let appended = self.run_audit(APPEND, &params, ResultKind::Counts).await;
        appended.map(drop).map_err(|error| error.during("append_audit"))
    }

    async fn entries(&self, after: Option<&ScanCursor>, limit: usize) -> Result<AuditPage> {
        self.try_entries(after, limit).await.map_err(|error| error.during("audit_entries"))
    }
}

impl MysqlStore {
    async fn try_entries(&self, after: Option<&ScanCursor>, limit: usize) -> Result<AuditPage> {
        let mut page = AuditRows::new(limit);
        let params = [Param::Int(AuditRows::start(after)?), Param::Int(page.limit())];
        for row in &self.run_audit(ENTRIES, &params, ResultKind::Rows).await?.rows {
            page.add(integer(row, 0, "id")?, entry_of(row))?;
        }
        Ok(page.finish())
    }

    async fn run_audit(
        &self,
        sql: &str,
        params: &[Param<'_>],
        kind: ResultKind,
    ) -> Result<StatementResult> {
        let table = self.config.table()?;
        let (deadline, priority) = (self.executor.deadline(), CallPriority::Normal);
        let sql = Arc::from(sql.replace(DEFAULT_TABLE, table));
        let ran = self.executor.run_text(deadline, priority, &sql, params, kind, false).await;
        ran.map_err(|failure| {
            let is_denied = lacks_privilege(&failure.error);
            audit_refused(failure.error, is_denied, table)
        })
    }
}

fn entry_of(row: &MySqlRow) -> Result<AuditEntry> {
    let bytes = |at, name| row.try_get::<Option<&[u8]>, _>(at).map_err(|_| unreadable(name));
    let text = |at, name| row.try_get::<String, _>(at).map_err(|_| unreadable(name));
    let token = row.try_get(4).map_err(|_| unreadable("token"))?;
    audit_entry(
        integer(row, 1, "written_at")?,
        (bytes(2, "scope")?, bytes(3, "k")?, token),
        [text(5, "verb")?, text(6, "outcome")?, text(7, "operator")?, text(8, "reason")?],
    )
}
