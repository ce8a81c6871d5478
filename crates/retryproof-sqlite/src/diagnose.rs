// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SqliteConfig::diagnose`]: finds problems with the file and its settings that endanger the
//! store (OPS-5).

use std::path::{Path, PathBuf};
use std::time::Duration;

use retryproof_core::config::Synchronous;
use retryproof_core::store::StoreFinding;
use retryproof_core::{ErrorKind, Result};
use retryproof_store_kit::{lacks_privileges, unpurged};
use rusqlite::{Connection, OptionalExtension as _};

use crate::config::{DEFAULT_TABLE, SqliteConfig};
use crate::connection::{open_reader, open_to_diagnose, retry_while_locked};
use crate::error::{classify, is_denied};
use crate::schema;

/// A write-ahead log of this size has not been emptied for a long time. Normally, SQLite empties
/// the log after about 4 MiB.
const LARGE_LOG: u64 = 64 << 20;
/// The clock of a synchronised machine steps by less than this.
const MAX_STEP: Duration = Duration::from_secs(1);

/// Linux's names for network file systems.
const NETWORK_FILE_SYSTEMS: [&str; 13] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "gfs2",
    "ocfs2",
    "beegfs",
];

/// Finds the record that a purge would delete first, and returns how long ago it expired. Binds the
/// current time.
const OLDEST_EXPIRED: &str = "SELECT ?1-max(purge_after,expires_at) FROM retryproof_records WHERE \
     purge_after<=?1 AND (state=2 OR state IN (0,1) AND expires_at<=?1) ORDER BY purge_after LIMIT 1";
const LAST_TOKEN: &str = "SELECT value FROM retryproof_records_meta WHERE name='fence'";

impl SqliteConfig {
    /// Looks for problems that endanger the store: a file on another machine, a wrong journal mode,
    /// a write-ahead log that is not emptied, missing privileges on the file and its folder,
    /// missing or old tables, another identity secret, expired records that were not purged, and a
    /// clock that was set back (OPS-5). Changes nothing. Takes the write lock for a moment, and
    /// blocks for a few milliseconds.
    ///
    /// # Errors
    /// The errors of [`SqliteStore::open`](crate::SqliteStore::open), if the file cannot be read. A
    /// missing file or missing tables are findings, not errors.
    pub fn diagnose(&self) -> Result<Vec<StoreFinding>> {
        self.try_diagnose().map_err(|error| error.during("diagnose"))
    }

    fn try_diagnose(&self) -> Result<Vec<StoreFinding>> {
        let table = self.table()?;
        let conn = match open_reader(self) {
            Ok(conn) => conn,
            Err(error) if error.kind() == ErrorKind::Schema => {
                return Ok(vec![StoreFinding::error(
                    "schema",
                    format!("The database file does not exist ({error})."),
                    "Run `retryproof migrate`.",
                )]);
            }
            // The file exists, but this process is not allowed to read it.
            Err(error) if error.kind() == ErrorKind::Unexpected => {
                return Ok(self.lacks(&[format!("read and write {}", self.path.display())]));
            }
            Err(error) => return Err(error),
        };
        let mut findings = Vec::new();
        self.check_file(&mut findings);
        let missing = self.missing_privileges()?;
        let lacks_privileges = !missing.is_empty();
        findings.extend(self.lacks(&missing));
        let checked =
            retry_while_locked(self.busy_timeout, || match self.check_database(&conn, table) {
                // If privileges are missing, reading can be denied too, which the finding above
                // already reports.
                Err(error) if lacks_privileges && is_denied(&error) => Ok(Ok(Vec::new())),
                checked => checked.map(Ok),
            });
        findings.extend(checked?);
        Ok(findings)
    }

    /// Returns what this process is not allowed to do with the file and the files beside it. Takes
    /// the write lock for a moment, but writes nothing.
    fn missing_privileges(&self) -> Result<Vec<String>> {
        let conn = open_to_diagnose(self)?;
        let mut missing = Vec::new();
        if conn.is_readonly("main").map_err(classify)? {
            missing.push(format!("write to {}", self.path.display()));
        }
        // Reading creates the shared memory of the write-ahead log, and the lock needs the log
        // itself, so either statement shows whether this process may create and write these files.
        let sql = match missing.is_empty() {
            true => "BEGIN IMMEDIATE; ROLLBACK",
            false => "BEGIN; SELECT 1 FROM sqlite_master; ROLLBACK",
        };
        match conn.execute_batch(sql) {
            Err(error) if is_denied(&error) => {
                let [log, shared] = ["-wal", "-shm"].map(|suffix| beside(&self.path, suffix));
                missing.push(format!(
                    "create and write {} and {}",
                    log.display(),
                    shared.display()
                ));
            }
            // A lock of another connection says nothing about privileges, and the checks that
            // follow find any other error.
            _ => {}
        }
        Ok(missing)
    }

    /// Returns a finding about missing privileges, if there are any.
    fn lacks(&self, missing: &[String]) -> Vec<StoreFinding> {
        let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
        let advice = "Let the user of this process write to the file, to the files beside it and to \
                      their folder (`ls -la`, `lsattr`), and mount the file system for writing.";
        lacks_privileges(&missing, advice).into_iter().collect()
    }

