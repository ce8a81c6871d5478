// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Awake`]: keeps the cores from falling asleep while client and server hand each other the word.
//!
//! One task that asks leaves both cores idle half of the time. A core of a virtual machine that
//! idles too long is taken off its host's core: it comes back late and finds its caches cold, so
//! that the next gap is longer still. Two states are stable, one half as fast as the other, and a
//! floor and a store that differ by 3 us a call can end up in one each: measured 1.1 to 2.0 x from
//! one process to the next for the same two ways of reading, 1.0 to 1.1 x on cores that stay awake.
//! What is to be compared is the work, not the sleep.
//!
//! So one process for each core spins in the scheduler's idle class, which gives way at once to
//! whatever else wants to run. That is `chrt` and `taskset` of util-linux, since Rust without
//! `unsafe` has no call for it.

use std::process::{Child, Command, Stdio};

/// What the child's first argument says instead of a suite.
pub(crate) const CHILD: &str = "awake";

/// While it lives, no core sleeps.
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
            // One that has ended is what is wanted.
            let _ = spinner.kill();
            let _ = spinner.wait();
        }
    }
}

fn warn(problem: &str) {
    eprintln!("THE CORES MAY SLEEP, so that ratios at one task mean little: {problem}");
}

fn spinner(core: usize) -> Result<Child, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    Command::new("chrt")
        .args(["--idle", "0", "taskset", "--cpu-list", &core.to_string()])
        .arg(program)
        .args(["child", CHILD, &std::process::id().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("chrt (Debian: util-linux): {error}"))
}

/// The child: spins until it is killed, or its parent is gone.
pub(crate) fn spin(args: &[String]) -> Result<(), String> {
    let [parent] = args else { return Err("awake: the child takes the id of its parent".into()) };
    let parent: u32 = parent.parse().map_err(|error| format!("the parent's id: {error}"))?;
    while std::os::unix::process::parent_id() == parent {
        for _ in 0..100_000 {
            std::hint::spin_loop();
        }
    }
    Ok(())
}
