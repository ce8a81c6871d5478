// SPDX-License-Identifier: MIT OR Apache-2.0
//! Heap counts of a child process with a counting allocator, and the resident size of this process.

use std::collections::BTreeMap;
use std::process::Command;

/// What the counting allocator has seen so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Heap {
    /// Calls of `alloc` and `realloc`.
    pub allocations: u64,
    /// Bytes allocated and not yet freed.
    pub bytes: u64,
}

/// Reads the counts; `None` in the program whose time is measured, because its allocator does not
/// count.
pub type HeapCounter = fn() -> Option<Heap>;

impl Heap {
    /// Returns what was added since `earlier`, per operation: allocations and bytes.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn since(self, earlier: Self, operations: u64) -> (f64, f64) {
        let per = operations.max(1) as f64;
        let allocations = self.allocations.saturating_sub(earlier.allocations) as f64;
        let bytes = self.bytes as f64 - earlier.bytes as f64;
        (allocations / per, bytes / per)
    }
}

/// Runs `child ARGS..` of this program under the counting allocator and reads its [`answer`]s.
///
/// # Errors
/// Fails if the child cannot be built, or if it fails.
pub fn counted(args: &[&str]) -> Result<BTreeMap<String, f64>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "run",
            "--quiet",
            "--release",
            "--locked",
            "-p",
            "retryproof-benches",
            "--bin",
            "counting",
            "--",
            "child",
        ])
        .args(args)
        .current_dir(crate::root())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the counting run of `child {}` failed: {text}", args.join(" ")));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let pairs = text.lines().filter_map(|line| line.strip_prefix("answer ")?.split_once(' '));
    Ok(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
}

/// Prints a figure for the parent process.
pub fn answer(name: &str, value: f64) {
    println!("answer {name} {value}");
}

/// Returns the bytes of memory that this process has in RAM, or `None` if the system does not
/// report it.
#[must_use]
pub fn resident() -> Option<u64> {
    kibibytes("/proc/self/status", "VmRSS:")
}

/// Returns the bytes of memory that a process could still get, or `None` if the system does not
/// report it.
#[must_use]
pub fn available() -> Option<u64> {
    kibibytes("/proc/meminfo", "MemAvailable:")
}

fn kibibytes(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}
