// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user that a server runs as: PostgreSQL, pgbouncer and MariaDB refuse root.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// A user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Account {
    /// Returns the first of `names` that this machine has, or `None` if this process does not run
    /// as root, because the server then runs as the same user.
    pub(super) fn pick(names: &[&str]) -> io::Result<Option<Self>> {
        if me()? != 0 {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd")?;
        names.iter().find_map(|name| find(&users, name)).map(Some).ok_or_else(|| {
            io::Error::other(format!(
                "root must not run this server, and there is no user {}",
                names.join(" or ")
            ))
        })
    }

    /// Runs `command` as this user, without an intermediate process.
    pub(super) fn wrap(this: Option<&Self>, command: &[String]) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(Self { uid, gid }) = this {
            words.extend(["setpriv".into(), format!("--reuid={uid}"), format!("--regid={gid}")]);
            words.extend(["--clear-groups".into(), "--".into()]);
        }
        words.extend_from_slice(command);
        words
    }
}

/// Returns our own user id.
pub(super) fn me() -> io::Result<u32> {
    Ok(fs::metadata("/proc/self")?.uid())
}

/// Finds a user in the lines of /etc/passwd, each of which is `name:x:uid:gid:...`.
fn find(users: &str, name: &str) -> Option<Account> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let mut ids = fields.skip(1).map(|id| id.parse().ok());
        Some(Account { uid: ids.next()??, gid: ids.next()?? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\nmysqld:x:7:8::/:/bin/false\nmysql:x:109:111:a,b:/n:/bin/false\nodd:x:y";
        assert_eq!(find(users, "mysql"), Some(Account { uid: 109, gid: 111 }));
        assert_eq!(find(users, "sql"), None);
        assert_eq!(find(users, "odd"), None);
    }

    #[test]
    fn a_command_is_wrapped_only_for_another_user() {
        let command = ["postgres".to_string(), "-D".into()];
        assert_eq!(Account::wrap(None, &command), command);
        assert_eq!(
            Account::wrap(Some(&Account { uid: 1, gid: 2 }), &command).join(" "),
            "setpriv --reuid=1 --regid=2 --clear-groups -- postgres -D"
        );
    }
}
