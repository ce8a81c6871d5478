// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kill test of a store with a defect, with the same options as in `cargo xtask test`.

use std::path::PathBuf;
use std::process::Command;

use defects::Defect;

use crate::Cell;
use crate::options::Options;

/// Runs the kill test; the judge's report names the rules that were broken.
pub(crate) fn run(options: &Options, store: &str, defect: Option<Defect>) -> Cell {
    let name = defect.map_or("none", Defect::name);
    let out =
        std::env::temp_dir().join(format!("retryproof-bite-{}-{store}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&out);
    // A busy server answers so few calls that shorter runs have too few waits for L2.
    let usual = if ["memory", "sqlite"].contains(&store) { 15 } else { 30 };
    let secs = options.secs.unwrap_or(usual);
    let mut command = Command::new(chaos());
    command
        .args(["--workers", "4", "--share", "0.03", "--slack-ms", "8000", "--store", store])
        .args(["--secs", &secs.to_string(), "--out"])
        .arg(&out);
    if let Some(defect) = defect {
        command.args(["--plant", defect.name()]);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return Cell::Empty(format!("{} cannot be run: {error}", chaos().display())),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let rules = broken(&said);
    let cell = match (defect, output.status.code()) {
        (Some(_), Some(1)) if !rules.is_empty() => Cell::Caught(rules.join(", ")),
        (None, Some(0)) => Cell::Caught("green".into()),
        (_, code) => {
            let last = said.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
            let error = String::from_utf8_lossy(&output.stderr);
            return Cell::Empty(format!(
                "exit status {code:?}, {} {last} {} (the history is in {})",
                rules.join(", "),
                error.trim(),
                out.display()
            ));
        }
    };
    let _ = std::fs::remove_dir_all(&out);
    cell
}

/// Returns the path of the program `chaos`, which `cargo xtask bite` has built in the folder of
/// this program.
fn chaos() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.with_file_name("chaos")
}

/// Returns the rules whose rows in the report count violations.
fn broken(report: &str) -> Vec<&str> {
    let rows = report.lines().filter(|line| line.contains(" VIOLATIONS"));
    rows.filter_map(|line| line.split_whitespace().next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_names_the_rules_that_were_broken() {
        let report = "invariants:\n  S1   one holder    0 violations \n  L2   woken    1 VIOLATIONS \
            median not judged\n  L4   keeps    11 VIOLATIONS \n\
            \nVIOLATED: 11 violations\n";
        assert_eq!(broken(report), ["L2", "L4"]);
    }
}
