// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stats`, `purge` and `migrate`: verbs about a whole store.

use std::borrow::Cow;

use retryproof::{
    IdempotencyConfig, IdempotencyEngine, IdempotencyStore as _, IdentitySecret, connect_with,
};
#[cfg(feature = "postgres")]
use retryproof::{config::SqlDialect, postgres::partitioned_schema_sql};
use serde_json::json;

use crate::exit::{self, VerbError};
use crate::output::{Printer, remark, write_out};
use crate::settings::redacted;

/// Prints how many records the store has.
pub(crate) async fn stats(config: &IdempotencyConfig, print: &Printer) -> Result<u8, VerbError> {
    let store = connect_with(config).await?;
    let name = store.profile().name;
    let Some(stats) = store.stats().await? else {
        return Err(VerbError::new(
            exit::REFUSED,
            format!("the {name} store cannot count its records"),
        ));
    };
    let complete = stats.records.saturating_sub(stats.in_progress);
    print.one(
        &[
            ("store", name.to_owned()),
            ("records", stats.records.to_string()),
            ("in progress", stats.in_progress.to_string()),
            ("complete", complete.to_string()),
            ("store bytes", stats.bytes.to_string()),
        ],
        &json!({
            "store": name,
            "records": stats.records,
            "in_progress": stats.in_progress,
            "complete": complete,
            "store_bytes": stats.bytes,
        }),
    )?;
    Ok(exit::OK)
}

/// Deletes expired records until none is left.
pub(crate) async fn purge(config: &IdempotencyConfig, print: &Printer) -> Result<u8, VerbError> {
    let store = connect_with(config).await?;
    let name = store.profile().name;
    let engine = IdempotencyEngine::builder(store).config(config.clone()).build()?;
    let deleted = engine.purge().await?;
    let shown = match deleted {
        Some(deleted) => deleted.to_string(),
        None => "0 (the server deletes expired records itself)".to_owned(),
    };
    print.one(
        &[("store", name.to_owned()), ("deleted", shown)],
        &json!({ "store": name, "deleted": deleted.unwrap_or(0) }),
    )?;
    Ok(exit::OK)
}

/// Creates or upgrades the tables.
pub(crate) async fn migrate(config: &IdempotencyConfig, print: &Printer) -> Result<u8, VerbError> {
    retryproof::migrate_with(config).await?;
    // `connect_with` checks the migrated tables. If the store has no tables, `connect_with` only
    // checks that the store's server can be reached.
    let store = connect_with(config).await?;
    let name = store.profile().name;
    // An unusable audit table is not an error, because a service can run without that table
    // (OPS-10).
    let audit = match store.audit_entries(None, 1).await {
        Ok(Some(_)) => "ready".to_owned(),
        Ok(None) => "none: this store keeps no audit table".to_owned(),
        Err(error) => format!("not usable by this user: {error}"),
    };
    let tables = if has_tables(name) { "ready" } else { "none: this store needs no tables" };
    let identities = if config.identity_secret.is_some() { "hashed" } else { "plain" };
    print.one(
        &[
            ("store", name.to_owned()),
            ("tables", tables.to_owned()),
            ("audit table", audit.clone()),
            ("identities", identities.to_owned()),
        ],
        &json!({
            "store": name,
            "has_tables": has_tables(name),
            "can_audit": audit == "ready",
            "identities": identities,
            "ready": true,
        }),
    )?;
    Ok(exit::OK)
}

/// Lets `migrate` divide the record table, if the configured store can do that.
pub(crate) fn divide(
    config: &mut IdempotencyConfig,
    partitions: Option<usize>,
) -> Result<(), VerbError> {
    let Some(partitions) = partitions else { return Ok(()) };
    let url = config.store.as_deref().unwrap_or_default();
    if matches!(url.split_once(':'), Some(("postgres" | "postgresql", _))) || url.is_empty() {
        config.postgres.partitions = Some(partitions);
        return Ok(());
    }
    Err(VerbError::usage(format!(
        "`--partitions` is an option of a PostgreSQL store, and the configured store is {}; remove \
         the option",
        redacted(url)
    )))
}

fn has_tables(store: &str) -> bool {
    !matches!(store, "memory" | "redis")
}

/// Prints the SQL that creates the tables.
pub(crate) fn print_schema(config: &IdempotencyConfig) -> Result<u8, VerbError> {
    match schema(config)? {
        Some(sql) => {
            let secret = config.identity_secret.as_ref();
            write_out(IdentitySecret::mark_schema(secret, &sql).as_bytes())?;
        }
        None => remark("this store needs no tables"),
    }
    Ok(exit::OK)
}

