// SPDX-License-Identifier: MIT OR Apache-2.0
//! How each server is started: with durable settings.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::{ask, free_port, user};

/// The sentinels' name for the group.
const GROUP: &str = "chaos";

/// How one server process is set up and started.
pub(super) struct Recipe {
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) dir: PathBuf,
    pub(super) user: Option<(u32, u32)>,
    pub(super) files: Vec<(&'static str, String)>,
    pub(super) prepare: Vec<Vec<String>>,
    pub(super) command: Vec<String>,
    /// The signal after which the process shuts down in order.
    pub(super) shut_down: Signal,
}

impl Recipe {
    /// Returns whether the process only watches other servers.
    pub(super) fn is_sentinel(&self) -> bool {
        self.name.starts_with("sentinel")
    }
}

type Recipes = (String, Vec<Recipe>);

/// Returns the URL and the processes of a store's server.
pub(super) fn of(store: &str, dir: &Path) -> io::Result<Option<Recipes>> {
    match store {
        "postgres" => postgres(dir).map(Some),
        // The same server, and the dialect without functions and notifications (STO-9).
        "postgres-plain" => {
            postgres(dir).map(|(url, server)| Some((format!("{url}?dialect=plain"), server)))
        }
        "mariadb" => mariadb(dir).map(Some),
        "redis" => {
            // Redis flushes each write before it answers. With `everysec`, a write waits for a
            // flush that is under way, and a killed server loses the writes that it has
            // acknowledged in the meantime.
            let redis = redis("redis", free_port()?, dir, "appendfsync always\n")?;
            Ok(Some((format!("redis://127.0.0.1:{}", redis.port), vec![redis])))
        }
        "sentinel" => sentinel(dir).map(Some),
        "cluster" => super::cluster::recipes(dir, Ok).map(Some),
        _ => Ok(None),
    }
}

