// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Awake`]: keeps the cores awake while client and server take turns.
//!
//! With one calling task, both cores are idle half of the time. The host takes a virtual core that
//! idles too long off its physical core. The virtual core returns late and with cold caches, so the
//! next idle period is longer still. The result is two stable states, one half as fast as the
//! other, and a floor and a store that differ by 3 us per call can end up in different states. The
//! ratio of two identical readers varied from 1.1 to 2.0 between processes, and only from 1.0 to
//! 1.1 on cores that stay awake. The suites should compare the work, not the sleep.
//!
//! Therefore one process for each core spins in the scheduler's idle class, which yields at once to
//! every other process. `chrt` and `taskset` of util-linux start these processes, because Rust
//! without `unsafe` has no call for that.

use std::process::{Child, Command, Stdio};

/// The child's first argument, in place of a suite.
pub(crate) const CHILD: &str = "awake";

/// Keeps all cores awake until it is dropped.
pub(crate) struct Awake(Vec<Child>);

impl Awake {
    pub(crate) fn start() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut awake = Self(Vec::new());
        for core in 0..cores {
            match spinner(core) {
                Ok(child) => awake.0.push(child),
                Err(problem) => warn(&problem),
            }
        }
        awake
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for spinner in &mut self.0 {
            if let Ok(Some(status)) = spinner.try_wait() {
                warn(&format!("a spinner ended early: {status}"));
            }
            // Ignore any error: a child that has already ended cannot be killed.
            let _ = spinner.kill();
            let _ = spinner.wait();
        }
    }
}

fn warn(problem: &str) {
    eprintln!("THE CORES MAY SLEEP, so the ratios at one task are unreliable: {problem}");
}

fn spinner(core: usize) -> Result<Child, String> {
    let program = std::env::current_exe()
        .map_err(|error| format!("cannot find this program's path: {error}"))?;
    Command::new("chrt")
        .args(["--idle", "0", "taskset", "--cpu-list", &core.to_string()])
        .arg(program)
        .args(["child", CHILD, &std::process::id().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot run chrt (Debian: util-linux): {error}"))
}

/// Spins in the child until it is killed or its parent has ended.
pub(crate) fn spin(args: &[String]) -> Result<(), String> {
    let [parent] = args else { return Err("awake: the child takes the id of its parent".into()) };
    let parent: u32 =
        parent.parse().map_err(|error| format!("the parent's id is not a number: {error}"))?;
    while std::os::unix::process::parent_id() == parent {
        for _ in 0..100_000 {
            std::hint::spin_loop();
        }
    }
    Ok(())
}