/// Returns the SQL that creates the tables of the configured store, or `None` if the store needs no
/// tables.
fn schema(config: &IdempotencyConfig) -> Result<Option<String>, VerbError> {
    let url = config.store.as_deref().unwrap_or_default();
    match url.split_once(':').map_or("", |(scheme, _)| scheme) {
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let table = table(url, config.sqlite.table_name.as_deref());
            Ok(Some(retryproof::sqlite::schema_sql(&table)?))
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let table = table(url, config.postgres.table_name.as_deref());
            // The store checks its options, so wrong ones are refused here too.
            retryproof::postgres::PostgresConfig::from_url(url)?;
            let is_plain = config.postgres.dialect == Some(SqlDialect::Plain)
                || named(url, "dialect=", None) == Some("plain");
            let dialect = if is_plain { SqlDialect::Plain } else { SqlDialect::Postgres };
            let partitions = named(url, "partitions=", None).and_then(|number| number.parse().ok());
            Ok(Some(match (config.postgres.partitions.or(partitions), dialect) {
                (Some(partitions), _) => partitioned_schema_sql(&table, dialect, partitions)?,
                (None, SqlDialect::Plain) => retryproof::postgres::plain_schema_sql(&table)?,
                (None, SqlDialect::Postgres) => retryproof::postgres::schema_sql(&table)?,
            }))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            let table = table(url, config.mysql.table_name.as_deref());
            Ok(Some(retryproof::mysql::schema_sql(&table)?))
        }
        "memory" | "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => Ok(None),
        _ => Err(VerbError::usage(
            "no store with tables is named; for example, use `--store sqlite:records.db`",
        )),
    }
}

/// Returns the URL of the configured store without secrets (ID-4), and the name of its table, or
/// its prefix.
pub(super) fn place(config: &IdempotencyConfig) -> String {
    let url = config.store.as_deref().unwrap_or_default();
    let shown = redacted(url);
    let table_of =
        |setting: &Option<String>| format!("{shown} (table: {})", table(url, setting.as_deref()));
    match url.split_once(':').map_or("", |(scheme, _)| scheme) {
        "sqlite" => table_of(&config.sqlite.table_name),
        "postgres" | "postgresql" => table_of(&config.postgres.table_name),
        "mysql" | "mariadb" => table_of(&config.mysql.table_name),
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => {
            let prefix = named(url, "prefix=", config.redis.prefix.as_deref());
            format!("{shown} (prefix: {})", prefix.unwrap_or("retryproof"))
        }
        _ => shown,
    }
}

/// Returns the name of the table: `setting`, else the option `table` of the URL, else the default
/// of all stores.
fn table<'a>(url: &'a str, setting: Option<&'a str>) -> Cow<'a, str> {
    named(url, "table=", setting).unwrap_or("retryproof_records").into()
}

/// Returns `setting`, else the value of the URL's option, whose name ends with `=`.
fn named<'a>(url: &'a str, option: &str, setting: Option<&'a str>) -> Option<&'a str> {
    let options = url.split_once('?').map_or("", |(_, options)| options);
    setting.or_else(|| options.split('&').find_map(|given| given.strip_prefix(option)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "postgres")]
    #[test]
    fn sto_9_the_printed_schema_is_that_of_the_dialect() {
        let printed = |url: &str, dialect| {
            let mut config = IdempotencyConfig::default();
            config.store = Some(url.to_owned());
            config.postgres.dialect = dialect;
            schema(&config).ok().flatten().expect("a store with tables")
        };
        let plain = printed("postgres://h/d?table=t&dialect=plain", None);
        assert!(plain.contains("CREATE TABLE") && !plain.contains("FUNCTION"), "{plain}");
        let dialect = Some(retryproof::config::SqlDialect::Plain);
        assert_eq!(printed("postgres://h/d?table=t", dialect), plain);
        assert!(printed("postgres://h/d?table=t", None).contains("FUNCTION"));
    }

    #[test]
    fn id_4_the_examined_place_has_a_name_and_no_password() {
        let place = |url: &str| {
            let mut config = IdempotencyConfig::default();
            config.store = Some(url.to_owned());
            place(&config)
        };
        assert_eq!(place("memory:"), "memory:");
        assert_eq!(place("sqlite:a.db"), "sqlite:a.db (table: retryproof_records)");
        assert_eq!(place("redis://:canary@h/1"), "redis://(hidden)@h/1 (prefix: retryproof)");
        assert_eq!(place("redis://h?prefix=pay"), "redis://h?(hidden) (prefix: pay)");
        let shown = place("postgres://u:canary@h/d?table=t&sslmode=require");
        assert_eq!(shown, "postgres://(hidden)@h/d?(hidden) (table: t)");
    }

    #[test]
    fn a_setting_or_the_url_may_name_the_table() {
        assert_eq!(table("sqlite:x.db?synchronous=normal&table=pay", None), "pay");
        assert_eq!(table("sqlite:x.db", Some("shop")), "shop");
        assert_eq!(table("sqlite:x.db", None), "retryproof_records");
    }
}
