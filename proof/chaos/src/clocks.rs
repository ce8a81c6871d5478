// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Clocks`]: wall clocks that a fault moves while processes run.
//!
//! A small library (`clocks/preload.c`) is preloaded into a process and adds an offset to its wall
//! clock. The offset is in a file, so that it changes at once in all processes that share it. We do
//! not use libfaketime, because redis-server hangs with it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::preload;

/// Makes wall clocks in a folder that other users' servers can read.
#[derive(Debug)]
pub(crate) struct Clocks {
    folder: PathBuf,
    library: PathBuf,
}

/// What makes a process use a clock.
#[derive(Debug, Clone)]
pub(crate) struct Preload {
    library: PathBuf,
    offset: PathBuf,
}

/// A clock that can be moved.
#[derive(Debug)]
pub(crate) struct WallClock {
    preload: Preload,
    file: File,
    ahead_ns: i64,
}

impl Clocks {
    /// Compiles the library.
    ///
    /// # Errors
    /// If there is no C compiler. A run without the faults that it was asked for proves nothing.
    pub(crate) fn build(folder: &Path) -> io::Result<Self> {
        let library = preload::library("clock", include_str!("clocks/preload.c"), folder)?;
        fs::set_permissions(&library, fs::Permissions::from_mode(0o755))?;
        Ok(Self { folder: folder.to_path_buf(), library })
    }

    /// Creates a clock that shows the right time until it is moved.
    pub(crate) fn clock(&self, name: &str) -> io::Result<WallClock> {
        let offset = self.folder.join(format!("clock-{name}"));
        let file = File::options().write(true).create(true).truncate(true).open(&offset)?;
        fs::set_permissions(&offset, fs::Permissions::from_mode(0o644))?;
        let preload = Preload { library: self.library.clone(), offset };
        let mut clock = WallClock { preload, file, ahead_ns: 0 };
        clock.set(0)?;
        Ok(clock)
    }
}

impl Preload {
    /// Lets the process use the clock.
    pub(crate) fn apply(&self, command: &mut Command) {
        command.envs(self.variables());
    }

    /// Returns the environment variables that let a process use the clock.
    pub(crate) fn variables(&self) -> [(String, String); 2] {
        [("LD_PRELOAD", &self.library), ("RETRYPROOF_CHAOS_CLOCK", &self.offset)]
            .map(|(name, path)| (name.to_owned(), path.display().to_string()))
    }
}

impl WallClock {
    pub(crate) fn preload(&self) -> &Preload {
        &self.preload
    }

    /// Returns by how much the clock is ahead of the right time.
    pub(crate) fn ahead_ns(&self) -> i64 {
        self.ahead_ns
    }

    /// Moves the clock in all processes that use it.
    pub(crate) fn set(&mut self, ahead_ns: i64) -> io::Result<()> {
        // Write the number twice: a reader that finds two different numbers reads again.
        let bytes = ahead_ns.to_ne_bytes();
        self.file.write_all_at(&bytes, 0)?;
        self.file.write_all_at(&bytes, 8)?;
        self.ahead_ns = ahead_ns;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(clock: &WallClock) -> i64 {
        let mut command = Command::new("date");
        clock.preload().apply(command.arg("+%s"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn a_process_shows_the_time_that_its_clock_was_moved_to() {
        let folder = std::env::temp_dir().join(format!("retryproof-clocks-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut clock = Clocks::build(&folder).unwrap().clock("test").unwrap();
        let right = i64::try_from(retryproof::clock::wall_clock_micros() / 1_000_000).unwrap();
        for ahead in [0, 3_600, -3_600] {
            clock.set(ahead * 1_000_000_000).unwrap();
            assert!((shows(&clock) - right - ahead).abs() < 30, "{ahead}");
        }
        // A process whose clock cannot be moved ends instead of running with the right clock.
        fs::remove_file(&clock.preload().offset).unwrap();
        let mut command = Command::new("date");
        clock.preload().apply(&mut command);
        assert_eq!(command.status().unwrap().code(), Some(97));
        fs::remove_dir_all(&folder).unwrap();
    }
}