pub(super) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Finds a program in PATH, or in the folders outside of it in which Debian's packages install some
/// programs.
pub(crate) fn program(name: &str) -> io::Result<String> {
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    folders.push("/usr/sbin".into());
    if let Ok(versions) = fs::read_dir("/usr/lib/postgresql") {
        folders.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    let found = folders.into_iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    let found = found.ok_or_else(|| {
        let which = if ["patroni", "etcd"].contains(&name) { " patroni" } else { "" };
        let up = format!("`cargo xtask services up{which}` installs it");
        io::Error::other(format!("{name} is not installed: {up}"))
    })?;
    Ok(found.display().to_string())
}

fn postgres(dir: &Path) -> io::Result<Recipes> {
    let (port, dir) = (free_port()?, dir.join("postgres"));
    let data = dir.join("data").display().to_string();
    let initdb = program("initdb")?;
    let flags =
        ["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C", "-D", &data];
    let mut command = words(&[&program("postgres")?, "-D", &data]);
    for setting in [
        format!("port={port}"),
        "listen_addresses=127.0.0.1".into(),
        "unix_socket_directories=".into(),
        "max_connections=300".into(),
    ] {
        command.extend(["-c".to_owned(), setting]);
    }
    let recipe = Recipe {
        name: "postgres".into(),
        port,
        user: user(&["postgres", "nobody"])?,
        files: Vec::new(),
        prepare: vec![std::iter::once(initdb).chain(words(&flags)).collect()],
        command,
        // A fast shutdown, which does not wait for clients to leave.
        shut_down: Signal::INT,
        dir,
    };
    Ok((format!("postgres://postgres@127.0.0.1:{port}/postgres"), vec![recipe]))
}

fn mariadb(dir: &Path) -> io::Result<Recipes> {
    let init = "CREATE DATABASE IF NOT EXISTS retryproof;\n\
                CREATE USER IF NOT EXISTS 'retryproof'@'%' IDENTIFIED BY 'secret';\n\
                GRANT ALL PRIVILEGES ON *.* TO 'retryproof'@'%';\n";
    let recipe = mariadb_node("mariadb", dir, init, &["--max-connections=300"])?;
    let url = format!("mysql://retryproof:secret@127.0.0.1:{}/retryproof", recipe.port);
    Ok((url, vec![recipe]))
}

/// Returns the recipe of a MariaDB server, which runs the statements in `init` at each start before
/// it listens.
pub(super) fn mariadb_node(
    name: &str,
    dir: &Path,
    init: &str,
    settings: &[&str],
) -> io::Result<Recipe> {
    let (port, dir) = (free_port()?, dir.join(name));
    let at = |name: &str| dir.join(name).display().to_string();
    let data = format!("--datadir={}", at("data"));
    let prepare = words(&[
        &program("mariadb-install-db")?,
        "--no-defaults",
        &data,
        // A server that starts removes the temporary tables that it finds in this folder, so two
        // servers must not share one.
        &format!("--tmpdir={}", at("")),
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
    ]);
    let mut command = words(&[
        &program("mariadbd")?,
        "--no-defaults",
        &data,
        &format!("--port={port}"),
        "--bind-address=127.0.0.1",
        &format!("--socket={}", at("sock")),
        &format!("--pid-file={}", at("pid")),
        &format!("--tmpdir={}", at("")),
        &format!("--init-file={}", at("init.sql")),
        "--skip-name-resolve",
        "--innodb-flush-log-at-trx-commit=1",
    ]);
    command.extend(words(settings));
    Ok(Recipe {
        name: name.into(),
        port,
        user: user(&["mysql", "nobody"])?,
        files: vec![("init.sql", init.into())],
        prepare: vec![prepare],
        command,
        shut_down: Signal::TERM,
        dir,
    })
}

/// Returns the recipe of a Redis server with an append-only file. The settings in `role` come last
/// and take precedence.
pub(super) fn redis(name: &str, port: u16, dir: &Path, role: &str) -> io::Result<Recipe> {
    let dir = dir.join(name);
    let config = format!(
        "port {port}\nbind 127.0.0.1\ndir \"{}\"\nsave \"\"\nappendonly yes\nappendfsync everysec\n\
         repl-diskless-sync-delay 0\n{role}",
        dir.display()
    );
    Ok(Recipe {
        name: name.into(),
        port,
        user: user(&["redis", "nobody"])?,
        files: vec![("redis.conf", config)],
        prepare: Vec::new(),
        command: vec![program("redis-server")?, dir.join("redis.conf").display().to_string()],
        shut_down: Signal::TERM,
        dir,
    })
}

fn sentinel(dir: &Path) -> io::Result<Recipes> {
    let primary = redis("redis-1", free_port()?, dir, "")?;
    let port = primary.port;
    let mut group =
        vec![redis("redis-2", free_port()?, dir, &format!("replicaof 127.0.0.1 {port}\n"))?];
    group.insert(0, primary);
    let watch = format!(
        "sentinel monitor {GROUP} 127.0.0.1 {port} 2\nsentinel down-after-milliseconds {GROUP} 1000\n\
         sentinel failover-timeout {GROUP} 5000\n"
    );
    let mut addresses = Vec::new();
    for number in 1..=3 {
        let (own, name) = (free_port()?, format!("sentinel-{number}"));
        let dir = dir.join(&name);
        let config = format!("port {own}\nbind 127.0.0.1\ndir \"{}\"\n{watch}", dir.display());
        addresses.push(format!("127.0.0.1:{own}"));
        group.push(Recipe {
            port: own,
            user: user(&["redis", "nobody"])?,
            files: vec![("redis.conf", config)],
            prepare: Vec::new(),
            command: words(&[
                &program("redis-server")?,
                &dir.join("redis.conf").display().to_string(),
                "--sentinel",
            ]),
            shut_down: Signal::TERM,
            dir,
            name,
        });
    }
    Ok((format!("redis+sentinel://{}/{GROUP}", addresses.join(",")), group))
}

/// Returns the primary's port, as one of the sentinels sees it.
pub(super) fn primary(sentinels: &[u16]) -> io::Result<u16> {
    for sentinel in sentinels {
        let Ok(answer) = ask(*sentinel, &format!("SENTINEL get-master-addr-by-name {GROUP}"))
        else {
            continue;
        };
        if let Some(port) =
            answer.lines().filter_map(|line| line.trim().parse::<u16>().ok()).next_back()
        {
            return Ok(port);
        }
    }
    Err(io::Error::other("no sentinel knows the primary"))
}

/// Returns whether the server is a replica that has its primary's data.
pub(super) fn follows(port: u16) -> bool {
    ask(port, "INFO replication").is_ok_and(|answer| {
        answer.contains("role:slave") && answer.contains("master_link_status:up")
    })
}