    fn check_file(&self, findings: &mut Vec<StoreFinding>) {
        if self.synchronous == Synchronous::Normal {
            findings.push(StoreFinding::warning(
                "synchronous",
                "`sqlite.synchronous` is `normal`: a power loss loses the last commits, so work \
                 that was recorded as done may run again.",
                "Set `sqlite.synchronous = \"full\"`, unless you accept that risk.",
            ));
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        if let Some(kind) = file_system(&mounts, &path).filter(|kind| is_remote(kind)) {
            findings.push(StoreFinding::error(
                "file-system",
                format!(
                    "The file is on a network file system ({kind}), where the locks and the shared \
                     memory of SQLite do not work: records may be lost, and work may run twice."
                ),
                "Move the file to a local disk, or use a store on a server.",
            ));
        }
        let bytes = std::fs::metadata(beside(&path, "-wal")).map_or(0, |wal| wal.len());
        if bytes > LARGE_LOG {
            findings.push(StoreFinding::warning(
                "wal",
                format!(
                    "The write-ahead log takes {} MiB, because a connection has been reading for a \
                     long time or because no checkpoint finishes. Reads slow down, and the disk \
                     may fill up.",
                    bytes >> 20
                ),
                "End transactions that stay open in programs that use the file.",
            ));
        }
    }

    fn check_database(
        &self,
        conn: &Connection,
        table: &str,
    ) -> Result<Vec<StoreFinding>, rusqlite::Error> {
        let mut findings = Vec::new();
        let mode: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
        if !mode.eq_ignore_ascii_case("wal") {
            findings.push(StoreFinding::warning(
                "journal_mode",
                format!(
                    "The journal mode of the file is `{mode}`, because another program has changed \
                     it. Readers and writers of the file now wait for each other, until a program \
                     that uses the store starts and changes the mode back."
                ),
                "Find the program that sets `PRAGMA journal_mode`, and remove that statement.",
            ));
        }
        let [schema, identities] = schema::findings(conn, table, self.identity_secret.as_ref())?;
        let is_usable = schema.is_none();
        findings.extend(schema.into_iter().chain(identities));
        if !is_usable {
            return Ok(findings);
        }
        let now = i64::try_from((self.wall_clock)()).unwrap_or(i64::MAX);
        let number = |sql: &str, values: &[i64]| {
            let sql = sql.replace(DEFAULT_TABLE, table);
            conn.query_row(&sql, rusqlite::params_from_iter(values), |row| row.get::<_, i64>(0))
                .optional()
        };
        let micros = |time: i64| u64::try_from(time).ok().map(Duration::from_micros);
        findings.extend(number(OLDEST_EXPIRED, &[now])?.and_then(micros).and_then(unpurged));
        let ahead = number(LAST_TOKEN, &[])?.and_then(|last| micros(last.saturating_sub(now)));
        if let Some(by) = ahead.filter(|by| *by > MAX_STEP) {
            findings.push(StoreFinding::warning(
                "clock",
                format!(
                    "The clock of this machine is {:.1} s behind the last grant in the file, so \
                     the clock was set back, or another machine wrote to the file. Leases and \
                     results that are already in the file expire later than they should, by up to \
                     the same amount.",
                    by.as_secs_f64()
                ),
                "Synchronise the clock with NTP, and let only one machine use the file.",
            ));
        }
        Ok(findings)
    }
}

/// Returns `path` with `suffix` appended to the file name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the type of the file system that contains `path`, according to Linux's `mountinfo`;
/// `None` if `mountinfo` does not list it. If two file systems are mounted at one place, the later
/// mount counts.
fn file_system<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mount = |line: &'a str| {
        let (fields, kind) = line.split_once(" - ")?;
        // Linux writes a space in a path as `\040` in its list of mounts.
        let place = fields.split(' ').nth(4)?.replace("\\040", " ");
        path.starts_with(&place).then_some((place.len(), kind.split(' ').next()?))
    };
    mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

fn is_remote(kind: &str) -> bool {
    NETWORK_FILE_SYSTEMS.contains(&kind) || (kind.starts_with("fuse.") && kind != "fuse.overlayfs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_5_the_file_system_of_the_longest_mount_counts() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      40 22 0:40 / /mnt/my\\040share rw - nfs4 host:/share rw\n\
                      41 40 8:2 / /mnt/my\\040share/local rw - xfs /dev/sdb1 rw\n\
                      42 22 0:41 / /mnt/home rw - fuse.sshfs host: rw\n";
        let kind = |path: &str| file_system(mounts, Path::new(path));
        assert_eq!(kind("/var/records.db"), Some("ext4"));
        assert_eq!(kind("/mnt/my share/records.db"), Some("nfs4"));
        assert_eq!(kind("/mnt/my share/local/records.db"), Some("xfs"));
        assert_eq!(kind("/mnt/my shares/records.db"), Some("ext4"));
        assert_eq!(kind("/mnt/home/records.db"), Some("fuse.sshfs"));
        assert_eq!(file_system("", Path::new("/records.db")), None);
        let remote = ["ext4", "nfs4", "xfs", "fuse.sshfs", "overlay"].map(is_remote);
        assert_eq!(remote, [false, true, false, true, false]);
    }
}
