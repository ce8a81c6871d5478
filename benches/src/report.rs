// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results of a suite: rows of a Markdown table in `BENCHMARKS.md`, and a plot in
//! `docs/bench/<suite>.svg`.
//!
//! ```text
//! let mut report = Report::new("memory", "The memory store");
//! report.row(Row::new("replay", 210.0, "instructions").value_at_most(260.0));
//! report.row(Row::new("replay, 1 thread", 32.0, "ns").beside("HashMap behind a mutex", 1.4).ratio_at_most(2.0));
//! report.row(Row::missing("takeover", "valgrind is not installed"));
//! report.note("200-byte values, 36-byte keys.");
//! report.plot(Plot::new("Replay, one thread", "ns").bar("retryproof", 32.0).bar("dashmap", 118.0));
//! ```

use std::fmt::{self, Write as _};
use std::path::Path;
use std::process::Command;

mod runs;
mod svg;

pub use svg::Plot;

use runs::Runs;

const PAGE: &str = "BENCHMARKS.md";
const PREFACE: &str = "# Benchmarks\n\n`cargo xtask bench` writes the tables of this page.\n";

/// The results of one suite.
#[derive(Debug)]
pub struct Report {
    suite: &'static str,
    title: String,
    rows: Vec<Row>,
    notes: Vec<String>,
    plots: Vec<Plot>,
}

/// One figure.
#[derive(Debug, Clone)]
pub struct Row {
    what: String,
    /// The figure; an `Err` says why it was not measured.
    value: Result<f64, String>,
    unit: &'static str,
    /// The floor's name, and the figure divided by the floor's.
    ratio: Option<(String, f64)>,
    goal: Option<Goal>,
}

#[derive(Debug, Clone, Copy)]
struct Goal {
    on_ratio: bool,
    at_most: bool,
    limit: f64,
}

impl Row {
    /// Creates a row for a figure that was measured.
    pub fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { what: what.into(), value: Ok(value), unit, ratio: None, goal: None }
    }

    /// Creates a row for a figure that could not be measured here, with the reason. Such a row
    /// neither meets a goal nor misses it.
    pub fn missing(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), value: Err(why.into()), unit: "", ratio: None, goal: None }
    }

    /// Adds the ratio of the figure to that of `floor`, from the same loop.
    #[must_use]
    pub fn beside(mut self, floor: impl Into<String>, ratio: f64) -> Self {
        self.ratio = Some((floor.into(), ratio));
        self
    }

    /// Sets the goal: the figure itself is at most `limit`.
    #[must_use]
    pub fn value_at_most(self, limit: f64) -> Self {
        self.goal(false, true, limit)
    }

    /// Sets the goal: the figure itself is at least `limit`.
    #[must_use]
    pub fn value_at_least(self, limit: f64) -> Self {
        self.goal(false, false, limit)
    }

    /// Sets the goal: the ratio is at most `limit`.
    #[must_use]
    pub fn ratio_at_most(self, limit: f64) -> Self {
        self.goal(true, true, limit)
    }

    /// Sets the goal: the ratio is at least `limit`.
    #[must_use]
    pub fn ratio_at_least(self, limit: f64) -> Self {
        self.goal(true, false, limit)
    }

    fn goal(mut self, on_ratio: bool, at_most: bool, limit: f64) -> Self {
        self.goal = Some(Goal { on_ratio, at_most, limit });
        self
    }

    /// Returns whether the medians of all runs meet the goal; without runs, whether this figure
    /// does. Returns `None` without a goal or a figure.
    fn met(&self, runs: &Runs) -> Option<bool> {
        let goal = self.goal?;
        let (own, all) = if goal.on_ratio {
            (self.ratio.as_ref()?.1, runs.ratio(&self.what))
        } else {
            (*self.value.as_ref().ok()?, runs.value(&self.what))
        };
        let figure = all.map_or(own, |all| all.median);
        Some(if goal.at_most { figure <= goal.limit } else { figure >= goal.limit })
    }

    /// Returns the cells of the row: what, measured, ratio, goal, verdict. Figures are medians over
    /// the runs, with their quartiles; without other runs, they are those of this run.
    fn cells(&self, runs: &Runs) -> [String; 5] {
        let measured = match &self.value {
            Ok(value) => {
                let all = runs.value(&self.what).map_or_else(|| number(*value), runs::Spread::show);
                format!("{all} {}", self.unit)
            }
            Err(why) => format!("not measured: {why}"),
        };
        let ratio = self.ratio.as_ref().map_or(String::new(), |(floor, ratio)| {
            let all = runs.ratio(&self.what).map_or_else(|| number(*ratio), runs::Spread::show);
            format!("{all} x {floor}")
        });
        let goal = self.goal.map_or(String::new(), |goal| {
            let sign = if goal.at_most { "<=" } else { ">=" };
            let unit = if goal.on_ratio { "x" } else { self.unit };
            format!("{sign} {} {unit}", number(goal.limit))
        });
        let verdict = match self.met(runs) {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        [self.what.clone(), measured, ratio, goal, verdict.into()]
    }
}

