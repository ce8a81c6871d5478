// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Folder`]: a temporary folder for one test.
//!
//! ```
//! use retryproof_testkit::folder::Folder;
//!
//! # fn main() -> std::io::Result<()> {
//! let folder = Folder::new("orders")?;
//! std::fs::write(folder.path().join("orders.db"), "")?;
//! let path = folder.path().to_owned();
//! drop(folder);
//! assert!(!path.exists());
//! # Ok(())
//! # }
//! ```

use std::fs::{self, DirBuilder};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A private folder below the system's temporary folder. Dropping this value removes the folder
/// with its contents.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a folder whose name contains `name`. Removes the files of an earlier process that
    /// had the same process ID.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn new(name: &str) -> io::Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("retryproof-{name}-{}-{count}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&path)?;
        Ok(Self(path))
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Try repeatedly, because a process that a server started can briefly outlive the server
        // and still write files.
        for _ in 0..1_000 {
            if fs::remove_dir_all(&self.0).is_ok() || !self.0.exists() {
                break;
            }
            std::thread::yield_now();
        }
    }
}
