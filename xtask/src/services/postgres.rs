// SPDX-License-Identifier: MIT OR Apache-2.0
//! PostgreSQL with its default durability, and pgbouncer in front of it.

use std::io;

use super::account::Account;
use super::install::Tools;
use super::memory;
use super::server::Server;
use super::site::Site;
use super::wire;

const USERS: [&str; 2] = ["postgres", "nobody"];

/// The superuser of the tests needs no password. All other users do, so that the tests cover
/// passwords too.
const HBA: &str = "\
host all         postgres 127.0.0.1/32 trust
host replication postgres 127.0.0.1/32 trust
host all         all      127.0.0.1/32 scram-sha-256
";

/// Statements that run before the first start, one per line.
const SETUP: &str = "\
CREATE DATABASE retryproof
CREATE ROLE app LOGIN PASSWORD 'app-secret'
CREATE DATABASE app OWNER app
";

pub(super) fn server(site: &Site, tools: &Tools) -> io::Result<Server> {
    named(site, tools, "postgres")
}

/// Returns a server with this name.
pub(super) fn named(site: &Site, tools: &Tools, name: &'static str) -> io::Result<Server> {
    let (dir, port) = (site.dir(name), site.port(name));
    let data = dir.join("data").display().to_string();
    let (initdb, postgres) = (tools.path("initdb")?, tools.path("postgres")?);
    // Nothing needs to be flushed (`--no-sync`), because a new server has no data to lose. Every
    // machine has the locale C, but some lack C.UTF-8.
    let flags =
        ["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C", "-D", &data];
    let settings = [
        format!("port={port}"),
        "listen_addresses=127.0.0.1".into(),
        "unix_socket_directories=".into(),
        format!("hba_file={}", dir.join("pg_hba.conf").display()),
        "max_connections=300".into(),
        format!("shared_buffers={}MB", memory::cache()),
    ];
    let mut command = vec![postgres.clone(), "-D".into(), data.clone()];
    command.extend(settings.into_iter().flat_map(|setting| ["-c".to_string(), setting]));
    let first = std::iter::once(initdb).chain(flags.map(String::from)).collect();
    // With `--single`, PostgreSQL executes statements without a server, and flushes the data at the
    // end.
    let single = vec![postgres, "--single".into(), "-D".into(), data, "postgres".into()];
    Ok(Server {
        name,
        port,
        dir,
        account: Account::pick(&USERS)?,
        files: vec![("pg_hba.conf", HBA.into())],
        prepare: vec![(first, String::new()), (single, SETUP.into())],
        command,
        ready: wire::postgres,
    })
}

/// Returns pgbouncer in transaction mode. Every client is the superuser of the server behind
/// pgbouncer.
pub(super) fn bouncer(site: &Site, tools: &Tools) -> io::Result<Server> {
    let (dir, port) = (site.dir("pgbouncer"), site.port("pgbouncer"));
    let config = format!(
        "[databases]\n* = host=127.0.0.1 port={behind} user=postgres\n\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\nmax_client_conn = 900\n\
         default_pool_size = 40\nserver_login_retry = 1\n; the driver sends it, and it is not tracked\n\
         ignore_startup_parameters = extra_float_digits\npidfile = {pid}\n",
        behind = site.port("postgres"),
        pid = dir.join("pid").display(),
    );
    Ok(Server {
        name: "pgbouncer",
        port,
        account: Account::pick(&USERS)?,
        files: vec![("pgbouncer.ini", config)],
        prepare: Vec::new(),
        command: vec![tools.path("pgbouncer")?, dir.join("pgbouncer.ini").display().to_string()],
        dir,
        ready: wire::postgres,
    })
}

pub(super) fn urls(site: &Site) -> Vec<(&'static str, String)> {
    let port = site.port("postgres");
    vec![
        ("POSTGRES", format!("postgres://postgres@127.0.0.1:{port}/retryproof")),
        ("POSTGRES_PASSWORD", format!("postgres://app:app-secret@127.0.0.1:{port}/app")),
    ]
}

pub(super) fn bouncer_urls(site: &Site) -> Vec<(&'static str, String)> {
    vec![(
        "PGBOUNCER",
        format!("postgres://postgres@127.0.0.1:{}/retryproof", site.port("pgbouncer")),
    )]
}