impl Report {
    /// Creates a report without rows. `suite` names its markers and its plot.
    pub fn new(suite: &'static str, title: impl Into<String>) -> Self {
        Self { suite, title: title.into(), rows: Vec::new(), notes: Vec::new(), plots: Vec::new() }
    }

    /// Adds a figure.
    pub fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Adds a paragraph under the table: the shape of the test, and what a reader must know to
    /// judge it.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds a group of bars to the plot.
    pub fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    /// Returns the rows of this run as text for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let [what, measured, ratio, goal, verdict] = row.cells(&Runs::default());
            let _ = writeln!(text, "{what:<44} {measured:>22}  {ratio:<34} {goal:<24} {verdict}");
        }
        text
    }

    /// Adds this run to those of the same revision. Writes the table of all these runs, with the
    /// count of missed goals above it, between this suite's markers of `BENCHMARKS.md`, and writes
    /// the plot. Returns whether the medians of all runs meet all goals of this suite.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    pub fn write(&self, root: &Path) -> std::io::Result<bool> {
        let now = Circumstances::ask();
        let runs = Runs::add(root, self.suite, (&now.revision, &now.date), &self.rows)?;
        let page = root.join(PAGE);
        let old = match std::fs::read_to_string(&page) {
            Ok(old) => old,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => PREFACE.to_owned(),
            Err(error) => return Err(error),
        };
        if !self.plots.is_empty() {
            let folder = root.join("docs/bench");
            std::fs::create_dir_all(&folder)?;
            std::fs::write(
                folder.join(format!("{}.svg", self.suite)),
                svg::draw(&self.title, &self.plots),
            )?;
        }
        let new = replace(&old, self.suite, &self.to_markdown(&runs, &now));
        std::fs::write(page, with_missed(&new))?;
        Ok(self.rows.iter().all(|row| row.met(&runs) != Some(false)))
    }

    fn to_markdown(&self, runs: &Runs, now: &Circumstances) -> String {
        let (title, suite, count) = (&self.title, self.suite, runs.count());
        let few = match runs::ENOUGH.saturating_sub(count) {
            0 => String::new(),
            more => format!(" ({more} more are needed to judge the spread)"),
        };
        let mut text = format!(
            "## {title}\n\n`cargo xtask bench {suite}`, {now}; medians and quartiles of {count} runs\
             {few}, which [`docs/bench/runs/{suite}.tsv`](docs/bench/runs/{suite}.tsv) lists\n\n"
        );
        text.push_str("| figure | measured | beside its floor | goal | |\n|---|---|---|---|---|\n");
        for row in &self.rows {
            let _ = writeln!(text, "| {} |", row.cells(runs).join(" | "));
        }
        if !self.plots.is_empty() {
            let _ = write!(text, "\n![{}](docs/bench/{}.svg)\n", self.title, self.suite);
        }
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        text
    }
}

/// Returns the lines before and after a suite's part of the page.
fn markers(suite: &str) -> (String, String) {
    (format!("<!-- bench:{suite} -->\n"), format!("<!-- /bench:{suite} -->\n"))
}

/// Counts the rows with this verdict.
fn count(page: &str, verdict: &str) -> usize {
    page.lines().filter(|line| line.ends_with(&format!("| {verdict} |"))).count()
}

/// Puts `text` between the markers of `suite`, or at the end of the page if it has no markers.
fn replace(page: &str, suite: &str, text: &str) -> String {
    let (begin, end) = markers(suite);
    match (page.split_once(&begin), page.split_once(&end)) {
        (Some((before, _)), Some((_, after))) => format!("{before}{begin}{text}{end}{after}"),
        _ => format!("{}\n\n{begin}{text}{end}", page.trim_end()),
    }
}

