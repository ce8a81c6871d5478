// SPDX-License-Identifier: MIT OR Apache-2.0
//! A separate MariaDB server for tests that would disturb others, because they stop or restart the
//! server or change its limits.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use retryproof_mysql::MysqlConfig;
use sqlx::Connection as _;
use sqlx::mysql::MySqlConnection;

use crate::support::{sql, unique};

/// Dropping this value ends the server and removes its folder.
pub(crate) struct Server {
    dir: PathBuf,
    port: u16,
    options: Vec<String>,
    child: Option<Child>,
}

/// Finds a program of the server, which Debian installs outside of a user's `PATH`.
fn program(name: &str) -> PathBuf {
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/bin", "/usr/libexec"];
    let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
    found
        .unwrap_or_else(|| panic!("no {name} for this test: run `cargo xtask services up mariadb`"))
}

impl Server {
    /// Starts a new server with additional `options`, and a user `app` without privileges on the
    /// server itself.
    pub(crate) async fn start(options: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(unique("retryproof-mariadb"));
        std::fs::create_dir_all(&dir).expect("a folder");
        let prepared = Command::new(program("mariadb-install-db"))
            .args(["--no-defaults", "--user=root", "--auth-root-authentication-method=normal"])
            .args(["--skip-test-db", "--skip-name-resolve"])
            .arg(format!("--datadir={}", dir.join("data").display()))
            // Use a separate folder, because a server that starts removes the temporary files of
            // other servers in its folder.
            .arg(format!("--tmpdir={}", dir.display()))
            .args(options)
            .output()
            .expect("it runs");
        assert!(prepared.status.success(), "{}", String::from_utf8_lossy(&prepared.stderr));
        let port = TcpListener::bind("127.0.0.1:0")
            .expect("a free port")
            .local_addr()
            .expect("bound")
            .port();
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut server = Self { dir, port, options, child: None };
        server.up().await;
        let mut root = server.root().await;
        for text in [
            "CREATE DATABASE app",
            "CREATE USER 'app'@'%' IDENTIFIED BY 'secret'",
            "GRANT ALL PRIVILEGES ON app.* TO 'app'@'%'",
        ] {
            sql(&mut root, text).await;
        }
        server
    }

    /// Starts the server again on the same port with the same data.
    pub(crate) async fn up(&mut self) {
        let inside = |name: &str| self.dir.join(name).display().to_string();
        let child = Command::new(program("mariadbd"))
            .args([
                "--no-defaults",
                "--user=root",
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
            ])
            .arg(format!("--datadir={}", inside("data")))
            .arg(format!("--tmpdir={}", self.dir.display()))
            .arg(format!("--port={}", self.port))
            .arg(format!("--socket={}", inside("sock")))
            .arg(format!("--pid-file={}", inside("pid")))
            .arg(format!("--log-error={}", inside("log")))
            .args(&self.options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        self.child = Some(child);
        for _ in 0..1_200 {
            if MySqlConnection::connect(&self.url("root", "")).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!(
            "it does not start: {}",
            std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
        );
    }

    /// Kills the server, as in a crash.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = (child.kill(), child.wait());
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self, user: &str, password: &str) -> String {
        let database = if user == "root" { "mysql" } else { "app" };
        format!("mysql://{user}:{password}@127.0.0.1:{}/{database}", self.port)
    }

    pub(crate) async fn root(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.url("root", "")).await.expect("the server answers")
    }

    pub(crate) fn config(&self) -> MysqlConfig {
        MysqlConfig::from_url(&self.url("app", "secret")).expect("a valid URL")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
