// SPDX-License-Identifier: MIT OR Apache-2.0
//! What became of the mutants: the results of all runs at one revision, and the survivors that are
//! excused.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The files in which cargo-mutants lists its results.
const ENDS: [&str; 4] = ["caught", "missed", "timeout", "unviable"];

/// The results of all runs, in which each mutant counts once.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// The names of the mutants that ended in this way, in the order of [`ENDS`].
    by_end: [BTreeSet<String>; 4],
}

/// An excused survivor: crate, function and change.
type Excused = BTreeMap<(String, String), Vec<String>>;

impl Results {
    /// The folders of all earlier runs.
    pub(super) fn runs(folder: &Path) -> Result<Vec<PathBuf>, String> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(format!("{}: {error}", folder.display())),
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        Ok(paths.filter(|path| path.is_dir()).collect())
    }

    pub(super) fn read(folder: &Path) -> Result<Self, String> {
        let mut results = Self::default();
        for run in Self::runs(folder)? {
            for (end, names) in ENDS.iter().zip(&mut results.by_end) {
                let file = run.join("mutants.out").join(end).with_extension("txt");
                let text = fs::read_to_string(file).unwrap_or_default();
                names.extend(text.lines().map(str::to_owned));
            }
        }
        Ok(results)
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.by_end.iter().any(|names| names.contains(name))
    }

    pub(super) fn counts(&self) -> String {
        let counts = ENDS.iter().zip(&self.by_end);
        counts.map(|(end, names)| format!("{} {end}", names.len())).collect::<Vec<_>>().join(", ")
    }

    /// Each survivor, with ` (excused: REASON)` if there is a reason for it. One line of the list
    /// excuses one survivor.
    pub(super) fn survivors(&self, krate: &str, excused: &Excused) -> Vec<(&str, String)> {
        let mut excused = excused.clone();
        let [_, missed, ..] = &self.by_end;
        let survivors = missed.iter().map(|name| {
            let reason = excused.get_mut(&(krate.to_owned(), change(name).to_owned()));
            let reason = reason.and_then(Vec::pop);
            (name.as_str(), reason.map_or_else(String::new, |r| format!(" (excused: {r})")))
        });
        survivors.collect()
    }

    /// What is wrong if fewer than `percent` of the mutants were caught. A mutant that does not
    /// compile counts as none. A mutant that makes the tests hang counts as caught. An excused
    /// survivor counts as none.
    pub(super) fn problem(
        &self,
        krate: &str,
        survivors: &[(&str, String)],
        percent: usize,
    ) -> Option<String> {
        let [caught, _, timeout, _] = &self.by_end;
        let caught = caught.len() + timeout.len();
        let survived = survivors.iter().filter(|(_, reason)| reason.is_empty()).count();
        let all = caught + survived;
        (all == 0 || caught * 100 < all * percent).then(|| {
            format!("{krate}: {caught} of {all} mutants were caught, fewer than {percent} %")
        })
    }
}

/// The change itself, without the place at which the tool found it. The place moves with every
/// edit.
fn change(name: &str) -> &str {
    name.split_once(": ").map_or(name, |(_, change)| change)
}

/// Reads the list of excused survivors: crate, change and reason, separated by tabs.
pub(super) fn excused(text: &str) -> Result<Excused, String> {
    let mut excused = Excused::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split('\t').collect::<Vec<_>>()[..] {
            [krate, change, reason] if !reason.trim().is_empty() => {
                let key = (krate.to_owned(), change.to_owned());
                excused.entry(key).or_default().push(reason.to_owned());
            }
            _ => return Err(format!("not crate, change and reason, separated by tabs: `{line}`")),
        }
    }
    Ok(excused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(caught: usize, missed: &[&str]) -> Results {
        let mut results = Results::default();
        results.by_end[0] = (0..caught).map(|n| format!("a.rs:{n}:1: replace")).collect();
        results.by_end[1] = missed.iter().map(|&name| name.to_owned()).collect();
        results
    }

    const LOST: &str = "a.rs:9:1: replace < with <= in f";

    #[test]
    fn too_many_survivors_are_a_problem_unless_each_has_a_reason() {
        let none = Excused::new();
        let problem = |results: &Results, excused: &Excused| {
            results.problem("core", &results.survivors("core", excused), 95)
        };
        assert_eq!(problem(&results(19, &[LOST]), &none), None);
        assert!(problem(&results(18, &[LOST]), &none).is_some());
        assert!(problem(&results(0, &[]), &none).is_some(), "nothing was tested");
        let one = excused("# list\ncore\treplace < with <= in f\tno time is equal\n").unwrap();
        assert_eq!(problem(&results(18, &[LOST]), &one), None);
        let twice = results(18, &[LOST, "a.rs:12:1: replace < with <= in f"]);
        assert!(problem(&twice, &one).is_some(), "one line excuses one survivor");
        assert!(results(18, &[LOST]).survivors("http", &one)[0].1.is_empty());
    }

    #[test]
    fn an_excuse_without_a_reason_is_refused() {
        assert!(excused("core\treplace\t \n").is_err());
        assert!(excused("core\treplace\n").is_err());
    }

    #[test]
    fn results_of_several_runs_add_up() {
        let folder = std::env::temp_dir().join(format!("xtask-mutants-{}", std::process::id()));
        for (run, end, line) in [("1", "caught", "a"), ("2", "caught", "a"), ("2", "missed", "b")] {
            let out = folder.join(run).join("mutants.out");
            fs::create_dir_all(&out).unwrap();
            fs::write(out.join(end).with_extension("txt"), format!("{line}\n")).unwrap();
        }
        let read = Results::read(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(read.counts(), "1 caught, 1 missed, 0 timeout, 0 unviable");
        assert!(read.knows("a") && read.knows("b") && !read.knows("c"));
        assert_eq!(Results::read(&folder).unwrap().counts(), Results::default().counts());
    }
}
