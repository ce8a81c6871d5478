// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Folder`]: a folder of a test's own.
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

/// A folder below the system's temporary one, that nobody else looks into. It is removed, with all
/// that is in it, when this is dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes one, with `name` in its own name. What an earlier process of this number has left
    /// there goes.
    ///
    /// # Errors
    /// When it cannot be made.
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

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What a server has started may outlive it by a moment, and write until then.
        for _ in 0..1_000 {
            if fs::remove_dir_all(&self.0).is_ok() || !self.0.exists() {
                break;
            }
            std::thread::yield_now();
        }
    }
}
