// SPDX-License-Identifier: MIT OR Apache-2.0
//! `alerts-check`: the rules of `docs/operate/alerts.yml` are valid, and each fires and stays silent
//! as `alerts-test.yml` says. Prometheus's own `promtool` judges both.

use std::path::Path;
use std::process::Command;

use crate::{Verdict, services};

pub(crate) fn check(root: &Path) -> Verdict {
    let promtool = match services::promtool() {
        Ok(promtool) => promtool,
        Err(why) => return Verdict::Failed(why),
    };
    let mut problems = Vec::new();
    for (arguments, what) in [
        (["check", "rules", "alerts.yml"], "the rules are not valid"),
        (["test", "rules", "alerts-test.yml"], "an alert does not do what its test says"),
    ] {
        // The tests name the rules by a path relative to their own folder.
        let mut command = Command::new(&promtool);
        match command.args(arguments).current_dir(root.join("docs/operate")).status() {
            Ok(status) if status.success() => {}
            Ok(_) => problems.push(what.to_string()),
            Err(error) => problems.push(format!("{promtool} could not be run: {error}")),
        }
    }
    Verdict::of(&problems, "12 alerts".into())
}
