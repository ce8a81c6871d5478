// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instructions per operation by callgrind: exact, repeatable, and blind to what else the machine does.

use std::process::Command;

/// Instructions per operation of `child ARGS.. COUNT`: the difference of a run with `many` and one with `few`, divided
/// by the difference of the counts. Set-up, which both runs share, falls out.
///
/// `None` where valgrind is missing, after saying so.
///
/// # Errors
/// When valgrind is there but a run of it fails.
pub fn instructions(args: &[&str], few: u64, many: u64) -> Result<Option<f64>, String> {
    if !available() {
        println!(
            "NOT MEASURED: valgrind is not installed, so no instructions are counted ({})",
            args.join(" ")
        );
        return Ok(None);
    }
    let (less, more) = (count(args, few)?, count(args, many)?);
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    Ok(Some(more.saturating_sub(less) as f64 / many.saturating_sub(few).max(1) as f64))
}

/// Whether valgrind can be started.
#[must_use]
pub fn available() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

fn count(args: &[&str], operations: u64) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| format!("where am I: {error}"))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .arg("child")
        .args(args)
        .arg(operations.to_string())
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected :"));
    collected
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
        .filter(|_| output.status.success())
        .ok_or_else(|| format!("callgrind of `child {}` failed: {text}", args.join(" ")))
}
