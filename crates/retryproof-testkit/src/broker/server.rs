// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Server`]: a private message broker for one test, which can be killed and restarted with its
//! data.
//!
//! The brokers' programs must be installed on this machine; `cargo xtask services up nats rabbitmq`
//! installs them.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::folder::Folder;
use crate::process::{free_port, tail, tied};

/// How long a start may take. A busy machine can make the start slow, but a broker that needs more
/// time than this counts as stuck.
const READY_WITHIN: Duration = Duration::from_secs(180);
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// A broker on a free port of 127.0.0.1, with its data in a temporary folder. Dropping this value
/// stops the broker and removes the folder.
///
/// Start the broker on the thread that runs the test, not in `spawn_blocking`. If `setpriv` is
/// installed, the broker's processes die with the thread that started them, so no process outlives
/// a killed test.
#[derive(Debug)]
pub struct Server {
    url: String,
    folder: Folder,
    /// The processes in the order of their start. The last one is the broker itself.
    processes: Vec<Process>,
}

#[derive(Debug)]
struct Process {
    port: u16,
    command: Vec<String>,
    /// A probe to send, and the beginning of a ready broker's answer.
    greeting: (Vec<u8>, Vec<u8>),
    child: Option<Child>,
}

impl Server {
    /// Starts a NATS server with JetStream, which keeps its streams on disk.
    ///
    /// # Errors
    /// If the program is missing, or the server does not answer in time.
    pub async fn nats() -> io::Result<Self> {
        let (folder, port) = (folder()?, free_port());
        let dir = folder.path();
        let settings = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\" }}\n",
            dir.join("data").display()
        );
        let command =
            vec![program("nats-server")?, "-c".into(), write(dir, "nats.conf", &settings)?];
        let greeting = (Vec::new(), b"INFO ".to_vec());
        let url = format!("nats://127.0.0.1:{port}");
        Self::begin(url, folder, vec![Process { port, command, greeting, child: None }]).await
    }

    /// Starts a RabbitMQ node and its name server, `epmd`. The user `guest` has all permissions.
    ///
    /// # Errors
    /// If a program is missing, or one of the servers does not answer in time.
    pub async fn rabbitmq() -> io::Result<Self> {
        let (folder, names, port) = (folder()?, free_port(), free_port());
        let dir = folder.path();
        // Start `epmd` here. Otherwise, the node would start its own `epmd`, which this server
        // could not stop.
        let epmd = [
            program("epmd")?,
            "-port".into(),
            names.to_string(),
            "-address".into(),
            "127.0.0.1".into(),
        ];
        // This is a request to `epmd` and the expected answer, which contains the port as a
        // four-byte number.
        let knows = ([0, 1, b'n'].to_vec(), u32::from(names).to_be_bytes().to_vec());
        let settings = format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\n\
             log.console = true\nlog.console.level = warning\nlog.file = false\n\
             disk_free_limit.absolute = 1MB\n"
        );
        let inside = |name: &str| dir.join(name).display().to_string();
        let mut command = vec!["env".to_owned()];
        command.extend([
            format!("HOME={}", inside("data")),
            format!("ERL_EPMD_PORT={names}"),
            "ERL_EPMD_ADDRESS=127.0.0.1".into(),
            format!("RABBITMQ_NODENAME=own-{port}@localhost"),
            // The port for other nodes has the same number as the AMQP port, but is on 127.0.0.2
            // (see `inet_dist_use_interface` below).
            format!("RABBITMQ_DIST_PORT={port}"),
            format!("RABBITMQ_CONFIG_FILE={}", write(dir, "rabbitmq.conf", &settings)?),
            format!("RABBITMQ_ENABLED_PLUGINS_FILE={}", write(dir, "plugins", "[].\n")?),
            format!("RABBITMQ_MNESIA_BASE={}", inside("data/mnesia")),
            format!("RABBITMQ_LOG_BASE={}", inside("data/log")),
            format!("RABBITMQ_PID_FILE={}", inside("data/pid")),
            // With this variable, the script replaces itself with the node. Killing the process
            // therefore kills the node.
            "RABBITMQ_ALLOW_INPUT=1".into(),
            // The script on PATH is not used, because that script switches to a different user.
            Path::new(&program("rabbitmq-env")?)
                .with_file_name("rabbitmq-server")
                .display()
                .to_string(),
        ]);
        command.extend(
            ["-noinput", "-kernel", "inet_dist_use_interface", "{127,0,0,2}"].map(String::from),
        );
        // A node that is ready answers the AMQP protocol header with a method frame on channel 0.
        let greeting = (b"AMQP\0\0\x09\x01".to_vec(), vec![1, 0, 0]);
        let url = format!("amqp://guest:guest@127.0.0.1:{port}");
        let processes = vec![
            Process { port: names, command: epmd.to_vec(), greeting: knows, child: None },
            Process { port, command, greeting, child: None },
        ];
        Self::begin(url, folder, processes).await
    }

    async fn begin(url: String, folder: Folder, processes: Vec<Process>) -> io::Result<Self> {
        // Create the server before its processes. If a process fails to start, dropping the server
        // then ends the others.
        let mut server = Self { url, folder, processes };
        server.start().await?;
        Ok(server)
    }

    /// Returns the broker's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits until a quorum queue of this RabbitMQ would survive a kill. A kill loses a queue with
    /// all its messages if the queue was created within the last half second.
    ///
    /// # Errors
    /// If the queue is not on disk in time.
    pub async fn until_kept(&self, queue: &str) -> io::Result<()> {
        let node = self.folder.path().join("data/mnesia");
        let written = async {
            while !listed(&node, queue)? {
                sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        };
        timeout(READY_WITHIN, written).await.unwrap_or_else(|late| Err(late.into()))
    }

    /// Kills the broker with SIGKILL, and returns when the process has ended.
    ///
    /// # Errors
    /// If the broker cannot be killed.
    pub fn kill(&mut self) -> io::Result<()> {
        self.processes.last_mut().map_or(Ok(()), Process::kill)
    }

    /// Starts every process that is not running, with the same port and data, and waits until each
    /// process answers.
    ///
    /// # Errors
    /// If a process does not answer in time. The error contains the end of the log.
    ///
    /// # Cancel safety
    /// If the future is dropped, the broker may still be starting; call `start` again.
    pub async fn start(&mut self) -> io::Result<()> {
        let log = self.folder.path().join("log");
        for process in &mut self.processes {
            let ready = process.start(self.folder.path(), &log);
            if let Err(error) =
                timeout(READY_WITHIN, ready).await.unwrap_or_else(|late| Err(late.into()))
            {
                return Err(io::Error::other(format!(
                    "{}: {error}: {}",
                    process.command[0],
                    tail(&log)
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
        }
    }
}

impl Process {
    async fn start(&mut self, dir: &Path, log: &Path) -> io::Result<()> {
        loop {
            if self.child.is_none() {
                let log = fs::OpenOptions::new().create(true).append(true).open(log)?;
                let words = tied(&self.command);
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]).current_dir(dir).stdin(Stdio::null());
                self.child = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
            }
            if timeout(ANSWERS_WITHIN, self.greets())
                .await
                .is_ok_and(|greets| greets.is_ok_and(|yes| yes))
            {
                return Ok(());
            }
            // A process that was just killed can block the new process for a moment. The new
            // process then exits, so start it again.
            if let Some(child) = &mut self.child
                && child.try_wait()?.is_some()
            {
                self.child = None;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn greets(&self) -> io::Result<bool> {
        let mut line = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        let (says, expects) = &self.greeting;
        line.write_all(says).await?;
        let mut answer = vec![0; expects.len()];
        line.read_exact(&mut answer).await?;
        Ok(answer == *expects)
    }

    fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

/// Returns whether the list of quorum queues on disk contains this queue. A queue whose name
/// continues with a dot, such as `QUEUE.dead`, does not count as this queue.
fn listed(node: &Path, queue: &str) -> io::Result<bool> {
    for own in fs::read_dir(node)?.flatten() {
        let list = own.path().join("quorum").join(own.file_name()).join("names.dets");
        let text = fs::read(list).unwrap_or_default();
        let mut found = text.windows(queue.len() + 1);
        if found.any(|bytes| bytes.starts_with(queue.as_bytes()) && bytes[queue.len()] != b'.') {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Creates a temporary folder that contains a folder for the data.
fn folder() -> io::Result<Folder> {
    let folder = Folder::new("server")?;
    fs::create_dir(folder.path().join("data"))?;
    Ok(folder)
}

fn write(dir: &Path, name: &str, text: &str) -> io::Result<String> {
    let path = dir.join(name);
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}

/// Returns the path of a program. The search includes folders that are not in Debian's usual PATH.
fn program(name: &str) -> io::Result<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = ["/usr/sbin", "/usr/local/sbin", "/usr/lib/rabbitmq/bin"].map(PathBuf::from);
    let found = std::env::split_paths(&path)
        .chain(beside)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    found.map(|path| path.display().to_string()).ok_or_else(|| {
        io::Error::other(format!(
            "{name} is not installed; run `cargo xtask services up nats rabbitmq`"
        ))
    })
}
