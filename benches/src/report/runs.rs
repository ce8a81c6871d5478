// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every run of a suite, in `docs/bench/runs/<suite>.tsv`, with one line for each figure. No run is
//! ever removed. The page shows the median and the quartiles over all runs of one revision.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{Row, number};

/// If there are fewer runs than this, the page says how many are missing, because they show too
/// little of the spread.
pub(super) const ENOUGH: usize = 5;

const HEADER: &str = "revision\tdate\trun\tfigure\tvalue\tratio\n";

/// The runs of one suite at one revision.
#[derive(Debug, Default)]
pub(super) struct Runs {
    lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq)]
struct Line {
    run: usize,
    figure: String,
    value: Option<f64>,
    ratio: Option<f64>,
}

/// A median with its quartiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.sort_by(f64::total_cmp);
        let last = figures.len().checked_sub(1)?;
        // A quantile between two figures is interpolated linearly.
        #[expect(clippy::cast_precision_loss, reason = "there are few runs")]
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let quantile = |share: f64| {
            let at = last as f64 * share;
            let (below, above) = (figures[at.floor() as usize], figures[at.ceil() as usize]);
            below + (above - below) * at.fract()
        };
        Some(Self { median: quantile(0.5), low: quantile(0.25), high: quantile(0.75) })
    }

    /// Returns the median as text, with the quartiles if they differ from each other.
    pub(super) fn show(self) -> String {
        let [median, low, high] = [self.median, self.low, self.high].map(number);
        if low == high { median } else { format!("{median} ({low} to {high})") }
    }
}

impl Runs {
    /// Appends a run to the file, and returns all runs of its revision.
    pub(super) fn add(
        root: &Path,
        suite: &str,
        (revision, date): (&str, &str),
        rows: &[Row],
    ) -> io::Result<Self> {
        let (path, old) = (file(root, suite), kept(root, suite)?);
        let mut runs = Self::read(&old, revision);
        let run = runs.count() + 1;
        let mut text = old;
        for row in rows {
            let line = Line {
                run,
                figure: row.what.clone(),
                value: row.value.as_ref().ok().copied(),
                ratio: row.ratio.as_ref().map(|(_, ratio)| *ratio),
            };
            let cell = |figure: Option<f64>| figure.map_or("-".into(), |figure| figure.to_string());
            let (value, ratio) = (cell(line.value), cell(line.ratio));
            let _ = writeln!(text, "{revision}\t{date}\t{run}\t{}\t{value}\t{ratio}", line.figure);
            runs.lines.push(line);
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text)?;
        Ok(runs)
    }

    /// Returns the runs of a revision that are in the file.
    pub(super) fn of(root: &Path, suite: &str, revision: &str) -> io::Result<Self> {
        Ok(Self::read(&kept(root, suite)?, revision))
    }

    fn read(text: &str, revision: &str) -> Self {
        let lines = text.lines().filter_map(|line| {
            let cells: Vec<&str> = line.split('\t').collect();
            let [of, _, run, figure, value, ratio] = cells[..] else { return None };
            if of != revision {
                return None;
            }
            let (run, figure) = (run.parse().ok()?, figure.to_owned());
            Some(Line { run, figure, value: value.parse().ok(), ratio: ratio.parse().ok() })
        });
        Self { lines: lines.collect() }
    }

    pub(super) fn count(&self) -> usize {
        self.lines.iter().map(|line| line.run).max().unwrap_or(0)
    }

    pub(super) fn value(&self, figure: &str) -> Option<Spread> {
        self.spread(figure, |line| line.value)
    }

    pub(super) fn ratio(&self, figure: &str) -> Option<Spread> {
        self.spread(figure, |line| line.ratio)
    }

    fn spread(&self, figure: &str, of: impl Fn(&Line) -> Option<f64>) -> Option<Spread> {
        let lines = self.lines.iter().filter(|line| line.figure == figure);
        Spread::of(lines.filter_map(of).collect())
    }
}

/// Returns the text of the file, or that of a file without runs.
fn kept(root: &Path, suite: &str) -> io::Result<String> {
    match fs::read_to_string(file(root, suite)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(HEADER.into()),
        read => read,
    }
}

fn file(root: &Path, suite: &str) -> PathBuf {
    root.join("docs/bench/runs").join(format!("{suite}.tsv"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_has_its_quartiles() {
        let spread = Spread::of(vec![4.0, 1.0, 2.0, 3.0, 5.0]).unwrap();
        assert_eq!((spread.median, spread.low, spread.high), (3.0, 2.0, 4.0));
        assert_eq!(spread.show(), "3.00 (2.00 to 4.00)");
        assert_eq!(Spread::of(vec![1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of(vec![7.0]).unwrap().show(), "7.00");
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn runs_add_up_by_revision_and_none_is_lost() {
        let root = std::env::temp_dir().join(format!("retryproof-runs-{}", std::process::id()));
        let row = |value: f64| [Row::new("replay", value, "us").beside("floor", value / 2.0)];
        for (revision, value) in [("a", 1.0), ("a", 3.0), ("b", 9.0), ("a", 2.0)] {
            Runs::add(&root, "suite", (revision, "2026-11-24"), &row(value)).unwrap();
        }
        let text = fs::read_to_string(file(&root, "suite")).unwrap();
        assert_eq!(Runs::of(&root, "suite", "a").unwrap().count(), 3);
        assert_eq!(Runs::of(&root, "other", "a").unwrap().count(), 0);
        fs::remove_dir_all(&root).unwrap();
        let of = |revision| Runs::read(&text, revision);
        assert_eq!((of("a").count(), of("b").count(), of("c").count()), (3, 1, 0));
        assert_eq!(of("a").value("replay").unwrap().median, 2.0);
        assert_eq!(of("b").ratio("replay").unwrap().median, 4.5);
        assert_eq!(text.lines().count(), 5);
    }

    #[test]
    fn a_figure_that_was_not_measured_has_no_spread() {
        let runs = Runs::read("a\td\t1\ttakeover\t-\t-\n", "a");
        assert_eq!((runs.count(), runs.value("takeover")), (1, None));
    }
}
