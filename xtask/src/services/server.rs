// SPDX-License-Identifier: MIT OR Apache-2.0
//! One server process: its settings, how it is started, and when it is ready.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::account::Account;
use super::until;

/// The fixed properties of a kind of server.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) service: &'static str,
    /// The pid file that the server writes in its folder.
    pub(super) pid_file: &'static str,
    /// The signal that makes the server end soon and in an orderly way, without waiting for its
    /// clients.
    pub(super) stop: &'static str,
}

const fn kind(name: &'static str, service: &'static str) -> Kind {
    Kind { name, service, pid_file: "pid", stop: "TERM" }
}

/// All servers, in the order in which they start. They are stopped in the reverse order.
pub(super) const SERVERS: [Kind; 22] = [
    // On TERM, PostgreSQL would wait until its clients disconnect.
    Kind { pid_file: "data/postmaster.pid", stop: "INT", ..kind("postgres", "postgres") },
    Kind { pid_file: "data/postmaster.pid", stop: "INT", ..kind("standby-primary", "standby") },
    Kind { pid_file: "data/postmaster.pid", stop: "INT", ..kind("standby-copy", "standby") },
    // Since version 1.23, pgbouncer also waits for its clients to disconnect, on TERM and on INT.
    Kind { stop: "QUIT", ..kind("pgbouncer", "pgbouncer") },
    kind("mariadb", "mariadb"),
    kind("redis", "redis"),
    kind("sentinel-primary", "sentinel"),
    kind("sentinel-replica-1", "sentinel"),
    kind("sentinel-replica-2", "sentinel"),
    kind("sentinel-1", "sentinel"),
    kind("sentinel-2", "sentinel"),
    kind("sentinel-3", "sentinel"),
    kind("cluster-1", "cluster"),
    kind("cluster-2", "cluster"),
    kind("cluster-3", "cluster"),
    kind("cluster-4", "cluster"),
    kind("cluster-5", "cluster"),
    kind("cluster-6", "cluster"),
    kind("chromium", "chromium"),
    kind("nats", "nats"),
    Kind { pid_file: "data/pid", ..kind("rabbitmq-epmd", "rabbitmq") },
    Kind { pid_file: "data/pid", ..kind("rabbitmq", "rabbitmq") },
];

/// How one server is made and started.
pub(super) struct Server {
    pub(super) name: &'static str,
    pub(super) port: u16,
    /// The server's folder, with its data in `data`.
    pub(super) dir: PathBuf,
    pub(super) account: Option<Account>,
    /// Files of this folder, written only once, because a server may rewrite them.
    pub(super) files: Vec<(&'static str, String)>,
    /// Commands that create the server's data, each with its standard input.
    pub(super) prepare: Vec<(Vec<String>, String)>,
    /// The command that runs the server in the foreground.
    pub(super) command: Vec<String>,
    /// Checks whether the server is ready.
    pub(super) ready: fn(u16) -> io::Result<()>,
}

/// Why a server did not become ready, and the end of its log.
#[derive(Debug)]
pub(super) struct Failure {
    why: String,
    /// Whether the server ended without a signal from us, before it was ready.
    pub(super) ended: bool,
    log: Vec<String>,
}

impl Failure {
    pub(super) fn plain(why: &impl ToString) -> Self {
        Self { why: why.to_string(), ended: false, log: Vec::new() }
    }

    pub(super) fn of(server: &Server, why: &str) -> Self {
        Self {
            why: format!("{}: {why}", server.name),
            ended: false,
            log: tail(&server.dir.join("log"), 25),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)?;
        self.log.iter().try_for_each(|line| write!(f, "\n    | {line}"))
    }
}

impl Server {
    /// Returns whether the server's data exist from an earlier start.
    pub(super) fn is_made(&self) -> bool {
        self.dir.join("start").exists()
    }

    /// Creates the server's data unless they exist, and starts the server. The server runs in a
    /// separate process group, so a signal from the terminal that ends this program does not reach
    /// it.
    pub(super) fn start(&self) -> Result<Child, Failure> {
        let script = self.dir.join("start");
        if !self.is_made() {
            self.make().map_err(|error| Failure::of(self, &error.to_string()))?;
            let pid_file = SERVERS
                .iter()
                .find(|kind| kind.name == self.name)
                .map_or("pid", |kind| kind.pid_file);
            let text = script_text(
                &self.dir,
                pid_file,
                &Account::wrap(self.account.as_ref(), &self.command),
            );
            write_script(&script, &text).map_err(|error| Failure::of(self, &error.to_string()))?;
        }
        let mut command = Command::new("sh");
        command
            .arg(&script)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.process_group(0).spawn().map_err(|error| Failure::of(self, &error.to_string()))
    }

    /// Waits until the server is ready, has ended, or `bound` is over.
    pub(super) fn wait(&self, child: &mut Child, bound: Duration) -> Result<(), Failure> {
        let (mut last, mut ended) = (None, None);
        until(bound, || {
            last = (self.ready)(self.port).err();
            ended = child.try_wait().ok().flatten();
            (last.is_none() || ended.is_some()).then_some(())
        });
        match (ended, last) {
            (Some(status), _) => Err(Failure {
                ended: true,
                ..Failure::of(self, &format!("ended unexpectedly: {status}"))
            }),
            (None, Some(last)) => Err(Failure::of(
                self,
                &format!("was not ready within {} s: {last}", bound.as_secs()),
            )),
            (None, None) => Ok(()),
        }
    }

