// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks what decides whether a failover keeps all commits: the binary log, the wait for a
//! replica, and an account that a read-only server does not stop (STO-10).

use retryproof_core::store::StoreFinding;

use super::is_on;

/// Reads the server's version, and each privilege of the session's account that may exempt it from
/// `read_only`.
pub(super) const EXEMPTIONS: &str = "SELECT VERSION(),PRIVILEGE_TYPE FROM \
     information_schema.USER_PRIVILEGES WHERE \
     GRANTEE=CONCAT('\\'',REPLACE(CURRENT_USER(),'@','\\'@\\''),'\\'') AND PRIVILEGE_TYPE IN \
     ('READ_ONLY ADMIN','CONNECTION_ADMIN','SUPER')";

/// Checks the rows of [`EXEMPTIONS`].
pub(super) fn check_account(exemptions: &[(String, String)]) -> Option<StoreFinding> {
    let is_exempt = exemptions.iter().any(|(version, privilege)| is_exempt(version, privilege));
    is_exempt.then(|| {
        StoreFinding::warning(
            "read_only",
            "The account may write to a server that is set to read-only: after a failover, a \
             former primary that is read-only still takes this account's writes, so two servers \
             may each grant a key.",
            "Use an account without the privileges READ_ONLY ADMIN and SUPER (on MySQL, \
             CONNECTION_ADMIN and SUPER).",
        )
    })
}

/// Returns whether an account with the privilege writes to a read-only server of this version.
/// MariaDB took this right away from `SUPER` in 10.11.
fn is_exempt(version: &str, privilege: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let before_10_11 = (numbers.next(), numbers.next()) < (Some(10), Some(11));
    privilege != "SUPER" || before_10_11 || !version.contains("MariaDB")
}

/// Checks the settings of the binary log, which replicas read. `value` returns a setting, or the
/// state of the wait for a replica.
pub(super) fn check<'a>(value: &impl Fn(&str) -> &'a str, findings: &mut Vec<StoreFinding>) {
    if value("binlog_format").eq_ignore_ascii_case("statement") {
        findings.push(StoreFinding::error(
            "binlog_format",
            "`binlog_format` is STATEMENT, with which the server refuses writes at READ COMMITTED, \
             the isolation level of the store.",
            "Set `binlog_format = ROW` (or MIXED).",
        ));
    }
    if value("sync_binlog") != "1" {
        findings.push(StoreFinding::warning(
            "sync_binlog",
            format!(
                "`sync_binlog` is {}: after a power loss, replicas and the server may differ in \
                 the last commits.",
                value("sync_binlog")
            ),
            "Set `sync_binlog = 1`.",
        ));
    }
    findings.extend(check_wait(value));
}

/// Checks the wait for a replica. MySQL 8 has two names for its settings.
fn check_wait<'a>(value: &impl Fn(&str) -> &'a str) -> Option<StoreFinding> {
    let either = |name: &str| {
        let names = ["master", "source"].map(|role| format!("rpl_semi_sync_{role}_{name}"));
        names.iter().map(|name| value(name)).find(|value| !value.is_empty()).unwrap_or_default()
    };
    if !is_on(either("enabled")) {
        return Some(StoreFinding::note(
            "replication",
            "The binary log is on and semi-synchronous replication is off: if this server has \
             replicas, a failover may lose the last commits, so work that was recorded as done \
             may run again.",
            "Switch semi-synchronous replication on, with the wait point AFTER_SYNC, before you \
             rely on a failover.",
        ));
    }
    if !is_on(either("status")) {
        return Some(StoreFinding::warning(
            "replication",
            "Semi-synchronous replication is on, but commits do not wait: no replica answered \
             within the timeout, so the server continues asynchronously. A failover now may lose \
             the last commits, and work that was recorded as done may run again.",
            "Check the replicas, and set `rpl_semi_sync_master_timeout` (on MySQL 8, \
             `rpl_semi_sync_source_timeout`) longer than any outage that you want to survive.",
        ));
    }
    either("wait_point").eq_ignore_ascii_case("AFTER_COMMIT").then(|| {
        StoreFinding::warning(
            "replication",
            "The wait point of semi-synchronous replication is AFTER_COMMIT: a commit is visible \
             before a replica has it, so a failover may lose a result that was returned.",
            "Set `rpl_semi_sync_master_wait_point = AFTER_SYNC`.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_5_sto_10_super_writes_to_a_read_only_server_before_mariadb_10_11() {
        for (version, privilege, expected) in [
            ("10.5.0-MariaDB", "SUPER", true),
            ("10.10.7-MariaDB-log", "SUPER", true),
            ("10.11.14-MariaDB-0+deb12u2", "SUPER", false),
            ("11.4.2-MariaDB", "SUPER", false),
            ("11.4.2-MariaDB", "READ_ONLY ADMIN", true),
            ("8.4.0", "SUPER", true),
            ("8.4.0", "CONNECTION_ADMIN", true),
        ] {
            assert_eq!(is_exempt(version, privilege), expected, "{version} {privilege}");
            let found = check_account(&[(version.to_owned(), privilege.to_owned())]);
            assert_eq!(found.is_some(), expected);
        }
        assert_eq!(check_account(&[]), None);
    }
}