/// Returns the page with an updated sentence at its top, which counts the missed goals.
fn with_missed(page: &str) -> String {
    let (missed, met) = (count(page, "MISSED"), count(page, "met"));
    let line = format!("**{missed} of {} goals are missed.**", missed + met);
    let mut paragraphs: Vec<&str> = page.split("\n\n").collect();
    match paragraphs.get(1) {
        Some(old) if old.ends_with("goals are missed.**") => paragraphs[1] = &line,
        _ => paragraphs.insert(1.min(paragraphs.len()), &line),
    }
    paragraphs.join("\n\n")
}

/// The date, the revision and the machine, as far as they are known.
struct Circumstances {
    date: String,
    revision: String,
    compiler: String,
}

impl Circumstances {
    fn ask() -> Self {
        Self {
            date: ask("date", &["-u", "+%Y-%m-%d"]),
            revision: revision(),
            compiler: ask("rustc", &["--version"]).split(" (").next().unwrap_or_default().into(),
        }
    }
}

/// What a suite measures. Figures and pages are left out, so that a commit of figures does not
/// begin a new revision, and the runs of one revision can be spread over several commits.
const MEASURED: [&str; 5] = ["crates", "benches", "xtask", "Cargo.toml", "Cargo.lock"];

/// Returns the last commit that changed what is measured, with `+changes` if a file differs from
/// that commit.
fn revision() -> String {
    let of = |command: &[&str]| ask("git", &[command, &["--"], &MEASURED].concat());
    let commit = of(&["log", "-1", "--format=%h"]);
    if of(&["status", "--porcelain"]).is_empty() { commit } else { commit + "+changes" }
}

/// Returns what a program prints, or `?` if it cannot be run.
fn ask(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(crate::root()).output().ok();
    let output = output.filter(|output| output.status.success());
    output.map_or("?".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns whether the table of a suite on the page has no missed goal.
///
/// # Errors
/// Fails if the page cannot be read.
pub fn meets_goals(root: &Path, suite: &str) -> std::io::Result<bool> {
    let page = std::fs::read_to_string(root.join(PAGE))?;
    let (begin, end) = markers(suite);
    let table = page.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
    Ok(table.is_none_or(|(table, _)| count(table, "MISSED") == 0))
}

/// Returns how many runs of a suite are kept at this revision, and the revision.
///
/// # Errors
/// Fails if the file of the runs cannot be read.
pub fn runs_so_far(root: &Path, suite: &str) -> std::io::Result<(usize, String)> {
    let revision = revision();
    Ok((Runs::of(root, suite, &revision)?.count(), revision))
}

impl fmt::Display for Circumstances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { date, revision, compiler } = self;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let arch = std::env::consts::ARCH;
        write!(f, "{date}, revision {revision}, {arch} on {cores} cores, {compiler}")
    }
}

/// Formats a value with three significant digits below 100, and as a whole number above.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_replaces_its_own_part_of_the_page_only() {
        let page = replace(&replace("# B\n", "a", "one\n"), "b", "two\n");
        let page = replace(&page, "a", "three\n");
        assert_eq!(
            page,
            "# B\n\n<!-- bench:a -->\nthree\n<!-- /bench:a -->\n\n<!-- bench:b -->\ntwo\n<!-- /bench:b -->\n"
        );
    }

    #[test]
    fn the_page_begins_with_the_count_of_missed_goals() {
        let page = "# B\n\nWords.\n\n| a | met |\n| b | MISSED |\n| c |  |\n";
        let once = with_missed(page);
        assert!(once.starts_with("# B\n\n**1 of 2 goals are missed.**\n\nWords."), "{once}");
        assert_eq!(with_missed(&once), once);
    }

    #[test]
    fn goals_are_judged_on_what_they_name() {
        let row = Row::new("x", 250.0, "instructions").beside("floor", 3.0);
        assert_eq!(row.clone().value_at_most(260.0).met(&Runs::default()), Some(true));
        assert_eq!(row.clone().ratio_at_most(2.0).met(&Runs::default()), Some(false));
        assert_eq!(row.clone().ratio_at_least(2.0).met(&Runs::default()), Some(true));
        assert_eq!(row.met(&Runs::default()), None);
        assert_eq!(Row::missing("x", "why").value_at_most(1.0).met(&Runs::default()), None);
    }
}