    fn make(&self) -> io::Result<()> {
        if self.dir.exists() {
            fs::remove_dir_all(&self.dir)?; // an earlier attempt ended before it wrote the script
        }
        let data = self.dir.join("data");
        fs::create_dir_all(&data)?;
        self.own(&self.dir)?;
        self.own(&data)?;
        for (name, text) in &self.files {
            let path = self.dir.join(name);
            fs::write(&path, text)?;
            self.own(&path)?;
        }
        for (command, input) in &self.prepare {
            let log = OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
            let words = Account::wrap(self.account.as_ref(), command);
            let mut child = Command::new(&words[0])
                .args(&words[1..])
                .current_dir(&self.dir)
                .stdin(Stdio::piped())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
                .map_err(|error| io::Error::other(format!("cannot run {}: {error}", words[0])))?;
            if let Some(mut pipe) = child.stdin.take() {
                // Ignore the error: if the program ended early, its exit status shows this.
                drop(pipe.write_all(input.as_bytes()));
            }
            let status = child.wait()?;
            if !status.success() {
                return Err(io::Error::other(format!("`{}` failed: {status}", command.join(" "))));
            }
        }
        Ok(())
    }

    fn own(&self, path: &Path) -> io::Result<()> {
        match &self.account {
            Some(Account { uid, gid }) => chown(path, Some(*uid), Some(*gid)),
            None => Ok(()),
        }
    }
}

/// Returns the script that starts a server. It ends in `exec`, so the script's process becomes the
/// server and keeps its id. Before that, the script waits for a server that was killed a moment
/// ago, because PostgreSQL counts it as running until its parent has reaped it.
fn script_text(dir: &Path, pid_file: &str, command: &[String]) -> String {
    let dir = quoted(&dir.to_string_lossy());
    let command: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    format!(
        "#!/bin/sh\ncd {dir} || exit 1\nold=$(head -n 1 {pid_file} 2>/dev/null)\nn=0\n\
         while [ $n -lt 100 ] && grep -qs '^State:.Z' \"/proc/${{old:-0}}/status\"; do n=$((n + 1)); sleep 0.1; done\n\
         exec {} </dev/null >>{dir}/log 2>&1\n",
        command.join(" ")
    )
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn write_script(path: &Path, text: &str) -> io::Result<()> {
    // Create the file in one step, because its existence means that the data are complete.
    let half = path.with_extension("half");
    let mut file = File::create(&half)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    fs::rename(&half, path)
}

fn tail(log: &Path, lines: usize) -> Vec<String> {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| (*line).to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_keeps_each_word_as_it_is() {
        let command =
            ["/x/db server".to_string(), "--name=it's".into(), "$HOME".into(), String::new()];
        let text = script_text(Path::new("/tmp/a b"), "pid", &command);
        assert!(
            text.starts_with(
                "#!/bin/sh\ncd '/tmp/a b' || exit 1\nold=$(head -n 1 pid 2>/dev/null)\n"
            ),
            "{text}"
        );
        let last =
            "exec '/x/db server' '--name=it'\\''s' '$HOME' '' </dev/null >>'/tmp/a b'/log 2>&1";
        assert_eq!(text.lines().last(), Some(last));
    }

    fn server(name: &str, script: &str, ready: fn(u16) -> io::Result<()>) -> Server {
        let dir = std::env::temp_dir().join(format!("xtask-server-{name}-{}", std::process::id()));
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_string()).collect();
        Server {
            name: "redis",
            port: 0,
            dir,
            account: None,
            files: vec![("settings", "x".into())],
            prepare: vec![(words(&["sh", "-c", "cat settings - >data/made"]), "y".into())],
            command: words(&["sh", "-c", script]),
            ready,
        }
    }

    #[test]
    fn one_that_ends_is_reported_at_once_with_its_log() {
        let server =
            server("ends", "echo cannot listen >&2; exit 3", |_| Err(io::Error::other("refused")));
        let mut child = server.start().expect("started");
        assert_eq!(fs::read_to_string(server.dir.join("data/made")).expect("made"), "xy");
        let failure = server.wait(&mut child, Duration::from_secs(60)).expect_err("it ended");
        assert!(failure.ended);
        assert_eq!(
            failure.to_string(),
            "redis: ended unexpectedly: exit status: 3\n    | cannot listen"
        );
        fs::remove_dir_all(&server.dir).expect("removed");
    }

    #[test]
    fn one_that_hangs_is_given_up_and_one_that_serves_is_not() {
        let mut server = server("hangs", "exec sleep 600", |_| Err(io::Error::other("refused")));
        let mut child = server.start().expect("started");
        let failure = server.wait(&mut child, Duration::from_millis(50)).expect_err("it hangs");
        assert_eq!(failure.to_string(), "redis: was not ready within 0 s: refused");
        server.ready = |_| Ok(());
        server.wait(&mut child, Duration::ZERO).expect("it serves");
        child.kill().expect("killed");
        child.wait().expect("reaped");
        fs::remove_dir_all(&server.dir).expect("removed");
    }

    #[test]
    fn data_that_cannot_be_made_are_reported_and_made_anew_the_next_time() {
        let mut server = server("half", "exit 0", |_| Ok(()));
        let good = std::mem::replace(&mut server.prepare[0].0, vec!["false".into()]);
        let failure = server.start().expect_err("not made");
        assert_eq!(failure.to_string(), "redis: `false` failed: exit status: 1");
        assert!(!server.is_made());
        server.prepare[0].0 = good;
        server.start().expect("started").wait().expect("ended");
        assert!(server.is_made());
        fs::remove_dir_all(&server.dir).expect("removed");
    }

    #[test]
    fn a_missing_log_has_no_end() {
        assert!(tail(Path::new("/nonexistent/log"), 3).is_empty());
        let failure = Failure { why: "x".into(), ended: true, log: vec!["a".into(), "b".into()] };
        assert_eq!(failure.to_string(), "x\n    | a\n    | b");
    }
}
