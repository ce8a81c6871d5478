// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts instructions per operation with callgrind. The counts are exact and repeatable, and do
//! not depend on what else the machine does.

use std::collections::HashSet;
use std::process::Command;

use crate::report::{Report, Row};

/// Returns the instructions per operation of `child ARGS.. COUNT`: the difference between a run
/// with `many` and one with `few`, divided by the difference of the counts. Set-up is the same in
/// both runs, so it cancels out.
///
/// Prints a message and returns `None` if valgrind is missing.
///
/// # Errors
/// Fails if valgrind is installed but a run of it fails.
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

/// Returns whether valgrind can be started.
#[must_use]
pub fn available() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Like [`instructions`], but leaves out functions whose name contains `part`, for code that
/// valgrind runs in software although processors have instructions for it (SHA-256).
///
/// # Errors
/// Same as for [`instructions`].
pub fn instructions_without(
    part: &str,
    args: &[&str],
    few: u64,
    many: u64,
) -> Result<Option<f64>, String> {
    let Some(all) = instructions(args, few, many)? else { return Ok(None) };
    let profile = std::env::temp_dir().join(format!("retryproof-callgrind-{}", std::process::id()));
    let own = |operations| {
        run(args, operations, &profile.display().to_string())?;
        let text = std::fs::read_to_string(&profile)
            .map_err(|error| format!("cannot read the profile of callgrind: {error}"))?;
        Ok::<_, String>(spent_in(part, &text))
    };
    let counted = own(few).and_then(|less| Ok((less, own(many)?)));
    // Ignore any error: after a failed run, there may be no file.
    let _ = std::fs::remove_file(&profile);
    let (less, more) = counted?;
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    Ok(Some(all - more.saturating_sub(less) as f64 / many.saturating_sub(few).max(1) as f64))
}

/// Adds a row with the instructions of `child ARGS.. COUNT`, without SHA-256, which valgrind runs
/// in software. The row is compared with the first row that uses the same `plain`, which keeps that
/// row's count.
///
/// # Errors
/// Same as for [`instructions`].
pub fn row(
    report: &mut Report,
    what: String,
    args: &[&str],
    (name, plain): (&'static str, &mut Option<f64>),
) -> Result<(), String> {
    report.row(match instructions_without("sha2::", args, 1_000, 2_000)? {
        None => Row::missing(what, "valgrind is not installed"),
        Some(own) => Row::new(what, own, "").beside(name, own / *plain.get_or_insert(own)),
    });
    Ok(())
}

/// Returns the instructions of a callgrind profile that were spent in functions whose name contains
/// `part`, without their callees.
fn spent_in(part: &str, profile: &str) -> u64 {
    // In a profile, a function's number is followed by the function's name the first time, and
    // later stands alone.
    let mut wanted = HashSet::new();
    let (mut inside, mut of_callee, mut spent) = (false, false, 0);
    for line in profile.lines() {
        if let Some(function) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            if name.contains(part) {
                wanted.insert(number);
            }
            if line.starts_with("fn=") {
                inside = wanted.contains(number);
            }
        } else if line.starts_with("calls=") {
            of_callee = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok());
            if inside && !of_callee {
                spent += cost.unwrap_or(0);
            }
            of_callee = false;
        }
    }
    spent
}

fn count(args: &[&str], operations: u64) -> Result<u64, String> {
    run(args, operations, "/dev/null")
}

fn run(args: &[&str], operations: u64, profile: &str) -> Result<u64, String> {
    let program = std::env::current_exe()
        .map_err(|error| format!("cannot find this program's path: {error}"))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--callgrind-out-file={profile}")])
        .arg(program)
        .arg("child")
        .args(args)
        .arg(operations.to_string())
        .output()
        .map_err(|error| format!("cannot run valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected :"));
    collected
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
        .filter(|_| output.status.success())
        .ok_or_else(|| format!("callgrind of `child {}` failed: {text}", args.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_spent_in_the_function_itself_counts() {
        let profile = "events: Ir\n\nfn=(1) main\n1 10\ncfn=(2) sha2::compress\ncalls=3 0\n* 300\n+1 5\n\n\
                       fn=(2)\n7 290\ncfn=(3) memcpy\ncalls=1 0\n8 10\n\nfn=(3)\n9 10\n\nfn=(2)\n7 4\n";
        assert_eq!(spent_in("sha2::", profile), 294);
        assert_eq!(spent_in("main", profile), 15);
    }
}
