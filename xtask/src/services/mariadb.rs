// SPDX-License-Identifier: MIT OR Apache-2.0
//! MariaDB, which flushes its log at every commit.

use std::io;

use super::account::Account;
use super::install::Tools;
use super::memory;
use super::server::Server;
use super::site::Site;
use super::wire;

/// Statements that the server runs at every start before it listens, one per line.
const INIT: &str = "\
CREATE DATABASE IF NOT EXISTS retryproof;
CREATE DATABASE IF NOT EXISTS app;
CREATE USER IF NOT EXISTS 'retryproof'@'%' IDENTIFIED BY 'secret';
GRANT ALL PRIVILEGES ON *.* TO 'retryproof'@'%' WITH GRANT OPTION;
CREATE USER IF NOT EXISTS 'app'@'%' IDENTIFIED BY 'app-secret';
GRANT ALL PRIVILEGES ON app.* TO 'app'@'%';
";

pub(super) fn server(site: &Site, tools: &Tools) -> io::Result<Server> {
    let (dir, port) = (site.dir("mariadb"), site.port("mariadb"));
    let inside = |name: &str| dir.join(name).display().to_string();
    let data = format!("--datadir={}", inside("data"));
    let prepare = vec![
        tools.path("mariadb-install-db")?,
        "--no-defaults".into(),
        data.clone(),
        // A server that starts removes the temporary tables that it finds in this folder, so two
        // servers must not share one.
        format!("--tmpdir={}", inside("")),
        "--auth-root-authentication-method=normal".into(),
        "--skip-test-db".into(),
        "--skip-name-resolve".into(),
    ];
    let command = vec![
        tools.path("mariadbd")?,
        "--no-defaults".into(),
        data,
        format!("--port={port}"),
        "--bind-address=127.0.0.1".into(),
        format!("--socket={}", inside("sock")),
        format!("--pid-file={}", inside("pid")),
        format!("--tmpdir={}", inside("")),
        format!("--init-file={}", inside("init.sql")),
        "--skip-name-resolve".into(),
        "--max-connections=300".into(),
        "--innodb-flush-log-at-trx-commit=1".into(),
        format!("--innodb-buffer-pool-size={}M", memory::cache()),
        // These two values are those of Debian's configuration, but a store must not rely on them.
        "--character-set-server=utf8mb4".into(),
        "--collation-server=utf8mb4_general_ci".into(),
    ];
    Ok(Server {
        name: "mariadb",
        port,
        account: Account::pick(&["mysql", "nobody"])?,
        files: vec![("init.sql", INIT.into())],
        prepare: vec![(prepare, String::new())],
        command,
        dir,
        ready: wire::mariadb,
    })
}

pub(super) fn urls(site: &Site) -> Vec<(&'static str, String)> {
    let port = site.port("mariadb");
    vec![
        ("MARIADB", format!("mysql://retryproof:secret@127.0.0.1:{port}/retryproof")),
        ("MARIADB_PASSWORD", format!("mysql://app:app-secret@127.0.0.1:{port}/app")),
    ]
}
