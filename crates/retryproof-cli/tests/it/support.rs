// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the command, and a store for each test.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use retryproof_testkit::folder::Folder;

/// How long a test waits for something that happens immediately on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The secret of stores with hashed identities, and its variable.
pub(crate) const SECRET: &str = "5d3c9a1f0b7e4c2d8a6f1e3b5c7d9e0f";
pub(crate) const SECRET_VARIABLE: &str = "IDEMPOTENCY_IDENTITY_SECRET";

/// A store, and a folder for what commands write.
pub(crate) struct Place {
    folder: Folder,
    pub(crate) url: String,
    is_hashed: bool,
    is_sealed: bool,
}

/// The environment variables that turn on sealed results. The master keys are in the file `master`.
const SEAL_VARIABLES: [(&str, &str); 2] =
    [("IDEMPOTENCY_SEAL_KEYS", "sqlite:keys.db"), ("IDEMPOTENCY_SEAL_MASTER", "master")];
/// A line of master keys.
pub(crate) const MASTER: &str =
    "one:a0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d1e2f3a4b5c6d7e8f9a0b1";

impl Place {
    /// Creates a SQLite file.
    pub(crate) fn sqlite() -> Self {
        let folder = Folder::new("cli").expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("records.db").display());
        Self { folder, url, is_hashed: false, is_sealed: false }.migrated()
    }

    /// Creates a SQLite file with sealed results.
    pub(crate) fn sealed_sqlite() -> Self {
        let folder = Folder::new("cli").expect("a folder");
        std::fs::write(folder.path().join("master"), MASTER).expect("a file");
        let url = format!("sqlite:{}", folder.path().join("records.db").display());
        Self { folder, url, is_hashed: true, is_sealed: true }.migrated()
    }

    /// Creates a SQLite file with hashed identities.
    pub(crate) fn hashed_sqlite() -> Self {
        let folder = Folder::new("cli").expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("records.db").display());
        Self { folder, url, is_hashed: true, is_sealed: false }.migrated()
    }

    /// Migrates the store at `url`, and returns a place with this store.
    pub(crate) fn on(url: String) -> Self {
        let folder = Folder::new("cli").expect("a folder");
        Self { folder, url, is_hashed: false, is_sealed: false }.migrated()
    }

    /// Like [`on`](Self::on), with hashed identities.
    pub(crate) fn hashed_on(url: String) -> Self {
        let folder = Folder::new("cli").expect("a folder");
        Self { folder, url, is_hashed: true, is_sealed: false }.migrated()
    }

    fn migrated(self) -> Self {
        let done = self.retryproof(["migrate"]).output().expect("it runs");
        assert!(done.status.success(), "{}", err(&done));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the content of a file in the folder, or an empty text.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Returns the command `retryproof` with this store. The command runs in the folder.
    pub(crate) fn retryproof<I: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = I>,
    ) -> Command {
        let mut command = bare();
        command.env("IDEMPOTENCY_STORE", &self.url).current_dir(self.folder.path());
        if self.is_hashed {
            command.env(SECRET_VARIABLE, SECRET);
        }
        if self.is_sealed {
            command.envs(SEAL_VARIABLES);
        }
        command.args(arguments);
        command
    }

    /// `retryproof run OPTIONS work k -- sh -c SCRIPT`.
    pub(crate) fn run(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.retryproof(["run"]);
        command.args(options).args(["work", "k", "--", "sh", "-c", script]);
        command
    }

    pub(crate) fn db(&self) -> PathBuf {
        self.path("records.db")
    }
}

/// Returns the command `retryproof` without a store, and without settings of the test's own
/// environment.
pub(crate) fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_retryproof"));
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("IDEMPOTENCY_") || name_text == "RUST_LOG" {
            command.env_remove(&name);
        }
    }
    command
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("no exit code: {:?}", output.status))
}

/// Starts a command whose output can be read later.
pub(crate) fn started(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Waits until `condition` returns a value, and returns the value.
pub(crate) fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let steps = PATIENCE.as_millis() / 10;
    for _ in 0..steps {
        if let Some(found) = condition() {
            return found;
        }
        pause();
    }
    panic!("{what} did not happen within {PATIENCE:?}");
}

#[expect(clippy::disallowed_methods, reason = "a bounded wait for a condition of other processes")]
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

/// Whether a process exists and has not ended.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    // A process that has ended but has not been waited for is in the state `Z`.
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z"))
}
