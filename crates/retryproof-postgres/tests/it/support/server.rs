// SPDX-License-Identifier: MIT OR Apache-2.0
//! A separate PostgreSQL server, so that a test can count the bytes of the server's log, or kill
//! the server.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sqlx_core::connection::Connection as _;
use sqlx_postgres::PgConnection;
use tokio::time::Instant;

pub(crate) struct Server {
    root: PathBuf,
    bin: PathBuf,
    port: u16,
    child: Child,
}

/// Returns the folder of the server programs on Debian, which PATH does not contain.
fn binaries() -> PathBuf {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = installed
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .max();
    newest.expect("no PostgreSQL for this test: run `cargo xtask services up postgres`")
}

/// Runs the command as the user `postgres` if the test runs as root, because the server refuses to
/// run as root.
fn unprivileged(command: &mut Command) -> &mut Command {
    let me = Command::new("id").arg("-u").output().expect("`id` runs").stdout;
    if me.trim_ascii() == b"0" {
        let id = |flag| {
            let out =
                Command::new("id").args([flag, "postgres"]).output().expect("`id` runs").stdout;
            String::from_utf8_lossy(out.trim_ascii()).parse().expect("a user `postgres`")
        };
        command.uid(id("-u")).gid(id("-g"));
    }
    command
}

impl Server {
    /// Starts a new server. Its data is in a directory that is removed with the server.
    pub(crate) async fn start() -> Self {
        let root = std::env::temp_dir().join(format!("retryproof-pg-{}", std::process::id()));
        let root = (0..)
            .map(|at| root.with_extension(at.to_string()))
            .find(|root| fs::create_dir(root).is_ok());
        let root = root.expect("a directory for the test");
        Command::new("chmod").args(["0777"]).arg(&root).status().expect("`chmod` runs");
        let bin = binaries();
        let made = unprivileged(&mut Command::new(bin.join("initdb")))
            .args([
                "-A",
                "trust",
                "-U",
                "postgres",
                "--no-sync",
                "-E",
                "UTF8",
                "--locale=C.UTF-8",
                "-D",
            ])
            .arg(root.join("data"))
            .current_dir("/")
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let free = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let mut server = Self { child: launch(&bin, &root, port), root, bin, port };
        server.ready().await;
        server
    }

    /// Turns TLS on, with a certificate for 127.0.0.1. Returns the file of the authority that
    /// signed it.
    #[cfg(feature = "tls")]
    pub(crate) async fn encrypt(&self) -> String {
        let ext = "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
        fs::write(self.root.join("ext"), ext).expect("written");
        for line in [
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem \
             -days 2 -subj /CN=authority",
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out req.pem \
             -subj /CN=server",
            "x509 -req -in req.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 2 \
             -extfile ext",
        ] {
            // Create the key as the server's own user, because the server refuses a key that
            // another user may read.
            let made = unprivileged(&mut Command::new("openssl"))
                .args(line.split_whitespace())
                .current_dir(&self.root)
                .output()
                .expect("no openssl for this test: install the package `openssl`");
            assert!(made.status.success(), "{line}: {}", String::from_utf8_lossy(&made.stderr));
        }
        let file = |name: &str| self.root.join(name).display().to_string();
        let mut stranger = crate::support::Stranger::to(&self.url()).await;
        for (name, value) in [("ssl_cert_file", "cert.pem"), ("ssl_key_file", "key.pem")] {
            stranger.run(format!("ALTER SYSTEM SET {name}='{}'", file(value))).await;
        }
        stranger.run("ALTER SYSTEM SET ssl=on").await;
        stranger.run("SELECT pg_reload_conf()").await;
        file("ca.pem")
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    async fn ready(&mut self) {
        let patience = Instant::now() + Duration::from_secs(60);
        while PgConnection::connect(&self.url()).await.is_err() {
            if let Ok(Some(_)) = self.child.try_wait() {
                // Start the server again: the first start can fail while processes of the killed
                // server still run.
                self.child = launch(&self.bin, &self.root, self.port);
            }
            assert!(
                Instant::now() < patience,
                "the server does not start: see {}",
                self.root.display()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends the server as a crash does. The data on its disk remains.
    pub(crate) fn kill(&mut self) {
        let pid = self.child.id().to_string();
        // After a SIGKILL, the postmaster's children would run on for a moment. SIGQUIT ends them
        // too, without a checkpoint.
        let sent = Command::new("kill").args(["-QUIT", &pid]).status().expect("`kill` runs");
        assert!(sent.success());
        self.child.wait().expect("it ends");
    }

    pub(crate) async fn restart(&mut self) {
        self.child = launch(&self.bin, &self.root, self.port);
        self.ready().await;
    }
}

fn launch(bin: &Path, root: &Path, port: u16) -> Child {
    let log = fs::File::options().create(true).append(true).open(root.join("log")).expect("a log");
    unprivileged(&mut Command::new(bin.join("postgres")))
        .arg("-D")
        .arg(root.join("data"))
        .arg("-k")
        .arg(root)
        .args(["-p", &port.to_string(), "-h", "127.0.0.1"])
        // Keep background processes from writing to the write-ahead log.
        .args(["-c", "autovacuum=off", "-c", "wal_level=minimal", "-c", "max_wal_senders=0"])
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log)
        .current_dir("/")
        .spawn()
        .expect("the server starts")
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill();
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}
