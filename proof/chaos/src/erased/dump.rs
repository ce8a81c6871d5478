// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Dump`]: everything in a store that a backup would contain.

use std::collections::HashSet;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use ::redis::{Client, cmd};
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use sqlx::{AssertSqlSafe, Row, mysql::MySqlPool};

use crate::server::program;

/// The bytes of a dump. Some tools write them as hex digits.
pub(crate) struct Dump(Vec<u8>);

impl Dump {
    /// Returns the parts of `length` bytes that begin with `begin`.
    pub(crate) fn marks(&self, begin: &[u8], length: usize) -> HashSet<Vec<u8>> {
        let hex: String = begin.iter().map(|byte| format!("{byte:02x}")).collect();
        let plain = self.0.windows(length).filter(|part| part.starts_with(begin));
        let digits = self.0.windows(2 * length).filter(|part| {
            part.get(..hex.len()).is_some_and(|first| first.eq_ignore_ascii_case(hex.as_bytes()))
        });
        plain.map(<[u8]>::to_vec).chain(digits.map(bytes)).collect()
    }
}

/// Decodes hex digits.
fn bytes(digits: &[u8]) -> Vec<u8> {
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    };
    digits.chunks_exact(2).filter_map(byte).collect()
}

/// Dumps the store. Returns `None` for a store that exists only in this process.
pub(crate) async fn of(url: &str, data: &Path) -> Result<Option<Dump>, Box<dyn Error>> {
    let dump = match url.split(':').next().unwrap_or_default() {
        "sqlite" => sqlite(url, data)?,
        "postgres" => postgres(url)?,
        "mysql" | "mariadb" => mariadb(url).await?,
        "redis" => redis(url).await?,
        _ => return Ok(None),
    };
    Ok(Some(Dump(dump)))
}

/// Dumps every column of every table, and the files, because OPS-4 covers both.
fn sqlite(url: &str, data: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let path = url.strip_prefix("sqlite:").ok_or("the URL does not name a file")?;
    let file = Connection::open(path)?;
    let mut tables = file.prepare("SELECT name FROM sqlite_master WHERE type='table'")?;
    let tables = tables.query_map([], |row| row.get::<_, String>(0))?;
    let mut dump = Vec::new();
    for table in tables {
        let mut all = file.prepare(&format!("SELECT * FROM \"{}\"", table?))?;
        let columns = all.column_count();
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            for column in 0..columns {
                match row.get_ref(column)? {
                    ValueRef::Text(bytes) | ValueRef::Blob(bytes) => dump.extend_from_slice(bytes),
                    _ => {}
                }
                dump.push(b'\n');
            }
        }
    }
    for entry in fs::read_dir(data)? {
        let path = entry?.path();
        if path.is_file() {
            dump.extend(fs::read(path)?);
        }
    }
    Ok(dump)
}

fn postgres(url: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let output = Command::new(program("pg_dump")?).args(["--dbname", url]).output()?;
    if !output.status.success() {
        return Err(format!("pg_dump failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(output.stdout)
}

/// Creates a dump in the form of `mariadb-dump --hex-blob`, without this tool, because nothing else
/// here needs the package that contains it.
async fn mariadb(url: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let pool = MySqlPool::connect(url).await?;
    let columns = sqlx::query(
        "SELECT CONVERT(table_name USING utf8mb4), CONVERT(column_name USING utf8mb4) FROM \
         information_schema.columns WHERE table_schema=DATABASE()",
    );
    let mut dump = Vec::new();
    for column in columns.fetch_all(&pool).await? {
        let (table, column): (String, String) = (column.try_get(0)?, column.try_get(1)?);
        let values = format!("SELECT HEX(`{column}`) FROM `{table}`");
        for value in sqlx::query(AssertSqlSafe(values)).fetch_all(&pool).await? {
            let value: Option<String> = value.try_get(0)?;
            dump.extend_from_slice(value.unwrap_or_default().as_bytes());
            dump.push(b'\n');
        }
    }
    pool.close().await;
    Ok(dump)
}

/// Dumps each key with its value, and with the output of `DUMP`.
async fn redis(url: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut link = Client::open(url)?.get_multiplexed_async_connection().await?;
    let keys: Vec<Vec<u8>> = cmd("KEYS").arg("*").query_async(&mut link).await?;
    let mut dump = Vec::new();
    for key in keys {
        for read in ["GET", "DUMP"] {
            let value: Option<Vec<u8>> = cmd(read).arg(&key).query_async(&mut link).await?;
            dump.extend(value.unwrap_or_default());
        }
        dump.extend(key);
        dump.push(b'\n');
    }
    Ok(dump)
}
