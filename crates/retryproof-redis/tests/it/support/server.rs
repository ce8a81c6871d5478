// SPDX-License-Identifier: MIT OR Apache-2.0
//! Private servers, alone, as a Sentinel group or as a cluster, for tests that configure, kill or
//! demote servers. The servers end with the test.

mod cluster;

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::support::ask;

pub(crate) use cluster::Cluster;

/// How long a start may take, which is more than any server needs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A process on a loopback port; its directory is removed with it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) port: u16,
    dir: PathBuf,
    settings: String,
    sentinel: bool,
    process: Option<Child>,
}

/// Returns a port that was free a moment ago, below the range from which the system assigns ports.
fn free_port() -> u16 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    loop {
        // Each process starts at a different port, so that no process takes a port that another
        // process has just released.
        let step = NEXT.fetch_add(1, Ordering::Relaxed) + std::process::id() as usize * 97;
        let port = 10_000 + u16::try_from(step % 9_000).expect("small");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Server {
    /// Starts a server with `settings`, which are lines of its configuration, and waits until it
    /// answers.
    pub(crate) async fn start(settings: &str) -> Self {
        let mut server = Self::new(settings, false);
        server.run().await;
        server
    }

    /// Like [`start`](Self::start), but starts a sentinel.
    pub(crate) async fn sentinel(settings: &str) -> Self {
        let mut sentinel = Self::new(settings, true);
        // Remove the settings that a sentinel does not accept.
        sentinel.settings =
            sentinel.settings.replace("save \"\"\nrepl-diskless-sync-delay 0\n", "");
        sentinel.run().await;
        sentinel
    }

    fn new(settings: &str, sentinel: bool) -> Self {
        let port = free_port();
        let dir =
            std::env::temp_dir().join(format!("retryproof-redis-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for the server");
        let mut text = format!(
            "port {port}\nbind 127.0.0.1\nsave \"\"\nrepl-diskless-sync-delay 0\n{settings}\n"
        );
        writeln!(text, "dir \"{}\"", dir.display()).expect("written");
        Self { port, dir, settings: text, sentinel, process: None }
    }

    /// Starts the process, on the same port and data as before.
    pub(crate) async fn run(&mut self) {
        self.spawn();
        self.until_it_answers().await;
    }

    /// Like [`run`](Self::run), but does not wait until the server answers.
    pub(crate) fn spawn(&mut self) {
        let file = self.dir.join("redis.conf");
        if !file.exists() {
            std::fs::write(&file, &self.settings).expect("written");
        }
        let mut command = Command::new("redis-server");
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if self.sentinel {
            command.arg("--sentinel");
        }
        self.process =
            Some(command.spawn().expect("no redis-server: run `cargo xtask services up redis`"));
    }

    async fn until_it_answers(&self) {
        tokio::time::timeout(PATIENCE, async {
            loop {
                if let Ok(mut conn) = self.client().get_multiplexed_async_connection().await {
                    match redis::cmd("PING").query_async::<String>(&mut conn).await {
                        Ok(_) => return,
                        // The server asks for a password, so it is running.
                        Err(error) if error.code() == Some("NOAUTH") => return,
                        Err(_) => {}
                    }
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("the server answers");
    }

    fn client(&self) -> redis::Client {
        redis::Client::open(self.url()).expect("a URL")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Opens a connection that does not belong to a store.
    pub(crate) async fn stranger(&self) -> MultiplexedConnection {
        // The driver's own limit of half a second is too short on a busy machine.
        let patient = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let client = self.client();
        client.get_multiplexed_async_connection_with_config(&patient).await.expect("a connection")
    }

    /// Sends a command, and ignores its answer.
    pub(crate) async fn tell(&self, line: &str) {
        let _: redis::Value = ask(&mut self.stranger().await, line).await;
    }

    /// Like [`tell`](Self::tell), but logs in with a password, and returns the answer, which is a
    /// line or a text.
    pub(crate) async fn told_with(&self, password: &str, line: &str) -> String {
        let client = redis::Client::open(format!("redis://:{password}@127.0.0.1:{}", self.port))
            .expect("a URL");
        let mut conn = client.get_multiplexed_async_connection().await.expect("a connection");
        ask(&mut conn, line).await
    }

    /// Returns the number that INFO reports under `name`.
    pub(crate) async fn info(&self, name: &str) -> u64 {
        let text: String = ask(&mut self.stranger().await, "INFO").await;
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|value| value.trim().parse().ok())
            .unwrap_or_else(|| panic!("no {name} in INFO"))
    }

    /// Removes the server's directory, so that the server cannot save.
    pub(crate) fn lose_disk(&self) {
        std::fs::remove_dir_all(&self.dir).expect("removed");
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Sends SIGSTOP or SIGCONT.
    pub(crate) fn signal(&self, name: &str) {
        let process = self.process.as_ref().expect("it runs");
        let status = Command::new("kill")
            .args([name, &process.id().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A primary, two replicas and three sentinels.
#[derive(Debug)]
pub(crate) struct Group {
    /// The servers; the first one started as the primary.
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
}

impl Group {
    pub(crate) async fn start() -> Self {
        let first = Server::start("").await;
        let follow = format!("replicaof 127.0.0.1 {}", first.port);
        let servers = vec![first, Server::start(&follow).await, Server::start(&follow).await];
        let watch = format!(
            "sentinel monitor main 127.0.0.1 {} 2\nsentinel down-after-milliseconds main \
             500\nsentinel failover-timeout main 3000\n",
            servers[0].port
        );
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(Server::sentinel(&watch).await);
        }
        let group = Self { servers, sentinels };
        group.settle().await;
        group
    }

    /// Waits until every sentinel sees the whole group: before that, a failover finds no quorum or
    /// no replica.
    async fn settle(&self) {
        tokio::time::timeout(PATIENCE, async {
            for sentinel in &self.sentinels {
                let mut conn = sentinel.stranger().await;
                loop {
                    let text: String = ask(&mut conn, "INFO sentinel").await;
                    if text.contains("status=ok") && text.contains(",slaves=2,sentinels=3") {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        })
        .await
        .expect("the sentinels see the group");
    }

    pub(crate) fn url(&self) -> String {
        let nodes: Vec<_> =
            self.sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
        format!("redis+sentinel://{}/main", nodes.join(","))
    }
}
