// SPDX-License-Identifier: MIT OR Apache-2.0
//! `target/services/env`: the addresses of the servers, one `NAME=VALUE` per line, for tests and
//! for people.

use super::server::SERVERS;
use super::site::Site;
use super::{SERVICES, chromium, cluster, mariadb, nats, postgres, rabbitmq, redis, standby};

/// The comment at the top of the file.
const HEAD: &str = "\
# Written by `cargo xtask services`, which lists only the servers that are running.
# They are throw-away servers on 127.0.0.1, so the passwords protect nothing.
#
# RETRYPROOF_TEST_POSTGRES   a superuser that needs no password; every other role has to give its own
# ..._POSTGRES_PASSWORD      the role `app`, which owns the database `app` and nothing else
# RETRYPROOF_TEST_STANDBY    a primary and its synchronous standby; the same superuser
# RETRYPROOF_TEST_PGBOUNCER  the same server and superuser, any database name, in transaction mode. pgbouncer before 1.21 does
#                            not carry prepared statements over: the next transaction may meet another server connection
# RETRYPROOF_TEST_MARIADB    all privileges; ..._MARIADB_PASSWORD: the user `app`, confined to the database `app`
# RETRYPROOF_TEST_REDIS      alone, append-only file on
# RETRYPROOF_TEST_SENTINEL   three sentinels of one primary with two replicas
# RETRYPROOF_TEST_CLUSTER    a Redis Cluster: three primaries with a replica each
# RETRYPROOF_TEST_CHROMIUM   a WebDriver; its browser needs `--no-sandbox` in containers
# RETRYPROOF_TEST_NATS       JetStream on, streams on disk; no login
# RETRYPROOF_TEST_RABBITMQ   the default virtual host; the user `guest`, who may do everything
# ..._RABBITMQ_TLS           the same over TLS; ..._RABBITMQ_TLS_ROOT: the file of the authority that signed its certificate
# RETRYPROOF_SERVER_x_...    each process: port, folder, pid file (its first line), log, and a script that starts it again on
#                            the same port with the same data and becomes it, for tests that kill";

/// Returns the environment variables of all running services.
pub(super) fn variables(site: &Site) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut set = |name: String, value: String| lines.push((name, value));
    for service in SERVICES.iter().filter(|service| site.runs(service.name)) {
        let urls = match service.name {
            "postgres" => postgres::urls(site),
            "pgbouncer" => postgres::bouncer_urls(site),
            "standby" => standby::urls(site),
            "mariadb" => mariadb::urls(site),
            "redis" => redis::urls(site),
            "cluster" => cluster::urls(site),
            "chromium" => chromium::urls(site),
            "nats" => nats::urls(site),
            "rabbitmq" => rabbitmq::urls(site),
            _ => redis::group_urls(site),
        };
        urls.into_iter().for_each(|(name, url)| set(format!("RETRYPROOF_TEST_{name}"), url));
        for server in SERVERS.iter().filter(|server| server.service == service.name) {
            let name =
                format!("RETRYPROOF_SERVER_{}", server.name.to_uppercase().replace('-', "_"));
            let dir = site.dir(server.name);
            set(format!("{name}_PORT"), site.port(server.name).to_string());
            set(format!("{name}_DIR"), dir.display().to_string());
            set(format!("{name}_PID_FILE"), dir.join(server.pid_file).display().to_string());
            set(format!("{name}_LOG"), dir.join("log").display().to_string());
            set(format!("{name}_START"), dir.join("start").display().to_string());
        }
    }
    lines
}

pub(super) fn render(variables: &[(String, String)]) -> String {
    let lines: String = variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    format!("{HEAD}\n\n{lines}")
}

/// Parses the file as its readers do: blank lines and comments are skipped, and a value may contain
/// `=`.
pub(super) fn parse(text: &str) -> Vec<(String, String)> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let variables = [
            (
                "RETRYPROOF_TEST_POSTGRES".to_string(),
                "postgres://postgres@127.0.0.1:20001/retryproof".to_string(),
            ),
            ("RETRYPROOF_TEST_X".into(), "x://h/d?a=b&c=d#e".into()),
        ];
        assert_eq!(parse(&render(&variables)), variables);
        assert_eq!(
            parse("# A=1\n\nnot a line\n B=2 \nC=\n"),
            [("B".into(), "2".into()), ("C".into(), String::new())]
        );
    }
}
