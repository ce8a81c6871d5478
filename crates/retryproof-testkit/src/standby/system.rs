// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the group needs of the system: the server's programs, its user, and its processes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// Returns the processes that a process has started.
pub(super) fn children(parent: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name of the program, in parentheses, can contain blanks. The state and the parent
        // follow it.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let of = after_name.split_whitespace().nth(1).and_then(|text| text.parse::<u32>().ok());
        if of == Some(parent)
            && let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok())
        {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Returns the folder of the newest installed server, which Debian keeps outside of PATH.
pub(super) fn programs() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|version| version.path().join("bin"));
    let holds = |folder: &PathBuf| {
        ["initdb", "postgres", "pg_basebackup", "psql"]
            .iter()
            .all(|name| folder.join(name).exists())
    };
    let found = debian.filter(holds).max();
    found.or_else(|| std::env::split_paths(&path).find(holds)).ok_or_else(|| {
        io::Error::other("PostgreSQL is not installed; run `cargo xtask services up postgres`")
    })
}

/// Returns the user `postgres` if this process runs as root, because the server refuses to.
pub(super) fn user() -> io::Result<Option<(u32, u32)>> {
    if fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let line = users.lines().find_map(|line| line.strip_prefix("postgres:"));
    let mut ids = line.unwrap_or_default().split(':').skip(1).map(str::parse);
    match (ids.next(), ids.next()) {
        (Some(Ok(uid)), Some(Ok(gid))) => Ok(Some((uid, gid))),
        _ => Err(io::Error::other("root must not run PostgreSQL, and there is no user `postgres`")),
    }
}
