// SPDX-License-Identifier: MIT OR Apache-2.0
//! Short kill tests: each store passes, and each planted defect is caught by the same run that
//! finds nothing without it.
//!
//! The runs share the machine with all other tests. Therefore they only have to reach three
//! hundredths of the counts for a dedicated machine (150 operations, 2 kills, 2 takeovers and 15
//! replays in 30 s), and each time bound has seconds of slack: these tests check what happened, not
//! how fast.

mod erased;
mod forms;
mod full;
mod jumps;
mod memory;
mod operators;
mod planted;
mod power;
mod sealed;
mod servers;
mod sqlite;

use std::path::PathBuf;
use std::process::Command;

/// A run that has ended.
struct Ran {
    code: Option<i32>,
    said: String,
}

impl Ran {
    /// Returns how often the report says that a rule was broken.
    fn broken(&self, rule: &str) -> u64 {
        let rows = self.said.lines().map(str::split_whitespace);
        for row in rows {
            let words: Vec<&str> = row.collect();
            if words.first() == Some(&rule)
                && let Some(at) =
                    words.iter().position(|word| *word == "VIOLATIONS" || *word == "violations")
                && let Ok(count) = words[at - 1].parse()
            {
                return count;
            }
        }
        panic!("no row for {rule} in {}", self.said)
    }

    fn count(&self, name: &str) -> u64 {
        let row = self.said.lines().find(|line| line.trim_start().starts_with(name));
        let count = row.and_then(|row| row.split_whitespace().last()?.parse().ok());
        count.unwrap_or_else(|| panic!("no count of {name} in {}", self.said))
    }

    #[track_caller]
    fn holds(&self) {
        assert_eq!(self.code, Some(0), "{}", self.findings_first());
    }

    /// Returns what the run said with the findings and the verdict first. They are its last lines,
    /// and a log that is cut short loses these.
    fn findings_first(&self) -> String {
        let marks = ["VIOLATIONS", "TOO FEW", "TOO MUCH", "VOID"];
        let mut text: Vec<&str> =
            self.said.lines().filter(|line| marks.iter().any(|mark| line.contains(mark))).collect();
        let (counts, findings) = self.said.split_once("\nexcuses").unwrap_or(("", &self.said));
        text.extend([findings, counts]);
        text.join("\n")
    }
}

/// Runs the program in a new folder. The history of a failed run stays there.
fn chaos(name: &str, options: &[&str]) -> Ran {
    let out = folder(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    command
        .args(["--workers", "4", "--share", "0.03", "--slack-ms", "8000", "--out"])
        .arg(&out)
        .args(options);
    let output = command.output().expect("the program starts");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if output.status.success() {
        let _ = std::fs::remove_dir_all(&out);
    }
    Ran { code: output.status.code(), said }
}

/// Removes the folder of an earlier run with this name, and returns its path. The folder is below
/// the target folder, where a person can find it.
fn folder(name: &str) -> PathBuf {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{name}"));
    let _ = std::fs::remove_dir_all(&out);
    out
}
