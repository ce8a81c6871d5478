// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder of the servers of this checkout, and which of them run.
//!
//! The folder's name is derived from the checkout's path, so that servers are found again after
//! `cargo clean`. The folder contains the list of processes, with a copy in `target/services`.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::server::{Kind, SERVERS};
use super::{Service, account, env, ports, process, until};

/// The time for an orderly end; SIGKILL follows.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);
const KILLED_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct Site {
    home: PathBuf,
    entries: BTreeMap<String, Entry>,
}

/// The note about a server that was started. A restarted server keeps its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// 0 for a server that was never started.
    pid: u32,
    began: u64,
    port: u16,
}

/// Locks the services of one checkout until the returned file is dropped.
pub(super) fn lock(root: &Path) -> io::Result<File> {
    let folder = folder(root);
    fs::create_dir_all(&folder)?;
    let lock = File::create(folder.join("lock"))?;
    if lock.try_lock().is_err() {
        println!("  waiting for another `cargo xtask services` of this checkout");
        lock.lock()?;
    }
    Ok(lock)
}

/// Returns the folder with the addresses. It does not depend on a build's target folder, because
/// tests look for it from the sources.
pub(super) fn folder(root: &Path) -> PathBuf {
    root.join("target/services")
}

impl Site {
    /// Reads the existing state; creates nothing.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let me = account::me().map_err(|_| {
            io::Error::other("this system has no /proc: the servers can only be started on Linux")
        })?;
        let mut hash = DefaultHasher::new();
        root.canonicalize()?.hash(&mut hash);
        let home = temporary(&std::env::temp_dir(), me)?
            .join(format!("retryproof-{me}-{:016x}", hash.finish()));
        Self::at(home, me)
    }

    fn at(home: PathBuf, me: u32) -> io::Result<Self> {
        match fs::symlink_metadata(&home) {
            Ok(is) if is.is_dir() && is.uid() == me => {}
            Ok(_) => {
                return Err(io::Error::other(format!(
                    "{} is not a folder of the current user",
                    home.display()
                )));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let entries = parse(&fs::read_to_string(home.join("pids")).unwrap_or_default());
        Ok(Self { home, entries })
    }

    /// Returns the folder of one server.
    pub(super) fn dir(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// Returns the port of a server, or 0 if it has none yet.
    pub(super) fn port(&self, name: &str) -> u16 {
        self.entries.get(name).map_or(0, |entry| entry.port)
    }

    /// Returns the process id of a running server: the noted one, or the one in its pid file,
    /// because a test may have restarted the server. In both cases, the process must have its
    /// working folder in the server's folder.
    pub(super) fn process(&self, name: &str) -> Option<u32> {
        let kind = SERVERS.iter().find(|kind| kind.name == name)?;
        let dir = self.dir(name);
        let noted = self
            .entries
            .get(name)
            .filter(|entry| process::start_time(entry.pid) == Some(entry.began));
        let noted = noted.map(|entry| entry.pid);
        let filed = || process::from_file(&dir.join(kind.pid_file));
        let lives =
            |pid: &u32| process::start_time(*pid).is_some() && process::works_in(*pid, &dir);
        noted.filter(lives).or_else(|| filed().filter(lives))
    }

    /// Returns the servers of a service that run.
    pub(super) fn running(&self, service: &str) -> Vec<&'static str> {
        of(service).filter(|kind| self.process(kind.name).is_some()).map(|kind| kind.name).collect()
    }

    /// Returns whether all servers of a service run.
    pub(super) fn runs(&self, service: &str) -> bool {
        self.running(service).len() == of(service).count()
    }

    /// Creates the folder, and gives a port to each server that has none.
    pub(super) fn draw_ports(&mut self, services: &[&Service]) -> io::Result<()> {
        if !self.home.exists() {
            DirBuilder::new().mode(0o755).create(&self.home)?;
            // Set the mode regardless of the umask, because servers of other users need access.
            fs::set_permissions(&self.home, fs::Permissions::from_mode(0o755))?;
        }
        let names: Vec<&str> = services
            .iter()
            .flat_map(|service| of(service.name))
            .map(|kind| kind.name)
            .filter(|name| !self.entries.contains_key(*name))
            .collect();
        let ports = self.free_ports(names.len())?;
        for (name, port) in names.into_iter().zip(ports) {
            self.entries.insert(name.into(), Entry { pid: 0, began: 0, port });
        }
        self.save()
    }

    /// Returns free ports that no server of these services has.
    pub(super) fn free_ports(&self, count: usize) -> io::Result<Vec<u16>> {
        let taken: Vec<u16> = self.entries.values().map(|entry| entry.port).collect();
        let mut seed = DefaultHasher::new();
        (&self.home, std::process::id()).hash(&mut seed);
        ports::draw(count, &taken, seed.finish())
    }

    /// Notes that a server was started as process `pid`.
    pub(super) fn note(&mut self, name: &str, pid: u32) -> io::Result<()> {
        if let Some(entry) = self.entries.get_mut(name) {
            (entry.pid, entry.began) = (pid, process::start_time(pid).unwrap_or(0));
        }
        self.save()
    }

    /// Ends the servers of these services by process id, with SIGKILL after a bound, and removes
    /// their files. If no server is left, removes the folder too.
    pub(super) fn stop(&mut self, services: &[&str]) -> Result<(), String> {
        let kinds: Vec<&Kind> =
            SERVERS.iter().rev().filter(|kind| services.contains(&kind.service)).collect();
        let mut living: Vec<(&Kind, u32)> =
            kinds.iter().filter_map(|kind| Some((*kind, self.process(kind.name)?))).collect();
        for (signal, bound) in [(None, STOPPED_WITHIN), (Some("KILL"), KILLED_WITHIN)] {
            for (kind, pid) in &living {
                let sent = process::signal(*pid, signal.unwrap_or(kind.stop));
                sent.map_err(|error| format!("cannot signal process {pid}: {error}"))?;
            }
            until(bound, || {
                living.retain(|(kind, pid)| self.process(kind.name) == Some(*pid));
                living.is_empty().then_some(())
            });
        }
        if let Some((kind, pid)) = living.first() {
            return Err(format!("{} did not end, even after SIGKILL: process {pid}", kind.name));
        }
        for kind in kinds {
            let dir = self.dir(kind.name);
            // Repeat the removal, because children of a killed server may still write files for a
            // moment.
            let gone = until(KILLED_WITHIN, || {
                (!dir.exists() || fs::remove_dir_all(&dir).is_ok()).then_some(())
            });
            gone.ok_or_else(|| format!("cannot remove {}", dir.display()))?;
            self.entries.remove(kind.name);
        }
        let left = if self.entries.is_empty() {
            if self.home.exists() { fs::remove_dir_all(&self.home) } else { Ok(()) }
        } else {
            self.save()
        };
        left.map_err(|error| format!("cannot update {}: {error}", self.home.display()))
    }

    /// Writes `target/services` for the tests; if nothing is running, removes its files.
    pub(super) fn publish(&self, root: &Path) -> io::Result<()> {
        let folder = folder(root);
        let variables = env::variables(self);
        for (name, text) in [("env", env::render(&variables)), ("pids", render(&self.entries))] {
            let path = folder.join(name);
            if !variables.is_empty() {
                replace(&path, &text)?;
            } else if path.exists() {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn save(&self) -> io::Result<()> {
        replace(&self.home.join("pids"), &render(&self.entries))
    }
}

fn of(service: &str) -> impl Iterator<Item = &'static Kind> {
    SERVERS.iter().filter(move |kind| kind.service == service)
}

/// Replaces a file in such a way that a reader finds the old text or the new one, never half of it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let half = path.with_extension("half");
    fs::write(&half, text)?;
    fs::rename(&half, path)
}

/// Returns the system's temporary folder, or /tmp if the users that run the servers cannot reach
/// that folder.
fn temporary(wanted: &Path, me: u32) -> io::Result<PathBuf> {
    let wanted = wanted.canonicalize()?;
    let open = |folder: &Path| fs::metadata(folder).is_ok_and(|is| is.mode() & 0o001 != 0);
    if me != 0 || wanted.ancestors().all(open) {
        Ok(wanted)
    } else {
        Path::new("/tmp").canonicalize()
    }
}

fn render(entries: &BTreeMap<String, Entry>) -> String {
    let lines: String = entries
        .iter()
        .map(|(name, Entry { pid, began, port })| format!("{name} {pid} {began} {port}\n"))
        .collect();
    format!("# server, process id, its start in kernel ticks, port\n{lines}")
}

/// Parses the notes. Lines that cannot be parsed are dropped: their servers count as not running.
fn parse(text: &str) -> BTreeMap<String, Entry> {
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next().filter(|name| SERVERS.iter().any(|kind| kind.name == *name))?;
        let pid = words.next()?.parse().ok()?;
        let began = words.next()?.parse().ok()?;
        let port = words.next()?.parse().ok()?;
        Some((name.to_string(), Entry { pid, began, port }))
    };
    text.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("redis")).expect("a folder");
            Self(path.canonicalize().expect("its path"))
        }

        fn site(&self, lines: &str) -> Site {
            fs::write(self.0.join("pids"), lines).expect("written");
            Site::at(self.0.clone(), account::me().expect("our id")).expect("opened")
        }

        /// Starts a process that works in `folder` and waits forever.
        fn process(&self, folder: &str) -> Child {
            let mut command = Command::new("sleep");
            command.arg("600").current_dir(self.0.join(folder)).stdin(Stdio::null());
            command.spawn().expect("started")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn line(child: &Child, late: u64) -> String {
        let began = process::start_time(child.id()).expect("it runs") + late;
        format!("redis {} {began} 20123\n", child.id())
    }

    fn end(mut child: Child) {
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }

    #[test]
    fn the_list_is_read_as_it_was_written_and_nonsense_is_dropped() {
        let entries = parse("redis 7 99 20001\npostgres 8 x 1\nunknown 1 2 3\nmariadb 1\n# x\n\n");
        assert_eq!(
            entries,
            [("redis".to_string(), Entry { pid: 7, began: 99, port: 20_001 })].into()
        );
        assert_eq!(parse(&render(&entries)), entries);
    }

    #[test]
    fn a_noted_process_counts_and_a_number_given_to_another_does_not() {
        let scratch = Scratch::new("stale");
        let (ours, stranger) = (scratch.process("redis"), scratch.process(""));
        assert_eq!(scratch.site(&line(&ours, 0)).process("redis"), Some(ours.id()));
        // The process has the same id, but it began at another time or works in another folder.
        assert_eq!(scratch.site(&line(&ours, 1)).process("redis"), None);
        assert_eq!(scratch.site(&line(&stranger, 0)).process("redis"), None);
        fs::write(scratch.0.join("redis/pid"), format!("{}\n", stranger.id())).expect("written");
        assert_eq!(scratch.site(&line(&ours, 1)).process("redis"), None);
        // A test has restarted the server, which now has another process id.
        fs::write(scratch.0.join("redis/pid"), format!("{}\n", ours.id())).expect("written");
        assert_eq!(scratch.site(&line(&ours, 1)).process("redis"), Some(ours.id()));
        let gone = ours.id();
        end(ours);
        assert_eq!(scratch.site(&format!("redis {gone} 1 20123\n")).process("redis"), None);
        end(stranger);
    }

    #[test]
    fn stopping_ends_ours_removes_its_files_and_leaves_a_stranger_alone() {
        let scratch = Scratch::new("stop");
        let (mut ours, mut stranger) = (scratch.process("redis"), scratch.process(""));
        let text = format!("{}mariadb {} 1 20124\n", line(&ours, 0), stranger.id());
        let mut site = scratch.site(&text);
        site.stop(&["redis", "mariadb"]).expect("stopped");
        assert!(ours.wait().expect("reaped").code().is_none(), "ended by a signal");
        assert!(stranger.try_wait().expect("asked").is_none(), "still there");
        assert!(!scratch.0.exists());
        stranger.kill().expect("killed");
        stranger.wait().expect("reaped");
    }

    #[test]
    fn a_folder_that_is_not_one_is_refused() {
        let scratch = Scratch::new("link");
        let (me, link) = (account::me().expect("our id"), scratch.0.join("link"));
        std::os::unix::fs::symlink(scratch.0.join("redis"), &link).expect("a link");
        assert!(Site::at(link, me).is_err());
        assert!(Site::at(scratch.0.clone(), me.wrapping_add(1)).is_err());
    }
}
